"""The work of an instruction, from its printed text: FLOPs, passes of the matrix unit, and bytes per memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hloscope.analysis.matmuls import MATMUL_OPCODES, count_flops, parse_integers
from hloscope.hlo import HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph
from hloscope.units import sum_known

_PRECISION_PASSES = {"high": 3.0, "highest": 6.0}
"""Passes of an f32 matmul, by `operand_precision`; at the default precision it is one. Source: JAX, `lax.Precision`."""

_INTEGER_PASSES = {"s16": 4.0, "u16": 4.0, "s32": 10.0, "u32": 10.0}
"""Passes of an integer matmul. Source: libtpu's estimated cycles, next to those of the same matmul in bf16."""

VMEM, HOST = 1, 5
_HBM = 0
_NOT_COUNTED = frozenset({2, 3, 4, 6, 7})
"""XLA's numbers of TPU memory spaces with scalars and flags; all others except VMEM and host memory are HBM."""

_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Opcodes that write a part of their first operand in place, with the index of the operand that is the part."""

_KEEPS_ELEMENTS = frozenset({"bitcast", "convert", "copy", "reshape", "transpose", "negate"})
"""Opcodes of which each result element comes from one element of the operand."""

COLLECTIVES = ("all-", "reduce-scatter", "collective-", "ragged-", "send", "recv")
_DEEPEST = 8
"""Maximum depth of nested fusions that are examined; deeper ones count as a whole."""

_ALIASED = re.compile(r"\{([\d,\s]*)\}\s*:\s*\(")


class Work(NamedTuple):
    """The work of matmuls and convolutions on the matrix unit.

    Attributes:
        flops: FLOPs, counting a multiply-add as two.
        bf16_flops: The same, with each pass of the matrix unit counted as a bf16 matmul.
        is_whole: Whether the text stated all of it.
    """

    flops: int = 0
    bf16_flops: float = 0.0
    is_whole: bool = True

    def plus(self, other: Work) -> Work:
        """The sum of both."""
        return Work(self.flops + other.flops, self.bf16_flops + other.bf16_flops, self.is_whole and other.is_whole)


def count_work(instruction: HloInstruction, narrow_passes: Mapping[str, float]) -> Work:
    """The work of a `dot` or `convolution` on the matrix unit.

    Args:
        instruction: The instruction.
        narrow_passes: Time of an operation relative to a bf16 one, for the narrower types that the matrix unit
        supports; others are widened to bf16.
    """
    flops = count_flops(instruction)
    if flops is None:
        return Work(is_whole=False)
    return Work(flops, flops * _count_passes(instruction, narrow_passes))


def _count_passes(instruction: HloInstruction, narrow_passes: Mapping[str, float]) -> float:
    words = re.findall(r"\w+", instruction.attributes.get("operand_precision", ""))
    known = {"f32": max((_PRECISION_PASSES.get(word, 1.0) for word in words), default=1.0)}
    known |= {**_INTEGER_PASSES, **narrow_passes}
    return max(known.get(operand.shape.element_type, 1.0) for operand in instruction.operands[:2])


def count_fused_work(graph: HloGraph, narrow_passes: Mapping[str, float]) -> dict[str, Work]:
    """The work of each computation, including its fusions; computations without work are left out."""
    found: dict[str, Work] = {}
    for instruction in graph.module.with_opcodes(MATMUL_OPCODES):
        name = instruction.computation.name
        found[name] = found.get(name, Work()).plus(count_work(instruction, narrow_passes))
    for computation in reversed(graph.reachable):
        for site in graph.calls(computation.name):
            if site.caller.opcode == "fusion" and site.callee in found:
                found[computation.name] = found.get(computation.name, Work()).plus(found[site.callee])
    return found


class Moved(NamedTuple):
    """Bytes with tile padding, by memory; those of HBM by direction.

    Attributes:
        read_bytes: Bytes read from HBM.
        written_bytes: Bytes written to HBM.
        vmem_bytes: Bytes read from and written to the vector memory.
        host_bytes: Bytes over the link to the host.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    vmem_bytes: int = 0
    host_bytes: int = 0

    @property
    def hbm_bytes(self) -> int:
        """Bytes through HBM, in both directions."""
        return self.read_bytes + self.written_bytes

    @property
    def device_bytes(self) -> int:
        """Bytes through the device's memories."""
        return self.hbm_bytes + self.vmem_bytes

    def as_written(self) -> Moved:
        """The same bytes, as writes instead of reads."""
        return self._replace(read_bytes=0, written_bytes=self.hbm_bytes)


