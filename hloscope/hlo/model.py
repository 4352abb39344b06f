"""The module, its computations and its instructions, as views of the columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

from hloscope.hlo import decode
from hloscope.hlo.columns import Columns, ComputationRow, Details
from hloscope.hlo.frames import Frame
from hloscope.hlo.infer import infer_shape
from hloscope.hlo.opcodes import is_known_opcode
from hloscope.hlo.replica_groups import ReplicaGroups
from hloscope.hlo.shape import Shape
from hloscope.hlo.sharding import Sharding

_EMPTY: Mapping[str, str] = MappingProxyType({})


class HloModule:
    """A module as its text describes it.

    Attributes:
        name: The name after `HloModule`; for computations without a header, the entry's name.
        header: Raw value text of each header attribute.
        computations: In text order.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.name = columns.name
        self.header: Mapping[str, str] = MappingProxyType(columns.header)
        self.computations = tuple(
            HloComputation(self, columns, row, is_entry=index == columns.entry)
            for index, row in enumerate(columns.computations)
        )

    def __repr__(self) -> str:
        return f"<HloModule {self.name}: {len(self.computations)} computations>"

    @property
    def is_scheduled(self) -> bool:
        """Whether the textual order in each computation is the order of execution."""
        return self.header.get("is_scheduled") == "true"

    @cached_property
    def num_partitions(self) -> int:
        """Partitions of the program; 1 where the header does not say."""
        return decode.header_integer(self._columns, "num_partitions", default=1)

    @cached_property
    def replica_count(self) -> int:
        """Replicas of the program; 1 where the header does not say."""
        return decode.header_integer(self._columns, "replica_count", default=1)

    @property
    def entry(self) -> HloComputation:
        """The computation marked `ENTRY`, else the last one."""
        return self.computations[self._columns.entry]

    @cached_property
    def _by_name(self) -> dict[str, HloComputation]:
        return {computation.name: computation for computation in self.computations}

    def computation(self, name: str) -> HloComputation:
        """The computation of that name, without `%`.

        Raises:
            KeyError: There is none.
        """
        return self._by_name[name]

    def frames(self, stack_frame_id: int) -> tuple[Frame, ...]:
        """The source frames of an instruction's `stack_frame_id`, innermost first; empty when the id is unknown."""
        return self._columns.tables.frames(stack_frame_id)

    @cached_property
    def unknown_opcodes(self) -> tuple[str, ...]:
        """Opcodes that XLA did not have when this was written, sorted."""
        opcodes = {form.opcode for form in self._columns.forms}
        return tuple(sorted(opcode for opcode in opcodes if not is_known_opcode(opcode)))


class HloComputation:
    """A computation: its instructions in text order.

    Attributes:
        module: The module it belongs to.
        name: Without `%`.
        line: 1-based line of its head.
        is_entry: Whether the program starts here.
        execution_thread: The thread that runs it, such as `sparsecore`; None for the main one.
    """

    def __init__(self, module: HloModule, columns: Columns, row: ComputationRow, *, is_entry: bool) -> None:
        self._columns = columns
        self._row = row
        self.module = module
        self.name = row.name
        self.line = row.line
        self.is_entry = is_entry
        self.execution_thread = row.execution_thread

    def __repr__(self) -> str:
        return f"<HloComputation %{self.name}: {self._row.end - self._row.first} instructions>"

    @cached_property
    def instructions(self) -> tuple[HloInstruction, ...]:
        """In text order; in a scheduled module the order of execution."""
        return tuple(HloInstruction(self, index) for index in range(self._row.first, self._row.end))

    @property
    def root(self) -> HloInstruction:
        """The instruction whose value the computation returns."""
        return self.instructions[self._row.root - self._row.first]

    @cached_property
    def parameters(self) -> tuple[HloInstruction, ...]:
        """The parameters by number."""
        found = [instruction for instruction in self.instructions if instruction.opcode == "parameter"]
        return tuple(sorted(found, key=lambda instruction: instruction.parameter_number or 0))

    @cached_property
    def _by_name(self) -> dict[str, HloInstruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    def instruction(self, name: str) -> HloInstruction:
        """The instruction of that name, without `%`.

        Raises:
            KeyError: There is none.
        """
        return self._by_name[name]

    @cached_property
    def _users(self) -> tuple[tuple[HloInstruction, ...], ...]:
        users: list[dict[int, HloInstruction]] = [{} for _ in self.instructions]
        for position, instruction in enumerate(self.instructions):
            for operand in self._operand_positions(position):
                users[operand].setdefault(position, instruction)
        return tuple(tuple(found.values()) for found in users)

    def _operand_positions(self, position: int) -> list[int]:
        columns, first = self._columns, self._row.first
        start, end = columns.operand_starts[first + position], columns.operand_starts[first + position + 1]
        return [operand - first for operand in columns.operands[start:end]]


class HloInstruction:
    """One instruction. Attributes are read from the text when they are asked for.

    Attributes:
        computation: The computation it belongs to.
    """

    __slots__ = ("_columns", "_details", "_index", "_metadata", "computation")

    def __init__(self, computation: HloComputation, index: int) -> None:
        self.computation = computation
        self._columns = computation._columns
        self._index = index
        self._details: Details | None = None
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
    def line(self) -> int:
        """1-based line in the text."""
        return self._columns.lines[self._index]

    @property
    def is_root(self) -> bool:
        """Whether the computation returns its value."""
        return self._index == self.computation._row.root

    @property
    def operands(self) -> tuple[HloInstruction, ...]:
        """In order; one that is used twice stands twice."""
        instructions = self.computation.instructions
        return tuple(instructions[position] for position in self.computation._operand_positions(self._position))

    @property
    def operand_names(self) -> tuple[str, ...]:
        """The operands' names, without `%`."""
        columns = self._columns
        start, end = columns.operand_starts[self._index], columns.operand_starts[self._index + 1]
        return tuple(columns.names[operand] for operand in columns.operands[start:end])

    @property
    def users(self) -> tuple[HloInstruction, ...]:
        """The instructions of the same computation that have it as an operand, in text order, each once."""
        return self.computation._users[self._position]

    @property
    def attributes(self) -> Mapping[str, str]:
        """Raw value text by key, as printed."""
        return self._read().attributes

    @property
    def called(self) -> tuple[tuple[str, str], ...]:
        """(attribute key, computation name) for each computation it calls, in printed order."""
        return self._columns.called.get(self._index, ())

    @property
    def parameter_number(self) -> int | None:
        """The number of a parameter."""
        argument = self._read().argument if self.opcode == "parameter" else None
        return None if argument is None else int(argument)

    @property
    def literal(self) -> str | None:
        """The raw text inside `constant(…)`; `{...}` where it is elided."""
        return self._read().argument if self.opcode == "constant" else None

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
            self._metadata = decode.entries(self._columns, self._index, self.attributes, "metadata")
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
        if "frontend_attributes" not in self.attributes:
            return _EMPTY
        return decode.entries(self._columns, self._index, self.attributes, "frontend_attributes")

    @property
    def custom_call_target(self) -> str | None:
        """The target of a custom-call, unquoted."""
        return decode.string(self.attributes.get("custom_call_target"))

    @property
    def _position(self) -> int:
        return self._index - self.computation._row.first

    def _read(self) -> Details:
        if self._details is None:
            form = self._columns.forms[self._index]
            self._details = form.details(self._columns.line_text(self._index))
        return self._details

    def _integer(self, key: str) -> int | None:
        return decode.plain_integer(self.attributes.get(key))
