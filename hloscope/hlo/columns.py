"""The storage of a module: one column per fact, one entry per instruction, and the tables of source frames.

An instruction's attributes stay in the text and are cut out of its line on demand.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy

from hloscope.hlo.lalr import NEEDED_OPERANDS, RESERVED
from hloscope.hlo.records import (
    LEAF_OPCODES,
    MAX_DEPTH,
    Callee,
    Computation,
    Dialect,
    Header,
    Instruction,
    Operand,
    ParsedOp,
    ReadError,
    Shape,
    StackTableRow,
    TextSpan,
    cut_attributes,
)

BLOCK = 1 << 17
"""Characters of a text that are read at once: more take more memory, and longer, since they do not fit the cache."""


@dataclass(slots=True, eq=False)
class Form:
    """The opcode and shape that many instructions share.

    Attributes:
        opcode: As printed.
        shape: The shape; None if the text omits it.
    """

    opcode: str
    shape: Shape | None


class OddLine(NamedTuple):
    """The parsed parts of an instruction in an unusual form.

    Attributes:
        attributes: Raw value text by key, in printed order.
        argument: The text in the parentheses of a parameter or a constant.
    """

    attributes: Mapping[str, str]
    argument: str | None = None


class ComputationRow(NamedTuple):
    """A computation: its head, and its instructions as a range of the columns."""

    name: str
    line: int
    execution_thread: str | None
    first: int
    end: int
    root: int


class Columns:
    """A module's instructions, by index in text order.

    Attributes:
        text: The whole text.
        file_name: The text's name in errors.
        name: The module's name.
        header: Raw text of each header attribute.
        tables: The stack tables.
        names: Instruction names without `%`.
        forms: Opcode and shape.
        lines: 1-based lines.
        parsed: The instructions whose lines `dialect` cannot cut.
        dialect: The pattern that cuts all other lines, when attributes or arguments are requested.
        operand_starts: The start of each instruction's operands in `operands`; one more entry than instructions.
        operands: Indexes of the operands, one instruction after the other.
        inferred: Shapes that the text omits, once they have been requested.
        called: (attribute key, computation name) for the instructions that call computations.
        computations: The computations, in text order.
        entry: Index of the entry computation; -1 if the text is cut off before it.
        entry_is_implied: Whether the entry is only the last computation, with no `ENTRY` before it.
        truncated: Whether the text is cut off; only its complete computations are included.
        is_single: Whether the text is a single instruction.
        lines_before: Number of lines before this text in its file.
    """

    def __init__(self, text: str, file_name: str | None, lines_before: int = 0) -> None:
        self.text = text
        self.file_name = file_name
        self.name = ""
        self.header: dict[str, str] = {}
        self.tables = FrameTables()
        self.names: list[str] = []
        self.forms: list[Form] = []
        self.lines = array("i")
        self.parsed: dict[int, OddLine] = {}
        self.dialect: Dialect | None = None
        self.operand_starts = array("i", [0])
        self.operands = array("i")
        self.inferred: dict[int, Shape] = {}
        self.called: dict[int, tuple[tuple[str, str], ...]] = {}
        self.computations: list[ComputationRow] = []
        self.entry = -1
        self.entry_is_implied = False
        self.truncated = False
        self.is_single = False
        self.lines_before = lines_before

    def users(self, index: int) -> list[int]:
        """The instructions that have this one as an operand, in text order, each once."""
        starts, users, _ = self._uses
        start, end = starts[index], starts[index + 1]
        return list(dict.fromkeys(users[start:end])) if end - start > 1 else users[start:end].tolist()

    def positions(self, operand: int, user: int) -> list[int]:
        """The positions of an instruction among the operands of another one."""
        starts, users, slots = self._uses
        within = starts[operand], starts[operand + 1]
        found = slots[bisect_left(users, user, *within) : bisect_right(users, user, *within)]
        return [slot - self.operand_starts[user] for slot in found]

    @cached_property
    def _uses(self) -> tuple[array[int], array[int], array[int]]:
        """The inverse of the operand columns: the start of each instruction's uses, the users and the positions."""
        operands = numpy.array(self.operands)
        users = numpy.repeat(numpy.arange(len(self.names)), numpy.diff(numpy.array(self.operand_starts)))
        counts = numpy.bincount(operands, minlength=len(self.names))
        starts = numpy.concatenate([[0], numpy.cumsum(counts)])
        slots = numpy.argsort(operands, kind="stable")
        return _convert_to_array(starts), _convert_to_array(users[slots]), _convert_to_array(slots)

    @cached_property
    def relative_operands(self) -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]:
        """The number of operands of each instruction, and the operands, each relative to its computation's first."""
        counts = numpy.diff(numpy.array(self.operand_starts))
        sizes = [row.end - row.first for row in self.computations]
        firsts = numpy.repeat([row.first for row in self.computations], sizes)
        return counts, numpy.array(self.operands) - numpy.repeat(firsts, counts)

    def attributes(self, index: int) -> Mapping[str, str]:
        """Raw value text by key, in printed order."""
        parsed = self.parsed.get(index)
        if parsed is not None:
            return parsed.attributes
        row = self.dialect and self.dialect.pattern.match(self.text, self.line_start(index))
        assert row, "the line was cut in this way before"
        found = dict(cut_attributes(row[5]))
        if row[6]:
            found["metadata"] = row[6]
        if row[7]:
            found["backend_config"] = row[7].partition("=")[2].rstrip(" ")
        return found

    def argument(self, index: int) -> str | None:
        """The text in the parentheses of a parameter or a constant; None for other opcodes."""
        parsed = self.parsed.get(index)
        if parsed is not None:
            return parsed.argument
        opcode = self.forms[index].opcode
        if opcode not in LEAF_OPCODES:
            return None
        opening = f" {opcode}("
        start = self.text.index(opening, self.line_start(index)) + len(opening)
        return self.text[start : self.text.index(")", start)]

    def line_text(self, line: int) -> str:
        """The text of a 1-based line, without its end; empty behind the last line."""
        starts = self.line_starts[line - 1 : line + 1]
        return self.text[starts[0] : starts[1] - 1 if len(starts) > 1 else None] if starts else ""

    def line_start(self, index: int) -> int:
        """Offset of an instruction's first line."""
        return self.line_starts[self.lines[index] - 1]

    @cached_property
    def line_starts(self) -> array[int]:
        """Offset of each line."""
        found = array("q", [0])
        for start in range(0, len(self.text), BLOCK):
            part = self.text[start : start + BLOCK].encode("latin-1", "replace")  # one byte for each character
            ends = numpy.flatnonzero(numpy.frombuffer(part, dtype=numpy.uint8) == ord("\n"))
            found.extend(_convert_to_array(ends + (start + 1), "q"))
        return found


