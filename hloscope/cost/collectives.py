"""The collectives of an analysis in the network's terms: devices of one slice, bytes, and the printed algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import log2, prod
from operator import itemgetter

import numpy as np

from hloscope.analysis.groups import DEVICES_PER_SLICE_ID
from hloscope.base.results import group_by
from hloscope.cost.network import (
    UNPRINTED_ALGORITHM,
    Algorithm,
    Groups,
    Network,
    NetworkTime,
    NetworkTransfer,
    make_algorithm,
    read_algorithm,
)
from hloscope.cost.records import CollectiveKey, PricedCollectives
from hloscope.hlo import HloInstruction, HloModule
from hloscope.hlo.call_graph import HloGraph
from hloscope.model import Analysis, Collective, CollectivePart, Mesh
from hloscope.model.vocabulary import Kind, Link
from hloscope.tpu.estimates import AlgorithmFacts, KnownAlgorithm
from hloscope.tpu.slices import Slice, find_constants, find_device_order, format_shape
from hloscope.tpu.torus import Torus

_COLLECTIVES = ("all-", "reduce-scatter", "ragged-", "collective-")
_ACROSS = "within a slice, devices are ordered as for a mesh of which only the first axis crosses slices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """Prices collectives, with a cache for equal ones.

    Attributes:
        network: The network of the slice.
        device_of: The slice's device that each partition in the text runs on.
        device_ids: The device of each partition of the whole program; None if unknown.
        algorithms: Collectives from which algorithms are concluded that are not printed yet.
    """

    network: Network
    device_of: tuple[int, ...]
    device_ids: tuple[int, ...] | None = None
    algorithms: tuple[KnownAlgorithm, ...] = ()
    _groups: dict[Groups, Groups | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def time_of(
        self, transfer: Collective | CollectivePart, algorithm: Algorithm, padded: int | None
    ) -> NetworkTime | None:
        """The time of one execution; None if the text does not state enough.

        Whole tiles are sent: if the layout is known, its padding is counted.
        """
        kind, wire_bytes = transfer.kind, transfer.wire_bytes
        if kind is Kind.OPAQUE or transfer.payload_bytes is None:
            return None
        if transfer.link is Link.DCN:
            members = {member for group in transfer.groups for member in group}
            placed = map(self._placed, members)
            return None if wire_bytes is None else self.network.time_between_slices(kind, wire_bytes, placed)
        groups = self._devices(transfer.groups)
        if transfer.link is not Link.ICI or groups is None:
            return None
        payload = max(transfer.payload_bytes, padded or 0)
        if self.algorithms and not algorithm.name and not transfer.asynchronous:
            facts = find_algorithm_facts(self.network.torus, transfer.kind, groups, payload)
            algorithm = make_algorithm(estimate_algorithm(facts, self.algorithms))
        arrays = len(transfer.operand_shapes) if isinstance(transfer, Collective) else 1
        return self.network.time_of(
            NetworkTransfer(kind=kind, groups=groups, payload_bytes=payload, algorithm=algorithm, arrays=max(arrays, 1))
        )

    def _placed(self, member: int) -> tuple[int, int]:
        """The slice and the device in it of a participant in a transfer between slices.

        The member is a physical device if devices are known, otherwise a partition of the whole program.
        """
        if member >= DEVICES_PER_SLICE_ID:
            return divmod(member, DEVICES_PER_SLICE_ID)
        if self.device_ids is not None and member < len(self.device_ids):
            return divmod(self.device_ids[member], DEVICES_PER_SLICE_ID)
        index, partition = divmod(member, len(self.device_of))
        return index, self.device_of[partition]

    def _devices(self, groups: Groups) -> Groups | None:
        if groups not in self._groups:
            try:
                found = tuple(tuple(self.device_of[member] for member in group) for group in groups)
            except IndexError:
                found = ()
            self._groups[groups] = found or None
        return self._groups[groups]


def price_collectives(analysis: Analysis, graph: HloGraph, pricing: Pricing) -> PricedCollectives:
    """The time of every place that starts a transfer."""
    times: dict[CollectiveKey, NetworkTime | None] = {}
    asynchronous: set[CollectiveKey] = set()
    for collective in analysis.collectives:
        for transfer in collective.parts or (collective,):
            key = (collective.computation, transfer.name)
            if key in times:
                continue
            padded = None if collective.parts else collective.padded_bytes
            times[key] = pricing.time_of(transfer, _find_algorithm(graph, key), padded)
            if transfer.asynchronous:
                asynchronous.add(key)
    return PricedCollectives(
        times=times,
        asynchronous=frozenset(asynchronous),
        inside=group_by(times, itemgetter(0)),
        shared_part=pricing.network.shared_part,
    )


def _find_algorithm(graph: HloGraph, key: CollectiveKey) -> Algorithm:
    """The algorithm printed with the instruction that starts a collective, or with the collective that it calls."""
    try:
        instruction = graph.module.computation(key[0]).instruction(key[1])
    except KeyError:
        return UNPRINTED_ALGORITHM
    for printing in (instruction, *_find_collectives_inside(graph, instruction)):
        found = read_algorithm(printing.attributes.get("backend_config", ""))
        if found.name:
            return found
    return found


def _find_collectives_inside(graph: HloGraph, caller: HloInstruction) -> Iterator[HloInstruction]:
    """The collectives of the computations that an instruction calls.

    A dump prints a SparseCore's collective as an `async-start` that calls a computation whose `call` calls another.
    """
    for _, callee in caller.called:
        for inner in graph.module.computation(callee).instructions:
            if inner.opcode.startswith(_COLLECTIVES):
                yield inner
            elif inner.opcode == "call":
                yield from _find_collectives_inside(graph, inner)


def map_partitions_to_devices(
    mesh: Mesh | None, chosen: Slice, count: int, device_ids: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The device of each partition according to the text, and the assumptions made.

    Args:
        mesh: The user's mesh; None if there is none.
        chosen: The slice.
        count: Number of partitions according to the text; for several slices, those of one.
        device_ids: The device of each partition of the whole program, as passed to the compiler; None if unknown, in
        which case the order of `jax.make_mesh` is used.
    """
    if device_ids is not None:
        first = min(device // DEVICES_PER_SLICE_ID for device in device_ids)
        of_one_slice = [device for device in device_ids if device // DEVICES_PER_SLICE_ID == first]
        return tuple(device % DEVICES_PER_SLICE_ID for device in of_one_slice), ()
    if count == 1:
        return (0,), ()
    shape = _find_mesh_within_slice(mesh, chosen, count)
    order = None if shape is None else find_device_order(chosen, shape)
    several = () if chosen.slice_count == 1 else (_ACROSS,)
    if order is None:
        return tuple(range(min(count, chosen.devices_per_slice))), (
            f"devices are ordered by their numbers: jax.make_mesh has no order for "
            f"{'an unknown mesh' if shape is None else f'a mesh of {format_shape(shape)}'} on {chosen.name}",
        )
    ids = mesh.partition_ids if mesh is not None else None
    if ids is None or sorted(ids) != list(range(count)):
        return order, several
    placed = dict(zip(ids, order, strict=True))
    return tuple(placed[partition] for partition in range(count)), several


def count_partitions(analysis: Analysis, module: HloModule) -> int:
    """Number of partitions according to the header or, if it states none, the groups."""
    named = (
        max(group, default=0)
        for collective in analysis.collectives
        for part in collective.parts or (collective,)
        if part.link is Link.ICI
        for group in part.groups
    )
    return module.device_count if module.device_count > 1 else 1 + max(named, default=0)


def _find_mesh_within_slice(mesh: Mesh | None, chosen: Slice, count: int) -> tuple[int, ...] | None:
    """The sizes of the mesh's axes within one slice; None if unknown."""
    if mesh is None:
        return None
    if mesh.device_count == count:
        return mesh.axis_sizes
    if chosen.slice_count > 1 and mesh.device_count == count * chosen.slice_count:
        first, *rest = mesh.axis_sizes
        if first % chosen.slice_count == 0:
            return (first // chosen.slice_count, *rest)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AxesPricing:
    """Prices collectives from kind, axes and bytes alone, as baselines keep them.

    Attributes:
        mesh: The mesh, laid over the slice as by `jax.make_mesh`.
        pricing: The pricing of the slice.
    """

    mesh: Mesh
    pricing: Pricing

    @classmethod
    def on(cls, chosen: Slice, mesh: Mesh) -> AxesPricing | None:
        """The pricing for a slice; None without TPU chips, or if the mesh has more or fewer devices."""
        count = chosen.devices_per_slice
        if chosen.chip is None or mesh.device_count != count * chosen.slice_count:
            return None
        network = Network(torus=Torus.of(chosen), chip=chosen.chip, constants=find_constants(chosen.chip))
        device_of, _ = map_partitions_to_devices(mesh, chosen, count, None)
        return cls(mesh=mesh, pricing=Pricing(network=network, device_of=device_of))

    def time_us(self, moved: Collective, times: int) -> float | None:
        """Microseconds of everything that a collective without groups represents; None if they cannot be predicted.

        Args:
            moved: The collective, with the bytes of all transfers together.
            times: Number of transfers.
        """
        groups = self._groups(moved)
        if groups is None or moved.payload_bytes is None or moved.wire_bytes is None:
            return None
        times = max(times, 1)
        each = replace(
            moved, groups=groups, payload_bytes=moved.payload_bytes // times, wire_bytes=moved.wire_bytes // times
        )
        found = self.pricing.time_of(each, UNPRINTED_ALGORITHM, None)
        return None if found is None else times * found.time_us

    def _groups(self, moved: Collective) -> Groups | None:
        """The participants; for a permute the pairs, assumed to go to the next device along its axes."""
        names = self.mesh.axis_names
        if not moved.axes or not set(moved.axes) <= set(names):
            return None
        chosen = [names.index(axis) for axis in moved.axes]
        others = [number for number in range(len(names)) if number not in chosen]
        order = np.arange(self.mesh.device_count).reshape(self.mesh.axis_sizes).transpose(*others, *chosen)
        rows = order.reshape(-1, prod(self.mesh.axis_sizes[number] for number in chosen)).tolist()
        if moved.link is Link.ICI:  # those of the first slice represent all
            rows = [row for row in rows if max(row) < len(self.pricing.device_of)]
        if moved.kind is Kind.COLLECTIVE_PERMUTE:
            rows = [list(pair) for row in rows for pair in zip(row, [*row[1:], row[0]], strict=True)]
        return tuple(map(tuple, rows)) or None


# ---- the algorithm of a collective before the compiler has printed it: that of the most similar one that is known

_AMOUNT, _AXES, _DEVICES, _BYTES = 10.0, 6.0, 3.0, 0.25
"""Distances between two collectives: another amount of data, an axis more, twice as many devices or bytes."""

_LITTLE_BYTES, _MUCH_BYTES_PER_AXIS = 4096, 1 << 20
"""Limits of amounts of data for which sums have different algorithms."""


def find_algorithm_facts(
    torus: Torus, kind: str, groups: Sequence[Sequence[int]], payload_bytes: int
) -> AlgorithmFacts:
    """The facts that decide the algorithm of a collective on a torus."""
    group = max(groups, key=len)
    places = [torus.coordinates(device) for device in group]
    axes = sum(len({place[axis] for place in places}) > 1 for axis in range(len(torus.shape)))
    return AlgorithmFacts(kind, axes, len(group), max(payload_bytes, 1))


def estimate_algorithm(facts: AlgorithmFacts, known: Sequence[KnownAlgorithm]) -> KnownAlgorithm | None:
    """The collective whose algorithm the compiler will most likely choose; None without any of its kind.

    Args:
        facts: The facts that decide it.
        known: Collectives of the same generation of which it is known.
    """
    alike = (one for one in known if one.facts.kind == facts.kind)
    return min(alike, key=lambda one: _compute_distance(facts, one.facts), default=None)


def _compute_distance(one: AlgorithmFacts, other: AlgorithmFacts) -> float:
    return (
        _AMOUNT * abs(_find_amount(one) - _find_amount(other))
        + _AXES * abs(one.axes - other.axes)
        + _DEVICES * abs(log2(one.devices / other.devices))
        + _BYTES * abs(log2(one.payload_bytes / other.payload_bytes))
    )


def _find_amount(facts: AlgorithmFacts) -> int:
    if facts.kind == Kind.ALL_GATHER:
        return 0
    size = facts.payload_bytes
    return (size > _LITTLE_BYTES) + (size >= _MUCH_BYTES_PER_AXIS * max(facts.axes, 1))
