"""A collective that moves wider elements, or more padding, than the values need.

What it does: reports a collective that uses a wider element type than necessary: all its operands were converted from a
narrower type just before, its result is only used after a conversion to a narrower type, or its reduction uses a wider
type than its operands. It also reports a collective whose tiles hold noticeably more padding than values. A sum of
booleans is a count and is not reported.

Why it matters: f32 takes twice the bytes and time of bf16, and a trailing dimension of 1 is padded to 128 lanes.

Example: gradients computed in bf16, converted to f32 and then reduced. The CPU compiler does this on its own, so
nothing is reported for programs that it compiled.

Use instead: convert after the collective, if the precision of the sum allows it; put a large dimension last.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod

from hloscope.analysis.model import Collective
from hloscope.analysis.vocabulary import SUMS
from hloscope.rules import Facts, Finding, Severity, element_types, finding_at, over_axes
from hloscope.rules.rule import BuiltinRule
from hloscope.units import array_bytes, element_bits, format_bytes
from hloscope.why.partitioned import dimensions_of

_LOGICAL = frozenset({"and", "or", "xor", "maximum", "minimum"})
"""Reductions of booleans that are booleans again."""


class WidenedCollective(BuiltinRule, name="widened-collective", severity=Severity.WARNING):
    """A collective that moves wider elements, or more padding, than the values need.

    Attributes:
        min_payload_bytes: Smaller transfers are not reported.
        padding: The smallest ratio of bytes with padding to bytes without it that is reported.
    """

    min_payload_bytes: int = 1_000_000
    padding: float = 2.0

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields a warning for each widened or much padded collective."""
        compiled_for = facts.analysis.slice
        if compiled_for is not None and compiled_for.chip == "cpu":
            return
        anywhere = "" if compiled_for else "; compilers for CPU widen on their own"
        for collective in facts.moving(self.min_payload_bytes):
            widened = _how_it_is_widened(collective)
            if widened is not None:
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} {widened}",
                    fix=f"move {collective.narrow_type}: convert on the other side of the collective, "
                    f"if the precision allows{anywhere}",
                )
            elif _padding(collective) >= self.padding:
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} of {format_bytes(collective.payload_bytes)} takes "
                    f"{format_bytes(collective.padded_bytes)} with tile padding",
                    fix="put a dimension of 128 or more last",
                )


def _padding(collective: Collective) -> float:
    """Bytes with padding for each byte without it; 1 where one of them is not known."""
    known, padded = collective.payload_bytes, collective.padded_bytes
    return padded / known if padded and known else 1.0


def _how_it_is_widened(collective: Collective) -> str | None:
    """`moves f32, and the values on one side of it are bf16`; None for a collective that is not widened."""
    narrow, types = collective.narrow_type, element_types(collective)
    if narrow is None or len(types) != 1 or (narrow == "pred" and _counts(collective)):
        return None
    (given,) = types
    if _is_narrower(narrow, given):
        return f"moves {given}, but the values on one side of it are {narrow}"
    if narrow == given and (collective.payload_bytes or 0) > _operand_bytes(collective, given):
        return f"sums {narrow} values in a wider type, which is what moves"
    return None


def _counts(collective: Collective) -> bool:
    """Whether it is a sum, which of booleans is a number: that does not fit in their type."""
    return collective.kind in SUMS and collective.reduction not in _LOGICAL


def _operand_bytes(collective: Collective, element_type: str) -> float:
    """Bytes of the operands in their own type; no bound where one of their sizes is not known."""
    known = dimensions_of(collective.operand_shapes)
    sizes = [array_bytes(element_type, prod(dimensions)) for dimensions in known]
    return sum(inf if size is None else size for size in sizes) if len(known) == len(collective.operand_shapes) else inf


def _is_narrower(narrow: str, wide: str) -> bool:
    bits, others = element_bits(narrow), element_bits(wide)
    return bits is not None and others is not None and bits < others