def _convert_to_array(numbers: numpy.ndarray[Any, Any], kind: str = "i") -> array[int]:
    """The same numbers as an array, which is faster than NumPy for single items."""
    return array(kind, numbers.astype(kind).tobytes())


class StackFrame(NamedTuple):
    """One frame of the Python stack that made an instruction.

    Attributes:
        file: The file's name as XLA was given it.
        line: 1-based line; 0 if XLA was given none.
        function: The function's qualified name.
        column: As printed.
    """

    file: str
    line: int
    function: str
    column: int


_LOCATION = ("file_name_id", "function_name_id", "line", "column", "end_line", "end_column")
"""The fields of a row of `FileLocations`, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTables:
    """The four stack tables of a module, by id - 1.

    Attributes:
        file_names: `FileNames`.
        function_names: `FunctionNames`.
        file_locations: `FileLocations`, the numbers of `_LOCATION`.
        stack_frames: `StackFrames`, as (file_location_id, parent frame id); the parent is the real id, 0 for none,
        although the text prints it plus one.
    """

    file_names: tuple[str, ...] = ()
    function_names: tuple[str, ...] = ()
    file_locations: tuple[tuple[int, ...], ...] = ()
    stack_frames: tuple[tuple[int, int], ...] = ()

    def frames(self, stack_frame_id: int) -> tuple[StackFrame, ...]:
        """The frames of one id, innermost first, up to the first id that the tables do not have.

        A repeated parent ends the walk.
        """
        found: list[StackFrame] = []
        seen: set[int] = set()
        frame_id = stack_frame_id
        while 0 < frame_id <= len(self.stack_frames) and frame_id not in seen:
            seen.add(frame_id)
            location_id, frame_id = self.stack_frames[frame_id - 1]
            if not 0 < location_id <= len(self.file_locations):
                break
            file_id, function_id, line, column, _, _ = self.file_locations[location_id - 1]
            if not (0 < file_id <= len(self.file_names) and 0 < function_id <= len(self.function_names)):
                break
            found.append(StackFrame(self.file_names[file_id - 1], line, self.function_names[function_id - 1], column))
        return tuple(found)


def make_frame_tables(
    file_names: tuple[StackTableRow, ...],
    function_names: tuple[StackTableRow, ...],
    file_locations: tuple[StackTableRow, ...],
    stack_frames: tuple[StackTableRow, ...],
) -> FrameTables:
    """The stack tables as numbers. XLA prints a frame's parent as its real id plus one."""
    locations = [row for row in file_locations if isinstance(row, dict)]
    frames = [row for row in stack_frames if isinstance(row, dict)]
    return FrameTables(
        file_names=tuple(str(row) for row in file_names),
        function_names=tuple(str(row) for row in function_names),
        file_locations=tuple(tuple(row.get(key, 0) for key in _LOCATION) for row in locations),
        stack_frames=tuple((row.get("file_location_id", 0), row.get("parent_frame_id", 1) - 1) for row in frames),
    )


