"""The results of trying changes: each is compiled, priced and compared with the program as written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, hypot, log
from typing import TYPE_CHECKING

from hloscope.base.documents import SCHEMA, Schema
from hloscope.base.results import Brief, Shown, fix_tables, shorten_to_line
from hloscope.base.units import format_bytes, format_time, pluralize
from hloscope.model.vocabulary import Bound, CompileStage

if TYPE_CHECKING:
    from hloscope.plain_types import SuggestionsDict


# ---- the predicted time of one step on a slice, and its breakdown

_UNKNOWN_SHARE = 0.01
"""Share of the step: unknown operations that take less do not make its time doubtful."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOperation:
    """Operations on the critical path whose time is unknown.

    They are assumed to run at memory bandwidth; for kernels only the time to write their results is counted.

    Attributes:
        what: Opcode, with the kind of a fusion or the target of a custom call.
        count: Executions per step.
        bytes: Bytes of their operands and results per step, with tile padding.
        time_us: Their share of the step, in microseconds.
    """

    what: str
    count: int
    bytes: int
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleUse:
    """One rule of the cost model and its contribution to the step.

    Attributes:
        rule: Name of the rule, such as `cycles`, `pair` or `ring in one direction`.
        time_us: Microseconds of this step that it priced, including overlapped time.
        calibrated: Whether it was checked against measurements on this generation.
        measured_once: Whether its constant rests on a single measurement: one row, profile or step.
        error: Relative error of its times.
        more_us: How much longer the step is if all its times are too short by `error`, in microseconds.
        less_us: How much shorter the step is if they are too long by `error`, in microseconds.
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
    """The error of predictions on held-out measurements of a generation.

    Attributes:
        rows: Number of measurements.
        median: Median error factor, 1 or more.
        worst: Largest error factor.
    """

    rows: int
    median: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepTime(Brief):
    """The predicted time of one step on one device, in the steady state.

    Attributes:
        step_us: Time of the step: `compute_us` + `exposed_us`.
        least_us: Lower end of the step's range, from the errors of the rules that priced it.
        most_us: Upper end of that range.
        compute_us: Time in which the device computes or moves its own data.
        exposed_us: Time in which the device only waits for communication.
        hidden_us: Time of communication that overlaps with computation, at no cost.
        hbm_us: The memory-bound part of `compute_us`.
        first_step_us: Time of the first step, which also waits for data that later steps find prefetched.
        flops: FLOPs of the matmuls and convolutions on one device, counting a multiply-add as two.
        peak_flops_share: `flops` as a share of the device's peak over `step_us`: 8-bit types have their own peak if the
            chip multiplies them, all other types have that of bf16. None if the FLOPs of a kernel are unknown.
        basis: Basis of `compute_us`: `cycles` for the estimates in the compiler's schedule; `estimates` for hloscope's
            own, before the compiler has made machine code; `roofline` for FLOPs and bytes at the chip's peak, which no
            program reaches; `memory` if data is only moved; `none` if the device neither computes nor moves data.
        is_scheduled: Whether the HLO is scheduled; without a schedule, no overlap is assumed.
        roofline_us: The part of `compute_us` that is priced with a roofline.
        bound: Whether `step_us` is exact or a bound, apart from the error of the model.
        conditional_us: The part of `step_us` that passes only if the longest branch of each conditional is taken; None
            if `step_us` is a bound for another reason, such as a loop that may run less often.
        rules: The rules that priced the step, most time first.
        spread: Prediction error on this generation; None without measurements, or if a kernel is not priced.
        unknown_operations: Operations priced without knowing what they do, most time first.
        unpriced_kernels: Names of kernels whose cost is unknown, which makes `step_us` a lower bound.
        notes: Assumptions, one sentence each.
        calibrated: Rules in use that were checked against measurements on this generation.
        uncalibrated: Rules in use that were not.
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
    conditional_us: float | None = None
    rules: tuple[RuleUse, ...] = ()
    spread: Spread | None = None
    unknown_operations: tuple[UnknownOperation, ...] = ()
    unpriced_kernels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    calibrated: tuple[str, ...] = field(init=False, default=())
    uncalibrated: tuple[str, ...] = field(init=False, default=())

    @property
    def rests_on_unknown(self) -> bool:
        """True if 1% of the step or more was priced without knowing what the operations do."""
        unknown_us = sum(operation.time_us for operation in self.unknown_operations)
        return bool(self.unknown_operations) and unknown_us >= _UNKNOWN_SHARE * self.step_us

    @property
    def has_range(self) -> bool:
        """True if the step likely takes between `least_us` and `most_us`; False if a part of it is unknown."""
        is_whole = not self.unpriced_kernels and self.bound in (Bound.EXACT, Bound.AT_MOST)
        return is_whole and self.least_us < self.most_us

    def __post_init__(self) -> None:
        object.__setattr__(self, "least_us", max(self.step_us - hypot(*(use.less_us for use in self.rules)), 0.0))
        object.__setattr__(self, "most_us", self.step_us + hypot(*(use.more_us for use in self.rules)))
        object.__setattr__(self, "calibrated", tuple(use.rule for use in self.rules if use.calibrated))
        object.__setattr__(self, "uncalibrated", tuple(use.rule for use in self.rules if not use.calibrated))


