"""How often the operations of a program run, from Shardy's module: per device, and on all devices of manual axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from hloscope.model.capture import ShardyModule, ShardyOp, ShardyValue, multiply_axis_sizes

_CONDITION, _BODY = 0, 1
_BRANCHES = ("stablehlo.case", "stablehlo.if")


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
        self.unread_loops: set[int] = set()

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
            self.unread_loops.add(holder.index)
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
        return self._module.values[index]

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
