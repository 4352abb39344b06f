"""Queries to Shardy, offline and in milliseconds: the values of a program that must move, and who asked for it.

jaxlib registers all of Shardy's passes, so that the compiler's propagation can be run again on a copy of
the module, with the origins of shardings and a `sdy.reshard` or `sdy.all_reduce` wherever data must move. The
result is read into plain data: no MLIR object leaves this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby, takewhile
from math import prod
from typing import Any

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy, stablehlo

from hloscope.base.environment import is_launcher
from hloscope.compile import jax_private
from hloscope.compile.edits import apply_edit, read_mesh
from hloscope.compile.operation_numbers import number_operations, read_identities, strip_numbers
from hloscope.compile.sharding_change import ModuleEdit
from hloscope.hlo.shape_rules import ConvolutionWindow, count_valid_positions
from hloscope.model.capture import Axes, CodePlace, ShardingRule, ShardyModule, ShardyOp, ShardyValue, ValueSharding

_PROPAGATION = "builtin.module(sdy-propagation-pipeline)"
_EXPLICIT_RESHARDS = "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))"


def propagate_module(
    module: bytes | str, seen_by: str, *, origins: bool = True, numbered: bool = False
) -> ShardyModule:
    """Runs Shardy's propagation on a module.

    Args:
        module: MLIR with locations, as text or as bytecode.
        seen_by: As `ShardyModule.seen_by`.
        origins: Whether to keep the origin of each sharding. That ends the process on some large programs that use
            `shard_map` (jaxlib 0.10: `SourceShardingHandler` reads a string attribute that is not there).
        numbered: Whether its operations already have their numbers; otherwise they get them here.

    Raises:
        Exception: Any type that jaxlib chooses: passes of another version may have other names, or refuse a program.
    """
    with jax_private.open_mlir_context() as context:
        parsed = ir.Module.parse(module, context)
        numbered = numbered or number_operations(parsed)
        return _propagate_parsed(parsed, context, seen_by, origins=origins, numbered=numbered)


def _propagate_parsed(parsed: Any, context: Any, seen_by: str, *, origins: bool, numbered: bool) -> ShardyModule:
    pipeline = _shorten_pipeline(str(passmanager.PassManager.parse(_PROPAGATION, context)))
    if origins:
        pipeline = pipeline.replace("sharding-origins=false", "sharding-origins=true")
    reader = _ModuleReader(numbered)
    reader.read_open_constraints(parsed.operation)
    passmanager.PassManager.parse(pipeline, context).run(parsed.operation)
    reader.read_constraints(parsed.operation)
    passmanager.PassManager.parse(_EXPLICIT_RESHARDS, context).run(parsed.operation)
    return reader.read_module(parsed, seen_by)


def propagate_changes(module: bytes, changes: Sequence[ModuleEdit]) -> Iterator[ShardyModule | None]:
    """Runs the propagation on a module with each of several changes of its shardings; None if a change does not fit.

    Args:
        module: MLIR bytecode.
        changes: The changes; each is made to a separate copy.
    """
    with jax_private.open_mlir_context() as context:
        for change in changes:
            parsed = ir.Module.parse(module, context)
            try:
                apply_edit(parsed, change)
                yield _propagate_parsed(parsed, context, "jax", origins=False, numbered=False)
            except Exception:  # of whatever type jaxlib chooses
                yield None


def _shorten_pipeline(pipeline: str) -> str:
    """The propagation pipeline without its end, which would hide reasons.

    The printed pipeline names `sdy-save-module`, which is not registered by itself.
    """
    pipeline = re.sub(r",func\.func\(sdy-verify-unreduced-axes\)", "", pipeline)
    pipeline = re.sub(r",func\.func\(sdy-insert-explicit-reshards.*$", ")", pipeline)
    return pipeline.replace(",sdy-save-module", "")


_MAIN = "main"
_ORIGIN_NAME = "sdy.sharding_origin_name"
_RESHARD = "sdy.reshard"
_ASKS_NOTHING = re.compile(r"@[\w.$-]+, \[(?:\{\?\}(?:, )?)+\]>")
"""The sharding of a constraint that leaves every dimension open, as JAX writes for each value of a `shard_map` with
automatic axes."""
_CONSTRAINTS = ("sdy.sharding_constraint", "sdy.reshard")
_FUNCTION = "func.func"
_MANUAL = "sdy.manual_computation"
_SHARDINGS = ("sdy.sharding", "sharding", "out_sharding", "out_shardings")
"""The attributes with the shardings of an operation's results, in the order of precedence."""
_NO_LAYOUT: _ValueLayout = (None, ())
_SYMBOLS = {_FUNCTION: "sym_name", "func.call": "callee", "stablehlo.custom_call": "call_target_name"}
_DOTS = ("stablehlo.dot_general", "stablehlo.dot")


