"""Tables: columns are given up before anything is broken, and every cell is drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from hloscope.report.layout import Breaks, Column, render_table


def column(header, *cells, **options):
    return Column(header=header, cells=[Text(cell) for cell in cells], **options)


NAME = column("name", "params['layers']['w1']", "x", breaks=Breaks.AFTER_PUNCTUATION)
SHAPE = column("global", "f32[8,64]", "s32[]", given_up=1, below=("global f32[8,64]", "global s32[]"))
BYTES = column("bytes", "2.05 kB", "4 B", right=True, given_up=2)


def drawn(columns, width):
    return [line.plain.rstrip() for line in render_table(columns, width)]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            60,
            [
                "name                     global        bytes",
                "────────────────────────────────────────────",
                "params['layers']['w1']   f32[8,64]   2.05 kB",
                "x                        s32[]           4 B",
            ],
        ),
        (
            42,
            [
                "name                    global       bytes",
                "──────────────────────────────────────────",
                "params['layers']['w1']  f32[8,64]  2.05 kB",
                "x                       s32[]          4 B",
            ],
        ),
        (
            41,
            [
                "name               global        bytes",
                "──────────────────────────────────────",
                "params['layers']   f32[8,64]   2.05 kB",
                "['w1']",
                "x                  s32[]           4 B",
            ],
        ),
        (
            33,
            [
                "name                       bytes",
                "────────────────────────────────",
                "params['layers']['w1']   2.05 kB",
                "  global f32[8,64]",
                "x                            4 B",
                "  global s32[]",
            ],
        ),
        (
            22,
            [
                "name",
                "──────────────────────",
                "params['layers']['w1']",
                "  global f32[8,64]",
                "  2.05 kB",
                "x",
                "  global s32[] · 4 B",
            ],
        ),
        (
            12,
            [
                "name",
                "────────────",
                "params",
                "['layers']",
                "['w1']",
                "  global",
                "  f32[8,64]",
                "  2.05 kB",
                "x",
                "  global",
                "  s32[]",
                "  4 B",
            ],
        ),
    ],
)
def test_layouts(width, expected):
    assert drawn((NAME, SHAPE, BYTES), width) == expected


def test_a_column_without_text_is_left_out():
    assert drawn((NAME, column("empty", "", "")), 60)[0] == "name"


def test_a_table_without_rows_is_nothing():
    assert drawn((column("name"), column("bytes")), 60) == []


WORDS = st.text(st.sampled_from("abz01 _.,/[]'=:%漢"), max_size=30).map(lambda text: " ".join(text.split()))


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 4))
    return [
        Column(
            header=f"column{index}",
            cells=[Text(draw(WORDS)) for _ in range(rows)],
            right=draw(st.booleans()),
            breaks=draw(st.sampled_from([Breaks.NEVER, Breaks.BETWEEN_WORDS, Breaks.AFTER_PUNCTUATION])),
            given_up=index or None,
        )
        for index in range(draw(st.integers(1, 5)))
    ]


@given(tables(), st.integers(12, 120))
def test_every_character_is_drawn_and_no_line_is_too_wide(columns, width):
    lines = render_table(columns, width)
    cells = [cell.plain for column in columns for cell in column.cells]
    assert max((line.cell_len for line in lines), default=0) <= width
    drawn = sorted(character for line in lines[2:] for character in line.plain if character not in " ·")
    assert drawn == sorted(character for cell in cells for character in cell if character not in " ·")


def test_a_table_of_one_column_without_a_title_has_no_head():
    first = Column(header="", cells=[Text("best")])
    other = Column(header="sharding", cells=[Text("x" * 60)], given_up=1)
    assert drawn([first, other], 20)[0] == "best"
