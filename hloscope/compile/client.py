"""The compiler's interface to the rest of hloscope; every request is answered by a worker."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

from hloscope.base.calls import read_time_limit
from hloscope.base.errors import CompileError, CompilerDiedError, NotationError, Option, TimeLimitError, say
from hloscope.base.store import Store
from hloscope.compile import jax_support, operation_numbers, step
from hloscope.compile.cache import is_likely_cached, read_compile_flags
from hloscope.compile.pool import WorkerDied, WorkerPool
from hloscope.compile.slots import BYTES_PER_WORKER, count_cores, count_slots, find_free_bytes
from hloscope.compile.stages import find_full_temporary_folder, find_stage_check
from hloscope.compile.target import find_target_name
from hloscope.model.capture import CompiledProgram, CompileRequest, ShardyModule
from hloscope.model.vocabulary import CompileStage
from hloscope.tpu.slices import Slice, find_smallest_slice

T = TypeVar("T")

QUIET_LIBTPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # another process on this machine may hold libtpu's lock file
    "TPU_SKIP_MDS_QUERY": "1",  # no metadata server to ask outside Google Cloud
    "TPU_STDERR_LOG_LEVEL": "1",  # the partitioner's warnings, which the report shows
}
_USUAL_DEVICES = 16
"""CPU devices of every worker: they cost nothing, and serve all programs that need no more."""
_ANY_SLICE = find_smallest_slice(4).name
"""The slice of a question to libtpu that would be answered alike for any other."""
DEFAULT_LIMIT_S = 30 * 60.0
"""The time limit if no user is watching."""
_SAID_LINES = 6
_FATAL = re.compile(r"^F\d{4} |Check failed: |No space left|Fatal Python error|terminate called", re.IGNORECASE)
_UNKNOWN_FLAG = re.compile(r"Unknown command line flag|Illegal value .* specified for flag")
"""libtpu's words about `LIBTPU_INIT_ARGS`, before it ends the process."""
_UNKNOWN_TO_XLA = re.compile(r"Unknown flags? in XLA_FLAGS")
"""XLA's words about `XLA_FLAGS`, before it does so; flags set after JAX was started reach workers first."""
_NOISE = re.compile(r"^\s*(@|#\d|\*\*\*|PC:|==|https?:|[IWE]\d{4} |WARNING: Logging|Failed to find host)")
_CRASH_DUMP = re.compile(r"^\*\*\* SIG\w+ ", re.MULTILINE)
"""The start of libtpu's signal handler: registers, stacks and maps follow, all in lines of many kinds."""
_PREFIX = re.compile(r"^[A-Z]\d{4} [\d:. ]+\d+ (?P<rest>\S+\.(?:cc|h):\d+\] .*)$")

_NOTED = "_hloscope_noted"
"""The attribute of a Ctrl-C that was counted."""

_lock = threading.Lock()
_pools: dict[int, WorkerPool] = {}
_other_workers: ContextVar[Any] = ContextVar("hloscope_elsewhere", default=None)
"""The workers that answer questions in place of this process's workers."""


@contextmanager
def use_workers(workers: Any) -> Iterator[None]:
    """Makes other workers, with the methods of a `WorkerPool`, answer this thread's questions within the block."""
    before = _other_workers.set(workers)
    try:
        yield
    finally:
        _other_workers.reset(before)


def get_pool() -> WorkerPool:
    """The workers of this process; a forked child has its own.

    Raises:
        CompileError: The main thread has ended, after which Python starts no more tasks in executors.
    """
    if not threading.main_thread().is_alive():
        raise CompileError(
            "nothing more can be compiled",
            why="the main thread has ended, after which Python's executors start nothing new",
            fix="let the main thread wait for this one: thread.join()",
        )
    with _lock:
        found = _pools.get(os.getpid())
        if found is None:
            _pools.clear()
            found = _pools[os.getpid()] = WorkerPool(
                min(count_useful_workers(), count_slots()), make_worker_environment
            )
            atexit.register(_close_pool, found, os.getpid())
        return found


def _close_pool(workers: WorkerPool, owner: int) -> None:
    """Closes a process's workers when it ends; a forked child leaves them to their owner."""
    if os.getpid() == owner:
        workers.shutdown(cancel_futures=True)


