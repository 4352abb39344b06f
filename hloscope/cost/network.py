"""How long one collective takes on the links of a slice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

import numpy as np

from hloscope.analysis.vocabulary import Kind
from hloscope.cost.algorithm import NOT_PRINTED, Algorithm, Way
from hloscope.cost.constants import CONSTANTS, Constants
from hloscope.hardware.chip_model import Chip
from hloscope.hardware.rings import ring_order
from hloscope.hardware.torus import Torus

Groups = tuple[tuple[int, ...], ...]

_MICROSECONDS = 1e6
_DCN_ROUND_TRIP_US = 20.0
"""Not measured: the order of a round trip between hosts of one data centre."""

_MOST_ROUTED_PAIRS = 1 << 18
"""Pairs of an all-to-all that are routed one by one; beyond, the bisection of the whole slice is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What is needed to price one collective within a slice.

    Attributes:
        kind: What it does.
        groups: Groups of devices of the slice; for a permute, (source, target) pairs.
        payload_bytes: The larger side on one device.
        algorithm: What the compiler prints about it.
    """

    kind: Kind
    groups: Groups
    payload_bytes: int
    algorithm: Algorithm = NOT_PRINTED


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTime:
    """The time of one collective when nothing else uses its links.

    Attributes:
        bandwidth_us: Bytes on the busiest link over its bandwidth.
        latency_us: The fixed time, and what each step adds.
        rule: The rule of the model that made it.
        links: The directed links it uses, flattened; None for a network that is not modelled link by link.
    """

    bandwidth_us: float
    latency_us: float
    rule: str
    links: np.ndarray | None = field(default=None, compare=False)

    @property
    def time_us(self) -> float:
        """Both together."""
        return self.bandwidth_us + self.latency_us


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Path:
    """Where some transfers go at once.

    Attributes:
        load: Transfers over the busiest directed link.
        hops: Links on the longest of their ways.
        links: The directed links in use, flattened.
    """

    load: float
    hops: int
    links: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The links of one slice; remembers the paths of groups it has seen.

    Attributes:
        torus: Where the chips are.
        chip: The figures of a chip.
        constants: What was measured.
    """

    torus: Torus
    chip: Chip
    constants: Constants = CONSTANTS
    _paths: dict[object, Path] = field(default_factory=dict, init=False, repr=False, compare=False)

    def time_of(self, transfer: Transfer) -> NetworkTime | None:
        """The time of a collective over ICI; None when nothing tells what it does.

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
        if way is Way.UNKNOWN:
            alone = size == 2 or transfer.kind is Kind.COLLECTIVE_BROADCAST
            way = Way.RING if alone else Way.GRID
        return self._grid(transfer, size) if way is Way.GRID else self._ring(transfer, size)

    def time_between_slices(self, kind: Kind, wire_bytes: int, senders: int) -> NetworkTime | None:
        """The time of a transfer over the data-centre network; None when its bandwidth is not known.

        Args:
            kind: What it does; a ring over the slices, whose steps each cost a round trip.
            wire_bytes: Bytes that one device sends.
            senders: Devices of one slice that send; together they have the bandwidth of the slice.

        Source: the scaling book, "How to Think About TPUs": every chip brings its share of DCN bandwidth.
        """
        if self.chip.dcn_bytes_per_s is None:
            return None
        slice_bytes_per_s = self.chip.dcn_bytes_per_s * prod(self.torus.shape)
        seconds = wire_bytes * senders / slice_bytes_per_s
        steps = 2 if kind is Kind.ALL_REDUCE else 1
        return NetworkTime(
            bandwidth_us=seconds * _MICROSECONDS, latency_us=steps * _DCN_ROUND_TRIP_US, rule="data-centre network"
        )

    def _permute(self, transfer: Transfer) -> NetworkTime:
        if not any(source != target for source, target in transfer.groups):
            return NetworkTime(bandwidth_us=0.0, latency_us=0.0, rule="nothing to move")
        path = self._path(("permute", transfer.groups), lambda: ((pair[0], pair[1]) for pair in transfer.groups))
        sent = path.load * transfer.payload_bytes
        return self._timed(transfer, sent, path.hops, self.constants.link_share, "permute", path.links)

    def _ring(self, transfer: Transfer, size: int) -> NetworkTime:
        two_way = transfer.algorithm.directions == 2
        path = self._path(("ring", transfer.groups, two_way), lambda: self._ring_pairs(transfer.groups, two_way))
        passes = 2 if transfer.kind is Kind.ALL_REDUCE else 1
        part = 1.0 if transfer.kind is Kind.COLLECTIVE_BROADCAST else (size - 1) / size
        sent = passes * part * transfer.payload_bytes * path.load / (2 if two_way else 1)
        one_way = size > 2 and not two_way
        share = self.constants.one_way_ring_share if one_way else self.constants.link_share
        rule = "ring in one direction" if one_way else "ring in both directions" if size > 2 else "pair"
        return self._timed(transfer, sent, passes * (size - 1), share, rule, path.links)

    def _ring_pairs(self, groups: Groups, two_way: bool) -> Iterator[tuple[int, int]]:
        for group in groups:
            order = ring_order(self.torus, group)
            for source, target in zip(order, (*order[1:], order[0]), strict=True):
                yield source, target
                if two_way:
                    yield target, source

    def _grid(self, transfer: Transfer, size: int) -> NetworkTime:
        """Every axis carries a share of the data at once, in rings of both directions.

        Source: the scaling book: over k axes of the torus the time divides by k; the strategies that libtpu prints
            name as many colours as there are axes, each beginning with another one.
        """
        rates, links, steps = 0.0, None, 0
        for axis, count in enumerate(self.torus.shape):
            if count == 1:
                continue
            path = self._path(("axis", transfer.groups, axis), partial(self._lines, transfer.groups, axis))
            if path.load > 0:
                rates += 2 / path.load
                links = path.links if links is None else links | path.links
                steps += self._steps_along(transfer.groups, axis)
        if rates == 0.0:
            return self._ring(transfer, size)
        passes = 2 if transfer.kind is Kind.ALL_REDUCE else 1
        several = transfer.algorithm.way is Way.GRID
        share = self.constants.grid_share if several else self.constants.link_share
        rule = "rings along several axes" if several else "first principles"
        sent = passes * (size - 1) / size * transfer.payload_bytes / rates
        return self._timed(transfer, sent, passes * steps, share, rule, links)

    def _lines(self, groups: Groups, axis: int) -> Iterator[tuple[int, int]]:
        """Both directions of the lines of chips along one axis, within each group."""
        for group in groups:
            lines: dict[tuple[int, ...], dict[int, int]] = {}
            for device in group:
                place = self.torus.coordinates(device)
                lines.setdefault((*place[:axis], *place[axis + 1 :]), {}).setdefault(place[axis], device)
            for line in lines.values():
                order = [line[position] for position in sorted(line)]
                for source, target in zip(order, (*order[1:], order[0]), strict=True):
                    if source != target:
                        yield source, target
                        yield target, source

    def _steps_along(self, groups: Groups, axis: int) -> int:
        longest = max(len({self.torus.coordinates(device)[axis] for device in group}) for group in groups[:1])
        closed = self.torus.wraparound[axis] and longest == self.torus.shape[axis]
        return longest // 2 if closed else longest - 1

    def _exchange(self, transfer: Transfer, size: int) -> NetworkTime:
        """Each device sends an equal part to every other one; the busiest link is that of the bisection.

        Source: the scaling book, "Sharded Matrices": on a ring of n devices with W per link and direction, an
            all-to-all of V bytes per device takes n V / (8 W), a quarter of an all-gather.
        """
        pairs = sum(len(group) * (len(group) - 1) for group in transfer.groups)
        links: np.ndarray | None = None
        load = self._bisection(size)
        if pairs <= _MOST_ROUTED_PAIRS:
            path = self._path(("exchange", transfer.groups), lambda: _all_pairs(transfer.groups))
            load, links = path.load, path.links
        hops = sum(count // 2 if closed else count - 1 for count, closed in self._extent(transfer.groups[0]))
        sent = transfer.payload_bytes / size * load
        return self._timed(transfer, sent, hops, self.constants.link_share, "all-to-all", links)

    def _bisection(self, size: int) -> float:
        """Transfers over the busiest link when all devices of the slice exchange with all others."""
        edges = zip(self.torus.shape, self.torus.wraparound, strict=True)
        longest = max(count / (8 if closed else 4) for count, closed in edges)
        return longest * size * self.torus.devices_per_chip

    def _extent(self, group: Sequence[int]) -> list[tuple[int, bool]]:
        places = [self.torus.coordinates(device) for device in group]
        counts = [len({place[axis] for place in places}) for axis in range(len(self.torus.shape))]
        return [
            (count, closed and count == edge)
            for count, closed, edge in zip(counts, self.torus.wraparound, self.torus.shape, strict=True)
        ]

    def _path(self, key: object, pairs: Callable[[], Iterable[tuple[int, int]]]) -> Path:
        """The load of the busiest link, and the links in use; remembered under `key`.

        Where the shorter ways round rings would crowd a link more than the open lines would, the open lines are taken:
        having more links makes nothing slower.
        """
        if key not in self._paths:
            found = _path_on(self.torus, pairs())
            if any(self.torus.wraparound):
                straight = _path_on(replace(self.torus, wraparound=(False,) * len(self.torus.shape)), pairs())
                found = straight if straight.load < found.load else found
            self._paths[key] = found
        return self._paths[key]

    def _timed(
        self, transfer: Transfer, link_bytes: float, steps: int, share: float, rule: str, links: np.ndarray | None
    ) -> NetworkTime:
        start = self.constants.offloaded_start_us if transfer.algorithm.offloaded else self.constants.start_us
        return NetworkTime(
            bandwidth_us=link_bytes / (self.chip.ici_bytes_per_s * share) * _MICROSECONDS,
            latency_us=start + steps * self.constants.hop_us,
            rule=rule,
            links=links,
        )


def _path_on(torus: Torus, pairs: Iterable[tuple[int, int]]) -> Path:
    ends = list(pairs)
    loads = torus.link_loads(ends)
    return Path(load=float(loads.max(initial=0.0)), hops=torus.longest_way(ends), links=(loads > 0).reshape(-1))


def _all_pairs(groups: Groups) -> Iterator[tuple[int, int]]:
    for group in groups:
        yield from ((source, target) for source in group for target in group if source != target)
