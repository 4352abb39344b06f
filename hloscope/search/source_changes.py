"""A cure: what changes of a program's source to turn a decision, and its words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hloscope.analysis.provenance import find_users_frame, short_source
from hloscope.base.errors import HloscopeError
from hloscope.compile.devices import find_axis_sizes
from hloscope.compile.estimates import Estimate
from hloscope.compile.lowering import Lowered
from hloscope.compile.multislice import format_axis_sizes
from hloscope.compile.retracing import RewrittenProgram
from hloscope.compile.sharding_change import ConstraintEdit, Resharding, WrittenConstraint
from hloscope.model.capture import ShardyModule, ValueSharding, axes_in, multiply_axis_sizes, render_spec
from hloscope.model.decision import Decision, Place
from hloscope.search.space import follows_axes


@dataclass(frozen=True, slots=True)
class Cure:
    """Changes that turn a decision: constraints in the source, and other shardings of the program's requests.

    Attributes:
        places: The constrained values, and whether their other dimensions are left open.
        change: The change of requests.
        turned: Values whose own requests are turned, with what is written there.
        crossing: The number of slices that each mesh axis spans in another arrangement; None for that of the program.
    """

    places: tuple[tuple[Place, bool], ...] = ()
    change: Resharding | None = None
    turned: tuple[tuple[Place, WrittenConstraint], ...] = ()
    crossing: tuple[tuple[str, int], ...] | None = None

    @property
    def turns(self) -> bool:
        """True if it turns constraints of the program."""
        return self.change is not None and bool(self.change.constraints)

    @property
    def parts(self) -> int:
        """The number of changes; a dimension left open counts as one, because it is less plain."""
        requests = 0 if self.change is None else self.change.parts
        return len(self.places) + sum(is_open for _, is_open in self.places) + requests + len(self.turned)

    def add(self, place: Place) -> Cure:
        """The same with one more constraint."""
        return replace(self, places=(*self.places, (place, False)))

    def put(self, place: Place) -> Cure:
        """The same with one more constraint, or with another one where a constraint of this cure is what lacks it."""
        for at, (other, is_open) in enumerate(self.places):
            if place.operation == _CONSTRAINT and place.source[:1] == other.source[:1] and place.shape == other.shape:
                turned = replace(other, sharding=place.sharding, spec=place.spec)
                return replace(self, places=(*self.places[:at], (turned, is_open), *self.places[at + 1 :]))
        return self.add(place)

    def has(self, place: Place) -> bool:
        """Returns whether a place has that constraint, or another one to the same value."""
        return any(_is_one_place(place, other) for other, _ in self.places)


def step_out(cure: Cure) -> Cure | None:
    """The same with the last constraint at the call around its place, such as that of `jax.vmap`; None without one."""
    for place, is_open in cure.places[-1:]:
        frame = find_users_frame(place.source)
        around = () if frame is None else place.source[place.source.index(frame) + 1 :]
        if find_users_frame(around) is not None:
            return replace(cure, places=(*cure.places[:-1], (replace(place, source=around), is_open)))
    return None


SHARD_MAP = "shard_map"
_CONSTRAINT = "sharding_constraint"
"""JAX's name of the operation that a written constraint makes."""


def _is_one_place(place: Place, other: Place) -> bool:
    return (place.argument, place.source[:1], place.operation) == (other.argument, other.source[:1], other.operation)


@dataclass(frozen=True, slots=True)
class RankedCure:
    """A cure with the program that is traced with it, and its estimate from Shardy's shardings.

    Attributes:
        unproven: Operations under `shard_map` that may not compute the same with its specs.
    """

    cure: Cure
    program: RewrittenProgram
    module: ShardyModule
    estimate: Estimate
    time_us: float
    unproven: tuple[str, ...] = ()


def add_axis(edit: ConstraintEdit, wanted: ValueSharding | None, axis: str) -> ConstraintEdit:
    """A changed constraint with an axis where another change of it has that axis."""
    if edit.sharding is None or wanted is None or axis in axes_in(edit.sharding):
        return edit
    return replace(edit, sharding=_unite(edit.sharding, wanted, axis))


def _unite(sharding: ValueSharding, wanted: ValueSharding, axis: str) -> ValueSharding:
    """A sharding with an axis where another one has it."""
    return tuple((*here, axis) if axis in more else here for here, more in zip(sharding, wanted, strict=True))


def move_axis(place: Place, axis: str, mesh: Mapping[str, int]) -> Place | None:
    """A place with an axis at the first other dimension that it divides; None without one.

    What needs a dimension whole can work on another one in parts: the values are exchanged instead of gathered.
    """
    for number, (size, axes) in enumerate(zip(place.shape, place.sharding, strict=True)):
        if axis not in axes and size % multiply_axis_sizes((*axes, axis), mesh) == 0:
            kept = [tuple(each for each in here if each != axis) for here in place.sharding]
            kept[number] = (*axes, axis)
            return replace(place, sharding=tuple(kept), spec=render_spec(tuple(kept)) or "P()")
    return None


_Typed = Iterable[tuple[Place, ValueSharding]]
"""Places with the shardings that their values have."""


