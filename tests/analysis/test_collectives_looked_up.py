"""Collectives by what they are: nothing unknown is left out, and sums say how they relate to the truth."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hloscope
from hloscope.analysis.totals import remove_guessed_times
from hloscope.base.errors import NotationError, TargetError
from hloscope.model import Collectives
from hloscope.model.vocabulary import Bound

TEXT = """HloModule step, num_partitions=8

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

ENTRY main {
  p = f32[64] parameter(0)
  g = f32[512] all-gather(p), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true,
    metadata={op_name="jit(step)/dot" source_file="/secret/plans.py" source_line=1}
  ROOT r = f32[512] all-reduce(g), channel_id=2, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=add
}
"""
MESH = {"X": 4, "Y": 2}


@pytest.fixture
def found():
    return hloscope.analyze_text(TEXT, mesh=MESH, slice="v5e:2x4")


def names(collectives):
    return [one.name for one in collectives]


def test_by_kind_axis_and_selector(found):
    assert names(found["all-reduce@Y"]) == names(found.collectives.where("all-reduce", axis="Y")) == ["r"]
    assert names(found["all-*@X"]) == ["g"]
    assert names(found["all-gather@Y"]) == ["g"]  # over both
    assert found["all-to-all"] == ()


@pytest.mark.parametrize("selector", ["all-gather@Z", "all-gathr", "all-gather@"])
def test_a_slip_of_the_pen_is_no_empty_answer(found, selector):
    with pytest.raises(NotationError):
        found[selector]


def test_what_is_not_known_is_among_them(found):
    dark = Collectives((replace(found.collectives[0], axes=None, source=()),), mesh_axes=("X", "Y"))
    assert dark.where("all-reduce", axis="Y") == dark.where(source="moe.py") == dark


def test_sums_say_what_they_are(found):
    both = found.collectives
    assert (both.bound, both.wire_bytes_per_step) == (Bound.EXACT, sum(one.wire_bytes for one in both))
    endless = Collectives((replace(both[0], executions_bound=Bound.AT_LEAST), both[1]))
    assert endless.bound is Bound.AT_LEAST
    assert "≥" in repr(endless)
    unknown = Collectives((replace(both[0], wire_bytes=None), both[1]))
    assert (unknown.wire_bytes_per_step, unknown.bound) == (None, Bound.AT_LEAST)
    assert repr(unknown).startswith("<2 collectives, ≥1.79 kB on the wire")
    assert repr(unknown[:1]).startswith("<1 collective, unknown on the wire")


def test_groups_cover_all(found):
    for what in ("axis", "kind", "line", "module"):
        groups = found.collectives.by(what)
        assert sorted(names(one for group in groups.values() for one in group)) == ["g", "r"]


def test_a_table_has_scalars_and_bounds(found):
    pytest.importorskip("pandas")
    table = found.to_dataframe()
    assert list(table["axes"]) == [",".join(one.axes) for one in found.collectives]
    assert list(table["executions_bound"]) == ["exact", "exact"]
    assert list(table["hlo_line"]) == [one.line for one in found.collectives]
    assert "line" not in table


def test_a_guessed_slice_gives_no_error_of_a_time_either(found):
    guessed = remove_guessed_times(replace(found, slice=replace(found.slice, chosen_by="guess")))
    assert {(one.time_us, one.time_error) for one in guessed.collectives} == {(None, None)}


def test_no_file_that_a_text_names_is_read_for_its_analysis(found, monkeypatch):
    read = []
    monkeypatch.setattr("linecache.getline", lambda file, line: read.append(file) or "secret")
    (told, *_) = hloscope.explain(found)
    assert (read, told.excerpt, told.unread) == ([], None, True)


@pytest.mark.parametrize("said", [{"mesh": MESH}, {"slice": "v5e:2x4"}, {"args": ("f32[8]",)}], ids=str)
def test_what_an_analysis_has_settled_is_refused(found, said):
    (name,) = said
    for call in (
        lambda: hloscope.explain(found, **said),
        lambda: hloscope.check(found, contract="none", **said),
        lambda: hloscope.diff(found, found, **said),
    ):
        with pytest.raises(TargetError, match=f"^{name} does not apply to an analysis"):
            call()


def test_files_given_as_paths_get_what_is_said_of_them(tmp_path):
    files = [tmp_path / "old.hlo", tmp_path / "new.hlo"]
    for file in files:
        file.write_text(TEXT)
    found = hloscope.diff(*files, mesh=MESH)
    assert found.same
    assert set(found.totals.old.by_axis) == {"X,Y", "Y"}
