"""A program traced again with a sharding constraint that the user would write into the source.

A constraint in the lowered module holds where it is inserted. One in the source is differentiated, batched and repeated
with the operations around it: its transpose constrains the cotangent, and rematerialization repeats it.
"""

from __future__ import annotations

import ast
import builtins
import gc
import linecache
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from textwrap import shorten
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import jax

from hloscope.base.environment import is_library
from hloscope.base.store import Store
from hloscope.base.units import pluralize
from hloscope.compile import jax_private
from hloscope.compile.importing import format_path
from hloscope.compile.jax_targets import is_traced_already
from hloscope.compile.jaxprs import find_inner_jaxprs, find_jaxpr, open_jaxpr
from hloscope.compile.lowering import Function, Lowered, lower_changed
from hloscope.compile.sharding_change import DoesNotApplyError, WrittenConstraint

# ---- one expression of the source, wrapped in a call: in memory, in the functions that exist, for a while
#
# The file is parsed and compiled a second time with the call, and the functions that were made from it get that code.
# Neither the file nor the module is touched, and the module is not executed again: its functions keep their globals,
# defaults and closures. A nested function that does not exist yet is made from the new code of the function around it.

_WRAPPER = "_hloscope_wrap"
"""The name of the wrapper among Python's builtins, which every function sees."""

_MOST_CHARS = 60
"""The length up to which an expression is quoted."""

_Expression = ast.expr | ast.AugAssign
"""An expression, or an assignment such as `x += y`, which computes one."""


class _CodeSpan(NamedTuple):
    """The place of an expression in a file: lines count from 1, columns from 0 and in bytes."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _UserExpression:
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
        """The same lines with text before and after the expression.

        Raises:
            DoesNotApplyError: They are not Python then, as with quotes within those of an f-string before Python 3.12.
        """
        lines = [line.encode() for line in self._list_lines()]
        text = b"".join(lines)
        begin, end = self.node.col_offset, len(text) - len(lines[-1]) + _find_span(self.node).end_column
        head, own, tail = text[:begin], text[begin:end].decode(), text[end:]
        if isinstance(self.node, ast.AugAssign):
            head, own = head + f"{ast.unparse(self.node.target)} = ".encode(), ast.unparse(_spell_out(self.node))
        written, span = f"{head.decode()}{before}{own}{after}{tail.decode()}", _find_span(self.node)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse("".join((*self.lines[: span.line - 1], written, *self.lines[span.end_line :])))
        except SyntaxError:
            place = f"{format_path(self.file)}:{span.line}"
            raise _make_no_line_error(f"the expression at {place} cannot be written as a call where it is") from None
        return _strip(written)

    def _list_lines(self) -> tuple[str, ...]:
        span = _find_span(self.node)
        return self.lines[span.line - 1 : span.end_line]


def _find_expression_at(file: str, spans: set[_CodeSpan]) -> _UserExpression:
    """Finds the one expression that Python was evaluating at some places of a file, and the functions that hold it.

    Raises:
        DoesNotApplyError: The file has no such expression or several, or no function was made from it as it is now.
    """
    linecache.checkcache(file)
    lines = tuple(linecache.getlines(file))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warned of the file when it was imported
        node, codes = _compile_twice(file, lines, spans)
    functions = tuple(held for held in _list_functions(file) if any(_is_same(held.__code__, code) for code, _ in codes))
    if not functions:
        raise _make_no_line_error(
            f"no function has the code of {format_path(file)}:{node.lineno} as it reads now: the file was edited since "
            "it was imported, a decorator rewrites the function, or the line runs only on import"
        )
    return _UserExpression(file=file, lines=lines, node=node, codes=codes, functions=functions)


def _compile_twice(
    file: str, lines: tuple[str, ...], spans: set[_CodeSpan]
) -> tuple[_Expression, tuple[tuple[CodeType, CodeType], ...]]:
    """The expression at one of the places, and the code around it, before and after it is wrapped."""
    name = format_path(file)
    if not lines:
        raise _make_no_line_error(f"{name} cannot be read")
    try:
        tree = ast.parse("".join(lines))
        old = compile(tree, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _make_no_line_error(f"{name} is not valid Python any more: {error}") from error
    node = _choose_node(tree, spans, name)
    new = compile(_CallInserter(node).visit(tree), file, "exec", dont_inherit=True)
    return node, tuple((a, b) for a, b in zip(_list_codes(old), _list_codes(new), strict=True) if a != b)


def _make_no_line_error(why: str) -> DoesNotApplyError:
    """The error for a place without an expression that can be wrapped."""
    return DoesNotApplyError("no line was found for the constraint", why=why)


@contextmanager
def _wrap_expression(found: _UserExpression, wrapper: Callable[[Any], Callable[[], Any]]) -> Iterator[None]:
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
        setattr(builtins, _WRAPPER, _keep)  # for a frame of another thread, or a generator, that still has the new code


def _keep(value: Any) -> Callable[[], Any]:
    """The wrapper that changes nothing."""
    return lambda: value


def _choose_node(tree: ast.Module, spans: set[_CodeSpan], name: str) -> _Expression:
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
        raise _make_no_line_error(f"{name} has no expression where the operation was traced")
    if len(chosen) > 1:
        listed = " and ".join(shorten(text, _MOST_CHARS) for text in sorted(map(ast.unparse, chosen), key=len))
        raise _make_no_line_error(f"several expressions begin at {name}:{chosen[0].lineno}: {listed}")
    (node,) = chosen
    if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Name):
        raise _make_no_line_error(f"{name}:{node.lineno} changes a value in place: {ast.unparse(node)}")
    return node


def _find_span(node: _Expression) -> _CodeSpan:
    return _CodeSpan(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0)


def _find_method_span(node: _Expression) -> _CodeSpan | None:
    """The place that Python gives to the call of a method on a line of its own: from the method's name on."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    name = _find_span(node.func)
    return _find_span(node)._replace(line=name.end_line, column=name.end_column - len(node.func.attr))


