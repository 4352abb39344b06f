"""A cure: what changes of a program to turn a decision, in its source and its requests, and its words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hloscope.analysis.provenance import find_users_frame, short_source
from hloscope.base.errors import HloscopeError
from hloscope.base.store import Store
from hloscope.compile.cache import is_same_program
from hloscope.compile.compiling import prepare_compile
from hloscope.compile.devices import find_axis_sizes
from hloscope.compile.estimates import Estimate
from hloscope.compile.lowering import Lowered, lower_under_mesh
from hloscope.compile.multislice import format_axis_sizes
from hloscope.compile.retracing import RewrittenProgram
from hloscope.compile.sharding_change import ConstraintEdit, Resharding, WrittenConstraint
from hloscope.model.capture import (
    ShardyModule,
    ShardyOp,
    ShardyValue,
    ValueSharding,
    axes_in,
    find_cut_dimensions,
    multiply_axis_sizes,
    render_spec,
    whole_axis,
)
from hloscope.model.decision import Decision, Place
from hloscope.model.reason import DimensionRole
from hloscope.search.space import ProgramLeaf, ProgramLeaves, follows_axes
from hloscope.why.claims import Claims
from hloscope.why.reshards import known_sharding
from hloscope.why.shardy_graph import is_written


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
        written = len(self.places) + sum(is_open for _, is_open in self.places) + len(self.turned)
        return written + requests + (self.crossing is not None)

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
            kept = list(_drop_axis(place.sharding, axis))
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
    if isinstance(lowered.facts.mesh, Mapping) and mesh == lowered.plan.mesh:
        return f"dcn: {format_axis_sizes({axis: count for axis, count in crossing if count > 1})}"
    assert mesh is not None
    over = " and ".join(axis for axis, count in crossing if count > 1)
    within = tuple(size // slices[axis] for axis, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    shapes = f"mesh_shape={within}, dcn_mesh_shape={tuple(slices.values())}"
    splits = "" if follows_axes(replace(lowered.slice, slice_count=1), within) else ", allow_split_physical_axes=True"
    made = f"jax.experimental.mesh_utils.create_hybrid_device_mesh({shapes}{splits})"
    return f"mesh: only {over} across slices, with the devices of {made}"


_CURRENT_MESH = "a current mesh, as under jax.set_mesh"


def find_mesh_need(function: Callable[..., Any], lowered: Lowered, store: Store | None) -> str:
    """The mesh that a line needs which names axes alone: a current one, if the program is the same under it.

    Some programs have constraints that do nothing without a current mesh, such as those of flax by logical names.
    """
    if lowered.facts.mesh is not None:
        return _CURRENT_MESH
    first, under = prepare_compile(lowered).asked, None
    with suppress(HloscopeError):
        under = prepare_compile(lower_under_mesh(function, lowered, store=store)).asked
    if first is not None and under is not None and is_same_program(first, under):
        return _CURRENT_MESH
    because = "" if first is None or under is None else ", because the program is another one under a current mesh"
    return f"the program's mesh: write jax.sharding.NamedSharding(mesh, P(…)) in place of P(…){because}"


def describe_cure(ranked: RankedCure, mesh_need: Callable[[], str]) -> Iterator[str]:
    """The lines to write, their places, and what they need besides.

    Args:
        ranked: The cure.
        mesh_need: Returns the mesh that its lines need, if they need one.
    """
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
        needs.update({mesh_need(): None} if line.needs_mesh else {})
        others = [str(list(shape)) for shape in line.shapes if shape != place.shape]
        if others:
            yield f"also constrains what the line makes of shape {' and '.join(others)}"
    if ranked.unproven:
        alone = f"{' and '.join(ranked.unproven)} to compute each part of the dimension alone"
        needs[f"{alone}, which hloscope cannot see: compare the numbers"] = None
    if needs:
        yield f"needs {' and '.join(needs)}"


# ---- what the program requests of its caller, and in its constraints


def list_batch_requests(claims: Claims, axis: str) -> Iterator[tuple[ShardyOp, ValueSharding]]:
    """The program's constraints that give an axis to another dimension than the batch, with the axis there."""
    for op in claims.graph.module.ops:
        if is_written(op) and op.identity and not claims.graph.in_manual(op):
            value = claims.graph.value(op.results[0])
            asked = op.asked or known_sharding(value)
            moved = _move_to_batch(claims, value, asked, axis) if find_cut_dimensions(asked, (axis,)) else None
            if moved is not None:
                yield op, moved


