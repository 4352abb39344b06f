"""Texts that are cut off: what a reader may keep of them, and when it has to say so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.hlo.language import language
from hloscope.hlo.records import ReadError
from hloscope.hlo.shape import Shape

if TYPE_CHECKING:
    from hloscope.hlo.model import HloComputation

_NEXT_INSTRUCTION = re.compile(r"\n[ \t]*+(?:ROOT[ \t]++)?%?[A-Za-z_][A-Za-z0-9_.-]*+[ \t]*+=[ \t]")
_HEADER_BEFORE = re.compile(r"(?<![%\w.-])HloModule[ \t\r\n]++\Z")
_CUT_TOKEN = re.compile(r"""[A-Za-z0-9_%/<.?-][^\s})\]]*+\s*+|["'{\[(@/][^\n]*+\n?""")
"""What the beginning of a token may look like, at the very end of a text; the second kind may hold blanks."""


def is_cut_off(text: str, error: ReadError) -> bool:
    """Whether the text ends too early, rather than being broken where the error is.

    It ends too early where something was still expected, or in the middle of a token. A bracket or a quote that is
    never closed although further instructions follow is a mistake of its own.
    """
    if error.at_end and error.opened_at is None:
        return True
    start = error.position if error.opened_at is None else error.opened_at
    if begins_second_module(text, error.position):
        return False
    if error.opened_at is None:
        return _CUT_TOKEN.fullmatch(text, start) is not None
    return _NEXT_INSTRUCTION.search(text, start) is None


def begins_second_module(text: str, position: int) -> bool:
    """Whether what stands at an offset is the name after a second `HloModule`."""
    return _HEADER_BEFORE.search(text, max(0, position - 80), position) is not None and text.count("HloModule") > 1


def fits_layout(computation: HloComputation, layout: str) -> bool:
    """Whether a computation can be the one that the header's `entry_computation_layout` describes.

    A value that cannot be read describes none, and so excludes none.
    """
    try:
        parameters, result = _entry_shapes(layout)
    except ReadError:
        return True
    found = [str(parameter.shape) for parameter in computation.parameters]
    return found == list(map(str, parameters)) and str(computation.root.shape) in (str(result), "unknown[]")


def _entry_shapes(layout: str) -> tuple[tuple[Shape, ...], Shape]:
    """Parameters and result of `{(shape, …)->shape}`."""
    parameters, arrow, result = layout[1:-1].rpartition("->")
    if not arrow:
        raise ReadError(0, "there is no `->`")
    return language().read("shape", parameters).shape.elements, language().read("shape", result).shape
