"""How long the commands take that must feel instant: `--help`, and the analysis of about 1 MB of HLO text.

Run it with `python tests/benchmarks/startup.py [FILE.hlo]`. Each figure is the median of whole processes, after one
that is not counted. Without a file, a module of about 1 MB is made, as for `parsing.py`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from parsing import made

RUNS = 9


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
            path.write_text(made(1.0))
        seconds = median_seconds("analyze", str(path))
        print(f"hloscope analyze ({path.stat().st_size / 1e6:.2f} MB)      {seconds:.3f} s")


if __name__ == "__main__":
    main()
