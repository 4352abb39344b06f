"""The compiler's diagnostics: its log on file descriptor 2, its warnings, and its errors as messages."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import takewhile

from hloscope.errors import CompileError, HbmError, HloscopeError
from hloscope.launchers import is_launcher
from hloscope.messages import Option, say
from hloscope.tpu.slices import Slice

_DIAGNOSTIC = re.compile(r"^[WEF]\d{4} .*?\] (\[SPMD\] .*)$")
_DIAGNOSTIC_CHARS = 2000


@dataclass(slots=True)
class CapturedStderr:
    """The text written to file descriptor 2; complete after the end of the `with` block."""

    text: str = ""

    def diagnostics(self, shown: Callable[[str], str] = str) -> tuple[str, ...]:
        """The partitioner's own warnings, each once, without libtpu's start-up noise.

        Args:
            shown: Converts a warning to the words for users.

        Source: XLA's spmd_partitioner.cc, whose messages to the user begin with `[SPMD]`.
        """
        found = (_DIAGNOSTIC.match(line) for line in self.text.splitlines())
        return tuple(dict.fromkeys(shown(match.group(1))[:_DIAGNOSTIC_CHARS] for match in found if match))


_readable_in_place: list[bool] = []
"""Not empty if descriptor 2 is a file that can be read back."""


def mark_stderr_readable() -> None:
    """Marks descriptor 2 of this process as a file that another process reads too."""
    _readable_in_place.append(True)


@contextmanager
def capture_stderr() -> Iterator[CapturedStderr]:
    """Captures the text that is written to file descriptor 2, where C++ libraries write directly.

    A worker's descriptor 2 is a file that it shares with the process that started it, and is read in place: the words
    of a dying compiler are preserved. In other processes it is redirected to a temporary file.
    """
    captured = CapturedStderr()
    _flush()
    with nullcontext(2) if _readable_in_place else _redirect_stderr() as descriptor:
        start = 0 if descriptor is None else os.lseek(descriptor, 0, os.SEEK_END)
        try:
            yield captured
        finally:
            _flush()
            if descriptor is not None:
                size = os.fstat(descriptor).st_size
                captured.text = os.pread(descriptor, max(0, size - start), start).decode("utf-8", errors="replace")


@contextmanager
def _redirect_stderr() -> Iterator[int | None]:
    """Redirects descriptor 2 to a temporary file, and yields it; None if there is no stderr to silence."""
    try:
        saved = os.dup(2)
    except OSError:
        yield None
        return
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield sink.fileno()
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _flush() -> None:
    """Flushes Python's standard error, if there is one that can still be written to."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()


_LOCATIONS = re.compile(r"[ \t]*Suspected Python Code Location:\s*\n(?P<frames>(?:[ \t]+\S.*(?:\n|$))*)")
_FRAME = re.compile(r"^\s*(?P<file>\S.*?):(?P<line>\d+)(?::\d+)? \[(?P<function>.*)\]$", re.MULTILINE)
"""Frames, the innermost first."""


@contextmanager
def translate_compiler_errors(chosen: Slice) -> Iterator[None]:
    """Turns the compiler's exceptions into one message in its own words.

    Raises:
        HbmError: The program does not fit in HBM.
        CompileError: In place of any other exception.
    """
    try:
        yield
    except HloscopeError:
        raise
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        if "No such compile option" in text:
            option = re.search(r"'(\w+)'", text)
            raise CompileError(
                f"the compiler has no option {option.group(1) if option else text!r}",
                fix=say(
                    "check the spelling of ", Option("compiler-option"), "; options differ between libtpu versions"
                ),
            ) from error
        if "Ran out of memory" in text or "RESOURCE_EXHAUSTED" in text:
            raise HbmError(
                f"the program does not fit in the HBM of {chosen.name}",
                why=_describe_hbm(text, chosen),
                fix=say(
                    "shard more, donate inputs, rematerialize, or name a larger chip or slice (", Option("slice"), ")"
                ),
            ) from error
        words, where = _split_location(text)
        raise CompileError(f"the compiler rejects the program for {chosen.name}", where=where, why=words) from error


def _split_location(text: str) -> tuple[str, str | None]:
    """The compiler's words without the stack printed below them, and the innermost line of the user's in that stack."""
    found = _LOCATIONS.search(text)
    if found is None:
        return text, None
    words = "\n".join(filter(str.strip, (text[: found.start()] + text[found.end() :]).splitlines()))
    frames = takewhile(lambda frame: not is_launcher(frame["file"]), _FRAME.finditer(found["frames"]))
    first = next((frame for frame in frames if "/site-packages/" not in frame["file"]), None)
    return words, None if first is None else f"{_format_file(first['file'])}:{first['line']} in {first['function']}"


def _format_file(file: str) -> str:
    below = os.path.relpath(file)
    return file if below.startswith("..") else below


def _describe_hbm(text: str, chosen: Slice) -> str:
    words = re.sub(
        r"^RESOURCE_EXHAUSTED: |E\d+: \w+: |\s*HLO module: \S+|\s*See https://\S+ for more details\.", "", text
    )
    if chosen.chip is None:
        return words
    return f"{words.strip()}\nthe chip has {chosen.chip.hbm_bytes_per_device / 2**30:g} GiB per device"
