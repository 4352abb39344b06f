"""The paths of collectives, as the compiler prints them, and the load that they put on the links of the torus."""

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


class RouteKind(StrEnum):
    """The kind of path that a collective's data takes through the torus."""

    RING = "ring"
    GRID = "grid"
    EXCHANGE = "exchange"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """The printed facts about a collective's algorithm.

    Attributes:
        way: A ring through the group, rings along all axes of the torus at once, or every device with every other.
        directions: Directions in which a ring runs: 1 or 2.
        doubles_on_torus: Whether a single printed ring runs both ways if the torus itself closes it.
        halves: Whether each part travels halfway around in both directions, rather than all the way in one.
        offloaded: Whether a SparseCore carries it out.
        is_short: Whether it is the variant for little data, whose passes do not wait for each other.
        name: The emitter and strategy as printed; empty if there are none.
    """

    way: RouteKind = RouteKind.UNKNOWN
    directions: int = 2
    doubles_on_torus: bool = False
    halves: bool = False
    offloaded: bool = False
    is_short: bool = False
    name: str = ""


UNPRINTED_ALGORITHM = Algorithm()


@lru_cache(maxsize=4096)
def read_algorithm(backend_config: str) -> Algorithm:
    """Reads the algorithm from a collective's raw `backend_config`.

    A colour is a part of the data with a path of its own. Those of a "UniDirection" strategy run one way each; the one
    of `StrategyRing` must run both ways around a closed axis, where libtpu prefers it to two that run one way each.

    Source: the emitters and strategies that libtpu 0.0.42 and 0.0.50 print for v4 to 7x; a SparseCore's collective
    prints its rings instead, one list of phases for each colour.
    """
    if _OFFLOAD in backend_config:
        return _read_offloaded(backend_config)
    emitter, strategy = _match_first(_EMITTER, backend_config), _match_first(_STRATEGY, backend_config)
    name = f"{emitter}/{strategy}" if strategy else emitter
    if strategy in _GRID_STRATEGIES or emitter.startswith(_GRID_EMITTERS):
        return Algorithm(way=RouteKind.GRID, is_short="Short" in emitter, name=name)
    if strategy in _RING_STRATEGIES:
        colors = _COLORS.search(backend_config)
        directions = min(int(colors[1]) if colors else 1, 2) or 1
        doubles = strategy == "StrategyRing"
        return Algorithm(way=RouteKind.RING, directions=directions, doubles_on_torus=doubles, name=name)
    if emitter in _RING_EMITTERS:
        directions = _RING_EMITTERS[emitter]
        return Algorithm(way=RouteKind.RING, directions=directions, halves=directions == 2, name=name)
    if emitter == "AllToAllEmitter":
        return Algorithm(way=RouteKind.EXCHANGE, name=name)
    return Algorithm(name=name)


def _match_first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _read_offloaded(backend_config: str) -> Algorithm:
    colors = [_RING.findall(phases) for phases in _PHASES.findall(backend_config)]
    if not colors:
        return Algorithm(offloaded=True, name="SparseCore")
    if max(map(len, colors)) > 1:
        return Algorithm(way=RouteKind.GRID, offloaded=True, name="SparseCore grid")
    directions = len({ring for phases in colors for ring in phases})
    return Algorithm(way=RouteKind.RING, directions=min(max(directions, 1), 2), offloaded=True, name="SparseCore ring")


Groups = tuple[tuple[int, ...], ...]
Pairs = tuple[tuple[int, int], ...]
BETWEEN_SLICES = "data-center network"
"""The rule of transfers over the data-center network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTransfer:
    """The facts needed to price one collective within a slice.

    Attributes:
        kind: The kind of the collective.
        groups: Groups of devices of the slice; for a permute, (source, target) pairs.
        payload_bytes: Bytes of the larger side on one device.
        algorithm: The algorithm that the compiler prints.
        arrays: Number of arrays that it moves at once.
    """

    kind: Kind
    groups: Groups
    payload_bytes: int
    algorithm: Algorithm = UNPRINTED_ALGORITHM
    arrays: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTime:
    """The time of one collective if nothing else uses its links.

    Attributes:
        bandwidth_us: Bytes on the busiest link divided by its bandwidth.
        latency_us: The fixed time and that of each step.
        rule: The rule of the model that priced it.
        links: The directed links it uses, flattened; None for the data-center network, which is one for all.
        is_offloaded: Whether a SparseCore carries it out.
        pairs: For a permute, its (source, target) devices, which do not wait for each other; empty for all others.
        loads: The number of times that `each_bytes` cross each of these links; None for the data-center network.
        each_bytes: Bytes over a link with a load of 1; for the data-center network, bytes from the busiest host.
        loads_bound: Whether the loads are exact or bounds.
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
        """The total of both times."""
        return self.bandwidth_us + self.latency_us

    @property
    def is_between_slices(self) -> bool:
        """True if the data-center network carries it."""
        return self.rule == BETWEEN_SLICES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkPath:
    """The path of concurrent transfers.

    Attributes:
        load: Transfers over the busiest directed link.
        inner: Transfers from the busiest device to others of its own chip.
        hops: Number of links on the longest route.
        links: The directed links in use, flattened.
        loads: Transfers over each of them.
        bound: Whether the loads of links other than the busiest are exact or bounds.
    """

    load: float
    inner: int
    hops: int
    links: np.ndarray
    loads: np.ndarray
    bound: Bound = Bound.EXACT


def route_pairs(torus: Torus, pairs: Iterable[tuple[int, int]]) -> LinkPath:
    """Routes concurrent (source, target) transfers over a slice."""
    ends = list(pairs)
    loads = torus.link_loads(ends)
    within: Counter[int] = Counter()
    if torus.devices_per_chip > 1:
        within.update(a for a, b in ends if a != b and torus.chip_of(a) == torus.chip_of(b))
    return LinkPath(
        load=float(loads.max(initial=0.0)),
        inner=max(within.values(), default=0),
        hops=torus.longest_way(ends),
        links=(loads > 0).reshape(-1),
        loads=loads.reshape(-1),
    )
