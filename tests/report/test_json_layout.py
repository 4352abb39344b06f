"""How JSON is laid out: lines that people read and that `diff` compares, and no more blanks than these need."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hloscope.report.escaping import dump_json

WIDTH = 120
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda part: st.lists(part, max_size=12) | st.dictionaries(st.text(max_size=12), part, max_size=12),
    max_leaves=60,
)


def test_parts_share_lines_and_objects_in_lists_do_not():
    frames = [{"file": "model.py", "line": line} for line in range(6)]
    document = {"name": "step", "axes": ["X", "Y"], "sizes": list(range(50)), "frames": frames}
    lines = dump_json(document).splitlines()
    assert lines[:2] == ["{", '  "name": "step", "axes": ["X", "Y"],']
    assert lines[2:4] == ['  "sizes": [', f"    {', '.join(map(str, range(31)))},"]
    assert [line.strip(" ,") for line in lines[-8:-2]] == [json.dumps(frame) for frame in frames]


@given(DOCUMENTS)
def test_what_is_laid_out_reads_back_the_same(document):
    text = dump_json(document)
    assert json.loads(text) == document


@given(st.lists(st.integers(0, 999), max_size=400))
def test_no_line_is_longer_than_it_must_be(numbers):
    lines = dump_json({"numbers": numbers}).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= 5 + len(json.dumps(numbers)) / (WIDTH - 20)
