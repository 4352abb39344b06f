"""Templates on disk, so that the next process need not learn them.

One entry of the store holds what is known of one dialect: JSON, whose rows become templates when a line asks for them.
Its key names everything that a template depends on; an entry that does not decode is not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from hloscope.hlo.shape import Layout, Shape
from hloscope.hlo.templates import Outline, Recipe, Template
from hloscope.hlo.unusual import Unusual
from hloscope.store import Store

KIND = "templates"
FORMAT = 1
MOST_ROWS = 1500
"""Rows of each kind that are kept; reading them takes some milliseconds."""

Pieces = tuple[str, ...]
Cut = Callable[[str], list[str]]
_DAMAGE = (KeyError, TypeError, ValueError, IndexError, AttributeError)


def key_of(digest: str, *, percent: bool) -> str:
    """What the templates of a dialect depend on: the grammar, this version, and the files that make them."""
    from hloscope.version import __version__

    with os.scandir(os.path.dirname(__file__)) as entries:
        files = sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries if entry.name.endswith(".py"))
    return json.dumps([FORMAT, __version__, digest, percent, files])


class Kept:
    """What a store holds of one dialect.

    Args:
        store: Where it is kept; None to keep nothing.
        key: From `key_of`.
        cut: How the dialect cuts lines.
    """

    def __init__(self, store: Store | None, key: str, cut: Cut) -> None:
        self._store = store
        self._key = key
        self._cut = cut
        self._templates: dict[str, Any] = {}
        self._outlines: dict[str, Any] = {}
        data = None if store is None else store.get(KIND, key)
        with suppress(*_DAMAGE):
            self._templates, self._outlines = ({}, {}) if data is None else map(dict, json.loads(data))

    def template(self, pieces: Pieces) -> Template | Unusual | None:
        """What is known of a skeleton; None where nothing is."""
        row = self._templates.get(_joined(pieces))
        try:
            return None if row is None else _template(row, self._cut)
        except _DAMAGE:
            return None

    def outline(self, pieces: Pieces) -> Outline[Recipe] | Unusual | None:
        """What is known of a skeleton whose shapes are holes; None where nothing is."""
        row = self._outlines.get(_joined(pieces))
        try:
            return None if row is None else _outline(row)
        except _DAMAGE:
            return None

    def save(
        self, templates: Mapping[Pieces, Template | Unusual], outlines: Mapping[Pieces, Outline[Recipe] | Unusual]
    ) -> None:
        """Keeps what is known now; of what was kept before, as much as there is room for."""
        if self._store is None:
            return
        found = {_joined(pieces): _template_row(item) for pieces, item in list(templates.items())[-MOST_ROWS:]}
        bare = {_joined(pieces): _outline_row(item) for pieces, item in list(outlines.items())[-MOST_ROWS:]}
        self._templates = _filled_up(found, self._templates)
        self._outlines = _filled_up(bare, self._outlines)
        rows = [list(self._templates.items()), list(self._outlines.items())]
        self._store.put(KIND, self._key, json.dumps(rows, separators=(",", ":")).encode())


def _filled_up(new: dict[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    room = MOST_ROWS - len(new)
    rest = [(key, row) for key, row in old.items() if key not in new]
    return {**new, **dict(rest[: max(room, 0)])}


def _joined(pieces: Pieces) -> str:
    return "\x00".join(pieces)


def _outline_row(item: Outline[Recipe] | Unusual) -> Any:
    return item.name if isinstance(item, Unusual) else list(item)


def _outline(row: Any) -> Outline[Recipe] | Unusual:
    if isinstance(row, str):
        return Unusual[row]
    opcode, is_root, name, shape, operand_list, operands, argument, attributes, called = row
    return Outline(
        opcode=opcode,
        is_root=is_root,
        name=Recipe(*name),
        shape=_place(shape),
        operand_list=_place(operand_list),
        operands=tuple(Recipe(*item) for item in operands),
        argument=_place(argument),
        attributes=tuple((key, Recipe(*item)) for key, item in attributes),
        called=tuple((key, Recipe(*item)) for key, item in called),
    )


def _place(row: Any) -> Recipe | None:
    return None if row is None else Recipe(*row)


def _template_row(item: Template | Unusual) -> Any:
    if isinstance(item, Unusual):
        return item.name
    return [_outline_row(item.outline), None if item.shape is None else _shape_row(item.shape)]


def _template(row: Any, cut: Cut) -> Template | Unusual:
    if isinstance(row, str):
        return Unusual[row]
    lines, shape = row
    found = _outline(lines)
    if isinstance(found, Unusual):
        raise TypeError(found)
    return Template(found, None if shape is None else _shape(shape), cut)


def _shape_row(shape: Shape) -> Any:
    layout = shape.layout
    items = layout and [
        layout.minor_to_major,
        layout.tiles,
        layout.memory_space,
        layout.element_size_in_bits,
        layout.other_items,
    ]
    return [shape.element_type, shape.dimensions, shape.dynamic, items, list(map(_shape_row, shape.elements))]


def _shape(row: Any) -> Shape:
    element_type, dimensions, dynamic, layout, elements = row
    return Shape(
        element_type=element_type,
        dimensions=tuple(dimensions),
        dynamic=tuple(dynamic),
        layout=None if layout is None else _layout(*layout),
        elements=tuple(map(_shape, elements)),
    )


def _layout(order: list[int], tiles: list[list[int]], space: int, size: int, other: list[str]) -> Layout:
    return Layout(
        minor_to_major=tuple(order),
        tiles=tuple(map(tuple, tiles)),
        memory_space=space,
        element_size_in_bits=size,
        other_items=tuple(other),
    )
