"""What a program is beside its baseline, as a record: a judgement, its causes, and each figure before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hloscope.shown import Brief


class Judgement(StrEnum):
    """What a program is beside its baseline, or a change of it."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a figure may grow, as a share of what it was, before that is a change.

    Attributes:
        step: The predicted step.
        memory: Parts of the memory by their names in a baseline; others are not judged.
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
        name: Such as `predicted step`, `sent over fsdp` or `peak memory`.
        unit: `us`, `bytes` or `flops`, per step on one device.
        before: What the baseline has; None where it is not known.
        after: What the program has now.
        before_range: From and to, of what is predicted.
        after_range: The same of the program as it is now.
        comparable: Whether both mean the same: a step that another version of the cost model predicted does not.
    """

    name: str
    unit: str
    before: float | None
    after: float | None
    before_range: tuple[float, float] | None = None
    after_range: tuple[float, float] | None = None
    comparable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cause(Brief):
    """One change of a program, however many lines of its baseline it touches.

    Attributes:
        key: What it can be accepted by: `all-gather@fsdp`, `types`, `reduction`, `arguments`,
            `memory`, `step`, `kernels`, `unknown`.
        judgement: What it is by itself.
        message: One sentence, lower case.
        source: The line that it is about, as the program is now; None when not known.
        why: Why that moves, when it is known.
        tried: A change that helps against it, where one was tried.
        wire_bytes: Bytes more per step on one device, or fewer; None when not known.
        time_us: Microseconds more per step that transfers take, or fewer; None when not known.
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
    """A program beside its baseline.

    Attributes:
        judgement: Of all of it.
        causes: Every change, the one that counts most first; none that is only another spelling.
        figures: What is measured of both.
        versions: The compilers of both, where they differ: `jax 0.10.2, libtpu 0.0.42 then, jax 0.12.0 … now`.
        notes: What is no change and worth knowing: what moves the same bytes in another spelling.
        caveats: Figures that are not judged, and those that may grow by much.
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
