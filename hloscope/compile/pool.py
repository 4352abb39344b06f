"""Worker processes behind the interface of `concurrent.futures.Executor`.

A `ProcessPoolExecutor` would import the user's `__main__` again, cannot end one task without breaking the pool, and
fails every task when one process dies. Here each task has a process to itself, and a process is used again while it is
well.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, TypeVar
from weakref import WeakKeyDictionary, finalize

from hloscope.compile.slots import Slot, acquire_slot

T = TypeVar("T")

_POLL_S = 0.005

_GROWN_BYTES = 3 << 29
"""A process with more memory than this after a step is not used again."""
_ENDING_S = 0.3
_LAST_WORDS_BYTES = 1 << 20
"""A dying compiler gives its reason first: the registers, stacks and maps of its many threads follow."""
_DECIDING_VARIABLE = re.compile(r"^(XLA|LIBTPU|TPU|JAX|MEGASCALE|LD|PYTHON|TMP|TEMP|HLOSCOPE)(_|$|DIR|HOME|PATH)")
"""Environment variables that a process reads when it starts: if one changes, another process is needed."""
_DEVICES = "JAX_NUM_CPU_DEVICES"
_CHANGES_NOTHING = re.compile(r"^HLOSCOPE_((REMOTE_)?CACHE|TIMEOUT$)")


class WorkerDied(Exception):  # noqa: N818  # an event, which its catcher makes an error of
    """A worker ended during a step.

    Attributes:
        returncode: As `subprocess.Popen.returncode`: minus the number of a signal that ended it.
        words: Its last output on standard error.
    """

    def __init__(self, returncode: int, words: str) -> None:
        super().__init__(returncode, words)
        self.returncode = returncode
        self.words = words


class _WorkerGoneError(Exception):  # an event likewise
    """A worker was already gone when it should have begun."""


class Template:
    """A process that has imported JAX, and forks workers, which are ready in less than half of the time of others.

    Args:
        environment: Its `os.environ`, and that of its workers.

    Attributes:
        environment: The part of it that processes read when they start.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = select_deciding_variables(environment)
        self._lock = threading.Lock()
        self._asked, self._is_ready = 0, False
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (self._control, its):
            each.settimeout(None)  # a program may have set another default
        with its:
            nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            self._process = _start_python(environment, [str(its.fileno())], pass_fds=[its.fileno()], **nothing)
        finalize(self, _end_template, os.getpid(), self._process, self._control)

    @property
    def is_alive(self) -> bool:
        """True if it runs."""
        return self._process.poll() is None

    def is_ready(self) -> bool:
        """Returns whether its imports are done."""
        with self._lock:
            if not self._is_ready:
                answers = select.poll()
                answers.register(self._control, select.POLLIN)
                self._is_ready = bool(answers.poll(0)) and bool(self._control.recv(64))
        return self._is_ready

    def fork(self, arguments: Sequence[str], streams: Sequence[int]) -> int:
        """Forks a worker with arguments and standard streams, and returns its process number.

        Raises:
            OSError: The template has ended, or the system has no room for another process.
        """
        process = self._ask(["fork", *arguments, str(Path.cwd())], streams)
        if process is None:
            raise BlockingIOError("no process can be forked")
        return int(process)

    def find_end(self, process: int) -> int | None:
        """The way that a worker ended, as `subprocess.Popen.returncode`; None while it runs."""
        try:
            found: int | None = self._ask(["end", process])
        except OSError:  # it ended, and the system is ending its workers
            until = time.monotonic() + _ENDING_S
            while Path(f"/proc/{process}").exists() and time.monotonic() < until:
                time.sleep(_POLL_S)
            return -signal.SIGKILL
        return found

    def _ask(self, request: Sequence[object], streams: Sequence[int] = ()) -> Any:
        with self._lock:
            self._asked += 1
            socket.send_fds(self._control, [json.dumps([self._asked, *request]).encode()], streams)
            while True:
                answer = self._control.recv(64)
                if not answer:
                    raise BrokenPipeError("the template of workers has ended")
                number, found = json.loads(answer)
                if number == self._asked:  # Ctrl-C may have kept an earlier answer from being read
                    return found