def _add_caller_places(ops: list[ShardyOp], holders: list[int | None]) -> Iterator[ShardyOp]:
    """The operations with full names and stacks: in a private function these are relative to the function's call.

    Of several calls the first one counts, as everywhere in this package. In a `shard_map` names are relative to it.

    Args:
        ops: All operations.
        holders: The function or manual computation that contains each of them.
    """
    calls: dict[str, ShardyOp] = {}
    for op in ops:
        if op.kind == "func.call" and op.symbol:
            calls.setdefault(op.symbol, op)

    placing = set[int]()

    @cache
    def place(index: int) -> ShardyOp:
        op, at = ops[index], holders[index]
        if at is None:
            return op
        is_manual = ops[at].kind == _MANUAL
        call = ops[at] if is_manual else calls.get(ops[at].symbol or "")
        if call is None or call.index in placing:  # a function that calls itself, which JAX never makes
            return op
        placing.add(index)
        outer = place(call.index)
        placing.discard(index)
        if is_manual:
            outer = replace(outer, identity=(), source=())
        name = "/".join(part for part in (outer.op_name, op.op_name) if part)
        identity = (*outer.identity, *op.identity)
        return replace(op, op_name=name or None, identity=identity, source=(*op.source, *outer.source))

    return map(place, range(len(ops)))