def ratio_range(
    after: StepTime | Figures, before: StepTime | Figures, *, same_generation: bool = True
) -> tuple[float, float] | None:
    """Returns the range of the ratio of two step times, in which the errors of shared rules cancel.

    Args:
        after: The numerator.
        before: The denominator.
        same_generation: Whether both run on chips of one generation, so that the errors of their rules are the same.

    Returns:
        The lower and upper end; None if either step takes no time or is not priced.
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


def is_tie(after: StepTime | Figures, before: StepTime | Figures, *, same_generation: bool = True) -> bool:
    """Returns whether it is undecided which of two steps is faster: the range of their ratio contains 1."""
    found = ratio_range(after, before, same_generation=same_generation)
    return found is not None and after.step_us != before.step_us and found[0] <= 1 <= found[1]


_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Figures(Brief):
    """The cost of one step on one device.

    Attributes:
        step_us: Predicted step time in microseconds; None if not priced.
        step_us_range: Lower and upper end of the step time, from the errors of the rules that priced it; None if not
            priced, or if a kernel's cost is unknown.
        step_bound: Whether `step_us` is exact or a bound, apart from the error of the model.
        conditional_us: As for `StepTime`.
        wire_bytes: Bytes that one device sends per step.
        wire_bytes_by_axis: The same, by mesh axis.
        wire_bound: Whether these are exact or bounds.
        hbm_bytes: Peak bytes in device memory; None if the compiler does not report them.
        collectives: Number of collectives in the program.
        unknown: What was not understood or priced, one word each, sorted. Two programs whose figures are lower bounds
            are compared only if this is the same.
        slight: What was not understood but is too small a part of this step to matter; in a faster step it may.
        rules: The rules that priced the step.
        compute_us: Computing part of the step, in microseconds; None if not priced.
        exposed_us: Exposed communication in the step, in microseconds; None if not priced.
        stage: The stage of the compile: the step of a program that is only scheduled is an estimate, never compared
            with that of a compiled one, and its memory is without code.
        outputs: Sharding of each result, requested or the compiler's choice, such as `P('X', None)`; None if unknown.
    """

    step_us: float | None
    step_us_range: tuple[float, float] | None
    step_bound: Bound
    wire_bytes: int
    wire_bytes_by_axis: dict[str, int] = field(hash=False)
    wire_bound: Bound
    hbm_bytes: int | None
    collectives: int
    unknown: tuple[str, ...] = ()
    slight: tuple[str, ...] = ()
    rules: tuple[RuleUse, ...] = ()
    compute_us: float | None = None
    exposed_us: float | None = None
    conditional_us: float | None = None
    stage: CompileStage = CompileStage.COMPILED
    outputs: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        fix_tables(self, "wire_bytes_by_axis")

    @property
    def step_words(self) -> str:
        """The step time with its bound, such as `≤492 us`."""
        return "unknown" if self.step_us is None else self.step_bound.marked(format_time(self.step_us))

    def part_words(self, part_us: float) -> str:
        """A part of the step time with its bound, such as `~12.5 us`."""
        return self.step_bound.of_part.marked(format_time(part_us))

    def sent_words(self, axes: str) -> str:
        """The bytes that one device sends over some axes with their bound, such as `≤25.2 MB`."""
        return self.wire_bound.marked(format_bytes(self.wire_bytes_by_axis.get(axes, 0)))

    @property
    def at_least(self) -> Figures:
        """The same with the step in which the shortest branches are taken, if that is all that bounds it from above."""
        if self.step_us is None or self.step_bound is not Bound.AT_MOST or self.conditional_us is None:
            return self
        return replace(self, step_us=self.step_us - self.conditional_us, step_bound=Bound.AT_LEAST)

    def ratio_bound(self, before: Figures) -> Bound:
        """The bound of this step time divided by another; what is saved of that one has the opposite bound."""
        return self.step_bound + -before.step_bound


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Trial(Brief):
    """One change and the cost of the program compiled with it.

    Attributes:
        change: The change, one line per part, in the notation of the user's code.
        after: Cost of the step with the change; None if it could not be compiled.
        problem: Why it could not be compiled; None if it could.
        helps: Whether the change is worth making: the step is faster by more than 5% and by more than the error of the
            model, or takes less memory and is not slower, and no unknown cost accounts for the difference.
        frees_output: Whether a result gets another sharding than requested and than the argument that it replaces.
        opened: Shardings of the results that it leaves open, such as `result becomes P('X', None)`.
        pads: Whether it needs a wrapper that pads arguments and slices results.
        moves: Arguments that the caller has to create with another sharding, because no result of the step replaces
            them with it.
        moving_us: Time of resharding these arguments once for the change, in microseconds; 0 if each device already has
            its shard, None if unknown or if the change does not help.
        before: Cost of the step as written at the same stage of its compile, if that is not the stage of
            `Trials.before`: of scheduled programs, the best is compiled to the end, beside the program as written.
    """

    change: tuple[str, ...]
    after: Figures | None
    problem: str | None = None
    helps: bool = False
    frees_output: bool = False
    opened: tuple[str, ...] = ()
    pads: bool = False
    moves: tuple[str, ...] = ()
    moving_us: float | None = None
    before: Figures | None = None

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions of the figures, one clause each."""
        becomes = f": {', '.join(self.opened)}" if self.opened else ""
        conditions = (
            (self.moves, self._moving),
            (self.frees_output, f"if the result may have another sharding than the requested one{becomes}"),
            (
                self.opened and not self.frees_output,
                f"outputs that are left open change: {', '.join(self.opened)}",
            ),
            (self.pads, "these figures leave out the cost of the wrapper that pads and slices"),
        )
        return tuple(words for holds, words in conditions if holds)

    @property
    def _moving(self) -> str:
        """`if x can be created with that sharding: moving it there takes about 412 us`."""
        names = list(self.moves)
        if len(names) > _MOST_NAMES:
            names[_MOST_NAMES - 1 :] = [f"{len(names) - _MOST_NAMES + 1} others"]
        listed = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
        them = "them" if len(names) > 1 else "it"
        if self.moving_us is None:
            cost = f"the time to move {them} there is unknown"
        elif self.moving_us == 0:
            cost = f"slicing {them} further moves nothing"
        else:
            cost = f"moving {them} there takes about {format_time(self.moving_us)}"
        return f"if {listed} can be created with that sharding: {cost}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Trials(Brief):
    """The changes tried against one collective.

    Attributes:
        before: Cost of the step as written; None if unknown.
        trials: The compiled changes, most helpful first.
        candidates: Number of candidate changes.
        not_tried: Why nothing was tried, or why the remaining changes were not; None if neither is to be said.
        verdict: Why the collective is better left as it is, or why that is undecided; empty if a change helps.
        stopped: Whether time ran out, or Ctrl-C was pressed, before all changes were tried.
        seconds: Duration of the trials.
    """

    before: Figures | None = None
    trials: tuple[Trial, ...] = ()
    candidates: int = 0
    not_tried: str | None = None
    verdict: str = ""
    stopped: bool = False
    seconds: float = field(default=0.0, compare=False)

    @property
    def helping(self) -> tuple[Trial, ...]:
        """The changes worth making, best first."""
        return tuple(trial for trial in self.trials if trial.helps)


