"""The places in a program that a collective may come from: its reshards, and the operands of its operations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from hloscope.analysis.model.reason import Axes, Reason, ReasonKind
from hloscope.analysis.vocabulary import REDUCING, Kind
from hloscope.compiler.shardy_model import ShardyModule, ShardyOp, ShardyValue
from hloscope.shardy.graph import BARRIER_KINDS, COLLECTIVE_KINDS, MOVE_KINDS, axes_in
from hloscope.shardy.reshards import find_reshards, known_sharding, local_shape, remove_axes
from hloscope.shardy.tensors import UserProgram, has_anothers_name
from hloscope.why.matching import AT_OWN, Clues, Match, Matcher, combines_otherwise
from hloscope.why.partitioned import drop_ones
from hloscope.why.phrases import render_needed_elsewhere
from hloscope.why.reasons import (
    explain_differentiation,
    explain_operand,
    explain_reshard,
    explain_sum_of_parts,
    find_operand_kind,
    sums_parts,
)

_FITS = 2
_SAME_ARGUMENT = 3
_CHOICE = ReasonKind.PARTITIONERS_CHOICE
_SURE = (
    ReasonKind.HALO,
    ReasonKind.NO_RULE,
    ReasonKind.NEEDS_WHOLE_DIMENSION,
    ReasonKind.INDEXED_IN_LOOP,
    ReasonKind.PARTIAL_SUM,
)
"""Reasons that are certain without a matching shape: the operation's rule demands them, even for a part or edge."""
_NO_SUMS = (ReasonKind.OPERAND_CONFLICT, ReasonKind.MERGED_DIMENSIONS)
"""Reasons that move an array, for which nothing is summed."""
_EXPANDED = frozenset({"stablehlo.fft", "stablehlo.reduce_window"})
_NO_TRANSFER = frozenset(
    {
        "func.func",
        "func.call",
        "func.return",
        "stablehlo.return",
        "sdy.return",
        "sdy.manual_computation",
        "sdy.named_computation",
        "stablehlo.while",
    }
)


