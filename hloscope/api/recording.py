"""Recording of a script or a block of Python: each program that JAX compiles is retargeted and analyzed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hloscope.analysis.model.recording import (
    KeptWrite,
    Recompiled,
    RecordedProgram,
    Recording,
    SmallPrograms,
)
from hloscope.api.analyzing import analysis_of
from hloscope.errors import HloscopeError, SliceError, did_you_mean
from hloscope.hardware.slices import Slice, parse_slice
from hloscope.messages import Option, placeholder, say
from hloscope.program.target import TargetFacts
from hloscope.rules.selection import DEFAULT_SELECTION, RuleSelection
from hloscope.store import Store

if TYPE_CHECKING:
    from hloscope.program.recording.programs import Program
    from hloscope.program.recording.scripts import Script
    from hloscope.program.recording.watching import Limits, Watch
    from hloscope.program.recording.writes import WriteEntry

Stage = Callable[[str], None]
DEFAULT_SLICE = "v5e:2x4"
DEFAULT_TOP = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which programs to analyze.

    Attributes:
        only: Functions by name, or a pattern of names such as `train_*`; empty for all.
        top: Maximum number of programs, most expensive first.
    """

    only: tuple[str, ...] = ()
    top: int = DEFAULT_TOP

    def takes(self, program: Program) -> bool:
        """Whether a program is selected by name."""
        return not self.only or any(fnmatchcase(program.name, pattern) for pattern in self.only)


def recorded_slice(facts: TargetFacts) -> Slice:
    """Returns the slice that a script sees.

    Raises:
        SliceError: It is not a TPU slice.
    """
    chosen = parse_slice(facts.slice or DEFAULT_SLICE)
    if chosen.chip is None:
        raise SliceError(
            f"a script is recorded for a TPU slice, but {chosen.name} is not one",
            fix=say("use, for example, ", Option("slice", "v5e:2x4")),
        )
    return chosen


@contextmanager
def watched(facts: TargetFacts, limits: Limits, store: Store | None) -> Iterator[tuple[Watch, Callable[[], Any]]]:
    """Lets JAX's devices be those of a slice, and yields the watch with what switches it on.

    Raises:
        HloscopeError: The slice is no TPU slice, or JAX is not one that hloscope can compile with.
    """
    from hloscope.compiler.jax_support import RECORDING, check_supported
    from hloscope.program.devices import check_not_tracing, shown_for_a_script
    from hloscope.program.recording.watching import Watch
    from hloscope.program.surroundings import one_call

    chosen = recorded_slice(facts)
    facts = replace(facts, slice=chosen.name)
    check_supported(RECORDING)
    check_not_tracing()
    with one_call(of_a_block=True), shown_for_a_script(facts, chosen) as devices:
        watch = Watch(whole=chosen, devices=devices, facts=facts, limits=limits, store=store)
        yield watch, watch.watching


def record_script(
    script: Script,
    facts: TargetFacts,
    *,
    limits: Limits,
    chosen: Chosen = Chosen(),
    judging: RuleSelection = DEFAULT_SELECTION,
    stage: Stage = lambda _: None,
    store: Store | None = None,
    running: Callable[[], Any] = ExitStack,
    when_compiled: Callable[[RecordedProgram, str], None] = lambda _program, _text: None,
) -> Recording:
    """Runs a script and analyzes the programs that JAX compiles.

    Args:
        script: What to run.
        facts: The slice, and what else is said of all programs.
        limits: What is executed, and how long it goes on.
        chosen: Which programs are analyzed.
        judging: Which rules run and what is accepted.
        stage: Called with what is happening.
        store: Where compiles are kept.
        running: A context in which the script runs, such as one that marks what it prints.
        when_compiled: Called with each analyzed program and its compiled text.

    Raises:
        TargetError: The script compiled no program.
        HloscopeError: The input is invalid.
    """
    from hloscope.program.recording.scripts import run_to_its_end

    with watched(facts, limits, store) as (watch, watching):
        stage("running the script")
        with running(), watching():
            ending = run_to_its_end(script.run)
        return recording_of(
            watch, script.words, ending, chosen=chosen, judging=judging, stage=stage, when_compiled=when_compiled
        )


