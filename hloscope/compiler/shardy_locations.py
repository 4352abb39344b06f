"""MLIR locations as JAX writes them: the operation's name, and the user's stack."""

from __future__ import annotations

from typing import Any

from hloscope.compiler.shardy_model import CodePlace
from hloscope.launchers import is_launcher

_FILE = "FileLineColLoc"
_NAME = "NameLoc"
_CALL = "CallSiteLoc"
_FUSED = "FusedLoc"

Place = tuple[str | None, tuple[CodePlace, ...]]


class Locations:
    """Reads locations, each once: thousands of operations share a few stacks.

    JAX writes `loc("jit(f)/dot_general"(callsite("f"("model.py":10:24) at callsite(...))))`: a name around frames, of
    which each is a function's name around a file location.
    """

    def __init__(self) -> None:
        self._read: dict[Any, Place] = {}
        self._stacks: dict[Any, tuple[CodePlace, ...]] = {}

    def of(self, location: Any) -> Place:
        """The name and the frames of a location, innermost first, down to where hloscope called the program."""
        key = location.attr  # locations themselves are hashed by identity
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = self._of(location)
        return found

    def _of(self, location: Any) -> Place:
        kind = type(location).__name__
        if kind == _FUSED:
            each = [self.of(one) for one in location.locations]
            return next((one for one in each if one[0]), (None, ()))
        if kind == _NAME:
            name = location.name_str
            if type(location.child_loc).__name__ == _FILE:  # a frame by itself: no operation's name is around it
                return None, _users((_frame(location),))
            return name, _users(self._frames(location.child_loc))
        return None, _users(self._frames(location))

    def _frames(self, location: Any) -> tuple[CodePlace, ...]:
        """The frames of a stack; stacks share their outer parts."""
        key = location.attr
        found = self._stacks.get(key)
        if found is None:
            found = self._stacks[key] = self._frames_of(location)
        return found

    def _frames_of(self, location: Any) -> tuple[CodePlace, ...]:
        kind = type(location).__name__
        if kind == _CALL:
            return (*self._frames(location.callee), *self._frames(location.caller))
        if kind == _NAME and type(location.child_loc).__name__ == _FILE:
            return (_frame(location),)
        if kind == _NAME:
            return self._frames(location.child_loc)
        return (_file(location, ""),) if kind == _FILE else ()


def _frame(location: Any) -> CodePlace:
    return _file(location.child_loc, location.name_str)


def _file(location: Any, function: str) -> CodePlace:
    return CodePlace(file=location.filename, line=location.start_line, column=location.start_col, function=function)


def _users(frames: tuple[CodePlace, ...]) -> tuple[CodePlace, ...]:
    """The frames up to what started the program, each once: a loop's body repeats the frames around it."""
    kept: list[CodePlace] = []
    for frame in frames:
        if is_launcher(frame.file):
            break
        if not kept or kept[-1] != frame:
            kept.append(frame)
    return tuple(kept)
