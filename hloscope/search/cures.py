"""Cures of decisions: the program with a constraint in its source that gives the axis to the dimension that lost it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import inf
from time import monotonic

from hloscope.analysis.provenance import find_users_frame, short_source
from hloscope.base.errors import HloscopeError, TimeLimitError
from hloscope.compile import client
from hloscope.compile.cache import is_same_program
from hloscope.compile.compiling import prepare_compile
from hloscope.compile.estimates import estimate_cost
from hloscope.compile.lowering import Lowered, lower_changed
from hloscope.compile.retracing import (
    RewrittenLine,
    RewrittenProgram,
    list_used_variables,
    list_written_requests,
    lower_with_constraints,
)
from hloscope.compile.sharding_change import ConstraintChange, ConstraintEdit, Resharding, WrittenConstraint
from hloscope.cost import price_capture
from hloscope.hlo import parse_module
from hloscope.model.capture import (
    Capture,
    ShardyModule,
    ShardyOp,
    ValueSharding,
    format_spec,
    render_spec,
    whole_axis,
)
from hloscope.model.decision import Decision, DecisionKind, Place
from hloscope.model.trial import Figures, Trial, Trials
from hloscope.model.vocabulary import CompileStage
from hloscope.search.boundaries import find_unproven, list_boundaries
from hloscope.search.ranking import find_candidates, find_rates, is_explicit, rank_changes
from hloscope.search.source_changes import (
    Cure,
    RankedCure,
    add_axis,
    change_each,
    cross_slices,
    describe_cure,
    find_mesh_need,
    give_axis,
    give_batch,
    join_typed,
    list_batch_requests,
    list_crossings,
    move_axis,
    name_cure,
    return_as_given,
    step_out,
    store_as_computed,
    take_axis,
    tell_apart,
    turn_axis,
    write_constraint,
)
from hloscope.search.space import ProgramLeaves
from hloscope.search.trial_cache import SearchSubject
from hloscope.search.trials import (
    compute_gain,
    confirm_best,
    fits_no_more,
    is_worthwhile,
    may_help,
    price_as_written,
    price_changed,
    price_resharding,
)
from hloscope.why.decisions import IdleAxes, find_crossing_axes, is_given_by_constraint, list_worth_trying
from hloscope.why.shardings import UserProgram
from hloscope.why.shardy_graph import ShardyGraph, is_written, to_frames
from hloscope.why.stage import explain_analysis, read_captured

_MOST_OPENED = 2
_ENOUGH = 0.02
"""The share of the step by which more changes must be faster than fewer."""
INTERRUPTED = "interrupted by Ctrl-C"
_REST_INTERRUPTED = "the remaining changes, because of Ctrl-C"
_MOST_CROSSINGS = 2
_MOST_CONSTRAINTS, _MOST_COMPILED, _MOST_ROUNDS, _MOST_LINES = 4, 3, 2, 4
_RANKING_S, _RANKING_SHARE = 10.0, 0.3
"""The time for ranking: at least this long, and otherwise this share of the program's own compile."""
_PROGRESS, _ALIKE = 0.99, 1.1
"""The share of an estimate to which another constraint must bring it; the ratio up to which two are no different."""


