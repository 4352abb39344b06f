"""One expression of the user's source, wrapped in a call: in memory, in the functions that exist, for a while.

The file is parsed and compiled a second time with the call, and the functions that were made from it get the new code.
Neither the file nor the module is touched, and the module is not executed again: its functions keep their globals,
defaults and closures. A nested function that does not exist yet is made from the new code of the function around it.
"""

from __future__ import annotations

import ast
import builtins
import gc
import linecache
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from hloscope.compile.importing import format_path
from hloscope.compile.sharding_change import DoesNotApplyError

_WRAPPER = "_hloscope_wrap"
"""The name of the wrapper among Python's builtins, which every function sees."""

_MOST_CHARS = 60
"""The length up to which an expression is quoted."""

_Expression = ast.expr | ast.AugAssign
"""An expression, or an assignment such as `x += y`, which computes one."""


class CodeSpan(NamedTuple):
    """The place of an expression in a file: lines count from 1, columns from 0 and in bytes."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UserExpression:
    """An expression in a file, as the file was when its functions were made.

    Attributes:
        file: Path of the file.
        lines: The lines of the file.
        node: The expression.
        codes: The code of each function around it, outermost first, before and after it is wrapped.
        functions: The functions that have such code.
    """

    file: str
    lines: tuple[str, ...]
    node: _Expression
    codes: tuple[tuple[CodeType, CodeType], ...]
    functions: tuple[FunctionType, ...]

    @property
    def written(self) -> str:
        """The lines that hold it."""
        return _strip("".join(self._list_lines()))

    def write_call(self, before: str, after: str) -> str:
        """The same lines with text before and after the expression."""
        lines = [line.encode() for line in self._list_lines()]
        text = b"".join(lines)
        begin, end = self.node.col_offset, len(text) - len(lines[-1]) + _find_span(self.node).end_column
        head, own, tail = text[:begin], text[begin:end].decode(), text[end:]
        if isinstance(self.node, ast.AugAssign):
            head, own = head + f"{ast.unparse(self.node.target)} = ".encode(), ast.unparse(_spell_out(self.node))
        return _strip(f"{head.decode()}{before}{own}{after}{tail.decode()}")

    def _list_lines(self) -> tuple[str, ...]:
        span = _find_span(self.node)
        return self.lines[span.line - 1 : span.end_line]


def find_expression(file: str, spans: Iterable[CodeSpan]) -> UserExpression:
    """Finds the one expression that Python was evaluating at some places of a file, and the functions that hold it.

    Raises:
        DoesNotApplyError: The file has no such expression or several, or no function was made from it as it is now.
    """
    linecache.checkcache(file)
    lines = tuple(linecache.getlines(file))
    name = format_path(file)
    if not lines:
        raise make_no_line_error(f"{name} cannot be read")
    try:
        tree = ast.parse("".join(lines))
        old = _compile(tree, file)
    except (SyntaxError, ValueError) as error:
        raise make_no_line_error(f"{name} is not valid Python any more: {error}") from error
    node = _choose_node(tree, set(spans), name)
    new = _compile(_Wrapping(node).visit(tree), file)
    codes = tuple((a, b) for a, b in zip(_list_codes(old), _list_codes(new), strict=True) if a != b)
    functions = tuple(held for held in _list_functions(file) if any(_is_same(held.__code__, code) for code, _ in codes))
    if not functions:
        raise make_no_line_error(
            f"no function has the code of {name}:{node.lineno} as it reads now: the file was edited since it was "
            "imported, a decorator rewrites the function, or the line runs only on import"
        )
    return UserExpression(file=file, lines=lines, node=node, codes=codes, functions=functions)


def _compile(tree: ast.Module, file: str) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warned of the file when it was imported
        return compile(tree, file, "exec", dont_inherit=True)


def make_no_line_error(why: str) -> DoesNotApplyError:
    """The error for a place without an expression that can be wrapped."""
    return DoesNotApplyError("no line was found for the constraint", why=why)


@contextmanager
def wrap_expression(found: UserExpression, wrapper: Callable[[Any], Callable[[], Any]]) -> Iterator[None]:
    """Wraps an expression within the block, in every function that has it; the caller holds the lock of `isolate_call`.

    Args:
        found: The expression.
        wrapper: Takes its value, and returns the function that makes the new one. That function is called by the user's
            code, so that its operations have the user's line.
    """
    before = [(function, function.__code__) for function in found.functions]
    setattr(builtins, _WRAPPER, wrapper)
    try:
        for function, code in before:
            function.__code__ = next(new for old, new in found.codes if _is_same(code, old))
        yield
    finally:
        for function, code in before:
            function.__code__ = code
        for function in _list_functions(found.file):  # those made meanwhile, which a cache of the user's may hold
            function.__code__ = next((old for old, new in found.codes if new is function.__code__), function.__code__)
        delattr(builtins, _WRAPPER)


def _choose_node(tree: ast.Module, spans: set[CodeSpan], name: str) -> _Expression:
    """The expression at one of the places."""
    places = {
        span: node
        for node in ast.walk(tree)
        if isinstance(node, ast.expr | ast.AugAssign)
        for span in (_find_span(node), _find_method_span(node))
        if span in spans
    }
    chosen = list({id(node): node for node in places.values()}.values())
    if not chosen:
        raise make_no_line_error(f"{name} has no expression where the operation was traced")
    if len(chosen) > 1:
        listed = " and ".join(shorten(text, _MOST_CHARS) for text in sorted(map(ast.unparse, chosen), key=len))
        raise make_no_line_error(f"several expressions begin at {name}:{chosen[0].lineno}: {listed}")
    (node,) = chosen
    if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Name):
        raise make_no_line_error(f"{name}:{node.lineno} changes a value in place: {ast.unparse(node)}")
    return node


def _find_span(node: _Expression) -> CodeSpan:
    return CodeSpan(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0)


def _find_method_span(node: _Expression) -> CodeSpan | None:
    """The place that Python gives to the call of a method on a line of its own: from the method's name on."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    name = _find_span(node.func)
    return _find_span(node)._replace(line=name.end_line, column=name.end_column - len(node.func.attr))


