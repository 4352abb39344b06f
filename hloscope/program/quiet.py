"""Keeps a compiler's chatter on file descriptor 2 from the user, and its real diagnostics for the report."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def captured_stderr() -> Iterator[CapturedStderr]:
    """Sends file descriptor 2 to a temporary file for a while.

    C++ libraries write there directly, so replacing `sys.stderr` would not do.
    """
    captured = CapturedStderr()
    sys.stderr.flush()
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
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            sink.seek(0)
            captured.text = sink.read().decode("utf-8", errors="replace")