class _CallInserter(ast.NodeTransformer):
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


# ---- the constraint: its operation in the program, its effect while JAX traces, and its text


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenProgram:
    """A program with a constraint in one line of its source.

    Attributes:
        lowered: The program, to be compiled like any other.
        before: The line as it is in the file; several if the expression has several.
        after: The line as the user would write it.
        imports: The imports that the line needs and the file lacks.
        needs_mesh: Whether the line works only where a mesh is current, as under `jax.set_mesh`, and the program itself
            does not see to that.
        shapes: The shapes of the constrained values, as they are in the line, each once. A line that is used in several
            places constrains them all.
    """

    lowered: Lowered
    before: str
    after: str
    imports: tuple[str, ...]
    needs_mesh: bool
    shapes: tuple[tuple[int, ...], ...]


def lower_with_constraint(
    function: Function, original: Lowered, constraint: WrittenConstraint, *, store: Store | None = None
) -> RewrittenProgram:
    """Traces and lowers a program as if the user had written a constraint around an expression of the source.

    The program is traced as for `lower`, in the surroundings of the first trace. For that long, the functions with this
    line have other code; the file is not changed, and no module is executed. With explicit axes the line is a
    `jax.sharding.reshard`.

    The caller holds the lock of `isolate_call`, as within `with_function`.

    Args:
        function: The user's function, as for `lower`.
        original: Its original lowering.
        constraint: The constraint.
        store: As for `lower`.

    Raises:
        DoesNotApplyError: There is no one line for the constraint, or it cannot be written there.
        TraceError: JAX refuses the program with the constraint, in JAX's words with the user's line.
        HloscopeError: The program cannot be traced again.
    """
    if is_traced_already(function):
        raise _make_no_line_error("JAX traced the program before hloscope saw it, so that its source is not run again")
    found = _find_expression(original, constraint)
    wrapper = _Constrainer(constraint, original)
    with _wrap_expression(found, wrapper):
        lowered = lower_changed(function, original, None, store=store)
    if wrapper.problem is not None:  # the user's code may have caught it
        raise wrapper.problem
    if not wrapper.shapes:
        raise _make_no_line_error(f"{_format_line(found)} was not reached when the program was traced again")
    writer = _Writer(found)
    opened, closed = writer.write(constraint, is_explicit=wrapper.is_explicit)
    return RewrittenProgram(
        lowered=lowered,
        before=found.written,
        after=found.write_call(opened, closed),
        imports=tuple(writer.imports),
        needs_mesh=not wrapper.has_mesh or original.facts.mesh is not None,
        shapes=tuple(dict.fromkeys(wrapper.shapes)),
    )


