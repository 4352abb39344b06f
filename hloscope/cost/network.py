"""The time of one collective on the links of a slice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache, partial
from itertools import chain, permutations
from math import prod

import numpy as np

from hloscope.model.vocabulary import Bound, Kind
from hloscope.tpu.estimates import KnownAlgorithm
from hloscope.tpu.generation import CONSTANTS, Chip, Constants
from hloscope.tpu.torus import Torus, order_ring

# ---- the paths of collectives, as the compiler prints them, and the load that they put on the links of the torus

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


def make_algorithm(known: KnownAlgorithm | None) -> Algorithm:
    """The algorithm of a collective of which it is known, as it is read where it is printed."""
    if known is None:
        return UNPRINTED_ALGORITHM
    emitter, _, strategy = known.algorithm.partition("/")
    return read_algorithm(f'"emitter":"{emitter}","strategy":"{strategy}","debug":"colors:{known.colors}"')


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


_MICROSECONDS = 1e6
_DCN_ROUND_TRIP_US = 20.0
"""The order of magnitude of a round trip between hosts of one data center; not measured."""

_MOST_PAIRS = 512
"""Pairs of a permute whose paths are examined individually; of more, all are assumed to share what one does."""

_MOST_ROUTED_PAIRS = 1 << 16
"""Pairs of an all-to-all that are routed individually; beyond, the bisection of the groups' blocks is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The links of one slice, with a cache for the paths of groups.

    Attributes:
        torus: The positions of the chips.
        chip: The figures of a chip.
        constants: The measured constants.
    """

    torus: Torus
    chip: Chip
    constants: Constants = CONSTANTS
    _paths: dict[object, LinkPath] = field(default_factory=dict, init=False, repr=False, compare=False)
    _shared: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def time_of(self, transfer: NetworkTransfer) -> NetworkTime | None:
        """The time of a collective over ICI; None if its operation is unknown.

        A ring of n devices moves (n-1)/n of the payload over each of its edges, twice for an all-reduce, and takes n-1
        steps. The busiest directed link, over all groups and cores that use it at once, sets the pace.

        Source: the scaling book, "Sharded Matrices" (rings) and "How to Think About TPUs" (links); Patarasuk and Yuan,
            2009, for the bytes on a ring.
        """
        if transfer.kind is Kind.OPAQUE:
            return None
        if transfer.kind is Kind.COLLECTIVE_PERMUTE:
            return self._permute(transfer)
        size = max(map(len, transfer.groups), default=1)
        if size <= 1:
            return NetworkTime(bandwidth_us=0.0, latency_us=0.0, rule="nothing to move")
        if transfer.kind in (Kind.ALL_TO_ALL, Kind.RAGGED_ALL_TO_ALL):
            return self._exchange(transfer, size)
        way = transfer.algorithm.way
        if way is RouteKind.UNKNOWN:
            alone = size == 2 or transfer.kind is Kind.COLLECTIVE_BROADCAST
            way = RouteKind.RING if alone else RouteKind.GRID
        return self._grid(transfer, size) if way is RouteKind.GRID else self._ring(transfer, size)

    def time_between_slices(
        self, kind: Kind, wire_bytes: int, senders: Iterable[tuple[int, int]]
    ) -> NetworkTime | None:
        """The time of a transfer over the data-center network; None if its bandwidth is unknown.

        Args:
            kind: Its kind; an all-reduce crosses twice.
            wire_bytes: Bytes that one device sends.
            senders: (slice, device of the slice) of each device that sends. Those of a host share its chips' bandwidth.

        Source: the scaling book, "How to Think About TPUs": every chip adds its share of DCN bandwidth to its host.
        """
        if self.chip.dcn_bytes_per_s is None:
            return None
        hosts = Counter((index, self.torus.host_of(device)) for index, device in senders)
        host_bytes_per_s = self.chip.dcn_bytes_per_s * self.constants.dcn_share * prod(self.torus.host_shape)
        seconds = wire_bytes * max(hosts.values(), default=1) / host_bytes_per_s
        crossings = 2 if kind is Kind.ALL_REDUCE else 1
        return NetworkTime(
            bandwidth_us=seconds * _MICROSECONDS,
            latency_us=crossings * _DCN_ROUND_TRIP_US,
            rule=BETWEEN_SLICES,
            each_bytes=wire_bytes * max(hosts.values(), default=1),
        )

    def _permute(self, transfer: NetworkTransfer) -> NetworkTime:
        if not any(source != target for source, target in transfer.groups):
            return NetworkTime(bandwidth_us=0.0, latency_us=0.0, rule="nothing to move")
        pairs = tuple((pair[0], pair[1]) for pair in transfer.groups)
        path = self._path(("permute", transfer.groups), lambda: pairs)
        found = self._timed(transfer, path, transfer.payload_bytes, path.hops, self.constants.link_share, "permute")
        return replace(found, pairs=pairs)

    def shared_part(self, one: NetworkTime, other: NetworkTime) -> float:
        """The part of one transfer that shares links with another one while both are in progress.

        The devices of a permute wait for their own data alone, so that a permute in a chain of them is slowed as its
        pairs are on average: by those whose way crosses a link that the other uses. All other collectives go step by
        step, in which all wait for the slowest.
        """
        if one.links is not None and other.links is not None and not np.any(one.links & other.links):
            return 0.0
        if one.links is None or other.links is None or not one.pairs or not other.pairs or len(one.pairs) > _MOST_PAIRS:
            return 1.0
        key = (id(one.links), id(other.links))
        if key not in self._shared:
            crossing = [pair for pair in one.pairs if np.any(self._way(pair) & other.links)]
            moving = [pair for pair in one.pairs if pair[0] != pair[1]]
            self._shared[key] = len(crossing) / len(moving)
        return self._shared[key]

    def _way(self, pair: tuple[int, int]) -> np.ndarray:
        """The links between two devices."""
        return self._path(("way", pair), lambda: (pair,)).links

    def _ring(self, transfer: NetworkTransfer, size: int) -> NetworkTime:
        algorithm = transfer.algorithm
        doubled = (
            algorithm.directions == 1 and algorithm.doubles_on_torus and all(map(self._goes_round, transfer.groups))
        )
        two_way = algorithm.directions == 2 or doubled
        path = self._path(("ring", transfer.groups, two_way), lambda: self._ring_pairs(transfer.groups, two_way))
        passes = 2 if transfer.kind is Kind.ALL_REDUCE else 1
        part = 1.0 if transfer.kind is Kind.COLLECTIVE_BROADCAST else (size - 1) / size
        sent = passes * part * transfer.payload_bytes / (2 if two_way else 1)
        slow = size > 2 and (doubled or not two_way)
        share = self.constants.one_way_ring_share if slow else self.constants.link_share
        steps = size // 2 if algorithm.halves and path.hops <= 1 else size - 1
        return self._timed(transfer, path, sent, passes * steps, share, _name_ring_rule(size, two_way, doubled))

    def _goes_round(self, group: Sequence[int]) -> bool:
        """Returns whether a group is one closed axis of the torus."""
        places = {self.torus.coordinates(device) for device in group}
        axes = [axis for axis in range(len(self.torus.shape)) if len({place[axis] for place in places}) > 1]
        return (
            len(axes) == 1 and self.torus.wraparound[axes[0]] and len(places) == self.torus.shape[axes[0]] == len(group)
        )

    def _ring_pairs(self, groups: Groups, two_way: bool) -> Iterator[tuple[int, int]]:
        for group in groups:
            yield from _pair_neighbors(order_ring(self.torus, group), both_ways=two_way)

    def _grid(self, transfer: NetworkTransfer, size: int) -> NetworkTime:
        """The time of a collective over several axes, each with a share of the data, in rings of both directions.

        Source: the scaling book: over k axes of the torus the time divides by k; the strategies that libtpu prints
            name as many colours as there are axes, each beginning with another one.
        """
        paths = {
            axis: self._path(("axis", transfer.groups, axis), partial(self._lines, transfer.groups, axis))
            for axis, count in enumerate(self.torus.shape)
            if count > 1
        }
        paths = {axis: path for axis, path in paths.items() if path.load > 0}
        if not paths:
            return self._ring(transfer, size)
        together = self._at_once(transfer.groups, size, paths)
        passes = 2 if transfer.kind is Kind.ALL_REDUCE else 1
        share, rule = self._grid_rule(transfer, len(paths))
        sent = passes * (size - 1) / size * transfer.payload_bytes
        steps = (1 if transfer.algorithm.is_short else passes) * sum(self._steps(transfer.groups))
        return self._timed(transfer, together, sent, steps, share, rule)

    def _at_once(self, groups: Groups, size: int, paths: Mapping[int, LinkPath]) -> LinkPath:
        """The path of a collective along several axes at once, each of which carries a share."""
        key = ("grid", groups, size)
        if key not in self._paths:
            load, carried = self._load_in_phases(groups, size, {axis: path.load for axis, path in paths.items()})
            self._paths[key] = LinkPath(
                load=load,
                inner=int(any(len(set(map(self.torus.chip_of, group))) < len(group) for group in groups)),
                hops=0,
                links=np.any([path.links for path in paths.values()], axis=0),
                loads=np.sum([path.loads / path.load * carried[axis] for axis, path in paths.items()], axis=0),
            )
        return self._paths[key]

    def _grid_rule(self, transfer: NetworkTransfer, axis_count: int) -> tuple[float, str]:
        """The share of the links that rings along some axes reach, and the rule's name.

        Gathers whose emitter is not printed are those of asynchronous collective fusions: only DMA engines take part in
        them, while the others pass everything through the TensorCore.
        """
        constants = self.constants
        if transfer.algorithm.way is RouteKind.GRID:
            share, rule = constants.grid_share, "rings along several axes"
        elif transfer.kind is Kind.ALL_GATHER:
            share, rule = constants.dma_grid_share, "asynchronous gather"
        else:
            share, rule = constants.grid_share, "first principles"
        return share if axis_count > 1 else constants.link_share, rule

    def _load_in_phases(
        self, groups: Groups, size: int, loads: Mapping[int, float]
    ) -> tuple[float, Mapping[int, float]]:
        """The load of the busiest links in each phase, per byte that a device sends in total.

        A gather over k axes is done in k phases. A k-th of the data, a colour, begins with each of the axes; what was
        gathered along one is gathered along the next. The slowest axis sets the pace of a phase. A reduce-scatter is
        the same backwards.

        Returns:
            The load that sets the pace, summed over phases, and the total load of the busiest link of each axis.

        Source: the strategies that libtpu prints, which name colours, phases and the devices of each.
        """
        widths = {axis: self._widest(groups, axis) for axis in loads}
        order = list(loads)
        if prod(widths.values()) * self.torus.devices_per_chip < size:
            load = 1 / sum(2 / load for load in loads.values())
            return load, dict.fromkeys(order, load)
        paces, by_axis, held = 0.0, dict.fromkeys(order, 0.0), [1.0] * len(order)
        for phase in range(len(order)):
            carried = []
            for colour in range(len(order)):
                axis = order[(colour + phase) % len(order)]
                carried.append(held[colour] * (widths[axis] - 1) / 2 * loads[axis])
                by_axis[axis] += carried[-1]
                held[colour] *= widths[axis]
            paces += max(carried)
        whole = len(order) * (prod(widths.values()) - 1)
        return paces / whole, {axis: amount / whole for axis, amount in by_axis.items()}

    def _widest(self, groups: Groups, axis: int) -> int:
        """The largest number of a group's chips along one axis."""
        return max(len({self.torus.coordinates(device)[axis] for device in group}) for group in groups)

    def _lines(self, groups: Groups, axis: int) -> Iterator[tuple[int, int]]:
        """The lines of chips along one axis within each group, in both directions."""
        for group in groups:
            lines: dict[tuple[int, ...], dict[int, int]] = {}
            for device in group:
                place = self.torus.coordinates(device)
                lines.setdefault((*place[:axis], *place[axis + 1 :]), {}).setdefault(place[axis], device)
            for line in lines.values():
                yield from _pair_neighbors([line[position] for position in sorted(line)])

    def _steps(self, groups: Groups) -> list[int]:
        """Steps along each axis from the first to the last member of a group, or halfway around a closed axis."""
        places = [[self.torus.coordinates(device) for device in group] for group in groups]
        found = []
        for axis, (edge, closed) in enumerate(zip(self.torus.shape, self.torus.wraparound, strict=True)):
            count = max(len({place[axis] for place in group}) for group in places)
            found.append(count // 2 if closed and count == edge else count - 1)
        return found

    def _exchange(self, transfer: NetworkTransfer, size: int) -> NetworkTime:
        """The time of sending an equal part from each device to every other one, at the pace of the bisection.

        Source: the scaling book, "Sharded Matrices": on a ring of n devices with W per link and direction, an
            all-to-all of V bytes per device takes n V / (8 W), a quarter of an all-gather.
        """
        pairs = sum(len(group) * (len(group) - 1) for group in transfer.groups)
        if pairs <= _MOST_ROUTED_PAIRS:
            path = self._path(
                ("exchange", transfer.groups),
                lambda: chain.from_iterable(permutations(group, 2) for group in transfer.groups),
            )
        else:
            path = self._bisection(transfer.groups, size)
        steps = sum(self._steps(transfer.groups))
        sent = transfer.payload_bytes / size
        return self._timed(transfer, path, sent, steps, self.constants.link_share, "all-to-all")

    def _bisection(self, groups: Groups, size: int) -> LinkPath:
        """The load of large groups' busiest link, halfway along the longest side of the block that each spans."""
        longest = 0.0
        for axis, (edge, closed) in enumerate(zip(self.torus.shape, self.torus.wraparound, strict=True)):
            for group in groups:
                positions = {self.torus.coordinates(device)[axis] for device in group}
                span = max(positions) - min(positions) + 1
                longest = max(longest, span / (8 if closed and span == edge else 4) if span > 1 else 0.0)
        cores = self.torus.devices_per_chip
        load, links = longest * size * cores, prod(self.torus.shape) * len(self.torus.shape) * 2
        return LinkPath(
            load=load,
            inner=cores - 1,
            hops=0,
            links=np.ones(links, dtype=bool),
            loads=np.full(links, load),
            bound=Bound.AT_MOST,
        )

    def _path(self, key: object, pairs: Callable[[], Iterable[tuple[int, int]]]) -> LinkPath:
        """The load of the busiest link, and the links in use; cached under `key`.

        If the shorter paths around rings would load a link more than open lines would, the open lines are used: more
        links make nothing slower.
        """
        if key not in self._paths:
            found = route_pairs(self.torus, pairs())
            if any(self.torus.wraparound):
                straight = route_pairs(replace(self.torus, wraparound=(False,) * len(self.torus.shape)), pairs())
                found = straight if straight.load < found.load else found
            self._paths[key] = found
        return self._paths[key]

    def _timed(
        self, transfer: NetworkTransfer, path: LinkPath, each_bytes: float, steps: int, share: float, rule: str
    ) -> NetworkTime:
        """The time of transfers of `each_bytes` along a path, at the pace of its busiest link or within a chip."""
        start_us = self._start_us(transfer)
        chip = self.chip
        inner_bytes_per_s = chip.core_link_bytes_per_s or chip.hbm_bytes_per_s / chip.devices_per_chip
        seconds = max(path.load / (chip.ici_bytes_per_s * share), path.inner / inner_bytes_per_s) * each_bytes
        return NetworkTime(
            bandwidth_us=seconds * _MICROSECONDS,
            latency_us=start_us + steps * self.constants.hop_us + (transfer.arrays - 1) * self.constants.array_us,
            rule=rule,
            links=path.links,
            is_offloaded=transfer.algorithm.offloaded,
            loads=path.loads,
            each_bytes=each_bytes,
            loads_bound=path.bound,
        )

    def _start_us(self, transfer: NetworkTransfer) -> float:
        if transfer.kind is Kind.COLLECTIVE_PERMUTE:
            return self.constants.permute_start_us
        return self.constants.offloaded_start_us if transfer.algorithm.offloaded else self.constants.start_us


def _name_ring_rule(size: int, two_way: bool, doubled: bool) -> str:
    if size <= 2:
        return "pair"
    return "ring round a closed axis" if doubled else f"ring in {'both directions' if two_way else 'one direction'}"


def _pair_neighbors(order: Sequence[int], *, both_ways: bool = True) -> Iterator[tuple[int, int]]:
    """Each member of a ring with the next one and, optionally, back."""
    for source, target in zip(order, (*order[1:], order[0]), strict=True):
        if source != target:
            yield source, target
            if both_ways:
                yield target, source
