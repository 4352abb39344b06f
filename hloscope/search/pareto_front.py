"""The compiled points of a search, and the front over time and memory as suggestions in the user's notation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log, prod

from hloscope.base.errors import Either, say
from hloscope.base.units import format_bytes, pluralize
from hloscope.compile.sharding_change import Resharding
from hloscope.compile.source_edits import list_line_edits
from hloscope.model.capture import Capture, ValueSharding, format_spec
from hloscope.model.decision import Decision
from hloscope.model.trial import Figures, SuggestedSpec, Suggestion, Suggestions, is_tie
from hloscope.model.vocabulary import CompileStage
from hloscope.search.space import DROPPED, KEPT, ArrayGroup, Point, Space, follows_axes, make_name_pattern
from hloscope.search.trials import DOES_NOT_FIT, compute_gain, is_worthwhile

_MOST_ON_FRONT = 6
_LESS_MEMORY = 0.02
"""The least memory gain, as a share, of a point on the front over a faster one."""
_CODE_SPECS = 12
_ESTIMATED = "all times are estimates for scheduled programs: the search ended before the best were compiled to the end"
_OF_RECIPES = "the steps of recipes are estimates for scheduled programs, of which the best were compiled to the end"
_NO_BOUND = "predicted times were not compared with the chips' peak: the program's matmuls could not be counted"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPoint:
    """A compiled point of the search space.

    Attributes:
        space: The mesh that it is on.
        point: The point.
        change: The change to the program; None for the program as written.
        figures: Its cost.
        captured: What it compiled to, if constraints could be better.
        lost: Its costliest lost decision.
    """

    space: Space
    point: Point
    change: Resharding | None
    figures: Figures
    captured: Capture | None = None
    lost: Decision | None = None

    @property
    def fits(self) -> bool:
        """True if it fits in memory."""
        return DOES_NOT_FIT not in self.figures.unknown

    @property
    def least_us(self) -> float:
        """The step without what is waited for and repeated because of its lost decision."""
        assert self.lost is not None
        return (self.figures.step_us or 0.0) - (self.lost.exposed_us or 0.0) - (self.lost.repeated_us or 0.0)

    @property
    def order(self) -> tuple[bool, float]:
        """The sort key, best first: points that fit, by time; then points that do not, by memory."""
        figures = self.figures
        if figures.step_us is None:
            return True, float("inf")
        return (False, figures.step_us) if self.fits else (True, float(figures.hbm_bytes or 0))


@dataclass(slots=True)
class SearchResult:
    """The results of a search so far.

    Attributes:
        own: The program as written.
        slice_name: The slice that the programs are compiled for.
        recipes: The names of recipes, by their points.
        whole_us: Time of the program's matmuls on one device at its peak; None if they could not be counted.
        compiled: The compiled points in order, including the program as written.
        ranked: Number of points ranked with Shardy.
        space_size: Number of points.
        failures: Compiles that failed, by the compiler's reason.
        stopped: Why it ended early; None if it did not.
        freed: The best point with all result shardings left open, which shows what freeing results would gain.
        confirmed: If the points were only scheduled, the program as written and the best points, compiled to the end.
        notes: What was not searched, one sentence each.
        seconds: Duration of the search.
    """

    own: CompiledPoint
    slice_name: str
    recipes: dict[Point, str] = field(default_factory=dict)
    whole_us: float | None = None
    compiled: list[CompiledPoint] = field(default_factory=list)
    ranked: int = 0
    space_size: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None
    freed: CompiledPoint | None = None
    confirmed: list[CompiledPoint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def best(self) -> CompiledPoint:
        """The best point so far."""
        return min(self.compiled, key=lambda found: found.order)

    def recipe_of(self, point: Point) -> str | None:
        """The name of a point's recipe, or None."""
        known, specs = self.recipes.get(point), (point.mesh, point.specs)
        alike = (name for other, name in self.recipes.items() if (other.mesh, other.specs) == specs)
        return next((name for name in (known, *alike) if name is not None), None)

    def is_impossible(self, found: CompiledPoint) -> bool:
        """Returns whether a price is below the time of the program's matmuls at the chips' peak, so it is wrong."""
        step_us = found.figures.step_us
        if self.whole_us is None or step_us is None or found is self.own:
            return False
        return step_us < self.whole_us / prod(found.space.mesh.values())


def find_front(own: CompiledPoint, found: Sequence[CompiledPoint]) -> list[CompiledPoint]:
    """The points that no other beats in both time and memory, fastest first; or the closest to fitting if none fits."""
    fitting = [each for each in found if each.fits and each.figures.step_us is not None]
    if not fitting:
        return sorted(found, key=lambda each: each.order)[:1] if not own.fits else []
    front: list[CompiledPoint] = []
    for each in sorted(fitting, key=_rank_simple_first):
        least = min((_find_hbm(other) for other in front), default=float("inf"))
        is_faster = (compute_gain(own.figures, each.figures) or 0.0) > 0
        own_hbm = _find_hbm(own) if own.fits and not is_faster else float("inf")
        if _find_hbm(each) < (1 - _LESS_MEMORY) * min(least, own_hbm):
            front.append(each)
    return front[:_MOST_ON_FRONT]


