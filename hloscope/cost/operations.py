"""The time of one instruction that runs alone on one device, and the basis of that figure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hloscope.analysis.compute import MATMUL_OPCODES, count_flops, find_kernel_names, parse_integers, read_cost_estimate
from hloscope.analysis.spellings import PALLAS
from hloscope.analysis.transfers import MEGACORE_MARK, CoreBranches, find_core_branches
from hloscope.base.units import sum_known
from hloscope.cost.estimated_cycles import count_cycle_work, estimate_cycles
from hloscope.cost.records import OperationTime, TimeBasis
from hloscope.hlo import HloComputation, HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph
from hloscope.tpu.estimates import Estimates
from hloscope.tpu.generation import CONSTANTS, Chip, Constants

# ---- the work of an instruction, from its printed text: FLOPs, passes of the matrix unit, and bytes per memory

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

_COPY_STARTS = frozenset({"copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start"})
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
        self._inside_alike: dict[tuple[int, ...], Moved] = {}
        self._rows_alike: dict[int, int] = {}

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
        if instruction.opcode != "fusion":
            return self.of(instruction)
        callee = self._graph.module.structures[instruction.called[0][1]]
        alike = callee, *(id(operand.shape) for operand in instruction.operands)  # the module keeps its shapes
        if alike not in self._inside_alike:
            self._inside_alike[alike] = self._inside(instruction)
        return self._inside_alike[alike]

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
        if instruction.opcode != "fusion":
            return self._single_rows_of((instruction,))
        alike = self._graph.module.structures[instruction.called[0][1]]
        if alike not in self._rows_alike:
            root = self._graph.module.computation(instruction.called[0][1]).root
            self._rows_alike[alike] = self._single_rows_of(root.operands if root.opcode == "tuple" else (root,))
        return self._rows_alike[alike]

    def _single_rows_of(self, values: Iterable[HloInstruction]) -> int:
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


def _has_tiles(shape: Shape) -> bool:
    return shape.layout is not None and bool(shape.layout.tiles)


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
    if value.opcode != "dynamic-update-slice" or layout is None or memory_space(value.shape) != _HBM:
        return False
    if not layout.tiles or len(layout.tiles[0]) < 2 or len(layout.minor_to_major) < 2:
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


_MICROSECONDS = 1e6
_CYCLES = re.compile(r'"estimated_cycles"\s*:\s*"?(\d+)')
_NO_CYCLES = 2**62
"""Cycles from which on the compiler means "unknown": it prints the largest 64-bit integer, as for gathers on 7x."""
_LARGE_MATMUL_FLOPS = 1e10
"""FLOPs from which on a matmul that memory does not slow down comes near the peak."""

_LARGEST_MATMUL_SHARE = 0.9
"""The share of the peak that large matmuls reach: it shows which of them memory slows down."""

_COUNTED_HBM_SHARE = 0.75
"""The share of the HBM bandwidth that the compiler's cycles assume. Source: its cycles for streaming operations."""

_LEAST_STREAMED = 0.02
"""Share of the compiler's cycles: with less memory traffic than that, nothing is streamed."""

VMEM_OVER_HBM = 22
"""Bandwidth of the vector memory as a multiple of HBM's. Source: the scaling book, "How to Think About TPUs"."""

