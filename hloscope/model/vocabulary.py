"""The closed vocabularies of an analysis: bounds, kinds of collectives, origins, links."""

from __future__ import annotations

from enum import StrEnum


class Bound(StrEnum):
    """The relation of a count or a total to its true value: exact or a bound."""

    EXACT = "exact"
    AT_MOST = "at most"
    AT_LEAST = "at least"
    UNKNOWN = "unknown"

    def __add__(self, other: str) -> Bound:
        """The bound of a sum: equal bounds stay, exact yields to the other, at most plus at least is unknown."""
        if other in (self, Bound.EXACT):
            return self
        return Bound(other) if self is Bound.EXACT else Bound.UNKNOWN

    def __neg__(self) -> Bound:
        """The bound of a subtrahend or divisor: `after + -before` is the bound of a difference or a ratio."""
        return {Bound.AT_MOST: Bound.AT_LEAST, Bound.AT_LEAST: Bound.AT_MOST}.get(self, self)

    @property
    def of_part(self) -> Bound:
        """The bound of a part of a quantity with this bound: if another branch is taken, it can be more or less."""
        return Bound.EXACT if self is Bound.EXACT else Bound.UNKNOWN

    def marked(self, text: str) -> str:
        """Renders a quantity with its bound: `≥3 MB`."""
        return _MARKS[self] + text

    def said(self, text: str) -> str:
        """Renders a quantity with its bound in words: `at least 3 times`."""
        return _WORDS[self] + text


_WORDS = {Bound.EXACT: "", Bound.AT_MOST: "at most ", Bound.AT_LEAST: "at least ", Bound.UNKNOWN: "about "}
_MARKS = {Bound.AT_LEAST: "≥", Bound.AT_MOST: "≤", Bound.UNKNOWN: "~", Bound.EXACT: ""}


class CompileStage(StrEnum):
    """The stage of a compile that a program was read at."""

    TEXT = "text"
    """It is HLO text; hloscope did not compile it."""
    SCHEDULED = "scheduled"
    """It is scheduled and its memory is assigned; whether it compiles, and the size of its code, are open."""
    COMPILED = "compiled"


class Kind(StrEnum):
    """The kind of a collective, however it is spelled in HLO."""

    ALL_GATHER = "all-gather"
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    RAGGED_ALL_TO_ALL = "ragged-all-to-all"
    COLLECTIVE_PERMUTE = "collective-permute"
    COLLECTIVE_BROADCAST = "collective-broadcast"
    OPAQUE = "opaque"


KIND_OF_OPCODE = {
    opcode: kind for kind in Kind if kind is not Kind.OPAQUE for opcode in (kind.value, f"{kind.value}-start")
}
"""The kinds of XLA's collective opcodes and of their `-start` forms, native or as sugar for `async-start`."""

REDUCING = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
"""The kinds that combine the data of devices rather than only move it."""

REDUCTION_OPCODES = ("add", "maximum", "minimum", "multiply", "and", "or", "xor")
"""The opcodes of reducers with a single operation."""


class Origin(StrEnum):
    """The author of a collective: whoever inserted it into the program."""

    AUTHORED = "authored"
    INSERTED = "inserted"
    REWRITTEN = "rewritten"
    UNKNOWN = "unknown"


class Link(StrEnum):
    """The network that a collective crosses; both for one that crosses slices in several parts.

    Simulated CPU devices have no network: `ici` there is what would stay within one slice, so that a contract or a
    baseline means the same on them as on a slice.
    """

    ICI = "ici"
    DCN = "dcn"
    BOTH = "ici+dcn"
    UNKNOWN = "unknown"
