"""The way of one target through the rooms: `python tests/house/walk.py analyze model.py:step --mesh X=4 …`.

The walk follows what is meant, from the command line's string through each form that it takes (request, target,
lowered program, text, module, analysis): a call is a step if one of its arguments is such a form, and what it returns
is the next form if it is a record of this package. Each pair of calling and called function counts once. Reading a
property of a record is not a step, because it leads nowhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from imports import PACKAGE, ROOT, find_modules
from test_imports import find_height, find_layers


class Walk(NamedTuple):
    """The way of one target.

    Attributes:
        stays: Modules in the order in which the target came in; neighbors differ.
        climbs: Stays in a room higher than the one before.
    """

    stays: tuple[str, ...]
    climbs: tuple[tuple[str, str], ...]

    @property
    def modules(self) -> int:
        """Number of different modules entered."""
        return len(set(self.stays))


class _Tracer:
    def __init__(self, target: str) -> None:
        self._module_of = {str(path): name for name, path in find_modules().items()}
        self._forms: list[object] = [target]
        self._ids = set[int]()
        self._target = target
        self._carriers: set[FrameType] = set()
        self._seen = set[tuple[str, str, str]]()
        self.stays: list[str] = []

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        module = self._module_of.get(frame.f_code.co_filename)
        if module is None:
            return
        if event == "call" and not _is_property(frame) and any(map(self._is_form, self._arguments(frame))):
            self._carriers.add(frame)
            self._step(frame, module)
        elif event == "return" and frame in self._carriers:
            self._carriers.discard(frame)
            if type(value).__module__.partition(".")[0] == PACKAGE and id(value) not in self._ids:
                self._forms.append(value)
                self._ids.add(id(value))

    def _arguments(self, frame: FrameType) -> Iterator[object]:
        code = frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount
        yield from (frame.f_locals.get(name) for name in code.co_varnames[:count])

    def _is_form(self, value: object) -> bool:
        if isinstance(value, str | Path):
            return str(value) == self._target
        return id(value) in self._ids

    def _step(self, frame: FrameType, module: str) -> None:
        caller = frame.f_back
        came_from = self._module_of.get(caller.f_code.co_filename) if caller else None
        step = (str(came_from), module, frame.f_code.co_qualname)
        if step in self._seen:
            return
        self._seen.add(step)
        for each in (came_from, module):
            if each is not None and self.stays[-1:] != [each]:
                self.stays.append(each)


def _is_property(frame: FrameType) -> bool:
    kind = type(frame.f_locals.get("self"))
    return isinstance(getattr(kind, frame.f_code.co_name, None), property | cached_property)


def trace(arguments: list[str]) -> Walk:
    """Runs a command and returns the way of its target, the first argument after the command's name."""
    from hloscope.cli import group

    tracer = _Tracer(arguments[1])
    sys.setprofile(tracer)
    try:
        group.main(arguments, standalone_mode=False)
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    layers = find_layers()
    heights = {each: find_height(each, layers) or 0 for each in tracer.stays}
    climbs = tuple((left, entered) for left, entered in pairwise(tracer.stays) if heights[entered] > heights[left])
    return Walk(tuple(tracer.stays), climbs)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    walked = trace(sys.argv[1:])
    print(*walked.stays, sep="\n", file=sys.stderr)
    print(f"{len(walked.stays)} stays in {walked.modules} modules, {len(walked.climbs)} climbs", file=sys.stderr)
