"""The fast path through a module: row by row, many rows at once.

Every line must be one instruction, one computation's head or end, or one row of a table; an instruction in an unusual
form, or on several lines, is parsed separately. Otherwise, or if a name is not defined, the scanner gives up, and the
text is read by the grammar's rule for the whole from that computation on.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from itertools import compress, count, repeat
from operator import add

import numpy
from numpy.typing import ArrayLike

from hloscope.hlo.builder import Builder, Scope
from hloscope.hlo.chunks import MOST_LINES, Chunk, ChunkEvent, EventKind
from hloscope.hlo.columns import Columns
from hloscope.hlo.language import load_language
from hloscope.hlo.line_cache import LineCache
from hloscope.hlo.line_patterns import detect_dialect, is_comment, replace_numbers
from hloscope.hlo.records import ReadError, StackTableRow

CHUNK_LENGTH = 1 << 17
"""Number of characters that are cut into rows at once."""

_INDEX_COMMENT = re.compile(r", /\*index=[0-9]++\*/")


class FallbackToGrammar(Exception):  # noqa: N818 - no error: the text is read another way
    """The text is not laid out line by line.

    Attributes:
        line: 0-based line of the computation to continue from; None for the whole text.
        is_cut_off: Whether the text ends after a complete instruction of that computation.
    """

    def __init__(self, line: int | None, *, is_cut_off: bool = False) -> None:
        super().__init__(line)
        self.line = line
        self.is_cut_off = is_cut_off


class Scanner:
    """Reads a text of the form that XLA prints into a builder's columns."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._columns = builder.columns
        self._scope: Scope | None = None
        self._is_entry = False
        self._shift = 0
        self._between = ", "

    def scan(self) -> None:
        """Reads the whole text.

        Raises:
            FallbackToGrammar: It is not laid out line by line, or is not valid.
        """
        preamble = Preamble(self._builder)
        try:
            preamble.read()
        except ReadError:
            raise FallbackToGrammar(None) from None
        try:
            self._computations(preamble.position, preamble.line)
        finally:  # the text read before it stopped is checked too, and may send it further back
            self._check_order()
        if not self._columns.computations:
            raise FallbackToGrammar(None)

    def _computations(self, position: int, line: int) -> None:
        text, size = self._columns.text, CHUNK_LENGTH
        cache = LineCache(detect_dialect(text, position))
        self._columns.dialect, self._between = cache.dialect, cache.dialect.between
        while position < len(text):
            end = text.find("\n", position + size)
            end = len(text) if end < 0 else end
            chunk = Chunk(cache, text, position, end, line, in_computation=self._scope is not None)
            self._add(chunk)
            size = CHUNK_LENGTH if chunk.length else 2 * size
            position, line = chunk.next_start(), line + chunk.length
        if self._scope is not None:
            raise FallbackToGrammar(self._scope.line - 1, is_cut_off=True)

    def _add(self, chunk: Chunk) -> None:
        """Adds the contents of a chunk to the columns."""
        ends = [event.place for event in chunk.events if event.does is EventKind.ADDS]
        ends.append(len(chunk.lines))
        self._append(chunk, 0, ends.pop(0))
        start = 0
        for event in chunk.events:
            self._resolve(chunk, start, event.place)
            start = event.place
            self._do(event)
            if event.does is EventKind.ADDS:
                self._append(chunk, start, ends.pop(0))
        self._resolve(chunk, start, len(chunk.lines))

    def _append(self, chunk: Chunk, start: int, end: int) -> None:
        """Adds plain rows, still without operands."""
        columns, called = self._columns, chunk.called[start:end]
        first = len(columns.names)
        self._shift = first - start
        columns.called.update(compress(zip(count(first), called), called))
        columns.names += chunk.row.name[start:end]
        columns.forms += chunk.forms[start:end]
        _append_numbers(columns.lines, chunk.lines[start:end])
        lists = chunk.row.operands[start:end]
        counts = list(map(add, map(str.count, lists, repeat(",")), map(bool, lists)))  # a name holds no comma
        _append_numbers(columns.operand_starts, numpy.cumsum(counts, dtype=numpy.int64) + columns.operand_starts[-1])

    def _resolve(self, chunk: Chunk, start: int, end: int) -> None:
        """Adds roots and operands of plain rows in one computation."""
        if start == end:
            return
        scope, first = self._scope, start + self._shift
        if scope is None:
            raise FallbackToGrammar(chunk.lines[start] - 1)
        roots, indexes = chunk.row.root[start:end], scope.indexes
        size = len(indexes) + end - start
        indexes.update(zip(chunk.row.name[start:end], range(first, end + self._shift), strict=True))
        if len(indexes) != size or roots.count("ROOT ") + (scope.root is not None) > 1:
            raise FallbackToGrammar(scope.line - 1)
        if "ROOT " in roots:
            scope.root = first + roots.index("ROOT ")
        callees = {name for called in filter(None, chunk.called[start:end]) for _, name in called}
        if not callees <= self._builder.computation_names:
            raise FallbackToGrammar(scope.line - 1)
        names = self._between.join(filter(None, chunk.row.operands[start:end]))
        if not names:
            return
        names = _INDEX_COMMENT.sub(", ", names) if "/" in names else names
        try:
            self._columns.operands.extend(map(indexes.__getitem__, names.split(self._between)))
        except KeyError:
            raise FallbackToGrammar(scope.line - 1) from None

    def _do(self, event: ChunkEvent) -> None:
        scope = self._scope
        if event.does is EventKind.OPENS:
            self._scope, self._is_entry = Scope(event.name, event.line, event.place + self._shift), event.is_entry
            return
        if scope is None or event.does is EventKind.FAILS:
            raise FallbackToGrammar((event.line if scope is None else scope.line) - 1)
        try:
            if event.instruction is None:
                self._close(scope, event)
            elif any(callee.name is None for item in event.instruction.operation.attributes for callee in item.callees):
                raise ReadError(0, "an inline computation")
            else:
                self._builder.add_line(scope, event.instruction, event.source, event.line)
        except ReadError:
            raise FallbackToGrammar(scope.line - 1) from None

    def _close(self, scope: Scope, event: ChunkEvent) -> None:
        end = event.place + self._shift
        if end == scope.first:
            raise ReadError(0, "an empty computation")
        self._builder.close_scope(scope, is_entry=self._is_entry, thread=event.thread, position=0, end=end)
        self._scope = None

    def _check_order(self) -> None:
        """Checks that every operand is defined before it is used.

        Raises:
            FallbackToGrammar: One is not; the computations before it are kept.
        """
        columns = self._columns
        ends = [row.end for row in columns.computations]
        if not ends:
            return
        first = _find_first_early_use(columns, ends[-1])
        if first < ends[-1]:
            place = bisect_right(ends, first)
            lost = columns.computations[place:]
            self._builder.computation_names.difference_update(row.name for row in lost)
            del columns.computations[place:]
            columns.entry = columns.entry if columns.entry < place else -1
            raise FallbackToGrammar(lost[0].line - 1)


