"""What a change asks of whoever calls the program: named, priced and said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hloscope.compile.sharding_change import LeafChange
from hloscope.model.trial import Trial, Trials
from hloscope.report.words import describe_trials
from hloscope.search import TrialLimits, try_changes
from hloscope.search.trials import price_resharding

ROWS, COLUMNS, WHOLE = (("X",), ()), ((), ("X",)), ((), ())


def moved(before, after) -> LeafChange:
    return LeafChange(index=1, name="mask", before=before, after=after, moves=True)


@pytest.mark.tpu_compiler
def test_an_argument_that_becomes_whole_takes_its_bytes_over_the_links(subject_of):
    subject = subject_of("masked")
    array_bytes, link_bytes_per_s = 8192 * 4096 * 4, subject.lowered.slice.chip.ici_bytes_per_s
    found = price_resharding(subject, [moved(COLUMNS, WHOLE)], 60)
    assert found > 1e6 * array_bytes * 7 / 8 / link_bytes_per_s
    assert found > 2 * price_resharding(subject, [moved(COLUMNS, ROWS)], 60) > 0


@pytest.mark.tpu_compiler
def test_what_is_only_cut_further_takes_nothing(subject_of):
    subject = subject_of("scalar_loss")
    cut = LeafChange(index=1, name="w", before=WHOLE, after=COLUMNS, moves=True)
    assert price_resharding(subject, [cut], 60) == 0
    assert price_resharding(subject, [], 60) == 0


@pytest.mark.tpu_compiler
def test_where_types_say_the_sharding_arrays_are_moved_too(subject_of):
    subject = subject_of("explicit_sum")
    assert price_resharding(subject, [moved(ROWS, COLUMNS)], 60) > 0


@pytest.mark.tpu_compiler
def test_what_is_not_compiled_in_time_is_not_known(subject_of):
    subject = replace(subject_of("masked"), store=None)
    assert price_resharding(subject, [moved(COLUMNS, WHOLE)], 0.001) is None


@pytest.mark.tpu_compiler
def test_trials_that_help_name_what_moves(subject_of):
    subject = subject_of("masked")
    trials = try_changes(subject, subject.analysis.collectives[0], TrialLimits(changes=4, seconds=120))
    (found,) = [one for one in trials.trials if one.change == ("argument mask: P(None, 'X') -> P('X', None)",)]
    assert found.moves == ("mask",)
    assert found.moving_us == price_resharding(subject, [moved(COLUMNS, ROWS)], 60)
    state = subject_of("momentum")
    (best, *_) = try_changes(state, state.analysis.collectives[0], TrialLimits(changes=4, seconds=120)).helping
    assert (best.moves, best.moving_us) == ((), 0.0)


@pytest.mark.parametrize(("moves", "us", "expected"), [
    (("x",), 412.3, "if x can be created with that sharding: moving it there takes about 412 us"),
    (("x",), 0.0, "if x can be created with that sharding: slicing it further moves nothing"),
    (("x",), None, "if x can be created with that sharding: the time to move it there is unknown"),
    (("x", "y"), 412.3, "if x and y can be created with that sharding: moving them there takes about 412 us"),
    (("x", "y", "z"), 0.0, "if x, y and z can be created with that sharding: slicing them further moves nothing"),
    (("a", "b", *"cdef"), 0.0, "if a, b and 4 others can be created with that sharding: slicing them further "
     "moves nothing"),
], ids=str)  # fmt: skip
def test_what_it_takes_is_one_line(figures, moves, us, expected):
    trial = Trial(change=("c",), after=figures, helps=True, moves=moves, moving_us=us)
    lines = [words for _, words in describe_trials(Trials(before=figures, trials=(trial,)))]
    assert lines[2:] == [expected]


@pytest.fixture
def figures():
    """Of any program."""
    from hloscope.model.trial import Figures
    from hloscope.model.vocabulary import Bound

    return Figures(
        step_us=1.0,
        step_us_range=None,
        step_bound=Bound.EXACT,
        wire_bytes=0,
        wire_bytes_by_axis={},
        wire_bound=Bound.EXACT,
        hbm_bytes=None,
        collectives=0,
    )