def _rank_simple_first(found: CompiledPoint) -> tuple[int, tuple[int, int]]:
    """The sort key, fastest first; of those that differ by less than 1%, the simplest, and then the first."""
    step_us = found.figures.step_us or 0.0
    return round(100 * log(step_us)) if step_us > 0 else 0, _find_simplicity(found)


def _find_simplicity(found: CompiledPoint) -> tuple[int, int]:
    change, has_lines = found.change, bool(found.point.lines)
    return (0, has_lines) if change is None else (change.asks, change.parts + has_lines)


def _find_hbm(found: CompiledPoint) -> float:
    return float("inf") if found.figures.hbm_bytes is None else float(found.figures.hbm_bytes)


def make_suggestions(found: SearchResult, target: str) -> Suggestions:
    """The suggestions of a search, complete or not."""
    own, *possible = found.confirmed or [found.own, *(each for each in found.compiled if each is not found.own)]
    front = find_front(own, [each for each in possible if not found.is_impossible(each)])
    alike = [each for each in found.compiled if not found.is_impossible(each)]
    return Suggestions(
        target=target,
        slice=found.slice_name,
        goal="time" if own.fits else "memory",
        own=_make_suggestion(found, own, own),
        front=tuple(_make_suggestion(found, each, own) for each in front),
        freed_gain=_compute_freed_gain(found, alike if found.confirmed else [own, *front]),
        freed=tuple(leaf.array.name for leaf in own.space.held_results),
        space=found.space_size,
        ranked=found.ranked,
        compiled=len(found.compiled),
        failed=found.failures.total(),
        failures=dict(found.failures.most_common()),
        refused=sum(map(found.is_impossible, found.compiled)),
        recipes=_find_recipe_times(found, alike),
        notes=(
            *([_ESTIMATED] if own.figures.stage is CompileStage.SCHEDULED and found.compiled[1:] else []),
            *([_OF_RECIPES] if found.confirmed else []),
            *found.notes,
            *([] if found.whole_us is not None else [_NO_BOUND]),
        ),
        stopped=found.stopped,
        seconds=found.seconds,
    )


def _compute_freed_gain(found: SearchResult, compared: Sequence[CompiledPoint]) -> float | None:
    freed = found.freed
    if freed is None or not freed.fits:
        return None
    best = min(compared, key=lambda each: each.order)
    gained = compute_gain(best.figures, freed.figures)
    return gained if gained is None or is_worthwhile(best.figures, freed.figures) else 0.0


def _find_recipe_times(searched: SearchResult, found: Sequence[CompiledPoint]) -> dict[str, float]:
    best: dict[str, float] = {}
    for each in sorted((each for each in found if each.fits), key=lambda each: each.order):
        name = searched.recipe_of(each.point)
        if name is not None and each.figures.step_us is not None:
            best.setdefault(name, each.figures.step_us)
    return best


def _make_suggestion(searched: SearchResult, found: CompiledPoint, own: CompiledPoint) -> Suggestion:
    figures, before = found.figures, own.figures
    is_own = found is own
    if is_own:
        is_worth_it, gained = False, None
    else:
        gained = compute_gain(before, figures)
        is_worth_it = is_worthwhile(before, figures) if own.fits else found.fits
    specs = (*_make_specs(found, own), *_make_result_specs(found, own))
    edits, by_hand = list_line_edits(found.point.written)
    return Suggestion(
        recipe=searched.recipe_of(found.point),
        mesh=dict(found.space.mesh),
        device_order=found.point.order,
        is_own=is_own,
        fits=found.fits,
        figures=figures,
        gain=gained,
        is_tie=not is_own and is_tie(figures, before),
        is_worth_it=is_worth_it,
        specs=specs,
        constraints=tuple(_describe_constraints(found)),
        because=() if is_own else tuple(_describe_gain(before, figures)),
        code=() if is_own else tuple(_render_code(found, own, specs)),
        edits=tuple(edits),
        by_hand=(
            *by_hand,
            *_list_constraint_changes(found),
            *(["another order of devices"] if found.point.order else []),
        ),
    )


def _make_specs(found: CompiledPoint, own: CompiledPoint) -> Iterator[SuggestedSpec]:
    """The sharding of each part, with that of the program as written."""
    written = {(part.name, part.is_result): spec for part, spec in zip(own.space.parts, own.point.specs, strict=True)}
    for part, spec in zip(found.space.parts, found.point.specs, strict=True):
        before = written.get((part.name, part.is_result))
        yield SuggestedSpec(
            name=part.name,
            count=len(part.leaves),
            is_result=part.is_result,
            before=None if before is None else format_spec(before),
            after=None if spec is None else format_spec(spec),
            notation=None if spec is None else format_notation(part, spec),
        )


