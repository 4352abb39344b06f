"""The results of trying changes: each is compiled, priced and compared with the program as written."""

from __future__ import annotations

from dataclasses import dataclass, field

from hloscope.analysis.model.step_time import RuleUse
from hloscope.analysis.vocabulary import Bound
from hloscope.shown import Brief, fix_tables
from hloscope.units import format_bytes, format_time

_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Figures(Brief):
    """The cost of one step on one device.

    Attributes:
        step_us: Predicted step time in microseconds; None if not priced.
        step_us_range: Lower and upper end of the step time, from the errors of the rules that priced it; None if not
            priced, or if a kernel's cost is unknown.
        step_bound: Whether `step_us` is exact or a bound, apart from the error of the model.
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

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions of the figures, one clause each."""
        becomes = f": {', '.join(self.opened)}" if self.opened else ""
        conditions = (
            (self.moves, self._moving),
            (self.frees_output, f"if the result may have another sharding than the requested one{becomes}"),
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
        not_tried: Why nothing was tried; None if something was.
        verdict: Why the collective is better left as it is; empty if a change helps or if that is undecided.
        stopped: Whether time ran out before all changes were tried.
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
