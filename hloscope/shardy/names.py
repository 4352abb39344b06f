"""The user's names for values that are no arguments: the variable that the source assigns them to."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hloscope.compiler.shardy_model import ShardyOp, ShardyValue
from hloscope.shardy.graph import ShardyGraph

RESULT = "Out"
"""What a value is called that a `return` hands out, as in the scaling literature."""

_ANONYMOUS = ("<lambda>", "<genexpr>")
"""Functions whose values are not what the statement around them assigns."""

_CONTAINERS = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp, ast.Tuple)
_SEARCHES = {"gt": "argmax", "lt": "argmin"}
_WITH_POSITIONS = 2
_RECOMPUTED = "rematted_computation"
_FUNCTIONS = {
    "psum2": "psum",
    "psum_invariant": "psum",
    "unreduced_psum": "psum",
    "all_gather_invariant": "all_gather",
    "all_gather_reduced": "all_gather",
    "reduce_scatter": "psum_scatter",
    "unreduced_reduce_scatter": "psum_scatter",
}


@dataclass(frozen=True, slots=True)
class Statement:
    """The lines of one simple statement, and the name it assigns; `Out` for a return."""

    first: int
    last: int
    name: str | None


def assigned_name(graph: ShardyGraph, value: ShardyValue) -> str | None:
    """The variable that holds a value: assigned by the statement that made it, and used elsewhere.

    None when the source cannot be read, the statement assigns no single array's name, the value does not leave it, it
    belongs to the backward pass of the statement, or the name is that of an argument, which is another array. What the
    program returns is its result then. A value that the statement still converts or rearranges goes by it as well.
    """
    op = graph.op(value)
    if op is None or not op.source or is_gradient(op.op_name):
        return None
    here = op.source[0]
    statement = _statement_at(here.file, here.line)
    if statement is None or statement.name is None:
        return None
    users = [user for user, _ in graph.real_users(value)]
    if statement.name == RESULT or statement.name in graph.argument_names or here.function.endswith(_ANONYMOUS):
        returned = any(user.kind == "func.return" and user.parent == graph.module.main for user in users)
        return RESULT if returned else None
    if any(_is_elsewhere(user, here.file, statement) for user in users):
        return statement.name
    onward = graph.value(users[0].results[0]) if len(users) == 1 and graph.keeps_elements(users[0]) else None
    return None if onward is None else assigned_name(graph, onward)


def is_gradient(op_name: str | None) -> bool:
    """Whether an operation belongs to a backward pass, which carries the lines of the forward one.

    What `jax.checkpoint` computes again there is the forward pass once more.
    """
    return "transpose(" in (op_name or "") and _RECOMPUTED not in (op_name or "")


def search_name(graph: ShardyGraph, op: ShardyOp) -> str | None:
    """`argmax` or `argmin` of a reduction that carries each element's position along; None for any other operation.

    Source: JAX lowers these two to a `stablehlo.reduce` of the array and an `iota` that first compares two elements.
    """
    if op.kind != "stablehlo.reduce" or len(op.results) != _WITH_POSITIONS:
        return None
    positions = graph.maker(graph.value(op.operands[1]))
    first = graph.module.ops[op.index + 1]
    if positions is None or positions.kind != "stablehlo.iota" or first.parent != op.index:
        return None
    return _SEARCHES.get((first.op_name or "").rpartition("/")[2].rstrip(":"))


def name_in_jax(primitive: str) -> str:
    """The function of `jax.lax` that a primitive comes from, which is what the user wrote."""
    return _FUNCTIONS.get(primitive, primitive)


def _is_elsewhere(user: ShardyOp, file: str, statement: Statement) -> bool:
    if user.kind.endswith(".return"):
        return True
    if not user.source:  # the compiler's own
        return False
    place = user.source[0]
    return place.file != file or not statement.first <= place.line <= statement.last


@lru_cache(maxsize=4096)
def _statement_at(file: str, line: int) -> Statement | None:
    around = [statement for statement in _statements(file) if statement.first <= line <= statement.last]
    return min(around, key=lambda statement: statement.last - statement.first, default=None)


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
    if isinstance(getattr(node, "value", None), _CONTAINERS):
        return None
    if isinstance(node, ast.Return):
        return None if node.value is None else RESULT
    if isinstance(node, ast.Assign):
        return node.targets[0].id if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) else None
    target = getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else None


def ends_alike(name: str, other: str) -> bool:
    """Whether op_names agree, or one is relative to a function that the other is called in."""
    short, long = sorted((name.rstrip(":"), other.rstrip(":")), key=len)
    return long == short or long.endswith(f"/{short}")
