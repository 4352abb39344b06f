"""Shardy's module as a graph: the origin of each value, its users, and its enclosing loops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from hloscope.base.results import group_by
from hloscope.model import SourceFrame
from hloscope.model.capture import CodePlace, ShardyModule, ShardyOp, ShardyValue
from hloscope.model.vocabulary import Kind

_CONSTRAINT = "sdy.sharding_constraint"
RESHARD_KINDS = frozenset({"sdy.reshard", _CONSTRAINT})
MOVE_KINDS = RESHARD_KINDS | {"sdy.all_reduce"}
"""Operations that Shardy inserts wherever data must move."""


COLLECTIVE_KINDS = frozenset(f"stablehlo.{kind.replace('-', '_')}" for kind in Kind)
"""Collectives that the program contains before partitioning."""

_SAME_ELEMENTS = MOVE_KINDS | frozenset({"stablehlo.convert", "stablehlo.copy"})
_KEEPS_ALL = _SAME_ELEMENTS | {"stablehlo.reshape", "stablehlo.transpose"}
BARRIER_KINDS = frozenset({"stablehlo.optimization_barrier"})
_REARRANGED = frozenset(
    {
        "stablehlo.transpose",
        "stablehlo.reshape",
        "stablehlo.broadcast_in_dim",
        "stablehlo.slice",
        "stablehlo.dynamic_slice",
        "stablehlo.pad",
        "stablehlo.reverse",
    }
)
_WRAPPERS = frozenset({"sdy.manual_computation", "sdy.named_computation", "stablehlo.while"})
_RETURNS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
LOOP_BODY = 1
_WRITTEN_CONSTRAINTS = ("sharding_constraint", "reshard")


class ShardyGraph:
    """A module with paths through its values."""

    def __init__(self, module: ShardyModule) -> None:
        self.module = module
        self._before: dict[int, tuple[ShardyValue, bool] | None] = {}
        self._roots: dict[int, tuple[ShardyValue, bool]] = {}

    @cached_property
    def functions(self) -> dict[str, ShardyOp]:
        """The functions by name."""
        return {op.symbol: op for op in reversed(self.module.ops) if op.kind == "func.func" and op.symbol}

    @cached_property
    def named(self) -> dict[str, ShardyOp]:
        """The operations by the names that the origins of shardings use for them."""
        return {op.origin_name: op for op in reversed(self.module.ops) if op.origin_name is not None}

    @cached_property
    def arguments(self) -> dict[int, ShardyValue]:
        """The program's arguments by number."""
        return {value.number: value for value in reversed(self.module.values) if self.is_program_argument(value)}

    @cached_property
    def callers(self) -> dict[str, list[ShardyOp]]:
        """The calls of each private function."""
        calls = (op for op in self.module.ops if op.kind == "func.call" and op.symbol)
        return group_by(calls, lambda op: op.symbol or "")

    @cached_property
    def dimensions(self) -> Dimensions:
        """The classes of its dimensions."""
        return Dimensions(self)

    @cached_property
    def argument_names(self) -> frozenset[str]:
        """The names of the program's arguments in the function: `params` of `params['w']`."""
        found = (value.name for value in self.module.values if self.is_program_argument(value) and value.name)
        return frozenset(re.split(r"[\[.]", name, maxsplit=1)[0] for name in found)

    @cached_property
    def returns(self) -> dict[tuple[int, int], ShardyOp]:
        """The return operation of each region, by the operation that holds it and the region's number."""
        return {(op.parent, op.region): op for op in self.module.ops if op.kind in _RETURNS and op.parent is not None}

    def op(self, value: ShardyValue) -> ShardyOp | None:
        """The operation that produces a value; None for a block argument."""
        return None if value.is_argument else self.module.ops[value.owner]

    def maker(self, value: ShardyValue) -> ShardyOp | None:
        """The operation that computes a value, looking through those that only move it; None for an argument."""
        last = next(reversed(self.makers(value)), None)
        return None if last is None or last.kind in MOVE_KINDS | BARRIER_KINDS else last

    def makers(self, value: ShardyValue) -> tuple[ShardyOp, ...]:
        """The operations that only move a value or hold it back, last first, then the one that computes it."""
        found = []
        op = self.op(value)
        while op is not None:
            found.append(op)
            if op.kind not in MOVE_KINDS | BARRIER_KINDS:
                break
            value = self.value(op.operands[value.number])
            op = self.op(value)
        return tuple(found)

    def unmoved(self, value: ShardyValue) -> ShardyValue:
        """The value before it was resharded for one use."""
        op = self.op(value)
        while op is not None and op.kind in RESHARD_KINDS:
            value = self.value(op.operands[0])
            op = self.op(value)
        return value

    def value(self, index: int) -> ShardyValue:
        """The value with an index."""
        return self.module.values[index]

    def users(self, value: ShardyValue) -> tuple[tuple[ShardyOp, int], ...]:
        """The operations that use a value, each with the operand's number."""
        return tuple((self.module.ops[op], number) for op, number in self.module.users.get(value.index, ()))

    def real_users(self, value: ShardyValue) -> tuple[tuple[ShardyOp, int], ...]:
        """The final users of a value, looking through operations that only move it or hold it back."""
        found, pending, seen = [], [value], set()
        while pending:
            current = pending.pop()
            if current.index in seen:
                continue
            seen.add(current.index)
            for user, number in self.users(current):
                onward = self._handed_on(user, number)
                pending += onward
                if not onward:
                    found.append((self._holder(user), number))
        return tuple(found)

    def _handed_on(self, user: ShardyOp, number: int) -> list[ShardyValue]:
        """The values that an operand becomes unchanged: moved, or returned to a caller."""
        if user.kind in MOVE_KINDS:
            return [self.value(user.results[0])]
        if user.kind in BARRIER_KINDS:
            return [self.value(user.results[number])]
        if user.kind not in _RETURNS or user.parent is None or user.parent == self.module.main:
            return []
        holder = self.module.ops[user.parent]
        if holder.kind in ("sdy.manual_computation", "sdy.named_computation"):
            return [self.value(holder.results[number])]
        if holder.kind == "func.func":
            return [self.value(call.results[number]) for call in self.callers.get(holder.symbol or "", [])]
        return []

    def _holder(self, user: ShardyOp) -> ShardyOp:
        """The enclosing loop or branch, for a `return` that passes a value on in it."""
        is_inner = user.kind == "stablehlo.return" and user.parent is not None
        return self.module.ops[user.parent] if is_inner and user.parent is not None else user

    def plain_makers(self, value: ShardyValue) -> list[ShardyOp]:
        """The element-wise operations and reshards between an earlier array and this value."""
        found: list[ShardyOp] = []
        for before in self.chain(value):
            if before.shape != value.shape:
                break
            op = self.op(before)
            inside = None if op is None or op.kind != "sdy.manual_computation" else self.returns.get((op.index, 0))
            made = None if inside is None else self.maker(self.value(inside.operands[before.number]))
            found += filter(None, (op, made))
        return found

    def is_program_argument(self, value: ShardyValue) -> bool:
        """Returns whether a value is an argument of the program itself."""
        return value.is_argument and value.owner == self.module.main

    def argument_behind(self, value: ShardyValue) -> str | None:
        """The name of the program's argument that a value is, in part or rearranged; None if it is computed."""
        root, _ = self.root(value)
        return root.name if self.is_program_argument(root) else None

    def is_of_argument(self, value: ShardyValue) -> bool:
        """Returns whether a value is an argument of the program, or a part of one, in whatever order and type."""
        *way, root = self.chain(value)
        makers = filter(None, map(self.op, way))
        moved = _SAME_ELEMENTS | _REARRANGED | BARRIER_KINDS | {"func.call"}
        return self.is_program_argument(root) and all(op.kind in moved for op in makers)

    def outside(self, value: ShardyValue) -> ShardyValue | None:
        """The value outside its block of a block argument; None for an argument of the program or without a caller."""
        if not value.is_argument or self.is_program_argument(value):
            return None
        owner = self.module.ops[value.owner]
        if owner.kind in _WRAPPERS and value.number < len(owner.operands):
            return self.value(owner.operands[value.number])
        callers = self.callers.get(owner.symbol or "", [])
        if owner.kind == "func.func" and callers and value.number < len(callers[0].operands):
            return self.value(callers[0].operands[value.number])
        return None

    def is_carried(self, value: ShardyValue) -> bool:
        """Returns whether a loop changes a value from one iteration to the next."""
        if not value.is_argument or self.module.ops[value.owner].kind != "stablehlo.while":
            return False
        returned = self.returns.get((value.owner, LOOP_BODY))
        inside = None if returned is None else self.value(returned.operands[value.number])
        return inside is None or not inside.is_argument or (inside.owner, inside.number) != (value.owner, value.number)

    def before(self, value: ShardyValue) -> tuple[ShardyValue, bool] | None:
        """The only array that a value is made from, one step back, and whether its elements were rearranged.

        None for a value carried by a loop, which equals the one before the loop only in the first iteration.
        """
        if value.index not in self._before:
            self._before[value.index] = self._step_back(value)
        return self._before[value.index]

    def _step_back(self, value: ShardyValue) -> tuple[ShardyValue, bool] | None:
        op = self.op(value)
        if op is None:
            outside = None if self.is_carried(value) else self.outside(value)
            return None if outside is None else (outside, False)
        if op.kind in BARRIER_KINDS:
            return self.value(op.operands[value.number]), False
        if op.kind == "func.call":
            function = self.functions.get(op.symbol or "")
            returned = None if function is None else self.returns.get((function.index, 0))
            return None if returned is None else (self.value(returned.operands[value.number]), False)
        arrays = [operand for operand in map(self.value, op.operands) if operand.shape and not self.is_filled(operand)]
        if op.kind in _REARRANGED and arrays:
            return arrays[0], arrays[0].shape != value.shape
        if len({array.index for array in arrays}) == 1 and arrays[0].shape == value.shape and self._is_elementwise(op):
            return arrays[0], False
        return None

    def keeps_elements(self, op: ShardyOp) -> bool:
        """Returns whether an operation keeps all elements of its only array, in any order and type."""
        filled = [self.is_filled(self.value(operand)) for operand in op.operands[1:]]
        return op.kind in _KEEPS_ALL or (op.kind == "stablehlo.select" and any(filled))

    def is_filled(self, value: ShardyValue) -> bool:
        """Returns whether a value is one number everywhere."""
        op = self.op(value)
        return op is not None and op.kind == "stablehlo.broadcast_in_dim" and not self.value(op.operands[0]).shape

    def _is_elementwise(self, op: ShardyOp) -> bool:
        """Returns whether an operation reads only the element at the position of its result."""
        if op.kind in _SAME_ELEMENTS:
            return True
        if len(op.results) != 1 or op.rule is None:
            return op.kind.startswith("chlo.") and len(op.results) == 1
        same = op.rule.results[0]
        fits = all(mapping in ((), same) for mapping in op.rule.operands)
        return fits and not op.rule.reduction | op.rule.need_replication | op.rule.permutation

    def root(self, value: ShardyValue) -> tuple[ShardyValue, bool]:
        """The argument or operation that a value derives from, and whether elements were moved or dropped on the way.

        Operations that keep or only rearrange elements are looked through.
        """
        if value.index not in self._roots:
            steps = list(self._steps(value))
            self._roots[value.index] = steps[-1][0], any(rearranged for _, rearranged in steps)
        return self._roots[value.index]

    def chain(self, value: ShardyValue) -> Iterator[ShardyValue]:
        """The values from `value` back to its root, `value` first."""
        return (before for before, _ in self._steps(value))

    def _steps(self, value: ShardyValue) -> Iterator[tuple[ShardyValue, bool]]:
        step: tuple[ShardyValue, bool] | None = (value, False)
        seen: set[int] = set()
        while step is not None and step[0].index not in seen:
            seen.add(step[0].index)
            yield step
            step = self.before(step[0])

    def passed_in(self, value: ShardyValue) -> Iterator[ShardyValue]:
        """The value itself, then its value outside each block that it is an argument of."""
        current: ShardyValue | None = value
        while current is not None:
            yield current
            current = self.outside(current)

    def around(self, op: ShardyOp) -> Iterator[ShardyOp]:
        """The operations that contain `op`, innermost first; for a private function, those around its first call."""
        seen: set[int] = set()
        while op.parent is not None and op.parent not in seen:
            seen.add(op.parent)
            op = self.module.ops[op.parent]
            yield op
            callers = self.callers.get(op.symbol or "", []) if op.kind == "func.func" else []
            if callers:
                op = callers[0]

    def in_manual(self, op: ShardyOp) -> bool:
        """Returns whether an operation is inside a manual computation, where shapes are per device."""
        return any(outer.kind == "sdy.manual_computation" for outer in self.around(op))

    def loop(self, op: ShardyOp) -> ShardyOp | None:
        """The innermost loop around an operation."""
        return next((outer for outer in self.around(op) if outer.kind == "stablehlo.while"), None)

    def is_invariant(self, value: ShardyValue, loop: ShardyOp) -> bool:
        """Returns whether a value is equal in all iterations: made outside the loop, or carried unchanged."""
        for step in self.chain(value):
            if step.is_argument and step.owner == loop.index:
                return not self.is_carried(step)
            maker = self.module.ops[step.owner]
            if maker.kind == "stablehlo.dynamic_slice":
                return False
            is_held = step.is_argument and maker.kind == "func.func" and maker.index != self.module.main
            if not is_held and loop not in self.around(maker):
                return True
        return False


