"""A graph laid out in layers, each node below all that it needs; the layers and generations are networkx's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

_WAY = 10.0
"""The width that an edge takes where it passes a layer."""
_SWEEPS = 6


@dataclass(slots=True)
class Layers:
    """Where everything stands.

    Attributes:
        rows: What stands in each layer, from left to right; an edge that passes a layer stands there too.
        above: What stands a layer higher and is joined to each.
        below: What stands a layer lower.
        ways: What each edge passes, from its source to its target.
        x: The middle of each.
    """

    rows: list[list[str]]
    above: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    below: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    ways: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    x: dict[str, float] = field(default_factory=dict)


def laid_out(nodes: Sequence[str], edges: Sequence[tuple[str, str]], *, width: float, gap: float) -> Layers:
    """Lays a graph out in layers, in an order with few crossings, and with what is joined near to each other.

    Args:
        nodes: Their names.
        edges: From what is needed to what needs it, each once.
        width: What each node takes.
        gap: What stays free beside it.
    """
    layer = _layer_of(nodes, edges)
    layers = Layers(rows=[[] for _ in range(max(layer.values(), default=-1) + 1)])
    for each, number in layer.items():
        layers.rows[number].append(each)
    for source, target in edges:
        _join(layers, layer, source, target)
    for sweep in range(_SWEEPS):
        for row in layers.rows if sweep % 2 == 0 else layers.rows[::-1]:
            _order(row, layers.above if sweep % 2 == 0 else layers.below, layers.rows)
    _place(layers, dict.fromkeys(nodes, width), gap)
    return layers


def _layer_of(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The layer of each node: below all that it needs, and what needs nothing just above what needs it."""
    import networkx as nx

    graph: Any = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    while not nx.is_directed_acyclic_graph(graph):  # in text that nobody could run
        graph.remove_edge(*nx.find_cycle(graph)[-1][:2])
    found = {each: row for row, line in enumerate(nx.topological_generations(graph)) for each in line}
    for each in reversed(list(nx.topological_sort(graph))):
        if graph.in_degree(each) == 0 and graph.out_degree(each) > 0:
            found[each] = min(found[user] for user in graph.successors(each)) - 1
    least = min(found.values(), default=0)
    return {each: found[each] - least for each in nodes}


def _join(layers: Layers, layer: Mapping[str, int], source: str, target: str) -> None:
    """Has an edge pass the layers between its ends."""
    way = [source]
    for row in range(layer[source] + 1, layer[target]):
        passing = f"\0{len(layers.ways)}/{row}"
        layers.rows[row].append(passing)
        way.append(passing)
    way.append(target)
    layers.ways[source, target] = way
    for here, there in pairwise(way):
        layers.below[here].append(there)
        layers.above[there].append(here)


def _order(row: list[str], joined: Mapping[str, Sequence[str]], rows: Sequence[Sequence[str]]) -> None:
    """Sorts a layer by where, on the average, that stands which each is joined to."""
    wanted = {other for each in row for other in joined.get(each, ())}
    position = {each: number for line in rows for number, each in enumerate(line) if each in wanted}
    means = {}
    for number, each in enumerate(row):
        others = [position[other] for other in joined.get(each, ()) if other in position]
        means[each] = sum(others) / len(others) if others else float(number)
    row.sort(key=means.__getitem__)


def _place(layers: Layers, widths: Mapping[str, float], gap: float) -> None:
    """Gives everything its place from left to right: below what it is joined to, as far as its neighbors allow."""
    for row in layers.rows:
        layers.x.update(zip(row, accumulate((widths.get(each, _WAY) + gap for each in row), initial=0.0), strict=False))
    for sweep in range(_SWEEPS):
        joined = layers.above if sweep % 2 == 0 else layers.below
        for row in layers.rows if sweep % 2 == 0 else layers.rows[::-1]:
            _settle(
                layers,
                row,
                [_wanted(layers, joined, each) for each in row],
                [widths.get(each, _WAY) + gap for each in row],
            )


def _wanted(layers: Layers, joined: Mapping[str, Sequence[str]], each: str) -> float:
    """In the middle of what it is joined to; else where it is."""
    others = joined.get(each, ())
    return sum(layers.x[other] for other in others) / len(others) if others else layers.x[each]


def _settle(layers: Layers, row: Sequence[str], wanted: Sequence[float], widths: Sequence[float]) -> None:
    """The places nearest to those that are wanted at which nothing overlaps: neighbors in each other's way share."""
    blocks: list[tuple[float, list[int]]] = []  # the place of each block's first, and who is in it
    offsets = [0.0]
    for before, after in pairwise(widths):
        offsets.append(offsets[-1] + (before + after) / 2)
    for number in range(len(row)):
        block = (wanted[number] - offsets[number], [number])
        while blocks and blocks[-1][0] > block[0]:
            start, members = blocks.pop()
            together = len(members) + len(block[1])
            block = ((start * len(members) + block[0] * len(block[1])) / together, members + block[1])
        blocks.append(block)
    for start, members in blocks:
        for number in members:
            layers.x[row[number]] = start + offsets[number]
