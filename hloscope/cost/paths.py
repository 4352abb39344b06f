"""The paths that collectives take: as the compiler prints them, and as the links of the torus are loaded by them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

import numpy as np

from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.tpu.torus import Torus

_EMITTER = re.compile(r'"emitter"\s*:\s*"([^"]*)"')
_STRATEGY = re.compile(r'"strategy"\s*:\s*"([^"]*)"')
_COLORS = re.compile(r"\bcolors:(\d+)")
_OFFLOAD = '"collective_offload_config"'
_RING = re.compile(r'"ring_type"\s*:\s*"([^"]*)"')
_PHASES = re.compile(r'"phase_rings"\s*:\s*\[(.*?)\]')
_RING_EMITTERS = {
    "1DAllGatherNonMajorDim": 1,
    "1DAllGatherNonMajorDimImbalanced": 2,
    "1DAllGatherOnMajorDim": 2,
    "SinglePhaseRingSumEmitter": 1,
}
_RING_STRATEGIES = frozenset({"StrategyRing", "UniDirection1DRingStrategy"})
_GRID_STRATEGIES = frozenset({"StrategyND", "StrategySubgroupND", "UniDirectionNDRingStrategy"})
_GRID_EMITTERS = ("2D", "3D")


class Way(StrEnum):
    """The kinds of path that a collective's data takes through the torus."""

    RING = "ring"
    GRID = "grid"
    EXCHANGE = "exchange"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What is printed about a collective's algorithm.

    Attributes:
        way: A ring through the group, rings along all axes of the torus at once, or every device with every other.
        directions: Directions in which a ring runs: 1 or 2.
        doubles_on_torus: Whether a ring that is said to be one runs both ways where the torus itself closes it.
        halves: Whether each part travels half way round in both directions, rather than all the way in one.
        offloaded: Whether a SparseCore carries it out.
        is_short: Whether it is the variant for little data, whose passes do not wait for each other.
        name: The emitter and strategy as printed; empty when nothing is.
    """

    way: Way = Way.UNKNOWN
    directions: int = 2
    doubles_on_torus: bool = False
    halves: bool = False
    offloaded: bool = False
    is_short: bool = False
    name: str = ""


NOT_PRINTED = Algorithm()


@lru_cache(maxsize=4096)
def read_algorithm(backend_config: str) -> Algorithm:
    """Reads the algorithm from a collective's raw `backend_config`.

    A colour is a part of the data with a way of its own. Those of a "UniDirection" strategy run one way each; the one
    of `StrategyRing` must run both ways round a closed axis, where libtpu prefers it to two that run one way each.

    Source: the emitters and strategies that libtpu 0.0.42 and 0.0.50 print for v4 to 7x; a SparseCore's collective
    prints its rings instead, one list of phases for each colour.
    """
    if _OFFLOAD in backend_config:
        return _offloaded(backend_config)
    emitter, strategy = _first(_EMITTER, backend_config), _first(_STRATEGY, backend_config)
    name = f"{emitter}/{strategy}" if strategy else emitter
    if strategy in _GRID_STRATEGIES or emitter.startswith(_GRID_EMITTERS):
        return Algorithm(way=Way.GRID, is_short="Short" in emitter, name=name)
    if strategy in _RING_STRATEGIES:
        colors = _COLORS.search(backend_config)
        directions = min(int(colors[1]) if colors else 1, 2) or 1
        doubles = strategy == "StrategyRing"
        return Algorithm(way=Way.RING, directions=directions, doubles_on_torus=doubles, name=name)
    if emitter in _RING_EMITTERS:
        directions = _RING_EMITTERS[emitter]
        return Algorithm(way=Way.RING, directions=directions, halves=directions == 2, name=name)
    if emitter == "AllToAllEmitter":
        return Algorithm(way=Way.EXCHANGE, name=name)
    return Algorithm(name=name)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _offloaded(backend_config: str) -> Algorithm:
    colors = [_RING.findall(phases) for phases in _PHASES.findall(backend_config)]
    if not colors:
        return Algorithm(offloaded=True, name="SparseCore")
    if max(map(len, colors)) > 1:
        return Algorithm(way=Way.GRID, offloaded=True, name="SparseCore grid")
    directions = len({ring for phases in colors for ring in phases})
    return Algorithm(way=Way.RING, directions=min(max(directions, 1), 2), offloaded=True, name="SparseCore ring")


Groups = tuple[tuple[int, ...], ...]
Pairs = tuple[tuple[int, int], ...]
BETWEEN_SLICES = "data-center network"
"""The rule of what crosses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What is needed to price one collective within a slice.

    Attributes:
        kind: What it does.
        groups: Groups of devices of the slice; for a permute, (source, target) pairs.
        payload_bytes: The larger side on one device.
        algorithm: What the compiler prints about it.
        arrays: How many arrays it moves at once.
    """

    kind: Kind
    groups: Groups
    payload_bytes: int
    algorithm: Algorithm = NOT_PRINTED
    arrays: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTime:
    """The time of one collective when nothing else uses its links.

    Attributes:
        bandwidth_us: Bytes on the busiest link over its bandwidth.
        latency_us: The fixed time, and what each step adds.
        rule: The rule of the model that made it.
        links: The directed links it uses, flattened; None for the data-center network, which is one for all.
        is_offloaded: Whether a SparseCore carries it out.
        pairs: Of a permute its (source, target) devices, none of which waits for another; empty for all else.
        loads: The same links with how many times `each_bytes` cross each; None for the data-center network.
        each_bytes: What crosses a link with a load of 1; of the data-center network what leaves the busiest host.
        loads_bound: How the loads relate to the truth.
    """

    bandwidth_us: float
    latency_us: float
    rule: str
    links: np.ndarray | None = field(default=None, compare=False)
    is_offloaded: bool = False
    pairs: Pairs = field(default=(), compare=False)
    loads: np.ndarray | None = field(default=None, compare=False)
    each_bytes: float = field(default=0.0, compare=False)
    loads_bound: Bound = field(default=Bound.EXACT, compare=False)

    @property
    def time_us(self) -> float:
        """Both together."""
        return self.bandwidth_us + self.latency_us

    @property
    def is_between_slices(self) -> bool:
        """Whether the data-center network carries it."""
        return self.rule == BETWEEN_SLICES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Path:
    """Where some transfers go at once.

    Attributes:
        load: Transfers over the busiest directed link.
        inner: Transfers from the busiest device to others of its own chip.
        hops: Links on the longest of their ways.
        links: The directed links in use, flattened.
        loads: Transfers over each of them.
        bound: How the loads of links that are not the busiest relate to the truth.
    """

    load: float
    inner: int
    hops: int
    links: np.ndarray
    loads: np.ndarray
    bound: Bound = Bound.EXACT


def path_on(torus: Torus, pairs: Iterable[tuple[int, int]]) -> Path:
    """Routes (source, target) transfers over a slice, all at once."""
    ends = list(pairs)
    loads = torus.link_loads(ends)
    within: Counter[int] = Counter()
    if torus.devices_per_chip > 1:
        within.update(a for a, b in ends if a != b and torus.chip_of(a) == torus.chip_of(b))
    return Path(
        load=float(loads.max(initial=0.0)),
        inner=max(within.values(), default=0),
        hops=torus.longest_way(ends),
        links=(loads > 0).reshape(-1),
        loads=loads.reshape(-1),
    )
