"""The recording of a script: the programs that JAX compiled while it ran."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.base.calls import front_door
from hloscope.base.documents import SCHEMA, Schema
from hloscope.base.errors import HloscopeError, Option, say
from hloscope.base.results import Brief, Shown, fix_tables, shorten_to_line
from hloscope.base.units import pluralize
from hloscope.model.analysis import Analysis
from hloscope.model.finding import Finding, severe

if TYPE_CHECKING:
    from hloscope.plain_types import RecordingDict


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecordedProgram(Brief):
    """One program that JAX compiled, for one set of argument types.

    Attributes:
        name: Name of the function.
        place: Where it is defined, such as `file.py:12`, or first called if it is part of JAX; None if unknown.
        calls: Number of calls by the script.
        faked: Why it was not executed and its results are zeros: `large`, `long` (it computes too much for a simulated
            device), `memory` (real arrays already take too much memory, at least during some of its calls) or `kernel`
            (it has a kernel that only runs on TPU, or something else that cannot be compiled for CPU); None if it was
            executed.
        took_cpu_branch: Whether it was executed and took another branch of `jax.lax.platform_dependent` than it would
            on TPU, so that its numbers are not those of the priced program.
        slice_name: What it was compiled for: the part of the slice that its devices form.
        device_count: Number of devices that it runs on.
        boundary_bytes: Global bytes of its arguments and results.
        flops: FLOPs of its matmuls and convolutions, over all devices, without kernels that have no cost estimate.
        rough_us: Rough time of one call in microseconds, for ranking: matmuls at the chip's peak, arguments and results
            read once, no communication. Neither a bound nor a prediction.
        analysis: Its analysis; None if it was not analyzed.
        error: Why it could not be analyzed; None if it could, or if that was not requested.
    """

    name: str
    place: str | None
    calls: int
    faked: str | None
    took_cpu_branch: bool
    slice_name: str
    device_count: int
    boundary_bytes: int
    flops: float
    rough_us: float
    analysis: Analysis | None
    error: str | None

    @property
    def call_us(self) -> float:
        """Predicted time of one call in microseconds; the rough time if not predicted."""
        return self.rough_us if self.predicted_us is None else self.predicted_us

    @property
    def all_calls_us(self) -> float:
        """Time of all calls in microseconds; of one call for a program that was only compiled."""
        return self.call_us * max(self.calls, 1)

    @property
    def predicted_us(self) -> float | None:
        """Predicted time of one call in microseconds; None if it was not analyzed or not priced."""
        time = None if self.analysis is None else self.analysis.time
        return None if time is None else time.step_us


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallPrograms:
    """Small programs of JAX itself, such as `jnp.add` outside `jax.jit`, which are listed together.

    Attributes:
        programs: Number of programs.
        calls: Number of calls of all of them.
        names: Distinct names, most calls first.
        boundary_bytes: Bytes of the arguments and results of the largest program.
        rough_us: Rough time of all calls in microseconds; see `RecordedProgram`.
    """

    programs: int
    calls: int
    names: tuple[str, ...]
    boundary_bytes: int
    rough_us: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recompiled(Brief):
    """A function that was compiled more than once.

    Attributes:
        name: Name of the function.
        place: Where it is defined.
        versions: Number of compiles.
        changes: What differed from the previous compile, one sentence each; equal ones once.
    """

    name: str
    place: str | None
    versions: int
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWrite:
    """A write, removal or request of the script that was redirected or not carried out.

    Attributes:
        what: The operation, such as `open for writing`.
        target: Its destination.
        became: What happened instead.
        where: The line of the script.
        times: Number of times.
    """

    what: str
    target: str
    became: str
    where: str | None
    times: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recording(Shown):
    """The programs that a script compiled.

    Attributes:
        schema: Schema version of the document.
        command: The command that was run.
        slice_name: The slice that the script saw.
        asked: Functions requested by name, whose programs are shown in full; empty for all.
        ended: How the script ended: `ended`, `stopped` (its programs were known), `raised`, `interrupted`.
        exit_status: Exit status of the script; None if it did not get that far.
        said: How it ended, as a sentence.
        programs: The programs, sorted by calls x predicted time, largest first.
        small: Small programs, listed together; None if there are none.
        recompiled: Functions that were compiled more than once.
        kept_writes: Writes, removals and requests that were redirected or not carried out.
        notes: Notes, one sentence each.
        versions: Versions of jax, jaxlib, libtpu and hloscope.
    """

    _subject = "recording"

    schema: Schema = SCHEMA
    command: tuple[str, ...]
    slice_name: str
    asked: tuple[str, ...]
    ended: str
    exit_status: int | None
    said: str
    programs: tuple[RecordedProgram, ...]
    small: SmallPrograms | None
    recompiled: tuple[Recompiled, ...]
    kept_writes: tuple[KeptWrite, ...]
    notes: tuple[str, ...]
    versions: dict[str, str] = field(hash=False)

    def __post_init__(self) -> None:
        fix_tables(self, "versions")

    def broken(self, fail_on: str) -> tuple[Finding, ...]:
        """Returns the unaccepted findings in all programs that are at least this severe.

        Raises:
            NotationError: `fail_on` is not a severity.
        """
        analyses = (program.analysis for program in self.programs if program.analysis is not None)
        return severe((finding for found in analyses for finding in found.findings), fail_on)

    @property
    def not_analyzed(self) -> tuple[str, ...]:
        """Functions whose programs were not analyzed, so that their findings are unknown."""
        return tuple(dict.fromkeys(program.name for program in self.programs if program.analysis is None))

    def no_verdict(self) -> HloscopeError:
        """The error that no verdict is possible because not every program was analyzed."""
        fix = say(Option("top", len(self.programs)), " analyses all that can be")
        return HloscopeError(f"no verdict: {', '.join(self.not_analyzed)} not analyzed", fix=fix)

    @front_door
    def fails(self, fail_on: str = "warning") -> bool:
        """Returns whether any unaccepted finding in a program is at least as severe as `fail_on`.

        Args:
            fail_on: Minimum severity: `note`, `warning` or `error`.

        Raises:
            HloscopeError: There is no such finding, but not all programs were analyzed.
            NotationError: `fail_on` is not a severity.
        """
        if self.broken(fail_on):
            return True
        if self.not_analyzed:
            raise self.no_verdict()
        return False

    def __repr__(self) -> str:
        words = " ".join(self.command) or "a block"
        return shorten_to_line(
            f"<Recording of {words} on {self.slice_name}: {pluralize(len(self.programs), 'program')}>"
        )

    if TYPE_CHECKING:

        def to_dict(self) -> RecordingDict:
            """The result as plain data."""