def join_typed(decisions: Sequence[Decision], find: Callable[..., _Typed]) -> dict[object, tuple[Place, ValueSharding]]:
    """The places of several decisions, each with the axes of all that have it; by their expressions."""
    found: dict[object, tuple[Place, ValueSharding]] = {}
    for each in decisions:
        for place, requested in find(each.axis, each.winner, each.loser):
            key = place.source[:1], place.operation, place.shape
            if find_users_frame(place.source) is not None:
                before = found.get(key, (place, requested))[0].sharding
                is_new = key not in found or each.axis in axes_in(before)
                joined = place.sharding if is_new else _unite(before, place.sharding, each.axis)
                found[key] = replace(place, sharding=joined, spec=render_spec(joined) or "P()"), requested
    return found


def tell_apart(places: Sequence[Place]) -> list[Place]:
    """The places, at the calls of a function where one line of it makes several of them."""
    counts = Counter(place.source[:1] for place in places)
    return [replace(each, source=each.source[1:]) if counts[each.source[:1]] > 1 else each for each in places]


def write_constraint(
    place: Place, leaves_open: bool = False, requested: ValueSharding | None = None
) -> WrittenConstraint:
    """The constraint at a place.

    Raises:
        HloscopeError: There is no line for it.
    """
    frame = find_users_frame(place.source)
    if frame is None and place.argument is None:
        raise HloscopeError("no line was found for the constraint")
    return WrittenConstraint(
        file="" if frame is None else frame.file,
        line=0 if frame is None else frame.line,
        column=None if frame is None else frame.column,
        sharding=place.sharding,
        leaves_open=leaves_open,
        primitive=place.operation,
        shape=place.shape,
        argument=place.argument,
        requested=requested,
    )


def name_cure(cure: Cure) -> str:
    """A cure in the progress: `constraints at blk.py:21 and blk.py:30`."""
    places = [short_source(place.source) or place.array for place, _ in (*cure.places, *cure.turned)]
    places += [] if cure.change is None else [change.place for change in cure.change.constraints]
    if cure.crossing is not None:
        return "another arrangement of the slices"
    if not places:
        return str(cure.change)
    return f"{'a constraint' if len(places) == 1 else 'constraints'} at {' and '.join(places)}"


def cross_slices(lowered: Lowered, crossing: Sequence[tuple[str, int]]) -> Lowered:
    """A program with its mesh arranged otherwise over the slices."""
    return replace(lowered, plan=replace(lowered.plan, dcn=dict(crossing), notes=[]), layout=None)


def list_crossings(lowered: Lowered, crossed: Collection[str]) -> Iterator[tuple[tuple[str, int], ...]]:
    """For each mesh axis that does not cross slices and could, the number of slices that it and the others span."""
    mesh, slices = lowered.mesh, lowered.slice.slice_count
    names = () if mesh is None or slices == 1 else tuple(mesh.axis_names)
    for axis in names:
        if axis not in crossed and find_axis_sizes(mesh)[axis] % slices == 0:
            yield tuple((each, slices if each == axis else 1) for each in names)


def _describe_crossing(crossing: Sequence[tuple[str, int]], lowered: Lowered) -> str:
    """`dcn: data=2` for a mesh of the target's options; for the program's own, what makes its devices."""
    mesh, slices = lowered.mesh, dict(crossing)
    if isinstance(lowered.facts.mesh, Mapping):
        return f"dcn: {format_axis_sizes({axis: count for axis, count in crossing if count > 1})}"
    assert mesh is not None
    over = " and ".join(axis for axis, count in crossing if count > 1)
    within = tuple(size // slices[axis] for axis, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    shapes = f"mesh_shape={within}, dcn_mesh_shape={tuple(slices.values())}"
    splits = "" if follows_axes(replace(lowered.slice, slice_count=1), within) else ", allow_split_physical_axes=True"
    return f"mesh: only {over} across slices: mesh_utils.create_hybrid_device_mesh({shapes}{splits})"


def describe_cure(ranked: RankedCure) -> Iterator[str]:
    """The lines to write, their places, and what they need besides."""
    cure, program = ranked.cure, ranked.program
    if cure.change is not None:
        yield from cure.change.words
    if cure.crossing is not None:
        yield _describe_crossing(cure.crossing, program.lowered)
    needs: dict[str, None] = {}
    written: set[str] = set()
    for (place, _), line in zip((*cure.places, *cure.turned), program.lines, strict=True):
        if line.after not in written:
            written.add(line.after)
            at = f"at {short_source(place.source)}"
            if place.operation == SHARD_MAP and line.edit is not None:  # whose call may be on another line
                at = f"at {Path(line.edit.file).name}:{line.edit.line}"
            yield f"write {line.after}"
            yield at if line.entered is None else f"in {line.entered}, as its first line"
        needs.update(dict.fromkeys(f"{each} in that file" for each in line.imports))
        needs.update(dict.fromkeys(["a current mesh, as under jax.set_mesh"] * line.needs_mesh))
        others = [str(list(shape)) for shape in line.shapes if shape != place.shape]
        if others:
            yield f"also constrains what the line makes of shape {' and '.join(others)}"
    if ranked.unproven:
        alone = f"{' and '.join(ranked.unproven)} to compute each part of the dimension alone"
        needs[f"{alone}, which hloscope cannot see: compare the numbers"] = None
    if needs:
        yield f"needs {' and '.join(needs)}"
