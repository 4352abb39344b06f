"""Who put a collective into the program: the user, the partitioner, or a later pass."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hloscope.analysis.vocabulary import Kind, Origin
from hloscope.hlo import HloInstruction

KIND_OF_PRIMITIVE = {
    "psum": Kind.ALL_REDUCE,
    "psum2": Kind.ALL_REDUCE,
    "psum_invariant": Kind.ALL_REDUCE,
    "unreduced_psum": Kind.ALL_REDUCE,
    "pmax": Kind.ALL_REDUCE,
    "pmin": Kind.ALL_REDUCE,
    "all_gather": Kind.ALL_GATHER,
    "all_gather_invariant": Kind.ALL_GATHER,
    "all_gather_reduced": Kind.ALL_GATHER,
    "reduce_scatter": Kind.REDUCE_SCATTER,
    "psum_scatter": Kind.REDUCE_SCATTER,
    "unreduced_reduce_scatter": Kind.REDUCE_SCATTER,
    "all_to_all": Kind.ALL_TO_ALL,
    "ragged_all_to_all": Kind.RAGGED_ALL_TO_ALL,
    "ppermute": Kind.COLLECTIVE_PERMUTE,
    "psend": Kind.COLLECTIVE_PERMUTE,
    "precv": Kind.COLLECTIVE_PERMUTE,
    "pbroadcast": Kind.COLLECTIVE_BROADCAST,
}
"""JAX's collective primitives, as they end an `op_name`, and what each one means."""

_SHARD_MAP = re.compile(r"(^|[/(])shard_map([/)]|$)")
_WINDOWED_EINSUM = "windowed_dot_general"
_MADE_REDUCTION = "make_reduction_computation"


def authored_kind(op_name: str | None) -> Kind | None:
    """What the user's own collective means, when `op_name` is one under shard_map; else None."""
    if op_name is None or not _SHARD_MAP.search(op_name):
        return None
    return KIND_OF_PRIMITIVE.get(op_name.rsplit("/", 1)[-1])


def origin_of(
    kind: Kind, op: HloInstruction, own: Iterable[HloInstruction], own_op_name: str | None, near_op_name: str | None
) -> Origin:
    """Tells the origin of a collective from its own text.

    Args:
        kind: What it does.
        op: The collective instruction.
        own: All instructions that print it.
        own_op_name: The `op_name` that one of these prints.
        near_op_name: The `op_name` of what uses the result, when the collective prints no metadata and that
            instruction is no collective itself: compilers leave it on the slice of a scatter turned into a reduction.

    Returns:
        Authored for a JAX collective under shard_map, rewritten when that one means another kind; rewritten for the
        permutes of a windowed einsum and for reductions that the compiler moved out of a loop; inserted when the
        partitioner says so, which it does since JAX 0.12; else unknown.
    """
    if (primitive := authored_kind(own_op_name)) is not None:
        return _as_authored(kind, primitive)
    if kind is Kind.COLLECTIVE_PERMUTE and _is_windowed_einsum(own_op_name, op):
        return Origin.REWRITTEN
    if any(name.startswith(_MADE_REDUCTION) for attribute, name in op.called if attribute == "to_apply"):
        return Origin.REWRITTEN
    if any(instruction.frontend_attributes.get("is_spmd_generated") == "true" for instruction in own):
        return Origin.INSERTED
    primitive = authored_kind(near_op_name)
    return Origin.UNKNOWN if primitive is None else _as_authored(kind, primitive)


def _as_authored(kind: Kind, primitive: Kind) -> Origin:
    return Origin.AUTHORED if primitive is kind else Origin.REWRITTEN


def _is_windowed_einsum(op_name: str | None, op: HloInstruction) -> bool:
    if _WINDOWED_EINSUM in op.computation.name:
        return True
    return op_name is not None and op_name.rsplit("/", 1)[-1] == "dot_general"
