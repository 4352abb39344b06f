"""Who put a collective into the program, from what the partitioner and the user are known to have written."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.model import Collective
from hloscope.analysis.vocabulary import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestry:
    """Where a final collective comes from.

    Attributes:
        origin: Who put it there.
        rewritten_from: The kind that the partitioner had put there, when a later pass made another of it.
    """

    origin: Origin
    rewritten_from: str | None = None


def ancestry_of(
    final: Collective, earlier: Collective | None, ancestor: Collective | None, is_explained: bool
) -> Ancestry:
    """Tells the origin of a collective; unknown when there is no evidence.

    The partitioner's text holds the user's collectives and its own, and no others. What is in it and is not the user's,
    which is told before this is asked, is the partitioner's; what is of another kind there was made by a later pass.

    Args:
        final: The collective, with the origin that its own text tells.
        earlier: The partitioner's collective that it still is.
        ancestor: The partitioner's collective of another kind that it was made from.
        is_explained: Whether Shardy says that data must move there.
    """
    if final.origin in (Origin.AUTHORED, Origin.REWRITTEN):
        kind = None if ancestor is None or final.origin is Origin.AUTHORED else ancestor.kind.value
        return Ancestry(origin=final.origin, rewritten_from=kind)
    if earlier is not None:
        combined = len(final.operand_shapes) > len(earlier.operand_shapes)
        return Ancestry(
            origin=Origin.REWRITTEN if combined else Origin.INSERTED,
            rewritten_from=earlier.kind.value if combined else None,
        )
    if ancestor is not None:
        return Ancestry(origin=Origin.REWRITTEN, rewritten_from=ancestor.kind.value)
    if final.origin is Origin.UNKNOWN and is_explained:
        return Ancestry(origin=Origin.INSERTED)
    return Ancestry(origin=final.origin)
