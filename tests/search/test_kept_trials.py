"""What was tried once is not tried again, and what ran out of time is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hloscope.base.errors import TimeLimitError
from hloscope.base.store import Store
from hloscope.search import TrialLimits, trials, try_changes
from hloscope.search.trial_cache import TrialCache

pytestmark = pytest.mark.tpu_compiler
LIMITS = TrialLimits(changes=1, seconds=120)


@pytest.fixture
def subject(subject_of, tmp_path):
    return replace(subject_of("masked"), store=Store(tmp_path))


def refused(*_args, **_options):
    raise AssertionError("it compiles")


def test_a_second_time_nothing_is_compiled(subject, monkeypatch):
    collective = subject.analysis.collectives[0]
    first = try_changes(subject, collective, LIMITS)
    assert len(first.trials) == 1
    monkeypatch.setattr(trials, "start_compile", refused)
    monkeypatch.setattr(trials, "rank_changes", refused)
    assert try_changes(subject, collective, LIMITS) == first
    assert try_changes(subject, collective, TrialLimits(changes=1, seconds=10)) == first
    with pytest.raises(AssertionError, match="it compiles"):
        try_changes(subject, collective, TrialLimits(changes=2, seconds=120))


def test_what_had_too_little_time_is_tried_again(subject, monkeypatch):
    collective = subject.analysis.collectives[0]

    def late(*_args, **_options):
        raise TimeLimitError("compiling", 1.0)

    with monkeypatch.context() as patched:
        patched.setattr(trials, "start_compile", late)
        assert (try_changes(subject, collective, LIMITS).stopped,) == (True,)
    again = try_changes(subject, collective, LIMITS)
    assert (again.stopped, len(again.trials)) == (False, 1)


def test_what_time_ran_out_on_is_known_and_a_shorter_search_does_not_replace_it(subject, monkeypatch):
    collective = subject.analysis.collectives[0]
    start, begun = trials.start_compile, []

    def late(*args, **options):
        begun.append(args)
        if len(begun) > 2:
            raise TimeLimitError("compiling", 1.0)
        return start(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(trials, "start_compile", late)
        found = try_changes(subject, collective, TrialLimits(changes=9, seconds=120))
    assert (found.stopped, len(found.trials)) == (True, 2)
    kept = TrialCache(subject.store, subject.kept, collective)
    assert kept.known == found
    assert len(try_changes(subject, collective, LIMITS).trials) == 1
    assert kept.known == found


def test_a_damaged_entry_is_none(subject):
    collective = subject.analysis.collectives[0]
    first = try_changes(subject, collective, LIMITS)
    (path,) = [path for path in subject.store.folder.iterdir() if path.name.startswith("tried-")]
    path.write_bytes(path.read_bytes()[:-3])
    assert try_changes(subject, collective, LIMITS) == first


def test_analyze_tells_what_was_tried_and_tries_nothing(subject, monkeypatch):
    from hloscope.search.trial_cache import add_known_fixes

    analysis, collective = subject.analysis, subject.analysis.collectives[0]
    assert add_known_fixes(analysis, subject.store, subject.kept) == analysis
    try_changes(subject, collective, LIMITS)
    monkeypatch.setattr(trials, "start_compile", refused)
    (told,) = add_known_fixes(analysis, subject.store, subject.kept).collectives
    change, step, moves = re.split(r", (?=\d)|; ", told.tried)
    assert change == "argument mask: P(None, 'X') -> P('X', None)"
    assert step.endswith(" us -> 71.9 us")
    assert moves.startswith("if mask can be created with that sharding: moving it there takes about ")
    assert add_known_fixes(analysis, None, subject.kept) == analysis
    assert add_known_fixes(analysis, subject.store, None) == analysis


def test_what_a_change_depends_on_is_told_with_it(subject):
    from hloscope.search.trial_cache import add_known_fixes

    found = try_changes(subject, subject.analysis.collectives[0], LIMITS)
    trial = replace(found.helping[0], moves=("mask",), moving_us=412.0, frees_output=True)
    kept = TrialCache(subject.store, subject.kept, subject.analysis.collectives[0])
    kept.put(LIMITS, replace(found, trials=(trial,)))
    (told,) = add_known_fixes(subject.analysis, subject.store, subject.kept).collectives
    assert told.tried.endswith(
        " us -> 71.9 us; if mask can be created with that sharding: moving it there takes about 412 us; "
        "if the result may have another sharding than the requested one"
    )
