"""The fast path through a module: row by row, many rows at once.

Every line must be one instruction, one computation's head or end, or one row of a table; an instruction in an unusual
form, or on several lines, is parsed separately. Otherwise, or if a name is not defined, the scanner gives up, and the
text is read by the grammar's rule for the whole from that computation on.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache, lru_cache, partial
from itertools import accumulate, compress, count, repeat
from operator import add
from sys import intern
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy

from hloscope.hlo.columns import BLOCK, Builder, Columns, Form, Scope
from hloscope.hlo.grammar import load_language
from hloscope.hlo.lalr import RESERVED, is_known_opcode
from hloscope.hlo.records import (
    LEAF_OPCODES,
    NAME,
    ComputationHead,
    Dialect,
    Instruction,
    ReadError,
    Row,
    Shape,
    StackTableRow,
    cut_attributes,
    detect_dialect,
    is_comment,
    replace_numbers,
)

# ---- the words of a text's lines that the grammar has read, and the results
#
# A word is a shape with its opcode, a run of attributes, a backend's configuration, or the text around the names of an
# operand list. Each is read once per text, however often it occurs. Numbers only matter to the grammar in shapes, so
# all other words are read with every number replaced by 1, and one parse serves all words that differ only in their
# numbers; parses are cached for later texts.

_LINE = "x = f32[] add()"
_COMMENT = re.compile(r"//|/\*(?!index=)")
"""A comment, except XLA's `/*index=5*/`: it could hide the text after the word."""

_names_in = re.compile(rf"(?<![A-Za-z0-9_.-]){NAME}").findall

Called = tuple[tuple[str, str], ...]
"""(attribute key, computation name) for each computation that an instruction calls."""

_Meaning = TypeVar("_Meaning")


def _read_words(
    read: Callable[[str], _Meaning | None], words: Iterable[str], known: Mapping[str, _Meaning] = MappingProxyType({})
) -> dict[str, _Meaning]:
    """The meanings of words; those in an unusual form are left out, and lines with one are parsed separately."""
    found = {word: known[word] if word in known else read(word) for word in set(words)}
    return {word: meaning for word, meaning in found.items() if meaning is not None}


def read_form(opening: str) -> Form | None:
    """The opcode and shape of a word such as `f32[2]{0} add(`; None if its form is unusual."""
    shape, _, opcode = opening.rpartition(" ")
    try:
        return Form(_parse_opcode(opcode, bool(shape)), _parse_shape(shape) if shape else None)
    except ReadError:
        return None


def read_called(attributes: str) -> Called | None:
    """The callees in a run of attributes such as `, channel_id=1, to_apply=%add`; None if its form is unusual."""
    calling = _find_calling_keys(replace_numbers(attributes))
    if not calling:
        return None if calling is None else ()
    return _find_called(attributes, calling)


def read_config(text: str) -> str | None:
    """The text after the metadata, which is empty or a backend's configuration; None if its form is unusual."""
    is_config = _find_calling_keys(replace_numbers(text)) is not None and len(cut_attributes(text)) == 1
    return text if is_config or not text else None


def _read_operands(split: re.Pattern[str], text: str) -> str | None:
    """The names of an operand list whose operands have shapes, joined; None if its form is unusual."""
    first, *parts = split.split(text)
    pieces = (f", {first}", *parts[1:-1:2])
    if text and (not parts or parts[-1] or not all(map(_is_shape_before_name, pieces))):
        return None
    return ", ".join(parts[::2])


@lru_cache(maxsize=1 << 14)
def _is_shape_before_name(piece: str) -> bool:
    """Returns whether the text between two names is like `, f32[2]{0} `."""
    shape = _INDEX_COMMENT.sub("", piece[2:])
    if piece[:2] != ", " or (shape and (not shape.rstrip(" ") or shape[-1] != " ")):
        return False
    try:
        _parse_shape(shape.rstrip(" ") or "f32[]")
    except ReadError:
        return False
    return True


_INDEX_COMMENT = re.compile(r"/\*index=[0-9]+\*/")


