"""The comparison of a program with its baseline: a judgement, the causes, and each figure before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hloscope.analysis.vocabulary import Bound
from hloscope.shown import Brief


class Judgement(StrEnum):
    """The judgement on a program compared with its baseline, or on one change."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far figures may grow before that counts as a change, as shares of their baselines.

    Attributes:
        step: The predicted step.
        memory: Parts of the memory, by their names in a baseline; others are not judged.
    """

    step: float = 0.05
    memory: Mapping[str, float] = field(default_factory=lambda: {"peak": 0.05}, hash=False)


USUAL = Tolerance()
UNKNOWN = "unknown"
"""The key of changes in what was not understood."""
REDUCTION = "reduction"
"""The key of changes of the operation that combines elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a program, before and after.

    Attributes:
        name: Name, such as `predicted step`, `sent over fsdp` or `peak memory`.
        unit: `us`, `bytes` or `flops`, per step on one device.
        before: Value in the baseline; None if unknown.
        after: Value in the program as it is now.
        before_range: Lower and upper end, for a prediction.
        after_range: The same for the program as it is now.
        before_bound: Whether the value in the baseline is exact or a bound.
        after_bound: The same for the program as it is now.
        comparable: Whether both values are comparable. Steps of different versions of the cost model are not, nor is
            memory whose temporaries hloscope 0.1 counted.
    """

    name: str
    unit: str
    before: float | None
    after: float | None
    before_range: tuple[float, float] | None = None
    after_range: tuple[float, float] | None = None
    before_bound: Bound = Bound.EXACT
    after_bound: Bound = Bound.EXACT
    comparable: bool = True

    @property
    def change_bound(self) -> Bound:
        """The bound of the difference and of the ratio of both values."""
        return self.after_bound + -self.before_bound


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cause(Brief):
    """One change of a program, however many lines of its baseline it affects.

    Attributes:
        key: Key with which it can be accepted: `all-gather@fsdp`, `types`, `reduction`, `arguments`, `memory`, `step`,
            `kernels`, `unknown`.
        judgement: Judgement on this change by itself.
        message: One sentence, lower case.
        source: Line of user code that it concerns, in the program as it is now; None if unknown.
        why: Why the data moves; None if unknown.
        tried: A tried change that helps against it; None if there is none.
        wire_bytes: Change in bytes per step on one device, negative for fewer; None if unknown.
        time_us: Change in the transfers' microseconds per step, negative for less; None if unknown.
        is_left_open: Whether nothing changed, and the baseline lacks a figure that could be compared.
    """

    key: str
    judgement: Judgement
    message: str
    source: str | None = None
    why: str | None = None
    tried: str | None = None
    wire_bytes: int | None = None
    time_us: float | None = None
    is_left_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Judged(Brief):
    """The comparison of a program with its baseline.

    Attributes:
        judgement: Overall judgement.
        causes: All changes except respellings, most important first.
        figures: Figures of both.
        versions: The compiler versions of both, if they differ: `jax 0.10.2, libtpu 0.0.42 then, jax 0.12.0 … now`.
        notes: Notes on what is not a change, such as the same bytes in another spelling.
        caveats: Figures that are not judged, or that may grow by a large amount.
    """

    judgement: Judgement
    causes: tuple[Cause, ...]
    figures: tuple[Figure, ...]
    versions: str | None = None
    notes: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def is_only_left_open(self) -> bool:
        """Whether nothing changed as far as could be compared, and the baseline lacks figures."""
        return bool(self.causes) and all(cause.is_left_open for cause in self.causes)
