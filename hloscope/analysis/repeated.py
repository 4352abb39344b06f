"""Repeated work: what the compiled program multiplies on all devices, beside what the traced program does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose, prod
from operator import attrgetter

from hloscope.analysis.model_parts import find_common_path, parse_scopes
from hloscope.analysis.provenance import find_users_frame
from hloscope.analysis.spellings import PALLAS
from hloscope.base.results import group_by
from hloscope.compile.estimates import MATMUL_KINDS, Runs, ShardyRuns, find_cut_factors
from hloscope.model import Analysis
from hloscope.model.analysis import NOTABLE_RATIO, Kernel, RepeatedLine, RepeatedWork
from hloscope.model.capture import Capture, ShardyModule, ShardyOp, find_whole_axes, multiply_axis_sizes
from hloscope.model.reason import SourceFrame
from hloscope.model.vocabulary import Bound

_LINES_SHOWN = 3
_LEAST_COUNTED = 0.5
"""The least share of the compiled FLOPs in lines that can be compared, for a ratio that is said of the step."""
_ALIKE = 0.05
"""The relative difference between two ratios that are taken to be the same."""

_Place = tuple[str, int] | None
"""File and line of the user's code; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Some matmuls of the traced or of the compiled program.

    Attributes:
        flops: FLOPs per step on all devices; None if unknown.
        is_open: Whether they run an unknown number of times, and count once.
        padded: `flops` with the padding of uneven shards.
        is_padding_known: Whether they are surely padded by no more.
        axes: The mesh axes that shard none of their dimensions.
        scopes: The modules and named scopes around them.
        recomputed: The part of `flops` that XLA computes again.
        source: Source frames, innermost first.
    """

    flops: float | None
    is_open: bool
    padded: float = 0.0
    is_padding_known: bool = True
    axes: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    recomputed: float = 0.0
    source: tuple[SourceFrame, ...] = ()

    @property
    def place(self) -> _Place:
        """The user's line."""
        return _find_place(self.source)


_BY_PLACE = attrgetter("place")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """The work of one line, traced and compiled."""

    traced: Sequence[_Work]
    compiled: Sequence[_Work]

    @property
    def is_open(self) -> bool:
        """True if some of it runs an unknown number of times, or cannot be counted."""
        return not self.is_counted or any(work.is_open for work in (*self.traced, *self.compiled))

    @property
    def is_counted(self) -> bool:
        """True if both sides are known, or count loops of unknown length once."""
        is_known = all(work.flops is not None for work in (*self.traced, *self.compiled))
        is_open = [any(work.is_open for work in side) for side in (self.traced, self.compiled)]
        return is_known and is_open[0] == is_open[1]

    @property
    def padded_flops(self) -> float:
        """FLOPs of the traced program with padding."""
        return sum(work.padded for work in self.traced)

    @property
    def compiled_flops(self) -> float:
        """FLOPs of the compiled program."""
        return _sum_flops(self.compiled)


def find_repeated_work(analysis: Analysis, program: Capture) -> RepeatedWork | None:
    """The work that devices repeat; None if the traced program is unknown.

    Args:
        analysis: The compiled program, with its matmuls and kernels.
        program: The same program, with Shardy's module.
    """
    shardy = program.compiled.shardy
    if shardy is None or (program.used_devices > 1 and not shardy.mesh):  # the older partitioner has no named axes
        return None
    kernels = [(kernel, _find_cost(kernel, program.kernel_costs)) for kernel in analysis.kernels]
    traced = group_by([*_list_traced(shardy, kernels)], _BY_PLACE)
    devices = max(program.used_devices, prod(shardy.mesh.values()))  # text may be the program of one of several slices
    compiled = group_by([*_list_compiled(analysis, kernels, devices)], _BY_PLACE)
    lines = [
        _Line(traced=traced.get(place, ()), compiled=compiled.get(place, ()))
        for place in dict.fromkeys((*traced, *compiled))
    ]
    return _compare(lines, shardy.mesh)


def _compare(lines: Sequence[_Line], mesh: Mapping[str, int]) -> RepeatedWork:
    counted = [line for line in lines if line.is_counted]
    traced = [work for line in counted for work in line.traced]
    compiled = [work for line in counted for work in line.compiled]
    traced_flops, padded_flops = _sum_flops(traced), sum(work.padded for work in traced)
    compiled_flops = _sum_flops(compiled)
    of_all = _sum_flops(work for line in lines for work in line.compiled)
    ratio = compiled_flops / padded_flops if padded_flops and compiled_flops >= _LEAST_COUNTED * of_all else None
    return RepeatedWork(
        ratio=ratio,
        bound=_find_bound(ratio, lines),
        padding=padded_flops / traced_flops if traced_flops else 1.0,
        recomputed=sum(work.recomputed for work in compiled) / compiled_flops if compiled_flops else 0.0,
        traced_flops=float(traced_flops),
        compiled_flops=float(compiled_flops),
        lines=tuple(_find_repeating_lines(counted, mesh)),
    )