def _parse_shape(text: str) -> Shape:
    """The shape in a text of nothing else."""
    if _COMMENT.search(text):
        raise ReadError(0, "a comment")
    shape: Shape = load_language().read("shape", text).shape
    return shape


def _parse_opcode(text: str, has_shape: bool) -> str:
    """The opcode of `add(` or `add(%`. To the grammar, all of XLA's opcodes are alike except two."""
    opcode, names = text.rstrip("(%"), ["x"] if text[-1] == "%" else []
    read_as = "add" if is_known_opcode(opcode) and opcode not in LEAF_OPCODES else opcode
    argument = "0" if opcode in LEAF_OPCODES else "".join(names)
    line = f"x = {'f32[] ' * has_shape}{read_as}{text[len(opcode) :]}{argument})"
    parsed: Instruction = load_language().read("instruction", line)
    operation = parsed.operation
    if (operation.opcode, [operand.name for operand in operation.operands]) != (read_as, names) or operation.attributes:
        raise ReadError(0, "no opcode")
    return opcode


@lru_cache(maxsize=1 << 14)
def _find_calling_keys(form: str) -> frozenset[str] | None:
    """The keys in a run of attributes that name computations; None if the grammar disagrees with the cut."""
    line = _LINE + form
    try:
        parsed: Instruction = load_language().parse("instruction", line)
    except ReadError:
        return None
    attributes = parsed.operation.attributes
    calling = frozenset(item.key for item in attributes if item.callees)
    called = tuple((item.key, callee.name) for item in attributes for callee in item.callees)
    read = [(item.key, line[item.span.start : item.span.end]) for item in attributes]
    is_cut = read == cut_attributes(form) and called == (_find_called(form, calling) if calling else ())
    return calling if is_cut and "".join(f", {key}={value}" for key, value in read) == form else None


def _find_called(text: str, calling: frozenset[str]) -> Called:
    return _list_callees(tuple(_make_callee_finder(calling)(text)))


@lru_cache(maxsize=1 << 8)
def _list_callees(values: tuple[tuple[str, str], ...]) -> Called:
    """Each callee separately; one tuple is shared by the instructions that call the same reducer."""
    return tuple((intern(key), name) for key, value in values for name in _names_in(value))


@cache
def _make_callee_finder(keys: frozenset[str]) -> Callable[[str], list[tuple[str, str]]]:
    return re.compile(rf", ({'|'.join(map(re.escape, keys))})=(\{{[^{{}}]*+\}}|[^,]++)").findall


_HEAD_NAME = re.compile(rf"(?:ENTRY )?%?({NAME})")


def read_head(line: str) -> tuple[str, bool]:
    """The name of the computation that a line opens, and whether it is the entry.

    Raises:
        ReadError: The line opens none; `at_end` if it is only the beginning of one that does.
    """
    found = _HEAD_NAME.match(line)
    head: ComputationHead = load_language().read("computation_head", replace_numbers(line))
    if found is None or replace_numbers(found.group(1)) != head.name.lstrip("%"):
        head = load_language().parse("computation_head", line)
        return head.name.lstrip("%"), head.is_entry
    return found.group(1), head.is_entry


# ---- The lines of a text, cut into rows, and the events between its instructions

MOST_LINES = 64
"""Maximum number of lines of one instruction or head here."""


Rows = Row[tuple[str, ...]]
_NAME = Row._fields.index("name")
_NO_ROWS: Rows = Row._make([()] * len(Row._fields))


class EventKind(Enum):
    """The effect of an event on the computation that is being read."""

    OPENS = auto()
    CLOSES = auto()
    ADDS = auto()
    FAILS = auto()


class RowEvent(NamedTuple):
    """Anything other than a plain row.

    Attributes:
        does: Its effect.
        place: Number of plain rows before it.
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


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words that occur all over a text.

    Attributes:
        forms: Opcode and shape of each opening.
        calling_nothing: The runs of attributes without callees.
    """

    forms: dict[str, Form] = field(default_factory=dict)
    calling_nothing: dict[str, Called] = field(default_factory=dict)


