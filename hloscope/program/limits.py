"""Ends what runs in this process after a time limit, as far as Python can be interrupted."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hloscope.errors import TimeLimitError


@contextmanager
def ended_after(limit_s: float | None, doing: str) -> Iterator[None]:
    """Ends what runs meanwhile after so long: in the main thread, where nobody else uses the system's alarm.

    Args:
        limit_s: The limit in seconds; None for none.
        doing: What is being done, for the message.

    Raises:
        TimeLimitError: It took too long; `where` is the line of the user's that ran, if any did.
    """
    alarm = getattr(signal, "SIGALRM", None)
    in_main = threading.current_thread() is threading.main_thread()
    if limit_s is None or alarm is None or not in_main or signal.getsignal(alarm) is not signal.SIG_DFL:
        yield
        return
    outside = {frame for frame, _ in traceback.walk_stack(None)}

    def ring(_number: int, frame: FrameType | None) -> None:
        raise _error(doing, limit_s, frame, outside)

    signal.signal(alarm, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(alarm, signal.SIG_DFL)


def _error(doing: str, limit_s: float, frame: FrameType | None, outside: set[FrameType]) -> TimeLimitError:
    from hloscope.program.loading import user_place

    error = TimeLimitError(doing, limit_s)
    inside = [place for place in traceback.walk_stack(frame) if place[0] not in outside]
    error.where, error.excerpt = user_place(traceback.StackSummary.extract(iter(reversed(inside))))
    return error
