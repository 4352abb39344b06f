"""What is asked of the network and what it answers: transfers, the links they load, and their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from hloscope.analysis.vocabulary import Kind
from hloscope.cost.algorithm import NOT_PRINTED, Algorithm
from hloscope.hardware.torus import Torus

Groups = tuple[tuple[int, ...], ...]


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
        links: The directed links it uses, flattened; None for the data-centre network, which is one for all.
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
        inner: Transfers from the busiest device to others of its own chip.
        hops: Links on the longest of their ways.
        links: The directed links in use, flattened.
    """

    load: float
    inner: int
    hops: int
    links: np.ndarray


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
    )
