"""Recording of a script or a block of Python: each program that JAX compiles is retargeted and analyzed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hloscope.app.analyzing import analyze_capture
from hloscope.base.documents import make_document
from hloscope.base.errors import (
    HloscopeError,
    NotationError,
    Option,
    SliceError,
    TargetError,
    did_you_mean,
    placeholder,
    say,
)
from hloscope.base.outputs import write_text
from hloscope.base.store import open_default_store
from hloscope.compile.target import TargetFacts
from hloscope.judge.selection import DEFAULT_SELECTION, RuleSelection
from hloscope.model.recording import KeptWrite, Recompiled, RecordedProgram, Recording, SmallPrograms
from hloscope.model.vocabulary import CompileStage
from hloscope.tpu.slices import Slice, find_smallest_slice, parse_slice

if TYPE_CHECKING:
    from hloscope.compile.recording.scripts import Ending, Limits
    from hloscope.compile.recording.watching import Program, Watch
    from hloscope.compile.recording.writes import WriteEntry

Stage = Callable[[str], None]
Save = Callable[[RecordedProgram, str], None]
"""Called with each analyzed program and its compiled text."""
DEFAULT_SLICE = find_smallest_slice(8).name
DEFAULT_TOP = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The programs to analyze.

    Attributes:
        only: Functions by name, or a pattern of names such as `train_*`; empty for all.
        top: Maximum number of programs, most expensive first.
    """

    only: tuple[str, ...] = ()
    top: int = DEFAULT_TOP

    def takes(self, program: Program) -> bool:
        """Returns whether a program is selected by name."""
        return not self.only or any(fnmatchcase(program.name, pattern) for pattern in self.only)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRequest:
    """A user's request for a recording.

    `hloscope record` carries it out in its own process, `hloscope.record` in another one, `hloscope.recording` around a
    block.

    Attributes:
        command: The script and its arguments, as the user wrote them; empty for a block.
        facts: The slice, and the options that apply to all programs.
        limits: What to execute, and when to end the script.
        chosen: The programs to analyze.
        judging: The rules to run and the accepted findings.
        save: Folder to write each analyzed program to; None to write none.
        wanted: The stage of a compile that is enough.
    """

    command: tuple[str, ...]
    facts: TargetFacts
    limits: Limits
    chosen: Chosen = Chosen()
    judging: RuleSelection = DEFAULT_SELECTION
    save: Path | None = None
    wanted: CompileStage = CompileStage.COMPILED


