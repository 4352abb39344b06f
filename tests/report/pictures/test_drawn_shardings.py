"""`hloscope shardings --draw`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reading import boxes_in

from hloscope.base.canvas import Canvas
from hloscope.base.errors import HloscopeError
from hloscope.report.formats import render
from hloscope.report.shardings import ShardingTable
from hloscope.why.shardings import ArrayRole, ShardedArray

W = ShardedArray(
    role=ArrayRole.ARGUMENT,
    name="layers[0]['w']",
    element_type="bf16",
    global_shape=(16, 8),
    local_shape=(4, 8),
    sharding="P('X', None)",
    bytes_per_device=64,
)
TABLE = ShardingTable(
    target="model.py:step",
    slice_name="v5e:2x4",
    axis_sizes={"X": 4, "Y": 2},
    arrays=(
        W,
        replace(W, name="layers[1]['w']"),
        replace(W, name="b", global_shape=(16,), local_shape=(16,), sharding="P(None)"),
        replace(W, role=ArrayRole.OUTPUT, name="result", local_shape=(4, 4), sharding="P('X', 'Y')"),
    ),
    unused=(),
    notes=("a note",),
)


def test_arrays_that_are_cut_alike_are_drawn_once():
    drawn = TABLE.draw()
    assert boxes_in(drawn) == [
        [(0, 1)], [(2, 3)], [(4, 5)], [(6, 7)],
        [tuple(range(8))],
        [(0,), (1,)], [(2,), (3,)], [(4,), (5,)], [(6,), (7,)],
    ]  # fmt: skip
    assert "Cut just so: layers[1]['w']." in drawn
    assert drawn.count("Numbers are places in the mesh") == 1
    assert drawn == render("drawn_shardings", "text", TABLE, Canvas())


@pytest.mark.parametrize("width", [20, 40, 80, 100])
def test_no_line_is_wider_than_the_terminal(width):
    assert max(map(len, TABLE.draw(width=width).splitlines())) <= width


def test_colour_is_asked_for():
    assert "\x1b[" in TABLE.draw(colour=True)
    assert "\x1b[" not in TABLE.draw()


def test_one_array_is_a_picture():
    picture = TABLE.array("b")
    assert boxes_in(str(picture)) == [[tuple(range(8))]]
    assert picture._repr_svg_().startswith("<svg")
    with pytest.raises(HloscopeError, match=r"model\.py:step has no array 'layers'"):
        TABLE.array("layers")


def test_the_document_stays_what_it_was():
    assert render("drawn_shardings", "json", TABLE, Canvas()) == render("shardings", "json", TABLE, Canvas())


def test_without_a_mesh_nothing_is_cut():
    alone = replace(TABLE, axis_sizes={}, arrays=(replace(W, local_shape=(16, 8), sharding="P()"),))
    assert boxes_in(alone.draw()) == [[(0,)]]
