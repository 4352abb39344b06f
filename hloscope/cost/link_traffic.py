"""The bytes over each link of a slice in one step, on the same paths that give the times of collectives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from hloscope.analysis.model import Analysis
from hloscope.analysis.totals import bytes_bound
from hloscope.analysis.vocabulary import Bound
from hloscope.cost.paths import NetworkTime
from hloscope.cost.price import make_program_walk
from hloscope.hlo import HloModule
from hloscope.program.capture import Capture
from hloscope.tpu.torus import Torus
from hloscope.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTraffic:
    """Bytes over the links of one slice in one step; other slices carry the same.

    Whole tiles are sent, so these are bytes as in memory: somewhat more than `wire_bytes`.

    Attributes:
        torus: The slice.
        link_bytes: Bytes over each directed link, `[chip, axis, direction]`, with direction 0 upwards.
        host_bytes: Bytes from the busiest host to other slices.
        bound: Whether the bytes are exact or bounds.
        unpriced: Collectives whose bytes or paths are unknown, and which are not included.
    """

    torus: Torus
    link_bytes: np.ndarray
    host_bytes: float
    bound: Bound
    unpriced: tuple[str, ...] = ()

    def busiest_bytes(self, axis: int, direction: int) -> float:
        """Bytes over the busiest link along an axis in one direction."""
        return float(self.link_bytes[:, axis, direction].max(initial=0.0))

    def words(self, count: float) -> str:
        """Renders bytes over a link with their bound: `≥12.6 MB`."""
        return self.bound.marked(format_bytes(count))

    def bytes_between(self, chip: int, axis: int) -> tuple[float, float]:
        """Bytes over the link from a chip to the next one along an axis, upwards and downwards."""
        size = self.torus.shape[axis]
        stride = int(np.prod(self.torus.shape[:axis], dtype=int))
        position = chip // stride % size
        following = chip + ((position + 1) % size - position) * stride
        return float(self.link_bytes[chip, axis, 0]), float(self.link_bytes[following, axis, 1])


def sum_link_traffic(program: Capture, module: HloModule, found: Analysis) -> LinkTraffic | None:
    """The bytes over each link; None without TPU chips, or if the text is cut off.

    Args:
        program: The compiled program.
        module: Its parsed text.
        found: Its analysis.
    """
    if program.slice is None or program.slice.chip is None or module.truncated:
        return None
    walk = make_program_walk(program, module, found)
    torus = Torus.of(program.slice)
    link_bytes = np.zeros((int(np.prod(torus.shape)), len(torus.shape), 2))
    host_bytes, bounds, unpriced = 0.0, [Bound.EXACT], []
    for collective in found.collectives:
        for transfer in collective.parts or (collective,):
            time = walk.priced.times.get((collective.computation, transfer.name))
            if not _has_known_way(time):
                unpriced.append(transfer.name)
                continue
            assert time is not None
            bounds += [bytes_bound(collective), time.loads_bound]
            if time.loads is not None:
                link_bytes += time.loads.reshape(link_bytes.shape) * (time.each_bytes * transfer.executions)
            elif time.is_between_slices:
                host_bytes += time.each_bytes * transfer.executions
    bounds += [Bound.AT_LEAST] if unpriced else []
    return LinkTraffic(
        torus=torus,
        link_bytes=link_bytes,
        host_bytes=host_bytes,
        bound=reduce(lambda bound, other: bound + other, bounds),
        unpriced=tuple(unpriced),
    )


def _has_known_way(time: NetworkTime | None) -> bool:
    """Returns whether the way of a transfer is known; what has nothing to move takes none."""
    return time is not None and (time.loads is not None or time.is_between_slices or time.time_us == 0)
