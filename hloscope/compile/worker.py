"""The worker process: runs the functions it is sent, one after another, and sends back their results.

Started as `python -P -m hloscope.compile.worker PARENT SLICE KEPT SLOT`. KEPT is not empty if standard error is a file
that the parent reads; SLOT is the file of its slot, by which other processes recognize it. Requests arrive on standard
input and answers go to standard output, each pickled, and as bytes pickled again: a message that cannot be unpickled is
still read to its end. A function that takes a `report` may send one answer before its own. Nothing that runs here sees
either stream. It ends when its input ends, and with the process that started it, regardless of how that ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Runs until there are no more requests."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)  # standard output, for whatever prints here, is standard error
    os.register_at_fork(after_in_child=answers.close)  # else the end of this process is not seen before that one's
    end_with_parent(int(sys.argv[1]))
    if sys.argv[3]:
        from hloscope.compile import step

        step.is_stderr_readable = True
    with suppress(Exception):  # whatever is missing here is reported by the step that needs it
        if sys.argv[2]:
            from hloscope.compile.step import warm_up_compiler

            warm_up_compiler(sys.argv[2])
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            _send(_answer(pickle.load(requests), lambda found: _send(_pickle_early(found), answers)), answers)
    os._exit(0)  # the native libraries have nothing to tidy up that is worth waiting for


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