def _move_to_batch(claims: Claims, value: ShardyValue, sharding: ValueSharding, axis: str) -> ValueSharding | None:
    """A value's sharding with an axis at the batch; None if it is there already, or the batch does not divide."""
    dimensions = claims.dimensions.of(value.index)
    roles = [claims.describe(dimension).role for dimension in dimensions]
    batch = roles.index(DimensionRole.BATCH) if DimensionRole.BATCH in roles else None
    if batch is None or batch in find_cut_dimensions(sharding, (axis,)):
        return None
    return claims.move(sharding, axis, batch, dimensions[batch]) if claims.is_divided_by(value, batch, axis) else None


def store_as_computed(leaves: ProgramLeaves, decision: Decision) -> Iterator[Resharding]:
    """The state that is computed with the axis and requested without it, before and after the step as computed."""
    results = [
        (leaf, leaf.computed)
        for leaf in leaves.results
        if leaf.computed is not None and leaf.asked is not None and leaf.index in leaves.replaces
        if decision.axis in axes_in(leaf.computed) and decision.axis not in axes_in(leaf.asked)
    ]
    arguments = [(leaves.arguments[leaves.replaces[leaf.index]], spec) for leaf, spec in results]
    change = leaves.change(arguments, results) if results else None
    if change is not None:
        yield change


def change_each(
    leaves: ProgramLeaves,
    claims: Claims,
    decision: Decision,
    change: Callable[[ProgramLeaf, Claims, Decision], ValueSharding | None],
) -> Iterator[Resharding]:
    """The arguments and requested results that a decision changes, if an argument is among them."""
    asked = [leaf for leaf in leaves.results if leaf.asked is not None]
    arguments, results = (
        [(leaf, spec) for leaf in side if (spec := change(leaf, claims, decision)) is not None]
        for side in (leaves.arguments, asked)
    )
    changed = leaves.change(arguments, results) if arguments else None
    if changed is not None:
        yield changed


def turn_axis(leaf: ProgramLeaf, claims: Claims, decision: Decision) -> ValueSharding | None:
    """The sharding of a leaf with a decision's axis at the loser, or nowhere; None if its winner does not have it."""
    if leaf.value is None or leaf.sharding is None or decision.winner is None:
        return None
    numbers = claims.find_dimensions(leaf.value, decision.winner)
    if decision.axis not in {whole_axis(axis) for number in numbers for axis in leaf.sharding[number]}:
        return None
    return give_axis(leaf, claims, decision) or _drop_axis(leaf.sharding, decision.axis)


def take_axis(leaf: ProgramLeaf, claims: Claims, decision: Decision) -> ValueSharding | None:
    """The sharding of a leaf without a decision's axis; None if it lacks that, or shards the winner's dimension."""
    if leaf.value is None or leaf.sharding is None or decision.winner is None:
        return None
    if decision.axis not in axes_in(leaf.sharding) or claims.find_dimensions(leaf.value, decision.winner):
        return None
    return _drop_axis(leaf.sharding, decision.axis)


def give_batch(leaf: ProgramLeaf, claims: Claims, decision: Decision) -> ValueSharding | None:
    """The sharding of a leaf with a decision's axis at the batch; None for others."""
    if leaf.value is None or leaf.sharding is None:
        return None
    return _move_to_batch(claims, leaf.value, leaf.sharding, decision.axis)


def _drop_axis(sharding: ValueSharding, dropped: str) -> ValueSharding:
    return tuple(tuple(axis for axis in axes if whole_axis(axis) != dropped) for axes in sharding)


def return_as_given(
    leaves: ProgramLeaves, claims: Claims, decision: Decision, outputs: Sequence[str]
) -> Iterator[Resharding]:
    """Some outputs with the axis where the state that they replace has it."""
    unlike = [leaf for leaf in leaves.results if leaf.array.name in outputs]
    turned = [(leaf, spec) for leaf in unlike if (spec := give_axis(leaf, claims, decision)) is not None]
    change = leaves.change([], turned) if turned else None
    if change is not None:
        yield change


def give_axis(leaf: ProgramLeaf, claims: Claims, decision: Decision) -> ValueSharding | None:
    """The sharding of a leaf with a decision's axis at the dimension that lost it; None if it lacks that dimension."""
    if leaf.value is None or leaf.sharding is None or decision.loser is None:
        return None
    numbers = claims.find_dimensions(leaf.value, decision.loser)[:1]
    if not numbers:
        return None
    without = _drop_axis(leaf.sharding, decision.axis)
    return tuple((*axes, decision.axis) if at in numbers else axes for at, axes in enumerate(without))