class Traffic:
    """Counts bytes, with a cache for shapes.

    Args:
        graph: The module.
    """

    def __init__(self, graph: HloGraph) -> None:
        self._graph = graph
        self._sizes: dict[int, tuple[Shape, Moved]] = {}

    def of(self, instruction: HloInstruction) -> Moved:
        """Operands and results; for slices, gathers, updates and scatters only the part that they touch."""
        shapes = [operand.shape for operand in instruction.operands]
        result = instruction.shape
        part = _UPDATES.get(instruction.opcode)
        if part is not None and len(shapes) > part and not result.is_tuple:
            result = shapes[part]
            shapes = [*shapes[1:part], *(2 if self._combines(instruction) else 1) * [result]]
        elif instruction.opcode in _SLICES:
            shapes = [result, *(shapes[1:] if instruction.opcode == "gather" else ())]
        return self._sum([*map(self.of_shape, shapes), self.of_shape(result).as_written()])

    def needed(self, instruction: HloInstruction) -> Moved:
        """The same; for a fusion only the used part of its operands, for an update in place only the new part.

        Source: `HloCostAnalysis::FusionParameterReadBytes` in xla/service/hlo_cost_analysis.cc.
        """
        return self._inside(instruction) if instruction.opcode == "fusion" else self.of(instruction)

    def _inside(self, fusion: HloInstruction) -> Moved:
        computation = self._graph.module.computation(fusion.called[0][1])
        found = []
        for operand, parameter in zip(fusion.operands, computation.parameters, strict=False):
            whole = self.of_shape(operand.shape)
            read = self._read(parameter, ()) if any(whole) else None
            found.append(whole if read is None else _scale_moved(whole, read))
        found.extend(moved.as_written() for moved in self._written(computation.root))
        return self._sum(found)

    def written(self, instruction: HloInstruction) -> Moved:
        """The results that do not share an operand's memory, of an operation that may do anything else."""
        aliased = _ALIASED.findall(instruction.attributes.get("output_to_operand_aliasing", ""))
        if not instruction.shape.is_tuple:
            return Moved() if aliased else self.of_shape(instruction.shape).as_written()
        old = {index.split(",")[0].strip() for index in aliased}
        own = [part for index, part in enumerate(instruction.shape.elements) if str(index) not in old]
        return Moved() if "" in old else self._sum([self.of_shape(part).as_written() for part in own])

    def single_rows(self, instruction: HloInstruction) -> int:
        """Bytes that an operation writes row by row into an HBM array whose tiles have more rows than that.

        An example is the update of one layer of `f32[512,16,7168]{2,1,0:T(8,128)}` by `f32[512,1,7168]`.
        """
        if instruction.opcode == "fusion":
            root = self._graph.module.computation(instruction.called[0][1]).root
            values = root.operands if root.opcode == "tuple" else (root,)
        else:
            values = (instruction,)
        return sum(self._size(value.operands[1]) for value in values if _writes_single_rows(value))

    def turns(self, instruction: HloInstruction) -> bool:
        """Returns whether a fusion changes the fastest-varying dimension of an array that it reads or writes."""
        if instruction.opcode != "fusion":
            return False
        inside = self._graph.module.computation(instruction.called[0][1]).instructions
        return any(inner.opcode in ("copy", "transpose") and _turns_neighbors(inner) for inner in inside)

    def of_shape(self, shape: Shape) -> Moved:
        """All arrays of a shape, counted as reads."""
        kept = self._sizes.get(id(shape))
        if kept is not None:
            return kept[1]
        found = self._sum([_count_leaf_bytes(leaf) for leaf in shape.leaves()])
        self._sizes[id(shape)] = (shape, found)  # keeping the shape alive keeps its id unique
        return found

    def _read(self, value: HloInstruction, around: tuple[HloInstruction, ...]) -> int | None:
        """Bytes read of a value inside a fusion; None for all of it.

        Args:
            value: The value.
            around: The fusions around its computation, up to but excluding the one in question.
        """
        if value.is_root and not around:
            return None
        outside = [self._read(around[-1], around[:-1])] if value.is_root else []
        return sum_known((*outside, *(self._read_by(user, value, around) for user in value.users)))

    def _read_by(self, user: HloInstruction, value: HloInstruction, around: tuple[HloInstruction, ...]) -> int | None:
        positions = user.positions_of(value)
        if user.opcode in _SLICES and positions == [0]:
            return self._size(user)
        if user.opcode in _UPDATES and positions == [0] and not user.shape.is_tuple:
            return self._size(user.operands[_UPDATES[user.opcode]]) if self._combines(user) else 0
        if user.opcode.startswith(COLLECTIVES) or (user.opcode == "tuple" and user.is_root and not around):
            return 0  # a transfer counts separately, and a value passed through is not copied
        if user.opcode in _KEEPS_ELEMENTS:
            taken, size = self._read(user, around), self._size(user)
            return None if taken is None or not size else taken * self._size(value) // size
        if user.opcode == "fusion" and len(around) < _DEEPEST:
            parameters = self._graph.module.computation(user.called[0][1]).parameters
            inner = [self._read(parameters[index], (*around, user)) for index in positions if index < len(parameters)]
            return sum_known(inner)
        return None

    def _written(self, root: HloInstruction) -> Iterator[Moved]:
        """Bytes that each result of a fused computation writes."""
        for value in root.operands if root.opcode == "tuple" else (root,):
            whole, new = self.of_shape(value.shape), self._updated(value)
            if not value.opcode.startswith(COLLECTIVES):
                yield whole if new is None else _scale_moved(whole, new)

    def _updated(self, value: HloInstruction) -> int | None:
        """New bytes in a value that otherwise equals an operand of the fusion; None if it does not."""
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
        """Returns whether a scatter needs the old values: all do except those that replace them."""
        called = [name for attribute, name in update.called if attribute == "to_apply"]
        return any(self._graph.module.computation(name).root.opcode != "parameter" for name in called)

    def _size(self, value: HloInstruction) -> int:
        return sum(self.of_shape(value.shape))

    @staticmethod
    def _sum(parts: list[Moved]) -> Moved:
        return parts[0] if len(parts) == 1 else Moved(*map(sum, zip(*parts, strict=True)))