def _end_template(owner: int, process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """Ends a template, which ends its workers; a forked child of its owner leaves it alone."""
    control.close()
    if os.getpid() != owner:
        return
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:  # while it imports
        process.kill()
        process.wait()


def _start_python(environment: Mapping[str, str], arguments: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    """Starts `hloscope.compile.worker` as a process, wherever hloscope is installed."""
    package = Path(__file__).parent.parent
    search = [*environment.get("PYTHONPATH", "").split(os.pathsep), str(package.parent)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hloscope.compile.worker", str(os.getpid()), *arguments],
        env={**environment, "PYTHONPATH": os.pathsep.join(entry for entry in search if entry)},
        **how,
    )


class _ForkedWorker:
    """A process that a template forked, with what `Worker` uses of the interface of `subprocess.Popen`."""

    def __init__(self, template: Template, arguments: Sequence[str], stderr: IO[bytes] | None) -> None:
        self._template = template
        self._returncode: int | None = None
        (its_input, to_it), (from_it, its_output) = os.pipe(), os.pipe()
        try:
            words = 2 if stderr is None else stderr.fileno()
            self.pid = template.fork(arguments, [its_input, its_output, words])
        except BaseException:
            os.close(to_it)
            os.close(from_it)
            raise
        finally:
            os.close(its_input)
            os.close(its_output)
        self.stdin, self.stdout = os.fdopen(to_it, "wb"), os.fdopen(from_it, "rb")

    def poll(self) -> int | None:
        if self._returncode is None:
            self._returncode = self._template.find_end(self.pid)
        return self._returncode

    def wait(self) -> int:
        while (found := self.poll()) is None:
            time.sleep(_POLL_S)
        return found

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Worker:
    """One worker process.

    Args:
        environment: Its `os.environ`.
        prepare: The slice to prepare for before the first request; empty for none.
        keeps_words: Whether its standard error is kept for messages; otherwise it joins this process's.
        slot: Its place among the workers of this machine.
        template: What it is forked from; None to start it by itself.

    Attributes:
        interruptions_before: The interruptions that its pool had counted when it last began anything.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        prepare: str = "",
        keeps_words: bool = True,
        slot: Slot | None = None,
        template: Template | None = None,
    ) -> None:
        self.environment = select_deciding_variables(environment)
        self._slot = slot
        self._has_served = False
        self.interruptions_before = 0
        self._words: IO[bytes] | None = _open_words_file() if keeps_words else None
        arguments = [prepare, "kept" if keeps_words else "", "" if slot is None else str(slot.path)]
        self._process = self._fork(template, arguments) or _start_python(
            environment, arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words
        )
        if slot is not None:
            slot.give_to(self._process.pid)

    def _fork(self, template: Template | None, arguments: Sequence[str]) -> _ForkedWorker | None:
        """The forked process; None without a template, or if it cannot fork: it has ended, or there is no room."""
        if template is None:
            return None
        try:
            forked = _ForkedWorker(template, arguments, self._words)
        except OSError:
            return None
        self.environment = template.environment
        return forked

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """True if it runs."""
        return self._process.poll() is None

    @property
    def has_grown(self) -> bool:
        """True if it uses so much memory that another should take its place."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return False
        return pages * os.sysconf("SC_PAGE_SIZE") > _GROWN_BYTES

    def call(self, request: bytes, report: Callable[[Any], None] = lambda _: None) -> Any:
        """Runs one request, a pickled function with its arguments.

        Args:
            request: The request.
            report: Called with an early result, if the function sends one.

        Raises:
            WorkerDied: The process ended during the request.
            Exception: Whatever the function raised.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with nullcontext() if self._slot is None else self._slot.in_use(lambda: self.is_alive):
            if not self.is_alive:
                raise _WorkerGoneError if self._has_served else WorkerDied(self.kill(), self._last_words())
            if self._words is not None and self._has_served:  # else what it says is why it cannot start
                os.ftruncate(self._words.fileno(), 0)
            self._has_served = True
            try:
                pickle.dump(request, stdin)
                stdin.flush()
                succeeded, found = pickle.loads(pickle.load(stdout))
                while succeeded is None:
                    report(found)
                    succeeded, found = pickle.loads(pickle.load(stdout))
            except (EOFError, OSError, pickle.UnpicklingError):
                raise WorkerDied(self.kill(), self._last_words()) from None
        if succeeded:
            return found
        raise found

    def _last_words(self) -> str:
        if self._words is None:
            return ""
        size = os.fstat(self._words.fileno()).st_size
        start = max(0, size - _LAST_WORDS_BYTES)
        return os.pread(self._words.fileno(), _LAST_WORDS_BYTES, start).decode("utf-8", errors="replace")

    def rest(self) -> None:
        """Lets other processes end it while it is idle."""
        self._has_served = True
        if self._slot is not None:
            self._slot.rest()

    def kill(self) -> int:
        """Ends it at once, and returns how it ended."""
        with suppress(OSError):
            self._process.kill()
        return self._process.wait()

    def close(self) -> int:
        """Ends it, frees what it holds here, and returns how it ended."""
        returncode = self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._words):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        if self._slot is not None:
            self._slot.close()
        return returncode


def _open_words_file() -> IO[bytes]:
    """A file for a worker's standard error: in memory if the system has such files, because disks may be full."""
    try:
        descriptor = os.memfd_create("hloscope-worker", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return tempfile.TemporaryFile(buffering=0)
    import fcntl

    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)  # it is emptied before each step
    return os.fdopen(descriptor, "r+b", buffering=0)


def select_deciding_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that processes read when they start."""
    decides = (name for name in environment if _DECIDING_VARIABLE.match(name) and not _CHANGES_NOTHING.match(name))
    return {name: environment[name] for name in decides}


def can_serve(environment: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Returns whether a process started in one environment can do the work of another; more devices do no harm.

    Args:
        environment: The deciding variables of the environment it was started in.
        wanted: Those of the requested environment.
    """
    has, needs = environment.get(_DEVICES, "1"), wanted.get(_DEVICES, "1")
    enough = has == needs or (has.isdecimal() and needs.isdecimal() and int(has) >= int(needs))
    return enough and {**environment, _DEVICES: needs} == {**wanted, _DEVICES: needs}


class _Task:
    """One submitted call, which may be ended by another thread."""

    def __init__(self, limit_s: float | None = None, report: Callable[[Any], None] | None = None) -> None:
        self.report = report
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self.is_wanted = True
        self.limit_s = limit_s
        self.is_late = False
        self.begun: float | None = None
        self.given_at: float | None = None

    @property
    def waited_s(self) -> float:
        """The time that it has waited for a process, from the beginning of its turn."""
        now = time.monotonic()
        return 0.0 if self.begun is None else (self.given_at or now) - self.begun

    def given(self, worker: Worker | None) -> None:
        """Notes the process that it runs in, None after it, and ends one that is no longer wanted."""
        with self._lock:
            self._worker = worker
            self.given_at = self.given_at if worker is None else time.monotonic()
            if worker is not None and not self.is_wanted:
                worker.kill()

    def end(self) -> None:
        with self._lock:
            self.is_wanted = False
            if self._worker is not None:
                self._worker.kill()

    def expire(self) -> None:
        """Ends it because it took too long."""
        self.is_late = True
        self.end()


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Raises Ctrl-C at the end of the block instead of within it, where Python would raise it: in the main thread."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if held:
            raise KeyboardInterrupt


class WorkerPool(Executor):
    """Runs picklable calls in worker processes; each task has a process to itself.

    Args:
        most: The maximum number of processes.
        environment: Returns the `os.environ` of new processes; called at each submission.
        keeps_words: As for `Worker`.
        counted: Whether its processes take slots of the machine.
    """

    def __init__(
        self,
        most: int,
        environment: Callable[[], Mapping[str, str]] = lambda: dict(os.environ),
        *,
        keeps_words: bool = True,
        counted: bool = True,
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor  # which cannot be imported once the main thread has ended

        self._environment = environment
        self._keeps_words = keeps_words
        self._counted = counted
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="hloscope-worker")
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._is_warming = False
        self._interrupted = 0
        self._tasks: WeakKeyDictionary[Future[Any], _Task] = WeakKeyDictionary()
        self._template: Template | None = None
        self._last_environment: Mapping[str, str] | None = None

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Schedules a call, as in any executor; the process sees the present environment."""
        return self.submit_in(self._environment(), None, fn, *args, **kwargs)

    def submit_in(
        self, environment: Mapping[str, str], limit_s: float | None, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> Future[T]:
        """`submit`, in a process with an environment of its own, and with a time limit from the start of its turn.

        Past the limit the process is ended, and the future raises a TimeoutError with the limit.
        """
        return self.submit_reporting(environment, limit_s, None, fn, *args, **kwargs)

    def submit_reporting(
        self,
        environment: Mapping[str, str],
        limit_s: float | None,
        report: Callable[[Any], None] | None,
        fn: Callable[..., T],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Future[T]:
        """`submit_in`, for a function that may `report` an early result, which is passed on; None to ask for none."""
        task = _Task(limit_s, report)
        request = pickle.dumps((fn, args, kwargs, report is not None), pickle.HIGHEST_PROTOCOL)
        future: Future[T] = self._submit(self._run, task, environment, request)
        self._tasks[future] = task
        return future

    def _submit(self, *call: Any) -> Future[Any]:
        """Starts a thread for a call, whole: one whose start Ctrl-C cuts short would never be told that Python ends."""
        with hold_interrupts():
            return self._threads.submit(*call)

    def warm(self, environment: Mapping[str, str], prepare: str) -> None:
        """Starts a process ahead of its first task, unless one is there.

        Those that Ctrl-C ended before are counted first: found by the new one, they would end the call that it is for.
        """
        self.interruptions()
        with self._lock:
            if self._is_warming or any(worker.is_alive for worker in self._idle):
                return
            self._is_warming = True
        self._submit(self._keep_one, environment, prepare)

    def waited_s(self, future: Future[Any]) -> float:
        """The time that a task has waited, since its turn came in this process, for a slot among other processes."""
        task = self._tasks.get(future)
        return 0.0 if task is None else task.waited_s

    def kill(self, future: Future[Any]) -> None:
        """Ends a task with the process that it runs in; no other task is touched."""
        task = self._tasks.get(future)
        if not future.cancel() and task is not None:
            task.end()

    def kill_all(self) -> None:
        """Ends every task."""
        for future in list(self._tasks):
            self.kill(future)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes, once their tasks are done."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()
        self._template = None

    def interruptions(self) -> int:
        """The number of times that Ctrl-C has ended processes so far, including idle ones."""
        with self._lock:
            ended = [worker for worker in self._idle if not worker.is_alive]
            self._idle = [worker for worker in self._idle if worker not in ended]
        for worker in ended:
            self._close(worker)
        return self._interrupted

    def note_interruption(self) -> None:
        """Counts a Ctrl-C that the main thread has seen, and ends the idle processes, which it reached as well.

        A process takes a while to end. One that is still ending would be given the next task, and end it; one that
        is found to have ended later is of this interruption, and is not counted again.
        """
        with self._lock:
            self._interrupted += 1
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def _keep_one(self, environment: Mapping[str, str], prepare: str) -> None:
        """Starts a process without a task, which therefore does not wait either: only if there is room at once."""
        try:
            self._release(self._worker(environment, _Task(), prepare, waits=False))
        except OSError:
            pass  # the first task says what is wrong
        finally:
            self._is_warming = False

    def _run(self, task: _Task, environment: Mapping[str, str], request: bytes) -> Any:
        timer = threading.Timer(task.limit_s or 0.0, task.expire)
        timer.daemon = True
        task.begun = time.monotonic()
        if task.limit_s is not None:
            timer.start()
        try:
            return self._answer(task, environment, request)
        except WorkerDied as died:
            if task.is_late:
                raise TimeoutError(task.limit_s) from None
            if died.returncode == -signal.SIGINT:  # which Python raises in the main thread alone
                raise KeyboardInterrupt from None
            raise
        finally:
            timer.cancel()

    def _answer(self, task: _Task, environment: Mapping[str, str], request: bytes) -> Any:
        while True:
            worker = self._worker(environment, task)
            task.given(worker)
            try:
                return worker.call(request, task.report or (lambda _: None))
            except _WorkerGoneError:  # ended while it was idle, by another process that needed its slot
                task.given_at = None  # it waits again
                if not task.is_wanted:
                    raise WorkerDied(-signal.SIGKILL, "") from None
            finally:
                task.given(None)
                self._release(worker)

    def _worker(self, environment: Mapping[str, str], task: _Task, prepare: str = "", *, waits: bool = True) -> Worker:
        """An idle process whose environment serves this one, or a new one in place of the others.

        Raises:
            OSError: No process can be started, or none at once if the task does not wait.
            WorkerDied: The task is no longer wanted.
        """
        wanted = select_deciding_variables(environment)
        with self._lock:
            fitting = [worker for worker in self._idle if worker.is_alive and can_serve(worker.environment, wanted)]
            others = [worker for worker in self._idle if worker not in fitting]
            self._idle = fitting[:-1]
            if fitting:
                fitting[-1].interruptions_before = self._interrupted
        for worker in others:
            self._close(worker)
        if fitting:
            return fitting[-1]
        slot = acquire_slot(lambda: task.is_wanted, waits=waits) if self._counted else None
        try:
            if not task.is_wanted:
                raise WorkerDied(-signal.SIGKILL, "")
            template, before = self._find_template(environment, wanted), self._interrupted
            made = Worker(environment, prepare=prepare, keeps_words=self._keeps_words, slot=slot, template=template)
            made.interruptions_before = before
            return made
        except BaseException:  # a slot without a worker would stay taken as long as this process lives
            if slot is not None:
                slot.close()
            raise

    def _find_template(self, environment: Mapping[str, str], wanted: Mapping[str, str]) -> Template | None:
        """The template of the workers for an environment, if it is ready; it is started with the second of them.

        Workers that import the user's modules have none. One for another environment ends with its last worker.
        """
        if not self._counted or not sys.platform.startswith("linux"):
            return None
        with self._lock:
            before = self._template
            if before is not None and before.is_alive and can_serve(before.environment, wanted):
                return before if before.is_ready() else None
            is_second, self._last_environment = self._last_environment == wanted, wanted
            self._template = Template(environment) if is_second else None
        return None

    def _release(self, worker: Worker) -> None:
        with self._lock:
            is_well = worker.is_alive and not worker.has_grown
            is_kept = is_well and worker.interruptions_before == self._interrupted  # else Ctrl-C has reached it
            if is_kept:
                worker.rest()
                self._idle.append(worker)
        if not is_kept:
            self._close(worker)

    def _close(self, worker: Worker) -> None:
        if worker.close() == -signal.SIGINT:
            with self._lock:
                self._interrupted = max(self._interrupted, worker.interruptions_before + 1)