def count_interruptions() -> int:
    """The number of times that Ctrl-C has ended this process's workers so far."""
    found = _pools.get(os.getpid())
    return 0 if found is None else found.interruptions()


def note_interruption(error: BaseException) -> None:
    """Ends the idle workers if an exception is Ctrl-C in the main thread: it has reached them as well.

    One that passes through several calls counts once.
    """
    found, in_main = _pools.get(os.getpid()), threading.current_thread() is threading.main_thread()
    if found is not None and in_main and isinstance(error, KeyboardInterrupt) and not hasattr(error, _NOTED):
        setattr(error, _NOTED, True)
        found.note_interruption()


def count_useful_workers(jobs: int | None = None, *, each_bytes: int = BYTES_PER_WORKER) -> int:
    """The useful number of workers on this machine, by cores, free memory and the number of jobs.

    Args:
        jobs: The number of jobs; None for no bound.
        each_bytes: The memory of one worker, including its helpers.
    """
    cores = count_cores()
    return max(1, min(jobs or cores, cores, find_free_bytes() // each_bytes))


def make_worker_environment(simulated_devices: int = 1) -> dict[str, str]:
    """The `os.environ` of a worker: this process's, with JAX kept to the CPU and libtpu quiet and shareable."""
    flags = read_compile_flags()
    devices = str(max(simulated_devices, _USUAL_DEVICES))
    found = {**QUIET_LIBTPU, **os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": devices}
    usual = jax_support.find_libtpu_file()
    if usual is not None and found.get("TPU_LIBRARY_PATH") == str(usual):
        del found["TPU_LIBRARY_PATH"]  # JAX sets it when it is imported, and says nothing new by it
    return found | {"XLA_FLAGS": flags} if flags else {name: found[name] for name in found if name != "XLA_FLAGS"}


def start_worker_ahead(target: Callable[..., Any] | str, slice_name: str | None, store: Store | None) -> None:
    """Starts a worker while a target is imported and traced, unless its last compile is still in the cache.

    Args:
        target: It, or its name.
        slice_name: The requested slice; None if not known yet.
        store: The cache of compiles.
    """
    if _other_workers.get() is not None or (store is not None and is_likely_cached(store, find_target_name(target))):
        return
    if slice_name is None or not slice_name.startswith(("cpu", "attached")):
        get_pool().warm(make_worker_environment(), slice_name or _ANY_SLICE)


def ask_compile(
    program: CompileRequest, *, name: str, timeout_s: float | None, wanted: CompileStage = CompileStage.COMPILED
) -> Question[CompiledProgram]:
    """Asks a worker to compile a program.

    Args:
        program: The program.
        name: The user's name for it, for messages.
        timeout_s: Time limit of the compile in seconds; None for the default of `choose_time_limit`.
        wanted: The stage that is enough; only if it is the scheduled one, that is sent ahead.

    Returns:
        A question whose answer is a `CompiledProgram`; `answer` raises the errors of `step.compile_program`.
    """
    simulated = program.layout.simulated_ids or (program.layout.device_count - 1,)
    devices = 1 if program.slice.chip is not None else max(simulated) + 1
    return Question(
        step.compile_program,
        program,
        doing=f"compiling {name} for {program.slice.name}",
        timeout_s=timeout_s,
        simulated_devices=devices,
        shown=operation_numbers.make_message_filter(program.module),
        has_files=True,
        reports=wanted is CompileStage.SCHEDULED and has_scheduled_stage(program.slice, program.options),
    )


def has_scheduled_stage(chosen: Slice, options: Mapping[str, str]) -> bool:
    """Returns whether a program's schedule can be read before it is compiled.

    The workers, the version of libtpu and the dumps must be this process's own.
    """
    is_own = chosen.chip is not None and "xla_dump_to" not in options and _other_workers.get() is None
    return is_own and find_stage_check(jax_support.find_own_libtpu_version()) is not None


def ask_propagation(
    module: bytes | str, seen_by: str, notes: list[str], *, timeout_s: float | None, numbered: bool = False
) -> tuple[ShardyModule | None, bool]:
    """Asks a worker for Shardy's output for a module.

    Some programs end the process that asks for the origins of shardings: Shardy is then asked again without origins.

    Returns:
        Its output; None, with a note, if it cannot be asked. And whether it would answer the same again.

    Raises:
        TimeLimitError: It took too long.
    """
    by_machine = False
    for origins in (True, False):
        try:
            doing = "propagating the shardings with Shardy"
            found = Question(
                step.propagate, module, seen_by, origins=origins, numbered=numbered, doing=doing, timeout_s=timeout_s
            ).answer()
        except CompilerDiedError as error:
            said = (error.why or "").partition("\n")[0]
            by_machine |= error.by_machine
            continue
        except ValueError as error:
            said = str(error)
            break
        if not origins:
            notes.append(
                f"Shardy crashed while tracking the origins of shardings ({said}), and was run again without them: "
                "what requested a sharding is unknown here"
            )
        return found, not by_machine
    notes.append(f"Shardy's propagation could not be repeated ({said}): reasons are less exact")
    return None, not by_machine


def _make_folder() -> TemporaryDirectory[str] | None:
    """A folder for the files of a step; None on a full disk, as the step itself will say."""
    with suppress(OSError):
        return TemporaryDirectory(prefix="hloscope-", ignore_cleanup_errors=True)
    return None


class Question(Generic[T]):
    """A step that a worker was asked to run.

    Args:
        function: One of `hloscope.compile.step`, or any other function that can be pickled by name.
        args: Its arguments.
        doing: The action, for messages: `compiling step for v5e:2x4`.
        timeout_s: Time limit in seconds, including the wait for other processes; None for the default.
        simulated_devices: The number of CPU devices that the worker needs.
        shown: Converts the words of a dying compiler to those for users.
        has_files: Whether the function takes a `folder` for its files, which this process owns: a worker that is ended
            leaves nothing.
        reports: Whether the function may `report` an early result.
        kwargs: Arguments by keyword.
    """

    def __init__(
        self,
        function: Callable[..., T],
        /,
        *args: object,
        doing: str,
        timeout_s: float | None = None,
        simulated_devices: int = 1,
        shown: Callable[[str], str] = str,
        has_files: bool = False,
        reports: bool = False,
        **kwargs: object,
    ) -> None:
        self._doing, self._shown = doing, shown
        self._limit = choose_time_limit(timeout_s)
        self._workers = _other_workers.get() or get_pool()
        self._early: Future[T] = Future()
        environment = make_worker_environment(simulated_devices)
        self._future: Future[T]
        if not isinstance(self._workers, WorkerPool):
            self._future = self._workers.submit_in(environment, self._limit, function, *args, **kwargs)
            return
        report = self._early.set_result if reports else None
        owned = _make_folder() if has_files else None
        more = kwargs if owned is None else {**kwargs, "folder": owned.name}
        self._future = self._workers.submit_reporting(environment, self._limit, report, function, *args, **more)
        if owned is not None:
            self._future.add_done_callback(lambda _: owned.cleanup())

    def first_answer(self) -> T:
        """Waits for the early result; for the answer, if that comes first. Raises the errors of `answer`."""
        try:
            wait((self._early, self._future), return_when=FIRST_COMPLETED)
        except BaseException as error:
            self.drop()
            note_interruption(error)
            raise
        return self._early.result() if self._early.done() and not self._future.done() else self.answer()

    def answer(self) -> T:
        """Waits for the answer; if the wait is interrupted, the worker is ended.

        Raises:
            CompilerDiedError: The process ended.
            TimeLimitError: It took longer than the limit.
            Exception: Whatever the function raised.
        """
        try:
            return self._future.result()
        except WorkerDied as died:
            died.words = self._shown(died.words)
            raise make_compiler_died_error(died, self._doing) from None
        except TimeLimitError as late:  # the limit of all that this thread does
            self.drop()
            raise late.after_waiting(self._workers.waited_s(self._future)) from None
        except TimeoutError:
            error = TimeLimitError(self._doing, self._limit or 0.0)
            raise error.after_waiting(self._workers.waited_s(self._future)) from None
        except OSError as error:
            raise CompileError(
                f"the compiler could not run while {self._doing}",
                why=str(error),
                fix="check that there is enough memory, and space for temporary files",
            ) from error
        except BaseException as error:
            self.drop()
            note_interruption(error)
            raise

    @property
    def is_answered(self) -> bool:
        """True if `answer` would not wait."""
        return self._future.done()

    def drop(self) -> None:
        """Ends the step, with its worker, if it still runs."""
        self._workers.kill(self._future)


def choose_time_limit(seconds: float | None) -> float | None:
    """The time limit of a compile in seconds: the requested one, `HLOSCOPE_TIMEOUT`, or 30 minutes if unattended.

    None means no limit, as for 0 and for more seconds than a wait can take.

    Raises:
        NotationError: `HLOSCOPE_TIMEOUT` or the requested limit is not a number of seconds.
    """
    limit = read_time_limit() if seconds is None else seconds
    if limit is None:
        is_watched = sys.stderr is not None and not getattr(sys.stderr, "closed", False) and sys.stderr.isatty()
        return None if is_watched else DEFAULT_LIMIT_S
    if not limit >= 0:
        raise NotationError(
            f"a time limit of {seconds} is not a number of seconds", fix="write 600 for ten minutes; 0 means no limit"
        )
    return limit if 0 < limit < threading.TIMEOUT_MAX else None


def make_compiler_died_error(died: WorkerDied, doing: str) -> CompilerDiedError:
    """Makes the error for the death of a worker: how it ended, its last words, and remedies."""
    words = _find_last_words(died.words)
    folder = find_full_temporary_folder()
    how = describe_exit(died.returncode)
    if folder is not None:
        how = f"{how}; the temporary folder {folder} is full"
        fix = f"free space in {folder}, or use another folder: TMPDIR=…"
    elif died.returncode == -signal.SIGKILL:
        how = "it was killed from outside, most likely because the machine ran out of memory"
        fix = "try fewer workers (HLOSCOPE_MAX_WORKERS=1), fewer layers, or a machine with more memory"
    elif _UNKNOWN_TO_XLA.search(died.words):
        fix = say("fix or unset XLA_FLAGS; pass options of the TPU compiler with ", Option("compiler-option"))
    elif _UNKNOWN_FLAG.search(died.words):
        fix = "fix or unset LIBTPU_INIT_ARGS, whose flags differ between versions of libtpu"
    else:
        fix = (
            "most likely this is a bug in the compiler: try another slice or slice shape, another version of "
            "jax[tpu], or a smaller program"
        )
    error = CompilerDiedError(f"the compiler died while {doing}", why="\n".join([how, *words]), fix=fix)
    error.by_machine = folder is not None or died.returncode == -signal.SIGKILL
    return error


def describe_exit(returncode: int) -> str:
    """Describes how a process ended, from its return code in `subprocess`."""
    if returncode >= 0:
        return f"its process ended with exit code {returncode}"
    known = (f"{known.name} ({signal.strsignal(known)})" for known in signal.Signals if known == -returncode)
    return f"its process was killed by {next(known, f'signal {-returncode}')}"


def _find_last_words(text: str) -> list[str]:
    """The lines that explain the failure, out of all the output of a dying compiler."""
    fatal = [line.rstrip() for line in text.splitlines() if _FATAL.search(line)]
    before = _CRASH_DUMP.split(text, maxsplit=1)[0]
    chosen = fatal or [line.rstrip() for line in before.splitlines() if line.strip() and not _NOISE.match(line)]
    return list(dict.fromkeys(_PREFIX.sub(r"\g<rest>", line)[:500] for line in chosen))[-_SAID_LINES:]


def ask_platform_version(chosen: Slice, store: Store | None) -> str:
    """The version that libtpu reports, asked once for each build.

    Raises:
        HloscopeError: It cannot be asked.
    """
    name, build = chosen.libtpu_topology_name or _ANY_SLICE, jax_support.find_libtpu_build()
    known = None if store is None or build is None else store.get("libtpu", f"{build} {name}")
    if known is not None:
        return known.decode()
    found = Question(step.read_platform_version, name, doing="asking for its version").answer()
    if store is not None and build is not None:
        store.put("libtpu", f"{build} {name}", found.encode())
    return found


def convert_text_to_proto(text: str, name: str) -> bytes:
    """Converts a module's text to a serialized HloModuleProto.

    Raises:
        ValueError: jaxlib cannot read the text.
        CompilerDiedError: Reading it ended the process.
    """
    return Question(step.serialize_text, text, doing=f"reading {name}").answer()


def convert_proto_to_text(module: bytes, name: str) -> str:
    """Converts a serialized HloModuleProto to text.

    Raises:
        ValueError: jaxlib cannot read the proto.
        CompilerDiedError: Reading it ended the process.
    """
    return Question(step.render_proto, module, doing=f"reading {name}").answer()