_FREE_OPCODES = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id",
    "replica-id", "add-dependency", "get-dimension-size", "domain",
})  # fmt: skip
_FREE_CALLS = frozenset({
    "AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast", "PrepareAsyncCallStart", "PrepareAsyncCallDone",
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint", "Pin", "Unpin",
    "annotate_device_placement", "MoveToDevice", "MoveToHost",
})  # fmt: skip
_MOVING_CALLS = frozenset({"X64Combine", "X64SplitHigh", "X64SplitLow"})  # they join or split halves of 64-bit values
_MOVES = frozenset({
    "copy", "reshape", "convert", "broadcast", "iota", "transpose", "slice", "concatenate", "pad", "reverse",
    "dynamic-slice", "dynamic-update-slice", "reduce-precision", "bitcast-convert", "select", "add", "subtract",
    "multiply", "divide", "maximum", "minimum", "negate", "abs", "and", "or", "xor", "not", "compare", "clamp",
    "exponential", "log", "tanh", "rsqrt", "sqrt", "power", "logistic", "sign", "floor", "ceil", "cosine", "sine",
    "is-finite", "shift-left", "shift-right-logical", "shift-right-arithmetic", "remainder", "reduce", "map",
    "exponential-minus-one", "log-plus-one", "cbrt", "round-nearest-even", "round-nearest-afz", "erf", "atan2", "imag",
    "real", "complex", "tan", "gather", "scatter",
})  # fmt: skip
"""Opcodes usually found in a fusion; alone, they move their operands and results and compute almost nothing."""

_HAVE_CYCLES = (MATMUL_OPCODES | _MOVES | {"reduce-window"}) - {"reshape"}
"""Opcodes, besides fusions, of which libtpu prints cycles once there is machine code."""

_MOVES_PARTS = frozenset({"gather", "scatter"})
_INDEX_CALLS = frozenset({"GatherScatterIndicesBitpacked"})

_FEEDS = frozenset({"infeed", "outfeed"})
_MAY_REACH_HOST = _FEEDS | {"send", "recv"}
_HOST = "host"
"""XLA's name for the thread that runs on the host."""

_PREFETCHES = "cross_program_prefetch_index"
"""The attribute of a copy that the previous step issues."""