def parse_recorded_slice(facts: TargetFacts) -> Slice:
    """The slice that a script sees.

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
def make_watch(request: RecordingRequest) -> Iterator[Watch]:
    """Makes JAX's devices those of a slice, and yields a watch that is not yet on.

    Raises:
        HloscopeError: The slice is not a TPU slice, or hloscope cannot compile with this version of JAX.
    """
    from hloscope.compile.devices import check_not_tracing, show_slice_to_script
    from hloscope.compile.importing import isolate_call
    from hloscope.compile.jax_support import RECORDING, check_supported
    from hloscope.compile.recording.watching import Watch

    chosen = parse_recorded_slice(request.facts)
    facts = replace(request.facts, slice=chosen.name)
    check_supported(RECORDING)
    check_not_tracing()
    with isolate_call(of_a_block=True), show_slice_to_script(facts, chosen) as devices:
        yield Watch(
            whole=chosen,
            devices=devices,
            facts=facts,
            limits=request.limits,
            store=open_default_store(),
            wanted=request.wanted,
        )


def record_script(
    request: RecordingRequest, *, stage: Stage = lambda _: None, running: Callable[[], Any] = ExitStack
) -> Recording:
    """Runs a script in this process and analyzes the programs that JAX compiles.

    Args:
        request: The script and its options.
        stage: Called with each stage of the work.
        running: A context in which the script runs, such as one that marks its output.

    Raises:
        TargetError: There is no such script, or it compiled no program.
        HloscopeError: The input is invalid.
    """
    from hloscope.compile.recording.scripts import find_script, run_to_its_end

    script = find_script(request.command)
    save = _make_saver(request.save)
    with make_watch(request) as watch:
        stage("running the script")
        with running(), watch.watching():
            ending = run_to_its_end(script.run)
        return make_recording(watch, replace(request, command=script.words), ending, stage=stage, save=save)


def _make_saver(folder: Path | None) -> Save:
    """A function that writes programs to a folder, which is created at once.

    Raises:
        NotationError: The folder cannot be created.
    """
    if folder is None:
        return lambda _program, _text: None
    from hloscope.report.escaping import dump_json

    home = folder.absolute()  # the script may change its working folder
    written: dict[str, int] = {}
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotationError(say(Option("save", str(folder)), " cannot be created"), why=error.strerror) from error

    def save(program: RecordedProgram, text: str) -> None:
        stem = re.sub(r"[^\w.-]+", "_", program.name) or "program"
        count = written[stem] = written.get(stem, 0) + 1
        stem += f".{count}" if count > 1 else ""  # another program of the same name
        write_text(text, home / f"{stem}.hlo")
        write_text(dump_json(program.analysis), home / f"{stem}.json")

    return save


def make_recording(
    watch: Watch,
    request: RecordingRequest,
    ending: Ending,
    *,
    stage: Stage = lambda _: None,
    save: Save = lambda _program, _text: None,
) -> Recording:
    """The recording of a script, with its programs analyzed.

    Raises:
        TargetError: It compiled no program, or none of the requested ones.
    """
    programs, chosen = _merge(watch.programs), request.chosen
    _check_any(programs, chosen, ending)
    large = [each for each in programs if not each.is_jaxs or each.faked is not None]
    asked = sorted(filter(chosen.takes, large), key=lambda each: -each.rough_seconds * max(each.calls, 1))[: chosen.top]
    notes = _find_notes(watch)
    for program in asked:
        watch.begin_compile(program)
    found: list[RecordedProgram] = []
    try:
        for program in asked:
            stage(f"compiling {program.name} for {program.lowered.slice.name}")
            found.append(_analyze(program, request.judging, save))
    except KeyboardInterrupt:
        notes.append("Ctrl-C ended the analysis: programs without figures were not analyzed")
    done = set(map(id, asked[: len(found)]))
    rest = [_make_recorded_program(each) for each in large if id(each) not in done and chosen.takes(each)]
    return Recording(
        command=request.command,
        slice_name=watch.whole.name,
        asked=chosen.only,
        ended=ending.kind if watch.stopped_by is None else "stopped",
        exit_status=ending.status if watch.stopped_by is None else None,
        said=ending.said if watch.stopped_by is None else _explain_stop(watch.stopped_by),
        programs=tuple(sorted([*found, *rest], key=lambda each: (each.analysis is None, -each.all_calls_us))),
        small=_sum_up([each for each in programs if each not in large]),
        recompiled=_find_recompiled([each for each in watch.programs if each.is_compiled]),
        kept_writes=() if watch.writes is None else tuple(map(_make_kept_write, watch.writes.entries)),
        notes=tuple(dict.fromkeys(notes)),
        versions=dict(next((each.analysis.versions for each in found if each.analysis is not None), {})),
    )


def _merge(programs: Sequence[Program]) -> list[Program]:
    """Merges programs that one function was compiled into twice with the same text."""
    found: dict[Any, Program] = {}
    for program in filter(lambda each: each.is_compiled, programs):
        same = found.setdefault((program.function, program.digest, program.lowered.layout), program)
        if same is not program:
            same.calls += program.calls
            program.calls = 0
    return list(found.values())


def _check_any(programs: Sequence[Program], chosen: Chosen, ending: Ending) -> None:
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


def _make_recorded_program(program: Program, analysis: Any = None) -> RecordedProgram:
    return make_document(
        RecordedProgram,
        program,
        took_cpu_branch=program.took_cpu_branch and program.faked in (None, "memory"),
        slice_name=program.lowered.slice.name,
        device_count=program.lowered.seen.device_count,
        rough_us=program.rough_seconds * 1e6,
        analysis=analysis,
        error=None if program.error is None else _describe_error(program.error),
    )


def _make_kept_write(entry: WriteEntry) -> KeptWrite:
    return KeptWrite(
        what=entry.what, target=entry.destination, became=entry.outcome, where=entry.place, times=entry.times
    )


def _describe_error(error: Exception) -> str:
    return error.on_one_line() if isinstance(error, HloscopeError) else f"{type(error).__name__}: {error}"


def _analyze(program: Program, judging: RuleSelection, save: Save) -> RecordedProgram:
    if program.error is None and program.pending is not None:
        try:
            capture = program.capture()
            found = _make_recorded_program(program, analyze_capture(capture, program.name, judging))
        except Exception as error:  # an error of hloscope in one program must not lose the others
            program.error = error
        else:
            save(found, capture.compiled.text)
            program.captured = None  # it takes memory
            return found
    return _make_recorded_program(program)


def _sum_up(programs: Sequence[Program]) -> SmallPrograms | None:
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


def _find_recompiled(programs: Sequence[Program]) -> tuple[Recompiled, ...]:
    """The user's functions with more than one program, most versions first."""
    from hloscope.compile.recording.watching import explain_recompile

    by_function: dict[Any, list[Program]] = {}
    for program in programs:
        if not program.is_jaxs:
            by_function.setdefault(program.function, []).append(program)
    found = [
        Recompiled(
            name=versions[0].name,
            place=versions[0].place,
            versions=len(versions),
            changes=tuple(dict.fromkeys(explain_recompile(*pair) for pair in pairwise(versions))),
        )
        for versions in by_function.values()
        if len(versions) > 1
    ]
    return tuple(sorted(found, key=lambda each: -each.versions))


def _explain_stop(program: Program) -> str:
    return say(
        f"the script was ended once {program.name} had been called {program.calls} times without a new compile in "
        "between: programs that it would compile later are missing (",
        Option("stop-after", placeholder("N")),
        ")",
    )


def _find_notes(watch: Watch) -> list[str]:
    from hloscope.compile.simulated_slice import list_pose_notes

    return [
        *list_pose_notes(),
        *watch.missed,
        *(note for program in watch.programs for note in program.notes if not program.is_jaxs),
    ]