class _ModuleReader:
    """Reads a module, and numbers its operations and values in text order."""

    def __init__(self, numbered: bool) -> None:
        self._open: set[int] = set()
        self._numbered = numbered
        self._ops: list[ShardyOp] = []
        self._holders: list[int | None] = []
        self._values: list[ShardyValue] = []
        self._asked: dict[str, ValueSharding] = {}
        self._unasking: set[str] = set()
        self._indices: dict[Any, int] = {}
        self._locations = _Locations()
        # what an attribute says: many operations and values share one
        self._once: Any = cache(lambda read, attribute, *count: read(attribute, *count))

    def read_open_constraints(self, op: Any) -> None:
        """Reads which constraints leave a dimension open, by their numbers; propagation closes them."""
        if op.name in _CONSTRAINTS and "?" in str(op.attributes["sharding"]):
            name, _ = self._locations.of(op.location)
            self._open.update(identity[-1] for identity in read_identities(name or ""))
        for inner in _list_inner(op):
            self.read_open_constraints(inner)

    def read_constraints(self, op: Any) -> None:
        """Reads the requested sharding of each constraint, by its name in origins.

        Must run before reshards are made explicit: that pass lets a constraint keep its operand's sharding, and
        reshards behind it.
        """
        origin_name = _find_text(op.attributes, _ORIGIN_NAME)
        if origin_name is not None and op.name in _CONSTRAINTS:
            sharding = self._layouts(op.attributes, len(op.results))[0][0]
            if _ASKS_NOTHING.search(str(op.attributes["sharding"])):
                self._unasking.add(origin_name)
            elif sharding is not None:
                self._asked[origin_name] = sharding
        for inner in _list_inner(op):
            self.read_constraints(inner)

    def read_module(self, module: Any, seen_by: str) -> ShardyModule:
        """Reads a propagated `jaxlib.mlir.ir.Module` with explicit reshards."""
        top = [op.operation for op in module.operation.regions[0].blocks[0].operations]
        for op in top:
            self._read(op, parent=None, region=0, holder=None)
        users: dict[int, list[tuple[int, int]]] = {}
        for made in self._ops:
            for number, operand in enumerate(made.operands):
                users.setdefault(operand, []).append((made.index, number))
        functions = [made for made in self._ops if made.kind == _FUNCTION]
        main = next(
            (made.index for made in functions if made.symbol == _MAIN), functions[0].index if functions else None
        )
        meshes = [read_mesh(op.attributes["mesh"]) for op in top if op.name == "sdy.mesh"]
        return ShardyModule(
            mesh=max(meshes, key=lambda sizes: prod(sizes.values()), default={}),
            ops=tuple(_add_caller_places(self._ops, self._holders)),
            values=tuple(self._values),
            main=main,
            seen_by=seen_by,
            users={value: tuple(found) for value, found in users.items()},
        )

    def _read(self, op: Any, *, parent: int | None, region: int, holder: int | None) -> None:
        """Reads one operation and the contents of its regions."""
        index = len(self._ops)
        made = self._op(op, index, parent, region)
        self._ops.append(made)
        self._holders.append(holder)
        self._ops[index] = replace(made, results=tuple(self._results(op, index)))
        inside = index if op.name in (_FUNCTION, _MANUAL) else holder
        for number, inner in enumerate(op.regions):
            for block in inner.blocks:
                self._arguments(op, block, index, number)
                for child in block.operations:
                    self._read(child.operation, parent=index, region=number, holder=inside)

    def _op(self, op: Any, index: int, parent: int | None, region: int) -> ShardyOp:
        attributes = op.attributes
        name, frames = self._locations.of(op.location)
        rule = _find_attribute(attributes, "sdy.sharding_rule")
        origin_name = _find_text(attributes, _ORIGIN_NAME)
        asks_nothing = origin_name in self._unasking
        rule = None if rule is None else self._once(_read_rule, rule)
        identity = next(iter(read_identities(name or "")), ()) if self._numbered else ()
        return ShardyOp(
            index=index,
            kind=_RESHARD if asks_nothing else op.name,
            operands=tuple(self._indices[operand] for operand in op.operands),
            results=(),
            op_name=strip_numbers(name) if name and self._numbered else name,
            identity=identity,
            source=frames,
            rule=rule,
            parent=parent,
            region=region,
            symbol=_find_symbol(op),
            origin_name=None if asks_nothing else origin_name,
            asked=None if origin_name is None else self._asked.get(origin_name),
            leaves_open=not self._open.isdisjoint(identity[-1:]),
            axes=_find_axes(op),
            groups=_read_groups(attributes),
            flops=_count_flops(op, rule),
        )

    def _results(self, op: Any, index: int) -> Iterator[int]:
        count, constant = len(op.results), _read_whole_number(op)
        keys = ("sdy.result_sharding_origins", "sdy.sharding_origins")
        asked = self._origins(op.attributes, keys, count)
        rows = zip(op.results, self._layouts(op.attributes, count), asked, strict=True)
        for number, (result, layout, asked_by) in enumerate(rows):
            yield self._add(result, index, number, layout, origins=asked_by, whole_number=constant)

    def _arguments(self, op: Any, block: Any, index: int, region: int) -> None:
        rows = zip(block.arguments, *self._argument_facts(op, len(block.arguments)), strict=True)
        for number, (argument, layout, asked_by) in enumerate(rows):
            name = self._locations.of(argument.location)[0] if op.name == _FUNCTION else None
            self._add(argument, index, number, layout, origins=asked_by, is_argument=True, region=region, name=name)

    def _layouts(self, attributes: Any, count: int) -> list[_ValueLayout]:
        """One for each of `count` values, from the attribute that holds them."""
        for key in _SHARDINGS:
            if key in attributes:
                found: list[_ValueLayout] | None = self._once(_read_layouts, attributes[key], count)
                if found is not None:
                    return found
        return [_NO_LAYOUT] * count

    def _argument_facts(self, op: Any, count: int) -> tuple[list[_ValueLayout], list[dict[str, str]]]:
        """Layouts and origins of the arguments of a block of `op`."""
        if op.name == _FUNCTION and "arg_attrs" in op.attributes:
            each = list(op.attributes["arg_attrs"])
            origins = [self._origins(given, ("sdy.sharding_origins",), 1)[0] for given in each]
            return [self._layouts(given, 1)[0] for given in each], origins
        found = None
        if op.name == "stablehlo.while":
            found = self._layouts(op.attributes, count)
        elif op.name == "sdy.named_computation" and "in_shardings" in op.attributes:
            found = self._once(_read_layouts, op.attributes["in_shardings"], count)
        keys = ("sdy.block_arg_sharding_origins", "sdy.result_sharding_origins")
        layouts: list[_ValueLayout] = [(sharding, ()) for sharding, _ in found or [_NO_LAYOUT] * count]
        return layouts, self._origins(op.attributes, keys, count)

    def _origins(self, attributes: Any, keys: tuple[str, ...], count: int) -> list[dict[str, str]]:
        """Origins of `count` values, under the first key that has them for all."""
        for key in keys:
            attribute = _find_attribute(attributes, key)
            found = [] if attribute is None else self._once(_read_value_origins, attribute, count)
            if any(found):
                return found
        return [{} for _ in range(count)]

    def _add(self, value: Any, owner: int, number: int, layout: _ValueLayout, **facts: Any) -> int:
        index, (sharding, unreduced) = len(self._values), layout
        kind = value.type
        shape = tuple(int(size) for size in kind.shape) if hasattr(kind, "shape") else ()
        element = str(kind.element_type) if hasattr(kind, "element_type") else str(kind)
        made = ShardyValue(
            index=index,
            shape=shape,
            element_type=element,
            owner=owner,
            number=number,
            sharding=sharding,
            unreduced=unreduced,
            **facts,
        )
        self._values.append(made)
        self._indices[value] = index
        return index