def memory_space(shape: Shape) -> int:
    """XLA's number of an array's memory space."""
    return 0 if shape.layout is None else shape.layout.memory_space


def _count_leaf_bytes(leaf: Shape) -> Moved:
    space, size = memory_space(leaf), leaf.padded_byte_size or 0
    if space in _NOT_COUNTED:
        return Moved()
    return (
        Moved(vmem_bytes=size) if space == VMEM else Moved(host_bytes=size) if space == HOST else Moved(read_bytes=size)
    )


def _scale_moved(whole: Moved, read_bytes: int) -> Moved:
    """A part of an array, in the memory of the whole."""
    part = min(read_bytes, sum(whole))
    if whole.vmem_bytes:
        return Moved(vmem_bytes=part)
    return Moved(host_bytes=part) if whole.host_bytes else Moved(read_bytes=part)


def _writes_single_rows(value: HloInstruction) -> bool:
    """Returns whether an update in HBM has fewer rows than the tiles of its target."""
    layout = value.shape.layout
    if (
        value.opcode != "dynamic-update-slice"
        or layout is None
        or not layout.tiles
        or memory_space(value.shape) != _HBM
    ):
        return False
    if len(layout.tiles[0]) < 2 or len(layout.minor_to_major) < 2:
        return False
    axis = layout.minor_to_major[1]
    rows = value.operands[1].shape.dimensions[axis]
    return rows < layout.tiles[0][-2] and rows < value.shape.dimensions[axis]


def _turns_neighbors(inner: HloInstruction) -> bool:
    """Returns whether neighbors in the result of a copy or transpose were not neighbors in its operand."""
    before, after = inner.operands[0].shape.layout, inner.shape.layout
    if before is None or after is None or not before.minor_to_major or not after.minor_to_major:
        return False
    minor = after.minor_to_major[0]
    order = parse_integers(inner.attributes.get("dimensions", ""))
    if inner.opcode == "transpose" and minor < len(order):
        minor = order[minor]
    return before.minor_to_major[0] != minor and max(inner.shape.dimensions, default=1) > 1
