"""Shardings as text, and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.model.capture import format_spec, parse_spec

AXES = st.lists(st.text(min_size=1, max_size=4), max_size=3, unique=True).map(tuple)


@given(st.lists(AXES, max_size=4).map(tuple), AXES, AXES)
def test_what_is_written_reads_back(dimensions, unreduced, reduced):
    found = parse_spec(format_spec(dimensions, unreduced=unreduced, reduced=reduced))
    assert found.dimensions == dimensions
    assert (found.unreduced, found.reduced) == (tuple(sorted(unreduced)), tuple(sorted(reduced)))


@pytest.mark.parametrize("text", ["", "P(", "P", "left open", "P(x)", "P('X', other={'Y'})", "P(1)", "(" * 10_000])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match=r"[\s\S]*"):
        parse_spec(text)
