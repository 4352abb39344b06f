"""How long the commands take that must feel instant: `--help`, and the analysis of about 1 MB of HLO text.

Run it with `python tests/benchmarks/startup.py [FILE.hlo]`. Each figure is the median of whole processes, after one
that is not counted. Without a file, a module of about 1 MB is made by repeating a matmul and its all-reduce.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 9

HEADER = """HloModule made, is_scheduled=true, num_partitions=8

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


def made_module(megabytes: float) -> str:
    """HLO text of about the given size."""
    steps = int(megabytes * 1e6 / len(STEP.format(n=1000, before=999)))
    body = "".join(STEP.format(n=n, before=n - 1) for n in range(1, steps + 1))
    return f"{HEADER}{body}  ROOT %out = f32[512,512]{{1,0:T(8,128)}} copy(%all-reduce.{steps})\n}}\n"


def median_seconds(*arguments: str) -> float:
    """Median wall time of `hloscope ARGUMENTS` as a process of its own."""
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "hloscope", *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    """Prints the figures."""
    print(f"hloscope --help                 {median_seconds('--help'):.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "made.hlo"
        if len(sys.argv) == 1:
            path.write_text(made_module(1.0))
        seconds = median_seconds("analyze", str(path))
        print(f"hloscope analyze ({path.stat().st_size / 1e6:.2f} MB)      {seconds:.3f} s")


if __name__ == "__main__":
    main()
