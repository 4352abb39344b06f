"""The effect of a written constraint while JAX traces, and its text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from hloscope.base.units import pluralize
from hloscope.compile.importing import format_path
from hloscope.compile.sharding_change import DoesNotApplyError, WrittenConstraint

if TYPE_CHECKING:
    from hloscope.compile.lowering import Lowered


@dataclass(slots=True)
class Constrainer:
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
        return self._apply(value, spec)

    def _apply(self, value: Any, spec: Any) -> Callable[[], Any]:
        self.shapes.append(value.shape)
        if self.is_explicit:
            return partial(jax.sharding.reshard, value, spec)
        return partial(jax.lax.with_sharding_constraint, value, spec)

    @property
    def needs_mesh(self) -> bool:
        """The need of its line for a current mesh, to which the program itself may not see."""
        return not self.has_mesh or self.original.facts.mesh is not None

    @property
    def name(self) -> str:
        """The place of the constraint."""
        argument = self.constraint.argument
        return f"{format_path(self.constraint.file)}:{self.constraint.line}" if argument is None else argument

    def _make_spec(self, value: Any) -> Any:
        """The spec of a value, or its sharding where no mesh is current."""
        sharding, current = self.constraint.sharding, jax.sharding.get_abstract_mesh()
        place = self.name
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


class Turner(Constrainer):
    """Puts another sharding in place of the one that a call requests, in the thread that traces."""

    needs_mesh = False

    def _make_spec(self, value: Any) -> Any:
        spec = value.spec if isinstance(value, jax.sharding.NamedSharding) else value
        asked = self.constraint.requested or ()
        if not isinstance(spec, jax.sharding.PartitionSpec):
            self._refuse(f"a {type(value).__name__} instead of a PartitionSpec")
        given = tuple(self._list_axes(here) for here in spec)
        if given + ((),) * (len(asked) - len(given)) != asked:
            self._refuse(f"{spec}, but its operation has other dimensions")
        turned = self._spell_axes()
        return turned if spec is value else jax.sharding.NamedSharding(value.mesh, turned)

    def _list_axes(self, here: Any) -> tuple[str, ...]:
        """The axes of a dimension; one of a single device shards nothing, and Shardy leaves it out."""
        axes = () if here is None else here if isinstance(here, tuple) else (here,)
        mesh = self.original.mesh
        return tuple(axis for axis in axes if mesh is None or mesh.shape.get(axis) != 1)

    def _apply(self, value: Any, spec: Any) -> Callable[[], Any]:
        self.shapes.append(self.constraint.shape or ())
        return lambda: spec

    def _refuse(self, what: str) -> NoReturn:
        raise DoesNotApplyError(f"{self.name} requests {what}")


class LineWriter:
    """Writes a constraint with the names that an expression sees.

    Args:
        codes: The functions around it.
        of_module: The names of its module.

    Attributes:
        imports: The imports that are missing.
    """

    def __init__(self, codes: Iterable[CodeType], of_module: Mapping[str, Any]) -> None:
        local = {name for code in codes for name in (*code.co_varnames, *code.co_cellvars)}
        self._known = {name: value for name, value in of_module.items() if name not in local}
        self._taken = {*local, *of_module}
        self.imports: dict[str, None] = {}

    def write(self, constraint: WrittenConstraint, *, is_explicit: bool) -> tuple[str, str]:
        """The text before and after the constrained expression."""
        spec = self.write_spec(constraint)
        called = self._find_name("jax.sharding.reshard" if is_explicit else "jax.lax.with_sharding_constraint")
        return f"{called}(", f", {spec})"

    def write_spec(self, constraint: WrittenConstraint) -> str:
        """The text of a constraint's sharding."""
        spec = self._find_name("jax.sharding.PartitionSpec")
        other = f"{spec}.UNCONSTRAINED" if constraint.leaves_open else "None"
        return f"{spec}({', '.join(_write_axes(here) or other for here in constraint.sharding)})"

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
        own = "jax"
        while own in self._taken:
            own += "_"
        self.imports["import jax" if own == "jax" else f"import jax as {own}"] = None
        return ".".join((own, *parts[1:]))


def _write_axes(axes: tuple[str, ...]) -> str:
    named = [f'"{axis}"' for axis in axes]
    return f"({', '.join(named)})" if len(named) > 1 else "".join(named)
