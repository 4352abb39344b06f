"""Times of collectives on the links, by hand and by physical sense."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hloscope.cost.network import UNPRINTED_ALGORITHM, Algorithm, Network, NetworkTransfer, RouteKind
from hloscope.model.vocabulary import Kind
from hloscope.tpu import find_chip, parse_slice
from hloscope.tpu.generation import CONSTANTS
from hloscope.tpu.torus import Torus

V5E = find_chip("v5e")
ONE_WAY, TWO_WAY = Algorithm(way=RouteKind.RING, directions=1), Algorithm(way=RouteKind.RING, directions=2)
GRID = Algorithm(way=RouteKind.GRID)
IDEAL = replace(
    CONSTANTS,
    link_share=1.0,
    one_way_ring_share=1.0,
    grid_share=1.0,
    dma_grid_share=1.0,
    start_us=0.0,
    permute_start_us=0.0,
    offloaded_start_us=0.0,
    hop_us=0.0,
    array_us=0.0,
    dcn_share=1.0,
)
MEGABYTE = 1_000_000
LINK_US = MEGABYTE / 45e9 * 1e6
"""A megabyte over one link of v5e."""


def network(name="v5e:2x4", constants=IDEAL):
    chosen = parse_slice(name)
    return Network(torus=Torus.of(chosen), chip=chosen.chip, constants=constants)


def time_us(net, kind, groups, payload=MEGABYTE, algorithm=UNPRINTED_ALGORITHM):
    found = net.time_of(NetworkTransfer(kind=kind, groups=groups, payload_bytes=payload, algorithm=algorithm))
    assert found is not None
    return found.time_us


LINE_OF_4 = tuple(tuple(x + 4 * y for x in range(4)) for y in range(8))
RING_OF_8 = (tuple(range(8)),)


def test_a_pair_has_one_link_each_way():
    assert time_us(network(), Kind.ALL_GATHER, ((0, 1),), algorithm=ONE_WAY) == pytest.approx(LINK_US / 2)
    assert time_us(network(), Kind.ALL_REDUCE, ((0, 1),), algorithm=TWO_WAY) == pytest.approx(LINK_US)


def test_a_ring_in_two_directions_is_twice_as_fast_on_a_block():
    one = time_us(network(), Kind.ALL_GATHER, RING_OF_8, algorithm=ONE_WAY)
    two = time_us(network(), Kind.ALL_GATHER, RING_OF_8, algorithm=TWO_WAY)
    assert (one, two) == (pytest.approx(7 / 8 * LINK_US), pytest.approx(7 / 16 * LINK_US))


def test_a_line_without_wraparound_gains_nothing_from_the_second_direction():
    net = network("v5e:4x8")
    one = time_us(net, Kind.ALL_GATHER, LINE_OF_4, algorithm=ONE_WAY)
    two = time_us(net, Kind.ALL_GATHER, LINE_OF_4, algorithm=TWO_WAY)
    assert (one, two) == (pytest.approx(3 / 4 * LINK_US), pytest.approx(3 / 4 * LINK_US))


ONE_COLOR = replace(ONE_WAY, doubles_on_torus=True)


def test_a_ring_of_one_colour_runs_both_ways_round_a_closed_axis():
    closed, column = network("v5e:16x16"), tuple(tuple(16 * y + x for y in range(16)) for x in range(16))
    found = time_us(closed, Kind.REDUCE_SCATTER, column, algorithm=ONE_COLOR)
    assert found == pytest.approx(15 / 16 * LINK_US / 2)
    assert time_us(closed, Kind.REDUCE_SCATTER, column, algorithm=ONE_WAY) == pytest.approx(2 * found)
    half = tuple(group[:8] for group in column)
    assert time_us(closed, Kind.REDUCE_SCATTER, half, algorithm=ONE_COLOR) == pytest.approx(7 / 8 * LINK_US)
    assert time_us(network(), Kind.REDUCE_SCATTER, RING_OF_8, algorithm=ONE_COLOR) == pytest.approx(7 / 8 * LINK_US)


def test_parts_that_travel_half_way_round_take_half_the_steps():
    net = network(constants=replace(IDEAL, hop_us=1.0))
    halves = replace(TWO_WAY, halves=True)
    ring, line = RING_OF_8, ((0, 2, 4, 6),)
    assert [time_us(net, Kind.ALL_GATHER, ring, 0, algorithm) for algorithm in (TWO_WAY, halves)] == [7.0, 4.0]
    assert time_us(net, Kind.ALL_GATHER, line, 0, halves) == 3.0


def test_several_axes_reach_the_same_share_whether_or_not_the_algorithm_is_printed():
    net = network("v6e:16x16", replace(IDEAL, grid_share=0.5))
    everyone = (tuple(range(256)),)
    printed, guessed = (time_us(net, Kind.ALL_REDUCE, everyone, algorithm=one) for one in (GRID, UNPRINTED_ALGORITHM))
    assert printed == guessed == pytest.approx(2 * 255 / 256 * MEGABYTE / (0.5 * 4 * 90e9) * 1e6)
    row = (tuple(range(16)),)
    assert time_us(net, Kind.ALL_REDUCE, row) == pytest.approx(2 * 15 / 16 * MEGABYTE / (2 * 90e9) * 1e6)


def test_an_all_reduce_moves_twice_as_much_as_a_reduce_scatter():
    times = [time_us(network(), kind, RING_OF_8, algorithm=TWO_WAY) for kind in (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)]
    assert times[1] == pytest.approx(2 * times[0])


def test_rings_along_two_closed_axes_use_four_links():
    net = network("v6e:16x16")
    found = time_us(net, Kind.ALL_REDUCE, (tuple(range(256)),), algorithm=GRID)
    assert found == pytest.approx(2 * 255 / 256 * MEGABYTE / (4 * 90e9) * 1e6)


def test_on_open_axes_the_slower_of_them_sets_the_pace_of_each_phase():
    """A 2x4: half the data begins with either axis; an eighth of them is what each device brings."""
    net = network("v6e:2x4")
    long_axis_first = 3 / 2  # end links carry three shares of half the data, then each chip swaps four of them
    then_doubled = 3.0
    expected_us = (long_axis_first + then_doubled) / 8 * MEGABYTE / 90e9 * 1e6
    found = time_us(net, Kind.ALL_GATHER, (tuple(range(8)),))
    assert found == pytest.approx(expected_us)
    assert found > time_us(net, Kind.ALL_GATHER, (tuple(range(8)),), algorithm=TWO_WAY) / 2


def test_each_further_array_takes_a_little_and_short_variants_do_not_wait_for_each_pass():
    net = network("v5p:2x2x1", CONSTANTS)
    group = (tuple(range(4)),)
    one = NetworkTransfer(kind=Kind.ALL_REDUCE, groups=group, payload_bytes=4, algorithm=GRID)
    ten = net.time_of(replace(one, arrays=10)).latency_us - net.time_of(one).latency_us
    assert ten == pytest.approx(9 * CONSTANTS.array_us)
    short = net.time_of(replace(one, algorithm=replace(GRID, is_short=True))).latency_us
    assert net.time_of(one).latency_us - short == pytest.approx(2 * CONSTANTS.hop_us)


def test_groups_that_use_the_same_links_share_them():
    apart = ((0, 1), (2, 3), (4, 5), (6, 7))
    across = tuple((y * 8 + x, y * 8 + x + 4) for y in range(4) for x in range(4))
    net = network("v5e:8x4")
    near = time_us(net, Kind.ALL_GATHER, tuple((y * 8 + x, y * 8 + x + 1) for y in range(4) for x in (0, 2, 4, 6)))
    assert time_us(net, Kind.ALL_GATHER, across) == pytest.approx(4 * near)
    assert time_us(network(), Kind.ALL_GATHER, apart) == pytest.approx(near)


def test_the_cores_of_a_chip_share_its_links():
    net = network("tpu7x:2x2x1")
    first, second = (0, 2, 4, 6), (1, 3, 5, 7)
    alone = time_us(net, Kind.ALL_GATHER, (first,), algorithm=TWO_WAY)
    assert time_us(net, Kind.ALL_GATHER, (first, second), algorithm=TWO_WAY) == pytest.approx(2 * alone)


def test_cores_of_one_chip_talk_over_the_link_between_them():
    net = network("tpu7x:2x2x1")
    pairs = ((0, 1), (2, 3), (4, 5), (6, 7))
    expected_us = MEGABYTE / 540e9 * 1e6
    assert time_us(net, Kind.ALL_REDUCE, pairs, algorithm=TWO_WAY) == pytest.approx(expected_us)
    assert time_us(net, Kind.COLLECTIVE_PERMUTE, ((0, 1), (1, 0))) == pytest.approx(expected_us)
    assert time_us(net, Kind.ALL_GATHER, pairs, algorithm=GRID) == pytest.approx(expected_us / 2)
    older = network("v2:2x2")
    assert time_us(older, Kind.COLLECTIVE_PERMUTE, ((0, 1),)) == pytest.approx(MEGABYTE / 350e9 * 1e6)


def test_a_permute_goes_at_the_pace_of_its_busiest_link():
    net = network("v5e:8x4")
    shift_by_one = tuple((x, x + 1) for x in range(7))
    shift_by_three = tuple((x, x + 3) for x in range(5))
    assert time_us(net, Kind.COLLECTIVE_PERMUTE, shift_by_one) == pytest.approx(LINK_US)
    assert time_us(net, Kind.COLLECTIVE_PERMUTE, shift_by_three) == pytest.approx(3 * LINK_US)
    assert time_us(net, Kind.COLLECTIVE_PERMUTE, ((0, 0), (1, 1))) == 0


def test_an_all_to_all_crosses_the_bisection():
    assert time_us(network(), Kind.ALL_TO_ALL, RING_OF_8) == pytest.approx(4 * 4 * LINK_US / 8 / 2)


def test_an_all_to_all_of_a_closed_ring_follows_the_book():
    torus = Torus(shape=(16,), wraparound=(True,))
    net = Network(torus=torus, chip=V5E, constants=IDEAL)
    assert time_us(net, Kind.ALL_TO_ALL, (tuple(range(16)),)) == pytest.approx(16 / 8 * LINK_US)


@pytest.mark.parametrize(
    ("name", "group"), [("v5e:8x8", range(64)), ("v6e:16x16", range(256)), ("v5p:4x4x8", range(128))]
)
def test_the_bisection_is_what_routing_every_pair_gives(name, group, monkeypatch):
    routed = time_us(network(name), Kind.ALL_TO_ALL, (tuple(group),))
    monkeypatch.setattr("hloscope.cost.network._MOST_ROUTED_PAIRS", 0)
    assert time_us(network(name), Kind.ALL_TO_ALL, (tuple(group),)) == pytest.approx(routed, rel=0.01)


def test_very_large_groups_take_the_bisection_of_their_block():
    net = network("v5p:8x8x16")
    found = time_us(net, Kind.ALL_TO_ALL, (tuple(range(1024)),))
    assert found == pytest.approx(16 / 8 * MEGABYTE / 90e9 * 1e6)


def test_latency_grows_with_the_steps():
    constants = replace(IDEAL, start_us=3.0, hop_us=0.5)
    net = network(constants=constants)
    found = net.time_of(NetworkTransfer(kind=Kind.ALL_GATHER, groups=RING_OF_8, payload_bytes=0, algorithm=TWO_WAY))
    assert (found.latency_us, found.bandwidth_us) == (3.0 + 7 * 0.5, 0.0)


def test_a_sparse_core_has_its_own_fixed_time():
    constants = replace(IDEAL, start_us=3.0, offloaded_start_us=12.0)
    offloaded = replace(TWO_WAY, offloaded=True)
    assert time_us(network(constants=constants), Kind.ALL_GATHER, RING_OF_8, 0, offloaded) == 12.0


def test_what_cannot_be_understood_has_no_time():
    assert network().time_of(NetworkTransfer(kind=Kind.OPAQUE, groups=(), payload_bytes=1)) is None


def test_groups_of_one_move_nothing():
    assert time_us(network(), Kind.ALL_REDUCE, ((0,), (1,))) == 0


def between(net, senders):
    return net.time_between_slices(Kind.ALL_GATHER, MEGABYTE, senders)


def test_hosts_have_the_bandwidth_of_all_their_chips():
    net = network()
    everyone = [(index, device) for index in range(2) for device in range(8)]
    all_us = MEGABYTE / 3.125e9 * 1e6
    assert between(net, everyone).bandwidth_us == pytest.approx(all_us)
    assert between(net, [(0, 5), (1, 5)]).bandwidth_us == pytest.approx(all_us / 4)
    assert between(net, [(0, 0), (0, 1)]).bandwidth_us == pytest.approx(all_us / 2)
    assert between(net, [(0, 0), (0, 4)]).bandwidth_us == pytest.approx(all_us / 4)


def test_without_a_figure_for_dcn_there_is_no_time():
    assert between(network("v2:2x2"), [(0, 0)]) is None


# ---- physical sense

KINDS = st.sampled_from([
    Kind.ALL_GATHER, Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL, Kind.COLLECTIVE_BROADCAST,
])  # fmt: skip
ALGORITHMS = st.sampled_from([UNPRINTED_ALGORITHM, ONE_WAY, TWO_WAY, GRID])
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda shape: any(edge > 1 for edge in shape))


@st.composite
def transfers(draw):
    """A slice's shape, and a collective over equal groups of its devices or a permute."""
    shape = tuple(draw(SHAPES))
    count = 1
    for edge in shape:
        count *= edge
    payload = draw(st.integers(1, 10**9))
    if draw(st.booleans()):
        ends = st.integers(0, count - 1)
        pairs = tuple(draw(st.lists(st.tuples(ends, ends), min_size=1, max_size=12)))
        return shape, NetworkTransfer(kind=Kind.COLLECTIVE_PERMUTE, groups=pairs, payload_bytes=payload)
    size = draw(st.sampled_from([size for size in range(1, count + 1) if count % size == 0]))
    order = draw(st.permutations(range(count)))
    groups = tuple(tuple(order[start : start + size]) for start in range(0, count, size))
    return shape, NetworkTransfer(kind=draw(KINDS), groups=groups, payload_bytes=payload, algorithm=draw(ALGORITHMS))


