"""A collective that moves wider elements, or more padding, than the values need.

What it does: reports a collective whose operands were all converted from a narrower element type just before, or whose
result is only read after a conversion to one, or whose reducer has a wider one than its operands; and one whose tiles
hold noticeably more padding than values. A sum of booleans is a count, and not reported.

Why it matters: f32 takes twice the bytes and the time of bf16; a trailing dimension of 1 is padded to 128 lanes.

Example: gradients computed in bf16, converted to f32 and then reduced. Compilers for CPUs do so by themselves whatever
the program says, so nothing is reported of programs compiled for one.

Use instead: convert after the collective, where the precision of the sum allows; put a large dimension last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod
from typing import ClassVar

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.vocabulary import Kind
from hloscope.findings import Finding, Severity
from hloscope.rules.rule import finding_at, moves_at_least, over_axes
from hloscope.units import array_bytes, element_bits, format_bytes
from hloscope.why.partitioned import dimensions_of

_LOGICAL = frozenset({"and", "or", "xor", "maximum", "minimum"})
"""Reductions of booleans that are booleans again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenedCollective:
    """A collective that moves wider elements, or more padding, than the values need.

    Attributes:
        min_payload_bytes: Smaller transfers are not reported.
        padding: Bytes with padding for each byte without it, from which on padding is reported.
    """

    name: ClassVar[str] = "widened-collective"
    severity: ClassVar[Severity] = Severity.WARNING
    min_payload_bytes: int = 1_000_000
    padding: float = 2.0

    def check(self, analysis: Analysis) -> Iterator[Finding]:
        """Yields a warning for each widened or much padded collective."""
        if analysis.slice is not None and analysis.slice.chip == "cpu":
            return
        anywhere = "" if analysis.slice else "; a compiler for CPUs widens by itself"
        for one in analysis.collectives:
            if one.kind is Kind.OPAQUE or not moves_at_least(one, self.min_payload_bytes):
                continue
            widened = _how_it_is_widened(one)
            if widened is not None:
                yield finding_at(
                    self,
                    one,
                    f"{over_axes(one)} {widened}",
                    fix=f"move {one.narrow_type}: convert on the other side of the collective, if the precision allows"
                    f"{anywhere}",
                )
            elif _padding(one) >= self.padding:
                yield finding_at(
                    self,
                    one,
                    f"{over_axes(one)} of {format_bytes(one.payload_bytes)} takes "
                    f"{format_bytes(one.padded_bytes)} with the padding of its tiles",
                    fix="put a dimension of 128 or more last",
                )


def _padding(one: Collective) -> float:
    """Bytes with padding for each byte without it; 1 where one of them is not known."""
    return one.padded_bytes / one.payload_bytes if one.padded_bytes and one.payload_bytes else 1.0


def _how_it_is_widened(one: Collective) -> str | None:
    """`moves f32, and the values on one side of it are bf16`; None for a collective that is not widened."""
    narrow, given = one.narrow_type, _element_type(one)
    if narrow is None or given is None or (narrow == "pred" and _counts(one)):
        return None
    if _is_narrower(narrow, given):
        return f"moves {given}, and the values on one side of it are {narrow}"
    if narrow == given and one.payload_bytes is not None and one.payload_bytes > _operand_bytes(one, given):
        return f"sums {narrow} values in a wider type, which is what moves"
    return None


def _counts(one: Collective) -> bool:
    """Whether it is a sum, which of booleans is a number: that does not fit in their type."""
    return one.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER) and one.reduction not in _LOGICAL


def _operand_bytes(one: Collective, element_type: str) -> float:
    """Bytes of the operands in their own type; no bound where one of their sizes is not known."""
    known = dimensions_of(one.operand_shapes)
    sizes = [array_bytes(element_type, prod(dimensions)) for dimensions in known]
    return sum(inf if size is None else size for size in sizes) if len(known) == len(one.operand_shapes) else inf


def _element_type(one: Collective) -> str | None:
    """The one element type that moves; None where there are several."""
    types = {shape.partition("[")[0] for shape in one.operand_shapes}
    return types.pop() if len(types) == 1 else None


def _is_narrower(narrow: str, wide: str) -> bool:
    bits, others = element_bits(narrow), element_bits(wide)
    return bits is not None and others is not None and bits < others