def _list_inner(op: Any) -> Iterator[Any]:
    """The operations in the regions of another one, without those in theirs."""
    return (child.operation for region in op.regions for block in region.blocks for child in block.operations)


def _find_attribute(attributes: Any, key: str) -> Any:
    return attributes[key] if key and key in attributes else None


def _find_text(attributes: Any, key: str) -> str | None:
    found = _find_attribute(attributes, key)
    return None if found is None else str(found.value)


def _find_symbol(op: Any) -> str | None:
    if op.name == "stablehlo.compare":
        return str(stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value)
    return _find_text(op.attributes, _SYMBOLS.get(op.name, ""))


def _find_axes(op: Any) -> Axes:
    if op.name == "sdy.all_reduce":
        return _read_axes(_list_axis_references(op.attributes["reduction_axes"]))
    if op.name == _MANUAL:
        return tuple(str(axis).strip('"') for axis in sdy.ManualAxesAttr(op.attributes["manual_axes"]))
    return ()


# Attributes and locations, as plain data.

_INTEGER_CONSTANTS = ("stablehlo.constant", "sdy.constant")


_ValueLayout = tuple[ValueSharding | None, Axes]
"""The placement of a value on the devices, and the axes over which they hold parts of a sum not yet taken."""


def _read_layouts(attribute: Any, count: int) -> list[_ValueLayout] | None:
    """One for each value, from `#sdy.sharding_per_value` or a single sharding; None for any other attribute."""
    if sdy.TensorShardingPerValueAttr.isinstance(attribute):
        each = list(sdy.TensorShardingPerValueAttr(attribute).shardings)
    elif sdy.TensorShardingAttr.isinstance(attribute):
        each = [attribute] * count
    else:
        return None
    return [_read_layout(sdy.TensorShardingAttr(sharding)) for sharding in each] if len(each) == count else None


