"""A script, or a block of Python, runs while each program that JAX compiles is noticed, retargeted and analysed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from hloscope.analysis.model.recording import (
    KeptWrite,
    Recompiled,
    RecordedProgram,
    Recording,
    SmallPrograms,
)
from hloscope.api.analyzing import analysis_of
from hloscope.api.python_words import python_words
from hloscope.documents import plain, read
from hloscope.errors import HloscopeError, NotationError, SliceError, did_you_mean
from hloscope.hardware.slices import Slice, parse_slice
from hloscope.program.target import OPTIONS, RecordingOptions, TargetFacts, make_facts, with_options
from hloscope.progress import waiting
from hloscope.rules.selection import DEFAULT_SELECTION, RuleSelection
from hloscope.store import Store, default_store

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
    """Which of the programs are analysed.

    Attributes:
        only: Functions by name, or a pattern of names such as `train_*`; empty for all.
        top: At most so many, the costliest ones.
    """

    only: tuple[str, ...] = ()
    top: int = DEFAULT_TOP

    def takes(self, program: Program) -> bool:
        """Whether a program is named."""
        return not self.only or any(fnmatchcase(program.name, pattern) for pattern in self.only)


def recorded_slice(facts: TargetFacts) -> Slice:
    """The slice that a script is to see.

    Raises:
        SliceError: It is no TPU slice.
    """
    chosen = parse_slice(facts.slice or DEFAULT_SLICE)
    if chosen.chip is None:
        raise SliceError(
            f"a script is recorded for a TPU slice, and {chosen.name} is none", fix="write --slice v5e:2x4, for example"
        )
    return chosen


@contextmanager
def watched(facts: TargetFacts, limits: Limits, store: Store | None) -> Iterator[tuple[Watch, Callable[[], Any]]]:
    """Lets JAX's devices be those of a slice, and yields the watch with what switches it on.

    Raises:
        HloscopeError: The slice is no TPU slice, or JAX is not one that hloscope can compile with.
    """
    from hloscope.compiler.jax_support import RECORDING, check_supported
    from hloscope.program.devices import shown_for_a_script
    from hloscope.program.recording.watching import Watch
    from hloscope.program.surroundings import one_call

    chosen = recorded_slice(facts)
    facts = replace(facts, slice=chosen.name)
    check_supported(RECORDING)
    with one_call(), shown_for_a_script(facts, chosen) as devices:
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
    """Runs a script and analyses what JAX compiled meanwhile.

    Args:
        script: What to run.
        facts: The slice, and what else is said of all programs.
        limits: What is executed, and how long it goes on.
        chosen: Which programs are analysed.
        judging: Which rules run and what is accepted.
        stage: Called with what is happening.
        store: Where compiles are kept.
        running: A context in which the script runs, such as one that marks what it prints.
        when_compiled: Called with each analysed program and its compiled text.

    Raises:
        TargetError: The script compiled no program.
        HloscopeError: Bad input.
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
    """What came of a script, its programs analysed.

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
            found.append(_analysed(program, judging, when_compiled))
    except KeyboardInterrupt:
        notes.append("Ctrl-C ended the analysis: programs without figures were not analysed")
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


def _analysed(
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
    return (
        f"the script was ended once {program.name} had been called {program.calls} times with nothing new compiled in "
        "between: programs that it would compile later are not here (--stop-after N)"
    )


def _notes(watch: Watch) -> list[str]:
    from hloscope.program.stand_ins import taken_notes

    return [
        *taken_notes(),
        *watch.missed,
        *(note for program in watch.programs for note in program.notes if not program.is_jaxs),
    ]


class Recorder:
    """A recording in a `with` block: what `hloscope.recording` returns.

    Attributes:
        result: The recording, once the block has ended; None before, and where nothing was compiled.
    """

    def __init__(self, facts: TargetFacts, chosen: Chosen, limits: Limits) -> None:
        """Takes what the recording is to be; nothing happens yet."""
        self.result: Recording | None = None
        self._facts, self._chosen, self._limits = facts, chosen, limits
        self._devices, self._watching = ExitStack(), ExitStack()
        self._watch: Watch | None = None

    @property
    def programs(self) -> tuple[RecordedProgram, ...]:
        """What was compiled, most predicted time first; empty before the block has ended."""
        return () if self.result is None else self.result.programs

    def to_dict(self) -> dict[str, object]:
        """The recording as plain data; empty before the block has ended."""
        return {} if self.result is None else plain(self.result)

    def __enter__(self) -> Recorder:
        """Begins to watch."""
        if self._watch is not None:
            raise HloscopeError(
                "this recording has been used", fix="begin another: with hloscope.recording(...) as rec:"
            )
        with ExitStack() as undone:
            watch, watching = undone.enter_context(watched(self._facts, self._limits, default_store()))
            self._watching.enter_context(watching())
            self._watch, self._devices = watch, undone.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Makes JAX as it was, and analyses what was compiled."""
        from hloscope.program.recording.scripts import ending_of
        from hloscope.program.recording.watching import SeenEnoughError

        self._watching.close()
        watch = self._watch
        ended_by_us = watch is not None and watch.stopped_by is not None
        with self._devices:
            if watch is not None and any(program.is_compiled for program in watch.programs):
                try:
                    self.result = recording_of(watch, (), ending_of(error), chosen=self._chosen)
                except HloscopeError:
                    if error is None or ended_by_us:
                        raise  # else what the block raised is what is to be heard of
        return isinstance(error, SeenEnoughError) or (ended_by_us and isinstance(error, KeyboardInterrupt))


