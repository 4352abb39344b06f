"""Physical sense on slices of which some axes are closed, and whose chips hold one device or two."""

from dataclasses import replace
from math import isfinite, prod

from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.cost.network import UNPRINTED_ALGORITHM, Algorithm, Network, NetworkTransfer, RouteKind
from hloscope.model.vocabulary import Kind
from hloscope.tpu import CHIPS
from hloscope.tpu.torus import Torus

ALGORITHMS = (
    UNPRINTED_ALGORITHM,
    Algorithm(way=RouteKind.RING, directions=1),
    Algorithm(way=RouteKind.RING, directions=1, doubles_on_torus=True),
    Algorithm(way=RouteKind.RING, directions=2, halves=True),
    Algorithm(way=RouteKind.GRID),
    Algorithm(offloaded=True),
)
GROUPED = (Kind.ALL_GATHER, Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.RAGGED_ALL_TO_ALL)


@st.composite
def cases(draw):
    """A network, and a collective over equal groups of devices that lie anywhere on it."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    devices_per_chip = draw(st.integers(1, 2))
    closed = tuple(draw(st.booleans()) for _ in shape)
    count = prod(shape) * devices_per_chip
    order = draw(st.permutations(range(count)))
    size = draw(st.sampled_from([size for size in range(1, count + 1) if count % size == 0]))
    groups = tuple(tuple(order[start : start + size]) for start in range(0, count, size))
    torus = Torus(shape=shape, wraparound=closed, devices_per_chip=devices_per_chip)
    return Network(torus=torus, chip=draw(st.sampled_from(CHIPS))), NetworkTransfer(
        kind=draw(st.sampled_from(GROUPED)),
        groups=groups,
        payload_bytes=draw(st.integers(1, 10**8)),
        algorithm=draw(st.sampled_from(ALGORITHMS)),
    )


@settings(max_examples=60)
@given(cases())
def test_closing_another_axis_is_never_slower(case):
    network, transfer = case
    shape = network.torus.shape
    for axis in range(len(shape)):
        ends = (closed or position == axis for position, closed in enumerate(network.torus.wraparound))
        more = replace(network.torus, wraparound=tuple(ends))
        closer = Network(torus=more, chip=network.chip).time_of(transfer)
        assert closer.time_us <= network.time_of(transfer).time_us * (1 + 1e-9)


@settings(max_examples=60)
@given(cases())
def test_what_moves_takes_time(case):
    network, transfer = case
    found = network.time_of(transfer)
    moves = len(transfer.groups[0]) > 1
    assert isfinite(found.time_us)
    assert (found.bandwidth_us > 0, found.latency_us > 0) == (moves, moves)
