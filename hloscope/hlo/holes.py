"""Cutting a run of attributes into its skeleton and its holes.

A hole is a span whose content cannot change how the attributes are parsed: a name, a string, a word, what stands in
braces. What is left is the skeleton. Two runs with the same skeleton have the same tokens outside the holes, and each
hole is the same tokens or lies within the same token, so one parse speaks for both.

Every alternative begins with a fixed character, which lets `re` skip to the next candidate quickly, and a lookbehind
settles what stands before it. The skeleton around a hole tells what the hole is, so a string cannot stand in for a
name; a hole that begins with `=` has none before it. Quantifiers are possessive throughout: no run takes more than
linear time.
"""

from __future__ import annotations

import re

from hloscope.hlo.rows import NAME, STRING

_WORD = "A-Za-z0-9_.-"
_CALLED = ("to_apply=", "calls=", "condition=", "body=", "computation=", "select=", "scatter=")
_WITH_A_RULE = (*_CALLED, "frontend_attributes=", "backend_config=", "literal=")
"""The keys whose values the grammar looks into."""


def _after(openings: tuple[str, ...]) -> str:
    return "(?:" + "|".join(f"(?<={opening})" for opening in openings) + ")"


def _not_after(openings: tuple[str, ...], bracket: str) -> str:
    return "".join(f"(?<!{opening}{bracket})" for opening in openings)


_NO_BRACE = r"""[^{}"'/%\n]"""
_HOLES = (
    rf"%(?<![{_WORD}=]%){NAME}",
    rf"%{_after(tuple(key + '%' for key in _CALLED))}{NAME}",
    rf"\{{(?<=[{_WORD}]=\{{){_not_after(_WITH_A_RULE, '[{]')}{_NO_BRACE}*+(?:\{{{_NO_BRACE}*+\}}{_NO_BRACE}*+)*+\}}",
    rf"=(?<=[{_WORD}]=){_not_after(_WITH_A_RULE, '')}(?:->|[A-Za-z0-9_.?+-])++(?=,|\Z)",
    rf'"(?<=="){_not_after(_CALLED, chr(34))}{STRING[1:]}',
    rf"={_after(_CALLED)}{NAME}(?!\))",
)

cut_attributes = re.compile(f"({'|'.join(_HOLES)})").split
"""Cuts a run of attributes into skeleton pieces (even places) and holes (odd places)."""

_nested = rf"""(?:[^{{}}"\n]++|{STRING})*+"""
for _ in range(8):  # deeper ones are read as other attributes are, which is only slower
    _nested = rf"""(?:[^{{}}"\n]++|{STRING}|\{{{_nested}\}})*+"""

is_plain_config = re.compile(rf", backend_config=\{{{_nested}\}}[ \r]*").fullmatch
"""Matches a backend's configuration in braces alone; what stands in them may be anything."""

cut_numbers = re.compile(r"(?<![A-Za-z0-9])([0-9]{1,18})(?![0-9])").split
"""Cuts the numbers out of a row of a stack table, a shape or a layout."""

_INDEX_COMMENT = re.compile(r"/\*index=[0-9]+\*/")


def without_index_comments(text: str) -> str:
    """The text without the comments that XLA prints before every fifth item of a list."""
    return _INDEX_COMMENT.sub("", text) if "/" in text else text


def has_comment(text: str) -> bool:
    """Whether a text may hold another comment than XLA's `/*index=5*/`, which could hide what comes after the text."""
    return "/" in without_index_comments(text)


def is_plain(pieces: list[str]) -> bool:
    """Whether the skeleton lets every hole stand outside strings and comments.

    Each piece must close what it opens: quotes come in pairs, and there is no comment but XLA's.
    """
    for piece in pieces:
        if piece.count('"') % 2 or piece.count("'") % 2:
            return False
        rest = without_index_comments(piece)
        if "/*" in rest or "//" in rest:
            return False
    return True