def try_decision(
    subject: SearchSubject,
    decision: Decision,
    seconds: float,
    *,
    confirms: bool = True,
    keeps_interrupted: bool = False,
) -> Trials:
    """Tries to turn a decision where it fell: the function is traced again with constraints in its source.

    Constraints are ranked by Shardy's propagation of the program that is traced with them, and the most promising are
    compiled.

    Args:
        subject: The program.
        decision: One of its lost decisions.
        seconds: Time limit for all compiles.
        confirms: As for `try_cures`.
        keeps_interrupted: Whether Ctrl-C ends the trials, and what was compiled is returned; otherwise it is raised.
    """
    begun = monotonic()
    before = price_as_written(subject)
    if before.step_us is None:
        return Trials(before=before, not_tried="there are no predicted times for this slice to compare")
    if not _is_traced_alike(subject):
        return Trials(before=before, not_tried="the program is another one when it is traced again")
    search, is_interrupted = _CureSearch(subject, before, begun + seconds), False
    try:
        search.run(decision)
        done = _sort_best_first(before, search.done)
        if confirms and before.stage is CompileStage.SCHEDULED and any(trial.helps for _, trial in done):
            subject.stage("compiling the program with the constraint to machine code")
            confirmed, others = confirm_best(subject, done, begun + seconds, lambda ranked: ranked.program.lowered)
            done = [*_sort_best_first(before, confirmed), *others]
    except KeyboardInterrupt:
        if not keeps_interrupted:
            raise
        done, is_interrupted, search.stopped = _sort_best_first(before, search.done), True, True
    problems = [trial.problem for _, trial in done if trial.problem is not None] + search.problems
    until = monotonic() if is_interrupted else begun + seconds
    compiled = tuple(_add_moving_cost(subject, ranked.cure, trial, until) for ranked, trial in done if trial.after)
    helps = any(trial.helps for trial in compiled)
    why_not = search.refused or (None if compiled or search.stopped or not problems else problems[0])
    if is_interrupted:
        why_not = _REST_INTERRUPTED if compiled else INTERRUPTED
    return Trials(
        before=before,
        trials=compiled,
        candidates=len(done) + len(problems),
        not_tried=why_not,
        verdict="" if helps or search.stopped or not compiled else search.describe_verdict(decision, compiled[0]),
        stopped=search.stopped,
        seconds=monotonic() - begun,
    )


@dataclass(frozen=True, slots=True)
class WrittenCure:
    """A compiled program with constraints in its source.

    Attributes:
        change: Its change besides, of the program as written.
        constraints: The constraints.
        lines: What to write, in words.
        written: The lines in the source.
        figures: Its cost.
    """

    change: Resharding | None
    constraints: tuple[WrittenConstraint, ...]
    lines: tuple[str, ...]
    written: tuple[RewrittenLine, ...]
    figures: Figures


def find_written_cures(
    subject: SearchSubject, change: Resharding | None, decision: Decision, before: Figures, *, until: float, most: int
) -> list[WrittenCure]:
    """Compiles a changed program with constraints in its source that turn one of its decisions.

    Args:
        subject: The program as written, with what the changed program compiled to.
        change: The change; None for the program as written.
        decision: A lost decision of the changed program.
        before: The cost of the changed program.
        until: The deadline, on the clock of `time.monotonic`.
        most: Number of programs to compile.
    """
    search = _CureSearch(subject, before, until, most)
    search.add_lines(decision, change)
    found = []
    for ranked, trial in search.done:
        cure = ranked.cure
        beside = replace(cure, change=None if cure.change == change else cure.change)
        lines = tuple(describe_cure(replace(ranked, cure=beside), lambda: search.mesh_need))
        if trial.after is not None and not ranked.unproven:
            constraints = [write_constraint(place, is_open) for place, is_open in cure.places]
            constraints += [each for _, each in cure.turned]
            written = tuple(dict.fromkeys(ranked.program.lines))
            found.append(WrittenCure(cure.change, tuple(constraints), lines, written, trial.after))
    return found


def _sort_best_first(before: Figures, done: Sequence[tuple[RankedCure, Trial]]) -> list[tuple[RankedCure, Trial]]:
    """The trials that help first, fastest first; of those that differ little, the one that asks and changes least."""
    most = max((compute_gain_of(before, trial) or 0.0 for _, trial in done), default=0.0)

    def key(each: tuple[RankedCure, Trial]) -> tuple[bool, bool, bool, int, float]:
        ranked, trial = each
        gain = compute_gain_of(before, trial) or 0.0
        asks, parts = (bool(trial.conditions), ranked.cure.parts) if gain >= most - _ENOUGH else (False, 0)
        return not trial.helps, gain < most - _ENOUGH, asks, parts, -gain

    return sorted(done, key=key)


def _add_moving_cost(subject: SearchSubject, cure: Cure, trial: Trial, until: float) -> Trial:
    """A trial that helps with the one-time cost of creating its arguments with other shardings."""
    left = until - monotonic()
    if not trial.helps or not trial.moves or cure.change is None or left <= 0:
        return trial
    return replace(trial, moving_us=price_resharding(subject, cure.change.moved, left))


