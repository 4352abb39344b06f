"""Where the time of one step goes, as predicted for a slice."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, hypot, log
from typing import Protocol

from hloscope.analysis.vocabulary import Bound
from hloscope.shown import Brief

_UNKNOWN_SHARE = 0.01
"""Of the step: what takes less does not make its time doubtful."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOperation:
    """Operations on the critical path whose time is unknown.

    They are taken to run at the memory's bandwidth; of kernels only what their results take to be written counts.

    Attributes:
        what: The opcode, with a fusion's kind or a custom call's target.
        count: How many run per step.
        bytes: Bytes of their operands and results per step, with tile padding.
        time_us: Their part of the step.
    """

    what: str
    count: int
    bytes: int
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleUse:
    """One rule of the cost model and what it priced.

    Attributes:
        rule: Such as `cycles`, `pair` or `ring in one direction`.
        time_us: Microseconds of this step that it priced, hidden ones too.
        calibrated: Whether it was compared with measurements of this generation.
        measured_once: Whether a single measurement has set the constant that it rests on: one row, profile or step.
        error: How far its times may be off, as a share of them.
        more_us: How much longer the step is if all of them are too short by that.
        less_us: How much shorter it is if they are too long.
    """

    rule: str
    time_us: float
    calibrated: bool
    measured_once: bool = False
    error: float = 0.0
    more_us: float = 0.0
    less_us: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far predictions were from the measurements of a generation that they had not been fitted to.

    Attributes:
        rows: Measurements.
        median: Median of the factor between the two, 1 or more.
        worst: The largest one.
    """

    rows: int
    median: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepTime(Brief):
    """The predicted time of one step on one device, in the steady state.

    Attributes:
        step_us: The whole step: `compute_us` and `exposed_us`.
        least_us: Where the step's range begins, by how far the rules that priced it may be off.
        most_us: Where it ends.
        compute_us: The part in which the device computes or moves its own data.
        exposed_us: The part in which it only waits for communication.
        hidden_us: Communication that runs beside computation, and costs nothing.
        hbm_us: The part of `compute_us` in which memory traffic sets the pace.
        first_step_us: The first step, which also waits for what later steps find prefetched.
        flops: Operations of the matmuls and convolutions on one device; a multiply-add counts as two.
        peak_flops_share: `flops` over what the device could do in `step_us` at its peak for the types multiplied: 8-bit
            types have one of their own where the chip multiplies them, all others bf16's. None where a kernel's FLOPs
            are not known.
        basis: What `compute_us` rests on: `cycles` where the compiler's schedule carries its own estimates; `roofline`
            for FLOPs and bytes against the chip's peak figures, which no program reaches; `memory` where data are
            only moved; `none` where nothing is computed or moved on the device.
        is_scheduled: Whether the text says in which order it runs; without that nothing is taken to overlap.
        roofline_us: The part of `compute_us` that is priced with a roofline.
        bound: How `step_us` relates to the truth, apart from the error of the model.
        rules: What priced the step, most time first.
        spread: How well this generation is predicted; None where there is no measurement, or a kernel is not priced.
        unknown_operations: What was priced without knowing what it does, most time first.
        unpriced_kernels: Names of kernels whose cost is unknown; the step takes at least `step_us`.
        notes: Assumptions, one sentence each.
        calibrated: The rules in use that were compared with measurements of this generation.
        uncalibrated: The rules in use that were not.
    """

    step_us: float
    compute_us: float
    exposed_us: float
    hidden_us: float
    hbm_us: float = 0.0
    least_us: float = field(init=False, default=0.0)
    most_us: float = field(init=False, default=0.0)
    first_step_us: float = 0.0
    flops: int = 0
    peak_flops_share: float | None = None
    basis: str = "cycles"
    is_scheduled: bool = True
    roofline_us: float = 0.0
    bound: Bound = Bound.EXACT
    rules: tuple[RuleUse, ...] = ()
    spread: Spread | None = None
    unknown_operations: tuple[UnknownOperation, ...] = ()
    unpriced_kernels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    calibrated: tuple[str, ...] = field(init=False, default=())
    uncalibrated: tuple[str, ...] = field(init=False, default=())

    @property
    def rests_on_unknown(self) -> bool:
        """Whether 1% of it or more was priced without knowing what it does."""
        unknown_us = sum(operation.time_us for operation in self.unknown_operations)
        return bool(self.unknown_operations) and unknown_us >= _UNKNOWN_SHARE * self.step_us

    @property
    def has_range(self) -> bool:
        """Whether the step likely takes between `least_us` and `most_us`: not where a part of it is unknown."""
        is_whole = not self.unpriced_kernels and self.bound in (Bound.EXACT, Bound.AT_MOST)
        return is_whole and self.least_us < self.most_us

    def __post_init__(self) -> None:
        object.__setattr__(self, "least_us", max(self.step_us - hypot(*(use.less_us for use in self.rules)), 0.0))
        object.__setattr__(self, "most_us", self.step_us + hypot(*(use.more_us for use in self.rules)))
        object.__setattr__(self, "calibrated", tuple(use.rule for use in self.rules if use.calibrated))
        object.__setattr__(self, "uncalibrated", tuple(use.rule for use in self.rules if not use.calibrated))


class Step(Protocol):
    """A predicted step, and what it rests on."""

    @property
    def step_us(self) -> float | None:
        """How long it takes."""

    @property
    def rules(self) -> tuple[RuleUse, ...]:
        """What priced it."""


def ratio_range(after: Step, before: Step, *, same_generation: bool = True) -> tuple[float, float] | None:
    """From and to: how long one step is beside another, where errors of rules that both rest on cancel.

    Args:
        after: The one.
        before: The other.
        same_generation: Whether both run on chips of one generation, whose rules are off alike.

    Returns:
        None where one of them takes no time, or is not priced.
    """
    if not after.step_us or not before.step_us:
        return None
    shares = [
        {use.rule: (use.more_us + use.less_us) / 2 / time_us for use in time.rules}
        for time, time_us in ((after, after.step_us), (before, before.step_us))
    ]
    pairs = [tuple(share.get(rule, 0.0) for share in shares) for rule in dict.fromkeys((*shares[0], *shares[1]))]
    half = hypot(*((one - other) if same_generation else hypot(one, other) for one, other in pairs))
    ratio = log(after.step_us / before.step_us)
    return exp(ratio - half), exp(ratio + half)


def is_tie(after: Step, before: Step, *, same_generation: bool = True) -> bool:
    """Whether nothing tells which of two different steps is faster: the range of their ratio contains 1."""
    found = ratio_range(after, before, same_generation=same_generation)
    return found is not None and after.step_us != before.step_us and found[0] <= 1 <= found[1]
