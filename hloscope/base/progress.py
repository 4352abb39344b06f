"""Progress of long operations with the elapsed time: a spinner on a terminal, a line in a notebook.

Nothing is shown anywhere else, and nothing remains of it afterwards.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

_LONG_S = 1.0
"""In Python, a shorter operation shows no progress."""
_TICK_S = 1.0


class StageDisplay:
    """Shows the present stage; does nothing if no one would see it."""

    def __init__(self, shown: Any = None, task: Any = None) -> None:
        """Takes rich's display and its one task."""
        self._shown, self._task = shown, task

    def __call__(self, stage: str) -> None:
        """Shows another stage."""
        if self._shown is not None:
            self._shown.update(self._task, description=stage)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hides the display within the block, while something else is written to the terminal."""
        if self._shown is not None:
            self._shown.stop()
        try:
            yield
        finally:
            if self._shown is not None:
                self._shown.start()


@contextmanager
def show_progress(*, after_s: float = 0.0) -> Iterator[StageDisplay]:
    """A spinner with the stage and the elapsed time on a terminal's stderr; nothing anywhere else.

    It writes to a duplicate of file descriptor 2, because the compiler's own is silenced in the meantime.

    Args:
        after_s: Seconds after which it appears.
    """
    if not _is_terminal():
        yield StageDisplay()
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with os.fdopen(os.dup(2), "w") as stream:
        console = Console(file=stream, force_terminal=True, force_jupyter=False)
        columns: tuple[Any, ...] = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        shown = Progress(*columns, console=console, transient=True)
        task = shown.add_task("starting", total=None, start_time=time.monotonic())
        timer = threading.Timer(after_s, shown.start)
        timer.daemon = True
        timer.start() if after_s else shown.start()
        try:
            yield StageDisplay(shown, task)
        finally:
            timer.cancel()
            shown.stop()


@contextmanager
def show_waiting() -> Iterator[StageDisplay]:
    """The same for a call in Python, once it takes long; in a notebook, a line below the cell that disappears again."""
    if not _is_notebook():
        with show_progress(after_s=_LONG_S) as stages:
            yield stages
        return
    line = _NotebookLine()
    context, ended = contextvars.copy_context(), threading.Event()
    thread = threading.Thread(target=context.run, args=(line.tick, ended), name="hloscope-progress", daemon=True)
    thread.start()
    try:
        yield StageDisplay(line, None)
    finally:
        ended.set()
        thread.join()
        line.clear()


class _NotebookLine:
    """A line of text below a notebook's cell."""

    def __init__(self) -> None:
        self._begun, self._stage = time.monotonic(), "starting"
        self._handle: Any = None

    def update(self, _task: None, *, description: str) -> None:
        """Makes the next tick show another stage."""
        self._stage = description

    def tick(self, ended: threading.Event) -> None:
        """Shows the stage and the seconds, once it takes long, until it has ended."""
        if ended.wait(_LONG_S):
            return
        display: Any = import_module("IPython.display").display
        while not ended.is_set():
            text = {"text/plain": f"hloscope: {self._stage}, {time.monotonic() - self._begun:.0f} s"}
            with suppress(Exception):  # the failure of a display is no reason to fail
                if self._handle is None:
                    self._handle = display(text, raw=True, display_id=True)
                else:
                    self._handle.update(text, raw=True)
            ended.wait(_TICK_S)

    def clear(self) -> None:
        """Removes the line."""
        if self._handle is not None:
            with suppress(Exception):
                self._handle.update({"text/plain": ""}, raw=True)

    def stop(self) -> None:
        """Does nothing: other output follows below it."""

    start = stop


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # None, or closed
        return False


def _is_notebook() -> bool:
    """Returns whether this is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