FREE_OPERATION = OperationTime(time_us=0.0, basis=TimeBasis.FREE)
_NO_WORK = Work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Prices instructions on one chip, with a cache for computations.

    Attributes:
        graph: The module.
        chip: The figures of a chip.
        constants: The measured constants.
        kernel_costs: The user's FLOPs and bytes of kernels, by name.
        has_cycles: Whether the text is of the stage at which the compiler prints its cycles.
        estimates: The estimates of cycles before that stage; None without any.
    """

    graph: HloGraph
    chip: Chip
    constants: Constants = CONSTANTS
    kernel_costs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    has_cycles: bool = True
    estimates: Estimates | None = None
    _work: dict[str, Work] = field(default_factory=dict, init=False, repr=False, compare=False)
    _estimated: dict[tuple[str, str], int | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _copies: dict[object, OperationTime] = field(default_factory=dict, init=False, repr=False, compare=False)
    _traffic: Traffic = field(init=False, repr=False, compare=False)
    _has_single_cores: bool = field(init=False, repr=False, compare=False)
    _prefetches: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_has_single_cores", self.graph.module.mentions(MEGACORE_MARK))
        object.__setattr__(self, "_prefetches", self.graph.module.mentions(_PREFETCHES))
        self._work.update(count_fused_work(self.graph, self._narrow_passes))
        object.__setattr__(self, "_traffic", Traffic(self.graph))

    @property
    def _hbm_bytes_per_us(self) -> float:
        """The published HBM bandwidth of one device."""
        return self.chip.hbm_bytes_per_s / self.chip.devices_per_chip / _MICROSECONDS

    def streaming_us(self, hbm_bytes: float) -> float:
        """The minimum time of this many HBM bytes, at the published bandwidth."""
        return hbm_bytes / self._hbm_bytes_per_us

    def hbm_time_us(self, moved: Moved) -> float:
        """The time of traffic in HBM, which writes more slowly than it reads.

        Source: on v5e, v5p and v6e, reads alone, writes alone and copies, all three fit one share for each direction.
        """
        weighted = (
            moved.read_bytes / self.constants.hbm_read_share + moved.written_bytes / self.constants.hbm_write_share
        )
        return weighted / self._hbm_bytes_per_us

    def _find_cycles(self, instruction: HloInstruction) -> int | None:
        """The compiler's cycles; at the scheduled stage an estimate, since libtpu prints placeholders at best."""
        if self.has_cycles:
            return read_cycles(instruction)
        if self.estimates is None or not has_cycles_later(instruction):
            return None
        key = (instruction.computation.name, instruction.name)
        if key not in self._estimated:
            work = self.count_cycle_work(instruction)
            self._estimated[key] = None if work is None else round(estimate_cycles(work, self.estimates.cycles))
        return self._estimated[key]

    def count_cycle_work(self, instruction: HloInstruction) -> Mapping[str, float] | None:
        """The work that the cycles of a fusion or an unfused operation are estimated from; None if it is unknown."""
        moved = self._traffic.needed(instruction)
        sizes = (moved.read_bytes, moved.written_bytes)
        return count_cycle_work(self.graph, self.chip, instruction, self._work_in, sizes)

    def time_of(self, instruction: HloInstruction) -> OperationTime:
        """The time of an instruction that calls no computations except fused ones."""
        opcode = instruction.opcode
        if opcode in _FREE_OPCODES or (opcode == "reshape" and not _has_tiles(instruction.shape)):
            return FREE_OPERATION
        if opcode in _MAY_REACH_HOST and reaches_host(instruction):
            return self.host_time(instruction)
        if opcode == "custom-call":
            return self._custom_call(instruction)
        branches = self.branches_of(instruction)
        if branches:
            return self._on_one_core_each(branches)
        cycles = self._find_cycles(instruction)
        if opcode in _MOVES:
            return self._row_by_row(instruction, self._moved(instruction, cycles))
        work = self._work_in(instruction)
        if cycles is not None:
            return self._row_by_row(instruction, self._turned(instruction, self._counted(instruction, cycles, work)))
        if opcode == "fusion" and not work.flops and self._moves_parts(instruction):
            return self._moved(instruction, None)
        return self._roofline(instruction, work, known=opcode in MATMUL_OPCODES or _is_plain_fusion(instruction))

    def branches_of(self, instruction: HloInstruction) -> CoreBranches:
        """The instructions that each core runs of a fusion with a part for each core; empty for all others."""
        return find_core_branches(self.graph, instruction) if self._has_single_cores else ()

    def _on_one_core_each(self, branches: CoreBranches) -> OperationTime:
        """The computation of a fusion with a part for each core, which takes as long as the longer one."""
        every = [[self.time_of(inner) for inner in branch if not is_collective(inner)] for branch in branches]
        longest = max(every, key=lambda costs: sum(cost.time_us for cost in costs))
        all_costs = [cost for costs in every for cost in costs]
        return OperationTime(
            time_us=sum(cost.time_us for cost in longest),
            basis=max(longest, key=lambda cost: cost.time_us).basis if longest else TimeBasis.FREE,
            memory_us=sum(cost.memory_us for cost in longest),
            moved_bytes=sum(cost.moved_bytes for cost in all_costs),
            hbm_bytes=sum(cost.hbm_bytes for cost in all_costs),
            flops=sum(cost.flops for cost in all_costs),
            least_bf16_flops=sum(cost.least_bf16_flops for cost in all_costs),
        )

    def is_prefetch(self, copy: HloInstruction) -> bool:
        """Returns whether the previous step issues a copy."""
        return self._prefetches and _PREFETCHES in copy.attributes

    def find_copy(self, instruction: HloInstruction) -> str | None:
        """The opcode of the copy that an instruction starts within a device's memory, or from or to the host.

        An executable's text prints `slice-start`, a dump of the same module an `async-start` that calls a computation
        with a `slice`. None for anything else.
        """
        if instruction.opcode in _COPY_STARTS:
            return instruction.opcode.removesuffix("-start")
        if instruction.opcode != "async-start":
            return None
        called = [self.graph.module.computation(name) for _, name in instruction.called]
        work = [inner.opcode for one in called for inner in one.instructions if inner.opcode != "parameter"]
        is_copy = len(work) == 1 and f"{work[0]}-start" in _COPY_STARTS and not any(map(runs_on_host, called))
        return work[0] if is_copy else None

    def copy_time(self, instruction: HloInstruction) -> OperationTime:
        """The time of an asynchronous copy at the pace of the slower memory: of a whole array, or of a slice."""
        copy = self.find_copy(instruction)
        source = instruction.operand(1 if copy == "dynamic-update-slice" else 0)
        new, old = instruction.shape, None if source is None else source.shape
        alike = copy, id(new), id(old)  # the module keeps its shapes
        if alike not in self._copies:
            self._copies[alike] = self._copied(copy, new, old)
        return self._copies[alike]

    def _copied(self, copy: str | None, shape: Shape, old: Shape | None) -> OperationTime:
        leaves, is_whole = [leaf for leaf in shape.leaves() if leaf.dimensions], copy == "copy"
        sizes = [sum(self._traffic.of_shape(leaf)) for leaf in leaves]
        moved = (max if is_whole else min)(sizes, default=0)
        is_over_host = any(memory_space(leaf) == HOST for leaf in leaves)
        new = leaves[0 if is_whole else -1] if leaves else None
        hbm = Moved(
            read_bytes=moved if old is not None and self._is_in_hbm(old) else 0,
            written_bytes=moved if new is not None and self._is_in_hbm(new) else 0,
        )
        return OperationTime(
            time_us=moved / self._host_bytes_per_us if is_over_host else self.hbm_time_us(hbm),
            basis=self._basis_of_host() if is_over_host else TimeBasis.MEMORY,
            moved_bytes=moved,
            hbm_bytes=hbm.hbm_bytes,
            is_over_host=is_over_host,
            is_to_host=is_over_host and new is not None and memory_space(new) == HOST,
        )

    def _is_in_hbm(self, shape: Shape) -> bool:
        return self._traffic.of_shape(shape).hbm_bytes > 0

    def host_time(self, instruction: HloInstruction) -> OperationTime:
        """The time of data on the way to or from the host; the host's own time is unknown."""
        sizes = (instruction.shape, *(operand.shape for operand in instruction.operands))
        result, *operands = (sum(self._traffic.of_shape(shape)) for shape in sizes)
        moved = max(result, sum(operands))
        return OperationTime(
            time_us=moved / self._host_bytes_per_us, basis=TimeBasis.UNKNOWN, moved_bytes=moved, is_over_host=True
        )

    def transfer_bytes(self, shape: Shape) -> int:
        """HBM bytes of the data that a collective sends or receives."""
        return self._traffic.of_shape(shape).hbm_bytes

    @property
    def _narrow_passes(self) -> dict[str, float]:
        """Time of an operation relative to a bf16 one, for the narrower types that the chip multiplies."""
        chip = self.chip
        fastest = chip.int8_ops_per_s or chip.f8_flops_per_s or chip.bf16_flops_per_s
        return dict.fromkeys(chip.narrow_matmul_types, chip.bf16_flops_per_s / fastest)

    @property
    def _host_bytes_per_us(self) -> float:
        """The pace of the link to the host; if unknown, that of the memory, which it cannot exceed."""
        chip = self.chip
        if chip.pcie_bytes_per_s is None:
            return self._hbm_bytes_per_us
        return chip.pcie_bytes_per_s * self.constants.host_share / chip.devices_per_chip / _MICROSECONDS

    @property
    def both_ways_pace(self) -> float:
        """The pace of a copy to or from the host while one runs in the other direction, relative to its pace alone."""
        return self.constants.host_both_ways_share / self.constants.host_share

    def _basis_of_host(self) -> TimeBasis:
        return TimeBasis.UNKNOWN if self.chip.pcie_bytes_per_s is None else TimeBasis.LINK_TO_HOST

    @property
    def _peak_flops_per_us(self) -> float:
        """The bf16 peak of one device."""
        return self.chip.bf16_flops_per_s / self.chip.devices_per_chip / _MICROSECONDS

    def _counted(self, instruction: HloInstruction, cycles: int, work: Work) -> OperationTime:
        """The time of an operation from the compiler's cycles, unless memory limits its pace.

        The compiler counts too much for memory, and too much for the vector unit if that works while the data arrive.
        The cycles of matmuls are right except for memory; for some with 8-bit types they are too many.

        Source: elementwise updates, reductions and matmuls of few rows on v5e and v5p, and the elementwise fusions of
            a whole step on v6e.
        """
        moved = self._traffic.needed(instruction)
        cycles_us, memory_us = cycles / self.chip.clock_hz * _MICROSECONDS, self._memory_time_us(moved)
        time_us, basis = min(
            (cycles_us, TimeBasis.CYCLES),
            self._paced(instruction, work, moved, cycles_us) or (cycles_us, TimeBasis.CYCLES),
            key=lambda pair: pair[0],
        )
        is_large = work.bf16_flops >= max(_LARGE_MATMUL_FLOPS, 2 * memory_us * self._peak_flops_per_us)
        return OperationTime(
            time_us=time_us,
            basis=basis,
            memory_us=memory_us,
            moved_bytes=moved.device_bytes,
            hbm_bytes=moved.hbm_bytes,
            flops=work.flops,
            least_bf16_flops=min(float(work.flops), work.bf16_flops),
            bf16_flops_per_cycle=work.bf16_flops / cycles if cycles and is_large else 0.0,
        )

    def _paced(
        self, instruction: HloInstruction, work: Work, moved: Moved, cycles_us: float
    ) -> tuple[float, TimeBasis] | None:
        """The time and basis of an operation whose pace is not set by the compiler's cycles; None if it is."""
        memory_us = self._memory_time_us(moved)
        inner_us = max(cycles_us - moved.hbm_bytes / (self._hbm_bytes_per_us * _COUNTED_HBM_SHARE), 0.0)
        if work.flops:
            if work.bf16_flops <= memory_us * self._peak_flops_per_us * _LARGEST_MATMUL_SHARE:
                return memory_us + inner_us, TimeBasis.MEMORY
            narrow_us = work.bf16_flops / (self._peak_flops_per_us * self.constants.narrow_share)
            return (max(narrow_us, memory_us), TimeBasis.NARROW) if work.bf16_flops < work.flops else None
        if not _is_plain_fusion(instruction) or self.hbm_time_us(moved) <= _LEAST_STREAMED * cycles_us:
            return None
        vector_us = self.constants.vector_share * inner_us
        return (memory_us, TimeBasis.MEMORY) if memory_us >= vector_us else (vector_us, TimeBasis.VECTOR)

    def _moved(self, instruction: HloInstruction, cycles: int | None) -> OperationTime:
        """The time of a copy or an unfused operation, for which the compiler's cycles are two to three times too many.

        Source: profiles of v5e and v6e, in which copies run at the HBM bandwidth.
        """
        moved = self._traffic.needed(instruction)
        time_us = self._memory_time_us(moved)
        if cycles is not None and moved.hbm_bytes == 0:
            time_us = min(cycles / self.chip.clock_hz * _MICROSECONDS, moved.vmem_bytes / self._hbm_bytes_per_us)
        return OperationTime(
            time_us=max(time_us, moved.host_bytes / self._host_bytes_per_us),
            basis=self._basis_of_host() if moved.host_bytes else TimeBasis.MEMORY,
            memory_us=self.hbm_time_us(moved),
            moved_bytes=sum(moved),
            hbm_bytes=moved.hbm_bytes,
            is_over_host=moved.host_bytes > 0,
            is_to_host=moved.host_bytes > 0 and any(memory_space(leaf) == HOST for leaf in instruction.shape.leaves()),
        )

    def _row_by_row(self, instruction: HloInstruction, found: OperationTime) -> OperationTime:
        """The time of an operation, which is longer if it writes single rows of tiles.

        The rest of each tile is read and written with them, and the rows are not adjacent.

        Source: updates of one layer of a stack along its second-minor dimension, in a profile of v5p.
        """
        if instruction.opcode not in ("dynamic-update-slice", "fusion"):
            return found
        moved = 2 * self._traffic.single_rows(instruction)
        rows_us = moved / (self._hbm_bytes_per_us * self.constants.single_rows_share)
        if rows_us <= found.time_us:
            return found
        return replace(found, time_us=rows_us, basis=TimeBasis.SINGLE_ROWS, memory_us=rows_us)

    def _turned(self, instruction: HloInstruction, found: OperationTime) -> OperationTime:
        """The time of an operation at the pace of memory, which is slower if it transposes an array on the way.

        Source: in a profile of v5p, an optimizer's update with one of its four arrays transposed, next to one without.
        """
        if found.basis is not TimeBasis.MEMORY or not self._traffic.turns(instruction):
            return found
        time_us = found.time_us / self.constants.transposed_share
        return replace(found, time_us=time_us, basis=TimeBasis.TRANSPOSED, memory_us=time_us)

    def _memory_time_us(self, moved: Moved) -> float:
        """The time of the traffic in the memories of the device, one after the other."""
        return self.hbm_time_us(moved) + moved.vmem_bytes / (self._hbm_bytes_per_us * VMEM_OVER_HBM)

    def _roofline(self, instruction: HloInstruction, work: Work, *, known: bool) -> OperationTime:
        whole, is_call = self._traffic.of(instruction), instruction.opcode == "custom-call" and not known
        least = self._traffic.written(instruction) if is_call else self._traffic.needed(instruction)
        moved = least if known else whole
        return OperationTime(
            time_us=max(work.bf16_flops / self._peak_flops_per_us, self._memory_time_us(moved)),
            basis=TimeBasis.ROOFLINE if known and work.is_whole else TimeBasis.UNKNOWN,
            memory_us=self.hbm_time_us(moved),
            moved_bytes=moved.device_bytes,
            hbm_bytes=least.hbm_bytes,
            flops=work.flops,
            least_bf16_flops=min(float(work.flops), work.bf16_flops),
        )

    def _custom_call(self, instruction: HloInstruction) -> OperationTime:
        """The time of a custom call: its stated cost, or the traffic of an unknown operation."""
        if instruction.custom_call_target in _FREE_CALLS:
            return FREE_OPERATION
        said, cycles = self.said_of(instruction), self._find_cycles(instruction)
        if cycles is not None and said is None:
            return self._counted(instruction, cycles, _NO_WORK)
        said = said or (0.0, 0.0)
        if any(said) or instruction.custom_call_target == PALLAS:
            return self._kernel(instruction, *said)
        return self._roofline(instruction, _NO_WORK, known=instruction.custom_call_target in _MOVING_CALLS)

    def said_of(self, call: HloInstruction) -> tuple[float, float] | None:
        """FLOPs and bytes of a custom call from the user, otherwise from its author; None if it has cycles."""
        said = next((self.kernel_costs[name] for name in find_kernel_names(call) if name in self.kernel_costs), None)
        if said is not None:
            return said
        if self._find_cycles(call) is not None:
            return None
        estimate = read_cost_estimate(call)
        return float(estimate.get("flops", 0)), float(estimate.get("bytes_accessed", 0))

    def written_bytes(self, call: HloInstruction) -> int:
        """HBM bytes that a custom call writes, whatever else it does."""
        return self._traffic.written(call).hbm_bytes

    def _kernel(self, instruction: HloInstruction, flops: float, moved_bytes: float) -> OperationTime:
        """The time of a user's kernel: its stated cost, but at least the time to write its results."""
        written_bytes = self.written_bytes(instruction)
        is_known = flops > 0 or moved_bytes > 0
        least_bytes = max(moved_bytes, written_bytes)
        memory_us = self.hbm_time_us(Moved(int(least_bytes) - written_bytes, written_bytes))
        bf16_flops = flops * self._passes_of_kernel(instruction)
        return OperationTime(
            time_us=max(bf16_flops / self._peak_flops_per_us, memory_us),
            basis=TimeBasis.ROOFLINE if is_known else TimeBasis.UNKNOWN,
            memory_us=memory_us,
            moved_bytes=int(least_bytes) if is_known else self._traffic.of(instruction).device_bytes,
            hbm_bytes=written_bytes,
            flops=int(flops),
            least_bf16_flops=bf16_flops,
            kernel=None if is_known else find_kernel_names(instruction)[0],
        )

    def _passes_of_kernel(self, instruction: HloInstruction) -> float:
        """Time of a kernel's multiplications relative to bf16 ones: those of narrow types if it takes two of them."""
        types = (operand.shape.element_type for operand in instruction.operands)
        passes = [self._narrow_passes[name] for name in types if name in self._narrow_passes]
        return max(passes) if len(passes) > 1 else 1.0

    def _moves_parts(self, fusion: HloInstruction) -> bool:
        """Returns whether a fusion only gathers from an array or scatters into one, whatever its kind."""
        does = self._does(fusion.called[0][1], 0)
        return bool(does & _MOVES_PARTS) and does <= _MOVES | _FREE_OPCODES | _FREE_CALLS | _INDEX_CALLS

    def _does(self, computation: str, depth: int) -> set[str]:
        """The opcodes in a fused computation; for custom calls, their targets."""
        found: set[str] = set()
        for inner in self.graph.module.computation(computation).instructions:
            if inner.opcode == "fusion" and depth < _DEEPEST:
                found |= self._does(inner.called[0][1], depth + 1)
            else:
                found.add((inner.opcode == "custom-call" and inner.custom_call_target) or inner.opcode)
        return found

    def _work_in(self, instruction: HloInstruction) -> Work:
        """The work of an instruction and of the computations fused into it."""
        if instruction.opcode in MATMUL_OPCODES:
            return count_work(instruction, self._narrow_passes)
        return self._work.get(instruction.called[0][1], _NO_WORK) if instruction.opcode == "fusion" else _NO_WORK


