"""How a module is stored: one column for each fact, one entry for each instruction, and the tables of source frames.

An instruction's attributes are stored as the text they are, once for all instructions with the same text, and taken
apart when somebody asks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy

from hloscope.hlo.records import Row
from hloscope.hlo.shape import Shape

_BLOCK = 1 << 16
"""Characters whose lines are looked up at once."""


class _Blocks(NamedTuple):
    """The 0-based line and the offset at which each block of the text begins, and the offset behind the last one."""

    lines: list[int]
    offsets: list[int]


class Form(Protocol):
    """What many instructions have in common, and how to read the rest.

    Attributes:
        opcode: As printed.
        shape: None when the text leaves it out.
    """

    opcode: str
    shape: Shape | None

    def attributes(self, columns: Columns, index: int) -> Mapping[str, str]:
        """Raw value text by key, in printed order."""

    def argument(self, columns: Columns, index: int) -> str | None:
        """What stands in the parentheses of a parameter or a constant; None for other opcodes."""


class FixedForm:
    """The form of one instruction, with everything read already."""

    __slots__ = ("_argument", "_attributes", "opcode", "shape")

    def __init__(self, opcode: str, shape: Shape | None, attributes: Mapping[str, str], argument: str | None) -> None:
        self.opcode = opcode
        self.shape = shape
        self._attributes = attributes
        self._argument = argument

    def attributes(self, columns: Columns, index: int) -> Mapping[str, str]:
        """Raw value text by key, in printed order."""
        return self._attributes

    def argument(self, columns: Columns, index: int) -> str | None:
        """What stands in the parentheses of a parameter or a constant; None for other opcodes."""
        return self._argument


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
        forms: Opcode and shape, and how to read the rest.
        lines: 1-based line of the instruction.
        leading_attributes: The attributes up to those that are kept apart, as one text; empty where the form has them.
        metadata: The value of `metadata`, or nothing.
        trailing_attributes: The attributes after the metadata, mostly a backend's configuration.
        cut_out: Key and callee of the attribute after the run, for the instructions that have it.
        more: The attributes between that and the metadata.
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

    def __init__(self, text: str, file_name: str | None) -> None:
        self.text = text
        self.file_name = file_name
        self.name = ""
        self.header: dict[str, str] = {}
        self.tables = FrameTables()
        self.names: list[str] = []
        self.forms: list[Form] = []
        self.lines = array("q")
        self.leading_attributes: list[str] = []
        self.metadata: list[str] = []
        self.trailing_attributes: list[str] = []
        self.cut_out: dict[int, tuple[str, str]] = {}
        self.more: dict[int, str] = {}
        self.operand_starts = array("q", [0])
        self.operands = array("q")
        self.inferred: dict[int, Shape] = {}
        self.called: dict[int, tuple[tuple[str, str], ...]] = {}
        self.computations: list[ComputationRow] = []
        self.entry = -1
        self.entry_is_implied = False
        self.truncated = False
        self.is_single = False
        self.lines_before = 0
        self._line_starts: dict[int, list[int]] = {}

    def users(self, index: int) -> list[int]:
        """The instructions that have one as an operand, in text order, each once."""
        starts, users, _ = self._uses
        return list(dict.fromkeys(users[starts[index] : starts[index + 1]]))

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

    def of_same_text(self) -> Columns:
        """Columns that nothing has been read into."""
        fresh = Columns(self.text, self.file_name)
        fresh.lines_before = self.lines_before
        return fresh

    def offset_of_line(self, line: int) -> int:
        """Offset of a 0-based line."""
        block = bisect_right(self._blocks.lines, line) - 1
        starts = self._line_starts.get(block) or self._starts_of_block(block)
        return starts[line - self._blocks.lines[block]]

    def line_start(self, index: int) -> int:
        """Offset of the line on which an instruction begins."""
        return self.offset_of_line(self.lines[index] - 1)

    def line_text(self, index: int) -> str:
        """The line of an instruction, without its line end."""
        start = self.offset_of_line(self.lines[index] - 1)
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else None]

    def _starts_of_block(self, block: int) -> list[int]:
        """Offset of each line of a block; those of the blocks in which somebody asks for a line are kept."""
        start, end = self._blocks.offsets[block : block + 2]
        lines = self.text[start : end - 1].split("\n")
        found = list(accumulate([len(line) + 1 for line in lines[:-1]], initial=start))
        self._line_starts[block] = found
        return found

    @cached_property
    def _blocks(self) -> _Blocks:
        text, lines, offsets = self.text, [0], [0]
        while (end := text.find("\n", offsets[-1] + _BLOCK) + 1) > 0:
            lines.append(lines[-1] + text.count("\n", offsets[-1], end))
            offsets.append(end)
        return _Blocks(lines, [*offsets, len(text) + 1])


def _array_of(numbers: numpy.ndarray[Any, Any]) -> array[int]:
    """The same numbers, to be asked for one by one, which takes NumPy longer."""
    return array("q", numbers.astype(numpy.int64).tobytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTables:
    """The four stack tables of a module, by id - 1.

    Attributes:
        file_names: `FileNames`.
        function_names: `FunctionNames`.
        file_locations: `FileLocations`, as (file_name_id, function_name_id, line, column, end_line, end_column).
        stack_frames: `StackFrames`, as (file_location_id, parent frame id); the parent is the real id, 0 for none,
            where the text prints it plus one.
    """

    file_names: tuple[str, ...] = ()
    function_names: tuple[str, ...] = ()
    file_locations: tuple[tuple[int, int, int, int, int, int], ...] = ()
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
            frame = self._frame(location_id)
            if frame is None:
                break
            found.append(frame)
        return tuple(found)

    def _frame(self, location_id: int) -> Frame | None:
        if not 0 < location_id <= len(self.file_locations):
            return None
        file_id, function_id, line, column, _, _ = self.file_locations[location_id - 1]
        if not (0 < file_id <= len(self.file_names) and 0 < function_id <= len(self.function_names)):
            return None
        return Frame(
            file=self.file_names[file_id - 1],
            line=line,
            function=self.function_names[function_id - 1],
            column=column,
        )


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
        file_locations=tuple(
            (
                row.get("file_name_id", 0),
                row.get("function_name_id", 0),
                row.get("line", 0),
                row.get("column", 0),
                row.get("end_line", 0),
                row.get("end_column", 0),
            )
            for row in locations
        ),
        stack_frames=tuple((row.get("file_location_id", 0), row.get("parent_frame_id", 1) - 1) for row in frames),
    )
