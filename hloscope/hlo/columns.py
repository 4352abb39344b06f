"""How a module's instructions are stored: one column for each fact, one entry for each instruction.

An instruction's attributes are not stored. Its form knows where they stand in the text, and they are read from there
when somebody asks.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
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
        starts: Offset of the instruction in the text.
        lengths: Characters of the instruction in the text.
        lines: 1-based line of the instruction.
        operand_starts: Where each instruction's operands begin in `operands`; one more entry than instructions.
        operands: Indexes of the operands, one instruction after the other.
        called: (attribute key, computation name) for the instructions that call.
        computations: In text order.
        entry: Index of the entry computation.
    """

    def __init__(self, text: str, file_name: str | None) -> None:
        self.text = text
        self.file_name = file_name
        self.name = ""
        self.header: dict[str, str] = {}
        self.tables = FrameTables()
        self.names: list[str] = []
        self.forms: list[Form] = []
        self.starts = array("q")
        self.lengths = array("q")
        self.lines = array("q")
        self.operand_starts = array("q", [0])
        self.operands = array("q")
        self.called: dict[int, tuple[tuple[str, str], ...]] = {}
        self.computations: list[ComputationRow] = []
        self.entry = -1

    def line_text(self, index: int) -> str:
        """The text of one instruction."""
        start = self.starts[index]
        return self.text[start : start + self.lengths[index]]
