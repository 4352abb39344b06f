"""The quick way through a module: line by line, by skeletons.

Every line must be one instruction, one computation's head or end, or one row of a table; an instruction may take
several lines. Where that does not hold, or a name is not defined, the scanner gives up, and the text is read by the
grammar's rule for the whole from that computation on.
"""

from __future__ import annotations

from hloscope.hlo.builder import Builder, Scope
from hloscope.hlo.holes import BACKEND_CONFIG, METADATA, operand_names
from hloscope.hlo.language import language
from hloscope.hlo.records import ReadError, Row
from hloscope.hlo.skeletons import read_head, read_number_row, skeletons
from hloscope.hlo.templates import Template
from hloscope.hlo.unusual import Unusual

LEAST_LEARNT = 2000
"""New skeletons that every text is allowed."""

MOST_LINES = 64
"""Lines that one instruction or head may take here."""


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
        self._lines = builder.columns.text.split("\n")
        self._learnt = 0
        self._tails: dict[str, tuple[str, ...]] = {}
        self._skeletons = skeletons(percent="\n  %" in builder.columns.text or "\n  ROOT %" in builder.columns.text)

    def scan(self) -> None:
        """Reads the whole text.

        Raises:
            GaveUp: It is not laid out line by line, or it is not valid.
        """
        try:
            number = self._tables(self._header())
        except (ReadError, IndexError):
            raise GaveUp(None) from None
        lines = self._lines
        while (number := self._next_filled(number)) < len(lines):
            try:
                number = self._computation(number)
            except IndexError:
                raise GaveUp(number, is_cut_off=True) from None
            except (ReadError, KeyError):
                raise GaveUp(number) from None
        if not self._columns.computations:
            raise GaveUp(None)
        self._skeletons.keep()

    def _header(self) -> int:
        number = self._next_filled(0)
        if not self._lines[number].lstrip(" \t").startswith("HloModule"):
            raise GaveUp(None)
        for _ in range(MOST_LINES):
            try:
                line = self._lines[number]
                self._builder.add_header(language().parse("header", line), line)
            except ReadError as error:
                if not error.at_end:
                    raise
                self._join(number)
            else:
                return number + 1
        raise GaveUp(None)

    def _tables(self, number: int) -> int:
        tables: list[tuple[Row, ...]] = []
        for title in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            start = self._next_filled(number)
            if start == len(self._lines) or self._lines[start].strip(" \t\r") != title:
                break
            number, rows = self._rows(start + 1, strings=title.endswith("Names"))
            tables.append(rows)
        if tables and len(tables) != 4:
            raise GaveUp(None)
        self._builder.add_tables(tuple(tables))
        return number

    def _rows(self, number: int, *, strings: bool) -> tuple[int, tuple[Row, ...]]:
        rows: list[Row] = []
        lines = self._lines
        while lines[number][:1].isdigit():
            row = language().parse("table_row", lines[number]) if strings else read_number_row(lines[number])
            if isinstance(row, str) != strings:
                raise GaveUp(None)
            rows.append(row)
            number += 1
        return number, tuple(rows)

    def _computation(self, start: int) -> int:
        """Reads the computation whose head is on line `start`; returns the line after it."""
        builder = self._builder
        name, is_entry = self._head(start)
        scope = builder.open_scope_on_line(name, start + 1)
        number = self._body(start + 1, scope)
        if len(scope.indexes) != len(self._columns.names) - scope.first or not scope.indexes:
            raise GaveUp(start)
        end = self._lines[number].rstrip(" \t\r")
        thread = None if end == "}" else language().parse("computation_end", end)
        builder.close_scope(scope, is_entry=is_entry, thread=thread, position=0)
        return number + 1

    def _head(self, number: int) -> tuple[str, bool]:
        for _ in range(MOST_LINES):
            try:
                return read_head(self._lines[number])
            except ReadError as error:
                if not error.at_end:
                    raise
                self._join(number)
        raise GaveUp(number)

    def _body(self, number: int, scope: Scope) -> int:
        """Reads instructions from line `number` on; returns the line of the closing brace."""
        columns, lines = self._columns, self._lines
        cut_head, known = self._skeletons.dialect.cut_head, self._skeletons.known
        names, forms, operands = columns.names, columns.forms, columns.operands
        add_line, add_start = columns.lines.append, columns.operand_starts.append
        indexes, index_of = scope.indexes, scope.indexes.__getitem__
        while (line := lines[number])[:1] != "}":
            metadata = line.find(METADATA)  # as `tails`, without the price of a call
            config = line.find(BACKEND_CONFIG, metadata if metadata > 0 else 0)
            if metadata < 0 and config < 0:
                parts = cut_head(line)
                form = known.get(tuple(parts[::2]))
            else:
                parts = cut_head(line[: config if metadata < 0 else metadata])
                form = known.get((*parts[::2], *self._tail_pieces(line, metadata, config)))
            if form.__class__ is not Template:
                number = self._unusual(number, scope, form)
                continue
            place = form.operand_list
            if place:
                hole = parts[place]
                found = operand_names(hole) if "/" in hole else hole[1:].replace("%", "").split(", ")
                operands.extend(map(index_of, found))
            elif form.operands:
                operands.extend([index_of(item.text(parts).lstrip("%")) for item in form.operands])
            if form.called or form.is_root:
                self._note(form, parts, scope)
            name = parts[1].lstrip("%")
            indexes[name] = len(names)
            names.append(name)
            forms.append(form)
            add_line(number + 1)
            add_start(len(operands))
            number += 1
        return number

    def _tail_pieces(self, line: str, metadata: int, config: int) -> tuple[str, ...]:
        """The skeleton of a line's tails, which begin at the given places."""
        found = self._tails
        last = line[config:] if config >= 0 else line[metadata:]
        pieces = found.get(last) or self._cut_tail(last)
        if metadata < 0 or config < 0:
            return pieces
        middle = line[metadata:config]
        return (found.get(middle) or self._cut_tail(middle)) + pieces

    def _cut_tail(self, tail: str) -> tuple[str, ...]:
        pieces = self._tails[tail] = tuple(self._skeletons.dialect.cut_tail(tail)[::2])
        return pieces

    def _note(self, form: Template, parts: list[str], scope: Scope) -> None:
        """Notes what few instructions have: that it is the root, and what it calls."""
        index = len(self._columns.names)
        if form.is_root:
            if scope.root is not None:
                raise ReadError(0, "a second root")
            scope.root = index
        called = tuple((key, place.text(parts).lstrip("%=")) for key, place in form.called)
        if not self._builder.computation_names.issuperset(name for _, name in called):
            raise ReadError(0, "an undefined computation")
        if called:
            self._columns.called[index] = called

    def _unusual(self, number: int, scope: Scope, form: object) -> int:
        """Deals with a line that has no template; returns the line to go on with."""
        line = self._lines[number]
        stripped = line.strip(" \t\r")
        if not stripped or stripped.startswith("//"):
            return number + 1
        if stripped[0] == "}":
            self._lines[number] = stripped
        elif form is None:
            self._learn(line)
        elif form is Unusual.INCOMPLETE:
            self._join(number)
        else:
            return self._irregular(number, scope)
        return number

    def _learn(self, line: str) -> None:
        """Learns a skeleton; gives up where most lines have one of their own, which the whole rule reads faster."""
        self._learnt += 1
        if self._learnt > LEAST_LEARNT and 2 * self._learnt > len(self._columns.names):
            raise ReadError(0, "too many skeletons")
        self._skeletons.learn(line)

    def _irregular(self, number: int, scope: Scope) -> int:
        try:
            instruction = language().parse("instruction", self._lines[number])
        except ReadError as error:
            if not error.at_end:
                raise
            self._join(number)
            return number
        if any(callee.name is None for item in instruction.operation.attributes for callee in item.callees):
            raise ReadError(0, "an inline computation")
        self._builder.add_line(scope, instruction, self._lines[number], number + 1)
        return number + 1

    def _join(self, number: int) -> None:
        """Moves the next line's text to line `number`, which leaves an empty line there."""
        counts = self._columns.line_counts
        count = counts.get(number + 1, 1)
        if count >= MOST_LINES or number + count >= len(self._lines):
            raise ReadError(0, "too many lines")
        self._lines[number] += "\n" + self._lines[number + count]
        self._lines[number + count] = ""
        counts[number + 1] = count + 1

    def _next_filled(self, number: int) -> int:
        """The next line, from `number` on, that holds more than blanks and a `//` comment."""
        lines = self._lines
        while number < len(lines):
            stripped = lines[number].strip(" \t\r")
            if stripped and not stripped.startswith("//"):
                break
            number += 1
        return number
