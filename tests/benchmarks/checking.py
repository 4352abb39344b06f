"""How long `hloscope check` takes on ten targets, with an empty cache and again with nothing changed.

    python tests/benchmarks/checking.py [TARGETS]

Prints wall-clock and processor seconds of each run. The second run traces every target and compiles none.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MODEL = """\
import jax


def block(x, up, down):
    def layer(x, _):
        return jax.nn.gelu(x @ up) @ down, None
    return jax.lax.scan(layer, x, None, length={length})[0]
"""
TARGET = """
[targets.block{number}]
function = "model{number}.py:block"
args = ["bf16[512@data,2048]", "bf16[2048,8192@model]", "bf16[8192@model,2048]"]
contract = ["all-reduce@model", "nothing else"]
"""


def project(folder: Path, targets: int) -> None:
    """A project of targets that each are a program of their own."""
    head = '[defaults]\nmesh = { data = 4, model = 2 }\nslice = "v5e:2x4"\n'
    (folder / "hloscope.toml").write_text(head + "".join(TARGET.format(number=n) for n in range(targets)))
    for number in range(targets):
        (folder / f"model{number}.py").write_text(MODEL.format(length=number + 2))


def timed_check(folder: Path) -> tuple[float, float]:
    """Wall-clock and processor seconds of one check."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HLOSCOPE_CACHE_DIR": str(folder / "cache")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    command = [sys.executable, "-m", "hloscope", "check"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stdout.decode() + done.stderr.decode())
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Runs both checks and prints their times."""
    targets = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project(folder, targets)
        for label in ("empty cache", "unchanged", "unchanged"):
            wall, processor = timed_check(folder)
            print(f"{targets} targets, {label}: {wall:.1f} s, {processor:.1f} s of processor time")


if __name__ == "__main__":
    main()
