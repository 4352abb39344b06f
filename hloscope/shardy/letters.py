"""The letters of dimensions: those of einsums and of the arguments' notations, handed on from value to value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from hloscope.compiler.shardy_model import ShardyOp, ShardyValue
from hloscope.shardy.graph import ShardyGraph

_EINSUM = re.compile(r"(?:^|[/(])([A-Za-z.]+(?:,[A-Za-z.]+)*)->([A-Za-z.]*)[/)]")
_GRADIENT = "transpose("

Letters = tuple[str | None, ...]


def letters_of_values(graph: ShardyGraph, of_arguments: Sequence[Letters | None]) -> dict[int, Letters]:
    """Letters by value, as far as they are known.

    One pass in text order: an operation takes letters from its operands and from the einsum in its name, by the factors
    of its sharding rule, and gives them to its results.

    Args:
        graph: The module.
        of_arguments: The letters in the notation of each argument of the program; None where there are none.
    """
    known = _of_arguments(graph, of_arguments)
    spelled = {op.index: _einsum_letters(op) for op in graph.module.ops if op.op_name and "->" in op.op_name}
    for index, factors in spelled.items():
        op = graph.module.ops[index]
        _give(op.operands, op.rule.operands if op.rule else (), factors, graph, known)
        for operand in op.operands:
            _give_back(operand, graph, known)
    for value in graph.module.values:
        if value.is_argument:
            _take_over(value, graph.outside(value), known)
        else:
            _of_result(value, graph, spelled, known)
    return known


def _of_arguments(graph: ShardyGraph, given: Sequence[Letters | None]) -> dict[int, Letters]:
    known: dict[int, Letters] = {}
    for value in graph.module.values:
        letters = given[value.number] if graph.is_program_argument(value) and value.number < len(given) else None
        if letters is not None and len(letters) == len(value.shape):
            known[value.index] = letters
    return known


def _of_result(
    value: ShardyValue, graph: ShardyGraph, spelled: Mapping[int, dict[int, str]], known: dict[int, Letters]
) -> None:
    op = graph.module.ops[value.owner]
    if op.rule is not None and value.number < len(op.rule.results):
        factors = _operand_factors(op.rule.operands, tuple(known.get(operand, ()) for operand in op.operands))
        factors = {**factors, **spelled[op.index]} if op.index in spelled else factors
        _give((value.index,), (op.rule.results[value.number],), factors, graph, known)
        return
    before = graph.before(value)
    _take_over(value, before and before[0], known)


def _take_over(value: ShardyValue, other: ShardyValue | None, known: dict[int, Letters]) -> None:
    """The letters of another value for one of the same shape, as far as it has none of its own."""
    if other is not None and other.index in known and other.shape == value.shape:
        known[value.index] = _filled(known.get(value.index), known[other.index])


def _filled(own: Letters | None, others: Letters) -> Letters:
    return others if own is None else tuple(old or new for old, new in zip(own, others, strict=True))


def shown_letters(value: ShardyValue, known: Mapping[int, Letters]) -> tuple[str, ...]:
    """A word for each dimension: its letter, or its size where none is known or two dimensions came by the same."""
    letters = known.get(value.index, (None,) * len(value.shape))
    return tuple(
        str(size) if letter is None or letters.count(letter) > 1 else letter
        for letter, size in zip(letters, value.shape, strict=True)
    )


@lru_cache(maxsize=4096)
def _operand_factors(
    mappings: tuple[tuple[tuple[int, ...], ...], ...], operands: tuple[Letters, ...]
) -> Mapping[int, str]:
    """The letter of each factor; of none whose letter another dimension of the operands has too."""
    factors: dict[int, str] = {}
    for letters, mapping in zip(operands, mappings, strict=False):
        for letter, dimension in zip(letters, mapping, strict=False):
            if letter is not None and len(dimension) == 1:
                factors.setdefault(dimension[0], letter)
    each = list(factors.values())
    return {factor: letter for factor, letter in factors.items() if each.count(letter) == 1}


def _give(
    values: Sequence[int],
    mappings: Sequence[tuple[tuple[int, ...], ...]],
    factors: Mapping[int, str],
    graph: ShardyGraph,
    known: dict[int, Letters],
) -> None:
    """Letters to the dimensions of values that are one factor each, unless they have letters already."""
    for index, mapping in zip(values, mappings, strict=False):
        found = tuple(factors.get(dimension[0]) if len(dimension) == 1 else None for dimension in mapping)
        if any(found) and len(found) == len(graph.value(index).shape):
            known[index] = _filled(known.get(index), found)


def _give_back(operand: int, graph: ShardyGraph, known: dict[int, Letters]) -> None:
    """Letters of an einsum's operand to what it is computed from element by element."""
    letters = known.get(operand)
    value = graph.value(operand)
    if letters is None:
        return
    for passed in graph.chain(value):
        if passed.shape != value.shape:
            return
        known[passed.index] = _filled(known.get(passed.index), letters)


def _einsum_letters(op: ShardyOp) -> dict[int, str]:
    """The letter of each factor of an einsum's contraction; empty when the operation does not follow its letters."""
    found = _EINSUM.search(op.op_name or "")
    if found is None or _GRADIENT in (op.op_name or "") or op.rule is None or len(op.operands) != len(op.rule.operands):
        return {}
    inputs = found.group(1).split(",")
    everything = "".join(inputs) + found.group(2)
    for order in (inputs, inputs[::-1]):
        factors = _matched(order, op)
        if factors is not None:
            upper = everything.lower() == everything
            return {factor: letter.upper() if upper else letter for factor, letter in factors.items()}
    return {}


def _matched(inputs: Sequence[str], op: ShardyOp) -> dict[int, str] | None:
    """Factors by letter when each operand has one letter for each dimension, and each letter is one factor."""
    rule = op.rule
    if rule is None or [len(letters) for letters in inputs] != [len(mapping) for mapping in rule.operands]:
        return None
    factors: dict[int, str] = {}
    for letters, mapping in zip(inputs, rule.operands, strict=True):
        for letter, dimension in zip(letters, mapping, strict=True):
            if len(dimension) != 1 or factors.setdefault(dimension[0], letter) != letter:
                return None
    return factors if len(set(factors.values())) == len(factors) else None
