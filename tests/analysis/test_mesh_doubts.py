"""A mesh that is not the one the program was compiled for: what the text says against it."""

from __future__ import annotations

import re

import pytest

from hloscope.model import Mesh

ROWS, COLUMNS = "{{0,1,2,3},{4,5,6,7}}", "{{0,4},{1,5},{2,6},{3,7}}"


def mesh(types: tuple[str, ...] | None = None, **axes: int) -> Mesh:
    return Mesh(axis_names=tuple(axes), axis_sizes=tuple(axes.values()), axis_types=types)


def reduced(*groups: str) -> str:
    lines = [
        f"%r{number} = f32[4] all-reduce(%p), channel_id=1, use_global_device_ids=true, replica_groups={one}, "
        "to_apply=%sum"
        for number, one in enumerate(groups)
    ]
    return "\n".join(["%p = f32[4] parameter(0)", *lines, "ROOT %n = f32[4] negate(%p)"])


def test_an_order_in_which_nothing_fits_where_another_one_fits_all(says, analyze):
    found = analyze(reduced(ROWS, COLUMNS, "{{0,1,2,3,4,5,6,7}}"), mesh=mesh(Y=4, X=2))
    [note] = found.notes
    assert re.findall(r"\w=\d \w=\d", says(note)) == ["X=2 Y=4", "Y=4 X=2"]


@pytest.mark.parametrize("groups", [(ROWS,), (ROWS, "{{0,1},{2,3},{4,5},{6,7}}"), (ROWS, "{{0,2},{1,3},{4,6},{5,7}}")])
def test_resharding_over_parts_of_axes_proves_nothing(analyze, groups):
    assert analyze(reduced(*groups), mesh=mesh(Y=4, X=2)).notes == ()


def test_the_right_order_and_a_mesh_that_jax_made_are_not_doubted(analyze):
    assert analyze(reduced(ROWS, COLUMNS), mesh=mesh(X=2, Y=4)).notes == ()
    assert analyze(reduced(ROWS, COLUMNS), mesh=mesh(("auto", "auto"), Y=4, X=2)).notes == ()


@pytest.mark.parametrize(
    ("given", "doubted"),
    [
        (mesh(a=2, b=4), False),
        (mesh(rows=2, columns=4), False),
        (mesh(one=1, a=2, b=4), False),
        (mesh(b=4, a=2), True),
        (mesh(a=4, b=2), True),
        (mesh(b=2, a=4), True),
        (mesh(X=8), True),
    ],
    ids=lambda value: "doubted" if value is True else "",
)
def test_a_mesh_against_the_one_that_the_text_names(says, analyze, given, doubted):
    found = analyze(reduced("mesh['a'=2,'b'=4] {'b'}"), mesh=given)
    words = " ".join(f"{name}={size}" for name, size in zip(given.axis_names, given.axis_sizes, strict=True))
    doubts = [note for note in found.notes if " a=2 b=4" in note]
    assert [f" {words} " in note for note in doubts] == [True] * doubted
    if doubts:
        says(doubts)


def test_one_of_several_named_meshes_is_enough(analyze):
    text = reduced("mesh['a'=2,'b'=4] {'b'}", "mesh['x'=8] {'x'}")
    assert analyze(text, mesh=mesh(x=8)).notes == ()
