"""Instructions, as views of the columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hloscope.hlo import decode
from hloscope.hlo.infer import infer_shape
from hloscope.hlo.replica_groups import ReplicaGroups
from hloscope.hlo.shape import Shape
from hloscope.hlo.sharding import Sharding

if TYPE_CHECKING:
    from hloscope.hlo.model import HloComputation


class HloInstruction:
    """One instruction. Attributes are read from the text when they are asked for.

    Attributes:
        computation: The computation it belongs to.
    """

    __slots__ = ("_attributes", "_columns", "_index", "_metadata", "computation")

    def __init__(self, computation: HloComputation, index: int) -> None:
        self.computation = computation
        self._columns = computation._columns
        self._index = index
        self._attributes: Mapping[str, str] | None = None
        self._metadata: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        return f"<HloInstruction %{self.name} = {self.shape} {self.opcode}>"

    @property
    def name(self) -> str:
        """Without `%`. Names with `#` are of instructions that the text only implies, such as `%t#0`."""
        return self._columns.names[self._index]

    @property
    def opcode(self) -> str:
        """As printed."""
        return self._columns.forms[self._index].opcode

    @property
    def shape(self) -> Shape:
        """The result's shape; inferred where the text leaves it out, of element type `unknown` where that fails."""
        shape = self._columns.forms[self._index].shape
        return infer_shape(self) if shape is None else shape

    @property
    def printed_shape(self) -> Shape | None:
        """The result's shape where the text gives it."""
        return self._columns.forms[self._index].shape

    @property
    def line(self) -> int:
        """1-based line in the file."""
        return self._columns.lines[self._index] + self._columns.lines_before

    @property
    def is_root(self) -> bool:
        """Whether the computation returns its value."""
        return self._index == self.computation._row.root

    @property
    def operands(self) -> tuple[HloInstruction, ...]:
        """In order; one that is used twice stands twice."""
        columns, computation = self._columns, self.computation
        start, end = columns.operand_starts[self._index], columns.operand_starts[self._index + 1]
        return tuple(computation.instruction_at(operand) for operand in columns.operands[start:end])

    def operand(self, number: int) -> HloInstruction | None:
        """One operand, without making the others; None where there are not so many."""
        columns = self._columns
        start, end = columns.operand_starts[self._index], columns.operand_starts[self._index + 1]
        return self.computation.instruction_at(columns.operands[start + number]) if number < end - start else None

    def positions_of(self, operand: HloInstruction) -> list[int]:
        """Where an instruction of the same computation stands among the operands, without making any of them."""
        return self._columns.positions(operand._index, self._index)

    @property
    def operand_names(self) -> tuple[str, ...]:
        """The operands' names, without `%`."""
        columns = self._columns
        start, end = columns.operand_starts[self._index], columns.operand_starts[self._index + 1]
        return tuple(columns.names[operand] for operand in columns.operands[start:end])

    @property
    def users(self) -> tuple[HloInstruction, ...]:
        """The instructions of the same computation that have it as an operand, in text order, each once."""
        return tuple(map(self.computation.instruction_at, self._columns.users(self._index)))

    @property
    def attributes(self) -> Mapping[str, str]:
        """Raw value text by key, as printed."""
        if self._attributes is None:
            columns = self._columns
            self._attributes = columns.forms[self._index].attributes(columns, self._index)
        return self._attributes

    @property
    def called(self) -> tuple[tuple[str, str], ...]:
        """(attribute key, computation name) for each computation it calls, in printed order."""
        return self._columns.called.get(self._index, ())

    @property
    def argument(self) -> str | None:
        """What stands in the parentheses instead of operands: a parameter's number, a constant's literal."""
        columns = self._columns
        return columns.forms[self._index].argument(columns, self._index)

    @property
    def parameter_number(self) -> int | None:
        """The number of a parameter."""
        argument = self.argument if self.opcode == "parameter" else None
        return None if argument is None else int(argument)

    @property
    def literal(self) -> str | None:
        """The raw text inside `constant(…)`; `{...}` where it is elided."""
        return self.argument if self.opcode == "constant" else None

    @property
    def tuple_index(self) -> int | None:
        """The index of a get-tuple-element."""
        return self._integer("index") if self.opcode == "get-tuple-element" else None

    @property
    def channel_id(self) -> int | None:
        """The channel; it does not identify a collective."""
        return self._integer("channel_id")

    @property
    def replica_groups(self) -> ReplicaGroups | None:
        """The groups of a collective; None where the text gives none."""
        return decode.replica_groups(self._columns, self._index, self.attributes)

    @property
    def source_target_pairs(self) -> tuple[tuple[int, int], ...] | None:
        """(source, target) of a collective-permute."""
        return decode.source_target_pairs(self._columns, self._index, self.attributes)

    @property
    def dimensions(self) -> tuple[int, ...] | None:
        """The attribute `dimensions`."""
        return decode.integers(self._columns, self._index, self.attributes, "dimensions")

    @property
    def sharding(self) -> Sharding | None:
        """The sharding that the text still carries."""
        return decode.sharding(self._columns, self._index, self.attributes)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The entries of `metadata`, unquoted."""
        if self._metadata is None:
            raw = self._columns.metadata[self._index] or self.attributes.get("metadata")
            self._metadata = decode.entries(self._columns, self._index, "metadata", raw)
        return self._metadata

    @property
    def op_name(self) -> str | None:
        """The name stack that JAX gave the operation."""
        return self.metadata.get("op_name")

    @property
    def stack_frame_id(self) -> int | None:
        """For `HloModule.frames`."""
        return decode.plain_integer(self.metadata.get("stack_frame_id"))

    @property
    def source_file(self) -> str | None:
        """The source file in the metadata, where frames are not used."""
        return self.metadata.get("source_file")

    @property
    def source_line(self) -> int | None:
        """The source line in the metadata, where frames are not used."""
        return decode.plain_integer(self.metadata.get("source_line"))

    @property
    def backend_config(self) -> Mapping[str, object]:
        """The backend's JSON; `{"raw": text}` where it is no JSON object; empty where there is none."""
        return decode.backend_config(self.attributes.get("backend_config"))

    @property
    def frontend_attributes(self) -> Mapping[str, str]:
        """Unquoted strings, and raw text for values in braces."""
        raw = self.attributes.get("frontend_attributes")
        return decode.entries(self._columns, self._index, "frontend_attributes", raw)

    @property
    def custom_call_target(self) -> str | None:
        """The target of a custom-call, unquoted."""
        return decode.string(self.attributes.get("custom_call_target"))

    def _integer(self, key: str) -> int | None:
        return decode.plain_integer(self.attributes.get(key))
