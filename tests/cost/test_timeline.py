"""The timeline: what runs when, what is waited for and why, and that it adds up."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import jsonschema
import pytest
from adding_up import check_sums
from click.testing import CliRunner
from cost_examples import BLOCK, HEADER, fusion, module_text
from hypothesis import given, settings
from hypothesis import strategies as st
from test_walk import ARGUMENT, GROUPS, LOOP, overlapped, permute_done, permute_start

import hloscope
from hloscope.analysis.analyze import analyze_module
from hloscope.base.errors import HloscopeError
from hloscope.cli import group
from hloscope.cost.price import price_walk
from hloscope.cost.timeline import build_timeline
from hloscope.hlo import parse_module
from hloscope.model.timeline import Timeline
from hloscope.tpu.slices import find_smallest_slice, parse_slice

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
TEXTS = sorted([*FIXTURES.rglob("*.hlo"), *FIXTURES.rglob("*.hlo.xz")])


def text_at(path: Path) -> str:
    return lzma.open(path, "rt").read() if path.suffix == ".xz" else path.read_text()


def timed(text: str, chip: str = "v5e") -> tuple[Timeline, hloscope.Analysis]:
    module = parse_module(text)
    chosen = parse_slice("v5e:2x4") if module.device_count == 8 and chip == "v5e" else None
    chosen = chosen or find_smallest_slice(max(module.device_count, 1), chip)
    priced = price_walk(analyze_module(module, target="test", mesh=None), module, chosen)
    assert priced is not None
    found = build_timeline(priced.walk, priced.analysis, chosen.name)
    assert found is not None
    return found, priced.analysis


def core(found: Timeline, name: str | None = None):
    """What the core does: (instruction, microseconds, what it waits for)."""
    computation = found.computation(name or found.entry)
    return [(one.name, one.time_us, one.wait) for one in computation.intervals if one.unit == "core"]


@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
def test_every_fixture_adds_up(chip):
    for path in TEXTS:
        check_sums(*timed(text_at(path), chip))
    assert len(TEXTS) > 100


def test_what_is_not_hidden_is_a_wait_of_its_own():
    found, _ = timed(overlapped(15_000))
    transfer = next(one for one in found.computation(found.entry).intervals if one.unit == "ici")
    assert (transfer.name, transfer.begin_us, transfer.links) == ("start", 0.0, ("x+", "x-"))
    waited = pytest.approx(transfer.time_us - 10.0)
    assert core(found) == [("f", 10.0, None), ("done", waited, "collective")]
    wait = found.computation(found.entry).intervals[-1]
    assert (wait.waits_for, wait.collective, wait.rule) == ("start", f"{found.entry}/start", "permute")


def test_a_loop_is_one_body_with_a_count():
    entry = f"""
      {ARGUMENT}
      %zero = s32[] constant(0)
      %init = (s32[], {BLOCK}) tuple(%zero, %a)
      %w = (s32[], {BLOCK}) while(%init), condition=%condition, body=%body
      ROOT %o = {BLOCK} get-tuple-element(%w), index=1
    """
    found, _ = timed(module_text(entry, before=LOOP))
    (loop,) = (one for one in found.computation(found.entry).intervals if one.runs)
    assert [(run.computation, run.times, run.bound) for run in loop.runs] == [
        ("condition", 8, "exact"),
        ("body", 7, "exact"),
    ]
    assert {one.name: one.executions for one in found.computations} == {found.entry: 1, "condition": 8, "body": 7}
    assert [name for name, _, wait in core(found, "body") if wait == "collective"] == ["r"]


def test_a_wait_behind_another_transfer_is_one_for_that():
    text = module_text(f"""
      {ARGUMENT}
      {permute_start("a", "start")}
      {permute_start("a", "other")}
      {permute_done("other", "last")}
      {permute_done("start", "done")}
      ROOT %t = ({BLOCK}, {BLOCK}) tuple(%done, %last)
    """)
    found, analysis = timed(text)
    waits = [one for one in found.computation(found.entry).intervals if one.wait is not None]
    assert [(one.name, one.waits_for) for one in waits] == [("last", "start"), ("last", "other")]
    check_sums(found, analysis)


def test_copies_are_waited_for_with_their_cause():
    there = BLOCK.replace("T(8,128)", "T(8,128)S(1)")
    host = BLOCK.replace("T(8,128)", "T(8,128)S(5)")
    text = module_text(f"""
      {ARGUMENT}
      %h = {host} parameter(1)
      %near = ({there}, {BLOCK}, u32[]) copy-start(%a)
      %near.done = {there} copy-done(%near)
      %far = ({BLOCK}, {host}, u32[]) copy-start(%h)
      %far.done = {BLOCK} copy-done(%far)
      ROOT %t = ({there}, {BLOCK}) tuple(%near.done, %far.done)
    """)
    found, analysis = timed(text)
    assert [(name, wait) for name, _, wait in core(found)] == [("near.done", "hbm"), ("far.done", "host")]
    units = [one.unit for one in found.computation(found.entry).intervals if one.unit != "core"]
    assert units == ["copy within the device", "copy from the host"]
    check_sums(found, analysis)


def test_a_step_is_as_long_as_its_bytes_take():
    text = module_text(f"{ARGUMENT}\nROOT {fusion('f', 'a', 15)}", header=f"{HEADER.replace('8', '1')}")
    found, analysis = timed(text)
    assert [(name, wait) for name, _, wait in core(found)] == [("f", None), (None, "limit")]
    assert found.waits.limit_us > 0
    check_sums(found, analysis)


def test_what_runs_on_another_thread_is_waited_for_by_its_parts():
    beside = f"""
