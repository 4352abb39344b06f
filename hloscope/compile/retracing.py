"""A program traced again with a sharding constraint that the user would write into the source.

A constraint in the lowered module holds where it is inserted. One in the source is differentiated, batched and repeated
with the operations around it: its transpose constrains the cotangent, and rematerialization repeats it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from hloscope.base.environment import is_library
from hloscope.base.store import Store
from hloscope.base.units import pluralize
from hloscope.compile import jax_private
from hloscope.compile.importing import format_path
from hloscope.compile.jax_targets import is_traced_already
from hloscope.compile.jaxprs import find_inner_jaxprs, find_jaxpr, open_jaxpr
from hloscope.compile.lowering import Function, Lowered, lower_changed
from hloscope.compile.rewriting import (
    CodeSpan,
    UserExpression,
    find_expression,
    make_no_line_error,
    wrap_expression,
)
from hloscope.compile.sharding_change import DoesNotApplyError, WrittenConstraint


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
        raise make_no_line_error("JAX traced the program before hloscope saw it, so that its source is not run again")
    found = _find_expression(original, constraint)
    wrapper = _Wrapper(constraint, original)
    with wrap_expression(found, wrapper):
        lowered = lower_changed(function, original, None, store=store)
    if wrapper.problem is not None:  # the user's code may have caught it
        raise wrapper.problem
    if not wrapper.shapes:
        raise make_no_line_error(f"{_format_line(found)} was not reached when the program was traced again")
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


def _find_expression(original: Lowered, constraint: WrittenConstraint) -> UserExpression:
    if is_library(constraint.file):
        raise make_no_line_error(f"{format_path(constraint.file)} is not the user's own, but a library's")
    jaxpr = find_jaxpr(original.traced)
    if jaxpr is None:
        raise make_no_line_error("the operations of the program's trace are unknown")
    spans = set(_find_spans(open_jaxpr(jaxpr), constraint))
    if not spans:
        place = f"{format_path(constraint.file)}:{constraint.line}"
        raise make_no_line_error(f"no such operation of the program was traced at {place}")
    return find_expression(constraint.file, spans)


def _find_spans(
    jaxpr: Any, constraint: WrittenConstraint, around: frozenset[CodeSpan] = frozenset()
) -> Iterator[CodeSpan]:
    """The expressions at the place of a constraint that make its operation.

    Args:
        jaxpr: The program.
        constraint: The constraint.
        around: The expressions there that make the operation around the program: JAX traces a jitted function once for
            several calls, and records the first of them.
    """
    for eqn in jaxpr.eqns:
        found = map(CodeSpan._make, jax_private.find_code_positions(eqn, constraint.file))
        spans = around.union(span for span in found if _is_at_place(span, constraint))
        if _is_operation(eqn, constraint):
            yield from spans
        for inner in find_inner_jaxprs(eqn):
            yield from _find_spans(inner, constraint, spans)


def _is_at_place(span: CodeSpan, constraint: WrittenConstraint) -> bool:
    begins = span.line == constraint.line and constraint.column in (None, span.column)
    return begins and constraint.end in (None, (span.end_line, span.end_column))


def _is_operation(eqn: Any, constraint: WrittenConstraint) -> bool:
    shapes = [getattr(result.aval, "shape", None) for result in eqn.outvars]
    return constraint.primitive in (None, eqn.primitive.name) and (
        constraint.shape is None or constraint.shape in shapes
    )


def _format_line(found: UserExpression) -> str:
    return f"{format_path(found.file)}:{found.node.lineno}"


@dataclass(slots=True)
class _Wrapper:
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

    def __init__(self, found: UserExpression) -> None:
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
