"""Shardy's attributes and JAX's locations as plain data."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from hloscope.compiler.shardy_model import Axes, CodePlace, ShardingRule, ValueSharding
from hloscope.launchers import is_launcher

_INTEGER_CONSTANTS = ("stablehlo.constant", "sdy.constant")


def sharding_of(attribute: Any) -> ValueSharding:
    """The axes of each dimension, from a `#sdy.sharding`."""
    sharding = sdy.TensorShardingAttr(attribute)
    return tuple(axes_of(sdy.DimensionShardingAttr(one).axes) for one in sharding.dimension_shardings)


def shardings_of(attribute: Any, count: int) -> list[ValueSharding | None] | None:
    """One sharding per value, from `#sdy.sharding_per_value` or a single sharding; None from anything else."""
    if sdy.TensorShardingPerValueAttr.isinstance(attribute):
        found: list[ValueSharding | None] = [
            sharding_of(one) for one in sdy.TensorShardingPerValueAttr(attribute).shardings
        ]
        return found if len(found) == count else None
    if sdy.TensorShardingAttr.isinstance(attribute):
        return [sharding_of(attribute)] * count
    return None


def unreduced_per_value(attribute: Any, count: int) -> list[Axes]:
    """The unreduced axes of each value, from what `shardings_of` reads; none from anything else."""
    if sdy.TensorShardingPerValueAttr.isinstance(attribute):
        each = [sdy.TensorShardingAttr(one) for one in sdy.TensorShardingPerValueAttr(attribute).shardings]
        return [axes_of(one.unreduced_axes) for one in each] if len(each) == count else [()] * count
    if sdy.TensorShardingAttr.isinstance(attribute):
        return [axes_of(sdy.TensorShardingAttr(attribute).unreduced_axes)] * count
    return [()] * count


def axes_of(references: Any) -> Axes:
    """`X`, or `X:(1)2` for the part of X of size 2 with one device of X before it."""
    return tuple(_axis(sdy.AxisRefAttr(reference)) for reference in references)


def _axis(reference: Any) -> str:
    part = reference.sub_axis_info
    if part is None:
        return str(reference.name)
    part = sdy.SubAxisInfoAttr(part)
    return f"{reference.name}:({part.pre_size}){part.size}"


def axis_references(attribute: Any) -> list[Any]:
    """The references in an `#sdy.axis_ref_list`, which has no Python class of its own: those of a sharding's text."""
    inside = str(attribute).removeprefix("#sdy<axis_ref_list{").removesuffix("}>")
    sharding = ir.Attribute.parse(f"#sdy.sharding<@mesh, [{{{inside}}}]>", attribute.context)
    return list(sdy.DimensionShardingAttr(sdy.TensorShardingAttr(sharding).dimension_shardings[0]).axes)


def manual_axes(attribute: Any) -> Axes:
    """The axes of an `#sdy.manual_axes`."""
    return tuple(str(axis).strip('"') for axis in sdy.ManualAxesAttr(attribute))


def mesh_of(attribute: Any) -> dict[str, int]:
    """Size of each axis by name."""
    axes = (sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(attribute).axes)
    return {str(axis.name): int(axis.size) for axis in axes}


def rule_of(attribute: Any) -> ShardingRule:
    """An operation's sharding rule."""
    rule = sdy.OpShardingRuleAttr(attribute)
    return ShardingRule(
        operands=_mappings(rule.operand_mappings),
        results=_mappings(rule.result_mappings),
        sizes=tuple(int(size) for size in rule.factor_sizes),
        reduction=frozenset(rule.reduction_factors),
        need_replication=frozenset(rule.need_replication_factors),
        permutation=frozenset(rule.permutation_factors),
    )


def _mappings(mappings: Any) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(
        tuple(tuple(sdy.DimMappingAttr(dim).factor_indices) for dim in sdy.TensorMappingAttr(mapping).dim_mappings)
        for mapping in mappings
    )


def origins_of(attribute: Any) -> dict[str, str]:
    """Who asked for each axis: `{"X": "input: 0"}`."""
    return {entry.name: ir.StringAttr(entry.attr).value for entry in ir.DictAttr(attribute)}


