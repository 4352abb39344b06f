"""`recording` and `record`: recording of a block of Python, or of a script in a separate process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from hloscope.app.config import load_project_plugins
from hloscope.app.recording import (
    DEFAULT_SLICE,
    DEFAULT_TOP,
    Chosen,
    RecordingRequest,
    make_recording,
    make_watch,
    parse_recorded_slice,
    record_script,
)
from hloscope.app.requests import parse_stage
from hloscope.base import calls
from hloscope.base.calls import front_door, speak_python
from hloscope.base.documents import to_plain
from hloscope.base.errors import HloscopeError
from hloscope.base.progress import show_waiting
from hloscope.compile.target import RecordingOptions, TargetFacts, accept_options, make_facts
from hloscope.judge.selection import make_selection
from hloscope.model.recording import RecordedProgram, Recording
from hloscope.model.vocabulary import CompileStage
from hloscope.tpu.slices import override_chip

if TYPE_CHECKING:
    from hloscope.compile.recording.scripts import Limits
    from hloscope.compile.recording.watching import Watch

_LAST_WORDS = 2000


class Recorder:
    """The context manager that `hloscope.recording` returns.

    Attributes:
        result: The recording, after the block has ended; None before that, and if nothing was compiled.
    """

    def __init__(self, request: RecordingRequest) -> None:
        """Stores the options of the recording, without starting it."""
        self.result: Recording | None = None
        self._request = request
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
        return f"<Recorder for {self._request.facts.slice}: {state}>"

    def _repr_markdown_(self) -> str:
        """The report, as a notebook shows it."""
        return repr(self) if self.result is None else self.result._repr_markdown_()

    def to_dict(self) -> dict[str, object]:
        """Returns the recording as plain data; empty before the block has ended."""
        return {} if self.result is None else to_plain(self.result)

    @front_door
    def __enter__(self) -> Recorder:
        """Starts the recording."""
        if self._watch is not None:
            raise HloscopeError(
                "this recording has already been used", fix="start another: with hloscope.recording(...) as rec:"
            )
        with ExitStack() as undone:
            watch = undone.enter_context(make_watch(self._request))
            self._watching.enter_context(watch.watching())
            self._watch, self._devices = watch, undone.pop_all()
        return self

    @front_door
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Restores JAX and analyzes the compiled programs."""
        from hloscope.compile.recording.scripts import SeenEnoughError, ending_of

        self._watching.close()
        watch = self._watch
        ended_by_us = watch is not None and watch.stopped_by is not None
        with self._devices:
            if watch is not None and any(program.is_compiled for program in watch.programs):
                try:
                    self.result = speak_python(make_recording(watch, self._request, ending_of(error)))
                except HloscopeError:
                    if error is None or ended_by_us:
                        raise  # otherwise the error of the block is the one to report
        return isinstance(error, SeenEnoughError) or (ended_by_us and isinstance(error, KeyboardInterrupt))