def _find_expression(original: Lowered, constraint: WrittenConstraint) -> _UserExpression:
    if is_library(constraint.file):
        raise _make_no_line_error(f"{format_path(constraint.file)} is not the user's own, but a library's")
    jaxpr = find_jaxpr(original.traced)
    if jaxpr is None:
        raise _make_no_line_error("the operations of the program's trace are unknown")
    spans = set(_find_spans(open_jaxpr(jaxpr), constraint))
    if not spans and constraint.shape is not None:  # lowering gives some operations another name, or makes them
        spans = set(_find_spans(open_jaxpr(jaxpr), replace(constraint, primitive=None)))
    if not spans:
        place = f"{format_path(constraint.file)}:{constraint.line}"
        raise _make_no_line_error(f"no such operation of the program was traced at {place}")
    return _find_expression_at(constraint.file, spans)


def _find_spans(
    jaxpr: Any, constraint: WrittenConstraint, around: frozenset[_CodeSpan] = frozenset()
) -> Iterator[_CodeSpan]:
    """The expressions at the place of a constraint that make its operation.

    Args:
        jaxpr: The program.
        constraint: The constraint.
        around: The expressions there that make the operation around the program: JAX traces a jitted function once for
            several calls, and records the first of them.
    """
    for eqn in jaxpr.eqns:
        found = map(_CodeSpan._make, jax_private.find_code_positions(eqn, constraint.file))
        spans = around.union(span for span in found if _is_at_place(span, constraint))
        if _is_operation(eqn, constraint):
            yield from spans
        for inner in find_inner_jaxprs(eqn):
            yield from _find_spans(inner, constraint, spans)


def _is_at_place(span: _CodeSpan, constraint: WrittenConstraint) -> bool:
    begins = span.line == constraint.line and constraint.column in (None, span.column)
    return begins and constraint.end in (None, (span.end_line, span.end_column))


def _is_operation(eqn: Any, constraint: WrittenConstraint) -> bool:
    shapes = [getattr(result.aval, "shape", None) for result in eqn.outvars]
    return constraint.primitive in (None, eqn.primitive.name) and (
        constraint.shape is None or constraint.shape in shapes
    )


def _format_line(found: _UserExpression) -> str:
    return f"{format_path(found.file)}:{found.node.lineno}"