def _is_traced_alike(subject: SearchSubject) -> bool:
    """Returns whether a program is the same when it is traced again, as it is for a trial; one may count its calls."""
    control = lower_changed(subject.function, subject.lowered, None, store=subject.store)
    first, again = (prepare_compile(program).asked for program in (subject.lowered, control))
    return first is not None and again is not None and is_same_program(first, again)


def _describe_verdict(before: Figures, best: Trial) -> str:
    """The reason that a decision stays as it is, with the step before and after."""
    was, after, gain = best.before or before, best.after, compute_gain_of(before, best)
    assert after is not None
    estimated = " estimated" if after.stage is CompileStage.SCHEDULED else ""
    steps = f"{was.step_words} -> {after.step_words}{estimated}"
    if fits_no_more(was, after):
        return f"with the best change that was tried it does not fit in memory ({steps})"
    if gain is None:
        return "the step with the changes that were tried is unknown"
    if gain <= 0:
        return f"the step takes no less with the best change that was tried, {steps}"
    if may_help(was, after):
        return f"some costs of the best change are unknown, {steps}"
    return f"what the best change gains is less than the model can resolve, {steps}"


def find_decision_to_turn(subject: SearchSubject, captured: Capture) -> Decision | None:
    """The costliest lost decision of a compiled program, or what it makes whole at a cost."""
    module = parse_module(captured.compiled.text, name=subject.lowered.name)
    found = explain_analysis(price_capture(captured, module, target=subject.lowered.name), module, captured)
    return next(iter(list_worth_trying(found)), None)


def compute_gain_of(before: Figures | None, trial: Trial) -> float | None:
    """The saved fraction of the step time with a change; None if it is unknown."""
    was = trial.before or before
    return None if trial.after is None or was is None else compute_gain(was, trial.after)


_Done = tuple[RankedCure, Capture, Trial]
"""A compiled cure."""


