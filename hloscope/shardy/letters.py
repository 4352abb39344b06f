"""Letters of dimensions, from einsums and the notation of arguments, passed from value to value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from hloscope.compiler.shardy_model import ShardyOp, ShardyValue
from hloscope.shardy.graph import ShardyGraph

_EINSUM = re.compile(r"(?:^|[/(])([A-Za-z.]+(?:,[A-Za-z.]+)*)->([A-Za-z.]*)[/)]")
_GRADIENT = "transpose("

Letters = tuple[str | None, ...]


def find_letters(graph: ShardyGraph, of_arguments: Sequence[Letters | None]) -> dict[int, Letters]:
    """The known letters, by value.

    One pass in text order: an operation takes letters from its operands and from the einsum in its name, by the factors
    of its sharding rule, and gives them to its results.

    Args:
        graph: The module.
        of_arguments: The letters in the notation of each argument of the program; None if it has none.
    """
    known = _find_argument_letters(graph, of_arguments)
    spelled = {op.index: _read_einsum_letters(op) for op in graph.module.ops if op.op_name and "->" in op.op_name}
    for index, factors in spelled.items():
        op = graph.module.ops[index]
        _give_letters(op.operands, op.rule.operands if op.rule else (), factors, graph, known)
        for operand in op.operands:
            _give_letters_back(operand, graph, known)
    for value in graph.module.values:
        if value.is_argument:
            _copy_letters(value, graph.outside(value), known)
        else:
            _set_result_letters(value, graph, spelled, known)
    return known


def _find_argument_letters(graph: ShardyGraph, given: Sequence[Letters | None]) -> dict[int, Letters]:
    known: dict[int, Letters] = {}
    for value in graph.module.values:
        letters = given[value.number] if graph.is_program_argument(value) and value.number < len(given) else None
        if letters is not None and len(letters) == len(value.shape):
            known[value.index] = letters
    return known


def _set_result_letters(
    value: ShardyValue, graph: ShardyGraph, spelled: Mapping[int, dict[int, str]], known: dict[int, Letters]
) -> None:
    op = graph.module.ops[value.owner]
    if op.rule is not None and value.number < len(op.rule.results):
        factors = _find_operand_factors(op.rule.operands, tuple(known.get(operand, ()) for operand in op.operands))
        factors = {**factors, **spelled[op.index]} if op.index in spelled else factors
        _give_letters((value.index,), (op.rule.results[value.number],), factors, graph, known)
        return
    before = graph.before(value)
    _copy_letters(value, before and before[0], known)


def _copy_letters(value: ShardyValue, other: ShardyValue | None, known: dict[int, Letters]) -> None:
    """Copies letters from another value of the same shape, for dimensions that have none."""
    if other is not None and other.index in known and other.shape == value.shape:
        known[value.index] = _fill_letters(known.get(value.index), known[other.index])


def _fill_letters(own: Letters | None, others: Letters) -> Letters:
    return others if own is None else tuple(old or new for old, new in zip(own, others, strict=True))


def render_letters(value: ShardyValue, known: Mapping[int, Letters]) -> tuple[str, ...]:
    """A word for each dimension: its letter, or its size if it has none or shares one with another dimension."""
    letters = known.get(value.index, (None,) * len(value.shape))
    return tuple(
        str(size) if letter is None or letters.count(letter) > 1 else letter
        for letter, size in zip(letters, value.shape, strict=True)
    )


@lru_cache(maxsize=4096)
def _find_operand_factors(
    mappings: tuple[tuple[tuple[int, ...], ...], ...], operands: tuple[Letters, ...]
) -> Mapping[int, str]:
    """The letter of each factor, except letters that another dimension of the operands also has."""
    factors: dict[int, str] = {}
    for letters, mapping in zip(operands, mappings, strict=False):
        for letter, dimension in zip(letters, mapping, strict=False):
            if letter is not None and len(dimension) == 1:
                factors.setdefault(dimension[0], letter)
    each = list(factors.values())
    return {factor: letter for factor, letter in factors.items() if each.count(letter) == 1}


def _give_letters(
    values: Sequence[int],
    mappings: Sequence[tuple[tuple[int, ...], ...]],
    factors: Mapping[int, str],
    graph: ShardyGraph,
    known: dict[int, Letters],
) -> None:
    """Gives letters to dimensions that are a single factor, unless they already have some."""
    for index, mapping in zip(values, mappings, strict=False):
        found = tuple(factors.get(dimension[0]) if len(dimension) == 1 else None for dimension in mapping)
        if any(found) and len(found) == len(graph.value(index).shape):
            known[index] = _fill_letters(known.get(index), found)


def _give_letters_back(operand: int, graph: ShardyGraph, known: dict[int, Letters]) -> None:
    """Passes the letters of an einsum's operand back to the values it is computed from element by element."""
    letters = known.get(operand)
    value = graph.value(operand)
    if letters is None:
        return
    for passed in graph.chain(value):
        if passed.shape != value.shape:
            return
        known[passed.index] = _fill_letters(known.get(passed.index), letters)


def _read_einsum_letters(op: ShardyOp) -> dict[int, str]:
    """The letter of each factor of an einsum's contraction; empty if the operation does not match its letters."""
    found = _EINSUM.search(op.op_name or "")
    if found is None or _GRADIENT in (op.op_name or "") or op.rule is None or len(op.operands) != len(op.rule.operands):
        return {}
    inputs = found.group(1).split(",")
    everything = "".join(inputs) + found.group(2)
    for order in (inputs, inputs[::-1]):
        factors = _match_factors(order, op)
        if factors is not None:
            upper = everything.lower() == everything
            return {factor: letter.upper() if upper else letter for factor, letter in factors.items()}
    return {}


def _match_factors(inputs: Sequence[str], op: ShardyOp) -> dict[int, str] | None:
    """Factors by letter, if each operand has one letter per dimension and each letter is one factor; otherwise None."""
    rule = op.rule
    if rule is None or [len(letters) for letters in inputs] != [len(mapping) for mapping in rule.operands]:
        return None
    factors: dict[int, str] = {}
    for letters, mapping in zip(inputs, rule.operands, strict=True):
        for letter, dimension in zip(letters, mapping, strict=True):
            if len(dimension) != 1 or factors.setdefault(dimension[0], letter) != letter:
                return None
    return factors if len(set(factors.values())) == len(factors) else None