@dataclass(slots=True)
class _Constrainer:
    """Constrains the values of an expression in the thread that traces.

    Attributes:
        constraint: The constraint.
        original: The program.
        shapes: The shapes of the values so far.
        problem: The reason why a value could not be constrained.
        has_mesh: Whether a mesh was current.
        is_explicit: Whether the axes are part of the types of arrays.
    """

    constraint: WrittenConstraint
    original: Lowered
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    problem: DoesNotApplyError | None = None
    has_mesh: bool = False
    is_explicit: bool = False
    _thread: int = field(default_factory=threading.get_ident)

    def __call__(self, value: Any) -> Callable[[], Any]:
        """The function that constrains a value; in other threads it returns the value."""
        if threading.get_ident() != self._thread:
            return lambda: value
        try:
            spec = self._make_spec(value)
        except DoesNotApplyError as error:
            self.problem = error
            raise
        self.shapes.append(value.shape)
        if self.is_explicit:
            return partial(jax.sharding.reshard, value, spec)
        return partial(jax.lax.with_sharding_constraint, value, spec)

    def _make_spec(self, value: Any) -> Any:
        """The spec of a value, or its sharding where no mesh is current."""
        sharding, current = self.constraint.sharding, jax.sharding.get_abstract_mesh()
        place = f"{format_path(self.constraint.file)}:{self.constraint.line}"
        if not isinstance(value, jax.Array):
            raise DoesNotApplyError(f"the value at {place} is not one array but a {type(value).__name__}")
        if value.ndim != len(sharding):
            raise DoesNotApplyError(
                f"the value at {place} has {pluralize(value.ndim, 'dimension')}, but the constraint {len(sharding)}",
                why="the line is used for several values, or is inside of jax.vmap, which adds a dimension around it",
            )
        self.has_mesh = not current.empty
        mesh = current if self.has_mesh else self.original.mesh
        if mesh is None:
            raise DoesNotApplyError("there is no mesh to shard over")
        self.is_explicit = self._check_axes(mesh, place)
        spec = self._spell_axes()
        return spec if self.has_mesh else jax.sharding.NamedSharding(mesh, spec)

    def _check_axes(self, mesh: Any, place: str) -> bool:
        """Returns whether the constraint is about explicit axes: those that it names, or otherwise any of the mesh.

        Raises:
            DoesNotApplyError: The axes cannot be named in one constraint here.
        """
        kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        axes = [axis for here in self.constraint.sharding for axis in here]
        unknown = [axis for axis in axes if axis not in kinds]
        if unknown:
            raise DoesNotApplyError(f"the mesh at {place} has no axis {unknown[0]}")
        manual = [axis for axis in axes if kinds[axis] is jax.sharding.AxisType.Manual]
        if manual:
            raise DoesNotApplyError(f"{place} is inside of jax.shard_map, where the axis {manual[0]} is manual")
        explicit = {kinds[axis] is jax.sharding.AxisType.Explicit for axis in axes or mesh.axis_names}
        if axes and len(explicit) > 1:
            raise DoesNotApplyError("no one constraint can name both automatic and explicit axes")
        if True in explicit and self.constraint.leaves_open:
            raise DoesNotApplyError("jax.sharding.reshard leaves no dimension open")
        return True in explicit

    def _spell_axes(self) -> jax.sharding.PartitionSpec:
        spec = jax.sharding.PartitionSpec
        other = spec.UNCONSTRAINED if self.constraint.leaves_open else None
        return spec(*(here if len(here) > 1 else here[0] if here else other for here in self.constraint.sharding))


class _Writer:
    """Writes a constraint with the names that an expression sees.

    Attributes:
        imports: The imports that are missing.
    """

    def __init__(self, found: _UserExpression) -> None:
        local = {name for code, _ in found.codes for name in (*code.co_varnames, *code.co_cellvars)}
        self._known = {name: value for name, value in found.functions[0].__globals__.items() if name not in local}
        self.imports: dict[str, None] = {}

    def write(self, constraint: WrittenConstraint, *, is_explicit: bool) -> tuple[str, str]:
        """The text before and after the constrained expression."""
        spec = self._find_name("jax.sharding.PartitionSpec")
        other = f"{spec}.UNCONSTRAINED" if constraint.leaves_open else "None"
        entries = ", ".join(_write_axes(here) or other for here in constraint.sharding)
        called = self._find_name("jax.sharding.reshard" if is_explicit else "jax.lax.with_sharding_constraint")
        return f"{called}(", f", {spec}({entries}))"

    def _find_name(self, path: str) -> str:
        """The shortest name for a part of JAX, such as `P`, `lax.…` or `jax.lax.…`."""
        parts, value, values = path.split("."), jax, [jax]
        for part in parts[1:]:
            value = getattr(value, part)
            values.append(value)
        for length in range(len(parts), 0, -1):
            name = next((name for name, held in self._known.items() if held is values[length - 1]), None)
            if name is not None:
                return ".".join((name, *parts[length:]))
        self.imports["import jax"] = None
        return path


def _write_axes(axes: tuple[str, ...]) -> str:
    named = [f'"{axis}"' for axis in axes]
    return f"({', '.join(named)})" if len(named) > 1 else "".join(named)