@front_door
@accept_options(RecordingOptions)
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
    stage: str = CompileStage.COMPILED,
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
        stage: As for `analyze`.
        {options}

    Raises:
        HloscopeError: The input is invalid; or, at the end of the block, none of the named functions was compiled.
    """
    facts = _make_facts(slice, options)
    chosen, limits = _check_limits(only, top, run, run_below_bytes, stop_after, allow_writes)
    rules = make_selection(select=select, ignore=ignore)
    request = RecordingRequest(
        command=(), facts=facts, limits=limits, chosen=chosen, judging=rules, wanted=parse_stage(stage)
    )
    return Recorder(request)


def _make_facts(slice: str, options: RecordingOptions) -> TargetFacts:
    facts = make_facts(slice=slice, **options)
    parse_recorded_slice(facts)
    return facts


def _check_limits(
    only: object, top: object, run: bool, run_below: object, stop_after: object, allow_writes: bool
) -> tuple[Chosen, Limits]:
    """The programs to analyze, and what to execute.

    Raises:
        HloscopeError: A value is invalid.
    """
    from hloscope.compile.recording.scripts import RUN_BELOW_BYTES, Limits

    chosen = Chosen(only=calls.texts("only", only, example='only="train_*"'), top=calls.whole("top", top, least=1))
    below = None if run_below is None else calls.size("run_below_bytes", run_below, example='run_below_bytes="64MB"')
    limits = Limits(
        run_below_bytes=RUN_BELOW_BYTES if below is None else below,
        run_all=bool(run),
        stop_after=None if stop_after is None else calls.whole("stop_after", stop_after),
        allow_writes=bool(allow_writes),
    )
    return chosen, limits


@front_door
@accept_options(RecordingOptions)
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
    stage: str = CompileStage.COMPILED,
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
        stage: As for `analyze`.
        {options}

    Raises:
        HloscopeError: The input is invalid, or the script compiled no program.
    """
    script = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in command]
    calls.texts("command", script, example='hloscope.record("train.py", "--steps", "3")')
    facts = _make_facts(slice, options)
    rules = make_selection(select=select, ignore=ignore)
    chosen, limits = _check_limits(only, top, run, run_below_bytes, stop_after, allow_writes)
    folder = calls.path("save", save, example='save="programs"')
    request = RecordingRequest(
        command=tuple(script),
        facts=facts,
        limits=limits,
        chosen=chosen,
        judging=rules,
        save=folder,
        wanted=parse_stage(stage),
    )
    with show_waiting() as display:
        display("running the script")
        return _record_in_child(request)


def _record_in_child(request: RecordingRequest) -> Recording:
    """Carries out a request in a separate process, which reads the request and writes its answer as files.

    Raises:
        HloscopeError: The process reports this error, or ends without an answer.
    """
    with TemporaryDirectory(prefix="hloscope-") as folder:
        asked, answered, said = (Path(folder, name) for name in ("request", "answer", "stderr"))
        asked.write_bytes(pickle.dumps(request))
        run = [sys.executable, "-m", "hloscope.app.recorder", str(asked), str(answered)]
        with said.open("wb") as stderr:
            done = subprocess.run(run, stdout=subprocess.DEVNULL, stderr=stderr, check=False)
        if not answered.exists():
            words = said.read_text(encoding="utf-8", errors="replace").strip()[-_LAST_WORDS:]
            raise HloscopeError(f"the script's process exited with {done.returncode}", why=words or None)
        answer: Recording | HloscopeError = pickle.loads(answered.read_bytes())
    if isinstance(answer, HloscopeError):
        raise answer
    return answer


def _answer(request: RecordingRequest) -> Recording | HloscopeError:
    """Carries out a request in this process, which has not imported JAX yet; returns the recording or the error."""
    from hloscope.compile.environment import import_jax, prepare_environment, require_jax

    facts = request.facts
    try:
        require_jax()
        load_project_plugins(Path.cwd())
        chosen = parse_recorded_slice(facts)
        override_chip(chosen, facts.chip_overrides or ())
        judging = make_selection(
            select=request.judging.select,
            ignore=request.judging.ignore,
            allow=facts.allow,
            rule_options=facts.rule_options,
        )
        prepare_environment(chosen.device_count, attached=False)
        import_jax()
        return record_script(replace(request, facts=replace(facts, allow=(), rule_options={}), judging=judging))
    except HloscopeError as error:
        return error
    except BaseException as error:
        return HloscopeError(f"hloscope itself failed: {type(error).__name__}: {error}")


def main() -> None:
    """Answers one request: `python -m hloscope.app.recorder REQUEST ANSWER`."""
    from hloscope.compile.recording.scripts import are_threads_left

    asked, answered = map(Path, sys.argv[1:])
    answered.write_bytes(pickle.dumps(_answer(pickle.loads(asked.read_bytes()))))
    if are_threads_left():
        os._exit(0)


if __name__ == "__main__":
    main()