class TextRows:
    """The rows of a part of a text below its preamble, which has `BLOCK` characters and ends with a line.

    Args:
        dialect: The dialect of the text.
        columns: The columns of the text.
        line: 1-based number of the first line.
        vocabulary: The words that were read before; those of this part are added.
        in_computation: Whether the first line is inside a computation.

    Attributes:
        end: The line after the last one.
        row: The columns of the plain rows: those of usual instructions.
        forms: Opcode and shape of each of them.
        called: The callees of each of them.
        lines: The line of each of them.
        events: The events between them.
    """

    def __init__(
        self, dialect: Dialect, columns: Columns, line: int, vocabulary: Vocabulary, *, in_computation: bool
    ) -> None:
        self._columns, self._line = columns, line
        starts = columns.line_starts
        self.end = bisect_right(starts, starts[line - 1] + BLOCK) + 1
        stop = starts[self.end - 1] - 1 if self.end <= len(starts) else len(columns.text)
        self._rows: list[tuple[str, ...]] = dialect.pattern.findall(columns.text, starts[line - 1], stop)
        self._names = [row[_NAME] for row in self._rows]
        self._in_computation = in_computation
        row = self._plain_rows()
        forms = _read_words(read_form, row.opening, vocabulary.forms)
        called = _read_words(read_called, row.attributes, vocabulary.calling_nothing)
        vocabulary.forms.update(forms)
        vocabulary.calling_nothing.update((word, callees) for word, callees in called.items() if not callees)
        words: list[tuple[Mapping[str, object], Sequence[str]]] = [(forms, row.opening), (called, row.attributes)]
        words.append((_read_words(read_config, row.config), row.config))
        lists: dict[str, str] = {}
        if dialect.split is not None:
            lists = _read_words(partial(_read_operands, dialect.split), row.operands)
            words.append((lists, row.operands))
        self._drop_odd(row, words)
        self.events = self._find_events()
        if len(row.name) > sum(map(bool, self._names)):  # some belong to another line or have an unusual form
            row = self._plain_rows()
        self.row = row._replace(operands=tuple(map(lists.__getitem__, row.operands))) if dialect.split else row
        self.forms = list(map(forms.__getitem__, row.opening))
        self.called = list(map(called.__getitem__, row.attributes))
        self.lines = list(compress(range(line, line + len(self._names)), self._names))

    def _plain_rows(self) -> Rows:
        """The columns of the rows that still have a name."""
        found = list(compress(self._rows, self._names))
        return Row._make(zip(*found, strict=True)) if found else _NO_ROWS

    def _drop_odd(self, row: Rows, words: Sequence[tuple[Mapping[str, object], Sequence[str]]]) -> None:
        """Takes the name from the rows with a word in an unusual form, or with a name that cannot be one.

        Args:
            row: The rows.
            words: The known words, and those of each row.
        """
        odd = (
            {number for number, name in enumerate(row.name) if name in RESERVED} if RESERVED & set(row.name) else set()
        )
        for known, column in words:
            if len(known) < len(set(column)):
                odd.update(number for number, word in enumerate(column) if word not in known)
        numbers = list(compress(range(len(self._names)), self._names)) if odd else []
        for number in odd:
            self._names[numbers[number]] = ""

    def _other(self, number: int) -> str:
        """The line of a row that is not plain."""
        row = self._rows[number]
        return self._columns.line_text(self._line + number) if row[_NAME] else row[-1]

    # ---- everything else

    def _find_events(self) -> list[RowEvent]:
        events: list[RowEvent] = []
        odd = [number for number, name in enumerate(self._names) if not name]
        next_row, removed = 0, 0
        for number in odd:
            source = self._other(number)
            if source == "}" and self._in_computation and number >= next_row:
                self._in_computation = False
                events.append(RowEvent(EventKind.CLOSES, number - removed, self._line + number))
            elif source and number >= next_row and (stripped := source.strip(" \t\r")) and not is_comment(stripped):
                event = self._event(stripped, number, number - removed)
                events.append(event)
                next_row = number + event.lines
                self.end = max(self.end, event.line + event.lines)
                removed += self._swallow(number + 1, next_row) if event.lines > 1 else 0
                if event.does is EventKind.FAILS:
                    break
            removed += 1
        return events

    def _swallow(self, start: int, end: int) -> int:
        """Removes rows from the plain ones; returns their number."""
        taken = [number for number in range(start, min(end, len(self._names))) if self._names[number]]
        for number in taken:
            self._names[number] = ""
        return len(taken)

    def _event(self, source: str, number: int, place: int) -> RowEvent:
        """The event for a row that is not plain."""
        line = self._line + number
        try:
            if self._in_computation and source[0] == "}":
                thread = load_language().parse("computation_end", source)
                self._in_computation = False
                return RowEvent(EventKind.CLOSES, place, line, thread=thread)
            if self._in_computation:
                instruction, source, count = self._joined(
                    number, self._other(number), partial(load_language().parse, "instruction")
                )
                return RowEvent(EventKind.ADDS, place, line, count, instruction=instruction, source=source)
            (name, is_entry), source, count = self._joined(number, source, read_head)
        except ReadError:
            return RowEvent(EventKind.FAILS, place, line)
        self._in_computation = True
        return RowEvent(EventKind.OPENS, place, line, count, name=name, is_entry=is_entry)

    def _joined(self, number: int, source: str, read: Callable[[str], Any]) -> tuple[Any, str, int]:
        """The result of reading a line together with the following ones until they are complete, and their number.

        Raises:
            ReadError: The line does not begin as it should, or takes too many lines.
        """
        for taken in range(1, min(MOST_LINES, len(self._columns.line_starts) - self._line - number + 1) + 1):
            try:
                return read(source), source, taken
            except ReadError as error:
                if not error.at_end:
                    raise
            source = f"{source}\n{self._columns.line_text(self._line + number + taken)}"
        raise ReadError(0, "too many lines")