def origins_per_value(attribute: Any, count: int) -> list[dict[str, str]]:
    """One for each value; empty ones where the attribute does not fit."""
    each = list(attribute) if isinstance(attribute, ir.ArrayAttr) else [attribute]
    return [origins_of(one) for one in each] if len(each) == count else [{} for _ in range(count)]


def groups_of(attributes: Any) -> tuple[tuple[int, ...], ...] | None:
    """The replica groups or source-target pairs of a collective; None when there are none, or in a form of a mesh."""
    for key in ("replica_groups", "source_target_pairs"):
        if key in attributes and isinstance(attributes[key], ir.DenseIntElementsAttr):
            dense = attributes[key]
            rows, columns = ir.RankedTensorType(dense.type).shape
            numbers = [int(number) for number in dense] or [0] * (rows * columns)
            return tuple(tuple(numbers[row * columns : (row + 1) * columns]) for row in range(rows))
    return None


def whole_number(op: Any) -> int | None:
    """The value of a scalar integer constant; of all others not even the value is asked for.

    The bindings have no class for the values of complex constants, and raise.
    """
    if op.name not in _INTEGER_CONSTANTS or "value" not in op.attributes:
        return None
    kind = op.results[0].type
    if not isinstance(kind, ir.RankedTensorType) or kind.rank or not isinstance(kind.element_type, ir.IntegerType):
        return None
    value = op.attributes["value"]
    return int(value[0]) if isinstance(value, ir.DenseIntElementsAttr) else None


_FILE = "FileLineColLoc"
_NAME = "NameLoc"
_CALL = "CallSiteLoc"
_FUSED = "FusedLoc"

_Place = tuple[str | None, tuple[CodePlace, ...]]


class Locations:
    """Reads locations, each once: thousands of operations share a few stacks.

    JAX writes `loc("jit(f)/dot_general"(callsite("f"("model.py":10:24) at callsite(...))))`: a name around frames, of
    which each is a function's name around a file location.
    """

    def __init__(self) -> None:
        self._read: dict[Any, _Place] = {}
        self._stacks: dict[Any, tuple[CodePlace, ...]] = {}

    def of(self, location: Any) -> _Place:
        """The name and the frames of a location, innermost first, down to where hloscope called the program."""
        key = location.attr  # locations themselves are hashed by identity
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = self._of(location)
        return found

    def _of(self, location: Any) -> _Place:
        kind = type(location).__name__
        if kind == _FUSED:
            each = [self.of(one) for one in location.locations]
            return next((one for one in each if one[0]), (None, ()))
        if kind == _NAME:
            name = location.name_str
            if type(location.child_loc).__name__ == _FILE:  # a frame by itself: no operation's name is around it
                return None, _users((_frame(location),))
            return name, _users(self._frames(location.child_loc))
        return None, _users(self._frames(location))

    def _frames(self, location: Any) -> tuple[CodePlace, ...]:
        """The frames of a stack; stacks share their outer parts."""
        key = location.attr
        found = self._stacks.get(key)
        if found is None:
            found = self._stacks[key] = self._frames_of(location)
        return found

    def _frames_of(self, location: Any) -> tuple[CodePlace, ...]:
        kind = type(location).__name__
        if kind == _CALL:
            return (*self._frames(location.callee), *self._frames(location.caller))
        if kind == _NAME and type(location.child_loc).__name__ == _FILE:
            return (_frame(location),)
        if kind == _NAME:
            return self._frames(location.child_loc)
        return (_file(location, ""),) if kind == _FILE else ()


def _frame(location: Any) -> CodePlace:
    return _file(location.child_loc, location.name_str)


def _file(location: Any, function: str) -> CodePlace:
    return CodePlace(file=location.filename, line=location.start_line, column=location.start_col, function=function)


def _users(frames: tuple[CodePlace, ...]) -> tuple[CodePlace, ...]:
    """The frames up to what started the program, each once: a loop's body repeats the frames around it."""
    kept: list[CodePlace] = []
    for frame in frames:
        if is_launcher(frame.file):
            break
        if not kept or kept[-1] != frame:
            kept.append(frame)
    return tuple(kept)
