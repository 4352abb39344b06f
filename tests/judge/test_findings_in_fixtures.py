"""Every finding on every captured text: what a person who knows the programs would say of them, and nothing else."""

from __future__ import annotations

from importlib import import_module

import hloscope

NEED_A_PRICE = {"exposed-collective"}
"""Rules that say nothing of a text without a slice."""

OF_SPELLINGS = {
    "authored.psum_scatter_as_all_reduce": {"all-reduce-then-slice"},
    "by_hand.contradicted_trip_count": {"unmodelled-text"},
    "by_hand.gpu_library_calls": {"opaque-communication"},
    "by_hand.unknown_transfer_between_slices": {"opaque-communication"},
    "elsewhere.all_gather_over_slices": {"model-parallel-over-dcn"},
    "elsewhere.kernel_with_remote_copy": {"opaque-communication"},
    "loops.bound_at_run_time": {"unmodelled-text"},
    "partitioned.loop_invariant_gather": {"collective-in-loop"},
}


def name_of(path):
    return path.name.removesuffix(".hlo").partition(".jax-")[0]


def rules_of(path):
    return {finding.rule for finding in hloscope.analyze_text(path.read_text()).findings}


def test_seeds(root, monkeypatch):
    """What a seed's own file says of the program, as far as its text shows it."""
    monkeypatch.syspath_prepend(root / "fixtures" / "programs")
    paths = sorted((root / "fixtures" / "captured").glob("*.hlo"))
    expected = {}
    for path in paths:
        file, _, function = name_of(path).partition(".")
        (program,) = (program for program in import_module(file).PROGRAMS if program.function == function)
        expected[path.name] = set(program.findings) - NEED_A_PRICE
    assert {path.name: rules_of(path) for path in paths} == expected


def test_spellings(root):
    paths = sorted((root / "fixtures" / "spellings").glob("*.hlo"))
    assert OF_SPELLINGS.keys() <= set(map(name_of, paths))
    assert {path.name: rules_of(path) for path in paths} == {
        path.name: OF_SPELLINGS.get(name_of(path), set()) for path in paths
    }
