"""For each rule: analyses on which it must fire, and analyses beside them on which it must stay silent."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import hloscope
from hloscope.hlo import parse_module
from hloscope.judge.facts import Facts
from hloscope.judge.selection import apply_rules, make_selection
from hloscope.model import Analysis, ArrayFact, Memory, MovedValue, SliceFact
from hloscope.model.vocabulary import Kind, Link
from hloscope.tpu.slices import parse_slice

KERNEL = """HloModule kernel, num_partitions=2
ENTRY main {
  p = f32[8] parameter(0)
  ROOT k = f32[8] custom-call(p), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{CONFIG}}
}
"""

LOOP = """HloModule loop, num_partitions=2

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

condition {
  s = (s32[], s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  ROOT more = pred[] compare(i, n), direction=LT
}

body {
  s = (s32[], s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  x = f32[8] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  r = f32[8] all-reduce(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  ROOT out = (s32[], s32[], f32[8]) tuple(next, n, r)
}

ENTRY main {
  zero = s32[] constant(0)
  n = s32[] BOUND
  x = f32[8] parameter(0)
  state = (s32[], s32[], f32[8]) tuple(zero, n, x)
  ROOT w = (s32[], s32[], f32[8]) while(state), condition=condition, body=body
}
"""

_ADD = "add {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT sum = f32[] add(x, y)\n}\n"
_DENSE = ArrayFact(
    name="W",
    dtype="f32",
    global_shape=(8192, 4096),
    local_shape=(8192, 4096),
    sharding="P()",
    chosen_by="user",
    bytes_per_device=134_217_728,
)


def judged_with(known: Analysis | Facts, **options: object) -> Analysis:
    """An analysis, judged with what a user says on the command line."""
    facts = known if isinstance(known, Facts) else Facts(known)
    return apply_rules(facts, make_selection(where="--allow", **options))


def chain_of_all_reduces(count: int, elements: int) -> Analysis:
    """`count` all-reduces of `f32[elements]` over eight devices, each of what the one before gave."""
    lines = [
        f"  r{at + 1} = f32[{elements}] all-reduce(r{at}), channel_id={at + 1}, replica_groups=[1,8]<=[8], "
        "use_global_device_ids=true, to_apply=add"
        for at in range(count)
    ]
    body = "\n".join(lines)
    text = (
        f"HloModule chain, num_partitions=8\n\n{_ADD}\nENTRY main {{\n  r0 = f32[{elements}] parameter(0)\n{body}\n"
        f"  ROOT out = f32[{elements}] negate(r{count})\n}}\n"
    )
    return hloscope.analyze_text(text, mesh={"X": 8})


def across_slices(kind: str, shape: str, result: str) -> Analysis:
    """One collective between two slices of four devices."""
    extra = ", to_apply=add" if kind == "all-reduce" else ", dimensions={0}"
    text = (
        f"HloModule dcn, num_partitions=8\n\n{_ADD}\nENTRY main {{\n  p = {shape} parameter(0)\n"
        f"  ROOT r = {result} {kind}(p), channel_id=1, replica_groups={{{{0,4}},{{1,5}},{{2,6}},{{3,7}}}}, "
        f"use_global_device_ids=true{extra}\n}}\n"
    )
    found = hloscope.analyze_text(text, mesh={"outer": 2, "model": 4})
    return replace(found, collectives=tuple(replace(one, link=Link.DCN) for one in found.collectives))


def with_arguments(*arrays: ArrayFact) -> Analysis:
    """A program with these arguments that moves nothing."""
    return replace(chain_of_all_reduces(1, 8), arguments=arrays)


def with_memory(peak_bytes: int) -> Analysis:
    """A program that takes this much of 16 GiB."""
    return replace(chain_of_all_reduces(1, 8), memory=Memory(peak_bytes=peak_bytes, hbm_bytes=2**34))


@cache
def compiled(name: str) -> Analysis:
    """One of the programs in `user_code/mistakes.py`, compiled for v5e."""
    return hloscope.analyze(f"{Path(__file__).parent / 'user_code' / 'mistakes.py'}:{name}")


def captured(name: str, **options: object) -> Analysis:
    """A program of the fixtures, from the text that the compiler once gave."""
    text = (Path(__file__).parents[2] / "fixtures" / "captured" / f"{name}.jax-0.10.hlo").read_text()
    return hloscope.analyze_text(text, **options)


def with_text(name: str, slice_name: str) -> Facts:
    """A program of the fixtures with its text."""
    text = (Path(__file__).parents[2] / "fixtures" / "captured" / f"{name}.jax-0.10.hlo").read_text()
    found = hloscope.analyze_text(text, mesh={"X": 8}, slice=slice_name)
    return Facts(found, parse_module(text, name=name), parse_slice(slice_name))


MIXTURE = "mixture_of_experts.mixture_of_experts"
TWIN = "mixture_of_experts.mixture_of_experts_shard_map"


CPU = SliceFact(name="cpu:8", chip="cpu", chips=8, devices=8, slices=1, used_devices=8, chosen_by="user")


def one_collective(**facts: object) -> Analysis:
    """A program with one all-reduce of 1 MB, of which this is known."""
    found = chain_of_all_reduces(1, 262_144)
    return replace(found, collectives=tuple(replace(one, **facts) for one in found.collectives))


def moved(name: str, *slices: str | None) -> tuple[MovedValue, ...]:
    """One array that is moved."""
    return (MovedValue(computation="main", instruction=name, slices=slices),)


def twice(**facts: object) -> Analysis:
    """The same all-reduce of 1 MB twice, the second with these facts."""
    found = chain_of_all_reduces(1, 262_144)
    [first] = (replace(one, moved_values=moved("x")) for one in found.collectives)
    return replace(found, collectives=(first, replace(first, name="again", line=first.line + 1, **facts)))


FIRES = {
    "unexpected-collective": [lambda: chain_of_all_reduces(1, 8)],
    "unmodelled-text": [lambda: hloscope.analyze_text(LOOP.replace("BOUND", "parameter(1)"))],
    "opaque-communication": [lambda: hloscope.analyze_text(KERNEL.replace("CONFIG", '"has_communication":true'))],
    "replicated-large-array": [
        lambda: with_arguments(_DENSE),
        lambda: compiled("too_much"),
        lambda: compiled("whole_on_the_way"),
    ],
    "model-parallel-over-dcn": [lambda: across_slices("all-gather", "f32[1024,1024]", "f32[2048,1024]")],
    "small-collectives": [lambda: chain_of_all_reduces(4, 16)],
    "hbm-near-limit": [lambda: with_memory(16_000_000_000)],
    "hbm-exceeded": [lambda: compiled("too_much"), lambda: with_memory(18_000_000_000)],
    "collective-in-loop": [lambda: captured(MIXTURE, mesh={"X": 8})],
    "exposed-collective": [lambda: captured(MIXTURE, mesh={"X": 8}, slice="v5e:2x4")],
    "collective-on-critical-path": [lambda: with_text("collective_matmul.naive", "v5e:2x4")],
    "all-reduce-then-slice": [lambda: compiled("scattered_by_the_compiler")],
    "resharding-ping-pong": [lambda: compiled("there_and_back")],
    "involuntary-rematerialization": [lambda: compiled("between_two_orders")],
    "lost-sharding": [lambda: compiled("sorted_along_the_sharded_dimension")],
    "unfused-all-to-all-as-all-gather": [lambda: compiled("tokens_to_every_expert")],
    "uneven-sharding": [lambda: compiled("ten_heads_on_eight_devices")],
    "widened-collective": [
        lambda: one_collective(narrow_type="bf16"),
        lambda: one_collective(narrow_type="f32", payload_bytes=2 * 2**20),
        lambda: one_collective(padded_bytes=3 * 2**20),
        lambda: one_collective(narrow_type="pred", reduction="or"),
        lambda: one_collective(narrow_type="pred", kind=Kind.ALL_GATHER, reduction=None),
    ],
    "duplicate-collective": [twice],
    "unusable-donation": [lambda: compiled("donated_in_vain")],
}
SILENT = {
    "unusable-donation": [
        lambda: compiled("donated_and_reused"),
        lambda: with_arguments(replace(_DENSE, donated=True, reused=True)),
        lambda: with_arguments(replace(_DENSE, donated=True, reused=None)),
        lambda: with_arguments(replace(_DENSE, donated=True, reused=False, used=False)),
    ],
    "unexpected-collective": [lambda: hloscope.analyze_text(KERNEL.replace("CONFIG", '"body":"x"'))],
    "unmodelled-text": [lambda: hloscope.analyze_text(LOOP.replace("BOUND", "constant(5)"))],
    "opaque-communication": [lambda: hloscope.analyze_text(KERNEL.replace("CONFIG", '"body":"x"'))],
    "replicated-large-array": [
        lambda: with_arguments(replace(_DENSE, local_shape=(1024, 4096), bytes_per_device=16_777_216)),
        lambda: with_arguments(replace(_DENSE, global_shape=(8,), local_shape=(8,), bytes_per_device=32)),
        lambda: with_arguments(replace(_DENSE, used=False)),
        lambda: compiled("well_sharded"),
    ],
    "model-parallel-over-dcn": [
        lambda: across_slices("all-reduce", "f32[1024,1024]", "f32[1024,1024]"),
        lambda: across_slices("all-gather", "f32[8,1024]", "f32[16,1024]"),
    ],
    "small-collectives": [lambda: chain_of_all_reduces(3, 16), lambda: chain_of_all_reduces(4, 65_536)],
    "hbm-near-limit": [lambda: with_memory(8_000_000_000), lambda: compiled("too_much")],
    "hbm-exceeded": [lambda: with_memory(16_000_000_000), lambda: compiled("well_sharded")],
    "collective-in-loop": [lambda: captured(TWIN, mesh={"X": 8})],
    "exposed-collective": [
        lambda: captured(MIXTURE, mesh={"X": 8}),
        lambda: captured("matmul.matmul", mesh={"X": 4, "Y": 2}, slice="v5e:4x2"),
    ],
    "collective-on-critical-path": [
        lambda: with_text("collective_matmul.collective", "v5e:2x4"),
        lambda: captured("collective_matmul.naive", mesh={"X": 8}, slice="v5e:2x4"),
    ],
    "all-reduce-then-slice": [lambda: captured("matmul.matmul", mesh={"X": 4, "Y": 2})],
    "resharding-ping-pong": [lambda: compiled("between_two_orders"), lambda: captured(MIXTURE, mesh={"X": 8})],
    "involuntary-rematerialization": [lambda: compiled("there_and_back")],
    "lost-sharding": [lambda: compiled("there_and_back"), lambda: compiled("tokens_to_every_expert")],
    "unfused-all-to-all-as-all-gather": [lambda: compiled("ten_heads_on_eight_devices")],
    "uneven-sharding": [lambda: compiled("tokens_to_every_expert")],
    "widened-collective": [
        lambda: one_collective(narrow_type="f32"),
        lambda: one_collective(narrow_type="f32", payload_bytes=None),
        one_collective,
        lambda: replace(one_collective(narrow_type="bf16"), slice=CPU),
        lambda: one_collective(narrow_type="pred"),
        lambda: one_collective(narrow_type="pred", reduction=None),
        lambda: one_collective(narrow_type="f32"),
        lambda: one_collective(padded_bytes=2**20),
    ],
    "duplicate-collective": [
        lambda: twice(moved_values=moved("y")),
        lambda: twice(moved_values=moved("x", None)),
    ],
}