def _make_result_specs(found: CompiledPoint, own: CompiledPoint) -> Iterator[SuggestedSpec]:
    """The results besides the parts that get another sharding: with an argument, or by the compiler's choice."""
    searched = {leaf.index for part in found.space.parts if part.is_result for leaf in part.leaves}
    asked = {leaf.index for leaf in found.change.results if leaf.after is not None} if found.change else set()
    alike: Counter[tuple[str, str, str, bool]] = Counter()
    leaves = zip(own.space.leaves.results, own.figures.outputs, found.figures.outputs, strict=False)
    for leaf, before, after in leaves:
        if leaf.index not in searched and before is not None and after is not None and before != after:
            alike[make_name_pattern(leaf.array.name), before, after, leaf.index not in asked] += 1
    for (name, before, after, is_open), count in alike.items():
        yield SuggestedSpec(name=name, count=count, is_result=True, before=before, after=after, is_open=is_open)


def format_notation(part: ArrayGroup, spec: ValueSharding) -> str:
    """The notation of a sharded array: `bf16[8@X,2048@(Y,Z)]`."""
    sizes = []
    for size, axes in zip(part.shape, spec, strict=True):
        cut = axes[0] if len(axes) == 1 else f"({','.join(axes)})"
        sizes.append(f"{size}@{cut}" if axes else str(size))
    return f"{part.leaves[0].array.dtype}[{','.join(sizes)}]"


def _describe_constraints(found: CompiledPoint) -> Iterator[str]:
    yield from found.point.lines
    changes = found.change.constraints if found.change is not None else ()
    if found.point.constraints == DROPPED and len(changes) > 1:
        yield f"all {len(changes)} sharding constraints: dropped"
        return
    yield from _list_constraint_changes(found)


def _list_constraint_changes(found: CompiledPoint) -> list[str]:
    if found.point.constraints == KEPT or found.change is None:
        return []
    return list(dict.fromkeys(change.words for change in found.change.constraints))


def _describe_gain(before: Figures, after: Figures) -> Iterator[str]:
    """The differences of the work of a device: waiting, computing, sending, holding."""
    for noun, old, new in (
        ("exposed", before.exposed_us, after.exposed_us),
        ("compute", before.compute_us, after.compute_us),
    ):
        if old is not None and new is not None and abs(old - new) > 0.01 * max(before.step_us or 0.0, 1e-9):
            yield f"{noun} {before.part_words(old)} -> {after.part_words(new)}"
    for axis in dict.fromkeys((*before.wire_bytes_by_axis, *after.wire_bytes_by_axis)):
        sent = before.wire_bytes_by_axis.get(axis, 0), after.wire_bytes_by_axis.get(axis, 0)
        if sent[0] != sent[1]:
            yield f"one device sends {before.sent_words(axis)} -> {after.sent_words(axis)} over {axis or 'no axis'}"
    if before.hbm_bytes is not None and after.hbm_bytes is not None and before.hbm_bytes != after.hbm_bytes:
        yield f"HBM {format_bytes(before.hbm_bytes)} -> {format_bytes(after.hbm_bytes)} per device"


def _render_mesh_code(found: CompiledPoint, own: CompiledPoint) -> Iterator[str]:
    """The code that makes the mesh, if its sizes or the order of its devices differ."""
    mesh, order = found.space.mesh, found.point.order
    if dict(mesh) == dict(own.space.mesh) and order is None:
        return
    sizes, names = repr(tuple(mesh.values())), repr(tuple(mesh))
    if order is not None:
        every = "jax.devices()" if order == tuple(range(len(order))) else f"[jax.devices()[i] for i in {list(order)}]"
        yield f"mesh = jax.sharding.Mesh(np.array({every}).reshape{sizes}, {names})"
    elif follows_axes(found.space.lowered.slice, tuple(mesh.values())):
        yield f"mesh = jax.make_mesh({sizes}, {names})"
    else:
        yield f"devices = mesh_utils.create_device_mesh({sizes}, allow_split_physical_axes=True)"
        yield f"mesh = jax.sharding.Mesh(devices, {names})"


def _render_code(found: CompiledPoint, own: CompiledPoint, specs: Sequence[SuggestedSpec]) -> Iterator[str]:
    """Lines of Python for a suggestion: the mesh if it differs, what to change by hand as comments, and the specs."""
    yield from _render_mesh_code(found, own)
    constraints = _list_constraint_changes(found)
    yield from (f"# {line}" for line in (*found.point.lines, *constraints[:_CODE_SPECS]))
    if len(constraints) > _CODE_SPECS:
        yield f"# and {pluralize(len(constraints) - _CODE_SPECS, 'more constraint')}"
    yield from (f"# {spec.name} becomes {spec.after}, the compiler's choice" for spec in specs if spec.is_open)
    changed = [spec for spec in specs if spec.is_changed and not spec.is_open]
    width = max((len(spec.name) for spec in changed[:_CODE_SPECS]), default=0)
    for spec in changed[:_CODE_SPECS]:
        where = "  # result" if spec.is_result else f"  # {spec.notation}" if spec.notation else ""
        yield f"{spec.name:<{width}} = {spec.after or 'None'}{where}"
    if len(changed) > _CODE_SPECS:
        yield say(
            f"# and {len(changed) - _CODE_SPECS} more: ", Either("--format json", "to_dict()"), " has all of them"
        )