# ---- the result of a search for better shardings: the program as written, and better ways to shard it

_NEAR = 1.05
"""Factor of the fastest step time: a smaller difference is not worth more memory."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SuggestedSpec(Brief):
    """The sharding suggested for an argument, a result, or all arrays of one kind.

    Attributes:
        name: The user's name; `params['layers'][*]['w']` for the same weight in several layers.
        count: Number of arrays with this name.
        is_result: Whether they are results.
        before: Sharding in the program as written, such as `P('X', None)`; None if it is left open.
        after: The suggested sharding; None leaves a result open.
        notation: The suggested sharding as an argument type, such as `bf16[4096,16384@X]`; None for a result.
        is_open: Whether it is a result that the program leaves open, so that both shardings are the compiler's choice.
    """

    name: str
    count: int = 1
    is_result: bool = False
    before: str | None
    after: str | None
    notation: str | None = None
    is_open: bool = False

    @property
    def is_changed(self) -> bool:
        """True if it differs from the program as written."""
        return self.before != self.after


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SourceEdit(Brief):
    """A change of the user's source, in whole lines.

    Attributes:
        file: The file.
        line: The first line that is replaced, counted from 1.
        before: The lines as they are; empty if the new ones are inserted before `line`.
        after: The lines as they become.
    """

    file: str
    line: int
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Suggestion(Brief):
    """One way to shard the program, compiled and priced at full size.

    Attributes:
        recipe: Name of the scheme, such as `FSDP over X, tensor parallel over Y`; None if it has none.
        mesh: Size of each mesh axis.
        device_order: Device order of the mesh, as indices into `jax.devices()`; None for that of `jax.make_mesh`.
        is_own: Whether it is the program as written.
        fits: Whether it fits in device memory.
        figures: Cost of the step.
        gain: Fraction of the original step time that it saves; negative if slower, None if unknown.
        is_tie: Whether its step time is indistinguishable from that of the program as written.
        is_worth_it: Whether the step is more than 5% faster and not a tie, or takes a tenth less memory and is not
            slower; if the program as written does not fit in memory, whether this one does.
        specs: All searched arguments and freed results, changed or not, and other results that change.
        constraints: Changes to the program's sharding constraints, one line each.
        because: What it does less and more of than the program as written.
        code: Code to paste into the program.
        edits: The changes of the source that make it.
        by_hand: The changes besides, for which the source has no literal of their own.
    """

    recipe: str | None
    mesh: Mapping[str, int] = field(hash=False)
    device_order: tuple[int, ...] | None = None
    is_own: bool = False
    fits: bool = True
    figures: Figures
    gain: float | None = None
    is_tie: bool = False
    is_worth_it: bool = False
    specs: tuple[SuggestedSpec, ...] = ()
    constraints: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    edits: tuple[SourceEdit, ...] = ()
    by_hand: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Suggestions(Shown):
    """The result of a search for better shardings.

    Attributes:
        schema: Schema version of the document.
        target: The program.
        slice: The slice it was compiled for.
        goal: What is minimized: `time`, or `memory` if the program as written does not fit in it.
        own: The program as written.
        front: The Pareto front of the other ways over time and memory, fastest first.
        freed_gain: Fraction of the best step time that leaving all result shardings open would save in addition; None
            if no result sharding is held, or if that was not tried.
        freed: Results that are held to the sharding that the program requests.
        space: Size of the search space.
        ranked: Number of candidates ranked with Shardy.
        compiled: Number of programs compiled, the one as written included.
        failed: Number of candidates that failed to compile.
        failures: Their numbers by the reason, most frequent first.
        refused: Number of candidates left out because they were priced below the chips' peak, which means that the
            price is wrong.
        recipes: Step time of the best candidate of each named scheme, in microseconds.
        notes: What was not searched and what was assumed, one sentence each.
        stopped: Why the search ended early; None if it did not.
        seconds: Duration of the search.
    """

    _subject = "suggestions"

    schema: Schema = SCHEMA
    target: str
    slice: str
    goal: str = "time"
    own: Suggestion
    front: tuple[Suggestion, ...]
    freed_gain: float | None = None
    freed: tuple[str, ...] = ()
    space: int
    ranked: int
    compiled: int
    failed: int = 0
    failures: Mapping[str, int] = field(default_factory=dict, hash=False)
    refused: int = 0
    recipes: Mapping[str, float] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    stopped: str | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def best(self) -> Suggestion | None:
        """The worthwhile suggestion with the least memory within 5% of the fastest; None if there is none."""
        worth = [found for found in self.front if found.is_worth_it]
        fastest = min((found.figures.step_us or 0.0 for found in worth), default=0.0)
        near = [found for found in worth if (found.figures.step_us or 0.0) <= _NEAR * fastest]
        return min(near, key=lambda found: found.figures.hbm_bytes or 0, default=None)

    def __repr__(self) -> str:
        own, best = self.own.figures.step_words, self.best
        found = "nothing better" if best is None else f"{own} -> {best.figures.step_words}"
        return shorten_to_line(
            f"<Suggestions for {self.target} on {self.slice}: {found}, {pluralize(self.compiled, 'compile')}>"
        )

    if TYPE_CHECKING:

        def to_dict(self) -> SuggestionsDict:
            """The result as plain data."""
