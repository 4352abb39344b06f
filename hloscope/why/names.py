"""The user's names for values that are no arguments: the variable that the source assigns them to."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hloscope.program.shardy_model import ShardyOp, ShardyValue
from hloscope.why.graph import ShardyGraph

RESULT = "Out"
"""What a value is called that a `return` hands out, as in the scaling literature."""

_RECOMPUTED = "rematted_computation"


@dataclass(frozen=True, slots=True)
class Statement:
    """The lines of one simple statement, and the name it assigns; `Out` for a return."""

    first: int
    last: int
    name: str | None


def assigned_name(graph: ShardyGraph, value: ShardyValue) -> str | None:
    """The variable that holds a value: assigned by the statement that made it, and used elsewhere.

    None when the source cannot be read, the statement assigns no single name, the value does not leave it, or it
    belongs to the backward pass of the statement.
    """
    op = graph.op(value)
    if op is None or not op.source or is_gradient(op):
        return None
    here = op.source[0]
    statement = _statement_at(here.file, here.line)
    if statement is None or statement.name is None:
        return None
    users = [user for user, _ in graph.real_users(value)]
    if statement.name == RESULT:
        leaves = any(user.kind == "func.return" and user.parent == graph.module.main for user in users)
    else:
        leaves = any(_is_elsewhere(user, here.file, statement) for user in users)
    return statement.name if leaves else None


def is_gradient(op: ShardyOp) -> bool:
    """Whether an operation belongs to a backward pass, which carries the lines of the forward one.

    What `jax.checkpoint` computes again there is the forward pass once more.
    """
    return "transpose(" in (op.op_name or "") and _RECOMPUTED not in (op.op_name or "")


def _is_elsewhere(user: ShardyOp, file: str, statement: Statement) -> bool:
    if not user.source or user.kind.endswith(".return"):
        return True
    place = user.source[0]
    return place.file != file or not statement.first <= place.line <= statement.last


def _statement_at(file: str, line: int) -> Statement | None:
    around = [one for one in _statements(file) if one.first <= line <= one.last]
    return min(around, key=lambda one: one.last - one.first, default=None)


@lru_cache(maxsize=64)
def _statements(file: str) -> tuple[Statement, ...]:
    """The simple statements of a file; none when it cannot be read or is no Python."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    simple = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
    return tuple(
        Statement(node.lineno, node.end_lineno or node.lineno, _name_of(node))
        for node in ast.walk(tree)
        if isinstance(node, simple)
    )


def _name_of(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Return):
        return None if node.value is None or isinstance(node.value, ast.Tuple) else RESULT
    if isinstance(node, ast.Assign):
        return node.targets[0].id if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) else None
    target = getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else None
