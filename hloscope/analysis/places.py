"""Places in the user's code, as short as they can be and still be found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath, PureWindowsPath

from hloscope.analysis.model import SourceFrame

_COMPREHENSION = re.compile(r"(\.<locals>\.<(list|set|dict)comp>)+$")
"""What Python 3.11 calls a function of its own, and later ones do not."""

_LIBRARIES = ("site-packages", "dist-packages", "<frozen", "<string>")


def users_frame(frames: Sequence[SourceFrame]) -> SourceFrame | None:
    """The innermost frame that is not a library's; the innermost of all where every frame is one."""
    own = (frame for frame in frames if not any(mark in frame.file for mark in _LIBRARIES))
    return next(own, frames[0] if frames else None)


def path_of(frame: SourceFrame) -> PurePath:
    """The file of a frame, with folders that can be told apart also where Windows wrote them."""
    is_windows = "\\" in frame.file and "/" not in frame.file
    return PureWindowsPath(frame.file) if is_windows else PurePath(frame.file)


def users_line(frames: Sequence[SourceFrame]) -> str | None:
    """`/home/me/models/moe.py:31`: the user's innermost line, as it can be opened; None without frames."""
    frame = users_frame(frames)
    return None if frame is None else f"{frame.file}:{frame.line}"


def short_source(frames: Sequence[SourceFrame]) -> str | None:
    """`moe.py:31 in expert_forward`: no folders, no enclosing functions; None without frames."""
    frame = users_frame(frames)
    if frame is None:
        return None
    where = f"{path_of(frame).name}:{frame.line}"
    function = _COMPREHENSION.sub("", frame.function or "").rpartition("<locals>.")[2]
    return where if function in ("", "<module>", "<lambda>") else f"{where} in {function}"