def is_collective(instruction: HloInstruction) -> bool:
    """Returns whether an instruction is a collective by its opcode."""
    return instruction.opcode.startswith(COLLECTIVES)


def read_cycles(instruction: HloInstruction) -> int | None:
    """The compiler's cycles; None if it prints none, or prints that they are unknown."""
    found = _CYCLES.search(instruction.attributes.get("backend_config", ""))
    return None if found is None or int(found[1]) >= _NO_CYCLES else int(found[1])


def has_cycles_later(instruction: HloInstruction) -> bool:
    """Returns whether libtpu prints the cycles of such an instruction once there is machine code."""
    return _is_plain_fusion(instruction) or instruction.opcode in _HAVE_CYCLES


def runs_on_host(computation: HloComputation) -> bool:
    """Returns whether the host runs a computation rather than the device."""
    return computation.execution_thread == _HOST


def reaches_host(instruction: HloInstruction) -> bool:
    """Returns whether the host takes part in an operation itself."""
    return instruction.opcode in _FEEDS or instruction.attributes.get("is_host_transfer") == "true"


def _is_plain_fusion(instruction: HloInstruction) -> bool:
    """Returns whether a fusion consists of elementwise operations and matmuls; a custom one may do anything."""
    return instruction.opcode == "fusion" and instruction.attributes.get("kind") != "kCustom"