@dataclass(frozen=True, slots=True)
class OperandReason:
    """A reason at an operand, and whether the collective was compiled from its operation, as in `Match.place`."""

    reason: Reason
    place: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An operand that may explain a collective, and the evidence for it."""

    strength: int
    op: ShardyOp
    number: int
    place: int
    fit: int


class Candidates:
    """A program with its operations by number, so that each collective examines few of them.

    Attributes:
        program: The program.
        matcher: The matcher of collectives with reshards.
    """

    def __init__(self, program: UserProgram) -> None:
        self.program = program
        module = program.graph.module
        self.matcher = Matcher(tuple(find_reshards(program.graph)), dict(module.mesh), self._argument_of)
        self._gone: list[ShardyOp] | None = None
        self._by_number: dict[int, list[ShardyOp]] = defaultdict(list)
        self._moves: dict[int, list[ShardyOp]] = defaultdict(list)
        for op in module.ops:
            for number in op.numbers:
                if op.kind in MOVE_KINDS:
                    self._moves[number].append(op)
                elif _may_move(op) or op.kind in BARRIER_KINDS:
                    self._by_number[number].append(op)

    def reason_of(self, match: Match) -> Reason:
        """The reason for a matched reshard, with the number of distinct places that fit equally well."""
        reasons = [explain_reshard(self.program, reshard) for reshard in match.ties]
        different = {
            (reason.kind, reason.moved and reason.moved.name, reason.dimensions, reason.producer) for reason in reasons
        }
        chosen = reasons[match.ties.index(match.reshard)]
        borrowed = not match.reshard.is_sum and any(has_anothers_name(op) for op, _ in match.reshard.consumers[:1])
        is_shown = _says_why(chosen) or self._is_carried_by(match)
        return chosen.with_(certain=match.is_certain and is_shown and not borrowed, candidates=len(different))

    def _is_carried_by(self, match: Match) -> bool:
        """Returns whether the consumer of an array is a loop or the like, whose sharding rule gives no reason."""
        return any(consumer.kind in _NO_TRANSFER for consumer, _ in match.reshard.consumers[:1])

    def of_number(self, number: int) -> Sequence[ShardyOp]:
        """The operations with a number."""
        return self._by_number.get(number, ())

    def written(self, numbers: Iterable[int]) -> ShardyOp | None:
        """The program's own collective with one of these numbers, as it was before partitioning."""
        found = (op for number in numbers for op in self._by_number.get(number, ()))
        return next((op for op in found if op.kind in COLLECTIVE_KINDS), None)

    def differentiation(self, numbers: Iterable[int], axes: Axes) -> Reason | None:
        """The reason for a sum that differentiation inserted; None for other operations."""
        found = (op for number in numbers for op in self._by_number.get(number, ()))
        reasons = (explain_differentiation(self.program, op, axes) for op in found)
        return next((reason for reason in reasons if reason is not None), None)

    def at_operand(self, clues: Clues, *, is_nothing_else: bool = False) -> OperandReason | None:
        """A reason at an operand that Shardy does not move: a halo, no sharding rule, or the partitioner's choice.

        Among several operands, one that must move comes first, then one with the collective's shape, then one at the
        collective's own operation. JAX 0.12's compiler names the operation that produced the operand.

        Args:
            clues: The clues of a collective.
            is_nothing_else: Whether there is no reshard that it could carry out.
        """
        near = tuple(dict.fromkeys(self._near(clues, is_nothing_else=is_nothing_else)))
        added_up = self._added_up(clues, near) if clues.kind in REDUCING else None
        if added_up is not None:
            return added_up
        best: _Candidate | None = None
        for op in near:
            for number in range(len(op.operands)):
                value = self.program.graph.value(op.operands[number])
                brought = self._brings(clues, value, op, is_nothing_else=is_nothing_else)
                place = AT_OWN * (brought or clues.are_of([op, *self.program.graph.makers(value)]))
                fit = self._fit(clues, value)
                kind = find_operand_kind(self.program, op, number, clues.axes) if place + fit > 1 else None
                if kind is None or (clues.kind in REDUCING and kind in _NO_SUMS):
                    continue
                if brought and kind is ReasonKind.HALO and clues.kind is Kind.ALL_GATHER:
                    continue
                is_edge = kind is ReasonKind.HALO and clues.kind is Kind.COLLECTIVE_PERMUTE
                own = _FITS * (is_edge and (clues.is_edge or clues.are_of([op])))
                found = _Candidate(place + fit + own + 2 * (kind is not _CHOICE), op, number, place, fit)
                if best is None or found.strength > best.strength:
                    best = found
        return None if best is None else self._reason_at(clues, best)

    def _added_up(self, clues: Clues, near: Iterable[ShardyOp]) -> OperandReason | None:
        """The contraction whose parts a collective sums, although Shardy would have moved the operands instead."""
        mesh = dict(self.program.graph.module.mesh)
        found: list[tuple[bool, ShardyOp]] = []
        for op in near:
            if not clues.are_of([op]) or combines_otherwise(op, clues.reduction):
                continue
            if not sums_parts(self.program, op, clues.axes):
                continue
            result = self.program.graph.value(op.results[0])
            part = local_shape(result.shape, remove_axes(known_sharding(result), clues.axes), mesh)
            if any(prod(part) == prod(operand) for operand in clues.operands):
                found.append((any(sorted(part) == sorted(operand) for operand in clues.operands), op))
        if not found:
            return None
        best = any(same for same, _ in found)
        fitting = [op for same, op in found if same == best]
        reason = explain_sum_of_parts(self.program, fitting[0], clues.axes)
        cut = axes_in(reason.operands[-1].sharding) if reason.operands else frozenset()
        certain = best and {*clues.axes} <= cut
        return OperandReason(replace(reason, certain=certain, candidates=len(fitting)), AT_OWN)

    def _reason_at(self, clues: Clues, chosen: _Candidate) -> OperandReason | None:
        """The reason at an operand, and its certainty."""
        reason = explain_operand(self.program, chosen.op, chosen.number, clues.axes)
        if reason is None:
            return None
        certain = bool(chosen.place) and (reason.kind in _SURE or chosen.fit >= _FITS) and reason.kind is not _CHOICE
        certain = certain and _says_why(reason)
        moved = chosen.op.results[0] if reason.kind is ReasonKind.PARTIAL_SUM else chosen.op.operands[chosen.number]
        of_part = self._is_part(clues, self.program.graph.value(moved))
        return OperandReason(replace(reason, certain=certain, of_part=of_part), chosen.place)

    def expanded(self, clues: Clues, compiled: ShardyModule) -> Reason | None:
        """A reason at an operation that the compiler expands into others before it partitions, such as an FFT.

        Args:
            clues: The clues of a collective.
            compiled: The module that the compiler partitioned, which no longer has the operation.
        """
        gone = self._expanded_in(compiled)
        here = [op for op in gone if not clues.numbers.isdisjoint(op.identity) or self._lies_at(clues, op)]
        if not here and (clues.numbers or len(gone) != 1):
            return None
        found = (explain_operand(self.program, op, 0, clues.axes) for op in here or gone)
        reason = next((each for each in found if each is not None), None)
        if reason is None:
            return None
        if reason.kind is ReasonKind.HALO and clues.kind is not Kind.COLLECTIVE_PERMUTE:
            reason = replace(reason, kind=ReasonKind.NEEDS_WHOLE_DIMENSION)
        return replace(reason, certain=len(here) == 1, of_part=True)

    def _expanded_in(self, compiled: ShardyModule) -> list[ShardyOp]:
        """The operations that the module partitioned by the compiler no longer has."""
        if self._gone is None:
            kept = {(op.kind, op.op_name) for op in compiled.ops}
            ops = self.program.graph.module.ops
            self._gone = [op for op in ops if op.kind in _EXPANDED and (op.kind, op.op_name) not in kept]
        return self._gone

    def _lies_at(self, clues: Clues, op: ShardyOp) -> bool:
        """Returns whether a collective lies between an operation's operands and the users of its result."""
        graph, around = self.program.graph, clues.between
        makers = {number for value in map(graph.value, op.operands) for number in _list_numbers(graph.maker(value))}
        arguments = {self._argument_of(graph.value(operand)) for operand in op.operands}
        users = {number for user, _ in graph.real_users(graph.value(op.results[0])) for number in _list_numbers(user)}
        comes_from_there = around.makers <= makers and around.arguments <= arguments
        return comes_from_there and around.users <= users and bool(around.makers or around.arguments) and bool(users)

    def _fit(self, clues: Clues, value: ShardyValue) -> int:
        """The score of an operand's part on one device, or of its argument, against a collective's operand."""
        if clues.argument is not None and self._argument_of(value) == clues.argument:
            return _SAME_ARGUMENT
        fit = self.matcher.alike(value, known_sharding(value), clues.operands)
        return max(fit, int(any(len(drop_ones(value.shape)) == len(drop_ones(operand)) for operand in clues.operands)))

    def _brings(self, clues: Clues, value: ShardyValue, op: ShardyOp, *, is_nothing_else: bool) -> bool:
        """Returns whether a transfer without a number brings an argument to the only operation that uses it."""
        if clues.numbers or clues.argument is None:
            return False
        if clues.kind is not Kind.COLLECTIVE_PERMUTE and not (clues.kind is Kind.ALL_GATHER and is_nothing_else):
            return False
        users = clues.between.users
        return bool(users) and {*users} <= {*op.numbers} and self._argument_of(value) == clues.argument

    def _is_part(self, clues: Clues, value: ShardyValue) -> bool:
        """Returns whether a collective moves anything but a device's whole part of an array."""
        wanted = prod(local_shape(value.shape, known_sharding(value), dict(self.program.graph.module.mesh)))
        return all(prod(operand) != wanted for operand in clues.operands)

    def _near(self, clues: Clues, *, is_nothing_else: bool) -> Iterator[ShardyOp]:
        """The operations that a collective was compiled from or lies at, and the users of their results."""
        graph, around = self.program.graph, clues.between
        numbers = sorted(clues.numbers or around.makers | around.users)
        for number in numbers:
            made = list(self.of_number(number))
            yield from (op for op in made if op.kind not in BARRIER_KINDS)
            made += self._moves.get(number, ()) if is_nothing_else else ()
            for result in (result for op in made for result in op.results):
                yield from (user for user, _ in graph.real_users(graph.value(result)) if _may_move(user))

    def _argument_of(self, value: ShardyValue) -> str | None:
        root, _ = self.program.graph.root(value)
        return root.name if self.program.graph.is_program_argument(root) else None


def _says_why(reason: Reason) -> bool:
    """Returns whether a reason for a needed array states what needs it."""
    is_conflict = reason.kind is ReasonKind.OPERAND_CONFLICT
    return not is_conflict or reason.conflicting is not None or render_needed_elsewhere(reason) is not None


def _list_numbers(op: ShardyOp | None) -> tuple[int, ...]:
    return () if op is None else op.numbers


def _may_move(op: ShardyOp) -> bool:
    """Returns whether the partitioner may have to move an operand of an operation."""
    return bool(op.operands) and op.kind not in MOVE_KINDS | BARRIER_KINDS | _NO_TRANSFER
