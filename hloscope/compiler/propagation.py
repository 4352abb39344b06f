"""Asks Shardy, offline and in milliseconds, which values of a program must move and who asked for it.

jaxlib registers all of Shardy's passes, so that the propagation which the compiler runs can be run again on a copy of
the module, with the origins of shardings kept and a `sdy.reshard` or `sdy.all_reduce` wherever data must move. The
result is read into plain data: no MLIR object leaves this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from hloscope.compiler import jax_internals
from hloscope.compiler import shardy_attributes as read
from hloscope.compiler.shardy_attributes import Locations
from hloscope.compiler.shardy_model import Axes, ShardyModule, ShardyOp, ShardyValue, ValueSharding

_PROPAGATION = "builtin.module(sdy-propagation-pipeline)"
_EXPLICIT_RESHARDS = "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))"


def propagated(module: bytes | str, seen_by: str, *, origins: bool = True) -> ShardyModule:
    """What Shardy makes of a module.

    Args:
        module: MLIR with locations, as text or as bytecode.
        seen_by: As `ShardyModule.seen_by`.
        origins: Whether to keep who asked for each sharding. That ends the process on some large programs that use
            `shard_map` (jaxlib 0.10: `SourceShardingHandler` reads a string attribute that is not there).

    Raises:
        Exception: Of whatever type jaxlib chooses: passes of another version may have other names, or refuse a program.
    """
    from jaxlib.mlir import ir, passmanager

    with jax_internals.mlir_context() as context:
        parsed = ir.Module.parse(module, context)
        pipeline = _whole(str(passmanager.PassManager.parse(_PROPAGATION, context)))
        if origins:
            pipeline = pipeline.replace("sharding-origins=false", "sharding-origins=true")
        passmanager.PassManager.parse(pipeline, context).run(parsed.operation)
        asked = _constraints_of(parsed)
        passmanager.PassManager.parse(_EXPLICIT_RESHARDS, context).run(parsed.operation)
        return _read_module(parsed, seen_by, asked)


def _whole(pipeline: str) -> str:
    """The propagation pipeline without its end, which would hide reasons.

    The printed pipeline names `sdy-save-module`, which is not registered by itself.
    """
    pipeline = re.sub(r",func\.func\(sdy-verify-unreduced-axes\)", "", pipeline)
    pipeline = re.sub(r",func\.func\(sdy-insert-explicit-reshards.*$", ")", pipeline)
    return pipeline.replace(",sdy-save-module", "")


_Once = Callable[..., Any]
"""Calls a reader of attributes, unless it has read the attribute before."""

_MAIN = "main"
_ORIGIN_NAME = "sdy.sharding_origin_name"
_CONSTRAINTS = ("sdy.sharding_constraint", "sdy.reshard")
_FUNCTION = "func.func"
_SHARDINGS = ("sdy.sharding", "sharding", "out_sharding", "out_shardings")
"""Where operations keep their results' shardings, whichever comes first."""
_DEEPEST_CALL = 64
_SYMBOLS = {_FUNCTION: "sym_name", "func.call": "callee", "stablehlo.custom_call": "call_target_name"}


def _constraints_of(module: Any) -> dict[str, ValueSharding]:
    """What each constraint asks for, by the name that origins have for it.

    To be read before reshards are made explicit: that pass lets a constraint keep its operand's sharding, and reshards
    behind it.

    Args:
        module: A propagated `jaxlib.mlir.ir.Module`.
    """
    return dict(_asked_in(module.operation))


def _asked_in(op: Any) -> Iterator[tuple[str, ValueSharding]]:
    origin_name = _given(op.attributes, _ORIGIN_NAME)
    if origin_name is not None and op.name in _CONSTRAINTS:
        sharding = _result_shardings(op, lambda read_attribute, *given: read_attribute(*given))[0]
        if sharding is not None:
            yield origin_name.value, sharding
    for region in op.regions:
        for block in region.blocks:
            for child in block.operations:
                yield from _asked_in(child.operation)


