"""Changes of a lowered module's shardings: pure functions on its bytecode.

Operations are identified by the numbers of `hloscope.compile.operation_numbers`, so that facts read from one copy of a
module apply to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from hloscope.compile import jax_private
from hloscope.compile.operation_numbers import find_numbered_operations
from hloscope.compile.sharding_change import ConstraintEdit, ModuleEdit
from hloscope.model.capture import ValueSharding

_CONSTRAINT = "sdy.sharding_constraint"
_SHARDING = "sdy.sharding"


def edit_constraints(module: bytes, edits: tuple[ConstraintEdit, ...]) -> bytes:
    """The bytecode of a module with edited sharding constraints.

    Raises:
        ValueError: An edit does not fit the module.
    """
    parsed = jax_private.read_module_bytecode(module)
    with parsed.context:
        apply_edit(parsed, ModuleEdit(constraints=edits))
        try:
            parsed.operation.verify()
        except Exception as error:  # MLIR's own type differs by version
            raise ValueError(f"the edited module is invalid: {error}") from error
        return jax_private.write_module_bytecode(parsed)


def apply_edit(module: Any, edit: ModuleEdit) -> None:
    """Changes a parsed `jaxlib.mlir.ir.Module`; its context must be the current one.

    Raises:
        ValueError: The edit does not fit the module.
    """
    operations = find_numbered_operations(module) if edit.constraints else {}
    meshes = _find_mesh_axes(module)
    for change in edit.constraints:
        _constrain(operations, change, meshes)
    if edit.arguments or edit.results:
        symbols = ir.SymbolTable(module.operation)
        if "main" not in symbols:
            raise ValueError("the module has no main function")
        main = symbols["main"]
        _replace_shardings(main, "arg_attrs", dict(edit.arguments), edit.argument_count, meshes)
        _replace_shardings(main, "res_attrs", dict(edit.results), edit.result_count, meshes)


def _find_mesh_axes(module: Any) -> dict[str, frozenset[str]]:
    """The axes of each mesh of the module, by its symbol."""
    found = {}
    for op in module.body.operations:
        if isinstance(op, sdy.MeshOp):
            found[op.sym_name.value] = frozenset(read_mesh(op.mesh))
    return found


def read_mesh(attribute: Any) -> dict[str, int]:
    """The size of each axis by name."""
    axes = (sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(attribute).axes)
    return {str(axis.name): int(axis.size) for axis in axes}


def _make_sharding(sharding: ValueSharding, meshes: Mapping[str, frozenset[str]]) -> Any:
    """A sharding with all dimensions closed, over the first mesh that has its axes."""
    axes = {axis.partition(":")[0] for here in sharding for axis in here}
    symbol = next((name for name, known in meshes.items() if known and axes <= known), None)
    if symbol is None:
        raise ValueError(f"no mesh of the module has the axes {sorted(axes)}")
    dimensions = ", ".join("{" + ", ".join(map(_make_axis, here)) + "}" for here in sharding)
    return ir.Attribute.parse(f"#sdy.sharding<@{symbol}, [{dimensions}]>")


def _make_axis(axis: str) -> str:
    name, part, rest = axis.partition(":")
    return f'"{name}"{part}{rest}'


def _constrain(operations: Mapping[int, Any], change: ConstraintEdit, meshes: Mapping[str, frozenset[str]]) -> None:
    op = operations.get(change.operation)
    if op is None:
        raise ValueError(f"the module has no operation {change.operation}")
    if change.operand is not None:
        if change.sharding is None or change.operand >= len(op.operands):
            raise ValueError(f"operation {change.operation} has no operand {change.operand}")
        rank = len(ir.RankedTensorType(op.operands[change.operand].type).shape)
        if rank != len(change.sharding):
            raise ValueError(f"operand {change.operand} of operation {change.operation} has {rank} dimensions")
        with ir.InsertionPoint(op), op.location:
            added = sdy.ShardingConstraintOp(op.operands[change.operand], _make_sharding(change.sharding, meshes))
        op.operands[change.operand] = added.result
        return
    if op.name != _CONSTRAINT:
        raise ValueError(f"operation {change.operation} is a {op.name}, not a sharding constraint")
    if change.sharding is not None:
        op.attributes["sharding"] = _make_sharding(change.sharding, meshes)
        return
    op.results[0].replace_all_uses_with(op.operands[0])
    op.erase()


def _replace_shardings(
    main: Any,
    key: str,
    shardings: Mapping[int, ValueSharding | None],
    counted: int | None,
    meshes: Mapping[str, frozenset[str]],
) -> None:
    """Replaces the shardings of arguments or results; None removes a sharding."""
    if not shardings:
        return
    kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    count = len(kind.inputs if key == "arg_attrs" else kind.results)
    known = list(main.attributes[key]) if key in main.attributes else [ir.DictAttr.get({})] * count
    before = 0 if counted is None else count - counted
    if before < 0 or before + max(shardings) >= count:
        raise ValueError(f"the module has no {key.partition('_')[0]} {max(shardings)}")
    for place, sharding in shardings.items():
        number = before + place
        attributes = {item.name: item.attr for item in ir.DictAttr(known[number]) if item.name != _SHARDING}
        if sharding is not None:
            attributes[_SHARDING] = _make_sharding(sharding, meshes)
        known[number] = ir.DictAttr.get(attributes)
    main.attributes[key] = ir.ArrayAttr.get(known)
