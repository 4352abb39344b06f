"""Which operations are constraints of the user's, and which are the compiler's or Shardy's own."""

from __future__ import annotations

from hloscope.compiler.shardy_model import ShardyOp
from hloscope.why.graph import CONSTRAINT, RESHARDS

_WRITTEN = ("sharding_constraint", "reshard")


def is_asked_for(op: ShardyOp) -> bool:
    """Whether an operation is a constraint of the user's, also the `out_sharding` of an explicit operation.

    What Shardy puts in has no origin, and the compiler's own copies of argument shardings have no line.
    """
    return op.kind in RESHARDS and bool(op.source) and (op.origin_name is not None or op.kind == CONSTRAINT)


def is_written(op: ShardyOp) -> bool:
    """Whether an operation is a constraint that the user wrote as such."""
    return is_asked_for(op) and (op.op_name or "").endswith(_WRITTEN)
