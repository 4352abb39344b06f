"""The places of a program that a collective may come from: its reshards, and the operands of its operations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from hloscope.analysis.model.reason import Axes, Reason, ReasonKind
from hloscope.analysis.vocabulary import SUMS, Kind
from hloscope.compiler.shardy_model import ShardyModule, ShardyOp, ShardyValue
from hloscope.shardy.graph import BARRIERS, MOVES, WRITTEN, axes_in
from hloscope.shardy.reshards import local_shape, reshards_of, sharding_known, without
from hloscope.shardy.tensors import Program, has_anothers_name
from hloscope.why.matching import OWN, Clues, Match, Matcher, combines_otherwise
from hloscope.why.partitioned import significant
from hloscope.why.phrases import elsewhere_words
from hloscope.why.reasons import (
    kind_at,
    reason_at,
    reason_of_differentiation,
    reason_of_reshard,
    sum_of_parts,
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
"""Reasons that need no shape to be sure: what the operation's own rule asks for, a part or an edge of it included."""
_NO_SUMS = (ReasonKind.OPERAND_CONFLICT, ReasonKind.MERGED_DIMENSIONS)
"""Reasons that bring an array elsewhere, which nothing is added up for."""
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
class AtOperand:
    """A reason at an operand, and whether the collective was compiled from the operation, as `Match.place` has it."""

    reason: Reason
    place: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An operand that a collective may be there for, and what speaks for it."""

    strength: int
    op: ShardyOp
    number: int
    place: int
    fit: int


class Candidates:
    """A program with its operations by number, so that each collective looks at few of them.

    Attributes:
        program: The program.
        matcher: Finds the reshard of a collective.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        module = program.graph.module
        self.matcher = Matcher(tuple(reshards_of(program.graph)), dict(module.mesh), self._argument_of)
        self._gone: list[ShardyOp] | None = None
        self._by_number: dict[int, list[ShardyOp]] = defaultdict(list)
        self._moves: dict[int, list[ShardyOp]] = defaultdict(list)
        for op in module.ops:
            for number in op.numbers:
                if op.kind in MOVES:
                    self._moves[number].append(op)
                elif _may_move(op) or op.kind in BARRIERS:
                    self._by_number[number].append(op)

    def reason_of(self, match: Match) -> Reason:
        """The reason for a matched reshard, with the number of different places that fit as well."""
        reasons = [reason_of_reshard(self.program, reshard) for reshard in match.ties]
        different = {
            (reason.kind, reason.moved and reason.moved.name, reason.dimensions, reason.producer) for reason in reasons
        }
        chosen = reasons[match.ties.index(match.reshard)]
        borrowed = not match.reshard.is_sum and any(has_anothers_name(op) for op, _ in match.reshard.consumers[:1])
        is_shown = _says_why(chosen) or self._is_carried_by(match)
        return chosen.with_(certain=match.is_certain and is_shown and not borrowed, candidates=len(different))

    def _is_carried_by(self, match: Match) -> bool:
        """Whether what needs an array is a loop or its like, which has no sharding rule that could say why."""
        return any(consumer.kind in _NO_TRANSFER for consumer, _ in match.reshard.consumers[:1])

    def of_number(self, number: int) -> Sequence[ShardyOp]:
        """The operations of a number."""
        return self._by_number.get(number, ())

    def written(self, numbers: Iterable[int]) -> ShardyOp | None:
        """The collective of the program, as it was before it was partitioned, of one of these numbers."""
        found = (op for number in numbers for op in self._by_number.get(number, ()))
        return next((op for op in found if op.kind in WRITTEN), None)

    def differentiation(self, numbers: Iterable[int], axes: Axes) -> Reason | None:
        """The reason for a sum that differentiation wrote; None for other operations."""
        found = (op for number in numbers for op in self._by_number.get(number, ()))
        reasons = (reason_of_differentiation(self.program, op, axes) for op in found)
        return next((reason for reason in reasons if reason is not None), None)

    def at_operand(self, clues: Clues, *, is_nothing_else: bool = False) -> AtOperand | None:
        """A reason at an operand that Shardy moves nowhere: a halo, an operation without a rule, the partitioner's way.

        Of several operands one that must move comes first, then one with the collective's shape, then one at the
        collective's own operation. JAX 0.12's compiler names the operation that made the operand.

        Args:
            clues: What is known of a collective.
            is_nothing_else: Whether no reshard is one that it could carry out.
        """
        near = tuple(dict.fromkeys(self._near(clues, is_nothing_else=is_nothing_else)))
        added_up = self._added_up(clues, near) if clues.kind in SUMS else None
        if added_up is not None:
            return added_up
        best: _Candidate | None = None
        for op in near:
            for number in range(len(op.operands)):
                value = self.program.graph.value(op.operands[number])
                brought = self._brings(clues, value, op, is_nothing_else=is_nothing_else)
                place = OWN * (brought or clues.are_of([op, *self.program.graph.makers(value)]))
                fit = self._fit(clues, value)
                kind = kind_at(self.program, op, number, clues.axes) if place + fit > 1 else None
                if kind is None or (clues.kind in SUMS and kind in _NO_SUMS):
                    continue
                if brought and kind is ReasonKind.HALO and clues.kind is Kind.ALL_GATHER:
                    continue
                is_edge = kind is ReasonKind.HALO and clues.kind is Kind.COLLECTIVE_PERMUTE
                own = _FITS * (is_edge and (clues.is_edge or clues.are_of([op])))
                found = _Candidate(place + fit + own + 2 * (kind is not _CHOICE), op, number, place, fit)
                if best is None or found.strength > best.strength:
                    best = found
        return None if best is None else self._reason_at(clues, best)

    def _added_up(self, clues: Clues, near: Iterable[ShardyOp]) -> AtOperand | None:
        """The contraction whose parts a sum adds up, although Shardy would have moved its operands instead."""
        mesh = dict(self.program.graph.module.mesh)
        found: list[tuple[bool, ShardyOp]] = []
        for op in near:
            if not clues.are_of([op]) or combines_otherwise(op, clues.reduction):
                continue
            if not sums_parts(self.program, op, clues.axes):
                continue
            result = self.program.graph.value(op.results[0])
            part = local_shape(result.shape, without(sharding_known(result), clues.axes), mesh)
            if any(prod(part) == prod(operand) for operand in clues.operands):
                found.append((any(sorted(part) == sorted(operand) for operand in clues.operands), op))
        if not found:
            return None
        best = any(same for same, _ in found)
        fitting = [op for same, op in found if same == best]
        reason = sum_of_parts(self.program, fitting[0], clues.axes)
        cut = axes_in(reason.operands[-1].sharding) if reason.operands else frozenset()
        certain = best and {*clues.axes} <= cut
        return AtOperand(replace(reason, certain=certain, candidates=len(fitting)), OWN)

    def _reason_at(self, clues: Clues, chosen: _Candidate) -> AtOperand | None:
        """The reason at an operand, with how sure it is."""
        reason = reason_at(self.program, chosen.op, chosen.number, clues.axes)
        if reason is None:
            return None
        certain = bool(chosen.place) and (reason.kind in _SURE or chosen.fit >= _FITS) and reason.kind is not _CHOICE
        certain = certain and _says_why(reason)
        moved = chosen.op.results[0] if reason.kind is ReasonKind.PARTIAL_SUM else chosen.op.operands[chosen.number]
        of_part = self._is_part(clues, self.program.graph.value(moved))
        return AtOperand(replace(reason, certain=certain, of_part=of_part), chosen.place)

    def expanded(self, clues: Clues, compiled: ShardyModule) -> Reason | None:
        """A reason at an operation that the compiler expands into others before it partitions, such as an FFT.

        Args:
            clues: What is known of a collective.
            compiled: The module that the compiler partitioned, which the operation is not in.
        """
        gone = self._expanded_in(compiled)
        here = [op for op in gone if not clues.numbers.isdisjoint(op.identity) or self._lies_at(clues, op)]
        if not here and (clues.numbers or len(gone) != 1):
            return None
        found = (reason_at(self.program, op, 0, clues.axes) for op in here or gone)
        reason = next((each for each in found if each is not None), None)
        if reason is None:
            return None
        if reason.kind is ReasonKind.HALO and clues.kind is not Kind.COLLECTIVE_PERMUTE:
            reason = replace(reason, kind=ReasonKind.NEEDS_WHOLE_DIMENSION)
        return replace(reason, certain=len(here) == 1, of_part=True)

    def _expanded_in(self, compiled: ShardyModule) -> list[ShardyOp]:
        """The operations that are no more in the module that the compiler partitioned."""
        if self._gone is None:
            kept = {(op.kind, op.op_name) for op in compiled.ops}
            ops = self.program.graph.module.ops
            self._gone = [op for op in ops if op.kind in _EXPANDED and (op.kind, op.op_name) not in kept]
        return self._gone

    def _lies_at(self, clues: Clues, op: ShardyOp) -> bool:
        """Whether what a collective lies between are an operation's operands and those who use its result."""
        graph, around = self.program.graph, clues.between
        makers = {number for value in map(graph.value, op.operands) for number in _number_of(graph.maker(value))}
        arguments = {self._argument_of(graph.value(operand)) for operand in op.operands}
        users = {number for user, _ in graph.real_users(graph.value(op.results[0])) for number in _number_of(user)}
        comes_from_there = around.makers <= makers and around.arguments <= arguments
        return comes_from_there and around.users <= users and bool(around.makers or around.arguments) and bool(users)

    def _fit(self, clues: Clues, value: ShardyValue) -> int:
        """How well an operand's part on one device, or the argument it comes from, fits a collective's operand."""
        if clues.argument is not None and self._argument_of(value) == clues.argument:
            return _SAME_ARGUMENT
        fit = self.matcher.alike(value, sharding_known(value), clues.operands)
        return max(
            fit, int(any(len(significant(value.shape)) == len(significant(operand)) for operand in clues.operands))
        )

    def _brings(self, clues: Clues, value: ShardyValue, op: ShardyOp, *, is_nothing_else: bool) -> bool:
        """Whether a transfer without a number takes an argument to one operation, whose operand it is."""
        if clues.numbers or clues.argument is None:
            return False
        if clues.kind is not Kind.COLLECTIVE_PERMUTE and not (clues.kind is Kind.ALL_GATHER and is_nothing_else):
            return False
        users = clues.between.users
        return bool(users) and {*users} <= {*op.numbers} and self._argument_of(value) == clues.argument

    def _is_part(self, clues: Clues, value: ShardyValue) -> bool:
        """Whether a collective moves something else than the whole part of an array that a device has."""
        wanted = prod(local_shape(value.shape, sharding_known(value), dict(self.program.graph.module.mesh)))
        return all(prod(operand) != wanted for operand in clues.operands)

    def _near(self, clues: Clues, *, is_nothing_else: bool) -> Iterator[ShardyOp]:
        """The operations that a collective was compiled from, or lies at, and those that use their results."""
        graph, around = self.program.graph, clues.between
        numbers = sorted(clues.numbers or around.makers | around.users)
        for number in numbers:
            made = list(self.of_number(number))
            yield from (op for op in made if op.kind not in BARRIERS)
            made += self._moves.get(number, ()) if is_nothing_else else ()
            for result in (result for op in made for result in op.results):
                yield from (user for user, _ in graph.real_users(graph.value(result)) if _may_move(user))

    def _argument_of(self, value: ShardyValue) -> str | None:
        root, _ = self.program.graph.root(value)
        return root.name if self.program.graph.is_program_argument(root) else None


def _says_why(reason: Reason) -> bool:
    """Whether a reason for an array that is needed otherwise says what of."""
    is_conflict = reason.kind is ReasonKind.OPERAND_CONFLICT
    return not is_conflict or reason.conflicting is not None or elsewhere_words(reason) is not None


def _number_of(op: ShardyOp | None) -> tuple[int, ...]:
    return () if op is None else op.numbers


def _may_move(op: ShardyOp) -> bool:
    """Whether the partitioner may have to move an operand of an operation."""
    return bool(op.operands) and op.kind not in MOVES | BARRIERS | _NO_TRANSFER
