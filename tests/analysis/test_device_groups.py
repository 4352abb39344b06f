"""What the numbers in replica groups mean, and which network they cross."""

from __future__ import annotations

import re

import pytest

from hloscope.model import Mesh
from hloscope.model.vocabulary import Bound, Kind, Link


def only(analysis):
    [found] = analysis.collectives
    return found


def reduce(groups: str, rest: str = "") -> str:
    return f"%p = f32[4] parameter(0)\nROOT %c = f32[4] all-reduce(%p), replica_groups={groups}{rest}, to_apply=%sum"


GLOBAL = ", channel_id=1, use_global_device_ids=true"
MEANINGS = {
    "flattened ids": ("replica_count=2, num_partitions=2", "{{0,1},{2,3}}", GLOBAL, ((0, 1), (2, 3))),
    "replica ids, per partition": ("replica_count=2, num_partitions=2", "{{0,1}}", "", ((0, 2), (1, 3))),
    "replica ids, over partitions": (
        "replica_count=2, num_partitions=2",
        "{{0},{1}}",
        ", channel_id=1",
        ((0, 1), (2, 3)),
    ),
    "all flattened": ("replica_count=2, num_partitions=2", "{}", GLOBAL, ((0, 1, 2, 3),)),
    "all replicas": ("replica_count=2, num_partitions=2", "{}", "", ((0, 2), (1, 3))),
    "all replicas and partitions": ("replica_count=2, num_partitions=2", "{}", ", channel_id=1", ((0, 1, 2, 3),)),
    "one replica alone": ("num_partitions=4", "{}", "", ((0,), (1,), (2,), (3,))),
    "pmap": ("replica_count=4", "{{0,1,2,3}}", "", ((0, 1, 2, 3),)),
    "ids beyond the replicas": ("num_partitions=4", "{{0,1},{2,3}}", "", ((0, 1), (2, 3))),
    "iota": ("num_partitions=4", "[2,2]<=[2,2]T(1,0)", GLOBAL, ((0, 2), (1, 3))),
    "named mesh": ("num_partitions=4", "mesh['a'=2,'b'=2] {'a'}", GLOBAL, ((0, 2), (1, 3))),
    "no header": ("", "{{0,1},{2,3}}", "", ((0, 1), (2, 3))),
}


@pytest.mark.parametrize(("header", "groups", "rest", "expected"), MEANINGS.values(), ids=MEANINGS.keys())
def test_groups_of_a_reduction(analyze, header, groups, rest, expected):
    assert only(analyze(reduce(groups, rest), header=header)).groups == expected


def test_partition_ids_of_an_all_to_all_are_per_replica(analyze):
    groups = "replica_groups={{0,1}}, channel_id=1"
    entry = f"%p = f32[4] parameter(0)\nROOT %c = f32[4] all-to-all(%p), {groups}, dimensions={{0}}"
    found = only(analyze(entry, header="replica_count=2, num_partitions=2"))
    assert found.groups == ((0, 1), (2, 3))


def test_a_pmap_program_is_named_by_its_mesh(analyze):
    mesh = Mesh(axis_names=("i",), axis_sizes=(4,))
    found = only(analyze(reduce("{{0,1,2,3}}"), header="replica_count=4", mesh=mesh))
    assert (found.axes, found.wire_bytes) == (("i",), 24)


def test_one_group_of_nobody_knows_how_many_is_unknown(says, analyze):
    analysis = analyze(reduce("{}"), header="")
    found = only(analysis)
    assert (found.kind, found.payload_bytes, found.wire_bytes, found.group_size) == (Kind.ALL_REDUCE, 16, None, None)
    [entry] = analysis.unmodelled
    assert re.findall(r"part|%\w+", entry.what) == ["part", "%c"]
    says([entry.what, entry.effect])
    assert analysis.totals.bound is Bound.AT_LEAST


def test_a_mesh_tells_how_many(analyze):
    mesh = Mesh(axis_names=("i", "j"), axis_sizes=(4, 2))
    assert only(analyze(reduce("{}"), header="", mesh=mesh)).axes == ("i", "j")


@pytest.mark.parametrize(
    ("groups", "devices_per_slice", "link"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", None, Link.ICI),
        ("{{0,1,2,3},{4,5,6,7}}", 4, Link.ICI),
        ("{{0,4},{1,5},{2,6},{3,7}}", 4, Link.DCN),
        ("{{0,4},{1,5},{2,6},{3,7}}", 8, Link.ICI),
    ],
)
def test_links(analyze, groups, devices_per_slice, link):
    assert only(analyze(reduce(groups, GLOBAL), devices_per_slice=devices_per_slice)).link is link


def test_the_link_of_unknown_groups_on_several_slices_is_unknown(analyze):
    entry = '%p = f32[4] parameter(0)\nROOT %k = f32[4] custom-call(%p), custom_call_target="ncclAllReduce"'
    assert only(analyze(entry, devices_per_slice=4)).link is Link.UNKNOWN


def test_a_mesh_that_does_not_fit_is_noted(says, analyze):
    mesh = Mesh(axis_names=("i",), axis_sizes=(6,))
    analysis = analyze(reduce("{{0,1,2,3},{4,5,6,7}}", GLOBAL), mesh=mesh)
    assert only(analysis).axes is None
    [note] = analysis.notes
    assert re.findall(r"\d+", says(note)) == ["6", "8"]


def test_groups_that_follow_no_axes_are_shown_and_said(says, analyze, mesh):
    groups = {1: "{{0,1,2},{3,4,5,6,7}}", 2: "{{0,3},{1,2},{4,7},{5,6}}", 3: "{{0,1,2,3},{4,5,6,7}}"}
    lines = [
        f"%c{number} = f32[4] all-reduce(%p), channel_id={number}, use_global_device_ids=true, "
        f"replica_groups={text}, to_apply=%sum"
        for number, text in groups.items()
    ]
    entry = "\n".join(["%p = f32[4] parameter(0)", *lines, "ROOT %r = f32[4] negate(%p)"])
    analysis = analyze(entry, mesh=mesh)
    found = {one.name: (one.axes, one.groups) for one in analysis.collectives}
    assert found["c1"] == (None, ((0, 1, 2), (3, 4, 5, 6, 7)))
    assert found["c2"][0] is None
    assert found["c3"][0] == ("Y",)
    [note] = analysis.notes
    assert re.findall(r"%\w+", says(note)) == ["%c1", "%c2"]
    assert analyze(entry).notes == ()
    more = entry.replace("%p), channel_id=3", "%p), channel_id=4").replace(groups[3], groups[1])
    assert re.findall(r"%\w+", analyze(more, mesh=mesh).notes[0]) == ["%c1", "%c2", "%c3"]
