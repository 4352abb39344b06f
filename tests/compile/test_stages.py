"""A compile that is read when it is scheduled says what the compiled program says, and leaves nothing behind."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import jax
import pytest
import two_stages
from click.testing import CliRunner
from compiled_twice import lowered
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.app.analyses import find_analysis
from hloscope.app.requests import FrontDoor, Request
from hloscope.base.errors import CompilerDiedError
from hloscope.base.store import Store
from hloscope.cli import group
from hloscope.compile import client, compiling, jax_support, stages
from hloscope.compile.step import _surely_fits
from hloscope.judge.figures import STEP, find_figure
from hloscope.model.capture import CompiledProgram, HbmPeak
from hloscope.model.vocabulary import CompileStage
from hloscope.tpu.slices import parse_slice

FOLDER = Path(__file__).parent.parent.parent / "fixtures" / "programs"
TEXT = Path(__file__).parent.parent.parent / "fixtures" / "captured" / "collective_matmul.collective.jax-0.10.hlo"
MARKS = {stages._LIVE_RANGES: b"  Live ranges at", stages._USAGE: b"Total"}
"""Where the part of a file that is read ends."""
PAIRS = [
    ("two_matmuls", "two_matmuls", "v4"),
    ("two_matmuls", "two_matmuls_shard_map", "v5p"),
    ("two_matmuls", "two_matmuls", "v6e"),
    ("mixture_of_experts", "mixture_of_experts", "v5e"),
    ("mixture_of_experts", "mixture_of_experts", "v6e"),
    ("feed_forward", "feed_forward_linear", "v5e"),
    ("ambiguous_einsum", "whole_columns", "v5p"),
    ("ambiguous_einsum", "sharded_columns_shard_map", "v6e"),
    ("all_reduce_matmul", "all_reduce_matmul", "v5e"),
    ("reduce_scatter_matmul", "reduce_scatter_matmul", "v4"),
    ("reduce_scatter_matmul", "reduce_scatter_matmul", "v5e"),
    ("two_matmuls", "two_matmuls_shard_map", "7x"),
]


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(("file", "function", "generation"), PAIRS)
def test_both_stages_say_the_same(file, function, generation):
    pair = two_stages.compile_pair(f"{FOLDER / file}.py:{function}", slice_of=generation)
    assert pair.scheduled is not None
    assert pair.differences == ()
    known = stages.find_stage_check(jax_support.find_own_libtpu_version())
    assert known is not None
    assert pair.added <= set(known.added)
    assert (pair.scheduled.stage, pair.compiled.stage) == (CompileStage.SCHEDULED, CompileStage.COMPILED)


@pytest.fixture
def program(monkeypatch):
    """A small program, whose code seems to take long."""
    monkeypatch.setattr(client.Question, "is_answered", False)
    monkeypatch.setattr(compiling, "SOON_COMPILED_CHARS", 0)
    return lowered(f"{FOLDER / 'two_matmuls.py'}:two_matmuls")


def capture_scheduled(program, store=None):
    return compiling.start_compile(program, store=store, wanted=CompileStage.SCHEDULED).capture()


@pytest.mark.tpu_compiler
def test_a_compile_that_ends_early_leaves_no_file_and_no_process(program, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = capture_scheduled(program)
    assert found.compiled.stage is CompileStage.SCHEDULED
    deadline = time.monotonic() + 10
    while list(tmp_path.glob("hloscope-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [path for path in tmp_path.iterdir() if "slots" not in path.name] == []
    assert all(worker.is_alive for worker in client.get_pool()._idle)


@pytest.mark.tpu_compiler
def test_the_cache_gives_the_stage_that_is_wanted_or_a_later_one(program, tmp_path):
    store = Store(tmp_path, most_bytes=1 << 30)
    capture_scheduled(program, store)
    assert compiling.prepare_compile(program, store=store).found is None
    first = compiling.prepare_compile(program, store=store, wanted=CompileStage.SCHEDULED).found
    assert first is not None
    assert first.stage is CompileStage.SCHEDULED
    compiled = compiling.start_compile(program, store=store).capture().compiled
    assert compiled.stage is CompileStage.COMPILED
    for wanted in (CompileStage.SCHEDULED, CompileStage.COMPILED):
        assert compiling.prepare_compile(program, store=store, wanted=wanted).found == compiled


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("times", [3, pytest.param(40, marks=pytest.mark.long)])
def test_a_worker_that_dies_between_the_stages_makes_no_wrong_entry(times, program, tmp_path):
    whole = compiling.start_compile(program).capture().compiled
    chance = random.Random(times)
    for number in range(times):
        store = Store(tmp_path / str(number), most_bytes=1 << 30)
        pending = compiling.start_compile(program, store=store, wanted=CompileStage.SCHEDULED)
        pending.question.first_answer()
        pending = replace(pending, wanted=CompileStage.COMPILED)
        threading.Timer(chance.random() * 0.5, pending.drop).start()
        with suppress(CompilerDiedError):
            pending.capture()
        kept = compiling.prepare_compile(program, store=store).found
        assert kept is None or kept == replace(whole, seconds=kept.seconds)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """The folder of a finished compile."""
    folder = tmp_path_factory.mktemp("dumped")
    program = lowered(f"{FOLDER / 'two_matmuls.py'}:two_matmuls")
    options = {**stages._OPTIONS, "xla_dump_to": str(folder)}
    options = {name: str(value).lower() if value is True else value for name, value in options.items()}
    compiling.start_compile(replace(program, facts=replace(program.facts, compiler_options=options))).capture()
    return folder


@pytest.mark.tpu_compiler
def test_a_file_that_is_not_whole_is_not_read(dumped):
    found = stages.read_schedule(dumped, "jit_two_matmuls")
    assert found is not None
    assert found.output_shardings is not None
    assert found.memory_bytes["argument_size_in_bytes"] > 0
    assert stages.read_schedule(dumped, "jit_another") is None
    for ending in stages._SCHEDULED:
        path = next(dumped.glob(f"*.{ending}"))
        whole = path.read_bytes()
        try:
            needed = whole[: whole.find(MARKS[ending])] if ending in MARKS else whole
            for part in (0, 1, len(needed) // 3, len(needed) // 2, 9 * len(needed) // 10):
                path.write_bytes(needed[:part])
                assert stages.read_schedule(dumped, "jit_two_matmuls") is None
            path.unlink()
            assert stages.read_schedule(dumped, "jit_two_matmuls") is None
        finally:
            path.write_bytes(whole)


@pytest.mark.parametrize(("constant_bytes", "heap_bytes", "is_sure"), [(1, 1, True), (15, 0, False), (1, 14, False)])
def test_what_may_not_fit_waits_for_the_compilers_verdict(constant_bytes, heap_bytes, is_sure):
    live = constant_bytes << 30
    peak = HbmPeak(at="", buffers=(), other_bytes=0, live_bytes=live, heap_bytes=heap_bytes << 30, temporary_bytes=0)
    found = CompiledProgram(text="", memory_bytes={}, hbm_peak=peak)
    assert _surely_fits(found, parse_slice("v5e:2x4")) is is_sure
    assert not _surely_fits(replace(found, hbm_peak=None), parse_slice("v5e:2x4"))


def test_a_version_that_was_never_compared_is_compiled_in_full():
    known = stages.read_stage_checks()
    assert {"0.0.42.1", "0.0.50.1"} <= set(known)
    assert all(len(check.exceptions) <= 0.02 * check.pairs for check in known.values())
    assert stages.find_stage_check("0.0.1") is None
    assert stages.find_stage_check(None) is None


# ---- what is said of a program at its first stage


@pytest.fixture(scope="module")
def scheduled():
    """An analysis as at the first stage, of text."""
    found = hloscope.analyze_text(TEXT.read_text(), slice="v5e:2x4")
    memory = replace(found.memory, argument_bytes=8 << 30, temp_bytes=0, data_bytes=8 << 30)
    return replace(found, stage=CompileStage.SCHEDULED, memory=memory)


def test_a_report_never_calls_it_compiled(scheduled):
    text = str(scheduled)
    assert "scheduled, not yet compiled" in text
    assert "8.59 GB of 16 GiB HBM (50.0%), and the program's code, whose size is unknown" in text


def test_a_contract_on_its_time_is_not_decided(scheduled):
    assert not hloscope.check(scheduled, contract="time <= 1s").passed
    assert hloscope.check(replace(scheduled, stage=CompileStage.COMPILED), contract="time <= 1s").passed


def test_stages_are_of_functions(tmp_path):
    for ask in (hloscope.analyze, hloscope.timeline, hloscope.graph):
        with pytest.raises(hloscope.HloscopeError, match="stage does not apply to HLO text"):
            ask(TEXT, stage="scheduled")
    refused = CliRunner().invoke(group, ["price", str(TEXT), "--slice", "v5e:2x4", "--quick"])
    assert refused.exit_code == 2
    assert "--quick does not apply to HLO text" in refused.stderr
    with pytest.raises(hloscope.HloscopeError, match="stage"):
        hloscope.analyze(TEXT, stage="quick")


# ---- shardings as JAX 0.12 prints them, by the names of axes

NAMED = {
    "{mesh['X'=4,'Y'=2], [{'X'}, {'Y'}]}": "{devices=[4,2]<=[8]}",
    "{mesh['X'=4,'Y'=2], [{'Y'}, {}]}": "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}",
    "{{mesh['X'=4,'Y'=2], [{}, {}]}, {mesh['X'=4,'Y'=2], [{'Y', 'X'}]}}": "{{replicated}, {devices=[8]<=[4,2]T(1,0)}}",
    "{devices=[2,4]<=[8]}": "{devices=[2,4]<=[8]}",
    "{maximal device=0}": "{maximal device=0}",
}


@pytest.mark.parametrize("named", NAMED)
def test_named_shardings_are_spelled_as_tiles(named):
    assert stages._spell_as_tiles(named) == NAMED[named]


@pytest.mark.parametrize(
    "unclear",
    [
        "{mesh['X'=4,'Y'=2], [{'X':(1)2}, {}]}",
        "{mesh['X'=4,'Y'=2], [{}, {}], unreduced={'Y'}}",
        "{mesh['X'=4,'Y'=2], device_ids=([8]), [{'X'}, {}]}",
    ],
)
def test_a_named_sharding_of_another_kind_is_not_guessed(unclear):
    with pytest.raises(ValueError, match="mesh"):
        stages._spell_as_tiles(unclear)


@pytest.mark.tpu_compiler
def test_a_first_report_is_shown_while_machine_code_is_made(program):
    shown = []
    door = FrontDoor(begin=lambda subject, found, _stage: shown.append((subject, found)))
    request = Request(target=f"{FOLDER / 'two_matmuls.py'}:two_matmuls", door=door, begins=True)
    found = find_analysis(request)
    ((subject, first),) = shown
    assert (subject, first.stage, found.stage) == ("analysis", CompileStage.SCHEDULED, CompileStage.COMPILED)
    assert first.digest == found.digest
    assert [str(each.why) for each in first.collectives] == [str(each.why) for each in found.collectives]


# ---- every question about a function may stop at the first stage

MATMULS = f"{FOLDER / 'two_matmuls.py'}:two_matmuls"


@pytest.fixture
def slow_code(monkeypatch):
    """Makes machine code seem to take long, for every program."""
    monkeypatch.setattr(client.Question, "is_answered", False)
    monkeypatch.setattr(compiling, "SOON_COMPILED_CHARS", 0)
    monkeypatch.setenv("HLOSCOPE_CACHE", "0")


@pytest.mark.tpu_compiler
@pytest.mark.usefixtures("slow_code")
def test_prices_timelines_and_graphs_are_estimated_when_scheduled():
    prices = hloscope.price(MATMULS, ("v5e:2x4", "v6e:2x4"), stage="scheduled")
    assert [(each.stage, each.time.basis) for each in prices] == [(CompileStage.SCHEDULED, "estimates")] * 2
    (first, _) = prices
    assert hloscope.timeline(MATMULS, slice="v5e:2x4", stage="scheduled").step_us == first.time.step_us
    assert hloscope.graph(MATMULS, slice="v5e:2x4", stage="scheduled").nodes


@pytest.mark.tpu_compiler
@pytest.mark.usefixtures("slow_code")
def test_an_estimated_step_is_compared_with_another_one_alone():
    early, late = (hloscope.analyze(MATMULS, slice="v5e:2x4", stage=stage) for stage in ("scheduled", "compiled"))
    other = hloscope.analyze(f"{MATMULS}_shard_map", slice="v5e:2x4", stage="scheduled")
    estimated = hloscope.diff(early, other)
    assert find_figure(estimated.judged.figures, STEP).comparable
    assert "both steps are estimates, made before there was machine code" in estimated.judged.caveats
    mixed = hloscope.diff(early, late)
    assert find_figure(mixed.judged.figures, STEP) is None
    assert "one of them is an estimate, made before there was machine code" in str(mixed)


@pytest.mark.tpu_compiler
@pytest.mark.usefixtures("slow_code")
def test_recorded_programs_are_read_when_they_are_scheduled():
    with hloscope.recording("v5e:2x4", stage="scheduled", only="squared") as rec:
        mesh = jax.make_mesh((8,), ("X",), axis_types=(jax.sharding.AxisType.Auto,))
        weights = jax.numpy.zeros((4096, 8192), device=NamedSharding(mesh, P(None, "X")))

        @jax.jit
        def squared(x):
            return x @ x.T

        assert squared(weights).shape == (4096, 4096)
    (found,) = rec.programs
    assert (found.analysis.stage, found.analysis.time.basis) == (CompileStage.SCHEDULED, "estimates")
    assert [each.kind for each in found.analysis.collectives]
