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

from hloscope.hlo.builder import Builder, Scope
from hloscope.hlo.chunks import Chunk, Doing, Event, Rows
from hloscope.hlo.columns import ComputationRow
from hloscope.hlo.learnt import Learnt, learnt
from hloscope.hlo.order import first_early_call, first_early_use
from hloscope.hlo.preamble import Preamble
from hloscope.hlo.records import Instruction, ReadError
from hloscope.hlo.rows import dialect_of

CHUNK = 1 << 17
"""Characters that are cut into rows at once."""

_INDEX_COMMENT = re.compile(r", /\*index=[0-9]++\*/")


class GaveUp(Exception):  # noqa: N818 - no error: the text is read another way
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
            GaveUp: It is not laid out line by line, or it is not valid.
        """
        preamble = Preamble(self._builder)
        try:
            preamble.read()
        except ReadError:
            raise GaveUp(None) from None
        stopped: GaveUp | None = None
        try:
            self._computations(preamble.position, preamble.line)
        except GaveUp as stop:
            stopped = stop
        self._check_order()
        if stopped is not None:
            raise stopped
        if not self._columns.computations:
            raise GaveUp(None)

    def _computations(self, position: int, line: int) -> None:
        text, size = self._columns.text, CHUNK
        known = learnt(dialect_of(text, position))
        while position < len(text):
            known.trim()
            end = _end_of_chunk(text, position + size)
            chunk = Chunk(known, text, position, end, line, in_computation=self._scope is not None)
            self._add(chunk, known)
            size = CHUNK if chunk.length else 2 * size
            position, line = chunk.next_start(), line + chunk.length
        if self._scope is not None:
            raise GaveUp(self._scope.line - 1, is_cut_off=True)

    def _add(self, chunk: Chunk, known: Learnt) -> None:
        """Adds what a chunk holds to the columns."""
        ends = [event.place for event in chunk.events if event.does is Doing.ADDS]
        at_once = not ends and self._scope is None
        ends.append(len(chunk.lines))
        self._append(chunk, known, 0, ends.pop(0))
        at_once = at_once and self._resolve_at_once(chunk, known)
        done, start = self._add_whole(chunk) if at_once else (0, 0)
        for event in chunk.events[done:]:
            if event.place > start:
                self._resolve(chunk, known, start, event.place, at_once=at_once)
                start = event.place
            self._do(event)
            if event.does is Doing.ADDS:
                self._append(chunk, known, start, ends.pop(0))
        if start < len(chunk.lines):
            self._resolve(chunk, known, start, len(chunk.lines), at_once=at_once)
        if at_once and self._scope is not None:  # it goes on in the next chunk
            self._scope.indexes.update(zip(chunk.row.name[start:], count(start + self._shift), strict=False))

    def _append(self, chunk: Chunk, known: Learnt, start: int, end: int) -> None:
        """Adds plain rows, of which the operands are still to come."""
        columns, row, words = self._columns, chunk.row, chunk.words
        self._shift = len(columns.names) - start
        self._note_called(row, known, start, end)
        columns.names += row.name[start:end]
        columns.forms += words.forms[start:end]
        columns.runs += words.runs[start:end]
        columns.rests += words.rests[start:end]
        columns.metadata += _each_once(row.metadata[start:end], known.texts)
        for number, text in words.more.items():
            if start <= number < end:
                columns.more[number + self._shift] = text
        _extend(columns.lines, chunk.lines[start:end])
        lists = row.operands[start:end]
        counts = list(map(add, map(str.count, lists, repeat(",")), map(bool, lists)))  # a name holds no comma
        _extend(columns.operand_starts, numpy.cumsum(counts, dtype=numpy.int64) + columns.operand_starts[-1])

    def _note_called(self, row: Rows, known: Learnt, start: int, end: int) -> None:
        """Notes the calls of plain rows, most of which the row's pattern has cut out."""
        called, cut_out = self._columns.called, self._columns.cut_out
        for index in compress(range(start, end), row.callee[start:end]):
            found = cut_out[index + self._shift] = (row.calling[index], row.callee[index])
            called[index + self._shift] = (found,)
        for column in (row.attributes, row.more, row.rest) if known.calls else ():
            calling = known.calls.keys() & column
            for index in range(start, end) if calling else ():
                if column[index] in calling:
                    called[index + self._shift] = _called(row, known, index)

    def _resolve_at_once(self, chunk: Chunk, known: Learnt) -> bool:
        """Adds the operands of all plain rows, if no two of them have the same name; returns whether it could.

        An operand may then lie in another computation than its user; `_check_order` finds that out.
        """
        names = chunk.row.name
        indexes = dict(zip(names, range(self._shift, self._shift + len(names)), strict=True))
        if len(indexes) != len(names):
            return False
        try:
            found = _found(chunk.row.operands, indexes, known.dialect.between)
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
                raise GaveUp(opens.line - 1) from None
            start = end
        return 2 * (len(events) // 2), start

    def _resolve(self, chunk: Chunk, known: Learnt, start: int, end: int, *, at_once: bool) -> None:
        """Finishes plain rows that stand in one computation; with `at_once`, their operands have been added before."""
        scope, first = self._scope, start + self._shift
        if scope is None:
            raise GaveUp(chunk.lines[start] - 1)
        roots = chunk.row.root[start:end]
        if "ROOT " in roots:
            self._root(scope, first + roots.index("ROOT "), roots.count("ROOT "))
        if at_once:
            return
        names, indexes = chunk.row.name[start:end], scope.indexes
        size = len(indexes) + end - start
        indexes.update(zip(names, range(first, end + self._shift), strict=True))
        if len(indexes) != size:
            raise GaveUp(scope.line - 1)
        try:
            _extend(self._columns.operands, _found(chunk.row.operands[start:end], indexes, known.dialect.between))
        except KeyError:
            raise GaveUp(scope.line - 1) from None

    def _root(self, scope: Scope, index: int, count: int) -> None:
        if scope.root is not None or count > 1:
            raise GaveUp(scope.line - 1)
        scope.root = index

    def _do(self, event: Event) -> None:
        scope = self._scope
        if event.does is Doing.OPENS:
            self._scope, self._is_entry = Scope(event.name, event.line, event.place + self._shift), event.is_entry
            return
        if scope is None or event.does is Doing.FAILS:
            raise GaveUp((event.line if scope is None else scope.line) - 1)
        try:
            if event.instruction is not None:
                self._add_odd(scope, event, event.instruction)
            else:
                self._close(scope, event)
        except ReadError:
            raise GaveUp(scope.line - 1) from None

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
            GaveUp: Something is not; the computations before it are kept.
        """
        columns = self._columns
        ends = [row.end for row in columns.computations]
        if not ends:
            return
        first = min(first_early_use(columns, ends[-1]), first_early_call(columns, ends[-1]))
        if first < ends[-1]:
            place = bisect_right(ends, first)
            lost = columns.computations[place:]
            self._builder.computation_names.difference_update(row.name for row in lost)
            del columns.computations[place:]
            columns.entry = columns.entry if columns.entry < place else -1
            raise GaveUp(lost[0].line - 1)


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


def _called(row: Rows, known: Learnt, index: int) -> tuple[tuple[str, str], ...]:
    """Everything that a plain row calls, in printed order."""
    before, *after = (known.calls.get(text[index], ()) for text in (row.attributes, row.more, row.rest))
    cut_out = ((row.calling[index], row.callee[index]),) if row.callee[index] else ()
    return (*before, *cut_out, *chain.from_iterable(after))
