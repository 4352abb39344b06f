"""The storage of a module: one column per fact, one entry per instruction, and the tables of source frames.

An instruction's attributes stay in the text and are cut out of its line on demand.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy

from hloscope.hlo.line_patterns import LEAF_OPCODES, Dialect, cut_attributes
from hloscope.hlo.records import StackTableRow
from hloscope.hlo.shape import Shape

_BLOCK = 1 << 20
"""Number of characters that are searched for line ends at a time."""


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
        self.lines = array("q")
        self.parsed: dict[int, OddLine] = {}
        self.dialect: Dialect | None = None
        self.operand_starts = array("q", [0])
        self.operands = array("q")
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
        operands = numpy.array(self.operands, dtype=numpy.int64)
        users = numpy.repeat(numpy.arange(len(self.names)), numpy.diff(numpy.array(self.operand_starts)))
        counts = numpy.bincount(operands, minlength=len(self.names))
        starts = numpy.concatenate([[0], numpy.cumsum(counts)])
        slots = numpy.argsort(operands, kind="stable")
        return _convert_to_array(starts), _convert_to_array(users[slots]), _convert_to_array(slots)

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

    def line_start(self, index: int) -> int:
        """Offset of an instruction's first line."""
        return self.line_starts[self.lines[index] - 1]

    @cached_property
    def line_starts(self) -> array[int]:
        """Offset of each line."""
        found = array("q", [0])
        for start in range(0, len(self.text), _BLOCK):
            characters = numpy.frombuffer(self.text[start : start + _BLOCK].encode("latin-1", "replace"), numpy.uint8)
            found.extend(_convert_to_array(numpy.flatnonzero(characters == ord("\n")) + (start + 1)))
        return found


def _convert_to_array(numbers: numpy.ndarray[Any, Any]) -> array[int]:
    """The same numbers as an array, which is faster than NumPy for single items."""
    return array("q", numbers.astype(numpy.int64).tobytes())


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
