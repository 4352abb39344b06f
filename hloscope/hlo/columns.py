"""The storage of a module: one column per fact, one entry per instruction, and the tables of source frames.

An instruction's attributes stay in the text, and are cut out of its line when somebody asks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy

from hloscope.hlo.line_patterns import LEAVES, Dialect, cut_attributes
from hloscope.hlo.records import Row
from hloscope.hlo.shape import Shape

_BLOCK = 1 << 20
"""Characters in which line ends are looked for at once."""


@dataclass(slots=True, eq=False)
class Form:
    """What many instructions have in common.

    Attributes:
        opcode: As printed.
        shape: None when the text leaves it out.
    """

    opcode: str
    shape: Shape | None


class Parsed(NamedTuple):
    """What was parsed of an instruction that is not printed as usual.

    Attributes:
        attributes: Raw value text by key, in printed order.
        argument: What stands in the parentheses of a parameter or a constant.
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
        lines: 1-based line of the instruction.
        parsed: The instructions whose lines `dialect` does not cut.
        dialect: How the lines of all others are cut, when somebody asks for attributes or arguments.
        operand_starts: Where each instruction's operands begin in `operands`; one more entry than instructions.
        operands: Indexes of the operands, one instruction after the other.
        inferred: Shapes that the text leaves out, once they have been asked for.
        called: (attribute key, computation name) for the instructions that call.
        computations: In text order.
        entry: Index of the entry computation; -1 where the text is cut off before it.
        entry_is_implied: Whether the entry is only the last computation, with no `ENTRY` before it.
        truncated: Whether the text is cut off; only its whole computations are here.
        is_single: Whether the text is one instruction alone.
        lines_before: Lines that come before this text in its file.
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
        self.parsed: dict[int, Parsed] = {}
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
        """The instructions that have one as an operand, in text order, each once."""
        starts, users, _ = self._uses
        start, end = starts[index], starts[index + 1]
        return list(dict.fromkeys(users[start:end])) if end - start > 1 else users[start:end].tolist()

    def positions(self, operand: int, user: int) -> list[int]:
        """Where an instruction stands among the operands of another one."""
        starts, users, slots = self._uses
        within = starts[operand], starts[operand + 1]
        found = slots[bisect_left(users, user, *within) : bisect_right(users, user, *within)]
        return [slot - self.operand_starts[user] for slot in found]

    @cached_property
    def _uses(self) -> tuple[array[int], array[int], array[int]]:
        """The columns of operands turned round: where each instruction's uses begin, by whom and in which place."""
        operands = numpy.array(self.operands, dtype=numpy.int64)
        users = numpy.repeat(numpy.arange(len(self.names)), numpy.diff(numpy.array(self.operand_starts)))
        counts = numpy.bincount(operands, minlength=len(self.names))
        starts = numpy.concatenate([[0], numpy.cumsum(counts)])
        slots = numpy.argsort(operands, kind="stable")
        return _array_of(starts), _array_of(users[slots]), _array_of(slots)

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
        """What stands in the parentheses of a parameter or a constant; None for other opcodes."""
        parsed = self.parsed.get(index)
        if parsed is not None:
            return parsed.argument
        opcode = self.forms[index].opcode
        if opcode not in LEAVES:
            return None
        opening = f" {opcode}("
        start = self.text.index(opening, self.line_start(index)) + len(opening)
        return self.text[start : self.text.index(")", start)]

    def line_start(self, index: int) -> int:
        """Offset of the line on which an instruction begins."""
        return self.line_starts[self.lines[index] - 1]

    @cached_property
    def line_starts(self) -> array[int]:
        """Offset of each line."""
        found = array("q", [0])
        for start in range(0, len(self.text), _BLOCK):
            characters = numpy.frombuffer(self.text[start : start + _BLOCK].encode("latin-1", "replace"), numpy.uint8)
            found.extend(_array_of(numpy.flatnonzero(characters == ord("\n")) + (start + 1)))
        return found


def _array_of(numbers: numpy.ndarray[Any, Any]) -> array[int]:
    """The same numbers, to be asked for one by one, which takes NumPy longer."""
    return array("q", numbers.astype(numpy.int64).tobytes())


class Frame(NamedTuple):
    """One frame of the Python stack that made an instruction.

    Attributes:
        file: The file's name as XLA was given it.
        line: 1-based; 0 where XLA was given none.
        function: The function's qualified name.
        column: As printed.
    """

    file: str
    line: int
    function: str
    column: int


_LOCATION = ("file_name_id", "function_name_id", "line", "column", "end_line", "end_column")
"""What a row of `FileLocations` says, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTables:
    """The four stack tables of a module, by id - 1.

    Attributes:
        file_names: `FileNames`.
        function_names: `FunctionNames`.
        file_locations: `FileLocations`, the numbers of `_LOCATION`.
        stack_frames: `StackFrames`, as (file_location_id, parent frame id); the parent is the real id, 0 for none,
            where the text prints it plus one.
    """

    file_names: tuple[str, ...] = ()
    function_names: tuple[str, ...] = ()
    file_locations: tuple[tuple[int, ...], ...] = ()
    stack_frames: tuple[tuple[int, int], ...] = ()

    def frames(self, stack_frame_id: int) -> tuple[Frame, ...]:
        """The frames of one id, innermost first; those up to the first id that the tables do not hold.

        A parent that comes round again ends the walk.
        """
        found: list[Frame] = []
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
            found.append(Frame(self.file_names[file_id - 1], line, self.function_names[function_id - 1], column))
        return tuple(found)


def frame_tables(
    file_names: tuple[Row, ...],
    function_names: tuple[Row, ...],
    file_locations: tuple[Row, ...],
    stack_frames: tuple[Row, ...],
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
