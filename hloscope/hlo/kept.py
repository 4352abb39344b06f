"""What was learnt, on disk, so that the next process need not parse it again.

One entry of the store holds the templates of one dialect: JSON, whose rows become templates when a line asks for them.
Its key names everything that a template depends on; an entry that does not decode is not used.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from hloscope.hlo.array_templates import ArrayTemplate
from hloscope.hlo.shape import Layout, Shape
from hloscope.hlo.templates import Recipe, Template
from hloscope.store import Store

KIND = "templates"
FORMAT = 2
MOST_ROWS = 1500
"""Rows of each kind that are kept; reading them takes some milliseconds."""

LEAST_NEW = 8
"""New rows that are worth a write."""

Pieces = tuple[str, ...]
_DAMAGE = (KeyError, TypeError, ValueError, IndexError, AttributeError)


def key_of(digest: str) -> str:
    """What templates depend on: the grammar, this version, and the files that make them."""
    from hloscope.version import __version__

    with os.scandir(os.path.dirname(__file__)) as entries:
        files = sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries if entry.name.endswith(".py"))
    return json.dumps([FORMAT, __version__, digest, files])


class Kept:
    """What a store holds, and what is to be added to it.

    Args:
        store: Where it is kept; None to keep nothing.
        key: From `key_of`.
    """

    def __init__(self, store: Store | None, key: str) -> None:
        self._store = store
        self._key = key
        self._runs: dict[str, Any] = {}
        self._shapes: dict[str, Any] = {}
        self._lines: dict[str, Any] = {}
        self._new = 0
        data = None if store is None else store.get(KIND, key)
        with suppress(*_DAMAGE):
            if data is not None:
                self._runs, self._shapes, self._lines = map(dict, json.loads(data))

    def template(self, pieces: Pieces) -> Template | None:
        """What is known of the runs of attributes with these pieces; None where nothing is."""
        row = self._runs.get(_joined(pieces))
        with suppress(*_DAMAGE):
            return None if row is None else _template(row)
        return None

    def shape(self, pieces: Pieces) -> ArrayTemplate | None:
        """What is known of the arrays with these pieces; None where nothing is."""
        row = self._shapes.get(_joined(pieces))
        with suppress(*_DAMAGE):
            return None if row is None else _array(row)
        return None

    def has_line(self, line: str) -> bool:
        """Whether a line has been parsed before."""
        return line in self._lines

    def add_template(self, pieces: Pieces, item: Template) -> None:
        """Notes a template."""
        self._add(self._runs, _joined(pieces), item)

    def add_shape(self, pieces: Pieces, item: ArrayTemplate | None) -> None:
        """Notes a template, where there is one."""
        if item is not None:
            self._add(self._shapes, _joined(pieces), [item.tiles, _shape_row(item.example)])

    def add_line(self, line: str) -> None:
        """Notes that a line follows the grammar."""
        self._add(self._lines, line, True)

    def save(self) -> None:
        """Writes what was noted, once that is worth it."""
        if self._store is None or self._new < LEAST_NEW:
            return
        self._new = 0
        rows = [list(found.items()) for found in (self._runs, self._shapes, self._lines)]
        self._store.put(KIND, self._key, json.dumps(rows, separators=(",", ":")).encode())

    def _add(self, rows: dict[str, Any], key: str, row: Any) -> None:
        if self._store is None:
            return
        if len(rows) >= MOST_ROWS:
            del rows[next(iter(rows))]
        rows[key] = row
        self._new += 1


def _joined(pieces: Pieces) -> str:
    return "\x00".join(pieces)


def _template(row: Any) -> Template:
    attributes, called = ([(str(key), Recipe(*map(int, place))) for key, place in found] for found in row)
    return Template(tuple(attributes), tuple(called))


def _array(row: Any) -> ArrayTemplate:
    tiles, example = row
    return ArrayTemplate(_shape(*example), tuple(map(int, tiles)))


def _shape_row(shape: Shape) -> Any:
    layout = shape.layout
    items = layout and [layout.minor_to_major, layout.tiles, layout.memory_space, layout.element_size_in_bits]
    return [shape.element_type, shape.dimensions, shape.dynamic, items]


def _shape(element_type: str, dimensions: list[int], dynamic: list[bool], items: Any) -> Shape:
    return Shape(
        element_type=element_type,
        dimensions=tuple(dimensions),
        dynamic=tuple(dynamic),
        layout=None if items is None else _layout(*items),
    )


def _layout(order: list[int], tiles: list[list[int]], space: int, size: int) -> Layout:
    return Layout(
        minor_to_major=tuple(order), tiles=tuple(map(tuple, tiles)), memory_space=space, element_size_in_bits=size
    )
