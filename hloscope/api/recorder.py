"""`recording` and `record`: recording of a block of Python, or of a script in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from hloscope import given
from hloscope.analysis.model.recording import RecordedProgram, Recording
from hloscope.api.recording import DEFAULT_SLICE, DEFAULT_TOP, Chosen, recorded_slice, recording_of, watched
from hloscope.calls import front_door, in_python
from hloscope.documents import plain, read
from hloscope.errors import HloscopeError
from hloscope.program.target import OPTIONS, RecordingOptions, TargetFacts, make_facts, with_options
from hloscope.progress import waiting
from hloscope.rules.selection import RuleSelection, make_selection
from hloscope.store import default_store

if TYPE_CHECKING:
    from hloscope.program.recording.watching import Limits, Watch


class Recorder:
    """The context manager that `hloscope.recording` returns.

    Attributes:
        result: The recording, after the block has ended; None before that, and if nothing was compiled.
    """

    def __init__(self, facts: TargetFacts, chosen: Chosen, limits: Limits, judging: RuleSelection) -> None:
        """Stores the options of the recording, without starting it."""
        self.result: Recording | None = None
        self._facts, self._chosen, self._limits, self._judging = facts, chosen, limits, judging
        self._devices, self._watching = ExitStack(), ExitStack()
        self._watch: Watch | None = None

    @property
    def programs(self) -> tuple[RecordedProgram, ...]:
        """The recorded programs, most predicted time first; empty before the block has ended."""
        return () if self.result is None else self.result.programs

    def __str__(self) -> str:
        """The report, after the block has ended."""
        return repr(self) if self.result is None else str(self.result)

    def __repr__(self) -> str:
        if self.result is not None:
            return repr(self.result)
        state = "not started" if self._watch is None else "in progress, or nothing was compiled"
        return f"<Recorder for {self._facts.slice}: {state}>"

    def _repr_markdown_(self) -> str:
        """The report, as a notebook shows it."""
        return repr(self) if self.result is None else self.result._repr_markdown_()

    def to_dict(self) -> dict[str, object]:
        """Returns the recording as plain data; empty before the block has ended."""
        return {} if self.result is None else plain(self.result)

    @front_door
    def __enter__(self) -> Recorder:
        """Starts the recording."""
        if self._watch is not None:
            raise HloscopeError(
                "this recording has already been used", fix="start another: with hloscope.recording(...) as rec:"
            )
        with ExitStack() as undone:
            watch, watching = undone.enter_context(watched(self._facts, self._limits, default_store()))
            self._watching.enter_context(watching())
            self._watch, self._devices = watch, undone.pop_all()
        return self

    @front_door
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Restores JAX and analyzes the compiled programs."""
        from hloscope.program.recording.scripts import ending_of
        from hloscope.program.recording.watching import SeenEnoughError

        self._watching.close()
        watch = self._watch
        ended_by_us = watch is not None and watch.stopped_by is not None
        with self._devices:
            if watch is not None and any(program.is_compiled for program in watch.programs):
                try:
                    self.result = in_python(
                        recording_of(watch, (), ending_of(error), chosen=self._chosen, judging=self._judging)
                    )
                except HloscopeError:
                    if error is None or ended_by_us:
                        raise  # else what the block raised is what is to be heard of
        return isinstance(error, SeenEnoughError) or (ended_by_us and isinstance(error, KeyboardInterrupt))


