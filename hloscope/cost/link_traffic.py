"""What crosses each link of a slice in one step: the same paths that the times of collectives are made from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from hloscope.analysis.model import Analysis
from hloscope.analysis.totals import bytes_bound
from hloscope.analysis.vocabulary import Bound
from hloscope.cost.paths import NetworkTime
from hloscope.cost.price import walk_of_program
from hloscope.hardware.torus import Torus
from hloscope.hlo import HloModule
from hloscope.program.capture import Capture
from hloscope.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTraffic:
    """Bytes over the links of one slice in one step; the others, if there are, carry the same.

    Tiles travel whole, so that these are bytes as arrays lie in memory: rather more than `wire_bytes` says.

    Attributes:
        torus: The slice.
        link_bytes: What crosses each directed link, `[chip, axis, direction]`, direction 0 being upwards.
        host_bytes: What leaves the busiest host for other slices.
        bound: How the bytes relate to the truth.
        unpriced: Collectives whose bytes or way are not known, and which are not among them.
    """

    torus: Torus
    link_bytes: np.ndarray
    host_bytes: float
    bound: Bound
    unpriced: tuple[str, ...] = ()

    def busiest_bytes(self, axis: int, direction: int) -> float:
        """What the busiest link along an axis carries in a direction."""
        return float(self.link_bytes[:, axis, direction].max(initial=0.0))

    def words(self, count: float) -> str:
        """Bytes over a link, with their bound: `≥12.6 MB`."""
        return self.bound.marked(format_bytes(count))

    def bytes_between(self, chip: int, axis: int) -> tuple[float, float]:
        """What crosses the link from a chip to the next one along an axis, upwards and downwards."""
        size = self.torus.shape[axis]
        stride = int(np.prod(self.torus.shape[:axis], dtype=int))
        position = chip // stride % size
        following = chip + ((position + 1) % size - position) * stride
        return float(self.link_bytes[chip, axis, 0]), float(self.link_bytes[following, axis, 1])


def link_traffic(program: Capture, module: HloModule, found: Analysis) -> LinkTraffic | None:
    """The bytes of each link; None where there are no TPU chips, or the text is cut off.

    Args:
        program: The compiled program.
        module: Its parsed text.
        found: Its analysis.
    """
    if program.slice is None or program.slice.chip is None or module.truncated:
        return None
    walk = walk_of_program(program, module, found)
    torus = Torus.of(program.slice)
    link_bytes = np.zeros((int(np.prod(torus.shape)), len(torus.shape), 2))
    host_bytes, bounds, unpriced = 0.0, [Bound.EXACT], []
    for collective in found.collectives:
        for transfer in collective.parts or (collective,):
            time = walk.priced.times.get((collective.computation, transfer.name))
            if not _is_known(time):
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


def _is_known(time: NetworkTime | None) -> bool:
    """Whether the way of a transfer is known; what has nothing to move takes none."""
    return time is not None and (time.loads is not None or time.is_between_slices or time.time_us == 0)
