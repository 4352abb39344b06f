"""Replica groups written in every form that XLA prints, by brute force and without the package's own reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations
from math import prod

import numpy as np

Groups = tuple[tuple[int, ...], ...]
PRINTED = re.compile(
    r"replica_groups=(?P<list>\{\{[\d,{}]*\}\})"
    r"|replica_groups=\[(?P<shape>[\d,]+)\]<=\[(?P<reshape>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
    r"|replica_groups=mesh\[(?P<axes>[^\]]*)\](?:, device_ids=\(\[(?P<ids>[\d,]+)\](?:T\((?P<turn>[\d,]+)\))?\))?"
    r" \{(?P<names>[^}]*)\}"
)


def integers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def counted(shape: str, order: str | None) -> np.ndarray:
    """0, 1, 2, … in a shape, transposed."""
    ids = np.arange(prod(integers(shape))).reshape(integers(shape))
    return ids.transpose(integers(order)) if order else ids


def groups_of(found: re.Match[str]) -> Groups:
    """The groups that one printed form means."""
    if found["list"]:
        return tuple(tuple(integers(group)) for group in re.findall(r"\{([\d,]+)\}", found["list"]))
    if found["shape"]:
        return as_groups(counted(found["reshape"], found["order"]).reshape(integers(found["shape"])))
    return groups_of_mesh(found)


def groups_of_mesh(found: re.Match[str]) -> Groups:
    """Groups over some named axes, or parts `name:(devices before it)size` of them."""
    names, sizes = zip(*re.findall(r"'(\w+)'=(\d+)", found["axes"]), strict=True)
    sizes = [int(size) for size in sizes]
    ids = counted(found["ids"], found["turn"]) if found["ids"] else np.arange(prod(sizes))
    parts: list[tuple[str, int, int]] = []
    for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", found["names"]):
        parts.append((name, int(before or 1), int(size or sizes[names.index(name)])))
    shape: list[int] = []
    place: dict[tuple[str, int], int] = {}
    for name, size in zip(names, sizes, strict=True):
        before = 1
        for _, start, length in sorted(part for part in parts if part[0] == name):
            shape += [start // before, length]
            place[name, start] = len(shape) - 1
            before = start * length
        shape.append(size // before)
    moved = [place[name, start] for name, start, _ in parts]
    rest = [dimension for dimension in range(len(shape)) if dimension not in moved]
    return as_groups(ids.reshape(shape).transpose(rest + moved).reshape(-1, prod(shape[one] for one in moved)))


def as_groups(rows: np.ndarray) -> Groups:
    return tuple(tuple(int(one) for one in row) for row in rows)


def primes(number: int) -> list[int]:
    for factor in range(2, number + 1):
        if number % factor == 0:
            return [factor, *primes(number // factor)]
    return []


def written(groups: Groups) -> Iterator[str]:
    """The same groups in all forms: a list, an iota, a mesh of invented axes, a mesh of permuted devices."""
    yield "replica_groups={" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"
    count, size = sum(map(len, groups)), len(groups[0])
    factors = primes(count)
    for order in permutations(range(len(factors))):
        ids = np.arange(count).reshape(factors).transpose(order)
        if as_groups(ids.reshape(-1, size)) == groups:
            yield from written_over(factors, order, size)
            return
    raise AssertionError(f"{groups} are no product of axes")


def written_over(factors: list[int], order: tuple[int, ...], size: int) -> Iterator[str]:
    """Forms of the groups of `size` that `order` makes of devices counted over `factors`."""
    count, dimensions, turn = prod(factors), ",".join(map(str, factors)), ",".join(map(str, order))
    yield f"replica_groups=[{count // size},{size}]<=[{dimensions}]T({turn})"
    inner = len(factors)
    while prod(factors[one] for one in order[inner:]) < size:
        inner -= 1
    axes = ",".join(f"'axis_{index}'={factor}" for index, factor in enumerate(factors))
    names = ",".join(f"'axis_{one}'" for one in order[inner:])
    yield f"replica_groups=mesh[{axes}] {{{names}}}"
    yield f"replica_groups=mesh['k'={count // size},'n'={size}], device_ids=([{dimensions}]T({turn})) {{'n'}}"
    yield f"replica_groups=mesh['all'={count}], device_ids=([{dimensions}]T({turn})) {{'all':({count // size}){size}}}"