def _read_module(module: Any, seen_by: str, asked: Mapping[str, ValueSharding]) -> ShardyModule:
    """Reads a propagated module with explicit reshards.

    Args:
        module: A `jaxlib.mlir.ir.Module`.
        seen_by: As `ShardyModule.seen_by`.
        asked: From `_constraints_of`.
    """
    reader = _Reader(asked)
    for op in module.operation.regions[0].blocks[0].operations:
        reader.read(op.operation, parent=None, region=0)
    users: dict[int, list[tuple[int, int]]] = {}
    for op in reader.ops:
        for number, operand in enumerate(op.operands):
            users.setdefault(operand, []).append((op.index, number))
    functions = [op for op in reader.ops if op.kind == _FUNCTION]
    main = next((op.index for op in functions if op.symbol == _MAIN), functions[0].index if functions else None)
    return ShardyModule(
        mesh=_mesh(module),
        ops=tuple(_placed_by_callers(reader.ops)),
        values=tuple(reader.values),
        main=main,
        seen_by=seen_by,
        users={value: tuple(found) for value, found in users.items()},
    )


def _placed_by_callers(ops: list[ShardyOp]) -> Iterator[ShardyOp]:
    """The operations with full names and stacks: in a private function they are relative to the function's call.

    Of several calls the first one is meant, as everywhere in this package.
    """
    calls: dict[str, ShardyOp] = {}
    for op in ops:
        if op.kind == "func.call" and op.symbol:
            calls.setdefault(op.symbol, op)
    function = _functions(ops)
    full: dict[int, ShardyOp] = {}

    def placed(op: ShardyOp, depth: int = 0) -> ShardyOp:
        if op.index in full:
            return full[op.index]
        holder = function[op.index]
        call = None if holder is None else calls.get(ops[holder].symbol or "")
        found = op
        if call is not None and depth < _DEEPEST_CALL:
            outer = placed(call, depth + 1)
            name = "/".join(part for part in (outer.op_name, op.op_name) if part)
            found = replace(op, op_name=name or None, source=(*op.source, *outer.source))
        full[op.index] = found
        return found

    return (placed(op) for op in ops)


def _functions(ops: list[ShardyOp]) -> list[int | None]:
    """The function that holds each operation."""
    found: list[int | None] = []
    for op in ops:
        parent = op.parent
        found.append(None if parent is None else parent if ops[parent].kind == _FUNCTION else found[parent])
    return found


def _mesh(module: Any) -> dict[str, int]:
    meshes = [
        read.mesh_of(op.operation.attributes["mesh"])
        for op in module.operation.regions[0].blocks[0].operations
        if op.operation.name == "sdy.mesh"
    ]
    return max(meshes, key=lambda sizes: prod(sizes.values()), default={})


class _Reader:
    """Numbers operations and values in text order."""

    def __init__(self, asked: Mapping[str, ValueSharding]) -> None:
        self.ops: list[ShardyOp] = []
        self._asked = asked
        self.values: list[ShardyValue] = []
        self._indices: dict[Any, int] = {}
        self._locations = Locations()
        self._attributes: dict[object, Any] = {}

    def _once(self, read_attribute: Callable[..., Any], attribute: Any, *count: int) -> Any:
        """What an attribute says; many operations and values share one."""
        key = (read_attribute, attribute, *count)
        found = self._attributes.get(key)
        if found is None:
            found = self._attributes[key] = read_attribute(attribute, *count)
        return found

    def read(self, op: Any, *, parent: int | None, region: int) -> None:
        """Reads one operation and what its regions hold."""
        index = len(self.ops)
        made = self._op(op, index, parent, region)
        self.ops.append(made)
        self.ops[index] = replace(made, results=tuple(self._results(op, index)))
        for number, inner in enumerate(op.regions):
            for block in inner.blocks:
                self._arguments(op, block, index, number)
                for child in block.operations:
                    self.read(child.operation, parent=index, region=number)

    def _op(self, op: Any, index: int, parent: int | None, region: int) -> ShardyOp:
        attributes = op.attributes
        name, frames = self._locations.of(op.location)
        rule = _given(attributes, "sdy.sharding_rule")
        origin_name = _given(attributes, _ORIGIN_NAME)
        symbol = _given(attributes, _SYMBOLS.get(op.name, ""))
        return ShardyOp(
            index=index,
            kind=op.name,
            operands=tuple(self._indices[operand] for operand in op.operands),
            results=(),
            op_name=name,
            source=frames,
            rule=None if rule is None else self._once(read.rule_of, rule),
            parent=parent,
            region=region,
            symbol=None if symbol is None else symbol.value,
            origin_name=None if origin_name is None else origin_name.value,
            asked=None if origin_name is None else self._asked.get(origin_name.value),
            axes=_axes(op),
            groups=read.groups_of(attributes),
        )

    def _results(self, op: Any, index: int) -> Iterator[int]:
        count = len(op.results)
        shardings = _result_shardings(op, self._once)
        origins = _origins(op, ("sdy.result_sharding_origins", "sdy.sharding_origins"), count, self._once)
        unreduced = _unreduced(op, count, self._once)
        constant = read.whole_number(op)
        for number, result in enumerate(op.results):
            yield self._add(
                result,
                index,
                number,
                sharding=shardings[number],
                origins=origins[number],
                whole_number=constant,
                unreduced=unreduced[number],
            )

    def _arguments(self, op: Any, block: Any, index: int, region: int) -> None:
        count = len(block.arguments)
        shardings, origins = _argument_facts(op, count, self._once)
        unreduced = _unreduced_arguments(op, count, self._once)
        for number, argument in enumerate(block.arguments):
            self._add(
                argument,
                index,
                number,
                sharding=shardings[number],
                origins=origins[number],
                unreduced=unreduced[number],
                is_argument=True,
                region=region,
                name=self._locations.of(argument.location)[0] if op.name == _FUNCTION else None,
            )

    def _add(self, value: Any, owner: int, number: int, **facts: Any) -> int:
        index = len(self.values)
        kind = value.type
        shape = tuple(int(size) for size in kind.shape) if hasattr(kind, "shape") else ()
        element = str(kind.element_type) if hasattr(kind, "element_type") else str(kind)
        self.values.append(
            ShardyValue(index=index, shape=shape, element_type=element, owner=owner, number=number, **facts)
        )
        self._indices[value] = index
        return index


