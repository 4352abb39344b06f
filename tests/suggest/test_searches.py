"""Whole searches: what they find, that it holds when it is written into the program, and that they are repeatable."""

from __future__ import annotations

import itertools
import json
import re
import signal
import types
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax
import pytest
import shardable
from jax.sharding import PartitionSpec as P

import hloscope
from hloscope.compile import client, compiling
from hloscope.compile.lowering import lower_changed
from hloscope.compile.target import find_attached_facts
from hloscope.model.vocabulary import CompileStage
from hloscope.report.suggestions import describe_effort
from hloscope.search import suggesting

ROOT = Path(__file__).parent.parent.parent
EXPERTS = f"{ROOT}/fixtures/programs/mixture_of_experts.py:mixture_of_experts"

pytestmark = pytest.mark.tpu_compiler


def by_hand(function, suggestion):
    """The facts of a program with a suggestion written into it, as somebody would who reads the report."""
    facts = find_attached_facts(function)
    notations = {spec.name: spec.notation for spec in suggestion.specs if not spec.is_result}
    results = {spec.name: spec.after for spec in suggestion.specs if spec.is_result}
    out = results.get("result", facts.out)

    def written(value, name):
        if isinstance(value, dict):
            return {key: written(inner, f"{name}['{key}']") for key, inner in value.items()}
        return notations.get(name, value)

    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    args = tuple(written(value, name) for value, name in zip(facts.args, names, strict=True))
    return replace(facts, args=args, out=out, mesh=dict(suggestion.mesh))


def options(facts):
    return {"args": facts.args, "mesh": facts.mesh, "out": facts.out, "dims": facts.dims, "donate": facts.donate}


@pytest.mark.usefixtures("cached")
def test_a_search_finds_what_is_faster_and_it_holds_when_written_by_hand():
    found = hloscope.suggest(shardable.experts, candidates=8)
    best = found.best
    assert best.gain > 0.5
    specs = {spec.name: spec.after for spec in best.specs}
    assert (specs["W1"], specs["W2"]) == ("P('X', None, None)", "P('X', None, None)")  # an expert on each device
    assert (found.own.is_own, found.own.recipe) == (True, "data parallel over X")
    facts = by_hand(shardable.experts, best)
    again = hloscope.analyze(shardable.experts, **options(facts), slice="v5e:2x4")
    assert again.time.step_us == pytest.approx(best.figures.step_us, rel=0.01)
    assert again.totals.wire_bytes == best.figures.wire_bytes
    assert again.memory.peak_bytes == pytest.approx(best.figures.hbm_bytes, rel=0.01)


@pytest.mark.long
@pytest.mark.usefixtures("cached")
def test_the_same_seed_compiles_the_same_in_the_same_order_whatever_the_jobs():
    one, two = (hloscope.suggest(shardable.experts, candidates=6, jobs=jobs) for jobs in (1, 2))
    assert one == two
    document = json.loads(one.report(format="json"))
    assert document["compiled"] == one.compiled
    assert [row["figures"]["step_us"] for row in document["front"]] == [row.figures.step_us for row in one.front]


def test_what_cannot_be_searched_is_said_in_one_message(says):
    own = {"args": ("bf16[8@X,16]",), "mesh": {"X": 8}, "slice": "v5e:2x4"}
    for word, call in {
        "text": lambda: hloscope.suggest(ROOT / "fixtures" / "hlo" / "nothing.hlo"),
        "one device": lambda: hloscope.suggest(lambda x: x, ("bf16[8,16]",), slice="v5e:1x1"),
        "all kept": lambda: hloscope.suggest(lambda x: x * 2, **own, keep="*", fix_mesh=True),
        "no slice": lambda: hloscope.suggest(lambda x: x * 2, **{**own, "slice": "cpu:8"}),
    }.items():
        with pytest.raises(hloscope.HloscopeError) as caught:
            call()
        says(str(caught.value).replace(str(ROOT), "ROOT"), word)


@pytest.mark.usefixtures("cached")
def test_the_block_to_paste_has_constraints_and_what_becomes_of_open_results():
    def turned(x, w):
        return jax.lax.with_sharding_constraint(x @ w, P(None, "X")) + 1

    call = {"args": ("bf16[4096,1024]", "bf16[1024,1024]"), "mesh": {"X": 8}, "slice": "v5e:2x4"}
    found = hloscope.suggest(turned, **call, keep="w", candidates=8)
    best = next(row for row in found.front if any(spec.after == "P('X', None)" for spec in row.specs))
    (result,) = [spec for spec in best.specs if spec.is_result]
    assert (result.name, result.before, result.after, result.is_open) == (
        "result",
        "P(None, 'X')",
        "P('X', None)",
        True,
    )
    assert "# result becomes P('X', None), the compiler's choice" in best.code
    line = turned.__code__.co_firstlineno + 1
    assert f"# constraint at {Path(__file__).name}:{line}: P(None, 'X') -> P('X', None)" in best.code


@pytest.mark.usefixtures("cached")
def test_ctrl_c_gives_what_was_found():
    class Interrupted(ThreadPoolExecutor):
        """Somebody presses Ctrl-C while a few programs are compiled."""

        given = 0

        def submit(self, *args, **kwargs):
            self.given += 1
            if self.given == 12:
                signal.raise_signal(signal.SIGINT)
            return super().submit(*args, **kwargs)

    with Interrupted(2) as executor:
        found = hloscope.suggest(shardable.experts, candidates=40, executor=executor)
    assert found.stopped == "interrupted"
    assert 1 <= found.compiled < 20
    assert "stopped early: interrupted" in str(found)


