"""The quick way through a module: row by row, many rows at once.

Every line must be one instruction, one computation's head or end, or one row of a table; an instruction that is not
printed as usual, or takes several lines, is parsed by itself. Where that does not hold, or a name is not defined, the
scanner gives up, and the text is read by the grammar's rule for the whole from that computation on.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from itertools import chain, compress, count, repeat
from operator import add

import numpy
from numpy.typing import ArrayLike

from hloscope.hlo.attribute_skeletons import cut_numbers, is_plain
from hloscope.hlo.builder import Builder, Scope
from hloscope.hlo.chunks import Chunk, Doing, Event, Rows
from hloscope.hlo.columns import Columns, ComputationRow
from hloscope.hlo.language import language
from hloscope.hlo.line_cache import LineCache, line_cache
from hloscope.hlo.line_patterns import dialect_of
from hloscope.hlo.records import Instruction, ReadError, Row

CHUNK = 1 << 17
"""Characters that are cut into rows at once."""

_INDEX_COMMENT = re.compile(r", /\*index=[0-9]++\*/")


class FallbackToGrammar(Exception):  # noqa: N818 - no error: the text is read another way
    """The text is not laid out line by line.

    Attributes:
        line: 0-based line of the computation to go on from; None for the whole text.
        is_cut_off: The lines run out after a whole instruction of that computation.
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

    def scan(self) -> None:
        """Reads the whole text.

        Raises:
            FallbackToGrammar: It is not laid out line by line, or it is not valid.
        """
        preamble = Preamble(self._builder)
        try:
            preamble.read()
        except ReadError:
            raise FallbackToGrammar(None) from None
        stopped: FallbackToGrammar | None = None
        try:
            self._computations(preamble.position, preamble.line)
        except FallbackToGrammar as stop:
            stopped = stop
        self._check_order()
        if stopped is not None:
            raise stopped
        if not self._columns.computations:
            raise FallbackToGrammar(None)

    def _computations(self, position: int, line: int) -> None:
        text, size = self._columns.text, CHUNK
        cache = line_cache(dialect_of(text, position))
        while position < len(text):
            cache.trim()
            end = _end_of_chunk(text, position + size)
            chunk = Chunk(cache, text, position, end, line, in_computation=self._scope is not None)
            self._add(chunk, cache)
            size = CHUNK if chunk.length else 2 * size
            position, line = chunk.next_start(), line + chunk.length
        if self._scope is not None:
            raise FallbackToGrammar(self._scope.line - 1, is_cut_off=True)

    def _add(self, chunk: Chunk, cache: LineCache) -> None:
        """Adds what a chunk holds to the columns."""
        ends = [event.place for event in chunk.events if event.does is Doing.ADDS]
        at_once = not ends and self._scope is None
        ends.append(len(chunk.lines))
        self._append(chunk, cache, 0, ends.pop(0))
        at_once = at_once and self._resolve_at_once(chunk, cache)
        done, start = self._add_whole(chunk) if at_once else (0, 0)
        for event in chunk.events[done:]:
            if event.place > start:
                self._resolve(chunk, cache, start, event.place, at_once=at_once)
                start = event.place
            self._do(event)
            if event.does is Doing.ADDS:
                self._append(chunk, cache, start, ends.pop(0))
        if start < len(chunk.lines):
            self._resolve(chunk, cache, start, len(chunk.lines), at_once=at_once)
        if at_once and self._scope is not None:  # it goes on in the next chunk
            self._scope.indexes.update(zip(chunk.row.name[start:], count(start + self._shift), strict=False))

    def _append(self, chunk: Chunk, cache: LineCache, start: int, end: int) -> None:
        """Adds plain rows, of which the operands are still to come."""
        columns, row, words = self._columns, chunk.row, chunk.words
        self._shift = len(columns.names) - start
        self._note_called(row, cache, start, end)
        columns.names += row.name[start:end]
        columns.forms += words.forms[start:end]
        columns.leading_attributes += words.leading_attributes[start:end]
        columns.trailing_attributes += words.trailing_attributes[start:end]
        columns.metadata += _each_once(row.metadata[start:end], cache.texts)
        for number, text in words.more.items():
            if start <= number < end:
                columns.more[number + self._shift] = text
        _extend(columns.lines, chunk.lines[start:end])
        lists = row.operands[start:end]
        counts = list(map(add, map(str.count, lists, repeat(",")), map(bool, lists)))  # a name holds no comma
        _extend(columns.operand_starts, numpy.cumsum(counts, dtype=numpy.int64) + columns.operand_starts[-1])

    def _note_called(self, row: Rows, cache: LineCache, start: int, end: int) -> None:
        """Notes the calls of plain rows, most of which the row's pattern has cut out."""
        called, cut_out = self._columns.called, self._columns.cut_out
        for index in compress(range(start, end), row.callee[start:end]):
            found = cut_out[index + self._shift] = (row.calling[index], row.callee[index])
            called[index + self._shift] = (found,)
        for column in (row.attributes, row.more, row.rest) if cache.calls else ():
            calling = cache.calls.keys() & column
            for index in range(start, end) if calling else ():
                if column[index] in calling:
                    called[index + self._shift] = _called(row, cache, index)

    def _resolve_at_once(self, chunk: Chunk, cache: LineCache) -> bool:
        """Adds the operands of all plain rows, if no two of them have the same name; returns whether it could.

        An operand may then lie in another computation than its user; `_check_order` finds that out.
        """
        names = chunk.row.name
        indexes = dict(zip(names, range(self._shift, self._shift + len(names)), strict=True))
        if len(indexes) != len(names):
            return False
        try:
            found = _found(chunk.row.operands, indexes, cache.dialect.between)
        except KeyError:
            return False
        _extend(self._columns.operands, found)
        return True

    def _add_whole(self, chunk: Chunk) -> tuple[int, int]:
        """Adds the whole computations that a chunk begins with; returns how many events and plain rows these are."""
        start, shift, events = 0, self._shift, chunk.events
        roots = list(compress(count(), chunk.row.root))
        for number, (opens, closes) in enumerate(zip(events[::2], events[1::2], strict=False)):
            end = closes.place
            first_root, end_root = bisect_left(roots, start), bisect_left(roots, end)
            is_usual = opens.does is Doing.OPENS and closes.does is Doing.CLOSES and end_root - first_root <= 1
            if not is_usual or not opens.place == start < end:
                return 2 * number, start
            root = roots[first_root] if first_root < end_root else end - 1
            row = ComputationRow(opens.name, opens.line, closes.thread, start + shift, end + shift, root + shift)
            try:
                self._builder.add_computation(row, is_entry=opens.is_entry, position=0)
            except ReadError:
                raise FallbackToGrammar(opens.line - 1) from None
            start = end
        return 2 * (len(events) // 2), start

    def _resolve(self, chunk: Chunk, cache: LineCache, start: int, end: int, *, at_once: bool) -> None:
        """Finishes plain rows that stand in one computation; with `at_once`, their operands have been added before."""
        scope, first = self._scope, start + self._shift
        if scope is None:
            raise FallbackToGrammar(chunk.lines[start] - 1)
        roots = chunk.row.root[start:end]
        if "ROOT " in roots:
            self._root(scope, first + roots.index("ROOT "), roots.count("ROOT "))
        if at_once:
            return
        names, indexes = chunk.row.name[start:end], scope.indexes
        size = len(indexes) + end - start
        indexes.update(zip(names, range(first, end + self._shift), strict=True))
        if len(indexes) != size:
            raise FallbackToGrammar(scope.line - 1)
        try:
            _extend(self._columns.operands, _found(chunk.row.operands[start:end], indexes, cache.dialect.between))
        except KeyError:
            raise FallbackToGrammar(scope.line - 1) from None

    def _root(self, scope: Scope, index: int, count: int) -> None:
        if scope.root is not None or count > 1:
            raise FallbackToGrammar(scope.line - 1)
        scope.root = index

    def _do(self, event: Event) -> None:
        scope = self._scope
        if event.does is Doing.OPENS:
            self._scope, self._is_entry = Scope(event.name, event.line, event.place + self._shift), event.is_entry
            return
        if scope is None or event.does is Doing.FAILS:
            raise FallbackToGrammar((event.line if scope is None else scope.line) - 1)
        try:
            if event.instruction is not None:
                self._add_odd(scope, event, event.instruction)
            else:
                self._close(scope, event)
        except ReadError:
            raise FallbackToGrammar(scope.line - 1) from None

    def _add_odd(self, scope: Scope, event: Event, instruction: Instruction) -> None:
        if any(callee.name is None for item in instruction.operation.attributes for callee in item.callees):
            raise ReadError(0, "an inline computation")
        self._builder.add_line(scope, instruction, event.source, event.line)

    def _close(self, scope: Scope, event: Event) -> None:
        end = event.place + self._shift
        if end == scope.first:
            raise ReadError(0, "an empty computation")
        self._builder.close_scope(scope, is_entry=self._is_entry, thread=event.thread, position=0, end=end)
        self._scope = None

    def _check_order(self) -> None:
        """Checks that everything is defined before it is used.

        Raises:
            FallbackToGrammar: Something is not; the computations before it are kept.
        """
        columns = self._columns
        ends = [row.end for row in columns.computations]
        if not ends:
            return
        first = min(_first_early_use(columns, ends[-1]), _first_early_call(columns, ends[-1]))
        if first < ends[-1]:
            place = bisect_right(ends, first)
            lost = columns.computations[place:]
            self._builder.computation_names.difference_update(row.name for row in lost)
            del columns.computations[place:]
            columns.entry = columns.entry if columns.entry < place else -1
            raise FallbackToGrammar(lost[0].line - 1)


def _end_of_chunk(text: str, position: int) -> int:
    """The end of a line, not before an offset and if possible at the end of a computation."""
    brace = text.find("\n}", position, position + CHUNK)
    end = text.find("\n", brace + 1 if brace >= 0 else position)
    return len(text) if end < 0 else end


def _each_once(words: tuple[str, ...], known: dict[str, str]) -> list[str]:
    """The same words, equal ones as one string. Mostly all are known, and then half the time will do."""
    try:
        return list(map(known.__getitem__, words))
    except KeyError:
        return list(map(known.setdefault, words, words))


def _extend(column: array[int], numbers: ArrayLike) -> None:
    """Appends to a column, three times as fast as the array's own method does."""
    column.frombytes(numpy.array(numbers, dtype=numpy.int64).tobytes())


def _found(lists: tuple[str, ...], indexes: dict[str, int], between: str) -> list[int]:
    """The indexes of all names in some lists of operands.

    Raises:
        KeyError: A name is not among them.
    """
    names = between.join(filter(None, lists))
    if not names:
        return []
    names = _INDEX_COMMENT.sub(", ", names) if "/" in names else names
    return list(map(indexes.__getitem__, names.split(between)))


def _called(row: Rows, cache: LineCache, index: int) -> tuple[tuple[str, str], ...]:
    """Everything that a plain row calls, in printed order."""
    before, *after = (cache.calls.get(text[index], ()) for text in (row.attributes, row.more, row.rest))
    cut_out = ((row.calling[index], row.callee[index]),) if row.callee[index] else ()
    return (*before, *cut_out, *chain.from_iterable(after))


_MOST_LINES = 64
"""Lines that the header may take here."""

_TITLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


class Preamble:
    """Reads from the beginning of a text, line by line.

    Attributes:
        position: Offset of the line that comes next.
        line: Its 1-based number.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._text = builder.columns.text
        self._keys: dict[tuple[str, ...], tuple[str, ...]] = {}
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
        tables: list[tuple[Row, ...]] = []
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
        for _ in range(_MOST_LINES):
            end = self._text.find("\n", end + 1)
            source = self._text[self.position : end if end >= 0 else None]
            try:
                self._builder.add_header(language().parse("header", source), source)
            except ReadError as error:
                if not error.at_end or end < 0:
                    raise
            else:
                self._next(source)
                return
        raise ReadError(self.position, "too many lines")

    def _rows(self, *, strings: bool) -> tuple[Row, ...]:
        rows: list[Row] = []
        while (source := self._peek())[:1].isdigit():
            row = language().parse("table_row", source) if strings else self._number_row(source)
            if isinstance(row, str) != strings:
                raise ReadError(self.position, "a row of another table")
            rows.append(row)
            self._next(source)
        return tuple(rows)

    def _number_row(self, source: str) -> Row:
        """A row of `FileLocations` or `StackFrames`; rows that differ only in numbers are parsed once."""
        parts = cut_numbers(source)
        pieces, numbers = parts[::2], list(map(int, parts[3::2]))
        keys = self._keys.get(tuple(pieces))
        if keys is not None:
            return dict(zip(keys, numbers, strict=True))
        row: Row = language().parse("table_row", source)
        if isinstance(row, dict) and is_plain(pieces) and list(row.values()) == numbers and len(numbers) == len(row):
            self._keys[tuple(pieces)] = tuple(row)
        return row

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
            if stripped and not stripped.startswith("//"):
                return
            self._next(source)


def _first_early_use(columns: Columns, end: int) -> int:
    """The first instruction with an operand that is no earlier one of its computation; `end` where none has."""
    starts = numpy.frombuffer(columns.operand_starts, dtype=numpy.int64)[: end + 1]
    operands = numpy.frombuffer(columns.operands, dtype=numpy.int64)[: starts[-1]] if starts[-1] else starts[:0]
    users = numpy.repeat(numpy.arange(end), numpy.diff(starts))
    firsts = numpy.array([row.first for row in columns.computations])
    sizes = numpy.array([row.end - row.first for row in columns.computations])
    wrong = users[(operands >= users) | (operands < numpy.repeat(firsts, sizes)[users])]
    return int(wrong[0]) if len(wrong) else end


def _first_early_call(columns: Columns, end: int) -> int:
    """The first instruction that calls a computation that is not whole before it; `end` where none does."""
    ends = {row.name: row.end for row in columns.computations}
    first = end
    for index, called in columns.called.items():
        for _, name in called:
            if index < first and ends.get(name, end) > index:
                first = index
    return first
