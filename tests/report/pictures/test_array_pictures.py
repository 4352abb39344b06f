"""Arrays cut along the axes of a mesh: who holds what, as JAX itself says, in box characters and as SVG."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import chain
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import P
from jax.sharding import AxisType, NamedSharding
from reading import boxes_in, cells_in, devices_in, texts_in

from hloscope.analysis.shards import find_shards
from hloscope.model import ArrayFact, Mesh
from hloscope.report.layout import LEAST_WIDTH
from hloscope.report.layout import draw_lines as drawn_lines
from hloscope.report.pictures.arrays import draw_shards_lines, render_shards

MESH = Mesh(axis_names=("X", "Y"), axis_sizes=(4, 2))
ORDERS = ((0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 7, 6, 5, 4))
WAYS = {
    "data parallel": ((16, 8), P("X", None)),
    "tensor parallel": ((16, 8), P(None, "Y")),
    "fully sharded": ((16, 8), P("X", "Y")),
    "the other way round": ((16, 8), P("Y", "X")),
    "two axes on one dimension": ((16, 8), P(("X", "Y"), None)),
    "minor axis first": ((16, 8), P(None, ("Y", "X"))),
    "replicated": ((16, 8), P(None, None)),
    "vector over one axis": ((16,), P("Y")),
    "vector over both": ((16,), P(("X", "Y"))),
    "replicated vector": ((16,), P(None)),
}


def array(shape, spec, local, **facts):
    known = {"name": "W", "dtype": "bf16", "chosen_by": None, "bytes_per_device": None, **facts}
    return ArrayFact(global_shape=shape, sharding=spec, local_shape=local, **known)


def array_svg(fact, mesh, device_ids=None):
    return render_shards(find_shards(fact, mesh, device_ids=device_ids))


def array_text(fact, mesh, device_ids=None, width=100, colour=False):
    lines = draw_shards_lines(find_shards(fact, mesh, device_ids=device_ids), max(width, LEAST_WIDTH))
    return drawn_lines(lines, width, colour)


@lru_cache(maxsize=2)
def jax_mesh(order):
    devices = np.array(jax.devices())[list(order)].reshape(MESH.axis_sizes)
    return jax.sharding.Mesh(devices, MESH.axis_names, axis_types=(AxisType.Auto,) * 2)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("way", WAYS)
def test_jax_says_the_same(way, order, capsys):
    shape, spec = WAYS[way]
    sharding = NamedSharding(jax_mesh(order), spec)
    jax.debug.visualize_sharding(shape, sharding)
    said = boxes_in(capsys.readouterr().out)
    assert sorted(set(chain(*chain(*said)))) == list(range(8))

    fact = array(shape, repr(spec), sharding.shard_shape(shape))
    assert boxes_in(array_text(fact, MESH, device_ids=order)) == said
    assert list(cells_in(array_svg(fact, MESH, device_ids=order)).values()) == list(chain(*said))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("way", WAYS)
def test_cells_hold_the_elements_that_jax_gives_their_devices(way, order):
    shape, spec = WAYS[way]
    sharding = NamedSharding(jax_mesh(order), spec)
    cells = cells_in(array_svg(array(shape, repr(spec), sharding.shard_shape(shape)), MESH, device_ids=order))
    held = {device: cell for cell, devices in cells.items() for device in devices}
    for device, part in sharding.devices_indices_map(shape).items():
        bounds = (f"{each.start or 0}:{each.stop or size}" for each, size in zip(part, shape, strict=True))
        assert held[device.id] == f"[{', '.join(bounds)}]"


@st.composite
def ways_to_shard(draw):
    """A mesh over some of 16 devices in some order, and a sharding over it of an array of up to three dimensions."""
    sizes = draw(st.sampled_from([(2,), (8,), (4, 2), (2, 4), (3, 5), (2, 2, 2), (4, 2, 2), (2, 1, 3)]))
    names = tuple("XYZ"[: len(sizes)])
    order = tuple(draw(st.permutations(range(16))))[: math.prod(sizes)]
    rank = draw(st.integers(1, 3))
    left, spec = list(draw(st.permutations(names))), []
    for _ in range(rank):
        count = draw(st.integers(0, len(left)))
        spec.append(tuple(left[:count]) or None)
        left = left[count:]
    cuts = [math.prod(sizes[names.index(axis)] for axis in axes or ()) for axes in spec]
    shape = tuple(cut * draw(st.integers(1, 3)) for cut in cuts)
    return sizes, names, order, spec, shape


@given(ways_to_shard())
def test_every_device_holds_what_jax_gives_it(way):
    sizes, names, order, spec, shape = way
    devices = np.array(jax.devices())[list(order)].reshape(sizes)
    sharding = NamedSharding(jax.sharding.Mesh(devices, names), P(*spec))
    mesh = Mesh(axis_names=names, axis_sizes=sizes)
    fact = array(shape, repr(P(*spec)), sharding.shard_shape(shape))
    found = find_shards(fact, mesh, device_ids=order)
    assert found.why_unknown is None
    held = {device: place for place, devices in found.holders.items() for device in devices}
    for device, part in sharding.devices_indices_map(shape).items():
        bounds = tuple(cut.bounds(piece) for cut, piece in zip(found.cuts, held[device.id], strict=True))
        assert bounds == tuple((each.start or 0, each.stop or size) for each, size in zip(part, shape, strict=True))
    assert found.copies * math.prod(cut.pieces for cut in found.cuts) == len(order)


def test_partitions_are_named_where_devices_are_not_known():
    known, unknown = (array_text(array((8,), "P('X')", (2,)), MESH, device_ids=ids) for ids in (range(8), None))
    assert "Numbers are device ids." in known
    assert "Numbers are partitions" in unknown


def test_the_mesh_may_count_its_partitions_in_another_order():
    mesh = Mesh(axis_names=("X", "Y"), axis_sizes=(4, 2), partition_ids=(7, 6, 5, 4, 3, 2, 1, 0))
    assert boxes_in(array_text(array((8,), "P('X')", (2,)), mesh)) == [[(6, 7), (4, 5), (2, 3), (0, 1)]]


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        (array((16, 8), None, (4, 8)), "its sharding is not known"),
        (array(None, "P('X', None)", (4, 8)), "the shape of the whole array is not known"),
        (array((16, 8), "P('Z', None)", (4, 8)), "the mesh has no axis Z"),
        (array((16, 8), "P('X:(3)2', None)", (4, 8)), "the mesh has no axis X:(3)2"),
        (array((16, 8), "P('X', 'X')", (4, 2)), "its sharding uses an axis twice"),
        (array((16, 8), "P('X', None)", (2, 8)), "its shape on one device is not the one that its sharding makes"),
        (array((16, 8), "tiled by hand", (2, 8)), "its sharding cannot be read"),
        (array((16,), "P('X', None)", (4,)), "its sharding has more dimensions than it"),
    ],
)
def test_what_is_not_known_is_said_and_not_drawn_as_replicated(fact, why):
    assert find_shards(fact, MESH).holders == {}
    assert f"not known: {why}" in array_text(fact, MESH)
    picture = array_svg(fact, MESH)
    assert cells_in(picture) == {}
    assert f"not known: {why}" in " ".join(texts_in(picture))


def test_without_a_mesh_nobody_can_tell():
    assert "the mesh is not known" in array_text(array((16,), "P('X')", (4,)), None)


def test_on_one_device_that_holds_all():
    one = Mesh(axis_names=(), axis_sizes=())
    assert boxes_in(array_text(array((16, 4), "P(None, None)", (16, 4)), one)) == [[(0,)]]
    assert boxes_in(array_text(array((), "P()", ()), one)) == [[(0,)]]


def test_padding_is_shown():
    fact = array((10, 6), "P('X', 'Y')", (3, 3))
    said = find_shards(fact, MESH)
    assert [said.cuts[0].bounds(piece) for piece in range(4)] == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert "2 elements of padding" in array_text(fact, MESH)
    assert "│    6 ░░░│" in array_text(fact, MESH)
    paths = list(ElementTree.fromstring(array_svg(fact, MESH)).iter("{http://www.w3.org/2000/svg}path"))
    assert len(paths) == 2


def test_a_piece_that_is_partly_padding_shows_its_elements():
    vector, eight = array((9,), "P('X')", (2,)), Mesh(axis_names=("X",), axis_sizes=(8,))
    cells = next(line for line in array_text(vector, eight).splitlines() if "│" in line).split("│")[1:-1]
    whole, partly, nothing = cells[:4], cells[4], cells[5:]
    assert not any("░" in cell for cell in whole)
    assert partly.rstrip("░").strip() == "4"
    assert (partly[0], partly[-1]) == (" ", "░")
    assert len(nothing) == 3
    assert all(set(cell[:2] + cell[-2:]) == {"░"} for cell in nothing)


def test_a_piece_may_be_nothing_but_padding():
    fact = array((5,), "P(('X', 'Y'))", (1,))
    assert find_shards(fact, MESH).cuts[0].bounds(7) == (5, 5)
    assert boxes_in(array_text(fact, MESH))[0] == [(device,) for device in range(8)]


def test_parts_of_axes_cut_like_axes_of_their_size():
    """X:(1)2 is the major half of X, and X:(2)2 the minor one."""
    major = array((8, 4), "P('X:(1)2', None)", (4, 4))
    minor = array((8, 4), "P('X:(2)2', None)", (4, 4))
    assert boxes_in(array_text(major, MESH)) == [[(0, 1, 2, 3)], [(4, 5, 6, 7)]]
    assert boxes_in(array_text(minor, MESH)) == [[(0, 1, 4, 5)], [(2, 3, 6, 7)]]
    assert find_shards(major, MESH).copied_over == ("X:(2)2", "Y")
    assert find_shards(minor, MESH).copied_over == ("X:(1)2", "Y")


def test_addends_are_no_copies():
    fact = array((16, 8), "P('X', None, unreduced={'Y'})", (4, 8))
    said = find_shards(fact, MESH)
    assert (said.copies, said.addends) == (1, 2)
    drawn = array_text(fact, MESH)
    assert "0+1" in drawn
    assert "Not yet summed over Y=2" in drawn
    assert "replicated" not in drawn


def test_of_three_dimensions_the_two_that_are_cut_are_drawn():
    drawn = array_text(array((4, 512, 8), "P('X', None, 'Y')", (1, 512, 4)), MESH)
    assert boxes_in(drawn) == [[(0,), (1,)], [(2,), (3,)], [(4,), (5,)], [(6,), (7,)]]
    assert "Not drawn, dimension 1: 512, whole." in drawn


def test_a_third_cut_is_said():
    mesh = Mesh(axis_names=("X", "Y", "Z"), axis_sizes=(2, 2, 2))
    drawn = array_text(array((8, 8, 8), "P('X', 'Y', 'Z')", (4, 4, 4)), mesh)
    assert boxes_in(drawn) == [[(0, 1), (2, 3)], [(4, 5), (6, 7)]]
    assert "over Z=2: 2 shards lie behind each other" in drawn


@pytest.mark.parametrize("spec", ["P('X', 'Y')", "P(None, 'Y')", "P(('X', 'Y'), None)", "P(None, None)"])
def test_4096_devices_stay_readable(spec):
    mesh = Mesh(axis_names=("X", "Y"), axis_sizes=(64, 64))
    cut = {"P('X', 'Y')": (128, 128), "P(None, 'Y')": (8192, 128), "P(('X', 'Y'), None)": (2, 8192)}
    fact = array((8192, 8192), spec, cut.get(spec, (8192, 8192)))
    drawn = array_text(fact, mesh, width=80)
    assert max(map(len, drawn.splitlines())) <= 80
    assert len(drawn.splitlines()) < 50
    whole = find_shards(fact, mesh)
    for cell, devices in cells_in(array_svg(fact, mesh)).items():
        begins = [int(bounds.partition(":")[0]) for bounds in cell.strip("[]").split(", ")]
        place = tuple(begin // cut.piece_size for begin, cut in zip(begins, whole.cuts, strict=True))
        assert devices == whole.holders[place]


@pytest.mark.parametrize("width", [20, 24, 40, 60, 100, 200])
@pytest.mark.parametrize("way", WAYS)
def test_no_line_is_wider_than_the_terminal(way, width):
    shape, spec = WAYS[way]
    local = NamedSharding(jax_mesh(ORDERS[0]), spec).shard_shape(shape)
    drawn = array_text(array(shape, repr(spec), local), MESH, width=width)
    assert max(map(len, drawn.splitlines())) <= width


def test_colour_is_an_addition():
    fact = array((16, 8), "P('X', 'Y')", (4, 4))
    plain, coloured = (array_text(fact, MESH, colour=colour) for colour in (False, True))
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured
    assert boxes_in(plain) == [[(0,), (1,)], [(2,), (3,)], [(4,), (5,)], [(6,), (7,)]]


def test_a_picture_says_what_it_shows():
    root = ElementTree.fromstring(array_svg(array((16, 8), "P('X', None)", (4, 8)), MESH))
    assert root.get("role") == "img"
    assert root.find("{*}title").text == "W, bf16[16,8], P('X', None)"
    assert "dimension 0: 16 in 4 pieces of 4 over X=4" in root.find("{*}desc").text


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a\nb\x1b[31m", "\u202egnp", "W" * 10_000, "\"'&]]>"])
def test_hostile_names_are_text(name):
    fact = array((16, 8), "P('X', None)", (4, 8), name=name)
    picture = array_svg(fact, MESH)
    ElementTree.fromstring(picture)
    assert len(picture) < 20_000
    assert not {"script", "\n", "\x1b", "\u202e"} & {each.tag for each in ElementTree.fromstring(picture).iter()}
    assert not any(letter in picture for letter in "\n\x1b\u202e")
    assert "\x1b" not in array_text(fact, MESH)


def test_labels_read_back():
    assert devices_in("0–3") == (0, 1, 2, 3)
    assert devices_in("0,2,…,6") == (0, 2, 4, 6)
    assert devices_in("1+5") == (1, 5)
