"""What the large arrays of a compiled program are in the program as it was written: whole shapes and shardings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from hloscope.analysis.model import IntermediateFact
from hloscope.compiler.shardy_model import ShardyModule, ShardyOp, ShardyValue
from hloscope.why.element_types import hlo_type
from hloscope.why.graph import MOVES, ShardyGraph
from hloscope.why.matching import ends_alike
from hloscope.why.moves import local_shape, sharding_known
from hloscope.why.tensors import spec_of


def with_shardings(found: Iterable[IntermediateFact], module: ShardyModule) -> tuple[IntermediateFact, ...]:
    """Gives each array the whole shape and the sharding of the value that it is a device's part of.

    That is the value which is cut to this array's shape and was made by the operation of its name, in whatever type the
    compiler keeps it; else the one of its type made at its line of code. An array stays without where there is no such
    value, or several that are sharded in different ways.

    Args:
        found: Large arrays of the compiled program.
        module: The program after Shardy's propagation.
    """
    graph, mesh = ShardyGraph(module), dict(module.mesh)
    cut: dict[tuple[int, ...], list[ShardyValue]] = defaultdict(list)
    for value in module.values:
        maker = module.ops[value.owner]
        if value.is_argument or not value.shape or maker.kind in MOVES or graph.in_manual(maker):
            continue
        cut[local_shape(value.shape, sharding_known(value), mesh)].append(value)
    return tuple(_with_sharding(one, cut.get(one.local_shape, ()), module) for one in found)


def _with_sharding(one: IntermediateFact, values: Iterable[ShardyValue], module: ShardyModule) -> IntermediateFact:
    made_by = [(value, module.ops[value.owner]) for value in values]
    named = [value for value, op in made_by if _has_its_name(one, op)]
    of_its_type = ((value, op) for value, op in made_by if hlo_type(value.element_type) == one.dtype)
    chosen = named or [value for value, op in of_its_type if _has_its_line(one, op)]
    whole = {(value.shape, spec_of(sharding_known(value)) or "P()") for value in chosen}
    if len(whole) != 1:
        return one
    [(shape, sharding)] = whole
    return replace(one, global_shape=shape, sharding=sharding)


def _has_its_name(one: IntermediateFact, op: ShardyOp) -> bool:
    return one.op_name is not None and op.op_name is not None and ends_alike(op.op_name, one.op_name)


def _has_its_line(one: IntermediateFact, op: ShardyOp) -> bool:
    return bool(one.source and op.source) and (one.source[0].file, one.source[0].line) == (
        op.source[0].file,
        op.source[0].line,
    )
