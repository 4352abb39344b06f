"""How fast HLO text is read, as a ratio to XLA's own parser on the same machine in the same run.

Run it with `python tests/benchmarks/parsing.py FILE.hlo...`; without a file, modules are made. Every figure is the
median of several fresh processes, XLA's and ours in turn, so that both meet the same state of the machine.

What is measured, after imports:

* `xla`: `jaxlib._hlo.hlo_module_from_text`, then every computation's instructions listed.
* `graph`: `parse_module`: names, opcodes, shapes, operands, calls, header, heads and stack tables, every line checked.
* `analyze`: `parse_module` and all that the analysis of collectives reads from it.
* `everything`: `graph`, and the attributes and metadata of every single instruction decoded.
* `warm`: `graph` with a template store that has seen the text.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 5
SCALES = (1, 4, 16)
WAYS = ("xla", "graph", "analyze", "everything", "warm")

CHILD = r"""
import json, sys, time
from pathlib import Path
way, path = sys.argv[1:]
text = Path(path).read_text()

def resident():
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * 4096 if pages.exists() else 0

if way == "xla":
    from jaxlib import _hlo
    def read():
        module = _hlo.hlo_module_from_text(text)
        return module, sum(len(list(one.instructions())) for one in module.computations())
else:
    from hloscope.analysis import analyze_module
    from hloscope.hlo import parse_module
    def read():
        module = parse_module(text)
        if way == "analyze":
            analyze_module(module, target="benchmark", mesh=None)
        if way == "everything":
            for computation in module.computations:
                for instruction in computation.instructions:
                    instruction.attributes, instruction.metadata
        return module, sum(one._row.end - one._row.first for one in module.computations)

before, start = resident(), time.perf_counter()
kept = read()
print(json.dumps([time.perf_counter() - start, resident() - before, kept[1]]))
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
    "  %all-reduce.{n} = f32[512,512]{{1,0:T(8,128)}} all-reduce(%dot.{n}), channel_id={n}, "
    "replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=%add, "
    'metadata={{op_name="jit(f)/layer_{n}/psum"}}\n'
)
UNIQUE = "  %r.{n} = f32[{n},512]{{1,0:T(8,128)}} add(%p, %p), a{n}={{{n}}}, b{n}=x{n}\n"
TAIL = "  ROOT %out = f32[512,512]{1,0:T(8,128)} copy(%p)\n}\n"


def made(megabytes: float, line: str = STEP) -> str:
    """Text of about the given size, made of one repeated step or of lines of which no two have the same tokens."""
    count = int(megabytes * 1e6 / len(line.format(n=5000, before=4999)))
    return HEAD + "".join(line.format(n=n, before=n - 1) for n in range(1, count + 1)) + TAIL


def measured(way: str, path: Path, cache: Path) -> tuple[float, int, int]:
    """Seconds, bytes of growth and instructions of one fresh process."""
    environment = {**os.environ, "HLOSCOPE_CACHE": "1" if way == "warm" else "0", "HLOSCOPE_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, way, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{way} could not read {path}:\n{done.stderr}")
    seconds, growth, instructions = json.loads(done.stdout)
    return seconds, growth, instructions


def compare(path: Path, cache: Path, ways: tuple[str, ...] = WAYS) -> dict[str, float]:
    """Prints one file's figures and returns the median seconds of each way."""
    runs: dict[str, list[tuple[float, int, int]]] = {way: [] for way in ways}
    if "warm" in ways:
        measured("warm", path, cache)
    for _ in range(RUNS):
        for way in ways:
            runs[way].append(measured(way, path, cache))
    size = path.stat().st_size
    medians = {way: statistics.median(seconds for seconds, _, _ in found) for way, found in runs.items()}
    print(f"{path.name}: {size / 1e6:.2f} MB, {runs[ways[-1]][0][2]} instructions")
    for way, seconds in medians.items():
        growth = statistics.median(grown for _, grown, _ in runs[way])
        ratio = f"{seconds / medians['xla']:5.2f} of XLA" if "xla" in medians else ""
        print(f"  {way:<11}{seconds * 1e3:9.1f} ms {size / seconds / 1e6:7.1f} MB/s  {ratio}  "
              f"resident {growth / 1e6:+7.1f} MB ({growth / size:.2f} of the text)")  # fmt: skip
    return medians


def main() -> None:
    """Prints the figures of the named files, of one text at three sizes, and of the worst case."""
    with tempfile.TemporaryDirectory() as folder:
        cache, path = Path(folder) / "cache", Path(folder) / "made.hlo"
        for name in sys.argv[1:]:
            compare(Path(name), cache)
        seconds = []
        for scale in SCALES:
            path.write_text(made(float(scale)))
            seconds.append(compare(path, cache, ("xla", "graph"))["graph"])
        per_size = ", ".join(f"{found / scale / seconds[0]:.2f}" for found, scale in zip(seconds, SCALES, strict=True))
        print(f"time for a megabyte at {SCALES} times the text, first = 1: {per_size}")
        worst = Path(folder) / "never_repeats.hlo"
        worst.write_text(made(1.0, UNIQUE).replace("a1={1}, b1=x1", "a1={1}"))
        compare(worst, cache, ("graph",))


if __name__ == "__main__":
    main()
