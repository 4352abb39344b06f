"""Known ways to miscount communication, each a test that the count here does not fall into.

Every one was found in a tool, a test suite or a cost model that people use.
"""

from __future__ import annotations

import re

import jax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxpr_count import count_jaxpr
from test_every_spelling import FACTS, TEXTS, VERSIONS, read

import hloscope
from hloscope.compile.devices import make_mesh

COMMUNICATING_STARTS = re.compile(r" (?:all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)-start\(")
ANY_START = re.compile(r"[\w-]+-start\(")
COLLECTIVES = re.compile(r" (?:all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def analyzed(name, version="0.10"):
    return analyzed_text(read(name, version), name)


def analyzed_text(text, name):
    return hloscope.analyze_text(text, name=name, mesh=FACTS[name]["mesh"])


def moves(found):
    return sorted((one.kind.value, one.axes, one.wire_bytes_per_step) for one in found.collectives)


def totals(found):
    """Wire bytes per step by kind and axes, without regard to places and names."""
    sums = {}
    for one in found.collectives:
        sums[one.kind, one.axes] = sums.get((one.kind, one.axes), 0) + one.wire_bytes_per_step
    return sums


@pytest.mark.parametrize("version", VERSIONS)
def test_a_synchronous_collective_is_not_zero(version):
    """Counting names that end in -start finds nothing in a module whose all-reduces are plain."""
    text = read("elsewhere.cpu_psum_combined", version)
    assert not ANY_START.search(text)
    assert analyzed("elsewhere.cpu_psum_combined", version).totals.wire_bytes == 247296


@pytest.mark.parametrize("version", VERSIONS)
def test_starts_of_local_copies_are_no_traffic(version):
    """Copies to the host and prefetches are printed as starts, too."""
    text = read("partitioned.offloaded_activations", version)
    assert len(ANY_START.findall(text)) > 5
    assert not COMMUNICATING_STARTS.search(text)
    assert analyzed("partitioned.offloaded_activations", version).totals.executions == 12


@pytest.mark.parametrize("part", [part / 20 for part in range(1, 20)])
def test_a_text_that_was_cut_does_not_pass_for_a_whole_one(part):
    """Cut after any number of lines, a module is refused, or its totals are a lower bound and a finding says so."""
    lines = read("partitioned.scanned_gradients", "0.10").splitlines(keepends=True)
    text = "".join(lines[: int(part * len(lines))])
    try:
        found = analyzed_text(text, "partitioned.scanned_gradients")
    except hloscope.HloscopeError:
        return
    assert found.totals.bound == "at least"
    assert "unmodelled-text" in {finding.rule for finding in found.findings}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_collective_in_a_loop_counts_once_per_trip(version):
    """A trip count that is not found, or not multiplied, leaves one layer of six."""
    (gather, *_) = [one for one in analyzed("partitioned.scanned_layers", version).collectives if one.axes == ("b",)]
    assert gather.executions == 6
    assert gather.wire_bytes_per_step == 6 * gather.wire_bytes


@pytest.mark.parametrize("trips", [1, 2, 7])
def test_a_scan_is_not_priced_as_one_iteration(trips):
    def layers(x):
        return lax.scan(lambda x, _: (lax.psum(x * x, "x"), None), x, length=trips)[0]

    function = jax.shard_map(layers, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    found = hloscope.analyze(function, ("f32[64@x,128]",), mesh={"x": 4}, slice="cpu:4")
    assert found.totals.executions == trips
    assert found.totals.wire_bytes == trips * 2 * 3 * (16 * 128 * 4) // 4


def test_the_transpose_of_iota_groups_is_not_dropped():
    """[4,2]<=[2,4]T(1,0) joins 0 with 4; without its transpose it would join 0 with 1, over another axis."""
    text = read("partitioned.scanned_layers", "0.10")
    assert "[4,2]<=[2,4]T(1,0)" in text
    gathers = [one for one in analyzed("partitioned.scanned_layers").collectives if one.kind == "all-gather"]
    assert {one.groups for one in gathers} == {((0, 4), (1, 5), (2, 6), (3, 7))}
    dropped = analyzed_text(text.replace("<=[2,4]T(1,0)", "<=[8]"), "partitioned.scanned_layers")
    assert {one.axes for one in dropped.collectives if one.kind == "all-gather"} == {("b:(2)2",)}


FLOAT8 = "f8e5m2 f8e4m3 f8e4m3fn f8e4m3b11fnuz f8e3m4 f8e5m2fnuz f8e4m3fnuz f8e8m0fnu".split()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_eight_bit_floats_have_one_byte(dtype):
    text = read("by_hand.sub_byte_and_fp8", "by hand").replace("f8e5m2", dtype)
    assert sorted(one.payload_bytes for one in analyzed_text(text, "by_hand.sub_byte_and_fp8").collectives) == [
        2016,
        2048,
        4096,
        4096,
    ]


def test_a_collective_that_the_partitioner_inserted_is_seen():
    """The jaxpr of an auto-sharded matmul has no collective at all; what is compiled has one."""

    def matmul(x, w):
        return x @ w

    arguments = (jax.ShapeDtypeStruct((64, 128), "float32"), jax.ShapeDtypeStruct((128, 256), "float32"))
    with jax.set_mesh(make_mesh({"X": 4}, {"X": "auto"})):
        assert count_jaxpr(jax.make_jaxpr(matmul)(*arguments), {"X": 4}) == {}
    found = hloscope.analyze(
        matmul, ("f32[64,128@X]", "f32[128@X,256]"), mesh={"X": 4}, slice="cpu:4", out="P(None, None)"
    )
    assert moves(found) == [("all-reduce", ("X",), 2 * 3 * 64 * 256 * 4 // 4)]


@pytest.mark.parametrize(("name", "version"), TEXTS)
def test_no_cost_is_negative_and_nothing_unknown_is_zero(name, version):
    found = analyzed(name, version)
    for one in found.collectives:
        assert one.executions > 0
        assert (one.wire_bytes is None) == (one.kind == "opaque")
        assert one.wire_bytes is None or one.wire_bytes > 0 or one.group_size == 1
    known = [one.wire_bytes_per_step for one in found.collectives if one.wire_bytes is not None]
    assert found.totals.wire_bytes == sum(known)
    if len(known) < len(found.collectives):
        assert found.totals.bound == "at least"


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_need_not_be_printed_as_lists(version):
    text = read("partitioned.scanned_layers", version)
    assert "replica_groups={{" not in text
    assert {one.axes for one in analyzed("partitioned.scanned_layers", version).collectives} == {("a",), ("b",)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", "replica_groups=mesh['a'=2,'b'=4] {'b'}"),
        ("device_ids=([2,2,2]T(0,2,1))", "mesh['a'=2,'b'=4] {'b':(2)2}"),
    ],
)
def test_a_new_way_to_print_groups_changes_nothing(old, new):
    """Named meshes, and devices in another order than they count, as JAX 0.12 and 0.10 print the same groups."""
    [name] = [
        name for name in ("authored.three_dtypes_share_one_channel", "partitioned.resharded_transpose")
        if old in read(name, "0.10")
    ]  # fmt: skip
    assert new in read(name, "0.12")
    assert moves(analyzed(name, "0.10")) == moves(analyzed(name, "0.12"))


def test_a_collective_made_asynchronous_or_synchronous_counts_the_same():
    """Three generations print one training step: in asynchronous pieces, plain, or as calls on a SparseCore."""
    v5e, v5p, v6e, tpu7x, cpu = (
        analyzed(f"partitioned.{name}")
        for name in ("scanned_gradients", "scanned_gradients_v5p", "scanned_gradients_v6e", "sparsecore_calls",
                     "scanned_gradients_cpu")
    )  # fmt: skip
    assert [sum(one.asynchronous for one in found.collectives) for found in (v5e, v5p, v6e, tpu7x)] == [3, 0, 0, 8]
    assert totals(v5e) == totals(v5p) == totals(v6e) == totals(tpu7x)
    assert totals(cpu) != totals(v5e)


@pytest.mark.parametrize("version", VERSIONS)
def test_one_collective_in_several_pieces_counts_once(version):
    text = read("partitioned.scanned_gradients", version)
    assert len(COLLECTIVES.findall(text)) == 14
    assert len(analyzed("partitioned.scanned_gradients", version).collectives) == 7


@pytest.mark.parametrize("version", VERSIONS)
def test_equal_channel_ids_are_not_one_collective(version):
    text = read("authored.three_dtypes_share_one_channel", version)
    assert set(re.findall(r"channel_id=(\d+)", text)) == {"1"}
    assert len(analyzed("authored.three_dtypes_share_one_channel", version).collectives) == 3


def test_names_tell_nothing():
    """Neither an instruction that is called like a collective, nor a collective that is called like anything else."""
    name = "by_hand.all_reduce_start"
    text = read(name, "by hand")
    renamed = text.replace("%start", "%fusion.7").replace("%done", "%copy").replace("%other", "%all-reduce.1")
    assert renamed != text
    assert moves(analyzed_text(renamed, name)) == moves(analyzed_text(text, name)) == [("all-reduce", ("b",), 6144)]


def test_a_lost_reduce_scatter_shows_in_the_bytes():
    """Scattered or reduced whole and sliced, the program has one collective; only bytes and kind tell them apart."""
    name = "by_hand.reduce_scatter_fusion_of_two"
    scattered = read(name, "by hand")
    body = scattered.partition("%all-reduce-scatter.7 ")[2].partition("\n}")[0].partition("{\n")[2]
    head, _, entry = scattered.partition("ENTRY %main ")
    head = head.partition("%all-reduce-scatter.7 ")[0]
    whole = f"{head}ENTRY %main {entry.partition('{')[0]}{{\n{body}\n}}\n"
    (kept,), (lost,) = (analyzed_text(text, name).collectives for text in (scattered, whole))
    assert (kept.kind, lost.kind) == ("reduce-scatter", "all-reduce")
    assert lost.wire_bytes == 2 * kept.wire_bytes
    assert lost.payload_bytes == kept.payload_bytes


def test_a_program_that_moves_nothing_is_known_to():
    """Zero is a finding about a text that was understood, not what is left when nothing was."""
    found = hloscope.analyze(lambda x: x * 2, ("f32[64@X,128]",), mesh={"X": 4}, slice="cpu:4")
    assert (found.collectives, found.totals.wire_bytes, found.totals.bound) == ((), 0, "exact")


@pytest.mark.parametrize(
    ("instruction", "shown"),
    [("frobnicate(%p)", ["frobnicate"]), ('custom-call(%p), custom_call_target="ncclSend"', ["ncclSend", "%c"])],
)
def test_zero_is_not_reported_of_what_was_not_understood(says, instruction, shown):
    body = f"  %p = f32[4] parameter(0)\n  ROOT %c = f32[4] {instruction}\n"
    text = f"HloModule m, num_partitions=8\nENTRY %e {{\n{body}}}\n"
    found = hloscope.analyze_text(text, mesh={"X": 8})
    assert found.totals.bound == "at least"
    (entry,) = found.unmodelled
    assert re.findall(r"frobnicate|ncclSend|%\w+", says(entry.what)) == shown
    assert found.findings


@pytest.fixture
def compilation_cache(tmp_path):
    """JAX's persistent cache, taking every program."""
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    reset_cache()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()


def test_a_hit_of_the_compilation_cache_hides_nothing(compilation_cache):
    """What JAX has in its persistent cache it need not compile, and then no text is dumped."""

    def reduce(x):
        return lax.psum(x, "X")

    function = jax.shard_map(reduce, in_specs=P("X"), out_specs=P())
    with jax.set_mesh(make_mesh({"X": 4}, {"X": "auto"})):
        jax.jit(function).lower(jax.ShapeDtypeStruct((64, 128), "float32")).compile()
    assert any(compilation_cache.iterdir())
    first, second = (hloscope.analyze(function, ("f32[64@X,128]",), mesh={"X": 4}, slice="cpu:4") for _ in range(2))
    assert moves(first) == moves(second) == [("all-reduce", ("X",), 2 * 3 * 16 * 128 * 4 // 4)]
