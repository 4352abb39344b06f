"""How fast HLO text is read and analyzed, beside XLA's own parser, and how much memory that takes.

`python tests/benchmarks/parsing.py [FILE...]` prints each bar with what was measured. Texts are the named files, or the
`.hlo` files of the folder that `HLOSCOPE_CORPUS` names; without either they are made here. Ratios come from one process
in which all ways take turns, as medians of processor time; what is cold, and what memory is taken, from fresh ones.

    xla         jaxlib's parser, and a list of the instructions of each computation
    graph       `parse_module`: every name, operand, opcode, shape and call, heads, header and tables
    fields      the same, then what `analyze` reads: attributes, metadata, groups, users and sizes of every instruction
                that communicates, and the metadata of every one that calls
    analyze     `hloscope.analyze` of the file: the same with the analysis itself, for a v5e slice of as many devices
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

RUNS = 5
SCALES = (1, 4, 16)
LARGE, MIDDLE, SMALL = 20.0, 2.0, 1.1
"""Megabytes: from LARGE on, between MIDDLE and LARGE, and up to SMALL there is a bar of its own each."""

MOST_COLD_MS = 50.0
MOST_RESIDENT = 2.0
MOST_ANALYSIS = 1.3
MOST_GROWTH = 1.15
"""How many times as long a megabyte of a large text may take as one of the smallest."""

CHILD = r"""
import gc, json, sys, time
from pathlib import Path
way, path, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
text = Path(path).read_bytes().decode()
import hloscope
from hloscope.base.errors import SliceError
from hloscope.hlo import pause_collector, parse_module
from hloscope.tpu.slices import find_smallest_slice
try:
    from jaxlib import _hlo
except ImportError:
    _hlo = None

COMMUNICATES = ("all-", "reduce-scatter", "collective-", "ragged-", "send", "recv", "async-")

def xla():
    module = _hlo.hlo_module_from_text(text)
    return module, sum(len(list(computation.instructions())) for computation in module.computations())

def graph():
    module = parse_module(text)
    return module, len(list(module._columns.names))

def fields():
    module, count = graph()
    with pause_collector():  # as analyze does
        for computation in module.computations:
            for caller in computation.calling:
                caller.called, caller.metadata
        for transfer in module.with_opcodes([name for name in module.opcodes if name.startswith(COMMUNICATES)]):
            transfer.attributes, transfer.metadata, transfer.replica_groups, transfer.users, transfer.shape.byte_size
            [operand.shape.byte_size for operand in transfer.operands]
            module.frames(transfer.stack_frame_id or 0)
    return module, count

def name_slice():
    try:
        return find_smallest_slice(parse_module(text).device_count, "v5e").name
    except SliceError:
        return None

def analyze():
    return hloscope.analyze(path, slice=chosen), None

def resident():
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * 4096 if pages.exists() else 0

def is_read_by_xla():
    try:
        return _hlo is not None and xla()[1] > 0
    except RuntimeError:
        return False

ways = {"graph": graph, "fields": fields, "analyze": analyze}
ways = {way: ways[way]} if way in ways else ways | ({"xla": xla} if is_read_by_xla() else {})
chosen = name_slice() if "analyze" in ways else None
before, seconds = resident(), {name: [] for name in ways}
for _ in range(runs):
    for name, read in ways.items():
        gc.collect()  # what the run before left behind is not this one's to clear away
        start = time.process_time()
        kept = read()
        seconds[name].append(time.process_time() - start)
        grown = resident() - before
        count = kept[1]
        if runs > 1:
            del kept
print(json.dumps([seconds, grown, count]))
"""

HEAD = """HloModule made, is_scheduled=true, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