class _Wrapping(ast.NodeTransformer):
    """Replaces one expression by `wrap(expression)()`, at the same place."""

    def __init__(self, node: _Expression) -> None:
        self._node = node

    def visit(self, node: ast.AST) -> Any:
        if node is not self._node:
            return self.generic_visit(node)
        if isinstance(node, ast.AugAssign):
            value = self._wrap(ast.copy_location(_spell_out(node), node))
            return ast.copy_location(ast.Assign(targets=[node.target], value=value), node)
        return self._wrap(self._node)

    def _wrap(self, value: Any) -> ast.expr:
        def call(function: ast.expr, *args: ast.expr) -> ast.expr:
            return ast.copy_location(ast.Call(func=function, args=list(args), keywords=[]), value)

        return call(call(ast.copy_location(ast.Name(_WRAPPER, ast.Load()), value), value))


def _spell_out(node: ast.AugAssign) -> ast.BinOp:
    """The sum of `x += y`."""
    assert isinstance(node.target, ast.Name)
    left = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
    return ast.BinOp(left=left, op=node.op, right=node.value)


def _list_codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a file and of all functions in it, in order."""
    yield code
    for held in code.co_consts:
        if isinstance(held, CodeType):
            yield from _list_codes(held)


def _list_functions(file: str) -> list[FunctionType]:
    """All functions that were made from a file."""
    found = (held for held in gc.get_objects() if type(held) is FunctionType)  # a proxy may pretend to be one
    return [function for function in found if function.__code__.co_filename == file]


def _is_same(code: CodeType, other: CodeType) -> bool:
    """Returns whether two pieces of code do the same at the same place."""
    return (
        code == other
        and code.co_qualname == other.co_qualname
        and list(code.co_positions()) == list(other.co_positions())
    )


def _strip(lines: str) -> str:
    """Lines without the indentation of the first, and without the end of the last."""
    indentation = len(lines) - len(lines.lstrip())
    return "\n".join(line.removeprefix(lines[:indentation]) for line in lines.rstrip().splitlines())
