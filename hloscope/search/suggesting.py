"""The search for a better sharding: named schemes and others are ranked with Shardy, and compiled.

The compiled points and their order depend only on the program and the seed: more time or more workers only get
further in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from random import Random
from threading import Timer
from time import monotonic

from hloscope.base.errors import CompileError, HloscopeError, TimeLimitError
from hloscope.base.units import pluralize
from hloscope.compile.client import count_useful_workers
from hloscope.compile.compiling import PendingCompile, prepare_compile
from hloscope.compile.estimates import Estimate
from hloscope.compile.lowering import lower_changed
from hloscope.compile.retracing import lower_with_constraints
from hloscope.compile.sharding_change import Resharding
from hloscope.model.capture import Capture, DeviceLayout
from hloscope.model.trial import Figures
from hloscope.model.vocabulary import CompileStage
from hloscope.search.cures import WrittenCure, find_decision_to_turn, find_written_cures
from hloscope.search.pareto_front import CompiledPoint, SearchResult, find_front
from hloscope.search.ranking import estimate_changes, find_rates, is_explicit
from hloscope.search.recipes import Recipe, Recipes
from hloscope.search.space import Point, Space, find_device_orders
from hloscope.search.trial_cache import FigureCache, SearchSubject
from hloscope.search.trials import find_compiled_figures, price_as_written, price_figures

_ROUND = 8
"""The number of points that are compiled before the next ones are chosen."""
_SIDE_BY_SIDE = 32
_MOST_RANKED = 9000
_LEAST_RANKED = 120
_RANKED_OPERATIONS = 400_000
"""The number of ranked points times the program's operations, which determines the duration."""
_MOST_TRACED = 60
_SHARE_RANKING = 0.4
_SHARE_OF_RANKING = 0.1
_SHARE_OF_RECIPES = 0.6
"""The shares of all compiles that begin the search: recipes, and at most the best of the ranking."""
_CUT = "ranking was cut off at two fifths of the time budget; a larger budget may search in a different order"
_RANKING_OVER = "ranking used up its two fifths of the time limit"
_SHARE_SEARCHING = 0.6
"""The share of the time for points that are only scheduled: the rest is for the machine code of the best ones."""
_SEARCHING_OVER = "the search used up its three fifths of the time limit; the rest is for the machine code of the best"
_MOST_TURNED, _MOST_WRITTEN = 3, 2
"""The number of points of which a lost decision is turned, and of programs to compile with constraints there."""
_LITTLE = 0.05
"""The share of the step below which waiting for others makes another order of the devices useless."""


MOST_VARIANTS = 4
"""Of the best points, compiled in the end: two other orders of devices, and two with free results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The budget of a search.

    Attributes:
        candidates: Number of programs to compile, not counting the program as written and variants of the best.
        seconds: Time limit in seconds; None for no limit.
        seed: Seed of the random sampling, which is used if there are too many points to rank.
        orders: Whether to try the best with other orders of its devices, which no literal of a target holds.
    """

    candidates: int = 40
    seconds: float | None = None
    seed: int = 0
    orders: bool = True


