"""Ranking of changes by Shardy's shardings alone, in milliseconds each, to decide which to compile first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice, product
from math import lcm, prod
from time import monotonic
from typing import TYPE_CHECKING

from hloscope.analysis.provenance import short_source
from hloscope.base.errors import CompilerDiedError, HloscopeError
from hloscope.compile import client, step
from hloscope.compile.estimates import Estimate, Rates
from hloscope.compile.lowering import Lowered, lower_changed
from hloscope.compile.sharding_change import (
    ConstraintChange,
    ConstraintEdit,
    LeafChange,
    ModuleEdit,
    Resharding,
    SizeChange,
)
from hloscope.model.capture import Capture, ShardyModule, ShardyOp, ShardyValue, ValueSharding, axes_in
from hloscope.model.reason import AskedBy, Operation, Reason, ReasonKind
from hloscope.search.space import ProgramLeaf, ProgramLeaves
from hloscope.tpu.slices import Slice
from hloscope.why.reshards import known_sharding
from hloscope.why.shardy_graph import LOOP_BODY, ShardyGraph, is_written, to_frames

if TYPE_CHECKING:
    from hloscope.search.trial_cache import SearchSubject

# ---- candidate changes that may remove a collective or make it smaller, from the typed reason for it
#
# A candidate only has to be valid in JAX; `ranking` and `trials` find out whether it helps.

MOST_CANDIDATES = 60
_MOST_PLACES = 8
_MOST_RESULTS = 6
_PAIRED = 7
_TRIPLED = 3
_WITHOUT_CHANGES = (ReasonKind.AUTHORED, ReasonKind.UNKNOWN)
_LOOP = "stablehlo.while"


def find_candidates(captured: Capture, reason: Reason, sizes: Mapping[str, int]) -> tuple[Resharding, ...]:
    """The changes that are worth ranking, the most direct first; none for an authored or unexplained collective.

    Args:
        captured: The compiled program.
        reason: The reason for the collective.
        sizes: The sizes of the notation's letters.
    """
    if captured.compiled.shardy is None or reason.kind in _WITHOUT_CHANGES:
        return ()
    finder = _CandidateFinder(captured, captured.compiled.shardy, reason)
    ways = (
        finder.constraints(),
        finder.results(),
        finder.conflicts(),
        finder.carries(),
        finder.padded(sizes),
        finder.arguments(),
        finder.results_and_arguments(),
        finder.scattered(),
    )
    found = dict.fromkeys(change for change in chain.from_iterable(ways) if change is not None)
    return tuple(islice(found, MOST_CANDIDATES))


def combine_pairs(best: Sequence[Resharding], known: Iterable[Resharding]) -> tuple[Resharding, ...]:
    """Pairs of the best changes, if the two affect different things.

    Args:
        best: Changes, best first.
        known: The changes that exist already.
    """
    return _join_all(combinations(best[:_PAIRED], 2), known)


def combine_triples(
    two: Sequence[Resharding], best: Sequence[Resharding], known: Iterable[Resharding]
) -> tuple[Resharding, ...]:
    """The best pairs with a third change that affects another thing.

    Args:
        two: Pairs, best first.
        best: Changes, best first.
        known: The changes that exist already.
    """
    return _join_all(product(two[:_TRIPLED], best[:_PAIRED]), known)


def _join_all(both: Iterable[tuple[Resharding, Resharding]], known: Iterable[Resharding]) -> tuple[Resharding, ...]:
    seen = set(known)
    joined = (_join(one, other) for one, other in both)
    return tuple(change for change in dict.fromkeys(filter(None, joined)) if change not in seen)


def _join(one: Resharding, other: Resharding) -> Resharding | None:
    if one.touched & other.touched or ((one.sizes or other.sizes) and (one.constraints or other.constraints)):
        return None  # operations have other numbers where sizes are others
    if any(_separates_state(leaf, change) for leaf in (*one.results, *other.results) for change in (one, other)):
        return None
    return Resharding(
        arguments=tuple(sorted((*one.arguments, *other.arguments), key=lambda leaf: leaf.index)),
        results=tuple(sorted((*one.results, *other.results), key=lambda leaf: leaf.index)),
        constraints=(*one.constraints, *other.constraints),
        sizes=(*one.sizes, *other.sizes),
        frees_output=one.frees_output or other.frees_output,
    )


def _separates_state(result: LeafChange, change: Resharding) -> bool:
    """Returns whether the argument that a result replaces gets another sharding than the result."""
    return any(leaf.index == result.replaces and leaf.after != result.after for leaf in change.arguments)


class _CandidateFinder:
    """Everything that is read once for all changes against one collective."""

    def __init__(self, captured: Capture, module: ShardyModule, reason: Reason) -> None:
        self._captured, self._reason = captured, reason
        self._graph = ShardyGraph(module)
        self._leaves = ProgramLeaves(captured.arguments, captured.outputs, self._graph)
        self._mesh = dict(module.mesh)
        self._axes = tuple(axis.partition(":")[0] for axis in reason.axes) or tuple(
            axis for axis in self._mesh if reason.moved is not None and axis in axes_in(reason.moved.sharding)
        )
        kinds = () if captured.mesh is None else captured.mesh.axis_types or ()
        self._is_auto = bool(kinds) and all(kind == "auto" for kind in kinds)

    # What takes part.

    def _asked(self, by: str) -> list[AskedBy]:
        return [asker for asker in (*self._reason.asked_by, *self._reason.held_by) if asker.by == by]

    def _operations(self, *found: Operation | None) -> list[ShardyOp]:
        """Shardy's operations for those of the reason, outside `shard_map`."""
        wanted = {(op.op_name, op.source) for op in found if op is not None}
        alike = (op for op in self._graph.module.ops if (op.op_name, to_frames(op.source)) in wanted)
        return [op for op in alike if not self._graph.in_manual(op)]

    def _own_arguments(self) -> list[ProgramLeaf]:
        """The arguments that the reason names, or from which its operations are computed."""
        tensors = (self._reason.moved, self._reason.result, *self._reason.operands)
        names = [asker.name for asker in self._asked("argument")]
        names += [tensor.argument for tensor in tensors if tensor is not None]
        found = [self._leaves.argument_named(name) for name in names if name is not None]
        for op in self._operations(self._reason.consumer, self._reason.producer)[:_MOST_PLACES]:
            if op.kind != _LOOP:
                found += [self._leaves.argument_of(self._graph.value(operand)) for operand in op.operands]
        unique = {
            leaf.index: leaf for leaf in found if leaf is not None and leaf.array.used and leaf.array.global_shape
        }
        return list(unique.values())

    def _own_results(self) -> list[ProgramLeaf]:
        """The results that the reason names, or all results if they are few."""
        named = {asker.name for asker in self._asked("output")}
        results = [leaf for leaf in self._leaves.results if leaf.array.global_shape]
        return [leaf for leaf in results if leaf.array.name in named or len(results) <= _MOST_RESULTS]

    def _constraints(self) -> list[list[ShardyOp]]:
        """The constraints of the program, grouped by line, those of the reason first."""
        if not self._is_auto:
            return []
        lines: dict[object, list[ShardyOp]] = {}
        for op in self._graph.module.ops:
            if is_written(op) and op.identity and not self._graph.in_manual(op):
                lines.setdefault((op.source[:1], self._asks(op)), []).append(op)
        named = {asker.source[:1] for asker in self._asked("constraint")}
        ordered = sorted(lines.values(), key=lambda ops: to_frames(ops[0].source)[:1] not in named)
        return ordered[:_MOST_PLACES]

    def _asks(self, op: ShardyOp) -> ValueSharding | None:
        return op.asked or self._graph.value(op.results[0]).sharding

    # The ways out.

    def constraints(self) -> Iterator[Resharding | None]:
        """A constraint dropped, or with its operand's sharding; or its argument with the requested sharding."""
        lines = self._constraints()
        for place in dict.fromkeys(_format_place(ops[0]) for ops in lines):
            yield self._edited([op for ops in lines if _format_place(ops[0]) == place for op in ops], None)
        for ops in lines:
            asked = self._asks(ops[0])
            held = {known_sharding(self._graph.unmoved(self._graph.value(op.operands[0]))) for op in ops}
            for sharding in held:
                if sharding != asked:
                    yield self._edited(ops, sharding)
            for op in ops:
                leaf = self._leaves.argument_of(self._graph.value(op.operands[0]))
                if leaf is not None and asked is not None:
                    yield self._with_alike(leaf, asked)

    def results(self) -> Iterator[Resharding | None]:
        """A result as it is computed, open, or like the argument that it replaces; or that argument like the result."""
        for result in self._own_results():
            number = self._leaves.replaces.get(result.index)
            argument = None if number is None else self._leaves.arguments[number]
            if argument is not None and argument.sharding is not None:
                yield from self._carried(argument, result)
                continue
            if result.computed is not None and result.computed != result.asked:
                yield self._leaves.change(results=[(result, result.computed)])
            if result.asked is not None:
                yield self._leaves.change(results=[(result, None)])

    def _carried(self, argument: ProgramLeaf, result: ProgramLeaf) -> Iterator[Resharding | None]:
        """Other shardings of a state that one step passes to the next: argument and result together, or like either.

        A result that alone gets another sharding would be moved back before the next step.
        """
        yield self._leaves.change(results=[(result, argument.sharding)])
        for sharding in dict.fromkeys((result.sharding, result.computed, *self._leaves.layouts(argument, self._axes))):
            if sharding is not None:
                yield self._with_alike(argument, sharding)
                yield self._leaves.change([(other, sharding) for other in self._leaves.of_one_kind(argument)])

    def results_and_arguments(self) -> Iterator[Resharding | None]:
        """The arguments with the requested sharding of a result, if they have its shape."""
        for result in self._own_results():
            if result.asked is None:
                continue
            alike = [leaf for leaf in self._own_arguments() if leaf.array.global_shape == result.array.global_shape]
            for leaf in alike:
                yield self._with_alike(leaf, result.asked)
            if len(alike) > 1:
                yield self._leaves.change([(leaf, result.asked) for leaf in alike])

    def conflicts(self) -> Iterator[Resharding | None]:
        """An operand with the sharding that the other operands or the result imply: its argument, or a constraint."""
        for op in self._operations(self._reason.consumer, self._reason.producer)[:_MOST_PLACES]:
            rule = op.rule
            if rule is None or len(rule.operands) != len(op.operands):
                continue
            sides = [
                *zip(op.operands, rule.operands, strict=True),
                *zip(op.results, rule.results, strict=True),
            ]
            for number, operand in enumerate(op.operands):
                value = self._graph.unmoved(self._graph.value(operand))
                for index, mapping in sides:
                    other = self._graph.unmoved(self._graph.value(index))
                    projected = self._projected(known_sharding(other), mapping, rule.operands[number], value)
                    if index != operand and projected is not None and projected != known_sharding(value):
                        yield from self._operand_as(op, number, value, projected)

    def _operand_as(
        self, op: ShardyOp, number: int, value: ShardyValue, wanted: ValueSharding
    ) -> Iterator[Resharding | None]:
        leaf = self._leaves.argument_of(value)
        if leaf is not None and leaf.array.global_shape == value.shape:
            yield self._with_alike(leaf, wanted)
        elif self._is_auto and op.identity and value.shape:
            edit = ConstraintEdit(operation=op.identity[-1], operand=number, sharding=wanted)
            place = _format_place(op)
            if place is not None and self._runs_once(op):
                array = self._named(value)
                yield Resharding(constraints=(ConstraintChange(edits=(edit,), place=place, array=array),))

    def _runs_once(self, op: ShardyOp) -> bool:
        """Returns whether no other call of a private function runs this operation: a constraint would affect it too."""
        return len({other.identity for other in self._graph.module.ops if other.identity[-1:] == op.identity[-1:]}) == 1

    def carries(self) -> Iterator[Resharding | None]:
        """The initial value of a loop, with the sharding that the loop's body has for it, or returns."""
        for op in self._graph.module.ops:
            if op.kind != _LOOP or self._graph.in_manual(op):
                continue
            returned = self._graph.returns.get((op.index, LOOP_BODY))
            inside = [value for value in self._graph.module.values if value.is_argument and value.owner == op.index]
            for number, operand in enumerate(op.operands):
                leaf = self._leaves.argument_of(self._graph.value(operand))
                if leaf is None or leaf.array.global_shape != self._graph.value(operand).shape:
                    continue
                seen = [value for value in inside if value.number == number]
                if returned is not None and number < len(returned.operands):
                    seen.append(self._graph.unmoved(self._graph.value(returned.operands[number])))
                for sharding in dict.fromkeys(map(known_sharding, seen)):
                    if sharding != leaf.sharding:
                        yield self._with_alike(leaf, sharding)

    def arguments(self) -> Iterator[Resharding | None]:
        """Each argument without the axes that data moves over, and with them on each other dimension."""
        for leaf in self._own_arguments():
            for sharding in self._leaves.layouts(leaf, self._axes):
                yield self._with_alike(leaf, sharding)
                yield self._leaves.change([(leaf, sharding)])

    def scattered(self) -> Iterator[Resharding | None]:
        """A result of sums, sharded by the axes of these sums."""
        if self._reason.kind is not ReasonKind.PARTIAL_SUM:
            return
        for result in self._own_results():
            for sharding in self._leaves.layouts(result, self._axes):
                yield self._leaves.change(results=[(result, sharding)])

    def padded(self, sizes: Mapping[str, int]) -> Iterator[Resharding | None]:
        """A dimension padded to a multiple of the devices that do not divide it."""
        uneven: dict[int, int] = {}
        for value in self._graph.module.values:
            for size, axes in zip(value.shape, value.sharding or (), strict=False):
                devices = prod(self._mesh.get(axis, 1) for axis in axes)
                if size % devices:
                    uneven[size] = lcm(uneven.get(size, 1), devices)
        arrays = [leaf.array for leaf in self._leaves.arguments]
        used = {letter for array in arrays for letter in array.letters or ()}
        for size, devices in uneven.items():
            letters = [letter for letter, value in sizes.items() if value == size and letter in used]
            name = letters[0] if len(letters) == 1 else str(size)
            larger = -(-size // devices) * devices
            if len(letters) <= 1 and (letters or any(size in array.global_shape for array in arrays)):
                yield Resharding(sizes=(SizeChange(name=name, before=size, after=larger),))

    # Helpers.

    def _with_alike(self, leaf: ProgramLeaf, sharding: ValueSharding) -> Resharding | None:
        """Another sharding for an argument, the same argument of other layers, and their states."""
        alike = {other.index: other for same in self._leaves.alike(leaf) for other in self._leaves.states_of(same)}
        return self._leaves.change([(other, sharding) for other in (alike | {leaf.index: leaf}).values()])

    def _edited(self, ops: Sequence[ShardyOp], sharding: ValueSharding | None) -> Resharding | None:
        place = _format_place(ops[0])
        if place is None:
            return None
        edits = dict.fromkeys(ConstraintEdit(operation=op.identity[-1], sharding=sharding) for op in ops)
        return Resharding(constraints=(ConstraintChange(edits=tuple(edits), place=place, before=self._asks(ops[0])),))

    def _named(self, value: ShardyValue) -> str:
        tensors = (self._reason.moved, *self._reason.operands)
        alike = (tensor for tensor in tensors if tensor is not None and tensor.shape == value.shape)
        return next((tensor.name for tensor in alike), "its operand")

    def _projected(
        self,
        sharding: ValueSharding,
        mapping: Sequence[Sequence[int]],
        onto: Sequence[Sequence[int]],
        value: ShardyValue,
    ) -> ValueSharding | None:
        """The sharding of another value on the dimensions that both share; None if it does not divide."""
        axes = {factors[0]: here for factors, here in zip(mapping, sharding, strict=False) if factors}
        found = tuple(axes.get(factors[0], ()) if factors else () for factors in onto)
        if len(found) != len(value.shape) or any(":" in axis for here in found for axis in here):
            return None
        sizes = zip(value.shape, found, strict=True)
        return (
            found if all(size % prod(self._mesh.get(axis, 1) for axis in here) == 0 for size, here in sizes) else None
        )


def _format_place(op: ShardyOp) -> str | None:
    """The place of an operation: `moe.py:31`."""
    said = short_source(to_frames(op.source))
    return None if said is None else said.partition(" in ")[0]


_BATCH = 12
_SIDE_BY_SIDE = 4
_LONGEST_S = 600.0
_CLEARLY = 0.95
"""Two changes with less than this share of one change's time may be worth a third."""
_SHARE = 0.4
"""The share of the time limit for ranking: changes that are not ranked by then come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedChange:
    """A change and its estimate from Shardy's shardings.

    Attributes:
        change: The change.
        time_us: Estimate in microseconds, for comparing changes of one program; None if Shardy cannot propagate it.
    """

    change: Resharding
    time_us: float | None


def rank_changes(subject: SearchSubject, changes: Sequence[Resharding], seconds: float) -> tuple[RankedChange, ...]:
    """All changes, with pairs of the best and triples of the best pairs, the most promising first.

    Changes of constraints and open results whose cost exactly equals the program's come after all others.

    Args:
        subject: The program.
        changes: The changes, the most direct first; this order breaks ties.
        seconds: Time limit of all trials.
    """
    until = monotonic() + _SHARE * seconds
    module, rates = subject.lowered.bytecode, find_rates(subject.lowered.slice)

    def estimate(some: Sequence[Resharding]) -> list[float | None]:
        """The estimated time of each change; None if it cannot be propagated, or not in time."""
        found = estimate_changes(subject, some, until, module)
        return [None if estimate is None else estimate.time_us(rates) for estimate in found]

    as_it_is, *singles = estimate((Resharding(), *changes))
    found: dict[Resharding, float | None] = dict(zip(changes, singles, strict=True))
    best = [change for change in _sort_by_estimate(found) if found[change] is not None]
    best.sort(key=lambda change: not change.sizes)  # what is padded may need a partner
    more = combine_pairs(best, found)[: MOST_CANDIDATES - len(found)]
    found.update(zip(more, estimate(more), strict=True))
    two = _find_better_pairs(found, set(more))
    more = combine_triples(two, best, found)
    found.update(zip(more, estimate(more), strict=True))

    def is_late(change: Resharding) -> bool:
        """Returns whether it asks for nothing that is not so already, likely, or nothing is known of it."""
        return found[change] is None or (change.is_loose and found[change] == as_it_is)

    order = sorted(_sort_by_estimate(found), key=is_late)
    return tuple(RankedChange(change=change, time_us=found[change]) for change in order)


def _find_better_pairs(found: dict[Resharding, float | None], two: set[Resharding]) -> list[Resharding]:
    """The pairs that promise more than each of their changes, best first."""
    single = min((time for change, time in found.items() if time is not None and change not in two), default=0.0)
    return [
        change for change in _sort_by_estimate(found) if change in two and (found[change] or single) < _CLEARLY * single
    ]


def _sort_by_estimate(found: dict[Resharding, float | None]) -> list[Resharding]:
    """Fastest first, then the least demanding and smallest; unknown last."""
    costs = [time for time in found.values() if time is not None]
    unknown = max(costs, default=0.0) + 1.0
    order = {change: number for number, change in enumerate(found)}

    def key(change: Resharding) -> tuple[bool, float, int, int, int, int]:
        time = found[change]
        shown = unknown if time is None else time
        return time is None, float(f"{shown:.2g}"), change.asks, change.widened, change.parts, order[change]

    return sorted(found, key=key)


def estimate_changes(
    subject: SearchSubject, changes: Sequence[Resharding], until: float, module: bytes | None = None
) -> list[Estimate | None]:
    """Estimates a program with each of several changes; None if it cannot be propagated, or not in time.

    Args:
        subject: The program.
        changes: The changes.
        until: The deadline, on the clock of `time.monotonic`.
        module: The program's bytecode, if already available.
    """
    module = subject.lowered.bytecode if module is None else module
    found: list[Estimate | None] = [None] * len(changes)
    edits = {
        number: edit for number, change in enumerate(changes) if (edit := _make_module_edit(subject.lowered, change))
    }
    edits = {} if is_explicit(subject.lowered) else edits  # there shardings are part of the program's types
    batches = [list(edits)[at : at + _BATCH] for at in range(0, len(edits), _BATCH)]
    asked: deque[tuple[list[int], client.Question[list[Estimate | None]]]] = deque()
    try:
        while (batches or asked) and monotonic() < until:
            while batches and len(asked) < _SIDE_BY_SIDE:
                batch = batches.pop(0)
                asked.append((batch, _ask_estimates(module, [edits[at] for at in batch], until)))
            batch, question = asked.popleft()
            answers = _collect_estimates(question, module, [edits[at] for at in batch], until)
            for number, estimate in zip(batch, answers, strict=True):
                found[number] = estimate
    finally:
        for _, question in asked:
            question.drop()
    for number, change in enumerate(changes):
        if number not in edits and monotonic() < until:
            found[number] = _estimate_retraced(subject, change, until)
    return found


def _ask_estimates(module: bytes, edits: Sequence[ModuleEdit], until: float) -> client.Question[list[Estimate | None]]:
    left = min(until - monotonic(), _LONGEST_S)
    return client.Question(
        step.estimate_edits, module, tuple(edits), doing="ranking changes with Shardy", timeout_s=max(left, 1.0)
    )


def _collect_estimates(
    question: client.Question[list[Estimate | None]], module: bytes, edits: Sequence[ModuleEdit], until: float
) -> list[Estimate | None]:
    """A worker's estimates of several changes; a change that ends the worker is isolated by halving."""
    try:
        return question.answer()
    except CompilerDiedError:
        if len(edits) == 1:
            return [None]
        half = len(edits) // 2
        return [*_estimate_batch(module, edits[:half], until), *_estimate_batch(module, edits[half:], until)]
    except (HloscopeError, ValueError, RuntimeError):
        return [None] * len(edits)


def _estimate_batch(module: bytes, edits: Sequence[ModuleEdit], until: float) -> list[Estimate | None]:
    if until - monotonic() <= 0:
        return [None] * len(edits)
    return _collect_estimates(_ask_estimates(module, edits, until), module, edits, until)


def _estimate_retraced(subject: SearchSubject, change: Resharding, until: float) -> Estimate | None:
    """The estimate of a change that makes another program, which must be traced."""
    try:
        program = lower_changed(subject.function, subject.lowered, change, store=subject.store)
    except HloscopeError:
        return None
    return _estimate_batch(program.bytecode, [ModuleEdit()], until)[0]


def _make_module_edit(lowered: Lowered, change: Resharding) -> ModuleEdit | None:
    """A change as an edit of the module; None if only a trace can make it."""
    if change.sizes:
        return None
    place = {index: number for number, index in enumerate(lowered.seen.kept)}
    return ModuleEdit(
        arguments=tuple(
            (place[leaf.index], leaf.after)
            for leaf in change.arguments
            if leaf.index in place and leaf.after is not None
        ),
        results=tuple((leaf.index, leaf.after) for leaf in change.results),
        argument_count=len(lowered.seen.kept),
        result_count=len(lowered.seen.result_avals),
        constraints=change.edits,
    )


def is_explicit(lowered: Lowered) -> bool:
    """Returns whether shardings are part of the program's types, so that another sharding makes another program."""
    mesh = lowered.mesh
    return mesh is None or any("explicit" in str(kind).lower() for kind in mesh.axis_types)


def find_rates(chosen: Slice) -> Rates:
    """The rates of one device of a slice; it sends along one axis, in both directions if that axis is closed."""
    chip = chosen.chip
    assert chip is not None  # without times, no change is ranked
    ways = 2 if any(chosen.wraparound()) else 1
    return Rates(
        link_bytes=chip.ici_bytes_per_s * ways / chip.devices_per_chip,
        memory_bytes=chip.hbm_bytes_per_s / chip.devices_per_chip,
        flops=chip.bf16_flops_per_s / chip.devices_per_chip,
    )