def _read_layout(sharding: Any) -> _ValueLayout:
    dimensions = (sdy.DimensionShardingAttr(dimension) for dimension in sharding.dimension_shardings)
    return tuple(_read_axes(dimension.axes) for dimension in dimensions), _read_axes(sharding.unreduced_axes)


def _read_axes(references: Any) -> Axes:
    """`X`, or `X:(1)2` for the part of X of size 2 with one device of X before it."""
    return tuple(_read_axis(sdy.AxisRefAttr(reference)) for reference in references)


def _read_axis(reference: Any) -> str:
    part = reference.sub_axis_info
    if part is None:
        return str(reference.name)
    part = sdy.SubAxisInfoAttr(part)
    return f"{reference.name}:({part.pre_size}){part.size}"


def _list_axis_references(attribute: Any) -> list[Any]:
    """The references in an `#sdy.axis_ref_list`, which has no Python class of its own: those of a sharding's text."""
    inside = str(attribute).removeprefix("#sdy<axis_ref_list{").removesuffix("}>")
    sharding = ir.Attribute.parse(f"#sdy.sharding<@mesh, [{{{inside}}}]>", attribute.context)
    return list(sdy.DimensionShardingAttr(sdy.TensorShardingAttr(sharding).dimension_shardings[0]).axes)


def _read_rule(attribute: Any) -> ShardingRule:
    """An operation's sharding rule."""
    rule = sdy.OpShardingRuleAttr(attribute)
    return ShardingRule(
        operands=_read_mappings(rule.operand_mappings),
        results=_read_mappings(rule.result_mappings),
        sizes=tuple(int(size) for size in rule.factor_sizes),
        reduction=frozenset(rule.reduction_factors),
        need_replication=frozenset(rule.need_replication_factors),
        permutation=frozenset(rule.permutation_factors),
    )


def _read_mappings(mappings: Any) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(
        tuple(tuple(sdy.DimMappingAttr(dim).factor_indices) for dim in sdy.TensorMappingAttr(mapping).dim_mappings)
        for mapping in mappings
    )


def _read_value_origins(attribute: Any, count: int) -> list[dict[str, str]]:
    """The origin of each axis of each value, `{"X": "input: 0"}`; empty ones if the attribute does not fit."""
    each = list(attribute) if isinstance(attribute, ir.ArrayAttr) else [attribute]
    if len(each) != count:
        return [{} for _ in range(count)]
    return [{entry.name: ir.StringAttr(entry.attr).value for entry in ir.DictAttr(origins)} for origins in each]


def _read_groups(attributes: Any) -> tuple[tuple[int, ...], ...] | None:
    """The replica groups or source-target pairs of a collective; None without any, or if given as a mesh."""
    for key in ("replica_groups", "source_target_pairs"):
        if key in attributes and isinstance(attributes[key], ir.DenseIntElementsAttr):
            dense = attributes[key]
            rows, columns = ir.RankedTensorType(dense.type).shape
            numbers = [int(number) for number in dense] or [0] * (rows * columns)
            return tuple(tuple(numbers[row * columns : (row + 1) * columns]) for row in range(rows))
    return None


def _read_whole_number(op: Any) -> int | None:
    """The value of a scalar integer constant; the values of all others are not read.

    The bindings have no class for the values of complex constants, and raise an error.
    """
    if op.name not in _INTEGER_CONSTANTS or "value" not in op.attributes:
        return None
    kind = op.results[0].type
    if not isinstance(kind, ir.RankedTensorType) or kind.rank or not isinstance(kind.element_type, ir.IntegerType):
        return None
    value = op.attributes["value"]
    return int(value[0]) if isinstance(value, ir.DenseIntElementsAttr) else None