_INDEX_COMMENT_BEHIND_COMMA = re.compile(r", /\*index=[0-9]++\*/")


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
            if preamble.line <= len(self._columns.line_starts):
                self._computations(preamble.line)
        finally:  # the text read before it stopped is checked too, and may send it further back
            self._check_order()
        if not self._columns.computations:
            raise FallbackToGrammar(None)

    def _computations(self, line: int) -> None:
        """Reads the text from a 1-based line on."""
        columns = self._columns
        columns.dialect = detect_dialect(columns.text, columns.line_starts[line - 1])
        self._between = columns.dialect.between
        vocabulary = Vocabulary()
        while line <= len(columns.line_starts):
            rows = TextRows(columns.dialect, columns, line, vocabulary, in_computation=self._scope is not None)
            self._add(rows)
            line = rows.end
        if self._scope is not None:
            raise FallbackToGrammar(self._scope.line - 1, is_cut_off=True)

    def _add(self, rows: TextRows) -> None:
        """Adds the contents of the text to the columns."""
        ends = [event.place for event in rows.events if event.does is EventKind.ADDS]
        ends.append(len(rows.lines))
        self._append(rows, 0, ends.pop(0))
        start = 0
        for event in rows.events:
            self._resolve(rows, start, event.place)
            start = event.place
            self._do(event)
            if event.does is EventKind.ADDS:
                self._append(rows, start, ends.pop(0))
        self._resolve(rows, start, len(rows.lines))

    def _append(self, rows: TextRows, start: int, end: int) -> None:
        """Adds plain rows, still without operands."""
        columns, called = self._columns, rows.called[start:end]
        first = len(columns.names)
        self._shift = first - start
        columns.called.update(compress(zip(count(first), called), called))
        columns.names += rows.row.name[start:end]
        columns.forms += rows.forms[start:end]
        columns.lines.extend(rows.lines[start:end])
        lists = rows.row.operands[start:end]
        counts = list(map(add, map(str.count, lists, repeat(",")), map(bool, lists)))  # a name holds no comma
        columns.operand_starts.extend(accumulate(counts, initial=columns.operand_starts.pop()))

    def _resolve(self, rows: TextRows, start: int, end: int) -> None:
        """Adds roots and operands of plain rows in one computation."""
        if start == end:
            return
        scope, first = self._scope, start + self._shift
        if scope is None:
            raise FallbackToGrammar(rows.lines[start] - 1)
        roots, indexes = rows.row.root[start:end], scope.indexes
        size = len(indexes) + end - start
        indexes.update(zip(rows.row.name[start:end], range(first, end + self._shift), strict=True))
        if len(indexes) != size or roots.count("ROOT ") + (scope.root is not None) > 1:
            raise FallbackToGrammar(scope.line - 1)
        if "ROOT " in roots:
            scope.root = first + roots.index("ROOT ")
        callees = {name for called in filter(None, rows.called[start:end]) for _, name in called}
        if not callees <= self._builder.computation_names:
            raise FallbackToGrammar(scope.line - 1)
        names = self._between.join(filter(None, rows.row.operands[start:end]))
        if not names:
            return
        names = _INDEX_COMMENT_BEHIND_COMMA.sub(", ", names) if "/" in names else names
        try:
            self._columns.operands.extend(map(indexes.__getitem__, names.split(self._between)))
        except KeyError:
            raise FallbackToGrammar(scope.line - 1) from None

    def _do(self, event: RowEvent) -> None:
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

    def _close(self, scope: Scope, event: RowEvent) -> None:
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