ENTRY %main (p: f32[512,512]) -> f32[512,512] {
  %p = f32[512,512]{1,0:T(8,128)} parameter(0), metadata={op_name="x"}
  %all-reduce.0 = f32[512,512]{1,0:T(8,128)} copy(%p)
"""
STEP = (
    "  %dot.{n} = f32[512,512]{{1,0:T(8,128)}} dot(%all-reduce.{before}, %p), lhs_contracting_dims={{1}}, "
    'rhs_contracting_dims={{0}}, metadata={{op_name="jit(f)/layer_{n}/dot_general"}}\n'
    "  %tanh.{n} = f32[512,512]{{1,0:T(8,128)}} tanh(%dot.{n}), "
    'metadata={{op_name="jit(f)/layer_{n}/tanh"}}, backend_config={{"flag_configs":[],'
    '"window_config":{{"bounds":["4","1"],"iteration":["8","1"]}}}}\n'
    "  %bitcast.{n} = f32[512,512]{{1,0:T(8,128)}} bitcast(%tanh.{n})\n"
    "  %all-reduce.{n} = f32[512,512]{{1,0:T(8,128)}} all-reduce(%bitcast.{n}), channel_id={n}, "
    "replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=%add, "
    'metadata={{op_name="jit(f)/layer_{n}/psum"}}\n'
)
UNIQUE = "  %r.{n} = f32[{n},512]{{1,0:T(8,128)}} add(%p, %p), a{n}={{{n}}}, b{n}=x{n}\n"
TAIL = "  ROOT %out = f32[512,512]{1,0:T(8,128)} copy(%p)\n}\n"


def made(megabytes: float, line: str = STEP) -> str:
    """Text of about the given size, made of one repeated step or of lines of which no two have the same attributes."""
    count = int(megabytes * 1e6 / len(line.format(n=5000, before=4999)))
    return HEAD + "".join(line.format(n=n, before=n - 1) for n in range(1, count + 1)) + TAIL


def measured(way: str, path: Path, runs: int) -> tuple[dict[str, list[float]], int, int]:
    """Seconds of each run by way, bytes of growth and instructions, from one fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, way, str(path), str(runs)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{path} could not be read ({way}):\n{done.stderr}")
    seconds, growth, count = json.loads(done.stdout)
    return seconds, growth, count


def bar(what: str, found: float, most: float | None, unit: str) -> None:
    """Prints one figure and whether it is within its bar."""
    verdict = "" if most is None else f"  (at most {most:g}{unit}: {'yes' if found <= most else 'NO'})"
    print(f"  {what:<44}{found:8.2f}{unit}{verdict}")


def ratios(path: Path, megabytes: float) -> None:
    """Prints how long each way takes beside XLA."""
    seconds, _, _ = measured("all", path, RUNS + 1)
    medians = {way: statistics.median(found[1:]) for way, found in seconds.items()}
    for way, found in medians.items():
        print(f"  {way:<44}{found * 1e3:8.1f} ms, {megabytes / found:6.1f} MB/s")
    if "xla" not in medians:
        return
    bars = {"graph": 0.5, "fields": 0.75} if megabytes >= LARGE else {"fields": 1.0} if megabytes >= MIDDLE else {}
    bars |= {"analyze": MOST_ANALYSIS} if megabytes >= LARGE else {}
    for way in ("graph", "fields", "analyze"):
        bar(f"{way}, times XLA", medians[way] / medians["xla"], bars.get(way), "x")
    if megabytes >= MIDDLE:  # the first run in a process has to learn the text's words
        bar("graph, first in its process, times XLA", cold(path) / medians["xla"], bars.get("fields"), "x")


def cold(path: Path) -> float:
    """Median seconds of the first reading in a fresh process."""
    return statistics.median(measured("graph", path, 1)[0]["graph"][0] for _ in range(RUNS))


def compare(path: Path) -> None:
    """Prints one file's figures."""
    megabytes = path.stat().st_size / 1e6
    print(f"{path.name}: {megabytes:.2f} MB")
    ratios(path, megabytes)
    if megabytes <= SMALL:
        bar("cold", cold(path) * 1e3, MOST_COLD_MS, " ms")
    growth = statistics.median(measured("graph", path, 1)[1] for _ in range(RUNS))
    bar("memory, times the text", growth / (megabytes * 1e6), MOST_RESIDENT if megabytes >= MIDDLE else None, "x")


def texts(folder: Path) -> Iterator[Path]:
    """The files of the command line, those of the corpus that have a bar, or made ones."""
    corpus = os.environ.get("HLOSCOPE_CORPUS")
    named = [Path(name) for name in sys.argv[1:]]
    if not named and corpus:
        named = sorted((path for path in Path(corpus).rglob("*.hlo") if path.stat().st_size > 1e5), key=_size)
    if named:
        yield from named
        return
    for megabytes in (SMALL - 0.1, MIDDLE + 1, LARGE + 4):
        path = folder / f"made_{megabytes:.0f}.hlo"
        path.write_text(made(megabytes))
        yield path


def _size(path: Path) -> int:
    return path.stat().st_size


def main() -> None:
    """Prints the figures of the texts, of one text at three sizes, and of the worst case."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in texts(folder):
            compare(path)
        path = folder / "made.hlo"
        print(f"one text at {SCALES} MB, time for a megabyte where the first is 1")
        for way in ("graph", "analyze"):
            seconds = []
            for scale in SCALES:
                path.write_text(made(float(scale)))
                seconds.append(statistics.median(measured(way, path, RUNS + 1)[0][way][1:]) / scale)
                bar(f"{way}, {scale} MB", seconds[-1] / seconds[0], MOST_GROWTH, "x")
        worst = folder / "never_repeats.hlo"
        worst.write_text(made(1.0, UNIQUE))
        print("the worst case: no line repeats")
        bar("speed", 1.0 / cold(worst), None, " MB/s")
        bar("memory, times the text", measured("graph", worst, 1)[1] / 1e6, None, "x")


if __name__ == "__main__":
    main()