def _count_flops(op: Any, rule: ShardingRule | None) -> int | None:
    """As `ShardyOp.flops`; a matmul multiplies and adds once for each choice of an index of every factor."""
    if op.name in _DOTS:
        return None if rule is None else 2 * prod(rule.sizes)
    return _count_convolution_flops(op) if op.name == "stablehlo.convolution" else None


def _count_convolution_flops(op: Any) -> int:
    """The FLOPs of a convolution, without positions of its window on padding or on holes, as for compiled ones."""
    image, kernel = (tuple(operand.type.shape) for operand in op.operands)
    result = tuple(op.results[0].type.shape)
    named = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    count = result[named.output_batch_dimension] * result[named.output_feature_dimension]
    count *= kernel[named.kernel_input_feature_dimension]
    axes = (named.input_spatial_dimensions, named.kernel_spatial_dimensions, named.output_spatial_dimensions)
    rank = len(axes[0])
    steps = [list(_find_attribute(op.attributes, key) or [1] * rank) for key in _WINDOW]
    low = list(_find_attribute(op.attributes, "padding") or [0, 0] * rank)[::2]
    for sizes, window in zip(zip(*axes, strict=True), zip(*steps, low, strict=True), strict=True):
        at_image, at_kernel, at_result = sizes
        along = ConvolutionWindow(*window)
        count *= count_valid_positions(image[at_image], kernel[at_kernel], result[at_result], along)
    return int(2 * count)


_WINDOW = ("window_strides", "lhs_dilation", "rhs_dilation")
"""The attributes of a convolution in the order of `ConvolutionWindow`."""

_FILE = "FileLineColLoc"
_NAME = "NameLoc"

_Place = tuple[str | None, tuple[CodePlace, ...]]
"""A name with the user's frames."""


class _Locations:
    """Reads locations, each stack once: thousands of operations share a few, and stacks their outer parts.

    JAX writes `loc("jit(f)/dot_general"(callsite("f"("model.py":10:24) at callsite(...))))`: a name around frames, of
    which each is a function's name around a file location.
    """

    def __init__(self) -> None:
        self._stacks: dict[Any, tuple[CodePlace, ...]] = {}

    def of(self, location: Any) -> _Place:
        """The name and the frames of a location, innermost first, down to hloscope's call of the program."""
        if type(location).__name__ == "FusedLoc":
            each = map(self.of, location.locations)
            return next((place for place in each if place[0]), (None, ()))
        named = type(location).__name__ == _NAME and type(location.child_loc).__name__ != _FILE
        return location.name_str if named else None, _cut_to_user_frames(self._frames(location))

    def _frames(self, location: Any) -> tuple[CodePlace, ...]:
        key = location.attr  # locations themselves are hashed by identity
        if key not in self._stacks:
            self._stacks[key] = self._frames_of(location)
        return self._stacks[key]

    def _frames_of(self, location: Any) -> tuple[CodePlace, ...]:
        kind = type(location).__name__
        if kind == "CallSiteLoc":
            return (*self._frames(location.callee), *self._frames(location.caller))
        if kind == _NAME and type(location.child_loc).__name__ != _FILE:
            return self._frames(location.child_loc)
        function = location.name_str if kind == _NAME else ""
        file = location.child_loc if kind == _NAME else location
        if type(file).__name__ != _FILE:
            return ()
        return (CodePlace(file=file.filename, line=file.start_line, column=file.start_col, function=function),)


def _cut_to_user_frames(frames: tuple[CodePlace, ...]) -> tuple[CodePlace, ...]:
    """The frames up to the one that started the program, each once: a loop's body repeats the frames around it."""
    own = takewhile(lambda frame: not is_launcher(frame.file), frames)
    return tuple(frame for frame, _ in groupby(own))