%beside (p: f32[1024,1024]) -> f32[1024,1024] {{
  %p = {BLOCK} parameter(0)
  {fusion("g", "p", 150_000)}
  %r = {BLOCK} all-reduce(%g), {GROUPS}, to_apply=%sum
  ROOT %s = {BLOCK} all-reduce(%r), channel_id=2, {GROUPS.partition(", ")[2]}, to_apply=%sum
}}
"""
    text = module_text(
        f"""
      {ARGUMENT}
      %start = (({BLOCK}), {BLOCK}, s32[]) async-start(%a), async_execution_thread="other", calls=%beside
      {fusion("f", "a", 75_000)}
      %done = {BLOCK} async-done(%start)
      ROOT %t = ({BLOCK}, {BLOCK}) tuple(%f, %done)
    """,
        before=beside,
    )
    found, analysis = timed(text)
    assert [(name, wait) for name, _, wait in core(found)] == [
        ("f", None),
        ("done", "kernel"),
        ("done", "collective"),
        ("done", "collective"),
    ]
    computation = found.computation("beside")
    assert (computation.executions, computation.executions_beside) == (0, 1)
    assert sum(one.exposed_us for one in analysis.collectives) == pytest.approx(found.waits.collective_us)
    check_sums(found, analysis)


def test_python_and_the_command_line_say_the_same(tmp_path, schema_of):
    path = tmp_path / "step.hlo"
    path.write_text(overlapped(15_000))
    found = hloscope.timeline(path, slice="v5e:2x4")
    done = CliRunner().invoke(group, ["timeline", str(path), "--slice", "v5e:2x4", "--format", "json"])
    assert done.exit_code == 0, done.output

    assert Timeline.from_dict(json.loads(done.output)) == found
    jsonschema.validate(found.to_dict(), schema_of("timeline"))
    assert "waiting for collectives" in found.report()
    assert repr(found).startswith(f"<Timeline of {path} on v5e:2x4: 3 intervals, ")


def test_nothing_is_timed_without_a_slice(tmp_path):
    path = tmp_path / "step.hlo"
    path.write_text(module_text(f"{ARGUMENT}\nROOT %n = {BLOCK} negate(%a)"))
    with pytest.raises(HloscopeError, match="has no timeline: without a TPU slice there are no times"):
        hloscope.timeline(path, slice="cpu:8")


STARTS = st.sampled_from(["permute", "other permute", "copy", "thread"])
STEPS = st.lists(st.one_of(st.integers(1, 60_000), STARTS, st.just("all-reduce"), st.just("loop")), max_size=12)
BESIDE = f"""
%beside (q: f32[1024,1024]) -> f32[1024,1024] {{
  %q = {BLOCK} parameter(0)
  {fusion("g", "q", 20_000)}
  ROOT %rr = {BLOCK} all-reduce(%g), {GROUPS}, to_apply=%sum
}}
"""


def random_text(steps: list[int | str], order: list[int]) -> str:
    """A program of steps of which some are started, and waited for at the end in some order."""
    lines, dones = [ARGUMENT, "%zero = s32[] constant(0)", f"%init = (s32[], {BLOCK}) tuple(%zero, %a)"], []
    for number, step in enumerate(steps):
        name = f"x{number}"
        match step:
            case int():
                lines.append(fusion(name, "a", step))
            case "all-reduce":
                lines.append(f"%{name} = {BLOCK} all-reduce(%a), {GROUPS}, to_apply=%sum")
            case "loop":
                lines.append(f"%{name} = (s32[], {BLOCK}) while(%init), condition=%condition, body=%body")
            case "copy":
                lines.append(f"%{name} = ({BLOCK}, {BLOCK}, u32[]) copy-start(%a)")
                dones.append(f"%done{number} = {BLOCK} copy-done(%{name})")
            case "thread":
                lines.append(f"%{name} = (({BLOCK}), {BLOCK}, s32[]) async-start(%a), calls=%beside")
                dones.append(f"%done{number} = {BLOCK} async-done(%{name})")
            case _:
                pairs = permute_start("a", name)
                lines.append(pairs if step == "permute" else pairs.replace("{{0,1},{1,0}}", "{{0,2},{2,4}}"))
                dones.append(permute_done(name, f"done{number}"))
    ordered = [dones[index % len(dones)] for index in order] if dones else []
    lines += dict.fromkeys([*ordered, *dones])
    lines.append(f"ROOT %last = {BLOCK} negate(%a)")
    return module_text("\n".join(f"  {line}" for line in lines), before=LOOP + BESIDE)


@given(STEPS, st.lists(st.integers(0, 20), max_size=12))
@settings(max_examples=200)
def test_random_schedules_add_up(steps, order):
    check_sums(*timed(random_text(steps, order)))
