"""The mesh on its slice, as SVG and in characters."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from reading import SVG, texts_in

import hloscope
from hloscope.base.errors import HloscopeError, SliceError
from hloscope.cost.link_traffic import LinkTraffic, place_mesh
from hloscope.model import Mesh
from hloscope.model.vocabulary import Bound
from hloscope.report.graphs import draw_graph
from hloscope.report.pictures import svg
from hloscope.report.pictures.meshes import describe_mesh, place_analysis, render_mesh
from hloscope.report.timeline import draw_timeline
from hloscope.tpu import parse_slice
from hloscope.tpu.torus import Torus


def timeline_svg(found):
    return svg.render(draw_timeline(found))


EXPERTS = (
    Path(__file__).parent.parent.parent.parent / "fixtures/captured/mixture_of_experts.mixture_of_experts.jax-0.10.hlo"
)


@lru_cache(maxsize=1)
def experts():
    return hloscope.analyze(EXPERTS, slice="v5e:2x4", mesh={"X": 4, "Y": 2})


@lru_cache(maxsize=8)
def without_program(slice_name, axes):
    names, sizes = zip(*axes, strict=True)
    in_one_slice = Mesh(axis_names=names, axis_sizes=sizes).device_count // parse_slice(slice_name).slice_count
    named = hloscope.analyze_text(
        f"HloModule m, num_partitions={in_one_slice}\nENTRY %e {{\n  ROOT %p = f32[8] parameter(0)\n}}\n",
        slice=slice_name,
        mesh=dict(axes),
    )
    return hloscope.Analysis.from_dict(named.to_dict())


def titles_in(picture):
    return [title.text for title in ElementTree.fromstring(picture).iter(f"{SVG}title")]


def test_chips_stand_at_their_places_with_the_places_of_the_mesh():
    titles = titles_in(experts().mesh_picture().svg)
    assert "chip 0,0 of host 0: device 0 at X0 Y0" in titles
    assert "chip 0,2 of host 1: device 4 at X3 Y1" in titles  # jax.make_mesh: 0, 1, 2, 3, 7, 6, 5, 4
    assert len([title for title in titles if title.startswith("chip")]) == 8
    assert {title for title in titles if title.startswith("host")} == {"host 0", "host 1"}


def test_links_say_what_the_model_has_on_them():
    placed = place_analysis(experts())
    titles = titles_in(render_mesh(placed))
    links = [title for title in titles if " link from " in title]
    assert len(links) == 4 + 2 * 3
    assert "x link from the chip of device 0 to the next: 3.29 GB there and 3.29 GB back each step" in links
    assert placed.traffic.busiest_bytes(0, 0) == pytest.approx(8 * 7 / 8 * 0.9395e9 / 2, rel=1e-3)


def test_a_document_shows_the_mesh_and_says_what_is_not_known():
    picture = hloscope.Analysis.from_dict(experts().to_dict()).mesh_picture()
    assert "What crosses the links is not known." in str(picture)
    assert "GB" not in picture.svg


def test_closed_axes_lead_round():
    closed, open_ = (
        without_program(name, (("data", size), ("model", size))).mesh_picture()
        for name, size in (("v5e:16x16", 16), ("v5e:8x8", 8))
    )
    assert "Ends that stick out lead round" in " ".join(texts_in(closed.svg))
    assert sum("round to the other side" in title for title in titles_in(closed.svg)) == 32
    assert "in rings whose neighbors are 1 link apart" in str(closed)
    assert not any("round to the other side" in title for title in titles_in(open_.svg))
    assert "data=8: along y in lines whose neighbors are 1 link apart" in str(open_)


def test_planes_stand_side_by_side():
    picture = without_program("v5p:4x4x4", (("data", 4), ("model", 16))).mesh_picture()
    assert [text for text in texts_in(picture.svg) if text.startswith("z=")] == ["z=0", "z=1", "z=2", "z=3"]
    assert "data=4: along z in rings" in str(picture)
    assert "Slanted ends lead to the plane of the next z." in " ".join(texts_in(picture.svg))


def test_planes_that_are_left_out_are_said():
    picture = without_program("v5p:4x4x16", (("data", 16), ("model", 16))).mesh_picture()
    assert "Drawn are the planes z=0, 1, 2, 14, 15 of 16." in " ".join(texts_in(picture.svg))


def test_several_slices_are_joined_over_dcn():
    found = without_program("2*v5e:2x4", (("replica", 2), ("model", 8)))
    words = list(describe_mesh(place_mesh(found)))
    assert "replica=2: over DCN between 2 slices" in words
    assert "DCN" in " ".join(texts_in(found.mesh_picture().svg))


def test_devices_of_one_chip_share_it():
    picture = without_program("tpu7x:2x2x1", (("data", 4), ("core", 2))).mesh_picture()
    assert "0 1" in texts_in(picture.svg)


def test_chips_that_are_not_used_say_so():
    found = without_program("v5e:2x4", (("data", 4),))
    titles = titles_in(render_mesh(place_mesh(found, device_ids=(0, 1, 2, 3))))
    assert sum(title.endswith("not used") for title in titles) == 4


def test_a_mesh_that_does_not_fit_is_not_drawn_as_if_it_did():
    found = replace(without_program("v5e:2x4", (("data", 8),)), mesh=Mesh(axis_names=("data",), axis_sizes=(64,)))
    placed = place_mesh(found)
    assert placed.coordinates == {}
    assert placed.notes[0] == "the mesh has 64 devices, and v5e:2x4 has 8"


@pytest.mark.parametrize("name", ["v5e:2x4", "v5e:16x16", "v4:2x2x2", "v5p:8x8x8"])
def test_letters_stay_inside(name):
    size = {"v5e:2x4": 8, "v5e:16x16": 256, "v4:2x2x2": 8, "v5p:8x8x8": 512}[name]
    root = ElementTree.fromstring(without_program(name, (("data", size),)).mesh_picture().svg)
    width, height = float(root.get("width")), float(root.get("height"))
    for text in root.iter(f"{SVG}text"):
        x, y, long = float(text.get("x")), float(text.get("y")), len(text.text) * 0.605 * float(text.get("font-size"))
        begin = {"start": x, "middle": x - long / 2, "end": x - long}[text.get("text-anchor")]
        assert 0 <= begin <= begin + long <= width, text.text
        assert 0 <= y <= height


def test_without_chips_there_is_nothing_to_draw():
    with pytest.raises(SliceError, match="cpu:8 has no links between chips"):
        without_program("cpu:8", (("data", 8),)).mesh_picture()


def test_an_array_is_asked_for_by_its_name():
    picture = experts().array("W")
    assert picture.title == "W, P(('X', 'Y'), None, None)"
    assert repr(picture) == "<Picture of W, P(('X', 'Y'), None, None)>"
    assert str(picture) == picture.text
    with pytest.raises(HloscopeError, match="has no array 'result\\[9\\]'") as refused:
        experts().array("result[9]")
    assert "did you mean result" in str(refused.value)


def test_pictures_are_saved(tmp_path):
    picture = experts().array("W")
    picture.save(tmp_path / "w.svg")
    picture.save(str(tmp_path / "w.txt"))
    saved = (tmp_path / "w.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(saved)
    assert "var(" not in saved  # which not every program that draws SVG knows
    assert (tmp_path / "w.txt").read_text(encoding="utf-8") == picture.text + "\n"
    with pytest.raises(HloscopeError, match=re.escape("a picture cannot be saved as w.png")) as refused:
        picture.save(tmp_path / "w.png")
    assert "name it w.svg" in str(refused.value)
    with pytest.raises(HloscopeError, match="cannot be written"):
        picture.save(tmp_path / "nowhere" / "w.svg")


def test_pictures_have_no_ground_of_their_own_in_a_page():
    """What lies below letters is the page's, whose colour theirs goes with."""
    pictures = (experts().mesh_picture().svg, experts().array("W").svg, svg.render(draw_graph(experts().graph())))
    for picture in (*pictures, timeline_svg(experts().timeline())):
        for each in ElementTree.fromstring(picture).iter():
            fill, opacity = each.get("fill"), float(each.get("fill-opacity", 1))
            if each.tag == f"{SVG}rect":
                assert fill == "none" or opacity <= 0.75
                assert fill in ("none", "currentColor", "var(--hloscope-tint,#4285f4)")


def test_hostile_axes_are_text():
    found = without_program("v5e:2x4", (("<script>", 4), ("\u202e\x1b", 2)))
    picture = found.mesh_picture()
    assert "script" not in {each.tag for each in ElementTree.fromstring(picture.svg).iter()}
    assert not any(letter in picture.svg + picture.text for letter in "\u202e\x1b")


def test_names_of_what_is_not_counted_are_cut():
    found = without_program("v5e:2x4", (("X", 8),))
    torus = Torus.of(parse_slice("v5e:2x4"))
    traffic = LinkTraffic(
        torus=torus,
        link_bytes=np.zeros((8, 2, 2)),
        host_bytes=0.0,
        bound=Bound.AT_LEAST,
        unpriced=("n" * 10_000, *(f"send.{number}" for number in range(20))),
    )
    (note,) = [note for note in place_mesh(found, traffic=traffic).notes if note.startswith("not counted")]
    assert len(note) < 250
    assert note.endswith("send.6 and 13 others")
