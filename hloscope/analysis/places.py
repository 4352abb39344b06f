"""Places in the user's code, as short as they can be and still be found, and the lines that stand there.

A program that was captured here names the files it was traced from. HLO text may come from anywhere and names whatever
files it likes: of those only what lies in a folder that the user gives is read.
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
from hloscope.cells import cell_of
from hloscope.messages import Option, say

_COMPREHENSION = re.compile(r"(\.<locals>\.<(list|set|dict)comp>)+$")
"""What Python 3.11 calls a function of its own, and later ones do not."""

CodeOf = tuple[str, str | None]
"""A function by its file and its name."""

_LIBRARIES = ("site-packages", "dist-packages", "<frozen", "<string>")


def users_frame(frames: Sequence[SourceFrame]) -> SourceFrame | None:
    """The innermost frame that is not a library's; the innermost of all where every frame is one."""
    own = (frame for frame in frames if not any(mark in frame.file for mark in _LIBRARIES))
    return next(own, frames[0] if frames else None)


_FEWEST_CALLERS = 3
"""Lines that a function is called from before it is taken for a helper."""


def shared_helpers(stacks: Iterable[Sequence[SourceFrame]], named: Collection[str] = ()) -> frozenset[CodeOf]:
    """The user's functions that are no place in the model, as they are called from many: a layer that multiplies.

    Such a function is called from at least three lines, and from more than it has lines of its own on these stacks, as
    one that computes a whole block does.

    Args:
        stacks: Stacks of one program, innermost frame first.
        named: Files and functions that the user calls helpers: `layers.py`, `linear`, `Linear.__call__`.
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
    return any(name == function or function.endswith(f".{name}") or path_of(frame).match(name) for name in named)


def innermost_own_frame(frames: Sequence[SourceFrame], helpers: Collection[CodeOf]) -> SourceFrame | None:
    """The innermost frame that is neither a library's nor a helper's; as `users_frame` where there is none."""
    own = (
        frame
        for frame in frames
        if (frame.file, frame.function) not in helpers and not any(mark in frame.file for mark in _LIBRARIES)
    )
    return next(own, users_frame(frames))


def path_of(frame: SourceFrame) -> PurePath:
    """The file of a frame, with folders that can be told apart also where Windows wrote them."""
    return _path(frame.file)


@lru_cache(maxsize=256)
def _path(file: str) -> PurePath:
    is_windows = "\\" in file and "/" not in file
    return PureWindowsPath(file) if is_windows else PurePath(file)


def users_line(frames: Sequence[SourceFrame]) -> str | None:
    """`/home/me/models/moe.py:31`: the user's innermost line, as it can be opened; None without frames."""
    frame = users_frame(frames)
    return None if frame is None else f"{frame.file}{_number(frame)}"


def _number(frame: SourceFrame) -> str:
    """`:31`; nothing where only the file and the function are known."""
    return f":{frame.line}" if frame.line else ""


def split_place(place: str) -> tuple[str, int | None]:
    """`moe.py:31` as a file and a line; None for the line where none is said."""
    file, colon, line = place.rpartition(":")
    return (file, int(line)) if colon and line.isdigit() else (place, None)


def short_source(frames: Sequence[SourceFrame]) -> str | None:
    """`moe.py:31 in expert_forward`, `In[44]:3 in step`: no folders, no enclosing functions; None without frames."""
    frame = users_frame(frames)
    if frame is None:
        return None
    where = f"{cell_of(frame.file) or path_of(frame).name}{_number(frame)}"
    function = _COMPREHENSION.sub("", frame.function or "").rpartition("<locals>.")[2]
    return where if function in ("", "<module>", "<lambda>") else f"{where} in {function}"


_MOST_BYTES = 16 << 20
"""No code that somebody wrote is longer."""

NOT_READ = "comments that accept findings were not read in "
"""How the note on files that may not be read begins."""

ONLY_UNDER_ROOT = say("files named in HLO text are read only under ", Option("source-root"))
"""Why a file that HLO text names was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Which files may be read for their lines.

    Attributes:
        captured: Whether the program was traced here, so that all its files may be.
        root: The folder in which files that HLO text names may be read; None for none at all.
    """

    captured: bool = False
    root: Path | None = None

    def line(self, file: str, number: int) -> str | None:
        """A line, counted from 1, without its end: empty where the file has none; None where it may not be read."""
        if self.captured:
            linecache.checkcache(file)  # it may have been edited since it was read for an earlier program
            return linecache.getline(file, number).rstrip("\r\n")
        path = self._allowed(file)
        if path is None:
            return None
        lines = _lines(path, path.stat().st_mtime_ns)
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def _allowed(self, file: str) -> Path | None:
        """The file itself, where it is one, and lies in the folder whatever links lead to it."""
        if self.root is None or ".." in Path(file).parts:
            return None
        try:
            root = self.root.resolve(strict=True)
            path = (root / file).resolve(strict=True)
            fits = path.is_relative_to(root) and path.is_file() and path.stat().st_size <= _MOST_BYTES
        except (OSError, ValueError, RuntimeError):  # no such file, a name that cannot be one, links in a circle
            return None
        return path if fits else None


CAPTURED = Sources(captured=True)
NOTHING = Sources()


@lru_cache(maxsize=64)
def _lines(path: Path, _written_at: int) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return ()