def _find_bound(ratio: float | None, lines: Sequence[_Line]) -> Bound:
    """The bound of a ratio: of what is open, the part in the whole is unknown, unless all lines have the same ratio."""
    if ratio is None:
        return Bound.UNKNOWN
    known = all(work.is_padding_known for line in lines for work in line.traced)
    bound = Bound.EXACT if known else Bound.AT_MOST
    is_same = all(line.is_counted and isclose(line.compiled_flops, ratio * line.padded_flops) for line in lines)
    if is_same or not any(line.is_open for line in lines):
        return bound
    return bound + (Bound.AT_LEAST if ratio <= 1 else Bound.UNKNOWN)


def _find_repeating_lines(lines: Iterable[_Line], mesh: Mapping[str, int]) -> Iterator[RepeatedLine]:
    both = (line for line in lines if line.padded_flops and line.compiled_flops >= NOTABLE_RATIO * line.padded_flops)
    most = sorted(both, key=lambda line: line.padded_flops - line.compiled_flops)
    for line in most[:_LINES_SHOWN]:
        ratio = line.compiled_flops / line.padded_flops
        largest = max(line.traced, key=lambda work: work.padded)
        devices = multiply_axis_sizes(largest.axes, mesh)
        once = line.compiled_flops - sum(work.recomputed for work in line.compiled)
        is_reason = devices > 1 and abs(once / line.padded_flops / devices - 1) < _ALIKE
        axes, devices = (largest.axes, devices) if is_reason else ((), 1)
        module = ".".join(find_common_path(work.scopes for work in line.traced)) or None
        yield RepeatedLine(ratio=ratio, axes=axes, devices=devices, module=module, source=largest.source)


def _sum_flops(works: Iterable[_Work]) -> float:
    return sum(work.flops or 0 for work in works)


def _find_place(source: Sequence[SourceFrame]) -> _Place:
    frame = find_users_frame(source)
    return None if frame is None else (frame.file, frame.line)


# ---- the compiled program


_Costs = Sequence[tuple[Kernel, float | None]]
"""The kernels of the compiled program, with the FLOPs of one run."""


def _find_cost(kernel: Kernel, said: Mapping[str, tuple[float, float]]) -> float | None:
    """FLOPs of one run of a kernel, from the user or from its author; None if unknown."""
    names = (kernel.name, *(kernel.op_name or "").split("/"))
    return next((said[name][0] for name in names if name in said), kernel.flops)


def _list_compiled(analysis: Analysis, kernels: _Costs, devices: int) -> Iterator[_Work]:
    for row in analysis.matmuls:
        yield _Work(
            flops=None if row.flops is None else row.flops * devices,
            is_open=row.bound is not Bound.EXACT,
            recomputed=row.recomputed_flops * devices,
            source=row.source,
        )
    for kernel, flops in kernels:
        yield _Work(
            flops=None if flops is None else flops * kernel.executions * devices,
            is_open=kernel.executions_bound is not Bound.EXACT,
            source=kernel.source,
        )


# ---- the traced program


def _list_traced(shardy: ShardyModule, kernels: _Costs) -> Iterator[_Work]:
    runs = ShardyRuns(shardy)
    costs = {(_find_place(kernel.source), _list_dimensions(kernel)): flops for kernel, flops in kernels}
    for op in shardy.ops:
        if op.kind in MATMUL_KINDS:
            yield _make_traced(shardy, op, runs.of(op), op.flops)
        elif op.symbol == PALLAS:
            shapes = tuple(shardy.values[operand].shape for operand in op.operands)
            yield _make_traced(shardy, op, runs.of(op), costs.get((_find_place(_list_frames(op)), shapes)))


def _list_dimensions(kernel: Kernel) -> tuple[tuple[int, ...] | None, ...]:
    return tuple(shape.dimensions for shape in kernel.operand_shapes)


def _list_frames(op: ShardyOp) -> tuple[SourceFrame, ...]:
    return tuple(SourceFrame(file=at.file, line=at.line, function=at.function or None) for at in op.source)


def _make_traced(shardy: ShardyModule, op: ShardyOp, runs: Runs, flops: float | None) -> _Work:
    left = {axis: size for axis, size in shardy.mesh.items() if size > 1 and axis not in runs.manual}
    cut = find_cut_factors(shardy, op)
    used = find_whole_axes(axis for axes in cut.values() for axis in axes)
    whole = None if flops is None else flops * runs.times_everywhere
    return _Work(
        flops=whole,
        is_open=runs.is_open,
        padded=(whole or 0.0) * _find_padding(shardy, op, cut),
        is_padding_known=_is_padding_known(shardy, op, prod(left.values())),
        axes=tuple(axis for axis in left if axis not in used),
        scopes=parse_scopes(op.op_name),
        source=_list_frames(op),
    )


def _find_padding(shardy: ShardyModule, op: ShardyOp, cut: Mapping[int, frozenset[str]]) -> float:
    """The factor by which uneven shards increase the FLOPs of an operation."""
    padding = 1.0
    for factor, axes in cut.items():
        size, devices = op.rule.sizes[factor] if op.rule else 1, multiply_axis_sizes(axes, shardy.mesh)
        padding *= -(-size // devices) * devices / size if size else 1
    return padding


def _is_padding_known(shardy: ShardyModule, op: ShardyOp, devices: int) -> bool:
    """False if shards may be uneven: Shardy has no shardings for private functions that it does not look into."""
    values = [shardy.values[index] for index in (*op.operands, *op.results)]
    is_even = op.rule is not None and all(size % devices == 0 for size in op.rule.sizes)
    return is_even or devices == 1 or all(value.sharding is not None for value in values)