@python_words()
@with_options(RecordingOptions)
def recording(
    slice: str = DEFAULT_SLICE,
    *,
    only: str | Sequence[str] = (),
    top: int = DEFAULT_TOP,
    run: bool = False,
    run_below_bytes: int | None = None,
    stop_after: int | None = None,
    allow_writes: bool = False,
    **options: Unpack[RecordingOptions],
) -> Recorder:
    """Watches what JAX compiles in a `with` block, and analyses it for a TPU slice at its end.

    Programs with large arguments or results are not executed: their results are zeros that take no memory.

    Example:
        >>> with hloscope.recording("v5e:2x4") as rec:
        ...     train(config)
        >>> [(program.name, program.calls) for program in rec.programs]
        [('train_step', 4)]

    Args:
        slice: A TPU slice, such as `v5e:2x4`.
        only: Names of functions, or patterns such as `train_*`, of which alone programs are analysed.
        top: At most so many programs are analysed, the costliest ones.
        run: Execute every program that can be on simulated devices.
        run_below_bytes: Execute programs with fewer bytes of arguments and results; by default 64 MB.
        stop_after: End the block once its costliest program was called so often with nothing new compiled in between;
            0 for never. By default 3, once anything was not executed.
        allow_writes: Write and remove files though values are not real; by default that happens to copies.
        {options}

    Raises:
        HloscopeError: Bad input; at the end of the block, where none of the named functions was compiled.
    """
    from hloscope.program.recording.watching import RUN_BELOW_BYTES, Limits

    facts = make_facts(slice=slice, **options)
    recorded_slice(facts)
    below = RUN_BELOW_BYTES if run_below_bytes is None else run_below_bytes
    for name, value, least in (("top", top, 1), ("run_below_bytes", below, 0), ("stop_after", stop_after, 0)):
        if value is not None and value < least:
            raise NotationError(f"{name}={value} is too small", fix=f"the least that {name} can be is {least}")
    limits = Limits(run_below_bytes=below, run_all=run, stop_after=stop_after, allow_writes=allow_writes)
    return Recorder(facts, Chosen(only=(only,) if isinstance(only, str) else tuple(only), top=top), limits)


@python_words()
@with_options(RecordingOptions)
def record(
    *command: str,
    slice: str = DEFAULT_SLICE,
    only: str | Sequence[str] = (),
    top: int = DEFAULT_TOP,
    run: bool = False,
    run_below_bytes: int | None = None,
    stop_after: int | None = None,
    allow_writes: bool = False,
    save: str | Path | None = None,
    **options: Unpack[RecordingOptions],
) -> Recording:
    """Runs a Python script unmodified, in a process of its own, and analyses every program that JAX compiles there.

    Example:
        >>> print(hloscope.record("train.py", "--steps", "3", slice="v5p:2x2x2"))

    Args:
        command: The script and its arguments; `-m` and a module; or a console script.
        slice: The TPU slice that the script sees.
        only: As for `recording`.
        top: Likewise.
        run: Likewise.
        run_below_bytes: Likewise.
        stop_after: Likewise.
        allow_writes: Likewise.
        save: A folder into which each analysed program is written, as HLO and as JSON.
        {options}

    Raises:
        HloscopeError: Bad input, or the script compiled no program.
    """
    facts = make_facts(slice=slice, **options)
    recorded_slice(facts)
    names = (only,) if isinstance(only, str) else tuple(only)
    words = ["--slice", slice, "--top", str(top), *(f"--only={name}" for name in names)]
    words += ["--run"] * run + ["--allow-writes"] * allow_writes
    for flag, value in (("--run-below", run_below_bytes), ("--stop-after", stop_after), ("--save", save)):
        words += [] if value is None else [flag, str(value)]
    for option in OPTIONS:
        if option.name in options:
            flag = {"allow": "--allow", "rule_options": "--rule-option"}.get(option.name) or option.flags[0]
            words += _on_command_line(flag, getattr(facts, option.name))
    return _recorded(words, command)


def _on_command_line(flag: str, value: Any) -> list[str]:
    """An option with its value, or with each of its values."""
    if isinstance(value, Mapping):
        texts = {name: ",".join(map(str, each)) if isinstance(each, tuple) else each for name, each in value.items()}
        return [f"{flag}={name}={each}" for name, each in texts.items()]
    if isinstance(value, tuple):
        return [f"{flag}={each}" for each in value]
    return [] if value is None else [f"{flag}={value}"]


def _recorded(words: Sequence[str], command: Sequence[str]) -> Recording:
    """What the command line finds, in a process of its own."""
    with TemporaryDirectory(prefix="hloscope-") as folder, waiting() as stage:
        file = Path(folder) / "recording.json"
        stage("running the script")
        run = [sys.executable, "-m", "hloscope", "record", *words, "--format", "json", "-o", str(file), "--", *command]
        done = subprocess.run(run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if not file.exists():
            said = done.stderr.rpartition("error: ")[2] or done.stderr or f"it ended with {done.returncode}"
            what, *rest = said.strip().splitlines()
            raise HloscopeError(what, why="\n".join(line.strip(" =") for line in rest) or None)
        return read(Recording, json.loads(file.read_text(encoding="utf-8")), name="the recording", key="programs")
