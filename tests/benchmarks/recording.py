"""What `hloscope record` takes for models of real size: seconds, and the most memory of all its processes together.

    python tests/benchmarks/recording.py [--slice NAME] [MODE ...]

The modes are those of `tests/record/scripts/llama.py`, a decoder of 8B parameters in 32 layers written one after the
other: prefill, decode, moe (a mixture of experts); and train, which scans over them. Nothing is taken from the cache.
The bar: 6 GB each. No bar holds for train_unrolled, which runs only where it is named: libtpu needs 7 GB by itself to
put together the code of its 620 collectives and their layers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "tests" / "record" / "scripts" / "llama.py"
MODES = ("prefill", "decode", "moe", "train")
UNROLLED = "train_unrolled"
MOST_BYTES = 6e9
EVERY_S = 1.0


def memory_of(root: int) -> tuple[int, ...]:
    """Bytes of memory that a process and each of its descendants have in use; what they share is divided among them."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(stat.parent.name)] = int(after[1])
    tree = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in tree} - tree
        if not more:
            break
        tree |= more
    return tuple(sorted(map(_own_bytes, tree), reverse=True))


def _own_bytes(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:")), 0)


def measured(mode: str, slice_name: str) -> tuple[float, tuple[int, ...], dict[str, object]]:
    """Seconds, the bytes of each process when they had most together, and the document of one recording."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--slice", slice_name, "--format", "json", "-o", str(report)]
        command = [sys.executable, "-m", "hloscope", "record", *options, "--", str(SCRIPT), mode]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HLOSCOPE_CACHE": "0"}
        begun = time.perf_counter()
        most: tuple[int, ...] = (0,)
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as running:
            while running.poll() is None:
                most = max(most, memory_of(running.pid), key=sum)
                time.sleep(EVERY_S)
        seconds = time.perf_counter() - begun
        return seconds, most, json.loads(report.read_text())


def main() -> int:
    """Measures the modes one after the other; 1 where one of them takes more than the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slice", default="v5p:2x2x2")
    parser.add_argument("modes", nargs="*", metavar="MODE", help=", ".join(MODES))
    options = parser.parse_args()
    worst = 0
    for mode in options.modes or MODES:
        seconds, most, found = measured(mode, options.slice)
        programs = found["programs"]
        assert isinstance(programs, list)
        dearest = programs[0]
        step_us, collectives = dearest["analysis"]["time"]["step_us"], len(dearest["analysis"]["collectives"])
        processes = " + ".join(f"{each / 1e9:.2f}" for each in most if each > 5e7)
        print(
            f"{mode}: {seconds:.0f} s, {sum(most) / 1e9:.2f} GB ({processes}); {dearest['name']} takes "
            f"{step_us / 1e3:.1f} ms with {collectives} collectives, called {dearest['calls']} times"
        )
        worst = max(worst, 0 if mode == UNROLLED else sum(most))
    print(f"most memory {worst / 1e9:.2f} GB, bar {MOST_BYTES / 1e9:.0f} GB")
    return int(worst > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
