"""The worker process: runs the functions it is sent, one after another, and sends back their results.

Started as `python -P -m hloscope.compile.worker PARENT SLICE KEPT SLOT`. KEPT is not empty if standard error is a file
that the parent reads; SLOT is the file of its slot, by which other processes recognize it. Requests arrive on standard
input and answers go to standard output, each pickled, and as bytes pickled again: a message that cannot be unpickled is
still read to its end. A function that takes a `report` may send one answer before its own. Nothing that runs here sees
either stream. It ends when its input ends, and with the process that started it, regardless of how that ends.

Started as `python -P -m hloscope.compile.worker PARENT SOCKET`, it is a template: it imports JAX once, and each request
on the socket, of that descriptor, forks a worker of it. libtpu, which has threads, is loaded by the workers alone.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import IO, Any
from zlib import crc32

_PRELOADED = ("hloscope.compile.step", "hloscope.compile.propagation", "jax.experimental.topologies")
"""The imports of the steps of a compile; libtpu is loaded by workers alone."""
_LOOKS_S = 2.0
"""The time after which a template looks for its owner, whose end a process that it forked may keep from the socket."""
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def main() -> None:
    """Runs as a worker, or as a template of workers."""
    parent, *arguments = sys.argv[1:]
    if len(arguments) == 1:
        _Template(socket.socket(fileno=int(arguments[0]))).run(int(parent))
    else:
        _serve(int(parent), *arguments)


def _serve(parent: int, prepare: str, kept: str, slot: str) -> None:
    """Runs until there are no more requests."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)  # standard output, for whatever prints here, is standard error
    os.register_at_fork(after_in_child=answers.close)  # else the end of this process is not seen before that one's
    _name_process(slot)
    end_with_parent(parent)
    if kept:
        from hloscope.compile import step

        step.is_stderr_readable = True
    with suppress(Exception):  # whatever is missing here is reported by the step that needs it
        if prepare:
            from hloscope.compile.step import warm_up_compiler

            warm_up_compiler(prepare)
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            _send(_answer(pickle.load(requests), lambda found: _send(_pickle_early(found), answers)), answers)
    os._exit(0)  # the native libraries have nothing to tidy up that is worth waiting for


class _Template:
    """A process that forks workers, and says how they ended, until its socket is closed.

    A request is `[NUMBER, "fork", SLICE, KEPT, SLOT, FOLDER]`, with the worker's three standard streams, or `[NUMBER,
    "end", PROCESS]`; an answer is `[NUMBER, …]`, with the process of a new worker or the way that one ended. Before all
    others `[0, null]` says that the imports are done.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ends: dict[int, int | None] = {}
        self._is_interruptible = signal.signal(signal.SIGINT, signal.SIG_IGN) is not signal.SIG_IGN
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a program that ignores it hands that on, and has no ends

    def run(self, parent: int) -> None:
        """Serves its owner, a process of this number, and ends with it.

        The system could end it sooner, but would do so at the end of the thread that started it.
        """
        with suppress(Exception):  # whatever is missing here is reported by the step that needs it
            for module in _PRELOADED:
                import_module(module)
        with suppress(OSError):  # the owner is gone, or has closed the socket beside an answer
            self._serve_owner(parent)
        for process in [each for each, end in self._ends.items() if end is None]:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        os._exit(0)

    def _serve_owner(self, parent: int) -> None:
        self._control.send(json.dumps([0, None]).encode())
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        while os.getppid() == parent:
            if not waiting.poll(1000 * _LOOKS_S):
                continue
            request, streams, *_ = socket.recv_fds(self._control, 1 << 16, 3)
            if not request:
                return
            number, what, *arguments = json.loads(request)
            answer = self._fork(arguments, streams) if what == "fork" else self._find_end(*arguments)
            self._control.send(json.dumps([number, answer]).encode())

    def _fork(self, arguments: Sequence[str], streams: Sequence[int]) -> int | None:
        """The number of the process of a new worker; None if the system has no room for it."""
        *of_worker, folder = arguments
        own = os.getpid()
        _name_process(of_worker[-1])  # which it inherits, so that it has its name from its first moment
        try:
            with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads: numpy's, which expect them
                warnings.simplefilter("ignore")
                process = os.fork()
        except OSError:
            process = None
        if process == 0:
            try:
                self._become_worker(own, folder, streams, of_worker)
            finally:  # whatever goes wrong in it, it is no template, and ends no other worker
                os._exit(1)
        for stream in streams:
            os.close(stream)
        _name_process("template")
        if process is not None:
            self._ends[process] = None
        return process

    def _become_worker(self, parent: int, folder: str, streams: Sequence[int], arguments: Sequence[str]) -> None:
        self._control.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        if self._is_interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(OSError):
            os.chdir(folder)
        _serve(parent, *arguments)

    def _find_end(self, process: int) -> int | None:
        """The way that a worker ended, as `subprocess.Popen.returncode`; several threads of the owner may ask."""
        if self._ends[process] is None:
            is_ended, status = os.waitpid(process, os.WNOHANG)
            self._ends[process] = os.waitstatus_to_exitcode(status) if is_ended else None
        return self._ends[process]


def make_process_name(slot: str) -> str:
    """The name of the process in a slot, of the 15 characters that Linux keeps: its folder's digest, and its number."""
    folder, name = os.path.split(slot)
    return f"h{crc32(os.fsencode(folder)):08x}{name.removeprefix('slot')}"[:15]


def _name_process(slot: str) -> None:
    if sys.platform == "linux" and slot:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_NAME, make_process_name(slot).encode())


def end_with_parent(parent: int) -> None:
    """Makes the system end this process with its parent, and at Ctrl-C, even while native code runs.

    Ctrl-C on a terminal reaches every process of the foreground. In the parent Python raises it in the main thread
    alone, which may be waiting for the very thread that waits for this process.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before it could be asked
            os._exit(1)


def _send(message: bytes, answers: IO[bytes]) -> None:
    pickle.dump(message, answers)
    answers.flush()


def _answer(request: bytes, report: Callable[[Any], None]) -> bytes:
    """The pickled outcome of a request: whether it succeeded, and its result or exception."""
    try:
        function, args, kwargs, is_reporting = pickle.loads(request)
        more = {"report": report} if is_reporting else {}
        return pickle.dumps((True, function(*args, **kwargs, **more)), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        return _pickle_error(error)


def _pickle_early(found: Any) -> bytes:
    """A pickled early result, which is neither success nor failure."""
    return pickle.dumps((None, found), pickle.HIGHEST_PROTOCOL)


def _pickle_error(error: BaseException) -> bytes:
    error.__traceback__ = error.__cause__ = error.__context__ = None
    with suppress(Exception):
        body = pickle.dumps((False, error), pickle.HIGHEST_PROTOCOL)
        restored: Any = pickle.loads(body)[1]
        if str(restored) == str(error):
            return body
    return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")), pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    main()