def recording_of(
    watch: Watch,
    command: Sequence[str],
    ending: Any,
    *,
    chosen: Chosen,
    judging: RuleSelection = DEFAULT_SELECTION,
    stage: Stage = lambda _: None,
    when_compiled: Callable[[RecordedProgram, str], None] = lambda _program, _text: None,
) -> Recording:
    """Returns the recording of a script, with its programs analyzed.

    Raises:
        TargetError: It compiled none, or none of those that are asked for.
    """
    programs = _merged(watch.programs)
    _check_any(programs, chosen, ending)
    large = [each for each in programs if not each.is_jaxs or each.faked is not None]
    asked = sorted(filter(chosen.takes, large), key=lambda each: -each.rough_seconds * max(each.calls, 1))[: chosen.top]
    notes = _notes(watch)
    for program in asked:
        watch.begin_compile(program)
    found: list[RecordedProgram] = []
    try:
        for program in asked:
            stage(f"compiling {program.name} for {program.lowered.slice.name}")
            found.append(_analyzed(program, judging, when_compiled))
    except KeyboardInterrupt:
        notes.append("Ctrl-C ended the analysis: programs without figures were not analyzed")
    done = set(map(id, asked[: len(found)]))
    rest = [_record(each) for each in large if id(each) not in done and chosen.takes(each)]
    return Recording(
        command=tuple(command),
        slice_name=watch.whole.name,
        asked=chosen.only,
        ended=ending.kind if watch.stopped_by is None else "stopped",
        exit_status=ending.status if watch.stopped_by is None else None,
        said=ending.said if watch.stopped_by is None else _stopped(watch.stopped_by),
        programs=tuple(sorted([*found, *rest], key=lambda each: (each.analysis is None, -each.all_calls_us))),
        small=_small([each for each in programs if each not in large]),
        recompiled=_recompiled([each for each in watch.programs if each.is_compiled]),
        kept_writes=() if watch.writes is None else tuple(map(_kept_write, watch.writes.entries)),
        notes=tuple(dict.fromkeys(notes)),
        versions=dict(next((each.analysis.versions for each in found if each.analysis is not None), {})),
    )


def _merged(programs: Sequence[Program]) -> list[Program]:
    """Each program once: one function compiled twice into the same text is one program."""
    found: dict[Any, Program] = {}
    for program in filter(lambda each: each.is_compiled, programs):
        same = found.setdefault((program.function, program.digest, program.lowered.layout), program)
        if same is not program:
            same.calls += program.calls
            program.calls = 0
    return list(found.values())


def _check_any(programs: Sequence[Program], chosen: Chosen, ending: Any) -> None:
    from hloscope.errors import TargetError

    if not programs:
        raise TargetError(
            "the script compiled no program",
            why=ending.said or None,
            fix="check that it reaches its first jax.jit call with these arguments",
        )
    names = sorted({program.name for program in programs})
    for pattern in chosen.only:
        if not any(fnmatchcase(name, pattern) for name in names):
            hint = did_you_mean(pattern, names, f"it compiled {', '.join(names[:20])}")
            raise TargetError(f"the script compiled no program named {pattern}", fix=hint)


def _record(program: Program, analysis: Any = None) -> RecordedProgram:
    return RecordedProgram(
        name=program.name,
        place=program.place,
        calls=program.calls,
        faked=program.faked,
        took_cpu_branch=program.took_cpu_branch and program.faked in (None, "memory"),
        slice_name=program.lowered.slice.name,
        device_count=program.lowered.seen.device_count,
        boundary_bytes=program.boundary_bytes,
        flops=program.flops,
        rough_us=program.rough_seconds * 1e6,
        analysis=analysis,
        error=None if program.error is None else _words(program.error),
    )


def _kept_write(entry: WriteEntry) -> KeptWrite:
    return KeptWrite(
        what=entry.what, target=entry.destination, became=entry.outcome, where=entry.place, times=entry.times
    )


def _words(error: Exception) -> str:
    return error.on_one_line() if isinstance(error, HloscopeError) else f"{type(error).__name__}: {error}"


def _analyzed(
    program: Program, judging: RuleSelection, when_compiled: Callable[[RecordedProgram, str], None]
) -> RecordedProgram:
    if program.error is None and program.pending is not None:
        try:
            capture = program.capture()
            found = _record(program, analysis_of(capture, program.name, judging))
        except Exception as error:  # what hloscope itself fails over in one program is no reason to lose the others
            program.error = error
        else:
            when_compiled(found, capture.compiled.text)
            program.captured = None  # which takes memory
            return found
    return _record(program)


def _small(programs: Sequence[Program]) -> SmallPrograms | None:
    if not programs:
        return None
    by_calls = sorted(programs, key=lambda each: -each.calls)
    return SmallPrograms(
        programs=len(programs),
        calls=sum(each.calls for each in programs),
        names=tuple(dict.fromkeys(each.name for each in by_calls)),
        boundary_bytes=max(each.boundary_bytes for each in programs),
        rough_us=sum(each.rough_seconds * each.calls for each in programs) * 1e6,
    )


def _recompiled(programs: Sequence[Program]) -> tuple[Recompiled, ...]:
    """The user's functions with more than one program, most versions first."""
    from hloscope.program.recording.programs import what_changed

    by_function: dict[Any, list[Program]] = {}
    for program in programs:
        if not program.is_jaxs:
            by_function.setdefault(program.function, []).append(program)
    found = [
        Recompiled(
            name=versions[0].name,
            place=versions[0].place,
            versions=len(versions),
            changes=tuple(dict.fromkeys(what_changed(*pair) for pair in pairwise(versions))),
        )
        for versions in by_function.values()
        if len(versions) > 1
    ]
    return tuple(sorted(found, key=lambda each: -each.versions))


def _stopped(program: Program) -> str:
    return say(
        f"the script was ended once {program.name} had been called {program.calls} times without a new compile in "
        "between: programs that it would compile later are missing (",
        Option("stop-after", placeholder("N")),
        ")",
    )


def _notes(watch: Watch) -> list[str]:
    from hloscope.program.stand_ins import taken_notes

    return [
        *taken_notes(),
        *watch.missed,
        *(note for program in watch.programs for note in program.notes if not program.is_jaxs),
    ]