# ---- conversion of the grammar's records to columns


@dataclass(slots=True)
class Scope:
    """A computation under construction: the instructions defined so far, and the parameters that are only implied."""

    name: str
    line: int
    first: int
    indexes: dict[str, int] = field(default_factory=dict)
    root: int | None = None
    implied: int = 0


class Builder:
    """Fills columns from records, whose spans are offsets in `text` relative to `base`.

    Attributes:
        columns: The columns built so far.
        computation_names: The complete computations; XLA defines each one before it is used.
        open_computation: Name and offset of the computation under construction, for error texts.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.computation_names: set[str] = set()
        self.open_computation: tuple[str, int] | None = None
        self._base = 0
        self._implies_parameters = False
        self._line = 1
        self._counted_to = 0
        self._source = columns.text
        self._source_line: int | None = None

    def add_header(self, header: Header, source: str) -> None:
        """Adds the module's name and header attributes, whose spans are offsets in `source`."""
        self.columns.name = header.name
        self.columns.header = {item.key: source[item.span.start : item.span.end] for item in header.attributes}

    def add_tables(self, tables: tuple[tuple[StackTableRow, ...], ...]) -> None:
        """Adds the four stack tables."""
        if tables:
            self.columns.tables = make_frame_tables(*tables)

    def add_computations(self, computations: tuple[Computation, ...], base: int = 0) -> None:
        """Adds computations whose spans count from offset `base` of the text.

        Raises:
            ReadError: A name is not defined or defined twice; with an offset of the whole text.
        """
        self._base = base
        for computation in computations:
            head, body = computation.head, computation.instructions
            self.open_computation = name, position = head.name.lstrip("%"), base + head.span.start
            self._add(name, position, body, is_entry=head.is_entry, thread=computation.execution_thread)
            self.open_computation = None

    def add_single(self, instruction: Instruction) -> None:
        """Creates a module of one instruction, with a parameter for each of its operands, as XLA does."""
        name = str(instruction.name).lstrip("%") if instruction.name else instruction.operation.opcode
        self.columns.name = name
        self.columns.is_single = True
        self._implies_parameters = True
        self._add(name, 0, (instruction,), is_entry=True)

    def _add(
        self,
        name: str,
        position: int,
        instructions: tuple[Instruction, ...],
        *,
        is_entry: bool = False,
        thread: str | None = None,
        depth: int = 0,
    ) -> None:
        """Adds a computation that begins at an offset of the whole text, after those nested inside it."""
        if depth > MAX_DEPTH:
            raise ReadError(position, f"inline computations nest deeper than {MAX_DEPTH} levels")
        for instruction in instructions:
            for _, body, callee in _find_callees(name, instruction):
                if callee.name is None:
                    self._add(body, self._base + callee.span.start, callee.body, depth=depth + 1)
        scope = Scope(name, self._line_at(position), len(self.columns.names))
        for instruction in instructions:
            self._add_instruction(scope, instruction)
        self.close_scope(scope, is_entry=is_entry, thread=thread, position=position)

    def add_line(self, scope: Scope, instruction: Instruction, source: str, line: int) -> None:
        """Adds an instruction that was parsed from `source`, which begins on a 1-based line."""
        self._source, self._source_line = source, line
        try:
            self._add_instruction(scope, instruction)
        finally:
            self._source, self._source_line = self.columns.text, None

    def rollback(self) -> None:
        """Removes the instructions of the incomplete computation."""
        columns = self.columns
        end = columns.computations[-1].end if columns.computations else 0
        del columns.names[end:], columns.forms[end:]
        del columns.lines[end:], columns.operand_starts[end + 1 :]
        del columns.operands[columns.operand_starts[end] :]
        columns.called = {index: called for index, called in columns.called.items() if index < end}
        columns.parsed = {index: parsed for index, parsed in columns.parsed.items() if index < end}

    def close_scope(
        self, scope: Scope, *, is_entry: bool, thread: str | None, position: int, end: int | None = None
    ) -> None:
        """Ends a computation. The root is the instruction marked `ROOT`, otherwise the last one.

        Args:
            scope: The computation.
            is_entry: Whether it is marked `ENTRY`.
            thread: Its execution thread.
            position: Its offset, for errors.
            end: The instruction after its last one; by default all that have been added are its own.
        """
        end = len(self.columns.names) if end is None else end
        root = end - 1 if scope.root is None else scope.root
        columns = self.columns
        if scope.name in self.computation_names:
            raise ReadError(position, f"computation %{scope.name} is defined twice")
        if is_entry and columns.entry >= 0:
            raise ReadError(position, "a second computation is marked `ENTRY`")
        if is_entry:
            columns.entry = len(columns.computations)
        self.computation_names.add(scope.name)
        columns.computations.append(ComputationRow(scope.name, scope.line, thread, scope.first, end, root))

    def finish(self, *, truncated: bool = False) -> None:
        """Finishes the columns with facts of the whole text: without `ENTRY`, the last computation is the entry.

        A text that is cut off may have lost its `ENTRY`; then it has no entry.
        """
        columns = self.columns
        columns.truncated = truncated
        if columns.entry < 0 and not truncated:
            columns.entry = len(columns.computations) - 1
            columns.entry_is_implied = True
        if not columns.name:
            columns.name = columns.computations[columns.entry].name

    def _add_instruction(self, scope: Scope, instruction: Instruction) -> None:
        operation = instruction.operation
        name = str(instruction.name).lstrip("%") if instruction.name else operation.opcode
        start = operation.span.start if instruction.name is None else instruction.name.start_pos or 0
        if instruction.name in RESERVED:
            raise ReadError(self._base + start, f"an instruction cannot have the name {instruction.name}")
        called = self._called(scope, instruction)
        operands = self._operands(scope, operation)
        index = len(self.columns.names)
        if name in scope.indexes:
            raise ReadError(self._base + start, f"%{name} is defined twice in computation %{scope.name}")
        if instruction.is_root and scope.root is not None:
            raise ReadError(self._base + start, f"a second instruction of computation %{scope.name} is marked `ROOT`")
        if instruction.is_root:
            scope.root = index
        self._append_operation(scope, name, start, operation, operands)
        if called:
            self.columns.called[index] = called

    def _append_operation(self, scope: Scope, name: str, start: int, operation: ParsedOp, operands: list[int]) -> int:
        attributes = {item.key: self._text(item.span) for item in operation.attributes}
        argument = None if operation.argument is None else self._text(operation.argument)
        shape = None if operation.shape is None else operation.shape.shape
        return self._append(scope, name, start, Form(operation.opcode, shape), OddLine(attributes, argument), operands)

    def _append(self, scope: Scope, name: str, start: int, form: Form, parsed: OddLine, operands: list[int]) -> int:
        columns = self.columns
        index = len(columns.names)
        scope.indexes[name] = index
        columns.names.append(name)
        columns.forms.append(form)
        columns.parsed[index] = parsed
        columns.lines.append(self._line_at(self._base + start))
        columns.operands.extend(operands)
        columns.operand_starts.append(len(columns.operands))
        return index

    def _operands(self, scope: Scope, operation: ParsedOp) -> list[int]:
        """The indexes of the operands. Nameless ones are dropped, as by XLA, if enough operands are left."""
        lone, needed = self._implies_parameters, NEEDED_OPERANDS.get(operation.opcode, 0)
        named = [item for item in operation.operands if item.name or item.nested or (lone and item.shape)]
        if len(named) < min(needed, len(operation.operands)):
            what = f"an operand has no name: {operation.opcode} needs {needed} named operands, but has {len(named)}"
            raise ReadError(self._base + operation.span.start, what)
        return [self._operand(scope, operand) for operand in named]

    def _operand(self, scope: Scope, operand: Operand) -> int:
        if operand.nested is not None:
            nested = operand.nested
            operands = self._operands(scope, nested)
            name = f"{nested.opcode}#{len(self.columns.names)}"
            return self._append_operation(scope, name, nested.span.start, nested, operands)
        index = scope.indexes.get(operand.name or "")
        if index is None and self._implies_parameters:
            index = self._implied_parameter(scope, operand)
        if index is None:
            what = (
                f"%{operand.name or ''} is used in computation %{scope.name}, but no instruction before it has that "
                "name"
            )
            raise ReadError(self._base + operand.span.start, what)
        for tuple_index in operand.indexes:
            index = self._tuple_element(scope, index, tuple_index, operand.span.start)
        return index

    def _implied_parameter(self, scope: Scope, operand: Operand) -> int:
        name = operand.name or f"parameter.{scope.implied}"
        parsed = OddLine({}, str(scope.implied))
        scope.implied += 1
        return self._append(scope, name, operand.span.start, Form("parameter", operand.shape), parsed, [])

    def _tuple_element(self, scope: Scope, index: int, tuple_index: int, start: int) -> int:
        """The instruction for `%t#0`; one for each place, as in XLA."""
        name = f"{self.columns.names[index]}#{tuple_index}"
        if name in scope.indexes:
            return scope.indexes[name]
        parsed = OddLine({"index": str(tuple_index)})
        return self._append(scope, name, start, Form("get-tuple-element", None), parsed, [index])

    def _called(self, scope: Scope, instruction: Instruction) -> tuple[tuple[str, str], ...]:
        called: list[tuple[str, str]] = []
        for key, name, callee in _find_callees(scope.name, instruction):
            if name not in self.computation_names:
                what = f"computation %{name} is called, but no computation before it has that name"
                raise ReadError(self._base + callee.span.start, what)
            called.append((key, name))
        return tuple(called)

    def _text(self, span: TextSpan) -> str:
        return self._source[self._base + span.start : self._base + span.end]

    def _line_at(self, position: int) -> int:
        """The 1-based line of an offset; offsets mostly ascend, so newlines are counted from the previous one."""
        if self._source_line is not None:
            return self._source_line + self._source.count("\n", 0, position)
        text = self.columns.text
        if position >= self._counted_to:
            self._line += text.count("\n", self._counted_to, position)
        else:
            self._line -= text.count("\n", position, self._counted_to)
        self._counted_to = position
        return self._line


def _find_callees(computation: str, instruction: Instruction) -> Iterator[tuple[str, str, Callee]]:
    """The callees of an instruction: key, name and record; `#` marks the names of inline bodies."""
    caller = str(instruction.name or instruction.operation.opcode).lstrip("%")
    for attribute in instruction.operation.attributes:
        for number, callee in enumerate(attribute.callees):
            yield attribute.key, callee.name or f"{computation}#{caller}.{attribute.key}.{number}", callee
