"""How many bytes an instruction reads and writes, and in which memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hloscope.graph import HloGraph
from hloscope.hlo import HloInstruction, Shape

VMEM, HOST = 1, 5
_NOT_COUNTED = frozenset({2, 3, 4, 6, 7})
"""XLA's numbers of memory spaces on TPU: these hold scalars and flags; all others but VMEM and the host are HBM."""

_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_DEEPEST = 8
"""Fusions in fusions that are looked into; what is deeper counts as a whole."""


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
        """Operands and results; of slices and updates only the part that they touch."""
        shapes = [operand.shape for operand in instruction.operands]
        result = instruction.shape
        if instruction.opcode == "dynamic-update-slice" and len(shapes) > 1:
            shapes, result = [shapes[1]], shapes[1]
        elif instruction.opcode in _SLICES:
            shapes = [result]
        return self._sum([self.of_shape(shape) for shape in (*shapes, result)])

    def inside(self, fusion: HloInstruction) -> Moved:
        """The same for a fusion: of each operand what its computation takes of it, of an update in place what is new.

        Source: `HloCostAnalysis::FusionParameterReadBytes` in xla/service/hlo_cost_analysis.cc.
        """
        computation = self._graph.module.computation(fusion.called[0][1])
        found = []
        for operand, parameter in zip(fusion.operands, computation.parameters, strict=False):
            whole = self.of_shape(operand.shape)
            read = self._read(parameter, 0)
            found.append(whole if read is None else _scaled(whole, read))
        found.extend(self._written(computation.root))
        return self._sum(found)

    def of_shape(self, shape: Shape) -> Moved:
        """All arrays of a shape."""
        kept = self._sizes.get(id(shape))
        if kept is not None:
            return kept[1]
        found = self._sum([_of_leaf(leaf) for leaf in shape.leaves()])
        self._sizes[id(shape)] = (shape, found)  # the shape itself is kept so that its id stays its own
        return found

    def _read(self, value: HloInstruction, depth: int) -> int | None:
        """Bytes that are taken of a value inside a fusion; None for the whole."""
        total = 0
        for user in value.users:
            taken = self._read_by(user, value, depth)
            if taken is None:
                return None
            total += taken
        return total

    def _read_by(self, user: HloInstruction, value: HloInstruction, depth: int) -> int | None:
        positions = user.positions_of(value)
        if user.opcode in _SLICES and positions == [0]:
            return sum(self.of_shape(user.shape))
        if user.opcode == "dynamic-update-slice" and positions == [0]:
            return 0
        if user.opcode == "bitcast":
            return self._read(user, depth)
        if user.opcode == "fusion" and depth < _DEEPEST:
            parameters = self._graph.module.computation(user.called[0][1]).parameters
            inner = [self._read(parameters[index], depth + 1) for index in positions if index < len(parameters)]
            return None if None in inner else sum(taken for taken in inner if taken is not None)
        return None

    def _written(self, root: HloInstruction) -> Iterator[Moved]:
        """What each result of a fused computation writes."""
        for value in root.operands if root.opcode == "tuple" else (root,):
            updates = value.opcode == "dynamic-update-slice" and len(value.operands) > 1
            yield self.of_shape(value.operands[1].shape if updates else value.shape)

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
