"""What an exposed collective could be hidden behind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hloscope.analysis.model.source import SourceFrame


class Relation(StrEnum):
    """How a matrix multiplication stands to a collective beside it."""

    INDEPENDENT = "independent"
    """Neither needs the other: a schedule could run both at once."""
    CONSUMER = "consumer"
    """It uses what the collective brings, and could begin with the part that is there."""
    PRODUCER = "producer"
    """It makes what the collective takes away, which could leave part by part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The longest matrix multiplication that a collective could run beside.

    Attributes:
        name: Its HLO instruction, without `%`, in the collective's own computation.
        relation: How it stands to the collective.
        time_us: Its predicted microseconds per execution.
        source: Its source frames, innermost first; empty when not known.
    """

    name: str
    relation: Relation
    time_us: float
    source: tuple[SourceFrame, ...] = ()
