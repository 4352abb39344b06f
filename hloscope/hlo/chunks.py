"""A stretch of whole lines, cut into rows, and what has to be done between its instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from functools import cached_property
from itertools import compress, count
from typing import Any, NamedTuple

from hloscope.hlo.attribute_skeletons import Irregular
from hloscope.hlo.language import language
from hloscope.hlo.line_cache import Form, LineCache
from hloscope.hlo.line_patterns import Row
from hloscope.hlo.opcodes import RESERVED
from hloscope.hlo.records import Instruction, ReadError

MOST_LINES = 64
"""Lines that one instruction or head may take here."""


Rows = Row[tuple[str, ...]]
_NAME = Row._fields.index("name")
_NO_ROWS: Rows = Row._make([()] * len(Row._fields))


class Words(NamedTuple):
    """What was learnt from the words of plain rows.

    Attributes:
        forms: Opcode and shape of each row.
        leading_attributes: The attributes of each row before `calling`, equal ones as one string.
        trailing_attributes: What comes after the metadata, likewise.
        more: The attributes between `calling` and the metadata, by the number of the row, where there are any.
    """

    forms: list[Form]
    leading_attributes: list[str]
    trailing_attributes: list[str]
    more: dict[int, str]


class Doing(Enum):
    """What an event does to the computation that is being read."""

    OPENS = auto()
    CLOSES = auto()
    ADDS = auto()
    FAILS = auto()


class Event(NamedTuple):
    """Anything else than a plain row.

    Attributes:
        does: What it does.
        place: Plain rows of the chunk before it.
        line: Its 1-based line.
        lines: How many lines it takes.
        name: Of the computation that it opens.
        is_entry: Whether that is the entry.
        thread: The execution thread of the computation that it closes.
        instruction: What it adds.
        source: The text that the instruction was parsed from.
    """

    does: Doing
    place: int
    line: int
    lines: int = 1
    name: str = ""
    is_entry: bool = False
    thread: str | None = None
    instruction: Instruction | None = None
    source: str = ""


class _Incomplete(Exception):  # noqa: N818 - no error: the next chunk begins here
    """An instruction or a head goes on behind the end of the chunk."""


class Chunk:
    """The lines from one offset of a text up to another.

    Args:
        cache: The words of the text's dialect; new ones are added.
        text: The whole text.
        start: Offset of the first line.
        end: Offset behind the last line, without its line end.
        line: 1-based number of the first line.
        in_computation: Whether it stands in a computation.

    Attributes:
        row: The columns of the plain rows: those of usual instructions.
        words: What was learnt from their words.
        lines: The line of each of them.
        events: What is to be done between them.
        length: Lines that were read: all up to one that goes on behind the end.
        in_computation: Whether what comes after them stands in a computation.
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
        words = self._look_up(row)
        changed = self._put_odd_rows_aside(row, are_known=words is not None)
        self.events = self._find_events()
        if changed or self.length < len(self._rows) or any(event.lines > 1 for event in self.events):
            del self._names[self.length :]
            row, words = self._plain_rows(), None
        if cache.dialect.split is not None:
            row = row._replace(operands=tuple(", ".join(cache.operands(operands)) for operands in row.operands))
        self.row = row
        self.words = words or self._known_words(row)
        self.lines = list(compress(range(line, line + self.length), self._names))

    def _plain_rows(self) -> Rows:
        """The columns of the rows that have a name still."""
        found = list(compress(self._rows, self._names))
        return Row._make(zip(*found, strict=True)) if found else _NO_ROWS

    @cached_property
    def _raw(self) -> list[str]:
        """The lines, word for word."""
        return self._text[self._start : self._end].split("\n")

    def next_start(self) -> int:
        """Offset of the first line that was not read."""
        if self.length == len(self._rows):
            return self._end + 1
        return self._start + sum(len(line) + 1 for line in self._raw[: self.length])

    # ---- the words of plain rows

    def _look_up(self, row: Rows) -> Words | None:
        """What is known of the words of plain rows; None where one of them is new."""
        try:
            return self._known_words(row)
        except KeyError:
            return None

    def _known_words(self, row: Rows) -> Words:
        """What was learnt from the words of plain rows.

        Raises:
            KeyError: One of them is new.
        """
        cache = self._cache
        return Words(
            list(map(cache.forms.__getitem__, row.opening)),
            list(map(cache.leading_attributes.__getitem__, row.attributes)),
            list(map(cache.trailing_attributes.__getitem__, row.rest)),
            {number: cache.leading_attributes[row.more[number]] for number in compress(count(), row.more)},
        )

    def _put_odd_rows_aside(self, row: Rows, *, are_known: bool) -> bool:
        """Learns the words that are new. Rows with one that cannot be learnt lose their name; says whether any did."""
        cache = self._cache
        odd: set[int] = set()
        if not are_known:
            odd.update(_odd_rows(row.opening, cache.forms, cache.learn_form))
            odd.update(_odd_rows(row.attributes, cache.leading_attributes, cache.learn_leading))
            odd.update(_odd_rows(row.more, cache.leading_attributes, cache.learn_leading))
            odd.update(_odd_rows(row.rest, cache.trailing_attributes, cache.learn_trailing))
        if cache.dialect.split is not None:
            odd |= _failing(range(len(row.name)), lambda number: cache.operands(row.operands[number]))
        if not RESERVED.isdisjoint(row.name):
            odd |= {number for number, name in enumerate(row.name) if name in RESERVED}
        doubtful = [number for number in _with_several_runs(row, cache) if number not in odd]
        odd |= _failing(doubtful, lambda number: cache.check_unique(Row(*(column[number] for column in row))))
        if odd:
            numbers = list(compress(range(self.length), self._names))
            for number in odd:
                self._names[numbers[number]] = ""
        return bool(odd)

    def _other(self, number: int) -> str:
        """The line of a row that is no plain one."""
        row = self._rows[number]
        return self._raw[number] if row[_NAME] else row[-1]

    # ---- everything else

    def _find_events(self) -> list[Event]:
        events: list[Event] = []
        odd = [number for number, name in enumerate(self._names) if not name]
        next_row, removed = 0, 0
        for number in odd:
            source = self._other(number)
            if source == "}" and self.in_computation and number >= next_row:
                self.in_computation = False
                events.append(Event(Doing.CLOSES, number - removed, self._line + number))
            elif source and number >= next_row and (stripped := source.strip(" \t\r")) and stripped[:2] != "//":
                try:
                    event = self._event(stripped, number, number - removed)
                except _Incomplete:
                    self.length = number
                    break
                events.append(event)
                next_row = number + event.lines
                removed += self._swallow(number + 1, next_row) if event.lines > 1 else 0
                if event.does is Doing.FAILS:
                    break
            removed += 1
        return events

    def _swallow(self, start: int, end: int) -> int:
        """Takes rows out of the plain ones; returns how many it took."""
        taken = [number for number in range(start, end) if self._names[number]]
        for number in taken:
            self._names[number] = ""
        return len(taken)

    def _event(self, source: str, number: int, place: int) -> Event:
        """What a row does that is no plain one."""
        line = self._line + number
        try:
            if self.in_computation and source[0] == "}":
                thread = language().parse("computation_end", source)
                self.in_computation = False
                return Event(Doing.CLOSES, place, line, thread=thread)
            if self.in_computation:
                instruction, source, count = self._joined(number, self._other(number), _instruction)
                return Event(Doing.ADDS, place, line, count, instruction=instruction, source=source)
            (name, is_entry), source, count = self._joined(number, source, self._cache.signatures.read)
        except ReadError:
            return Event(Doing.FAILS, place, line)
        self.in_computation = True
        return Event(Doing.OPENS, place, line, count, name=name, is_entry=is_entry)

    def _joined(self, number: int, source: str, read: Callable[[str], Any]) -> tuple[Any, str, int]:
        """What is read from a line, taken together with those after it until they are whole, and how many they are.

        Raises:
            ReadError: The line is no beginning of what it should be.
            _Incomplete: It goes on behind the end of the chunk.
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


def _odd_rows(column: tuple[str, ...], known: Mapping[str, object], learn: Callable[[str], None]) -> list[int]:
    """Learns what is new in a column; returns the rows where that fails."""
    new = list(set(column).difference(known))
    odd = {new[number] for number in _failing(range(len(new)), lambda number: learn(new[number]))}
    return [number for number, word in enumerate(column) if word in odd] if odd else []


def _failing(numbers: Iterable[int], read: Callable[[int], object]) -> set[int]:
    """The numbers whose reading fails."""
    failing = set()
    for number in numbers:
        try:
            read(number)
        except (ReadError, Irregular):
            failing.add(number)
    return failing


def _with_several_runs(row: Rows, cache: LineCache) -> list[int]:
    """The rows in which a key may stand twice."""
    unusual = cache.unusual.intersection(row.rest)
    found = list(compress(range(len(row.more)), row.more))
    return found + [number for number, rest in enumerate(row.rest) if rest in unusual] if unusual else found


def _instruction(text: str) -> Instruction:
    found: Instruction = language().parse("instruction", text)
    return found
