"""Runs of attributes by their skeleton: what one parse says of all runs that differ only in names, strings and values.

A hole is a span whose content cannot change how the attributes are parsed: a name, a string, a word, what stands in
braces. What is left is the skeleton. Two runs with the same skeleton have the same tokens outside the holes, and each
hole is the same tokens or lies within the same token, so one parse speaks for both. A template says where every key,
value and callee stands between the holes.

Every alternative begins with a fixed character, which lets `re` skip to the next candidate quickly, and a lookbehind
settles what stands before it. The skeleton around a hole tells what the hole is, so a string cannot stand in for a
name; a hole that begins with `=` has none before it. Quantifiers are possessive throughout: no run takes more than
linear time.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import NamedTuple

from hloscope.hlo.line_patterns import NAME, STRING
from hloscope.hlo.records import Attribute, Span


class Irregular(Exception):  # noqa: N818 - no error: such a line is parsed by itself instead
    """A field's border lies inside a hole, or the text holds what templates do not describe."""


class _Recipe(NamedTuple):
    """A span in terms of a text's parts: from `skip` characters into part `first` to `drop` before `last`'s end."""

    first: int
    skip: int
    last: int
    drop: int

    def text(self, parts: list[str]) -> str:
        """The span's text."""
        first, skip, last, drop = self
        if first == last:
            part = parts[first]
            return part[skip : len(part) - drop]
        end = parts[last]
        return "".join((parts[first][skip:], *parts[first + 1 : last], end[: len(end) - drop]))


class Template(NamedTuple):
    """Every run of attributes with one skeleton.

    Attributes:
        attributes: (key, where its value stands), in printed order.
        called: (key, where the name of a called computation stands), in printed order.
    """

    attributes: tuple[tuple[str, _Recipe], ...]
    called: tuple[tuple[str, _Recipe], ...]


def _borders_of(parts: list[str]) -> list[int]:
    """Where each part begins, and where the last one ends."""
    return [0, *accumulate(map(len, parts))]


def _recipe(span: Span, parts: list[str], borders: list[int]) -> _Recipe:
    """The span in terms of the parts.

    Raises:
        Irregular: A border lies inside a hole, where other contents would move it.
    """
    first = bisect_right(borders, span.start) - 1
    last = bisect_left(borders, span.end) - 1
    if first > last:
        raise Irregular
    skip, drop = span.start - borders[first], borders[last + 1] - span.end
    opening = 1 if parts[first][:1] == "=" else 0
    if (first % 2 and skip not in (0, opening)) or (last % 2 and drop):
        raise Irregular
    return _Recipe(first, skip, last, drop)


def template(attributes: tuple[Attribute, ...], parts: list[str], offset: int) -> Template:
    """The template of a run of attributes that was parsed behind `offset` characters of other text.

    Raises:
        Irregular: It holds an inline computation, or numbers in braces that are no attribute's whole value; or as for
            `_recipe`.
    """
    borders = _borders_of(parts)

    def place(span: Span) -> _Recipe:
        return _recipe(Span(span.start - offset, span.end - offset), parts, borders)

    callees = [(item.key, callee) for item in attributes for callee in item.callees]
    if any(callee.name is None for _, callee in callees):
        raise Irregular
    found = tuple((item.key, place(item.span)) for item in attributes)
    whole = {item.first for _, item in found if item == _Recipe(item.first, 0, item.first, 0)}
    if any(part[:1] == "{" and index not in whole for index, part in enumerate(parts) if index % 2):
        raise Irregular
    return Template(found, tuple((key, place(callee.span)) for key, callee in callees))


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