_cut_entries = re.compile(r"([A-Za-z_]+)=([0-9]+)").findall
_TITLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


class Preamble:
    """Reads the start of a text, line by line.

    Attributes:
        line: The 1-based number of the next line.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self.line = 1

    def read(self) -> None:
        """Reads header and tables.

        Raises:
            ReadError: The text does not begin with a header, or is not laid out line by line.
        """
        self._skip_blank()
        source = self._peek()
        if not source.lstrip(" \t").startswith("HloModule"):
            raise ReadError(0, "no header")
        self._builder.add_header(load_language().parse("header", source), source)
        self.line += 1
        tables: list[tuple[StackTableRow, ...]] = []
        for title in _TITLES:
            self._skip_blank()
            if self._peek().strip(" \t\r") != title:
                break
            self.line += 1
            tables.append(self._rows(strings=title.endswith("Names")))
        if tables and len(tables) != len(_TITLES):
            raise ReadError(0, "a table is missing")
        self._builder.add_tables(tuple(tables))

    def _rows(self, *, strings: bool) -> tuple[StackTableRow, ...]:
        rows: list[StackTableRow] = []
        while (source := self._peek())[:1].isdigit():
            row = load_language().parse("table_row", source) if strings else self._number_row(source)
            if isinstance(row, str) != strings:
                raise ReadError(0, "a row of another table")
            rows.append(row)
            self.line += 1
        return tuple(rows)

    def _number_row(self, source: str) -> StackTableRow:
        """A row of `FileLocations` or `StackFrames`; rows that differ only in numbers are parsed once."""
        found = {key: int(number) for key, number in _cut_entries(source)}
        is_usual = replace_numbers(source) == f"1 {{{' '.join(f'{key}=1' for key in found)}}}"
        row: StackTableRow = load_language().read("table_row", replace_numbers(source) if is_usual else source)
        return found if is_usual else row

    def _peek(self) -> str:
        return self._builder.columns.line_text(self.line)

    def _skip_blank(self) -> None:
        count = len(self._builder.columns.line_starts)
        while self.line <= count and is_comment(self._peek().strip(" \t\r")):
            self.line += 1


def _find_first_early_use(columns: Columns, end: int) -> int:
    """The first instruction that uses a later one as an operand; `end` if none does."""
    starts = numpy.array(columns.operand_starts)[: end + 1]
    operands = numpy.array(columns.operands[: starts[-1]])
    users = numpy.repeat(numpy.arange(end), numpy.diff(starts))
    early = users[operands >= users]
    return int(early[0]) if len(early) else end
