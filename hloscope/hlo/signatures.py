"""The lines that open a computation."""

from __future__ import annotations

import re

from hloscope.hlo.language import language
from hloscope.hlo.records import ComputationHead
from hloscope.hlo.rows import NAME
from hloscope.hlo.shape_words import ShapeWords
from hloscope.hlo.templates import Irregular

_HEAD = re.compile(rf"(ENTRY )?(?!ENTRY)(%?)({NAME})(?: \((.*)\) -> (.*))? \{{").fullmatch
_PARAMETER = re.compile(rf", (?:/\*index=[0-9]++\*/)?{NAME}: ").split
"""Cuts before every parameter; that each begins with a comma lets `re` skip to the next one quickly."""


class Signatures:
    """What computations' heads say. Their shapes are read once for each text, the rest once for each count of them."""

    def __init__(self, shapes: ShapeWords) -> None:
        self._shapes = shapes
        self._forms: set[tuple[str | None, str, int]] = set()

    def read(self, line: str) -> tuple[str, bool]:
        """Name of the computation that a line opens, and whether it is the entry.

        Raises:
            ReadError: The line opens none; `at_end` where it is only the beginning of one that does.
        """
        match = _HEAD(line)
        if match is not None:
            entry, sigil, name, parameters, result = match.groups()
            try:
                form = (entry, sigil, -1 if result is None else self._shape_count(parameters, result))
            except Irregular:
                form = None
            if form is not None:
                if form not in self._forms:
                    self._learn(*form)
                return name, entry is not None
        head: ComputationHead = language().parse("computation_head", line)
        return head.name.lstrip("%"), head.is_entry

    def _shape_count(self, parameters: str, result: str) -> int:
        """Checks the shapes of a signature, and counts the parameters."""
        first, *shapes = _PARAMETER(f", {parameters}") if parameters else [""]
        if first:
            raise Irregular
        known = self._shapes.known
        if result not in known or not all(map(known.__contains__, shapes)):
            for shape in (*shapes, result):
                self._shapes.read(shape)
        return len(shapes)

    def _learn(self, entry: str | None, sigil: str, count: int) -> None:
        signature = "" if count < 0 else f"({', '.join(['x: f32[]'] * count)}) -> f32[] "
        language().parse("computation_head", f"{entry or ''}{sigil}x {signature}{{")
        self._forms.add((entry, sigil, count))
