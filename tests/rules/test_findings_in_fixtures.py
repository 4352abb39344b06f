"""Every finding on every captured text: what a person who knows the programs would say of them, and nothing else."""

from __future__ import annotations

import pytest

import hloscope
from hloscope.rules.selection import judged

EXPECTED = {
    "authored.psum_scatter_as_all_reduce": {"all-reduce-then-slice"},
    "by_hand.contradicted_trip_count": {"unmodelled-text"},
    "by_hand.gpu_library_calls": {"opaque-communication"},
    "by_hand.unknown_transfer_between_slices": {"opaque-communication"},
    "elsewhere.all_gather_over_slices": {"model-parallel-over-dcn"},
    "elsewhere.kernel_with_remote_copy": {"opaque-communication"},
    "loops.bound_at_run_time": {"unmodelled-text"},
    "mixture_of_experts.mixture_of_experts": {"collective-in-loop"},
    "mixture_of_experts.mixture_of_experts_shard_map": {"widened-collective"},
    "partitioned.loop_invariant_gather": {"collective-in-loop"},
}


def name_of(path):
    return path.name.removesuffix(".hlo").partition(".jax-")[0]


def test_the_list_names_fixtures_that_there_are(root):
    assert EXPECTED.keys() <= {name_of(path) for path in (root / "fixtures").glob("*/*.hlo")}


@pytest.mark.parametrize("folder", ["captured", "spellings"])
def test_findings(root, folder):
    paths = sorted((root / "fixtures" / folder).glob("*.hlo"))
    found = {
        path.name: {one.rule for one in judged(hloscope.analyze_text(path.read_text())).findings} for path in paths
    }
    assert found == {path.name: EXPECTED.get(name_of(path), set()) for path in paths}
