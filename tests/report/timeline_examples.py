"""Steps whose timelines are shown in viewers."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hloscope
from hloscope.base.errors import HloscopeError
from hloscope.hlo import parse_module
from hloscope.model import Analysis
from hloscope.model.capture import Evidence, HbmPeak, attach_evidence
from hloscope.model.timeline import Timeline
from hloscope.tpu.slices import find_smallest_slice

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
EVERY = sorted([*FIXTURES.rglob("*.hlo"), *FIXTURES.rglob("*.hlo.xz")])
CHOSEN = [
    next(path for path in EVERY if path.name.startswith(name))
    for name in (
        "mixture_of_experts.mixture_of_experts.jax-0.12",
        "collective_matmul.collective.jax-0.12",
        "loops.nested_reduce_scatter.jax-0.12",
        "loops.branch_in_a_loop.jax-0.12",
        "authored.async_fusions_share_one_channel.jax-0.12",
        "elsewhere.data_parallel_over_slices.jax-0.12",
        "elsewhere.pure_callback.jax-0.12",
        "by_hand.async_start_of_reduce_scatter",
    )
]


def text_at(path: Path) -> str:
    """The text of a fixture."""
    return lzma.open(path, "rt").read() if path.suffix == ".xz" else path.read_text()


def timeline_of(path: Path) -> Timeline:
    """A fixture's timeline on as many chips as it has devices; on two slices where it is of one of several.

    Raises:
        HloscopeError: Nothing prices it.
    """
    count = max(parse_module(text_at(path)).device_count, 1)
    several = "2*" if "_over_slices" in path.name else ""
    return hloscope.timeline(path, slice=f"{several}{find_smallest_slice(count).name}")


def check_every(check: Callable[[Timeline], None]) -> None:
    """Holds the timelines of all fixtures that are priced to something."""
    count = 0
    for path in EVERY:
        try:
            found = timeline_of(path)
        except HloscopeError:
            continue
        check(found)
        count += 1
    assert count > 100


EVIL = "\"quoted\" 'single' <script>alert(1)</script> line\nbreak \u202eright to left\u202c \x1b[31m"
LONG = "n" * 10_000


def hostile_text() -> str:
    """A program whose names and places hold whatever its author liked."""
    said = EVIL.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    place = f'metadata={{op_name="jit(f)/{said}" source_file="/src/{said}.py" source_line=3}}'
    small, large = (f"f32[{rows},1024]{{1,0:T(8,128)}}" for rows in (1024, 4096))
    groups = "channel_id=1, replica_groups=[1,4]<=[4], use_global_device_ids=true, dimensions={0}"
    return (
        "HloModule m, is_scheduled=true, num_partitions=4\n\n"
        "ENTRY main {\n"
        f"  %p = {small} parameter(0)\n"
        f"  %{LONG} = {small} negate(%p), {place}\n"
        f"  %g = {large} all-gather(%{LONG}), {groups}, {place}\n"
        f"  ROOT %t = {large} negate(%g), {place}\n"
        "}\n"
    )


def with_buffers(found: Analysis) -> Analysis:
    """The analysis as if the compiler had written its buffer assignment down: a million bytes for each instruction."""
    names = [one.name for each in found.evidence.module().computations for one in each.instructions]
    live = {name: 1_000_000 * number for number, name in enumerate(names, start=1)}
    most = max(live.values())
    peak = HbmPeak(
        at=names[-1], buffers=(), other_bytes=most, live_bytes=most, heap_bytes=0, temporary_bytes=0, live_bytes_at=live
    )
    program = found.evidence.program
    known = replace(program, compiled=replace(program.compiled, hbm_peak=peak))
    return attach_evidence(replace(found), Evidence(program=known, name=found.target))


def deep_text(depth: int) -> str:
    """Calls within calls, each twice: a short text of which a step runs 2**depth collectives."""
    shape = "f32[1024,1024]"
    ring = "channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"
    texts = [f"c0 {{\n  v = {shape} parameter(0)\n  ROOT r = {shape} collective-permute(v), {ring}\n}}\n"]
    for number in range(1, depth + 1):
        name, callee = "ENTRY e" if number == depth else f"c{number}", f"to_apply=c{number - 1}"
        calls = f"  a = {shape} call(v), {callee}\n  ROOT b = {shape} call(a), {callee}\n"
        texts.append(f"{name} {{\n  v = {shape} parameter(0)\n{calls}}}\n")
    return "HloModule deep, num_partitions=4, is_scheduled=true\n\n" + "\n".join(texts)
