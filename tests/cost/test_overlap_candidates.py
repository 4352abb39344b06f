"""What an exposed collective could be hidden behind: matmuls beside it, before it and after it."""

from __future__ import annotations

import pytest

import hloscope

GROUPS = "replica_groups=[1,8]<=[8], use_global_device_ids=true, dimensions={0}"
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def overlap_of(body: str, computations: str = ""):
    text = f"HloModule m, is_scheduled=true, num_partitions=8\n{computations}\nENTRY main {{\n{body}\n}}\n"
    found = hloscope.analyze_text(text, mesh={"X": 8}, slice="v5e:2x4")
    [one] = found.collectives
    return one.overlap


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param(
            f"""
  x = bf16[512,4096] parameter(0)
  w = bf16[4096,4096] parameter(1)
  b = bf16[4096,4096] parameter(2)
  g = bf16[4096,4096] all-gather(x), channel_id=1, {GROUPS}
  beside = bf16[4096,4096] dot(w, b), {DOT}
  after = bf16[4096,4096] dot(g, w), {DOT}
  ROOT out = (bf16[4096,4096], bf16[4096,4096]) tuple(after, beside)
""",
            ("beside", "independent"),
            id="neither needs the other",
        ),
        pytest.param(
            f"""
  x = bf16[512,4096] parameter(0)
  w = bf16[4096,4096] parameter(1)
  g = bf16[4096,4096] all-gather(x), channel_id=1, {GROUPS}
  n = bf16[4096,4096] negate(g)
  after = bf16[4096,4096] dot(n, w), {DOT}
  ROOT last = bf16[4096,4096] dot(after, w), {DOT}
""",
            ("after", "consumer"),
            id="the first that uses it",
        ),
        pytest.param(
            f"""
  x = bf16[512,4096] parameter(0)
  w = bf16[4096,4096] parameter(1)
  first = bf16[512,4096] dot(x, w), {DOT}
  before = bf16[512,4096] dot(first, w), {DOT}
  n = bf16[512,4096] negate(before)
  ROOT g = bf16[4096,4096] all-gather(n), channel_id=1, {GROUPS}
""",
            ("before", "producer"),
            id="the last before it",
        ),
        pytest.param(
            f"""
  x = bf16[512,4096] parameter(0)
  ROOT g = bf16[4096,4096] all-gather(x), channel_id=1, {GROUPS}
""",
            None,
            id="no matmul at all",
        ),
    ],
)
def test_the_matmul_that_a_collective_could_hide_behind(body, found):
    overlap = overlap_of(body)
    assert (None if overlap is None else (overlap.name, overlap.relation)) == found
    assert overlap is None or overlap.time_us > 0


def test_the_longest_of_several_is_told():
    overlap = overlap_of(
        f"""
  x = bf16[512,4096] parameter(0)
  w = bf16[4096,4096] parameter(1)
  v = bf16[4096,128] parameter(2)
  g = bf16[4096,4096] all-gather(x), channel_id=1, {GROUPS}
  small = bf16[4096,128] dot(w, v), {DOT}
  large = bf16[4096,4096] dot(w, w), {DOT}
  ROOT out = (bf16[4096,4096], bf16[4096,128], bf16[4096,4096]) tuple(g, small, large)
"""
    )
    assert overlap.name == "large"


@pytest.mark.parametrize(
    ("call", "root"),
    [
        ("f = bf16[4096,4096] fusion(before), kind=kCustom, calls=gathered", "negate(f)"),
        ("s = ((bf16[512,4096]), bf16[4096,4096], u32[]) async-start(before), calls=gathered", "async-done(s)"),
    ],
    ids=["fusion", "async"],
)
def test_a_collective_in_another_computation_stands_where_that_is_called(call, root):
    overlap = overlap_of(
        f"""
  x = bf16[512,4096] parameter(0)
  w = bf16[4096,4096] parameter(1)
  before = bf16[512,4096] dot(x, w), {DOT}
  {call}
  ROOT out = bf16[4096,4096] {root}
""",
        f"""
gathered {{
  p = bf16[512,4096] parameter(0)
  ROOT g = bf16[4096,4096] all-gather(p), channel_id=1, {GROUPS}
}}
""",
    )
    assert (overlap.name, overlap.relation) == ("before", "producer")


def test_a_collective_that_is_hardly_exposed_is_not_searched():
    products = "\n".join(f"  d{at + 1} = bf16[4096,4096] dot(d{at}, d{at}), {DOT}" for at in range(30))
    overlap = overlap_of(
        f"""
  x = bf16[8,128] parameter(0)
  d0 = bf16[4096,4096] parameter(1)
{products}
  g = bf16[64,128] all-gather(x), channel_id=1, {GROUPS}
  ROOT out = (bf16[64,128], bf16[4096,4096]) tuple(g, d30)
"""
    )
    assert overlap is None
