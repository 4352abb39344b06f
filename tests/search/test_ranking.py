"""Ranking with Shardy alone: what it estimates, what it survives, and that nothing is dropped."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hloscope.base.errors import CompilerDiedError
from hloscope.compile import step
from hloscope.compile.estimates import Rates
from hloscope.compile.sharding_change import ConstraintChange, ConstraintEdit, LeafChange, ModuleEdit, Resharding
from hloscope.search import ranking
from hloscope.search.ranking import combine_pairs, combine_triples, find_candidates, rank_changes

pytestmark = pytest.mark.tpu_compiler
ROWS, COLUMNS = (("X",), ()), ((), ("X",))


def test_bytes_that_move_are_counted_as_often_as_loops_run(subject_of):
    module = subject_of("carry_against_constraint").lowered.bytecode
    as_it_is, entering, nowhere = step.estimate_edits(
        module,
        [ModuleEdit(), ModuleEdit(arguments=((0, COLUMNS),)), ModuleEdit(constraints=(ConstraintEdit(operation=0),))],
    )
    share = 8192 * 4096 * 4 // 8 * 7 // 8
    assert as_it_is.moved_bytes >= 4 * share
    assert entering.moved_bytes < share
    assert nowhere is None


def test_one_exchange_moves_what_the_compiler_says(subject_of):
    subject = subject_of("masked")
    (found,) = step.estimate_edits(subject.lowered.bytecode, [ModuleEdit()])
    assert found.moved_bytes == subject.analysis.totals.wire_bytes


def test_matmuls_are_counted_per_device(subject_of):
    (found,) = step.estimate_edits(subject_of("eight_heads").lowered.bytecode, [ModuleEdit()])
    assert found.flops == 2 * 2 * 4 * 8 * 1024 * 1024 * 128 / 8


def test_the_best_comes_first_and_nothing_is_dropped(subject_of):
    subject = subject_of("masked")
    found = find_candidates(subject.captured, subject.analysis.collectives[0].reason, {})
    order = rank_changes(subject, found, 600)
    assert order[0].change.words == ("argument mask: P(None, 'X') -> P('X', None)",)
    assert {one.change for one in order} >= {*found}
    assert any(one.change.parts == 2 for one in order)
    times = [one.time_us for one in order]
    assert None not in times
    assert times[0] < times[-1]


def test_what_ends_the_worker_ranks_last_and_takes_no_other_with_it(subject_of, monkeypatch):
    subject = subject_of("masked")
    deadly = Resharding(arguments=(LeafChange(index=0, name="x", before=ROWS, after=((), ())),))
    well = Resharding(arguments=(LeafChange(index=1, name="mask", before=COLUMNS, after=ROWS),))
    asked = []

    def question(_, module, edits, **__):
        asked.append(len(edits))
        if any(edit.arguments[:1] == ((0, ((), ())),) for edit in edits):
            return SimpleNamespace(answer=lambda: (_ for _ in ()).throw(died))
        return SimpleNamespace(answer=lambda: step.estimate_edits(module, edits))

    died = CompilerDiedError("ranking died", why="SIGSEGV")
    monkeypatch.setattr(ranking.client, "Question", question)
    order = rank_changes(subject, (deadly, well), 600)
    assert [(one.change, one.time_us is None) for one in order] == [(well, False), (deadly, True)]
    assert asked == [3, 1, 2, 1, 1]  # the program as it is comes first


def test_what_there_is_no_time_for_ranks_last(subject_of):
    subject = subject_of("masked")
    found = find_candidates(subject.captured, subject.analysis.collectives[0].reason, {})
    order = rank_changes(subject, found, 0)
    assert {(one.change, one.time_us) for one in order} == {(change, None) for change in found}
    assert [one.change.asks for one in order] == sorted(change.asks for change in found)


def test_pairs_are_of_different_things():
    one = Resharding(arguments=(LeafChange(index=0, name="x", before=ROWS, after=COLUMNS),))
    other = Resharding(arguments=(LeafChange(index=0, name="x", before=ROWS, after=((), ())),))
    third = Resharding(results=(LeafChange(index=0, name="r", before=ROWS, after=None),), frees_output=True)
    dropped = Resharding(
        constraints=(ConstraintChange(edits=(ConstraintEdit(operation=1),), place="a.py:1", before=ROWS),)
    )
    joined = combine_pairs((one, other, third, dropped), ())
    assert [change.parts for change in joined] == [2] * 5
    assert not any(len(change.arguments) == 2 for change in joined)
    assert all(change.frees_output == bool(change.results) for change in joined)
    assert combine_pairs((one, third), joined) == ()


def test_a_third_change_joins_pairs_that_it_does_not_touch():
    changes = [
        Resharding(arguments=(LeafChange(index=number, name=name, before=ROWS, after=COLUMNS),))
        for number, name in enumerate("abc")
    ]
    (pair, *_) = combine_pairs(changes[:2], ())
    (joined,) = combine_triples((pair,), changes, (pair,))
    assert [leaf.name for leaf in joined.arguments] == ["a", "b", "c"]
    assert combine_triples((pair,), changes, (pair, joined)) == ()


def test_of_equals_the_one_that_asks_nothing_of_callers_then_the_one_that_stays_cut():
    whole = Resharding(arguments=(LeafChange(index=0, name="x", before=ROWS, after=((), ()), moves=True),))
    cut = Resharding(arguments=(LeafChange(index=0, name="x", before=ROWS, after=COLUMNS, moves=True),))
    freed = Resharding(results=(LeafChange(index=0, name="r", before=ROWS, after=COLUMNS),), frees_output=True)
    both = Resharding(arguments=cut.arguments, results=freed.results, frees_output=True)
    own = Resharding(arguments=(LeafChange(index=1, name="w", before=ROWS, after=((), ())),))
    order = ranking._sort_by_estimate(dict.fromkeys((both, whole, cut, freed, own), 1.0))
    assert order == [own, cut, freed, whole, both]


def test_what_asks_for_what_is_so_already_comes_last(subject_of):
    subject = subject_of("masked")
    (op, *_) = [one for one in subject.captured.compiled.shardy.ops if one.kind == "stablehlo.multiply"]
    same = ConstraintChange(
        edits=(ConstraintEdit(operation=op.identity[-1], operand=0, sharding=ROWS),), place="a.py:1", array="x"
    )
    slower = Resharding(results=(LeafChange(index=0, name="result", before=ROWS, after=((), ())),), frees_output=True)
    order = rank_changes(subject, (Resharding(constraints=(same,)), slower), 600)
    assert order[-1].change.constraints == (same,)
    assert order[-1].time_us < order[0].time_us


def test_rates_make_a_time():
    from hloscope.compile.estimates import Estimate

    rates = Rates(link_bytes=1e9, memory_bytes=1e9, flops=1e9)
    assert Estimate(moved_bytes=1e6, memory_bytes=0, flops=2e6).time_us(rates) == pytest.approx(3000)


def test_where_types_say_the_sharding_each_change_is_traced(subject_of):
    subject = subject_of("explicit_sum")
    found = find_candidates(subject.captured, subject.analysis.collectives[0].reason, {})
    assert found
    assert not any(change.constraints for change in found)
    order = rank_changes(subject, found, 600)
    times = {one.change: one.time_us for one in order}
    assert {*times} >= {*found}
    known = [time for time in times.values() if time is not None]
    assert len(known) > 1
    assert min(known) < max(known)
