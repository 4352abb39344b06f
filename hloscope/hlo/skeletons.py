"""The skeletons that have been parsed, and what was learnt from each."""

from __future__ import annotations

from functools import cache, lru_cache

from hloscope.hlo.holes import Dialect, cut_head, cut_numbers, is_plain
from hloscope.hlo.kept import Kept, key_of
from hloscope.hlo.language import language
from hloscope.hlo.records import ComputationHead, Instruction, ReadError, Row, span_of
from hloscope.hlo.templates import Irregular, Outline, Recipe, Template, borders_of, in_parts, mapped, outline, recipe
from hloscope.hlo.unusual import Unusual
from hloscope.store import default_store

MOST_KEPT = 1 << 16
"""Skeletons kept for later texts; beyond it all are forgotten and learnt again."""


LEAST_KEPT = 16
"""New skeletons that are worth a write to disk."""


class Skeletons:
    """The instruction skeletons of one dialect.

    Attributes:
        dialect: How lines are cut.
        known: By the pieces of `dialect.cut`.
    """

    def __init__(self, dialect: Dialect, kept: Kept | None = None) -> None:
        self.dialect = dialect
        self._kept = kept
        self._new = 0
        self.known: dict[tuple[str, ...], Template | Unusual] = {}
        self._without_shapes: dict[tuple[str, ...], Outline[Recipe] | Unusual] = {}

    def learn(self, line: str) -> None:
        """Puts the skeleton of a line among the known ones.

        Lines that differ only in the dimensions and layouts of their shapes are parsed once; then only the shapes are.

        Raises:
            ReadError: The line is no instruction.
        """
        if len(self.known) >= MOST_KEPT:
            self.known.clear()
            self._without_shapes.clear()
        pieces = self.dialect.cut(line)
        skeleton = tuple(pieces[::2])
        kept = None if self._kept is None else self._kept.template(skeleton)
        if kept is not None:
            self.known[skeleton] = kept
            return
        parts = self.dialect.cut_shapes(line)
        key = tuple(parts[::2])
        found = self._without_shapes.get(key)
        if found is None and self._kept is not None:
            found = self._kept.outline(key)
        if found is None:
            found = _parsed(line, parts)
        self._without_shapes[key] = found
        self.known[skeleton] = self._with_shapes(found, line, parts, pieces)
        self._new += 1

    def keep(self) -> None:
        """Writes to disk what was learnt, once that is worth it."""
        if self._kept is not None and self._new >= LEAST_KEPT:
            self._new = 0
            self._kept.save(self.known, self._without_shapes)

    def _with_shapes(
        self, found: Outline[Recipe] | Unusual, line: str, parts: list[str], pieces: list[str]
    ) -> Template | Unusual:
        if isinstance(found, Unusual):
            return found
        borders = borders_of(parts)
        spans = mapped(found, lambda item: item.span(borders))
        first, last = spans.shape or (0, 0)
        for start, hole in zip(borders[1::2], parts[1::2], strict=False):
            if hole[:1] == "[" and not first <= start < last:  # the result's shape is read below
                check_shape_hole(hole)
        shape = (
            None if spans.shape is None else language().read("shape", line[spans.shape.start : spans.shape.end]).shape
        )
        try:
            return Template(in_parts(spans, pieces), shape, self.dialect.cut)
        except Irregular:
            return Unusual.IRREGULAR


def _parsed(line: str, parts: list[str]) -> Outline[Recipe] | Unusual:
    plain = is_plain(parts[::2])
    try:
        instruction: Instruction = language().parse("instruction", line)
    except ReadError as error:
        if not error.at_end:
            raise
        return Unusual.INCOMPLETE if plain else Unusual.IRREGULAR
    try:
        return in_parts(outline(instruction, parts), parts) if plain else Unusual.IRREGULAR
    except Irregular:
        return Unusual.IRREGULAR


@lru_cache(maxsize=MOST_KEPT)
def check_shape_hole(hole: str) -> None:
    """Reads dimensions and a layout such as `[2,3]{1,0:T(8,128)}` by the grammar.

    Raises:
        ReadError: They do not follow it.
    """
    language().read("shape", "f32" + hole)


class HeadTemplate:
    """What every line with one skeleton that opens a computation has in common."""

    __slots__ = ("_name", "is_entry")

    def __init__(self, head: ComputationHead, name: Recipe) -> None:
        self.is_entry = head.is_entry
        self._name = name

    def name(self, parts: list[str]) -> str:
        """The computation's name, without `%`."""
        return self._name.text(parts).lstrip("%")


_heads: dict[tuple[str, ...], HeadTemplate] = {}


def read_head(line: str) -> tuple[str, bool]:
    """Name of the computation that a line opens, and whether it is the entry.

    Raises:
        ReadError: The line opens none; `at_end` where it is only the beginning of one that does.
    """
    parts = cut_head(line)
    key = tuple(parts[::2])
    template = _heads.get(key)
    for hole in parts[1::2]:
        if hole[0] == "[":
            check_shape_hole(hole)
    if template is not None:
        return template.name(parts), template.is_entry
    head: ComputationHead = language().parse("computation_head", line)
    name = span_of(head.name, head.name)
    try:
        if is_plain(parts[::2]):
            _heads[key] = HeadTemplate(head, recipe(name, parts, borders_of(parts)))
    except Irregular:
        pass
    if len(_heads) >= MOST_KEPT:
        _heads.clear()
    return head.name.lstrip("%"), head.is_entry


_number_rows: dict[tuple[str, ...], tuple[str, ...]] = {}


def read_number_row(line: str) -> Row:
    """A row of `FileLocations` or `StackFrames`.

    Raises:
        ReadError: The line is no such row.
    """
    parts = cut_numbers(line)
    key = tuple(parts[::2])
    keys = _number_rows.get(key)
    if keys is None:
        row: Row = language().parse("table_row", line)
        if isinstance(row, str):
            raise ReadError(0, "a string stands where numbers were expected")
        plain = is_plain(parts[::2]) and len(parts) == 2 * len(row) + 3
        if plain and [int(number) for number in parts[3::2]] == list(row.values()) and len(_number_rows) < MOST_KEPT:
            _number_rows[key] = tuple(row)
        return row
    return dict(zip(keys, map(int, parts[3::2]), strict=True))


@cache
def skeletons(*, percent: bool) -> Skeletons:
    """The skeletons of one dialect, for all texts of this process."""
    dialect = Dialect(percent=percent)
    store = default_store()
    if store is None:
        return Skeletons(dialect)
    return Skeletons(dialect, Kept(store, key_of(language().digest, percent=percent), dialect.cut))
