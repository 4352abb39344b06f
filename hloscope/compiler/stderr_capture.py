"""Keeps a compiler's chatter on file descriptor 2 from the user, and its real diagnostics for the report."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_DIAGNOSTIC = re.compile(r"^[WEF]\d{4} .*?\] (\[SPMD\] .*)$")
_DIAGNOSTIC_CHARS = 2000


@dataclass(slots=True)
class CapturedStderr:
    """What was written to file descriptor 2; complete once the `with` block has ended."""

    text: str = ""

    def diagnostics(self) -> tuple[str, ...]:
        """The partitioner's own warnings, each once, without libtpu's start-up noise.

        Source: XLA's spmd_partitioner.cc, whose messages to the user begin with `[SPMD]`.
        """
        found = (_DIAGNOSTIC.match(line) for line in self.text.splitlines())
        return tuple(dict.fromkeys(match.group(1)[:_DIAGNOSTIC_CHARS] for match in found if match))


_in_place: list[bool] = []
"""Not empty where descriptor 2 is a file that can be read back."""


def read_in_place() -> None:
    """Says that descriptor 2 of this process is a file that another process reads too."""
    _in_place.append(True)


@contextmanager
def captured_stderr() -> Iterator[CapturedStderr]:
    """Reads what is written to file descriptor 2 for a while, where C++ libraries write directly.

    A worker's descriptor 2 is a file that it shares with the process that started it, and is read in place: what a
    compiler says before it dies is still there. Elsewhere it is sent to a temporary file meanwhile.
    """
    captured = CapturedStderr()
    _flush()
    if _in_place:
        start = os.lseek(2, 0, os.SEEK_END)
        try:
            yield captured
        finally:
            _flush()
            captured.text = _written(start)
        return
    try:
        saved = os.dup(2)
    except OSError:  # no stderr at all: nothing to keep quiet
        yield captured
        return
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield captured
        finally:
            _flush()
            os.dup2(saved, 2)
            os.close(saved)
            sink.seek(0)
            captured.text = sink.read().decode("utf-8", errors="replace")


def _flush() -> None:
    """Writes out what Python holds back of standard error, where there is one that can still be written to."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()


def _written(start: int) -> str:
    size = os.fstat(2).st_size
    return os.pread(2, max(0, size - start), start).decode("utf-8", errors="replace")