class Search:
    """One search.

    Args:
        subjects: The program on each searched mesh, its own first, with the search space of that mesh.
        effort: The budget.
        stage: Called with the name of each step.
        begun: The start of the budget's time, on the clock of `time.monotonic`; None for now.
    """

    def __init__(
        self,
        subjects: Sequence[tuple[SearchSubject, Space]],
        effort: Effort,
        stage: Callable[[str], None] = lambda _: None,
        *,
        begun: float | None = None,
    ) -> None:
        self._subjects, self._effort, self._stage = subjects, effort, stage
        self._random = Random(effort.seed)
        chip = subjects[0][0].lowered.slice.chip
        assert chip is not None  # only TPU slices are searched
        self._chip, self._rates = chip, find_rates(subjects[0][0].lowered.slice)
        self._space_of = {tuple(space.mesh.values()): (subject, space) for subject, space in subjects}
        self._estimates: dict[Point, Estimate | None] = {}
        self._recipes: dict[Point, Recipe] = {}
        self._written: dict[Point, WrittenCure] = {}
        self._turned: set[Point] = set()
        self._begun = monotonic() if begun is None else begun
        seconds = float("inf") if effort.seconds is None else effort.seconds
        subject, space = subjects[0]
        own = CompiledPoint(
            space=space,
            point=space.own,
            change=None,
            figures=price_as_written(subject),
            captured=subject.captured,
            lost=next((decision for decision in subject.analysis.decisions if decision.is_lost), None),
        )
        self._compile_stage = own.figures.stage
        is_scheduled = self._compile_stage is CompileStage.SCHEDULED
        self._until = self._begun + (_SHARE_SEARCHING if is_scheduled else 1.0) * seconds
        self._ranked_until, self._ends = self._begun + _SHARE_RANKING * seconds, self._begun + seconds
        self.found = SearchResult(
            own=own,
            slice_name=subject.lowered.slice.name,
            compiled=[own],
            space_size=sum(space.size for _, space in subjects),
        )
        self._done = {own.point}

    def run(self) -> SearchResult:
        """Searches until nothing is left or the budget is spent; `found` always holds the present results."""
        try:
            self._rank_first()
            self.found.recipes = {point: recipe.name for point, recipe in self._recipes.items()}
            self.found.whole_us = self._count_whole_us()
            self._compile(self._shortlist(), explains=True)
            self._write_constraints()
            while self._left > 0 and self.found.stopped is None:
                chosen = self._promising(min(_ROUND, self._left))
                if not chosen:
                    break
                self._compile(chosen)
                self._rank_around_best()
            self._explain_best()
            self._write_constraints()
            was_short = _CUT in self.found.notes and self._left > 0  # nothing more was ranked that could be compiled
            if self.found.stopped is None and (was_short or monotonic() >= self._until):
                self.found.stopped = _RANKING_OVER if was_short else self._limit
            if self.found.stopped is None:
                if self._effort.orders:
                    self._reorder()
                self._free()
            if self._compile_stage is CompileStage.SCHEDULED and len(self.found.compiled) > 1:
                self._confirm()
        except KeyboardInterrupt:
            self.found.stopped = "interrupted"
        self.found.ranked = sum(estimate is not None for estimate in self._estimates.values())
        self.found.seconds = monotonic() - self._begun
        return self.found

    def _count_whole_us(self) -> float | None:
        """The time of the program's matmuls on one device at its peak; None if they could not be counted."""
        own = self._estimates.get(self.found.own.point)
        if own is None:
            return None
        chip = self._chip
        peak = max(chip.bf16_flops_per_s, chip.int8_ops_per_s or 0.0, chip.f8_flops_per_s or 0.0)
        return 1e6 * own.whole_flops / (peak / chip.devices_per_chip)

    @property
    def _left(self) -> int:
        return self._effort.candidates - len(self.found.compiled) - self.found.failures.total() + 1

    @property
    def _limit(self) -> str:
        """The limit that `_until` is, in words."""
        return "the time limit was reached" if self._compile_stage is CompileStage.COMPILED else _SEARCHING_OVER

    # ---- ranking

    def _rank_first(self) -> None:
        """Ranks the program itself, the recipes, and all other points, or as many as possible."""
        share = self._most // len(self._subjects)
        for subject, space in self._subjects:
            known = Recipes(space)
            recipes = list(known.all())
            self._recipes.update({recipe.point: recipe for recipe in recipes if recipe.point not in self._recipes})
            self._rank(subject, space, [space.own, *(recipe.point for recipe in recipes[:share])])
            self._rank_constrained(subject, known, [recipe.point for recipe in recipes[:share]])
        for subject, space in self._subjects:
            if space.size <= share:
                self._rank(subject, space, space.everything())
                continue
            while len(self._on(space)) < share:
                before = len(self._on(space))
                best = sorted(self._on(space), key=self._promise)[: _ROUND // 2]
                self._rank(subject, space, self._around(space, best, share - before))
                if len(self._on(space)) == before:
                    break

    def _rank_around_best(self) -> None:
        """Ranks more neighbors of the best compiled point, if its space was too large to rank all of it."""
        best = self.found.best
        subject, space = self._space_of[best.point.mesh]
        if space.size > len(self._on(space)) and not is_explicit(subject.lowered):
            point = replace(best.point, lines=(), written=(), order=None)
            self._rank(subject, space, self._around(space, [point], _SIDE_BY_SIDE))

    @property
    def _most(self) -> int:
        """The number of ranked points; if shardings are part of types, each must be traced."""
        operations = len(self._subjects[0][1].graph.module.ops)
        if is_explicit(self._subjects[0][0].lowered):
            return _MOST_TRACED
        return min(_MOST_RANKED, max(_LEAST_RANKED, _RANKED_OPERATIONS // max(operations, 1)))

    def _on(self, space: Space) -> list[Point]:
        mesh = tuple(space.mesh.values())
        return [point for point, estimate in self._estimates.items() if estimate is not None and point.mesh == mesh]

    def _around(self, space: Space, points: Iterable[Point], most: int) -> list[Point]:
        """The unranked neighbors of points, sampled if there are more than wanted."""
        near = dict.fromkeys(other for point in points for other in space.neighbors(point))
        found = [point for point in near if point not in self._estimates]
        return found if len(found) <= most else self._random.sample(found, most)

    def _rank(self, subject: SearchSubject, space: Space, points: Iterable[Point]) -> None:
        fresh = [point for point in dict.fromkeys(points) if point not in self._estimates]
        changes = [Resharding() if point == space.own else space.change(point) for point in fresh]
        asked = [(point, change) for point, change in zip(fresh, changes, strict=True) if change is not None]
        self._estimates.update(dict.fromkeys(fresh))
        self._stage(f"ranking {pluralize(len(asked), 'sharding')} with Shardy")
        found = estimate_changes(subject, [change for _, change in asked], self._ranked_until)
        if monotonic() >= self._ranked_until and _CUT not in self.found.notes:
            self.found.notes.append(_CUT)
        self._estimates.update(zip((point for point, _ in asked), found, strict=True))

    def _rank_constrained(self, subject: SearchSubject, recipes: Recipes, points: Sequence[Point]) -> None:
        """Ranks recipes as they are with constraints on their activations, if that is better."""
        if is_explicit(subject.lowered):
            return
        changes = {point: change for point in points if (change := recipes.make_constrained(point)) is not None}
        found = estimate_changes(subject, list(changes.values()), self._ranked_until)
        for point, estimate in zip(changes, found, strict=True):
            if estimate is not None and estimate.step_us(self._rates) < self._promise(point):
                self._estimates[point] = estimate

    def _promise(self, point: Point) -> float:
        estimate = self._estimates[point]
        return float("inf") if estimate is None else estimate.step_us(self._rates)

    # ---- what is compiled

    def _shortlist(self) -> list[Point]:
        """The best of each kind of recipe on any mesh, then on each mesh, and last the best of the ranking.

        The ranking adds few: its first points differ little.
        """
        ranked = [point for point, estimate in self._estimates.items() if estimate is not None]
        of_recipes = sorted((point for point in ranked if point in self._recipes), key=self._promise)
        families: dict[object, Point] = {}
        for of_mesh in (False, True):
            for point in of_recipes:
                name = _strip_axes(self._recipes[point].name)
                families.setdefault((name, point.mesh if of_mesh else None), point)
        fill = sorted(ranked, key=self._promise)[: max(int(self._left * _SHARE_OF_RANKING), 1)]
        chosen = [point for point in dict.fromkeys([*families.values(), *fill]) if point not in self._done]
        return list(self._drop_alike(chosen, set()))[: max(int(self._left * _SHARE_OF_RECIPES), 1)]

    def _find_likeness(self, point: Point) -> object:
        """The common traits of a program on several meshes: its estimate, and the number of shards of each array."""
        mesh = self._space_of[point.mesh][1].mesh
        parts = (tuple(prod(mesh[axis] for axis in axes) for axes in spec or ()) for spec in point.specs)
        return self._promise(point), point.constraints, tuple(parts)

    def _drop_alike(self, points: Iterable[Point], seen: set[object]) -> Iterator[Point]:
        """The first of the points of each likeness that was not seen."""
        for point in points:
            likeness = self._find_likeness(point)
            if likeness not in seen:
                seen.add(likeness)
                yield point

    def _promising(self, count: int) -> list[Point]:
        """The ranked points of the least estimates that are not compiled; those that likely fit in memory first."""
        ranked = [point for point, estimate in self._estimates.items() if estimate is not None]
        seen = {self._find_likeness(point) for point in ranked if point in self._done}
        pool = list(self._drop_alike((point for point in ranked if point not in self._done), seen))
        is_too_large = dict(zip(pool, self._is_too_large(pool), strict=True))
        return sorted(pool, key=lambda point: (is_too_large[point], self._promise(point)))[:count]

    def _is_too_large(self, points: Sequence[Point]) -> list[bool]:
        """For each point, whether memory is too small for its arguments and the overhead of the compiled points."""
        beside = [
            found.figures.hbm_bytes - found.space.argument_bytes(found.point)
            for found in self.found.compiled
            if found.figures.hbm_bytes is not None
        ]
        room = self._chip.hbm_bytes // self._chip.devices_per_chip - min(beside, default=0)
        return [self._space_of[point.mesh][1].argument_bytes(point) > room for point in points]

    def _compile(self, points: Sequence[Point], *, explains: bool = False) -> None:
        """Compiles points in parallel, and records them in order."""
        waiting: deque[tuple[Point, Resharding, FigureCache | None, Figures | PendingCompile | str]] = deque()
        late = self._start_timer(waiting)
        # a worker whose program is scheduled makes machine code until it is ended, which keeps it from the next one
        is_scheduled = self._compile_stage is CompileStage.SCHEDULED
        most = count_useful_workers() if is_scheduled else _SIDE_BY_SIDE
        try:
            for point in points:
                change = self._find_change(point)
                self._done.add(point)
                if change is None:
                    continue
                if monotonic() >= self._until:
                    break
                waiting.append((point, change, *self._start(point, change, explains=explains)))
                if len(waiting) == most:
                    self._note(*waiting[0], explains=explains)
                    waiting.popleft()
            while waiting and self.found.stopped is None:
                self._note(*waiting[0], explains=explains)
                waiting.popleft()
        finally:
            late.cancel()
            _drop_compiles(waiting)
        if monotonic() >= self._until:
            self.found.stopped = self._limit

    def _start_timer(self, compiles: Iterable[tuple[object, ...]]) -> Timer:
        """The timer that stops compiles at the deadline: the limit of each counts from its own start."""
        timer = Timer(max(self._until - monotonic(), 0.0), lambda: _drop_compiles(compiles))
        timer.daemon = True
        if self._effort.seconds is not None:
            timer.start()
        return timer

    def _find_change(self, point: Point) -> Resharding | None:
        """The change to a point; None if JAX would refuse it or nothing changes."""
        written, space = self._written.get(replace(point, order=None)), self._space_of[point.mesh][1]
        if written is not None:
            return written.change or Resharding()
        return Resharding() if point.order and space.is_own(point) else space.change(point)

    def _start(
        self, point: Point, change: Resharding, *, explains: bool = False
    ) -> tuple[FigureCache | None, Figures | PendingCompile | str]:
        """Starts the compile of a point unless its figures are enough and known; or the reason why it cannot start."""
        subject, _ = self._space_of[point.mesh]
        written = self._written.get(replace(point, order=None))
        try:
            if written is None:
                program = lower_changed(subject.function, subject.lowered, change, store=subject.store)
            else:
                program = lower_with_constraints(
                    subject.function, subject.lowered, written.constraints, change, store=subject.store
                ).lowered
            if point.order is not None:
                layout = DeviceLayout(device_count=len(point.order), simulated_ids=point.order)
                program = replace(program, layout=layout)
            left = self._until - monotonic()
            if left != float("inf"):
                program = replace(program, facts=replace(program.facts, timeout_s=max(left, 1.0)))
            pending = prepare_compile(program, store=subject.store, wanted=self._compile_stage)
            kept = FigureCache.of(pending, subject.store)
            known = None if kept is None or explains else kept.get()
            return kept, pending.begun() if known is None else known
        except HloscopeError as error:
            return None, error.what

    def _note(
        self,
        point: Point,
        change: Resharding,
        kept: FigureCache | None,
        pending: Figures | PendingCompile | str,
        *,
        explains: bool = False,
    ) -> None:
        """Records the cost of a point, or that it could not be compiled."""
        best = self.found.best.figures
        shown = "" if best.step_us is None else f", best so far {best.step_words}"
        self._stage(f"compiled {len(self.found.compiled) - 1} of {self._effort.candidates}{shown}")
        try:
            figures, captured = _collect(kept, pending, explains=explains)
        except TimeLimitError:
            self.found.stopped = self._limit
            return
        if isinstance(figures, str):
            if monotonic() < self._until:
                self.found.failures[figures] += 1
            return
        subject, space = self._space_of[point.mesh]
        found = CompiledPoint(space=space, point=point, change=change, figures=figures)
        self.found.compiled.append(found if captured is None else _find_lost(found, subject, captured))

    # ---- constraints in the source, where the decisions of a compiled program are lost

    def _explain_best(self) -> None:
        """Finds what is lost in the best point, if that is not known."""
        best = self.found.best
        if best is self.found.own or best.lost is not None or best.point.lines or self._left <= 0 or self.found.stopped:
            return
        try:
            _, captured = _collect(*self._start(best.point, best.change or Resharding(), explains=True), explains=True)
        except TimeLimitError:
            return
        if captured is not None:
            explained = _find_lost(best, self._space_of[best.point.mesh][0], captured)
            self.found.compiled[self.found.compiled.index(best)] = explained

    def _write_constraints(self) -> None:
        """Compiles points with constraints in the source, where their costliest lost decision can be turned.

        Those come first that would be fastest without what is lost.
        """
        found = self.found.compiled
        lost = [each for each in found if each.lost and each.captured and each.point not in self._turned]
        for each in sorted(lost, key=lambda each: each.least_us)[:_MOST_TURNED]:
            if self._left <= 0 or monotonic() >= self._until:
                break
            subject, most = self._space_of[each.point.mesh][0], min(_MOST_WRITTEN, self._left)
            assert each.captured is not None
            assert each.lost is not None
            self._turned.add(each.point)
            seen = replace(subject, captured=each.captured)
            for cure in find_written_cures(seen, each.change, each.lost, each.figures, until=self._until, most=most):
                point = replace(each.point, lines=cure.lines, written=cure.written)
                self._written[point] = cure
                self._done.add(point)
                self.found.compiled.append(
                    CompiledPoint(space=each.space, point=point, change=cure.change, figures=cure.figures)
                )
        tried = {id(each) for each in lost}  # what they compiled to is large
        self.found.compiled[1:] = [
            replace(each, captured=None) if id(each) in tried else each for each in self.found.compiled[1:]
        ]

    def _reorder(self) -> None:
        """Tries the best point with other orders of its devices, if it waits for their transfers."""
        best = self.found.best
        subject, _ = self._space_of[best.point.mesh]
        figures, facts = best.figures, subject.lowered.facts
        is_asked = isinstance(facts.mesh, Mapping) and not facts.dcn and subject.lowered.layout is None
        if not is_asked or (figures.exposed_us or 0.0) < _LITTLE * (figures.step_us or 0.0):
            return
        orders = find_device_orders(subject.lowered.slice, best.point.mesh)
        self._compile([replace(best.point, order=order) for order in orders])

    def _confirm(self) -> None:
        """Compiles the best points to machine code, beside the program as written; those that then fail are left out.

        Raises:
            HloscopeError: The compiler refuses the program as written.
        """
        self._stage("compiling the best shardings to machine code")
        self._compile_stage, self._until = CompileStage.COMPILED, self._ends
        possible = [
            each for each in self.found.compiled if each is not self.found.own and not self.found.is_impossible(each)
        ]
        chosen = [self.found.own, *find_front(self.found.own, possible)]
        started: list[tuple[FigureCache | None, Figures | PendingCompile | str]] = []
        confirmed: list[CompiledPoint] = []
        own = find_compiled_figures(self._subjects[0][0])
        late = self._start_timer(started)
        try:
            for each in chosen:
                known = own if each is self.found.own else None
                started.append((None, known) if known else self._start(each.point, each.change or Resharding()))
            for each, (kept, pending) in zip(chosen, started, strict=True):
                figures, _ = _collect(kept, pending)
                if not isinstance(figures, str):
                    confirmed.append(replace(each, figures=figures))
                elif monotonic() >= self._until:
                    raise _LateError
                elif each is self.found.own:
                    raise CompileError(figures)
                else:
                    self.found.failures[figures] += 1
        except (TimeLimitError, _LateError):
            self.found.stopped = self._limit
            if len(confirmed) < 2:  # the program as written alone says nothing
                return
        finally:
            late.cancel()
            _drop_compiles(started)
        self.found.confirmed = confirmed

    def _free(self) -> None:
        """Measures the gain of freeing the results: the best two points, with every requested result left open."""
        for found in sorted(self.found.compiled, key=lambda found: found.order)[:2]:
            change = found.space.freed(found.point)
            if change is None or monotonic() >= self._until:
                return
            change = replace(change, constraints=() if found.change is None else found.change.constraints)
            try:
                figures, _ = _collect(*self._start(found.point, change))
            except TimeLimitError:
                return
            if isinstance(figures, str):
                continue
            freed = CompiledPoint(space=found.space, point=found.point, change=change, figures=figures)
            if self.found.freed is None or freed.order < self.found.freed.order:
                self.found.freed = freed


class _LateError(Exception):
    """A compile was stopped at the deadline."""


def _drop_compiles(waiting: Iterable[tuple[object, ...]]) -> None:
    """Stops the compiles whose results are no longer needed."""
    for *_, pending in tuple(waiting):
        if isinstance(pending, PendingCompile):
            pending.drop()


def _find_lost(found: CompiledPoint, subject: SearchSubject, captured: Capture) -> CompiledPoint:
    """A compiled point with its costliest lost decision."""
    lost = find_decision_to_turn(subject, captured)
    return found if lost is None else replace(found, captured=captured, lost=lost)


def _collect(
    kept: FigureCache | None, pending: Figures | PendingCompile | str, *, explains: bool = False
) -> tuple[Figures | str, Capture | None]:
    """The figures of a program, which are cached, or the reason why it cannot be compiled; and what explains it.

    Raises:
        TimeLimitError: The compile took too long.
    """
    if not isinstance(pending, PendingCompile):
        return pending, None
    try:
        captured = pending.capture(reasons=explains)
        figures = price_figures(captured, pending.program.name, pending.wanted)
    except TimeLimitError:
        raise
    except HloscopeError as error:
        return error.what, None
    if kept is not None:
        kept.put(figures)
    return figures, captured if explains else None


def _strip_axes(name: str) -> str:
    """The words of a recipe's name without its axes."""
    return ", ".join(sorted(part.partition(" over ")[0] for part in name.split(", ")))