@front_door
@with_options(RecordingOptions)
def recording(
    slice: str = DEFAULT_SLICE,
    *,
    only: str | Sequence[str] = (),
    top: int = DEFAULT_TOP,
    run: bool = False,
    run_below_bytes: int | str | None = None,
    stop_after: int | None = None,
    allow_writes: bool = False,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    **options: Unpack[RecordingOptions],
) -> Recorder:
    """Records what JAX compiles in a `with` block, and analyzes it for a TPU slice when the block ends.

    Programs with large arguments or results are not executed: their results are zeros that take no memory.

    Example:
        >>> with hloscope.recording("v5e:2x4") as rec:
        ...     train(config)
        >>> [(program.name, program.calls) for program in rec.programs]
        [('train_step', 4)]

    Args:
        slice: A TPU slice, such as `v5e:2x4`.
        only: Names of functions, or patterns such as `train_*`, whose programs to analyze; by default all.
        top: Maximum number of programs to analyze, most expensive first.
        run: Whether to execute every program that can run on simulated devices.
        run_below_bytes: Execute programs whose arguments and results are smaller than this, in bytes or such as `64MB`,
            the default.
        stop_after: Number of calls of the most expensive program, without a new compile in between, after which the
            block ends; 0 for no limit. By default 3, once a program has not been executed.
        allow_writes: Whether the block may write and remove files even though values are not real; by default it works
            on copies.
        select: Names of the rules to run; all when empty.
        ignore: Names of rules to skip.
        {options}

    Raises:
        HloscopeError: The input is invalid; or, at the end of the block, none of the named functions was compiled.
    """
    from hloscope.program.recording.watching import RUN_BELOW_BYTES, Limits

    facts = make_facts(slice=slice, **options)
    recorded_slice(facts)
    chosen, below, calls = _limits(only, top, run_below_bytes, stop_after)
    limits = Limits(
        run_below_bytes=RUN_BELOW_BYTES if below is None else below,
        run_all=run,
        stop_after=calls,
        allow_writes=allow_writes,
    )
    return Recorder(facts, chosen, limits, make_selection(select=select, ignore=ignore))


def _limits(only: object, top: object, run_below: object, stop_after: object) -> tuple[Chosen, int | None, int | None]:
    """Which programs are analyzed, the bytes below which one is executed, and the calls after which all is known."""
    chosen = Chosen(only=given.texts("only", only, example='only="train_*"'), top=given.whole("top", top, least=1))
    below = None if run_below is None else given.size("run_below_bytes", run_below, example='run_below_bytes="64MB"')
    return chosen, below, None if stop_after is None else given.whole("stop_after", stop_after)


@front_door
@with_options(RecordingOptions)
def record(
    *command: str | os.PathLike[str],
    slice: str = DEFAULT_SLICE,
    only: str | Sequence[str] = (),
    top: int = DEFAULT_TOP,
    run: bool = False,
    run_below_bytes: int | str | None = None,
    stop_after: int | None = None,
    allow_writes: bool = False,
    save: str | Path | None = None,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    **options: Unpack[RecordingOptions],
) -> Recording:
    """Runs an unmodified Python script in a separate process, and analyzes every program that JAX compiles there.

    Example:
        >>> print(hloscope.record("train.py", "--steps", "3", slice="v5p:2x2x2"))

    Args:
        command: The script and its arguments; `-m` and a module; or a console script.
        slice: The TPU slice that the script sees.
        only: As for `recording`.
        top: As for `recording`.
        run: As for `recording`.
        run_below_bytes: As for `recording`.
        stop_after: As for `recording`.
        allow_writes: As for `recording`.
        save: Folder to write each analyzed program to, as HLO and as JSON.
        select: As for `recording`.
        ignore: As for `recording`.
        {options}

    Raises:
        HloscopeError: The input is invalid, or the script compiled no program.
    """
    script = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in command]
    given.texts("command", script, example='hloscope.record("train.py", "--steps", "3")')
    facts = make_facts(slice=slice, **options)
    recorded_slice(facts)
    rules = make_selection(select=select, ignore=ignore)
    chosen, below, calls = _limits(only, top, run_below_bytes, stop_after)
    folder = given.path("save", save, example='save="programs"')
    words = ["--slice", slice, "--top", str(chosen.top), *(f"--only={name}" for name in chosen.only)]
    words += [*(f"--select={name}" for name in rules.select), *(f"--ignore={name}" for name in rules.ignore)]
    words += ["--run"] * bool(run) + ["--allow-writes"] * bool(allow_writes)
    for flag, value in (("--run-below", below), ("--stop-after", calls), ("--save", folder)):
        words += [] if value is None else [flag, str(value)]
    for option in OPTIONS:
        if option.name in options:
            flag = {"allow": "--allow", "rule_options": "--rule-option"}.get(option.name) or option.flags[0]
            words += _on_command_line(flag, getattr(facts, option.name))
    return _recorded(words, script)


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
            said = done.stderr.rpartition("error: ")[2] or done.stderr or f"it exited with {done.returncode}"
            what, *rest = said.strip().splitlines()
            raise HloscopeError(what, why="\n".join(line.strip(" =") for line in rest) or None)
        return read(Recording, json.loads(file.read_text(encoding="utf-8")), name="the recording", key="programs")
