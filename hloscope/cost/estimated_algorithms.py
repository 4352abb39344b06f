"""The algorithm of a collective before the compiler has printed it: that of the most similar one that is known."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import NamedTuple

from hloscope.model.vocabulary import Kind
from hloscope.tpu.estimates import KnownAlgorithm
from hloscope.tpu.torus import Torus

_AMOUNT, _AXES, _DEVICES, _BYTES = 10.0, 6.0, 3.0, 0.25
"""Distances between two collectives: another amount of data, an axis more, twice as many devices or bytes."""

_LITTLE_BYTES, _MUCH_BYTES_PER_AXIS = 4096, 1 << 20
"""Limits of amounts of data for which sums have different algorithms."""


class AlgorithmFacts(NamedTuple):
    """The facts that decide the algorithm of a collective.

    Attributes:
        kind: Its kind.
        axes: The axes of the torus along which the devices of a group lie.
        devices: The devices of a group.
        payload_bytes: Bytes of the larger side on one device.
    """

    kind: str
    axes: int
    devices: int
    payload_bytes: int

    @classmethod
    def of(cls, torus: Torus, kind: str, groups: Sequence[Sequence[int]], payload_bytes: int) -> AlgorithmFacts:
        """The facts of a collective on a torus."""
        group = max(groups, key=len)
        places = [torus.coordinates(device) for device in group]
        axes = sum(len({place[axis] for place in places}) > 1 for axis in range(len(torus.shape)))
        return cls(kind, axes, len(group), max(payload_bytes, 1))

    def distance(self, known: KnownAlgorithm) -> float:
        """The distance of another collective of this kind."""
        return (
            _AMOUNT * abs(_find_amount(*self) - _find_amount(*known[:4]))
            + _AXES * abs(self.axes - known.axes)
            + _DEVICES * abs(log2(self.devices / known.devices))
            + _BYTES * abs(log2(self.payload_bytes / known.payload_bytes))
        )


def _find_amount(kind: str, axes: int, devices: int, payload_bytes: int) -> int:
    if kind == Kind.ALL_GATHER:
        return 0
    return (payload_bytes > _LITTLE_BYTES) + (payload_bytes >= _MUCH_BYTES_PER_AXIS * max(axes, 1))


def estimate_algorithm(facts: AlgorithmFacts, known: Sequence[KnownAlgorithm]) -> KnownAlgorithm | None:
    """The collective whose algorithm the compiler will most likely choose; None without any of its kind.

    Args:
        facts: What decides it.
        known: Collectives of the same generation of which it is known.
    """
    return min((one for one in known if one.kind == facts.kind), key=facts.distance, default=None)