def on(shape, *, closed=False, figures=V5E):
    return Network(torus=Torus(shape=shape, wraparound=(closed,) * len(shape)), chip=figures)


@given(transfers(), st.integers(0, 10**9))
def test_more_bytes_never_take_less_time(case, more):
    shape, transfer = case
    net = on(shape)
    larger = replace(transfer, payload_bytes=transfer.payload_bytes + more)
    assert net.time_of(larger).time_us >= net.time_of(transfer).time_us


CROSSING = NetworkTransfer(kind=Kind.COLLECTIVE_PERMUTE, groups=((0, 3), (4, 2)), payload_bytes=MEGABYTE)
"""On a ring of five the shorter ways of these two share a link; on an open line they do not."""


@example(((5,), CROSSING))
@given(transfers())
def test_wraparound_is_never_slower(case):
    shape, transfer = case
    assert on(shape, closed=True).time_of(transfer).time_us <= on(shape).time_of(transfer).time_us * (1 + 1e-9)


@given(transfers(), st.randoms(use_true_random=False))
def test_the_order_of_groups_and_of_their_members_does_not_matter(case, random):
    shape, transfer = case
    groups = [list(group) for group in transfer.groups]
    random.shuffle(groups)
    if transfer.kind is not Kind.COLLECTIVE_PERMUTE:
        for group in groups:
            random.shuffle(group)
    shuffled = replace(transfer, groups=tuple(map(tuple, groups)))
    assert on(shape).time_of(shuffled).time_us == pytest.approx(on(shape).time_of(transfer).time_us)


@given(transfers(), st.floats(0.01, 100))
def test_the_bandwidth_term_is_inverse_to_the_bandwidth(case, factor):
    shape, transfer = case
    faster = replace(V5E, ici_bytes_per_s=V5E.ici_bytes_per_s * factor)
    plain, scaled = on(shape).time_of(transfer), on(shape, figures=faster).time_of(transfer)
    assert scaled.bandwidth_us == pytest.approx(plain.bandwidth_us / factor)
    assert scaled.latency_us == plain.latency_us


@settings(max_examples=50)
@given(transfers())
def test_equal_groups_of_a_translated_block_cost_the_same(case):
    """Two copies of a slice side by side, each with its own groups, take as long as one."""
    shape, transfer = case
    if transfer.kind in (Kind.ALL_TO_ALL, Kind.COLLECTIVE_PERMUTE):
        return
    wider = (*shape, 2)
    count = Torus(shape=shape, wraparound=(False,) * len(shape)).device_count
    both = (*transfer.groups, *(tuple(device + count for device in group) for group in transfer.groups))
    twice = on(wider).time_of(replace(transfer, groups=both))
    assert twice.time_us == pytest.approx(on(shape).time_of(transfer).time_us)