def _given(attributes: Any, key: str) -> Any:
    return attributes[key] if key and key in attributes else None


def _axes(op: Any) -> Axes:
    if op.name == "sdy.all_reduce":
        return read.axes_of(read.axis_references(op.attributes["reduction_axes"]))
    if op.name == "sdy.manual_computation":
        return read.manual_axes(op.attributes["manual_axes"])
    return ()


def _result_shardings(op: Any, once: _Once) -> list[ValueSharding | None]:
    """One for each result, wherever this kind of operation keeps it."""
    count = len(op.results)
    for key in _SHARDINGS:
        attribute = _given(op.attributes, key)
        found: list[ValueSharding | None] | None = (
            None if attribute is None else once(read.shardings_of, attribute, count)
        )
        if found is not None:
            return found
    return [None] * count


def _unreduced(op: Any, count: int, once: _Once) -> list[Axes]:
    """The unreduced axes of each result."""
    given = (_given(op.attributes, key) for key in _SHARDINGS)
    attribute = next((one for one in given if one is not None), None)
    return [()] * count if attribute is None else once(read.unreduced_per_value, attribute, count)


def _unreduced_arguments(op: Any, count: int, once: _Once) -> list[Axes]:
    """The unreduced axes of a function's arguments."""
    if op.name != _FUNCTION or "arg_attrs" not in op.attributes:
        return [()] * count
    given = (_given(one, "sdy.sharding") for one in op.attributes["arg_attrs"])
    return [() if one is None else once(read.unreduced_per_value, one, 1)[0] for one in given]


def _argument_facts(op: Any, count: int, once: _Once) -> tuple[list[ValueSharding | None], list[dict[str, str]]]:
    """Shardings and origins of the arguments of a block of `op`."""
    if op.name == _FUNCTION and "arg_attrs" in op.attributes:
        each = list(op.attributes["arg_attrs"])
        given = [(_given(one, "sdy.sharding"), _given(one, "sdy.sharding_origins")) for one in each]
        return [None if one is None else once(read.sharding_of, one) for one, _ in given], [
            {} if one is None else once(read.origins_of, one) for _, one in given
        ]
    origins = _origins(op, ("sdy.block_arg_sharding_origins", "sdy.result_sharding_origins"), count, once)
    if op.name == "stablehlo.while":
        return _result_shardings(op, once), origins
    if op.name == "sdy.named_computation" and "in_shardings" in op.attributes:
        found = once(read.shardings_of, op.attributes["in_shardings"], count)
        return found or [None] * count, origins
    return [None] * count, origins


def _origins(op: Any, keys: tuple[str, ...], count: int, once: _Once) -> list[dict[str, str]]:
    """Origins of `count` values, under the first key that has them for all."""
    for key in keys:
        attribute = _given(op.attributes, key)
        found = [] if attribute is None else once(read.origins_per_value, attribute, count)
        if any(found):
            return found
    return [{} for _ in range(count)]
