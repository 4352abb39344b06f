"""When `explain` tries by itself, when only where that is asked for, and when never."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hloscope.app import explaining
from hloscope.app.explaining import Trying
from hloscope.model.trial import Trial, Trials
from hloscope.tpu.slices import parse_slice
from hloscope.why.explanation import Explanation


def subject(slice_name="v5e:2x4", compile_s=0.5, time=1.0):
    return SimpleNamespace(
        captured=SimpleNamespace(compiled=SimpleNamespace(seconds=compile_s)),
        analysis=SimpleNamespace(time=time, find_decisions=lambda _: iter(())),
        lowered=SimpleNamespace(slice=parse_slice(slice_name), strategy=object()),
        store=None,
        kept=None,
    )


@pytest.mark.parametrize(("facts", "seconds", "expected"), [
    ({}, None, None),
    ({"compile_s": 1.99}, None, None),
    ({"compile_s": 35.0}, None, "the program takes 35 s to compile: pass --try 5m to try"),
    ({"compile_s": 35.0}, 300.0, None),
    ({"compile_s": None}, None, "it was compiled in this process, and each change would be too: pass --try 5m to try"),
    ({"slice_name": "cpu:8", "time": None}, 300.0, "cpu:8 has no times to compare"),
], ids=str)  # fmt: skip
def test_what_compiles_quickly_is_tried_unasked(facts, seconds, expected):
    assert explaining._explain_untried(subject(**facts), Trying(seconds=seconds)) == expected


@pytest.fixture
def tried(monkeypatch):
    """The limits of each try; every one compiles three changes."""
    limits = []

    def trying(_subject, _collective, limit):
        limits.append(limit)
        return Trials(trials=(Trial(change=("a",), after=None),) * min(3, limit.changes))

    monkeypatch.setattr("hloscope.search.trying.try_changes", trying)
    return limits


EXPLANATION = Explanation(
    collective=SimpleNamespace(name="all-gather"),
    number=1,
    copies=1,
    place=None,
    excerpt=None,
    unread=False,
    steps=(),
    equations=(),
    advice=(),
)


def test_all_collectives_together_get_four_changes(tried):
    found = explaining._add_trials([EXPLANATION] * 3, subject(), Trying())
    assert [limit.changes for limit in tried] == [4, 1]
    assert tried[0].seconds == 10
    assert [one.trials.not_tried is None for one in found] == [True, True, False]
    assert "--try" in found[2].trials.not_tried


def test_asked_for_time_is_spent_on_as_many_as_there_are(tried):
    explaining._add_trials([EXPLANATION] * 3, subject(compile_s=100.0), Trying(seconds=60))
    assert len(tried) == 3
    assert tried[0] == replace(tried[0], changes=60, seconds=60)
