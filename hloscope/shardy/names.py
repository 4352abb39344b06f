"""The user's names for values other than arguments: the variables that the source assigns them to."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hloscope.compiler.shardy_model import ShardyOp, ShardyValue
from hloscope.shardy.graph import ShardyGraph

RESULT_NAME = "Out"
"""The name of a value that a `return` returns, as in the scaling literature."""

_ANONYMOUS = ("<lambda>", "<genexpr>")
"""Functions whose values are not those that the enclosing statement assigns."""

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
    """The lines of one simple statement, and the name that it assigns; `Out` for a return."""

    first: int
    last: int
    name: str | None


def find_assigned_name(graph: ShardyGraph, value: ShardyValue) -> str | None:
    """The variable that holds a value: assigned by the statement that produces it, and used elsewhere.

    None if the source cannot be read, the statement does not assign a single array to a name, the value does not leave
    it, it belongs to the backward pass of the statement, or the name is that of an argument, which is another array;
    the program's return value is then its result. A value that the statement still converts or rearranges has the name
    as well.
    """
    op = graph.op(value)
    if op is None or not op.source or is_gradient(op.op_name):
        return None
    here = op.source[0]
    statement = _find_statement(here.file, here.line)
    if statement is None or statement.name is None:
        return None
    users = [user for user, _ in graph.real_users(value)]
    if statement.name == RESULT_NAME or statement.name in graph.argument_names or here.function.endswith(_ANONYMOUS):
        returned = any(user.kind == "func.return" and user.parent == graph.module.main for user in users)
        return RESULT_NAME if returned else None
    if any(_is_outside_statement(user, here.file, statement) for user in users):
        return statement.name
    onward = graph.value(users[0].results[0]) if len(users) == 1 and graph.keeps_elements(users[0]) else None
    return None if onward is None else find_assigned_name(graph, onward)


def is_gradient(op_name: str | None) -> bool:
    """Returns whether an operation belongs to a backward pass, which has the lines of the forward one.

    Operations that `jax.checkpoint` recomputes there belong to the forward pass.
    """
    return "transpose(" in (op_name or "") and _RECOMPUTED not in (op_name or "")


def find_search_name(graph: ShardyGraph, op: ShardyOp) -> str | None:
    """`argmax` or `argmin` for a reduction that also tracks each element's position; None for any other operation.

    Source: JAX lowers these two to a `stablehlo.reduce` of the array and an `iota` that first compares two elements.
    """
    if op.kind != "stablehlo.reduce" or len(op.results) != _WITH_POSITIONS:
        return None
    positions = graph.maker(graph.value(op.operands[1]))
    first = graph.module.ops[op.index + 1]
    if positions is None or positions.kind != "stablehlo.iota" or first.parent != op.index:
        return None
    return _SEARCHES.get((first.op_name or "").rpartition("/")[2].rstrip(":"))


def find_jax_name(primitive: str) -> str:
    """The function of `jax.lax` for a primitive, which is what the user wrote."""
    return _FUNCTIONS.get(primitive, primitive)


def _is_outside_statement(user: ShardyOp, file: str, statement: Statement) -> bool:
    if user.kind.endswith(".return"):
        return True
    if not user.source:  # the compiler's own
        return False
    place = user.source[0]
    return place.file != file or not statement.first <= place.line <= statement.last


@lru_cache(maxsize=4096)
def _find_statement(file: str, line: int) -> Statement | None:
    around = [statement for statement in _parse_statements(file) if statement.first <= line <= statement.last]
    return min(around, key=lambda statement: statement.last - statement.first, default=None)


@lru_cache(maxsize=64)
def _parse_statements(file: str) -> tuple[Statement, ...]:
    """The simple statements of a file; empty if it cannot be read or is not Python."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    simple = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
    return tuple(
        Statement(node.lineno, node.end_lineno or node.lineno, _read_target_name(node))
        for node in ast.walk(tree)
        if isinstance(node, simple)
    )


def _read_target_name(node: ast.stmt) -> str | None:
    if isinstance(getattr(node, "value", None), _CONTAINERS):
        return None
    if isinstance(node, ast.Return):
        return None if node.value is None else RESULT_NAME
    if isinstance(node, ast.Assign):
        return node.targets[0].id if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) else None
    target = getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else None


def have_matching_ends(name: str, other: str) -> bool:
    """Returns whether op_names agree, or one is relative to a function in which the other is called."""
    short, long = sorted((name.rstrip(":"), other.rstrip(":")), key=len)
    return long == short or long.endswith(f"/{short}")