class _CureSearch:
    """The cures of one decision.

    Args:
        subject: The program.
        before: Its cost.
        until: The deadline, on the clock of `time.monotonic`.
        most: Number of programs to compile.

    Attributes:
        done: The compiled programs and their trials.
        problems: What was in the way of others.
        refused: What was in the way of other specs of a `shard_map`.
        stopped: Whether time ran out before all were tried.
    """

    def __init__(
        self, subject: SearchSubject, before: Figures, until: float, most: int = _MOST_COMPILED * (_MOST_ROUNDS + 1)
    ) -> None:
        self._subject, self._before, self._until, self._most = subject, before, until, most
        self._rates = find_rates(subject.lowered.slice)
        self._is_explicit = is_explicit(subject.lowered)
        self.done: list[tuple[RankedCure, Trial]] = []
        self.problems: list[str] = []
        self.refused: str | None = None
        self.stopped = False

    def describe_verdict(self, decision: Decision, best: Trial) -> str:
        """The verdict without a cure: to leave it is advice only if the axis was given to the one that lost it."""
        was_turned = any(ranked.cure.places or ranked.cure.turned or ranked.cure.turns for ranked, _ in self.done)
        is_known = decision.winner is not None and was_turned and not self.problems
        is_open = best.after is not None and may_help(best.before or self._before, best.after)
        label = "undecided" if is_open else "leave it" if is_known else "no cure was found"
        return f"{label}: {_describe_verdict(self._before, best)}"

    def run(self, decision: Decision) -> None:
        """Tries cures of a decision until one helps, and then of what is lost in the program with that cure.

        Lines of the function come first, and then what its caller would have to agree to: the other way round where a
        requested output is the reason.
        """
        best: _Done | None = None
        arranged = self._try_best(self._rank_crossings(decision))
        of_caller = bool(self._find_unlike_outputs(decision)) or self._crosses_slices(decision)
        for number, is_of_caller in enumerate((of_caller, not of_caller)):
            before = (best, arranged) if number else ()
            if not any(done is not None and done[2].helps for done in before):
                ranked = self._rank_requests(decision) if is_of_caller else self._rank(decision, Cure())
                best = self._try_best(ranked) or best
        if arranged is not None and (best is None or _is_better(self._before, arranged[2], best[2])):
            return
        self._go_on(self._try_joined(decision, best))

    def add_lines(self, decision: Decision, change: Resharding | None) -> None:
        """Adds constraints to a changed program, of which a decision is, and of which the facts of `subject` are."""
        self._go_on(self._try_best(self._rank(decision, Cure(change=change))))

    def _try_joined(self, decision: Decision, best: _Done | None) -> _Done | None:
        """The better of a cure and one that turns the same decision of other axes too."""
        cures = [Cure(places=((place, False),)) for place in self._join_axes(decision)]
        ranked = sorted(self._make_all(cures, self._limit_ranking()), key=lambda each: each.time_us)
        tried = self._try_best(ranked) if ranked else None
        return tried if tried is not None and (best is None or _is_better(self._before, tried[2], best[2])) else best

    def _go_on(self, best: _Done | None) -> None:
        """Tries cures of what is lost in the best program, as long as they make it much better."""
        for _ in range(_MOST_ROUNDS):
            left = None if best is None else find_decision_to_turn(self._subject, best[1])
            if best is None or left is None or self._until <= monotonic():
                return
            more = self._try_best(self._rank(left, best[0].cure))
            if more is None or not _is_much_better(self._before, more[2], best[2]):
                return
            best = more

    def _find_unlike_outputs(self, decision: Decision) -> tuple[str, ...]:
        """The requested outputs that are sharded otherwise than the state that they replace."""
        if self._program is None or self._is_explicit:
            return ()
        idle = IdleAxes(self._program.claims)
        return idle.find_unlike_outputs(decision.axis, decision.winner, decision.loser)

    def _crosses_slices(self, decision: Decision) -> bool:
        """True if the axis of a decision that is not lost is expensive because it crosses slices."""
        return not decision.is_lost and decision.axis in find_crossing_axes(self._subject.analysis.collectives)

    # Ranking.

    def _rank(self, decision: Decision, kept: Cure) -> list[RankedCure]:
        """The cures of a decision, the most promising first; each place is constrained besides what is kept."""
        until = self._limit_ranking()
        found: list[RankedCure] = []
        level = [kept.put(place) for place in decision.places if not kept.has(place)]
        if kept == Cure():
            level += map(kept.add, self._list_repeated(decision))
            level += [Cure(change=change) for change in self._turn_constraints(decision)]
            level = [*self._turn_types(decision), *self._turn_boundaries(decision), *self._turn_uses(decision), *level]
        elif kept.turns:
            level += self._turn_more(decision, kept)
        fastest = inf
        for _ in range(_MOST_CONSTRAINTS):
            made = list(self._make_all(level, until))
            found += made
            best = min(made, key=lambda each: each.time_us, default=None)
            if best is None or until <= monotonic() or best.time_us > _PROGRESS * fastest:
                break
            fastest = best.time_us
            more = self._find_places(best, decision) if best.cure.change == kept.change else []
            level = [best.cure.add(place) for place in more if not best.cure.has(place)]
            *before, (last, is_open) = best.cure.places or (None, (None, True))
            if last is not None and not is_open:
                opened = replace(best.cure, places=(*before, (last, True)))
                found += self._make_all([opened], until)
        return sorted(found, key=lambda each: (each.time_us, len(each.cure.places)))

    def _list_repeated(self, decision: Decision) -> tuple[Place, ...]:
        """The operands of matmuls that devices repeat because of a decision without a winner."""
        if self._program is None or decision.winner is not None or decision.loser is None:
            return ()
        return self._program.claims.find_repeated_places(decision.axis, decision.loser)

    def _join_axes(self, decision: Decision) -> Iterator[Place]:
        """The places of a decision with other axes too, if these lost the same dimension to the same one."""
        lost = [each for each in self._subject.analysis.decisions if each.is_lost]
        alike = {each.axis for each in lost if (each.winner, each.loser) == (decision.winner, decision.loser)}
        if alike <= {decision.axis} or decision.axis not in alike or decision.winner is None:
            return
        mesh = self._subject.captured.mesh
        order = [axis for axis in (() if mesh is None else mesh.axis_names) if axis in alike]
        for place in decision.places:
            others = [tuple(axis for axis in axes if whole_axis(axis) not in alike) for axes in place.sharding]
            joined = tuple(
                (*order, *rest) if decision.axis in axes else rest
                for axes, rest in zip(place.sharding, others, strict=True)
            )
            yield replace(place, sharding=joined, spec=render_spec(joined) or "P()")

    def _make_all(self, cures: Iterable[Cure], until: float) -> Iterator[RankedCure]:
        for cure in cures:
            tried: Cure | None = cure
            while tried is not None:
                if until <= monotonic():
                    return
                try:
                    yield self._make(tried, until)
                except TimeLimitError:
                    return
                except HloscopeError as error:
                    self.problems.append(": ".join(filter(None, (error.what, error.why))))
                    if any(written.keyword is not None for _, written in tried.turned):
                        place = short_source(tried.turned[0][0].source)
                        self.refused = f"other specs of the shard_map at {place}: {self.problems[-1]}"
                    tried = step_out(tried)
                else:
                    break

    def _make(self, cure: Cure, until: float) -> RankedCure:
        """The program with a cure, as Shardy propagates it.

        Raises:
            TimeLimitError: It takes too long.
            HloscopeError: There is no line for a constraint, or JAX or Shardy refuses the program.
        """
        subject = self._subject
        places = cure.places[-1:] or cure.turned[-1:]
        where = next((short_source(place.source) or place.array for place, _ in places), "its requests")
        subject.stage(f"ranking a constraint at {where}")
        constraints = [write_constraint(place, leaves_open) for place, leaves_open in cure.places]
        constraints += [written for _, written in cure.turned]
        if cure.crossing is not None:  # which the trace does not depend on
            program = RewrittenProgram(lowered=cross_slices(subject.lowered, cure.crossing), lines=())
        else:
            program = lower_with_constraints(
                subject.function, subject.lowered, constraints, cure.change, store=subject.store
            )
        if any(place.shape not in line.shapes for (place, _), line in zip(cure.places, program.lines, strict=False)):
            raise HloscopeError(f"the line at {where} makes another array")
        module = self._propagate(program.lowered, until)
        estimate, specs = estimate_cost(module), [written for _, written in cure.turned if written.keyword is not None]
        unproven: tuple[str, ...] = ()
        if specs:
            before, after = ShardyGraph(self._propagate(subject.lowered, until)), ShardyGraph(module)
            unproven = tuple(find_unproven(before, after, (subject.lowered, program.lowered), specs))
        return RankedCure(cure, program, module, estimate, estimate.step_us(self._rates), unproven)

    @cached_property
    def mesh_need(self) -> str:
        """The mesh that a line needs which names axes alone."""
        return find_mesh_need(self._subject.function, self._subject.lowered, self._subject.store)

    @staticmethod
    def _propagate(program: Lowered, until: float) -> ShardyModule:
        """A program as Shardy propagates it.

        Raises:
            TimeLimitError: It takes too long.
            HloscopeError: Shardy refuses it.
        """
        module, _ = client.ask_propagation(program.bytecode, "jax", [], timeout_s=max(until - monotonic(), 1.0))
        if module is None:
            raise HloscopeError("Shardy refuses the program with the constraint")
        return module

    def _find_places(self, ranked: RankedCure, decision: Decision) -> tuple[Place, ...]:
        """The places where the same decision still falls in a program."""
        claims = read_captured(ranked.module, self._subject.captured).claims
        claims.describe_all()
        return claims.find_places(decision.axis, decision.winner, decision.loser)

    @cached_property
    def _program(self) -> UserProgram | None:
        """The program as written; None if Shardy was not asked."""
        captured = self._subject.captured
        if captured.compiled.shardy is None:
            return None
        program = read_captured(captured.compiled.shardy, captured)
        program.claims.describe_all()
        return program

    def _rank_requests(self, decision: Decision) -> list[RankedCure]:
        """The changes of what the program requests of its caller, the most promising first.

        Before all others an output gets the sharding of its state again, which leaves the arguments as they are.
        """
        until, plain, captured = self._limit_ranking(), list[Resharding](), self._subject.captured
        if self._program is None or self._is_explicit:
            return []
        found: list[Resharding] = []
        leaves, claims = ProgramLeaves(captured.arguments, captured.outputs, self._program.graph), self._program.claims
        if self._crosses_slices(decision) and decision.kind is DecisionKind.CONTENDED:
            plain += change_each(leaves, claims, decision, take_axis)  # only sums of gradients cross slices then
        elif decision.kind is DecisionKind.IDLE:
            found += change_each(leaves, claims, decision, give_axis)
        elif decision.winner is None or any(asker.by == "output" for asker in decision.held_by):
            plain += return_as_given(leaves, claims, decision, self._find_unlike_outputs(decision))
            plain += store_as_computed(leaves, decision) if decision.winner is None else ()
            found += change_each(leaves, claims, decision, turn_axis)  # a weight and its momenta alike
            found += [each for each in self._rank_candidates(decision, until) if each not in plain]
        made = self._make_all((Cure(change=change) for change in (*plain, *found)), until)
        return sorted(made, key=lambda each: (each.cure.change not in plain, each.time_us))

    def _rank_crossings(self, decision: Decision) -> list[RankedCure]:
        """The program on meshes in which other axes cross slices, of which Shardy knows nothing."""
        if not self._crosses_slices(decision):
            return []
        crossings = list_crossings(self._subject.lowered, find_crossing_axes(self._subject.analysis.collectives))
        cures = (Cure(crossing=each) for each in islice(crossings, _MOST_CROSSINGS))
        return list(self._make_all(cures, self._limit_ranking()))

    def _limit_ranking(self) -> float:
        took = self._subject.captured.compiled.seconds or 0.0
        return min(self._until, monotonic() + max(_RANKING_S, _RANKING_SHARE * took))

    def _rank_candidates(self, decision: Decision, until: float) -> Iterator[Resharding]:
        """The most promising changes against the costliest collective of a decision."""
        of_decision = [each for each in self._subject.analysis.collectives if each.name in decision.collectives]
        worst = max(of_decision, key=lambda each: (each.exposed_us or 0.0) * each.executions, default=None)
        if worst is None or worst.reason is None:
            return
        found = find_candidates(self._subject.captured, worst.reason, self._subject.lowered.facts.dims)
        ranked = rank_changes(self._subject, found, max(until - monotonic(), 0.0)) if found else ()
        stable = (each.change for each in ranked if each.time_us is not None and self._keeps_state(each.change))
        yield from islice(stable, _MOST_LINES)

    def _keeps_state(self, change: Resharding) -> bool:
        """Returns whether the arguments and results of each type are sharded alike with a change, if as many.

        Otherwise a state that comes back sharded otherwise than it went in would be moved between the steps, at a cost
        that no figure has.
        """
        captured = self._subject.captured
        after = {("argument", leaf.index): leaf.after for leaf in change.arguments}
        after |= {("result", leaf.index): leaf.after for leaf in change.results}
        if not after:
            return True
        found: dict[object, dict[str, list[object]]] = {}
        for side, arrays in (("argument", captured.arguments), ("result", captured.outputs)):
            for index, array in enumerate(arrays or ()):
                sharding = after.get((side, index), array.sharding)
                said = sharding if isinstance(sharding, str) or sharding is None else format_spec(sharding)
                of_type = found.setdefault((array.global_shape, array.dtype), {"argument": [], "result": []})
                of_type[side].append(said)
        pairs = ((sides["argument"], sides["result"]) for sides in found.values())
        return all(len(one) != len(other) or sorted(map(str, one)) == sorted(map(str, other)) for one, other in pairs)

    def _turn_constraints(self, decision: Decision) -> Iterator[Resharding]:
        """The program's own constraints with the axis at the other dimension: all of them, then each line.

        Where constraints hold the axis for the winner, it is also tried at the batch, in all constraints at once.
        """
        if self._program is None or self._is_explicit:
            return
        claims = self._program.claims
        changes = self._list_changes(claims.find_requests(decision.axis, decision.winner, decision.loser))
        if len(changes) > 1:
            yield Resharding(constraints=tuple(changes))
        yield from (Resharding(constraints=(change,)) for change in changes[:_MOST_LINES])
        if is_given_by_constraint(decision):
            to_batch = self._list_changes(list_batch_requests(claims, decision.axis))
            if to_batch and to_batch != changes:
                yield Resharding(constraints=tuple(to_batch))
                captured, graph = self._subject.captured, self._program.graph
                given = change_each(
                    ProgramLeaves(captured.arguments, captured.outputs, graph), claims, decision, give_batch
                )
                yield from (replace(each, constraints=tuple(to_batch)) for each in given)

    def _list_changes(self, requests: Iterable[tuple[ShardyOp, ValueSharding]]) -> list[ConstraintChange]:
        """Other shardings for the program's constraints, by line, the one as written, and the one instead."""
        lines: dict[tuple[str, ValueSharding, ValueSharding], list[ConstraintEdit]] = {}
        for op, sharding in requests:
            place = short_source(to_frames(op.source))
            if place is not None and op.asked is not None:
                edit = ConstraintEdit(operation=op.identity[-1], sharding=sharding)
                lines.setdefault((place.partition(" in ")[0], op.asked, sharding), []).append(edit)
        return [
            ConstraintChange(edits=tuple(dict.fromkeys(edits)), place=self._name_uses(place, {*edits}), before=asked)
            for (place, asked, _), edits in lines.items()
        ]

    def _turn_more(self, decision: Decision, kept: Cure) -> Iterator[Cure]:
        """A cure whose constraints have the axis of another decision too."""
        assert kept.change is not None
        for change in self._turn_constraints(decision):
            wanted = {edit.operation: edit.sharding for each in change.constraints for edit in each.edits}
            constraints = tuple(
                replace(
                    each, edits=tuple(add_axis(edit, wanted.get(edit.operation), decision.axis) for edit in each.edits)
                )
                for each in kept.change.constraints
            )
            if constraints != kept.change.constraints:
                yield replace(kept, change=replace(kept.change, constraints=constraints))

    def _name_uses(self, place: str, edits: set[ConstraintEdit]) -> str:
        """The place of a constraint; with the calls of its function for which it is changed, if not for all of them."""
        assert self._program is not None
        changed, kept = dict[str, None](), set[str]()
        for op in self._program.claims.graph.module.ops:
            frames = to_frames(op.source) if is_written(op) and op.identity else ()
            frame = find_users_frame(frames)
            if frame is None or (short_source(frames) or "").partition(" in ")[0] != place:
                continue
            around = short_source(frames[frames.index(frame) + 1 :]) or "elsewhere"
            if any(edit.operation == op.identity[-1] for edit in edits):
                changed[around] = None
            else:
                kept.add(around)
        calls = [f"{'one place of ' if call in kept else ''}{call}" for call in changed]
        return f"{place}, as called at {' and '.join(calls)}" if kept else place

    def _turn_uses(self, decision: Decision) -> Iterator[Cure]:
        """The variables in sums over the winner, constrained there alone: the line that makes one may make others.

        Only for a loser that nothing claims the axis for: otherwise that one has it where the variable is made.
        """
        if self._program is None or self._is_explicit or decision.lost_by:
            return
        seen = set[WrittenConstraint]()
        for place, used in self._program.claims.find_used_places(decision.axis, decision.winner, decision.loser):
            if find_users_frame(place.source) is None or len(seen) >= _MOST_LINES:
                continue
            call = write_constraint(place)
            for name in list_used_variables(self._subject.lowered, call):
                written = replace(call, sharding=used.sharding, operand=name)
                if written not in seen:
                    seen.add(written)
                    yield Cure(turned=((replace(used, source=place.source), written),))

    def _turn_boundaries(self, decision: Decision) -> Iterator[Cure]:
        """The specs of each `shard_map` that makes the dimension whole, with the axis there."""
        for turned in list_boundaries(self._program.claims, decision) if self._program is not None else ():
            written = set(list_written_requests(self._subject.lowered, [each for _, each in turned]))
            yield Cure(turned=tuple(pair for pair in turned if pair[1] in written) or turned[:1])

    def _turn_types(self, decision: Decision) -> Iterator[Cure]:
        """With explicit axes, the program's requests with the axis at the other dimension: all of them, then each.

        All go with the first values of loops, which are of the types that their bodies return; and with other axes too
        that the same collectives make whole.
        """
        if self._program is None or not self._is_explicit:
            return
        claims = self._program.claims
        whole = [each for each in self._subject.analysis.decisions if each.winner is None and each != decision]
        beside = [each for each in whole if decision.winner is None and {*each.collectives} & {*decision.collectives}]
        for decisions in ([decision, *beside], [decision]) if beside else ([decision],):
            found = join_typed(decisions, claims.find_typed_places)
            asked = {write_constraint(place, requested=own): key for key, (place, own) in found.items()}
            written = {asked[each]: each for each in list_written_requests(self._subject.lowered, list(asked))}
            begun = join_typed(decisions, claims.find_carried_places)
            first = tell_apart([place for key, (place, _) in begun.items() if key not in written])
            turned = tuple((found[key][0], each) for key, each in written.items())
            if turned and len(turned) + len(first) > 1:
                yield Cure(places=tuple((place, False) for place in first), turned=turned)
        yield from (Cure(turned=(each,)) for each in turned[:_MOST_LINES])
        if decision.winner is None:
            mesh = self._program.claims.graph.module.mesh
            spare = ((move_axis(place, decision.axis, mesh), call) for place, call in turned[:_MOST_LINES])
            yield from (Cure(turned=((each, replace(call, sharding=each.sharding)),)) for each, call in spare if each)

    # Compiles.

    def _try_best(self, ranked: Sequence[RankedCure]) -> _Done | None:
        """Compiles the most promising cures until one helps; returns the best with its program and trial."""
        best: _Done | None = None
        seen: set[object] = set()
        for each in ranked:
            # of one place, left open or not, one is compiled if their estimates are the same: likely one program
            places = tuple((place.source, place.spec) for place, _ in (*each.cure.places, *each.cure.turned))
            key = each.estimate, each.cure.change, each.cure.crossing, places
            if key in seen or len(seen) >= _MOST_COMPILED or len(self.done) >= self._most:
                continue
            is_alike = best is None or each.time_us <= _ALIKE * ranked[0].time_us
            if best is not None and best[2].helps and not is_alike:
                break
            if self._until <= monotonic():
                self.stopped = True
                break
            seen.add(key)
            try:
                captured, trial = self._compile(each)
            except TimeLimitError:
                self.stopped = True
                break
            except HloscopeError as error:
                self.problems.append(": ".join(filter(None, (error.what, error.why))))
                continue
            self.done.append((each, trial))
            if best is None or _is_better(self._before, trial, best[2]):
                best = each, captured, trial
        if not ranked and self._until <= monotonic():
            self.stopped = True
        return best

    def _compile(self, ranked: RankedCure) -> tuple[Capture, Trial]:
        """The compiled program with a cure, and its cost.

        Raises:
            TimeLimitError: It takes too long.
            HloscopeError: The compiler refuses the program.
        """
        subject, cure, before = self._subject, ranked.cure, self._before
        subject.stage(f"trying {name_cure(cure)}")
        captured, after = price_changed(subject, ranked.program.lowered, before, self._until - monotonic())
        opened = _list_changed_outputs(subject, captured, cure.change)
        more = len(opened) - _MOST_OPENED
        return captured, Trial(
            change=tuple(describe_cure(ranked, lambda: self.mesh_need)),
            after=after,
            helps=is_worthwhile(before, after),
            frees_output=cure.change is not None and cure.change.frees_output,
            opened=(*opened[:_MOST_OPENED], f"{more} more") if more > 0 else opened,
            moves=() if cure.change is None else tuple(leaf.name for leaf in cure.change.moved),
        )


def _is_better(before: Figures, trial: Trial, than: Trial) -> bool:
    """Returns whether a trial is worth more than another one."""
    if trial.helps != than.helps:
        return trial.helps
    gain, other = compute_gain_of(before, trial), compute_gain_of(before, than)
    return gain is not None and (other is None or gain > other)


def _is_much_better(before: Figures, trial: Trial, than: Trial) -> bool:
    """Returns whether a trial is worth more than a plainer one."""
    gain, other = compute_gain_of(before, trial), compute_gain_of(before, than)
    return gain is not None and (other is None or gain > other + _ENOUGH)


def _list_changed_outputs(subject: SearchSubject, after: Capture, change: Resharding | None) -> tuple[str, ...]:
    """The results that get another sharding without being changed themselves: `result becomes P('X', None)`."""
    changed = {leaf.name for leaf in change.results} if change is not None else set()
    pairs = zip(subject.captured.outputs or (), after.outputs or (), strict=False)
    unlike = (new for old, new in pairs if old.sharding != new.sharding and new.name not in changed)
    return tuple(f"{new.name} becomes {new.sharding}" for new in unlike)
