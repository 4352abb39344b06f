"""What came of a script that ran while its programs were watched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.analysis.model.analysis import Analysis
from hloscope.documents import SCHEMA, Schema
from hloscope.errors import HloscopeError
from hloscope.findings import Finding, severe
from hloscope.python_words import front_door
from hloscope.shown import Brief, Shown, fix_tables, one_line
from hloscope.units import plural

if TYPE_CHECKING:
    from hloscope.plain_types import RecordingDict


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecordedProgram(Brief):
    """One program that JAX compiled, for one set of argument types.

    Attributes:
        name: The function's name.
        place: Where it is written, as `file.py:12`, or first called where it is JAX's own; None where unknown.
        calls: How often the script called it.
        faked: Why it was not executed, so that its results were zeros: `large`, `long` (it computes too much for a
            simulated device), `memory` (the arrays that are real take too much of it already, on some of its calls at
            least) or `kernel` (it has a kernel that only a TPU runs, or something else that no CPU can
            compile); None where it was executed.
        took_cpu_branch: Whether it was executed and took another branch of `jax.lax.platform_dependent` than on a TPU:
            its numbers are not the priced program's.
        slice_name: What it was compiled for: the part of the slice that its devices are.
        device_count: Devices that it runs on.
        boundary_bytes: Bytes of its arguments and results, whole.
        flops: Of its matmuls and convolutions, on all devices together; kernels without a cost estimate are not in it.
        rough_us: What one call takes by arithmetic, for ranking: matmuls at the chip's peak, arguments and results read
            once, nothing sent. Neither a bound nor a prediction.
        analysis: What moves in it, and how long a call takes; None where it was not analysed.
        error: Why it could not be analysed; None where it could, or was not asked for.
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
        """What one call takes as predicted; by arithmetic where that is not known."""
        return self.rough_us if self.predicted_us is None else self.predicted_us

    @property
    def all_calls_us(self) -> float:
        """What all calls take together; of a program that was only compiled, one."""
        return self.call_us * max(self.calls, 1)

    @property
    def predicted_us(self) -> float | None:
        """What one call takes as predicted; None where it was not analysed, or has no price."""
        time = None if self.analysis is None else self.analysis.time
        return None if time is None else time.step_us


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallPrograms:
    """Programs of JAX's own, such as `jnp.add` outside of `jax.jit`, which are not worth a line each.

    Attributes:
        programs: How many.
        calls: Of all of them.
        names: Each name once, most calls first.
        boundary_bytes: Bytes of the arguments and results of the largest.
        rough_us: What all calls take together by arithmetic; see `RecordedProgram`.
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
        name: Its name.
        place: Where it is written.
        versions: How often.
        changes: What was other each time after the first than the time before, a sentence each; equal ones once.
    """

    name: str
    place: str | None
    versions: int
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWrite:
    """Something that the script would have written, removed or sent, and that did not happen.

    Attributes:
        what: What it did, such as `open for writing`.
        target: Where to.
        became: What became of it.
        where: The script's line.
        times: How often.
    """

    what: str
    target: str
    became: str
    where: str | None
    times: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recording(Shown):
    """A script's programs.

    Attributes:
        schema: Version of this document's shape.
        command: What was run.
        slice_name: The slice that the script saw.
        asked: The functions that were asked for by name, whose programs a report shows in full; empty for all.
        ended: How the script ended: `ended`, `stopped` (its programs were known), `raised`, `interrupted`.
        exit_status: The script's own; None where it did not get so far.
        said: How it ended, in a sentence.
        programs: Most predicted time first, calls times time.
        small: Programs not worth a line each; None where there are none.
        recompiled: Functions that were compiled more than once.
        kept_writes: What was not written, removed or sent.
        notes: One sentence each.
        versions: Versions of jax, jaxlib, libtpu and hloscope.
    """

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
        """What rules found in programs that is at least as severe and not accepted.

        Raises:
            NotationError: There is no such severity.
        """
        analyses = (program.analysis for program in self.programs if program.analysis is not None)
        return severe((finding for found in analyses for finding in found.findings), fail_on)

    @property
    def not_analysed(self) -> tuple[str, ...]:
        """The functions of programs that were not analysed, so that what rules would find is unknown."""
        return tuple(dict.fromkeys(program.name for program in self.programs if program.analysis is None))

    def no_verdict(self) -> HloscopeError:
        """That not every program was analysed, so that nobody can say that all are as they should be."""
        fix = f"--top {len(self.programs)} analyses all that can be"
        return HloscopeError(f"no verdict: {', '.join(self.not_analysed)} not analysed", fix=fix)

    @front_door
    def fails(self, fail_on: str = "warning") -> bool:
        """Whether rules found something at least as severe in a program that is not accepted.

        Args:
            fail_on: The least severity: `note`, `warning` or `error`.

        Raises:
            HloscopeError: Nothing is, as far as programs were analysed, and not all of them were.
            NotationError: There is no such severity.
        """
        if self.broken(fail_on):
            return True
        if self.not_analysed:
            raise self.no_verdict()
        return False

    def __repr__(self) -> str:
        words = " ".join(self.command) or "a block"
        return one_line(f"<Recording of {words} on {self.slice_name}: {plural(len(self.programs), 'program')}>")

    def _subject(self) -> str:
        return "recording"

    if TYPE_CHECKING:

        def to_dict(self) -> RecordingDict:
            """The result as plain data."""
