"""The module and its computations, as views of the columns."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cached_property
from types import MappingProxyType

import numpy

from hloscope.hlo.columns import Columns, ComputationRow
from hloscope.hlo.diagnostics import located, lost_entry
from hloscope.hlo.frames import Frame
from hloscope.hlo.instruction import HloInstruction
from hloscope.hlo.opcodes import is_known_opcode


class HloModule:
    """A module as its text describes it.

    Attributes:
        name: The name after `HloModule`; for computations without a header, the entry's name.
        header: Raw value text of each header attribute.
        computations: In text order.
        truncated: Whether the text is cut off. What stands after its last whole computation is not here, which may
            include `ENTRY`; then every total over the module is a lower bound.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.name = columns.name
        self.header: Mapping[str, str] = MappingProxyType(columns.header)
        self.truncated = columns.truncated
        self._frames: dict[int, tuple[Frame, ...]] = {}
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
        return int(self.header.get("num_partitions", 1))

    @cached_property
    def replica_count(self) -> int:
        """Replicas of the program; 1 where the header does not say."""
        return int(self.header.get("replica_count", 1))

    @property
    def entry(self) -> HloComputation:
        """The computation marked `ENTRY`, else the last one.

        Raises:
            HloParseError: The text is cut off before it; `outermost` holds what there is instead.
        """
        if self._columns.entry < 0:
            raise lost_entry(self._columns)
        return self.computations[self._columns.entry]

    @cached_property
    def outermost(self) -> tuple[HloComputation, ...]:
        """Where the program starts: ENTRY alone, or where that is cut off, every computation that no other one calls.

        How often ENTRY would have run these is not known.
        """
        if self._columns.entry >= 0:
            return (self.entry,)
        called = {name for calls in self._columns.called.values() for _, name in calls}
        return tuple(computation for computation in self.computations if computation.name not in called)

    def with_opcodes(self, wanted: Collection[str]) -> tuple[HloInstruction, ...]:
        """The instructions with one of these opcodes, in text order; no other instruction is looked at."""
        indexes = sorted(index for opcode in set(wanted) for index in self._by_opcode.get(opcode, ()))
        return tuple(self._instruction(index) for index in indexes)

    @property
    def opcodes(self) -> Collection[str]:
        """Every opcode that the text prints, once."""
        return self._by_opcode.keys()

    def mentions(self, words: str) -> bool:
        """Whether the text holds some words, in whatever place."""
        return words in self._columns.text

    def _instruction(self, index: int) -> HloInstruction:
        return self.computations[bisect_right(self._first_indexes, index) - 1].instruction_at(index)

    @cached_property
    def _calling(self) -> dict[int, list[int]]:
        """The instructions that call, by the first instruction of their computation."""
        firsts, found = self._first_indexes, defaultdict[int, list[int]](list)
        for index in sorted(self._columns.called):
            found[firsts[bisect_right(firsts, index) - 1]].append(index)
        return found

    @cached_property
    def _first_indexes(self) -> list[int]:
        return [row.first for row in self._columns.computations]

    @cached_property
    def _by_opcode(self) -> dict[str, list[int]]:
        """The instructions of each opcode. They share few forms, so that no form need be asked twice."""
        forms = self._columns.forms
        opcodes = {form: form.opcode for form in dict.fromkeys(forms)}
        numbers = {opcode: number for number, opcode in enumerate(dict.fromkeys(opcodes.values()))}
        codes = {form: numbers[opcode] for form, opcode in opcodes.items()}
        column = numpy.array(list(map(codes.__getitem__, forms)), dtype=numpy.int64)
        order = numpy.argsort(column, kind="stable")
        parts = numpy.split(order, numpy.cumsum(numpy.bincount(column, minlength=len(numbers)))[:-1])
        return {opcode: part.tolist() for opcode, part in zip(numbers, parts, strict=True)}

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
        found = self._frames.get(stack_frame_id)
        if found is None:
            found = self._frames[stack_frame_id] = self._columns.tables.frames(stack_frame_id)
        return found

    @cached_property
    def unknown_opcodes(self) -> tuple[str, ...]:
        """Opcodes that XLA did not have when this was written, sorted."""
        return tuple(sorted(opcode for opcode in self.opcodes if not is_known_opcode(opcode)))


class HloComputation:
    """A computation: its instructions in text order.

    Attributes:
        module: The module it belongs to.
        name: Without `%`.
        line: 1-based line of its head in the file.
        is_entry: Whether the program starts here.
        execution_thread: The thread that runs it, such as `sparsecore`; None for the main one.
    """

    def __init__(self, module: HloModule, columns: Columns, row: ComputationRow, *, is_entry: bool) -> None:
        self._columns = columns
        self._row = row
        self.module = module
        self.name = row.name
        self.line = row.line + columns.lines_before
        self.is_entry = is_entry
        self.execution_thread = row.execution_thread
        self._made: dict[int, HloInstruction] = {}

    def __repr__(self) -> str:
        return f"<HloComputation %{self.name}: {self._row.end - self._row.first} instructions>"

    @cached_property
    def instructions(self) -> tuple[HloInstruction, ...]:
        """In text order; in a scheduled module the order of execution."""
        return tuple(self.instruction_at(index) for index in range(self._row.first, self._row.end))

    @cached_property
    def opcodes(self) -> frozenset[str]:
        """The opcodes of its instructions."""
        forms = self._columns.forms
        return frozenset(forms[index].opcode for index in range(self._row.first, self._row.end))

    @property
    def calling(self) -> tuple[HloInstruction, ...]:
        """The instructions that name other computations, in text order."""
        return tuple(map(self.instruction_at, self.module._calling.get(self._row.first, ())))

    def instruction_at(self, index: int) -> HloInstruction:
        """The instruction in row `index` of the module's columns, which is one of this computation's."""
        made = self._made.get(index)
        if made is None:
            made = self._made[index] = HloInstruction(self, index)
        return made

    @property
    def root(self) -> HloInstruction:
        """The instruction whose value the computation returns."""
        return self.instruction_at(self._row.root)

    @cached_property
    def parameters(self) -> tuple[HloInstruction, ...]:
        """The parameters by number.

        Raises:
            HloParseError: Their numbers do not go from 0 on, each once.
        """
        columns = self._columns
        indexes = [
            index for index in range(self._row.first, self._row.end) if columns.forms[index].opcode == "parameter"
        ]
        found = sorted(map(self.instruction_at, indexes), key=lambda instruction: instruction.parameter_number or 0)
        for number, parameter in enumerate(found):
            if parameter.parameter_number != number:
                what = f"parameter {number} of %{self.name} is missing, or another one has its number"
                raise located(columns, columns.line_start(indexes[0]), what, None)
        return tuple(found)

    @cached_property
    def _by_name(self) -> dict[str, HloInstruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    def instruction(self, name: str) -> HloInstruction:
        """The instruction of that name, without `%`.

        Raises:
            KeyError: There is none.
        """
        return self._by_name[name]