@pytest.mark.usefixtures("cached")
def test_compiles_that_fail_are_told_with_their_reasons(monkeypatch):
    calls = itertools.count()

    def refused_now_and_then(*args, **kwargs):
        if next(calls) % 3 == 2:
            raise hloscope.HloscopeError("the compiler refuses it", why="an example")
        return lower_changed(*args, **kwargs)

    monkeypatch.setattr(suggesting, "lower_changed", refused_now_and_then)
    found = hloscope.suggest(shardable.experts, candidates=8, jobs=1)
    assert found.failures == {"the compiler refuses it": found.failed}
    assert found.failed > 0
    assert f"failed to compile ({found.failed}): the compiler refuses it" in " ".join(str(found).split())
    assert found.to_dict()["failures"] == found.failures


@pytest.mark.usefixtures("cached")
def test_the_limit_and_the_report_count_the_same():
    found = hloscope.suggest(shardable.small_ffn, candidates=3, fix_mesh=True)
    variants = found.compiled + found.failed - 1 - 3
    assert 0 <= variants <= suggesting.MOST_VARIANTS
    counted, *_ = describe_effort(found)
    assert f" {3 + variants} compiled besides the program as written, in " in counted


@pytest.mark.long
@pytest.mark.usefixtures("cached")
def test_a_budget_ends_a_search():
    found = hloscope.suggest(shardable.layer, candidates=400, budget_s=5)
    assert found.stopped == "the time limit was reached"
    assert found.compiled < 100


@pytest.mark.long
@pytest.mark.usefixtures("cached")
def test_the_mixture_of_experts_whose_result_is_free_moves_nothing():
    found = hloscope.suggest(EXPERTS, free="result", candidates=24)
    assert found.own.figures.step_us > 70_000
    assert found.best.figures.step_us < 3000
    assert found.best.figures.wire_bytes == 0


@pytest.mark.long
@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("name", ["small_ffn", "attention", "layer", "experts", "train"])
def test_the_best_is_no_slower_than_any_recipe_computes_the_same_and_holds(name):
    function = getattr(shardable, name)
    found = hloscope.suggest(function, candidates=32)
    best = found.best or found.own
    assert best.figures.step_us <= 1.05 * min(found.recipes.values())
    facts = by_hand(function, best)
    again = hloscope.analyze(function, **options(facts), slice="v5e:2x4")
    assert again.time.step_us == pytest.approx(best.figures.step_us, rel=0.01)
    assert again.memory.peak_bytes == pytest.approx(best.figures.hbm_bytes, rel=0.01)
    sharded, written = (
        hloscope.target(**options(smaller(each)), slice="v5e:2x4")(copy_of(function))
        for each in (facts, find_attached_facts(function))
    )
    verified = hloscope.verify(sharded, written, ignore=("more-than-reference",))
    assert verified.passed, verified


SMALLER = {128: 8, 512: 16, 1024: 64, 4096: 128}
"""Sizes of the programs here, and what is quick to run of them."""


def smaller(facts):
    """The facts of a program of smaller sizes, whose arrays are cut along the same dimensions."""

    def less(leaf):
        return re.sub(r"\d+(?=[@,\]])", lambda size: str(SMALLER.get(int(size[0]), int(size[0]))), leaf)

    args = jax.tree.map(less, facts.args)
    return replace(facts, args=args, dims={letter: SMALLER.get(size, size) for letter, size in facts.dims.items()})


def copy_of(function):
    """The same function without the facts attached to it."""
    return types.FunctionType(function.__code__, function.__globals__, function.__name__)


@pytest.fixture
def slow_code(monkeypatch):
    """Makes machine code seem to take long, for every program."""
    monkeypatch.setattr(client.Question, "is_answered", False)
    monkeypatch.setattr(compiling, "SOON_COMPILED_CHARS", 0)


@pytest.mark.usefixtures("slow_code", "cached")
def test_a_search_that_ends_for_the_machine_code_says_which_limit_it_was(monkeypatch):
    monkeypatch.setattr(suggesting, "_SHARE_SEARCHING", 0.02)
    found = hloscope.suggest(shardable.experts, candidates=400, budget_s=200)
    assert found.stopped.startswith("the search used up its three fifths of the time limit")


@pytest.mark.usefixtures("slow_code")
def test_programs_are_compared_when_they_are_scheduled_and_the_best_are_compiled(monkeypatch):
    wanted = Counter()
    prepare = suggesting.prepare_compile

    def count(program, **options):
        wanted[options["wanted"]] += 1
        return prepare(program, **options)

    monkeypatch.setattr(suggesting, "prepare_compile", count)
    found = hloscope.suggest(shardable.experts, candidates=4)
    rows = [found.own, *found.front]
    assert {row.figures.stage for row in rows} == {CompileStage.COMPILED}
    assert found.best.recipe == "expert parallel over X"
    assert found.best.gain > 0.5
    assert wanted[CompileStage.COMPILED] == len(rows)
    assert wanted[CompileStage.SCHEDULED] >= found.compiled - 1
    assert [note for note in found.notes if "estimates" in note] == [
        "the steps of recipes are estimates for scheduled programs, of which the best were compiled to the end"
    ]


@pytest.mark.usefixtures("slow_code")
def test_a_search_without_time_for_machine_code_says_that_its_times_are_estimates(monkeypatch):
    def late(search):
        search.found.stopped = "the time limit was reached"

    monkeypatch.setattr(suggesting.Search, "_confirm", late)
    found = hloscope.suggest(shardable.experts, candidates=2)
    assert found.own.figures.stage is CompileStage.SCHEDULED
    assert found.notes[0].startswith("all times are estimates for scheduled programs")
