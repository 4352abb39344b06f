"""Conversion of the grammar's records to columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hloscope.hlo.columns import Columns, ComputationRow, Form, OddLine, make_frame_tables
from hloscope.hlo.grammar_actions import MAX_DEPTH
from hloscope.hlo.opcodes import RESERVED, count_needed_operands
from hloscope.hlo.records import (
    Callee,
    Computation,
    Header,
    Instruction,
    Operand,
    ParsedOp,
    ReadError,
    StackTableRow,
    TextSpan,
)


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

    def rollback(self, line: int) -> None:
        """Removes the instructions of the incomplete computation; reading continues from a 1-based line."""
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
        lone, needed = self._implies_parameters, count_needed_operands(operation.opcode)
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
