"""Places in the user's code, in the shortest form that still identifies them, and the source lines at them.

A program captured in this process names the files it was traced from. HLO text may come from anywhere and name any
files: only those in a folder that the user allows are read.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path, PurePath, PureWindowsPath

from hloscope.analysis.model import SourceFrame
from hloscope.cells import find_cell
from hloscope.messages import Option, say

_COMPREHENSION = re.compile(r"(\.<locals>\.<(list|set|dict)comp>)+$")
"""The suffix of the comprehension functions of Python 3.11, which later versions do not have."""

CodeOf = tuple[str, str | None]
"""A function, identified by its file and name."""

_LIBRARIES = ("site-packages", "dist-packages", "<frozen", "<string>")


def find_users_frame(frames: Sequence[SourceFrame]) -> SourceFrame | None:
    """The innermost frame outside libraries; the innermost of all if every frame is in a library."""
    own = (frame for frame in frames if not any(mark in frame.file for mark in _LIBRARIES))
    return next(own, frames[0] if frames else None)


_FEWEST_CALLERS = 3
"""Minimum number of calling lines for a function to be considered a helper."""


def find_shared_helpers(stacks: Iterable[Sequence[SourceFrame]], named: Collection[str] = ()) -> frozenset[CodeOf]:
    """The user's functions that are called from too many lines to be a place in the model, such as a linear layer.

    A helper is called from at least three lines, and from more lines than it has itself on these stacks; a function
    that computes a whole block has more.

    Args:
        stacks: Stacks of one program, innermost frame first.
        named: Files and functions that the user declares as helpers: `layers.py`, `linear`, `Linear.__call__`.
    """
    callers: dict[CodeOf, set[tuple[str, int]]] = {}
    own_lines: dict[CodeOf, set[int]] = {}
    found: set[CodeOf] = set()
    for stack in dict.fromkeys(map(tuple, stacks)):
        for frame, caller in pairwise(stack):
            code = (frame.file, frame.function)
            callers.setdefault(code, set()).add((caller.file, caller.line))
            own_lines.setdefault(code, set()).add(frame.line)
        found.update((frame.file, frame.function) for frame in stack if _is_named(frame, named))
    many = (code for code, lines in callers.items() if len(lines) >= max(_FEWEST_CALLERS, len(own_lines[code]) + 1))
    return frozenset(found.union(many))


def _is_named(frame: SourceFrame, named: Collection[str]) -> bool:
    function = frame.function or ""
    return any(name == function or function.endswith(f".{name}") or frame_path(frame).match(name) for name in named)


def find_own_frame(frames: Sequence[SourceFrame], helpers: Collection[CodeOf]) -> SourceFrame | None:
    """The innermost frame outside libraries and helpers; the same as `find_users_frame` if there is none."""
    own = (
        frame
        for frame in frames
        if (frame.file, frame.function) not in helpers and not any(mark in frame.file for mark in _LIBRARIES)
    )
    return next(own, find_users_frame(frames))


def frame_path(frame: SourceFrame) -> PurePath:
    """The file of a frame, with recognizable folders even if the path was written on Windows."""
    return _parse_path(frame.file)


@lru_cache(maxsize=256)
def _parse_path(file: str) -> PurePath:
    is_windows = "\\" in file and "/" not in file
    return PureWindowsPath(file) if is_windows else PurePath(file)


def render_users_line(frames: Sequence[SourceFrame]) -> str | None:
    """Renders `/home/me/models/moe.py:31`: the user's innermost line, ready to be opened; None without frames."""
    frame = find_users_frame(frames)
    return None if frame is None else f"{frame.file}{_render_line_number(frame)}"


def _render_line_number(frame: SourceFrame) -> str:
    """Renders `:31`; empty if only the file and the function are known."""
    return f":{frame.line}" if frame.line else ""


def split_place(place: str) -> tuple[str, int | None]:
    """Splits `moe.py:31` into a file and a line; the line is None if there is none."""
    file, colon, line = place.rpartition(":")
    return (file, int(line)) if colon and line.isdigit() else (place, None)


def short_source(frames: Sequence[SourceFrame]) -> str | None:
    """Renders `moe.py:31 in expert_forward`, `In[44]:3 in step`: no folders or outer functions; None without frames."""
    frame = find_users_frame(frames)
    if frame is None:
        return None
    where = f"{find_cell(frame.file) or frame_path(frame).name}{_render_line_number(frame)}"
    function = _COMPREHENSION.sub("", frame.function or "").rpartition("<locals>.")[2]
    return where if function in ("", "<module>", "<lambda>") else f"{where} in {function}"


_MOST_BYTES = 16 << 20
"""Maximum size of a source file; handwritten code is never longer."""

NOT_READ = "comments that accept findings were not read in "
"""The start of the note on files that may not be read."""

ONLY_UNDER_ROOT = say("files named in HLO text are read only under ", Option("source-root"))
"""The reason why a file named in HLO text was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """The files whose lines may be read.

    Attributes:
        captured: Whether the program was traced in this process, so that all its files may be read.
        root: The folder in which files named in HLO text may be read; None to read none.
    """

    captured: bool = False
    root: Path | None = None

    def line(self, file: str, number: int) -> str | None:
        """A line by its 1-based number, without its end; empty if the file is shorter; None if it may not be read."""
        if self.captured:
            linecache.checkcache(file)  # it may have been edited since it was read for an earlier program
            return linecache.getline(file, number).rstrip("\r\n")
        path = self._allowed(file)
        if path is None:
            return None
        lines = _read_lines(path, path.stat().st_mtime_ns)
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def _allowed(self, file: str) -> Path | None:
        """The file itself, if it is a regular file inside the folder after all links are resolved."""
        if self.root is None or ".." in Path(file).parts:
            return None
        try:
            root = self.root.resolve(strict=True)
            path = (root / file).resolve(strict=True)
            fits = path.is_relative_to(root) and path.is_file() and path.stat().st_size <= _MOST_BYTES
        except (OSError, ValueError, RuntimeError):  # no such file, an invalid name, a cycle of links
            return None
        return path if fits else None


CAPTURED_SOURCES = SourceFiles(captured=True)
NO_SOURCES = SourceFiles()


@lru_cache(maxsize=64)
def _read_lines(path: Path, _written_at: int) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return ()
