"""What the compiler prints about a collective's algorithm."""

import pytest

from hloscope.cost.network import Algorithm, RouteKind, read_algorithm


def config(emitter, strategy=None, debug=""):
    strategy = "" if strategy is None else f'"strategy":"{strategy}",'
    return f'{{"collective_algorithm_config":{{"emitter":"{emitter}",{strategy}"debug":"{debug}"}}}}'


@pytest.mark.parametrize(
    ("printed", "way", "directions"),
    [
        (config("1DAllGatherNonMajorDim"), RouteKind.RING, 1),
        (config("1DAllGatherNonMajorDimImbalanced"), RouteKind.RING, 2),
        (config("1DAllGatherOnMajorDim"), RouteKind.RING, 2),
        (
            config("SingleInputAllReduceScatterFusion", "StrategyRing", r"\nStrategyRing{colors:1 phases:1"),
            RouteKind.RING,
            1,
        ),
        (config("RotatedPincerEmitter", "UniDirection1DRingStrategy", "{colors:2 phases:1"), RouteKind.RING, 2),
        (config("RotatedPincerEmitter", "StrategyND", "{colors:2 phases:2"), RouteKind.GRID, 2),
        (config("RotatedPincerEmitter", "UniDirectionNDRingStrategy", "{colors:4 phases:2"), RouteKind.GRID, 2),
        (config("SingleInputAllReduceScatterFusion", "StrategySubgroupND", "{colors:2 phases:2"), RouteKind.GRID, 2),
        (config("2DAllGatherOnMajorDim"), RouteKind.GRID, 2),
        (config("3DAllGatherOnMajorDim"), RouteKind.GRID, 2),
        (config("AllToAllEmitter"), RouteKind.EXCHANGE, 2),
        (config("SomethingNew"), RouteKind.UNKNOWN, 2),
        ("{}", RouteKind.UNKNOWN, 2),
    ],
)
def test_emitters_and_strategies(printed, way, directions):
    found = read_algorithm(printed)
    assert (found.way, found.directions, found.offloaded) == (way, directions, False)


def sparse_core(*colors):
    rings = ",".join(
        '{"phase_rings":[' + ",".join(f'{{"ring_type":"{ring}"}}' for ring in phases) + "]}" for phases in colors
    )
    return f'{{"collective_offload_config":{{"all_gather_offload_config":{{"color_strategies":[{rings}]}}}}}}'


def test_a_sparse_core_prints_its_rings():
    both = read_algorithm(sparse_core(["CW"], ["CCW"]))
    assert both == Algorithm(way=RouteKind.RING, directions=2, offloaded=True, name="SparseCore ring")
    assert read_algorithm(sparse_core(["CW"])).directions == 1
    assert read_algorithm(sparse_core(["CW", "CW"], ["CCW", "CCW"])).way is RouteKind.GRID
    assert read_algorithm('{"collective_offload_config":{}}') == Algorithm(offloaded=True, name="SparseCore")


def test_only_a_ring_of_one_colour_may_run_both_ways_round_a_closed_axis():
    one = read_algorithm(config("RotatedPincerEmitter", "StrategyRing", "{colors:1 phases:1"))
    two = read_algorithm(config("RotatedPincerEmitter", "UniDirection1DRingStrategy", "{colors:2 phases:1"))
    assert (one.doubles_on_torus, two.doubles_on_torus) == (True, False)
    assert [read_algorithm(config(name)).halves for name in ("1DAllGatherNonMajorDim", "1DAllGatherOnMajorDim")] == [
        False,
        True,
    ]
