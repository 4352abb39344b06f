"""How a module's instructions are stored: one column for each fact, one entry for each instruction.

An instruction's attributes are not stored. Its form knows where they stand in the text, and they are read from there
when somebody asks.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Protocol

from hloscope.hlo.frames import FrameTables
from hloscope.hlo.shape import Shape


class Details(NamedTuple):
    """What is read from the text on demand.

    Attributes:
        attributes: Raw value text by key, in printed order.
        argument: What stands in the parentheses of a parameter or a constant; None for other opcodes.
    """

    attributes: Mapping[str, str]
    argument: str | None


class Form(Protocol):
    """What many instructions have in common, and how to read the rest.

    Attributes:
        opcode: As printed.
        is_root: Whether `ROOT` stands before the name.
        shape: None when the text leaves it out.
    """

    opcode: str
    is_root: bool
    shape: Shape | None

    def details(self, line: str) -> Details:
        """Reads the attributes from the instruction's text."""


class FixedForm:
    """The form of one instruction, with everything read already."""

    __slots__ = ("_details", "is_root", "opcode", "shape")

    def __init__(self, *, opcode: str, is_root: bool, shape: Shape | None, details: Details) -> None:
        self.opcode = opcode
        self.is_root = is_root
        self.shape = shape
        self._details = details

    def details(self, line: str) -> Details:
        """The details; `line` is not needed."""
        return self._details


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
        line_counts: Lines that an instruction takes, by its line, where it takes more than one and its form needs them.
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
        self.line_counts: dict[int, int] = {}
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

    def of_same_text(self) -> Columns:
        """Columns that nothing has been read into."""
        fresh = Columns(self.text, self.file_name)
        fresh.lines_before = self.lines_before
        return fresh

    @cached_property
    def _line_starts(self) -> array[int]:
        """Offset of each line in the text, and of the end."""
        return array("q", accumulate((len(line) + 1 for line in self.text.split("\n")), initial=0))

    def offset_of_line(self, line: int) -> int:
        """Offset of a 0-based line."""
        return self._line_starts[line]

    def line_start(self, index: int) -> int:
        """Offset of the line on which an instruction begins."""
        return self._line_starts[self.lines[index] - 1]

    def line_text(self, index: int) -> str:
        """The line of an instruction, or the lines, without the last line end."""
        first = self.lines[index] - 1
        starts = self._line_starts
        return self.text[starts[first] : starts[first + self.line_counts.get(first + 1, 1)] - 1]