def _append_numbers(column: array[int], numbers: ArrayLike) -> None:
    """Appends to a column, three times as fast as the array's own method does."""
    column.frombytes(numpy.array(numbers, dtype=numpy.int64).tobytes())


_cut_entries = re.compile(r"([A-Za-z_]+)=([0-9]+)").findall
_TITLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


class Preamble:
    """Reads the start of a text, line by line.

    Attributes:
        position: Offset of the next line.
        line: Its 1-based number.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._text = builder.columns.text
        self.position = 0
        self.line = 1

    def read(self) -> None:
        """Reads header and tables.

        Raises:
            ReadError: The text does not begin with a header, or is not laid out line by line.
        """
        self._skip_blank()
        if not self._peek().lstrip(" \t").startswith("HloModule"):
            raise ReadError(self.position, "no header")
        self._header()
        tables: list[tuple[StackTableRow, ...]] = []
        for title in _TITLES:
            self._skip_blank()
            if self._peek().strip(" \t\r") != title:
                break
            self._next(self._peek())
            tables.append(self._rows(strings=title.endswith("Names")))
        if tables and len(tables) != len(_TITLES):
            raise ReadError(self.position, "a table is missing")
        self._builder.add_tables(tuple(tables))

    def _header(self) -> None:
        end = self.position - 1
        for _ in range(MOST_LINES):
            end = self._text.find("\n", end + 1)
            source = self._text[self.position : end if end >= 0 else None]
            try:
                self._builder.add_header(load_language().parse("header", source), source)
            except ReadError as error:
                if not error.at_end or end < 0:
                    raise
            else:
                self._next(source)
                return
        raise ReadError(self.position, "too many lines")

    def _rows(self, *, strings: bool) -> tuple[StackTableRow, ...]:
        rows: list[StackTableRow] = []
        while (source := self._peek())[:1].isdigit():
            row = load_language().parse("table_row", source) if strings else self._number_row(source)
            if isinstance(row, str) != strings:
                raise ReadError(self.position, "a row of another table")
            rows.append(row)
            self._next(source)
        return tuple(rows)

    def _number_row(self, source: str) -> StackTableRow:
        """A row of `FileLocations` or `StackFrames`; rows that differ only in numbers are parsed once."""
        found = {key: int(number) for key, number in _cut_entries(source)}
        is_usual = replace_numbers(source) == f"1 {{{' '.join(f'{key}=1' for key in found)}}}"
        row: StackTableRow = load_language().read("table_row", replace_numbers(source) if is_usual else source)
        return found if is_usual else row

    def _peek(self) -> str:
        end = self._text.find("\n", self.position)
        return self._text[self.position : end if end >= 0 else None]

    def _next(self, source: str) -> None:
        self.position = min(self.position + len(source) + 1, len(self._text))
        self.line += source.count("\n") + 1

    def _skip_blank(self) -> None:
        while self.position < len(self._text):
            source = self._peek()
            stripped = source.strip(" \t\r")
            if stripped and not is_comment(stripped):
                return
            self._next(source)


def _find_first_early_use(columns: Columns, end: int) -> int:
    """The first instruction that uses a later one as an operand; `end` if none does."""
    starts = numpy.frombuffer(columns.operand_starts, dtype=numpy.int64)[: end + 1]
    operands = numpy.array(columns.operands[: starts[-1]], dtype=numpy.int64)
    users = numpy.repeat(numpy.arange(end), numpy.diff(starts))
    early = users[operands >= users]
    return int(early[0]) if len(early) else end
