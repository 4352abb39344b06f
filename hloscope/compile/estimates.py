"""Cost estimates from Shardy's shardings alone: bytes moved, and redundant work on devices; the runs of operations.

The estimates are good for ranking alone: nothing is compiled, so fusion, overlap and the partitioner's choices are not
included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from hloscope.model.capture import (
    ShardyModule,
    ShardyOp,
    ShardyValue,
    ValueSharding,
    axes_in,
    find_dropped_axes,
    multiply_axis_sizes,
)

MATMUL_KINDS = ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution")
_RESHARDS = ("sdy.reshard", "sdy.sharding_constraint")
_FREE = frozenset(
    """stablehlo.constant sdy.constant stablehlo.broadcast_in_dim stablehlo.reshape stablehlo.while stablehlo.case
    stablehlo.if func.func func.call sdy.named_computation sdy.manual_computation sdy.reshard sdy.sharding_constraint
    """.split()
)
"""Operations that read and write nothing themselves, or nothing that is not already counted."""
_BITS = {"i1": 8, "bf16": 16, "complex<f32>": 64, "complex<f64>": 128}
_CONDITION, _BODY = 0, 1
_BRANCHES = ("stablehlo.case", "stablehlo.if")


# ---- the estimated cost


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
        matmuls: Executions, FLOPs and bytes of the matmuls; equal ones are combined.
        transfers: The number of transfers.
        whole_flops: `flops` if one device did everything.
    """

    moved_bytes: float
    memory_bytes: float
    flops: float
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
                if op.kind in MATMUL_KINDS:
                    multiplied, devices = self._flops(op)
                    whole += runs.times_everywhere * multiplied * devices
                    flops += times * multiplied
                    matmuls[multiplied, touched] += times
        return Estimate(
            moved_bytes=moved,
            memory_bytes=memory,
            flops=flops,
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


# ---- the runs of operations, and how they are cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs of an operation in one step.

    Attributes:
        times: Runs on one device.
        times_everywhere: The same, with each run inside `shard_map` counted on all devices of the axes that are manual.
        manual: The axes that are manual around it.
        is_open: Whether it is in a branch, which counts as taken, or in a loop of unknown length, which counts as one.
    """

    times: int = 1
    times_everywhere: int = 1
    manual: frozenset[str] = frozenset()
    is_open: bool = False


class ShardyRuns:
    """The runs of all operations of a module."""

    def __init__(self, module: ShardyModule) -> None:
        self._module = module
        self._inside: dict[int, Runs] = {}

    def of(self, op: ShardyOp) -> Runs:
        """The runs of an operation."""
        if op.parent is None:
            return self._of_function(op)
        if op.parent not in self._inside:
            holder = self._module.ops[op.parent]
            self._inside[op.parent] = self._enter(holder, self.of(holder))
        return self._inside[op.parent]

    def _of_function(self, function: ShardyOp) -> Runs:
        if function.index == self._module.main or function.kind != "func.func":
            return Runs()
        calls = [self.of(call) for call in self._calls.get(function.symbol or "", ())]
        return Runs(
            times=sum(call.times for call in calls),
            times_everywhere=sum(call.times_everywhere for call in calls),
            manual=frozenset[str]().union(*(call.manual for call in calls)),
            is_open=any(call.is_open for call in calls),
        )

    def _enter(self, holder: ShardyOp, around: Runs) -> Runs:
        """The runs of what an operation contains."""
        if holder.kind in _BRANCHES:
            return replace(around, is_open=True)
        if holder.kind == "sdy.manual_computation":
            devices = multiply_axis_sizes(holder.axes, self._module.mesh)
            everywhere = around.times_everywhere * devices
            return replace(around, times_everywhere=everywhere, manual=around.manual.union(holder.axes))
        if holder.kind != "stablehlo.while":
            return around
        trips = self._find_trips(holder)
        if trips is None:
            return replace(around, is_open=True)
        return replace(around, times=around.times * trips, times_everywhere=around.times_everywhere * trips)

    def _find_trips(self, loop: ShardyOp) -> int | None:
        """The trip count of a loop that counts up from a number to below another one; None for all others."""
        compared = self._condition(loop)
        if compared is None or compared.symbol != "LT":
            return None
        counter, end = map(self._value, compared.operands)
        if not counter.is_argument or counter.owner != loop.index or end.whole_number is None:
            return None
        start = self._value(loop.operands[counter.number]).whole_number
        step = self._find_step(loop, counter.number)
        return None if start is None or step is None else max(-((start - end.whole_number) // step), 0)

    def _condition(self, loop: ShardyOp) -> ShardyOp | None:
        """The comparison that a loop's condition consists of."""
        returned = self._returns.get((loop.index, _CONDITION))
        maker = None if returned is None else self._maker(self._value(returned.operands[0]))
        return maker if maker is not None and maker.kind == "stablehlo.compare" else None

    def _find_step(self, loop: ShardyOp, number: int) -> int | None:
        """The positive number that each trip adds to a carried value."""
        returned = self._returns.get((loop.index, _BODY))
        added = None if returned is None else self._maker(self._value(returned.operands[number]))
        if added is None or added.kind != "stablehlo.add":
            return None
        before, step = sorted(map(self._value, added.operands), key=lambda value: value.whole_number is not None)
        is_counter = before.is_argument and (before.owner, before.number) == (loop.index, number)
        return step.whole_number if is_counter and (step.whole_number or 0) > 0 else None

    def _value(self, index: int) -> ShardyValue:
        """A value before it is given another sharding, as even the counters of loops are with explicit axes."""
        value = self._module.values[index]
        while (maker := self._maker(value)) is not None and maker.kind in _RESHARDS:
            value = self._module.values[maker.operands[0]]
        return value

    def _maker(self, value: ShardyValue) -> ShardyOp | None:
        return None if value.is_argument else self._module.ops[value.owner]

    @cached_property
    def _returns(self) -> Mapping[tuple[int, int], ShardyOp]:
        held = ((op.parent, op) for op in self._module.ops if op.kind == "stablehlo.return")
        return {(parent, op.region): op for parent, op in held if parent is not None}

    @cached_property
    def _calls(self) -> Mapping[str, list[ShardyOp]]:
        found: dict[str, list[ShardyOp]] = {}
        for op in self._module.ops:
            if op.kind == "func.call" and op.symbol:
                found.setdefault(op.symbol, []).append(op)
        return found


def find_cut_factors(module: ShardyModule, op: ShardyOp) -> dict[int, frozenset[str]]:
    """The axes that cut each factor of an operation's rule, major factors first; empty without a rule that fits."""
    found: dict[int, frozenset[str]] = {}
    rule = op.rule
    if rule is None or len(rule.operands) != len(op.operands):
        return found
    rows = zip((*op.operands, *op.results), (*rule.operands, *rule.results), strict=True)
    for index, mapping in rows:
        for axes, factors in zip(module.values[index].sharding or (), mapping, strict=False):
            if factors and axes:
                found[factors[0]] = found.get(factors[0], frozenset()).union(axes)
    return found