def find_source_line(frames: Sequence[CodePlace | SourceFrame]) -> tuple[str, int] | None:
    """File and line of the innermost frame; None without frames."""
    return (frames[0].file, frames[0].line) if frames else None


def to_frames(places: tuple[CodePlace, ...]) -> tuple[SourceFrame, ...]:
    """Converts MLIR's frames to the report's."""
    return tuple(
        SourceFrame(file=place.file, line=place.line, function=place.function or None, column=place.column)
        for place in places
    )


def is_users_constraint(op: ShardyOp) -> bool:
    """Returns whether an operation is the user's constraint, including the `out_sharding` of an explicit operation.

    Operations that Shardy inserts have no origin, and the compiler's own copies of argument shardings have no line.
    """
    return op.kind in RESHARD_KINDS and bool(op.source) and (op.origin_name is not None or op.kind == _CONSTRAINT)


def is_written(op: ShardyOp) -> bool:
    """Returns whether an operation is a constraint that the user wrote as such."""
    return is_users_constraint(op) and (op.op_name or "").endswith(_WRITTEN_CONSTRAINTS)


# ---- dimensions that belong together: an axis that cuts one of them can cut the others without moving data

DimensionClass = tuple[str, int, int]
"""A class of dimensions, named by one of its members."""


class Dimensions:
    """The dimensions of all values of a program, in classes.

    Two dimensions are in one class if they are one factor of an operation's sharding rule, or if one value becomes the
    other across a loop, a call or a manual computation. A dimension that consists of several factors is in the class of
    the major one, which a mesh axis cuts first, and has the others as its parts.

    Args:
        graph: The module.
    """

    def __init__(self, graph: ShardyGraph) -> None:
        self._graph = graph
        self._above: dict[DimensionClass, DimensionClass] = {}
        self._contracted: set[DimensionClass] = set()
        self._parts: list[tuple[DimensionClass, DimensionClass]] = []
        for op in graph.module.ops:
            self._join_factors(op)
        for value in graph.module.values:
            outside = graph.outside(value)
            if outside is not None:
                self._join_values((value.index,), (outside.index,))
        for (holder, region), returned in graph.returns.items():
            self._join_results(graph.module.ops[holder], region, returned)

    def of(self, value: int) -> tuple[DimensionClass, ...]:
        """The class of each dimension of a value, named by any of its members."""
        return tuple(self._top(("value", value, number)) for number in range(len(self._graph.value(value).shape)))

    def of_factor(self, op: int, factor: int) -> DimensionClass:
        """The class of a factor of an operation's rule."""
        return self._top(("factor", op, factor))

    def is_contracted(self, found: DimensionClass) -> bool:
        """Returns whether an operation sums over a class."""
        return any(self._top(node) == found for node in self._contracted)

    @cached_property
    def parts(self) -> dict[DimensionClass, frozenset[DimensionClass]]:
        """The classes that dimensions of a class are split into, or merged from, besides their major part."""
        found: dict[DimensionClass, set[DimensionClass]] = {}
        for whole, part in self._parts:
            top, inner = self._top(whole), self._top(part)
            if top != inner:
                found.setdefault(top, set()).add(inner)
        return {whole: frozenset(inner) for whole, inner in found.items()}

    def _top(self, node: DimensionClass) -> DimensionClass:
        top = node
        while (above := self._above.get(top, top)) != top:
            top = above
        while (above := self._above.get(node, node)) != top:
            self._above[node], node = top, above
        return top

    def _join(self, one: DimensionClass, other: DimensionClass) -> None:
        first, second = self._top(one), self._top(other)
        if first != second:
            self._above[max(first, second)] = min(first, second)

    def _join_factors(self, op: ShardyOp) -> None:
        rule = op.rule
        if op.kind in MOVE_KINDS | BARRIER_KINDS:
            self._join_values(op.results, op.operands)
        if rule is None or len(rule.operands) != len(op.operands) or len(rule.results) != len(op.results):
            return
        sides = (*zip(op.operands, rule.operands, strict=True), *zip(op.results, rule.results, strict=True))
        for value, mapping in sides:
            for number, factors in enumerate(mapping):
                large = [("factor", op.index, factor) for factor in factors if rule.sizes[factor] > 1]
                for factor in large[:1]:
                    self._join(("value", value, number), factor)
                self._parts += [(("value", value, number), factor) for factor in large[1:]]
        self._contracted.update(("factor", op.index, factor) for factor in rule.reduction)

    def _join_results(self, holder: ShardyOp, region: int, returned: ShardyOp) -> None:
        """Joins the results of a loop, a branch, a function or a manual computation with their values outside."""
        if holder.kind == "func.func":
            for call in self._graph.callers.get(holder.symbol or "", ()):
                self._join_values(call.results, returned.operands)
        elif holder.kind != "stablehlo.while" or region == LOOP_BODY:
            self._join_values(holder.results, returned.operands)
        if holder.kind == "stablehlo.while":
            self._join_values(holder.results, holder.operands)

    def _join_values(self, some: Sequence[int], others: Sequence[int]) -> None:
        """Joins values dimension by dimension; those of a manual computation are smaller inside."""
        for one, other in zip(some, others, strict=False):
            shape, outside = self._graph.value(one).shape, self._graph.value(other).shape
            if len(shape) == len(outside):
                for number in range(len(shape)):
                    self._join(("value", one, number), ("value", other, number))
