"""Collectives between slices keep no metadata in the end; the partitioner's module tells which the user wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hloscope.model import ReasonKind
from hloscope.model.vocabulary import Link, Origin
from hloscope.why.partitioned import SpmdModule, count_by_size, link_by_size

pytestmark = pytest.mark.tpu_compiler
LINES = (Path(__file__).parent / "programs" / "two_slices.py").read_text().splitlines()


def line_of(text):
    (found,) = [number for number, line in enumerate(LINES, start=1) if text in line]
    return found


@pytest.mark.parametrize(("target", "axes", "name", "text"), [
    ("psum", ("replica",), "psum", 'return jax.shard_map(lambda x: jax.lax.psum(x, "replica")'),
    ("two_gathers", ("replica",), "all_gather", 'x = jax.lax.all_gather(x, "replica"'),
    ("two_gathers", ("X",), "all_gather", 'return jax.lax.all_gather(x, "X"'),
    ("ppermute", ("replica",), "ppermute", "return jax.lax.ppermute"),
    ("psum_scatter", ("replica",), "psum_scatter", "return jax.lax.psum_scatter"),
    ("one_of_each", ("replica",), "psum", "summed = jax.shard_map"),
])  # fmt: skip
def test_what_the_user_wrote_is_told_as_that_with_its_line(says, explained, target, axes, name, text):
    (one,) = [one for one in explained(f"two_slices.py:{target}").collectives if one.axes == axes]
    assert one.link is (Link.DCN if axes == ("replica",) else Link.ICI)
    assert (one.origin, one.reason.kind) == (Origin.AUTHORED, ReasonKind.AUTHORED)
    assert (one.reason.producer.name, one.source[0].line) == (name, line_of(text))
    assert f": `{name}` (two_slices.py:{line_of(text)}" in one.why
    says(one.why.partition(f"{line_of(text)}")[0])


def test_the_part_of_a_permute_that_crosses_slices_is_of_the_same_line_as_the_rest(explained):
    parts = explained("two_slices.py:ring").collectives
    assert {one.link for one in parts} == {Link.ICI, Link.DCN}
    line = line_of('jax.lax.ppermute(y, "stage"')
    assert {(one.origin, one.source[0].line) for one in parts} == {(Origin.AUTHORED, line)}


def test_what_the_partitioner_adds_beside_it_is_still_the_partitioners(explained):
    (one,) = [one for one in explained("two_slices.py:one_of_each").collectives if one.axes == ("X",)]
    assert (one.origin, one.reason.kind) == (Origin.INSERTED, ReasonKind.PARTIAL_SUM)


def test_of_two_alike_who_wrote_them_is_known_and_where_is_not(says, explained):
    found = explained("two_slices.py:two_sums").collectives
    assert [one.origin for one in found] == [Origin.AUTHORED] * len(found)
    (told,) = {one.why.removesuffix(", combined with another") for one in found}
    assert told.endswith(": `all-reduce` over replica")
    says(told)


def test_sizes_that_do_not_come_out_even_link_nothing(explained):
    (one,) = explained("two_slices.py:psum").collectives
    nameless = replace(one, op_name=None, source=())
    earlier = SpmdModule(module=None, collectives=((one, None),), identities={})
    alone, twice = count_by_size([nameless]), count_by_size([nameless, nameless])
    assert link_by_size(nameless, alone, earlier) is one
    assert link_by_size(nameless, twice, earlier) is None
    assert link_by_size(replace(nameless, axes=None), alone, earlier) is None
    assert link_by_size(replace(nameless, op_name="jit(f)/add"), alone, earlier) is None


def test_parts_of_a_permute_are_its_by_their_pairs(explained):
    (across,) = [one for one in explained("two_slices.py:ring").collectives if one.link is Link.DCN]
    whole = replace(across, groups=(*across.groups, (0, 1)))
    part = replace(across, op_name=None, source=())
    inside = replace(part, link=Link.ICI, groups=((0, 1),))
    earlier = SpmdModule(module=None, collectives=((whole, None),), identities={})
    assert link_by_size(part, count_by_size([part, inside]), earlier) is whole
    assert link_by_size(part, count_by_size([part, part, inside]), earlier) is None
    other = replace(part, groups=((0, 2),))
    assert link_by_size(other, count_by_size([other, inside]), earlier) is None
