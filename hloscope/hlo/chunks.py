"""A stretch of whole lines, cut into rows, and the events between its instructions."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import cached_property, partial
from itertools import compress
from typing import Any, NamedTuple

from hloscope.hlo.columns import Form
from hloscope.hlo.language import load_language
from hloscope.hlo.line_cache import Called, LineCache, read_head
from hloscope.hlo.line_patterns import Row, is_comment
from hloscope.hlo.opcodes import RESERVED
from hloscope.hlo.records import Instruction, ReadError

MOST_LINES = 64
"""Maximum number of lines of one instruction, head or header here."""


Rows = Row[tuple[str, ...]]
_NAME = Row._fields.index("name")
_NO_ROWS: Rows = Row._make([()] * len(Row._fields))


class EventKind(Enum):
    """The effect of an event on the computation that is being read."""

    OPENS = auto()
    CLOSES = auto()
    ADDS = auto()
    FAILS = auto()


class ChunkEvent(NamedTuple):
    """Anything other than a plain row.

    Attributes:
        does: Its effect.
        place: Number of plain rows of the chunk before it.
        line: Its 1-based line.
        lines: Number of its lines.
        name: The name of the computation that it opens.
        is_entry: Whether that is the entry.
        thread: The execution thread of the computation that it closes.
        instruction: The instruction that it adds.
        source: The text that the instruction was parsed from.
    """

    does: EventKind
    place: int
    line: int
    lines: int = 1
    name: str = ""
    is_entry: bool = False
    thread: str | None = None
    instruction: Instruction | None = None
    source: str = ""


class _Incomplete(Exception):  # noqa: N818 - no error: the next chunk begins here
    """An instruction or a head continues after the end of the chunk."""


class Chunk:
    """The lines from one offset of a text up to another.

    Args:
        cache: The words of the text's dialect; new ones are added.
        text: The whole text.
        start: Offset of the first line.
        end: Offset after the last line, without its line end.
        line: 1-based number of the first line.
        in_computation: Whether it begins inside a computation.

    Attributes:
        row: The columns of the plain rows: those of usual instructions.
        forms: Opcode and shape of each of them.
        called: The callees of each of them.
        lines: The line of each of them.
        events: The events between them.
        length: Number of lines read: all before one that continues after the end.
        in_computation: Whether the text after them is inside a computation.
    """

    def __init__(self, cache: LineCache, text: str, start: int, end: int, line: int, *, in_computation: bool) -> None:
        self._cache = cache
        self._text = text
        self._start, self._end, self._line = start, end, line
        self._rows: list[tuple[str, ...]] = cache.dialect.pattern.findall(text, start, end)
        self._names = [row[_NAME] for row in self._rows]
        self.in_computation = in_computation
        self.length = len(self._names)
        row = self._plain_rows()
        self._learn(row)
        self.events = self._find_events()
        del self._names[self.length :]
        if len(row.name) > sum(map(bool, self._names)):  # some belong to another line or have an unusual form
            row = self._plain_rows()
        self.row = row
        self.forms: list[Form] = list(map(cache.forms.__getitem__, row.opening))
        self.called: list[Called] = list(map(cache.called.__getitem__, row.attributes))
        if cache.dialect.split is not None:
            self.row = row._replace(operands=tuple(", ".join(cache.operands(operands)) for operands in row.operands))
        self.lines = list(compress(range(line, line + self.length), self._names))

    def _plain_rows(self) -> Rows:
        """The columns of the rows that still have a name."""
        found = list(compress(self._rows, self._names))
        return Row._make(zip(*found, strict=True)) if found else _NO_ROWS

    @cached_property
    def _raw(self) -> list[str]:
        """The unchanged lines."""
        return self._text[self._start : self._end].split("\n")

    def next_start(self) -> int:
        """Offset of the first unread line."""
        if self.length == len(self._rows):
            return self._end + 1
        return self._start + sum(len(line) + 1 for line in self._raw[: self.length])

    def _learn(self, row: Rows) -> None:
        """Learns the new words. Rows with a word in an unusual form lose their name."""
        cache, odd = self._cache, set[int]()
        cache.learn_forms(set(row.opening).difference(cache.forms))
        cache.learn_attributes(set(row.attributes).difference(cache.called))
        cache.learn_configs(set(row.config).difference(cache.configs))
        if cache.odd:
            words = zip(row.opening, row.attributes, row.config, strict=True)
            odd.update(number for number, found in enumerate(words) if not cache.odd.isdisjoint(found))
        if not RESERVED.isdisjoint(row.name):
            odd.update(number for number, name in enumerate(row.name) if name in RESERVED)
        if cache.dialect.split is not None:
            odd.update(number for number, operands in enumerate(row.operands) if not cache.can_read(operands))
        numbers = list(compress(range(self.length), self._names)) if odd else []
        for number in odd:
            self._names[numbers[number]] = ""

    def _other(self, number: int) -> str:
        """The line of a row that is not plain."""
        row = self._rows[number]
        return self._raw[number] if row[_NAME] else row[-1]

    # ---- everything else

    def _find_events(self) -> list[ChunkEvent]:
        events: list[ChunkEvent] = []
        odd = [number for number, name in enumerate(self._names) if not name]
        next_row, removed = 0, 0
        for number in odd:
            source = self._other(number)
            if source == "}" and self.in_computation and number >= next_row:
                self.in_computation = False
                events.append(ChunkEvent(EventKind.CLOSES, number - removed, self._line + number))
            elif source and number >= next_row and (stripped := source.strip(" \t\r")) and not is_comment(stripped):
                try:
                    event = self._event(stripped, number, number - removed)
                except _Incomplete:
                    self.length = number
                    break
                events.append(event)
                next_row = number + event.lines
                removed += self._swallow(number + 1, next_row) if event.lines > 1 else 0
                if event.does is EventKind.FAILS:
                    break
            removed += 1
        return events

    def _swallow(self, start: int, end: int) -> int:
        """Removes rows from the plain ones; returns their number."""
        taken = [number for number in range(start, end) if self._names[number]]
        for number in taken:
            self._names[number] = ""
        return len(taken)

    def _event(self, source: str, number: int, place: int) -> ChunkEvent:
        """The event for a row that is not plain."""
        line = self._line + number
        try:
            if self.in_computation and source[0] == "}":
                thread = load_language().parse("computation_end", source)
                self.in_computation = False
                return ChunkEvent(EventKind.CLOSES, place, line, thread=thread)
            if self.in_computation:
                instruction, source, count = self._joined(
                    number, self._other(number), partial(load_language().parse, "instruction")
                )
                return ChunkEvent(EventKind.ADDS, place, line, count, instruction=instruction, source=source)
            (name, is_entry), source, count = self._joined(number, source, read_head)
        except ReadError:
            return ChunkEvent(EventKind.FAILS, place, line)
        self.in_computation = True
        return ChunkEvent(EventKind.OPENS, place, line, count, name=name, is_entry=is_entry)

    def _joined(self, number: int, source: str, read: Callable[[str], Any]) -> tuple[Any, str, int]:
        """The result of reading a line together with the following ones until they are complete, and their number.

        Raises:
            ReadError: The line does not begin as it should.
            _Incomplete: It continues after the end of the chunk.
        """
        for taken in range(1, MOST_LINES + 1):
            try:
                return read(source), source, taken
            except ReadError as error:
                if not error.at_end:
                    raise
            if number + taken >= len(self._rows):
                break
            source = f"{source}\n{self._raw[number + taken]}"
        if taken == MOST_LINES or self._end >= len(self._text):
            raise ReadError(0, "too many lines")
        raise _Incomplete
