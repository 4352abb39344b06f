"""Cost estimates from Shardy's shardings alone: bytes moved, and redundant work on devices.

Good for ranking alone: nothing is compiled, so fusion, overlap and the partitioner's choices are not included.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

from hloscope.compile.shardy_runs import ShardyRuns, find_cut_factors
from hloscope.model.capture import (
    ShardyModule,
    ShardyOp,
    ShardyValue,
    ValueSharding,
    axes_in,
    find_dropped_axes,
    multiply_axis_sizes,
)

_MULTIPLIES = ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution")
_RESHARDS = ("sdy.reshard", "sdy.sharding_constraint")
_FREE = frozenset(
    """stablehlo.constant sdy.constant stablehlo.broadcast_in_dim stablehlo.reshape stablehlo.while stablehlo.case
    stablehlo.if func.func func.call sdy.named_computation sdy.manual_computation sdy.reshard sdy.sharding_constraint
    """.split()
)
"""Operations that read and write nothing themselves, or nothing that is not already counted."""
_BITS = {"i1": 8, "bf16": 16, "complex<f32>": 64, "complex<f64>": 128}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates of one device.

    Attributes:
        link_bytes: Bytes sent per second.
        memory_bytes: Bytes read or written per second.
        flops: Multiply-adds per second, each counted as two.
    """

    link_bytes: float
    memory_bytes: float
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimated cost of one step on one device, from Shardy's shardings.

    Attributes:
        moved_bytes: Bytes that it sends.
        memory_bytes: Bytes of the arrays that its operations read and write, as if none were fused.
        flops: The FLOPs of its matmuls and convolutions.
        loops_unknown: The number of loops whose trip count is unknown, and which count once.
        matmuls: Executions, FLOPs and bytes of the matmuls; equal ones are combined.
        transfers: The number of transfers.
        whole_flops: `flops` if one device did everything.
    """

    moved_bytes: float
    memory_bytes: float
    flops: float
    loops_unknown: int = 0
    matmuls: tuple[tuple[float, float, float], ...] = ()
    transfers: float = 0.0
    whole_flops: float = 0.0

    def time_us(self, rates: Rates) -> float:
        """The time without overlap; element-wise operations are fused, so only a part of the memory traffic counts."""
        work = max(self.flops / rates.flops, _FUSED * self.memory_bytes / rates.memory_bytes)
        return 1e6 * (self.moved_bytes / rates.link_bytes + work)

    def step_us(self, rates: Rates) -> float:
        """The same, with each matmul by its own roofline and a start for each transfer, to compare whole programs."""
        return sum(self.parts_us(rates))

    def parts_us(self, rates: Rates) -> tuple[float, ...]:
        """The parts of `step_us`: moving, matmuls, other operations, starts of transfers, and of the program."""
        matmuls = sum(
            times * max(flops / rates.flops, moved / rates.memory_bytes) for times, flops, moved in self.matmuls
        )
        of_matmuls = sum(times * moved for times, _, moved in self.matmuls)
        others = _FUSED * max(self.memory_bytes - of_matmuls, 0.0) / rates.memory_bytes
        moving = self.moved_bytes / rates.link_bytes
        return 1e6 * moving, 1e6 * matmuls, 1e6 * others, _START_US * self.transfers, 1.0


_START_US = 3.0
_FUSED = 0.4
"""The share of all operations' bytes that crosses memory after fusion."""


def estimate_cost(module: ShardyModule) -> Estimate:
    """Estimates the cost of a propagated module."""
    return _CostWalk(module).estimate()


class _CostWalk:
    def __init__(self, module: ShardyModule) -> None:
        self._module = module
        self._runs = ShardyRuns(module)

    def estimate(self) -> Estimate:
        moved = memory = flops = transfers = whole = 0.0
        matmuls: defaultdict[tuple[float, float], float] = defaultdict(float)
        for op in self._module.ops:
            runs = self._runs.of(op)
            times = runs.times
            arrives = self._summed(op) if op.kind == "sdy.all_reduce" else 0.0
            arrives = self._moved(op) if op.kind in _RESHARDS else arrives
            moved += times * arrives
            transfers += times * (arrives > 0)
            if op.results and op.kind not in _FREE:
                touched = sum(map(self._local_bytes, map(self._value, (*op.operands, *op.results))))
                memory += times * touched
                if op.kind in _MULTIPLIES:
                    multiplied, devices = self._flops(op)
                    whole += runs.times_everywhere * multiplied * devices
                    flops += times * multiplied
                    matmuls[multiplied, touched] += times
        return Estimate(
            moved_bytes=moved,
            memory_bytes=memory,
            flops=flops,
            loops_unknown=len(self._runs.unread_loops),
            matmuls=tuple((times, *each) for each, times in matmuls.items()),
            transfers=transfers,
            whole_flops=whole,
        )

    def _value(self, index: int) -> ShardyValue:
        return self._module.values[index]

    def _local_bytes(self, value: ShardyValue, sharding: ValueSharding | None = None) -> float:
        cut = sharding if sharding is not None else value.sharding or ()
        devices = multiply_axis_sizes(axes_in(cut), self._module.mesh)
        return prod(value.shape) * _count_bits(value.element_type) / 8 / devices

    def _summed(self, op: ShardyOp) -> float:
        """The bytes of an all-reduce; half of them if its only reader takes a part, as for a reduce-scatter."""
        devices = multiply_axis_sizes(op.axes, self._module.mesh)
        whole = 2 * (devices - 1) / devices * self._local_bytes(self._value(op.results[0]))
        users = self._module.users.get(op.results[0], ())
        after = [self._module.ops[user] for user, _ in users]
        if len(after) != 1 or after[0].kind not in _RESHARDS:
            return whole
        gained = {axis for axes in self._value(after[0].results[0]).sharding or () for axis in axes}
        return whole / 2 if {*op.axes} <= gained else whole

    def _moved(self, op: ShardyOp) -> float:
        value, result = self._value(op.operands[0]), self._value(op.results[0])
        before, after = value.sharding or ((),) * len(value.shape), result.sharding or ((),) * len(value.shape)
        if len(before) != len(after):
            return 0.0
        given_up = {axis for had, gets in zip(before, after, strict=True) for axis in find_dropped_axes(had, gets)}
        kept = {axis for axes in after for axis in axes}
        sizes = self._module.mesh
        gathered, exchanged = multiply_axis_sizes(given_up - kept, sizes), multiply_axis_sizes(given_up & kept, sizes)
        arrives = self._local_bytes(value, after)
        return arrives * ((gathered - 1) / gathered + (exchanged - 1) / exchanged)

    def _flops(self, op: ShardyOp) -> tuple[float, int]:
        """The multiply-adds of one device, and the number of devices that share the whole."""
        cut = find_cut_factors(self._module, op)
        devices = multiply_axis_sizes(axes_in(cut.values()), self._module.mesh)
        return (op.flops or 0) / devices, devices


def _count_bits(element_type: str) -> int:
    if element_type in _BITS:
        return _BITS[element_type]
    digits = "".join(character for character in element_type.partition("E")[0] if character.isdigit())
    return max(int(digits), 8) if digits else 32
