"""What became of changes that were tried: each compiled and priced, beside the program as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from hloscope.analysis.model.step_time import RuleUse
from hloscope.analysis.vocabulary import Bound
from hloscope.shown import Brief, fix_tables


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Figures(Brief):
    """What one step of a program costs one device.

    Attributes:
        step_us: The predicted step; None where it is not priced.
        step_us_range: From and to, by how far the rules that priced it may be off; None where it is not priced, or
            holds a kernel of which nothing is known.
        step_bound: How `step_us` relates to the truth, apart from the error of the model.
        wire_bytes: Bytes that one device sends per step.
        wire_bytes_by_axis: The same by mesh axis.
        wire_bound: How these relate to the truth.
        hbm_bytes: The most bytes that are live in the device's memory at once; None where the compiler does not say.
        collectives: Places of the program that start a transfer.
        unknown: What was not understood or priced, a word for each, in order: what two programs must share to be
            compared where their figures are lower bounds.
        slight: What was not understood, and is too small a part of this step to matter; of a faster one, it may.
        rules: What priced the step.
        compute_us: The part of the step in which the device computes; None where it is not priced.
        exposed_us: The part in which it waits for communication; None where it is not priced.
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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Trial(Brief):
    """One change, and what the compiler made of the program with it.

    Attributes:
        change: What was changed, one line for each part, in the notation of the user's code.
        after: What the step costs then; None where the program could not be compiled so.
        problem: Why it could not; None where it could.
        helps: Whether it is worth making: the step is faster by more than 5% and by more than the model may be off, or
            takes less memory and is not slower; and nothing that is not known makes it look so.
        frees_output: Whether a result comes out sharded otherwise than was asked for, and not as the argument that it
            replaces.
        opened: What becomes of the results that it leaves open, such as `result becomes P('X', None)`.
        pads: Whether it needs a wrapper that pads arguments and cuts results.
        moves: The arguments that whoever calls the program has to make otherwise: no result of the step comes to lie
            as they.
        moving_us: What it takes to bring them once from where they lie to where the change has them; 0 where each
            device has its part already, None where it is not known, or the change does not help.
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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Trials(Brief):
    """What was tried against one collective.

    Attributes:
        before: What the step costs as it is; None where that is not known.
        trials: What was compiled, what helps most first.
        candidates: Changes that were thought of.
        not_tried: Why nothing was tried; None where something was.
        verdict: That it is better left as it is, and why; empty where a change helps, or nothing speaks for either.
        stopped: Whether time ran out before all was tried that was to be.
        seconds: What it took.
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
        """Those that are worth making, best first."""
        return tuple(trial for trial in self.trials if trial.helps)
