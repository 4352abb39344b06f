"""How many bytes an instruction reads and writes, and in which memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from hloscope.graph import HloGraph
from hloscope.hlo import HloInstruction, Shape

VMEM, HOST = 1, 5
_NOT_COUNTED = frozenset({2, 3, 4, 6, 7})
"""XLA's numbers of memory spaces on TPU: these hold scalars and flags; all others but VMEM and the host are HBM."""

_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""What writes a part of its first operand in place, and which operand is the part."""

_KEEPS_ELEMENTS = frozenset({"bitcast", "convert", "copy", "reshape", "transpose", "negate"})
"""Each element of the result is made of one of the operand."""

_COLLECTIVES = ("all-", "reduce-scatter", "collective-", "ragged-", "send", "recv")
_DEEPEST = 8
"""Fusions in fusions that are looked into; what is deeper counts as a whole."""

_ALIASED = re.compile(r"\{([\d,\s]*)\}\s*:\s*\(")


class Moved(NamedTuple):
    """Bytes with tile padding, by memory."""

    hbm_bytes: int = 0
    vmem_bytes: int = 0
    host_bytes: int = 0

    @property
    def device_bytes(self) -> int:
        """Those of the device."""
        return self.hbm_bytes + self.vmem_bytes


class Traffic:
    """Counts bytes; remembers shapes it has seen.

    Args:
        graph: The module.
    """

    def __init__(self, graph: HloGraph) -> None:
        self._graph = graph
        self._sizes: dict[int, tuple[Shape, Moved]] = {}

    def of(self, instruction: HloInstruction) -> Moved:
        """Operands and results; of slices, gathers, updates and scatters only the part that they touch."""
        shapes = [operand.shape for operand in instruction.operands]
        part = _UPDATES.get(instruction.opcode)
        if part is not None and len(shapes) > part and not instruction.shape.is_tuple:
            times = 3 if self._combines(instruction) else 2
            return self._sum([self.of_shape(shape) for shape in (*shapes[1:part], *times * [shapes[part]])])
        if instruction.opcode in _SLICES:
            shapes = [instruction.shape, *(shapes[1:] if instruction.opcode == "gather" else ())]
        return self._sum([self.of_shape(shape) for shape in (*shapes, instruction.shape)])

    def inside(self, fusion: HloInstruction) -> Moved:
        """The same for a fusion: of each operand what its computation takes of it, of an update in place what is new.

        Source: `HloCostAnalysis::FusionParameterReadBytes` in xla/service/hlo_cost_analysis.cc.
        """
        computation = self._graph.module.computation(fusion.called[0][1])
        found = []
        for operand, parameter in zip(fusion.operands, computation.parameters, strict=False):
            whole = self.of_shape(operand.shape)
            read = self._read(parameter, ()) if any(whole) else None
            found.append(whole if read is None else _scaled(whole, read))
        found.extend(self._written(computation.root))
        return self._sum(found)

    def written(self, instruction: HloInstruction) -> Moved:
        """The results that do not lie where an operand lies, of an operation that may do anything else."""
        aliased = _ALIASED.findall(instruction.attributes.get("output_to_operand_aliasing", ""))
        if not instruction.shape.is_tuple:
            return Moved() if aliased else self.of_shape(instruction.shape)
        old = {index.split(",")[0].strip() for index in aliased}
        own = [part for index, part in enumerate(instruction.shape.elements) if str(index) not in old]
        return Moved() if "" in old else self._sum([self.of_shape(part) for part in own])

    def of_shape(self, shape: Shape) -> Moved:
        """All arrays of a shape."""
        kept = self._sizes.get(id(shape))
        if kept is not None:
            return kept[1]
        found = self._sum([_of_leaf(leaf) for leaf in shape.leaves()])
        self._sizes[id(shape)] = (shape, found)  # the shape itself is kept so that its id stays its own
        return found

    def _read(self, value: HloInstruction, around: tuple[HloInstruction, ...]) -> int | None:
        """Bytes that are taken of a value inside a fusion; None for the whole.

        Args:
            value: The value.
            around: The fusions around its computation, up to the one that is asked about, which is not among them.
        """
        total = 0
        if value.is_root:
            taken = self._read(around[-1], around[:-1]) if around else None
            if taken is None:
                return None
            total += taken
        for user in value.users:
            taken = self._read_by(user, value, around)
            if taken is None:
                return None
            total += taken
        return total

    def _read_by(self, user: HloInstruction, value: HloInstruction, around: tuple[HloInstruction, ...]) -> int | None:
        positions = user.positions_of(value)
        if user.opcode in _SLICES and positions == [0]:
            return self._size(user)
        if user.opcode in _UPDATES and positions == [0] and not user.shape.is_tuple:
            return self._size(user.operands[_UPDATES[user.opcode]]) if self._combines(user) else 0
        if user.opcode.startswith(_COLLECTIVES) or (user.opcode == "tuple" and user.is_root and not around):
            return 0  # a transfer counts for itself, and what is passed through stays where it is
        if user.opcode in _KEEPS_ELEMENTS:
            taken, size = self._read(user, around), self._size(user)
            return None if taken is None or not size else taken * self._size(value) // size
        if user.opcode == "fusion" and len(around) < _DEEPEST:
            parameters = self._graph.module.computation(user.called[0][1]).parameters
            inner = [self._read(parameters[index], (*around, user)) for index in positions if index < len(parameters)]
            return None if None in inner else sum(taken for taken in inner if taken is not None)
        return None

    def _written(self, root: HloInstruction) -> Iterator[Moved]:
        """What each result of a fused computation writes."""
        for value in root.operands if root.opcode == "tuple" else (root,):
            whole, new = self.of_shape(value.shape), self._updated(value)
            if not value.opcode.startswith(_COLLECTIVES):
                yield whole if new is None else _scaled(whole, new)

    def _updated(self, value: HloInstruction) -> int | None:
        """Bytes that are new in a value that is an operand of the fusion but for them; None where it is none."""
        new = 0
        while value.opcode != "parameter":
            part = _UPDATES.get(value.opcode)
            if part is not None and not value.shape.is_tuple:
                new += self._size(value.operands[part])
            elif value.opcode != "bitcast":
                return None
            value = value.operands[0]
        return new

    def _combines(self, update: HloInstruction) -> bool:
        """Whether a scatter needs what was there before: all but those that put the new in place of the old."""
        called = [name for attribute, name in update.called if attribute == "to_apply"]
        return any(self._graph.module.computation(name).root.opcode != "parameter" for name in called)

    def _size(self, value: HloInstruction) -> int:
        return sum(self.of_shape(value.shape))

    @staticmethod
    def _sum(parts: list[Moved]) -> Moved:
        if len(parts) == 1:
            return parts[0]
        hbm_bytes = vmem_bytes = host_bytes = 0
        for part in parts:
            hbm_bytes += part.hbm_bytes
            vmem_bytes += part.vmem_bytes
            host_bytes += part.host_bytes
        return Moved(hbm_bytes, vmem_bytes, host_bytes)


def space_of(shape: Shape) -> int:
    """XLA's number of the memory that an array lies in."""
    return 0 if shape.layout is None else shape.layout.memory_space


def _of_leaf(leaf: Shape) -> Moved:
    space, size = space_of(leaf), leaf.padded_byte_size or 0
    if space in _NOT_COUNTED:
        return Moved()
    return (
        Moved(vmem_bytes=size) if space == VMEM else Moved(host_bytes=size) if space == HOST else Moved(hbm_bytes=size)
    )


def _scaled(whole: Moved, read_bytes: int) -> Moved:
    """A part of an array, in the memory of the whole."""
    part = min(read_bytes, sum(whole))
    if whole.vmem_bytes:
        return Moved(vmem_bytes=part)
    return Moved(host_bytes=part) if whole.host_bytes else Moved(hbm_bytes=part)
