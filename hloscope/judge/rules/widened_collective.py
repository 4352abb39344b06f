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

from hloscope.base.units import count_array_bytes, count_element_bits, format_bytes
from hloscope.judge.rule import BuiltinRule, Facts, element_types, finding_at, over_axes
from hloscope.model import Collective
from hloscope.model.collectives import list_dimensions
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import REDUCING

_LOGICAL = frozenset({"and", "or", "xor", "maximum", "minimum"})
"""Reductions of booleans whose results are booleans."""


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
            widened = _describe_widening(collective)
            if widened is not None:
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} {widened}",
                    fix=f"move {collective.narrow_type}: convert on the other side of the collective, "
                    f"if the precision allows{anywhere}",
                )
            elif _compute_padding(collective) >= self.padding:
                yield finding_at(
                    self,
                    collective,
                    f"{over_axes(collective)} of {format_bytes(collective.payload_bytes)} takes "
                    f"{format_bytes(collective.padded_bytes)} with tile padding",
                    fix="put a dimension of 128 or more last",
                )


def _compute_padding(collective: Collective) -> float:
    """The ratio of the bytes with padding to those without; 1 if one of them is unknown."""
    known, padded = collective.payload_bytes, collective.padded_bytes
    return padded / known if padded and known else 1.0


def _describe_widening(collective: Collective) -> str | None:
    """The widening: `moves f32, and the values on one side of it are bf16`; None if it is not."""
    narrow, types = collective.narrow_type, element_types(collective)
    if narrow is None or len(types) != 1 or (narrow == "pred" and _is_count(collective)):
        return None
    (given,) = types
    if _is_narrower(narrow, given):
        return f"moves {given}, but the values on one side of it are {narrow}"
    if narrow == given and (collective.payload_bytes or 0) > _count_operand_bytes(collective, given):
        return f"sums {narrow} values in a wider type, which is what moves"
    return None


def _is_count(collective: Collective) -> bool:
    """Returns whether it is a sum, which for booleans is a number and does not fit in their type."""
    return collective.kind in REDUCING and collective.reduction not in _LOGICAL


def _count_operand_bytes(collective: Collective, element_type: str) -> float:
    """The bytes of the operands in their own type; infinite if one of their sizes is unknown."""
    known = list_dimensions(collective.operand_shapes)
    sizes = [count_array_bytes(element_type, prod(dimensions)) for dimensions in known]
    return sum(inf if size is None else size for size in sizes) if len(known) == len(collective.operand_shapes) else inf


def _is_narrower(narrow: str, wide: str) -> bool:
    bits, others = count_element_bits(narrow), count_element_bits(wide)
    return bits is not None and others is not None and bits < others


INVALID = (
    {"each": {"narrow_type": "bf16"}},
    {"each": {"narrow_type": "f32", "payload_bytes": 2_097_152}},
    {"each": {"padded_bytes": 3_145_728}},
    {"each": {"narrow_type": "pred", "reduction": "or"}},
    {"each": {"narrow_type": "pred", "kind": "all-gather", "reduction": None}},
)
VALID: tuple[dict[str, object], ...] = (
    {"each": {"narrow_type": "f32"}},
    {"each": {"narrow_type": "f32", "payload_bytes": None}},
    {},
    {
        "each": {"narrow_type": "bf16"},
        "known": {
            "slice": {
                "name": "cpu:8",
                "chip": "cpu",
                "chips": 8,
                "devices": 8,
                "slices": 1,
                "used_devices": 8,
                "chosen_by": "user",
            }
        },
    },
    {"each": {"narrow_type": "pred"}},
    {"each": {"narrow_type": "pred", "reduction": None}},
    {"each": {"padded_bytes": 1_048_576}},
)
