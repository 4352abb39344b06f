"""What `hloscope verify` costs on every program of the seeds beside its twin, as a command with an empty cache.

    python tests/benchmarks/verifying.py [--beside CHECKOUT] [--runs N] [--full] [FILE ...]

Prints wall-clock and processor seconds, the smallest of its runs. With `--beside` another checkout of hloscope runs the
same in turns, and the last two columns are this one's figures over that one's. `--full` leaves out the smaller sizes at
which the seeds' numbers are compared; FILES are names such as `matmul`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = ROOT / "fixtures" / "programs"


def pairs(names: Sequence[str], *, full: bool) -> Iterator[tuple[str, list[str]]]:
    """A name and the command line of each program that has a twin."""
    sys.path.insert(0, str(PROGRAMS))
    for name in names or importlib.import_module("seed_programs").SEED_PROGRAMS:
        for program in importlib.import_module(name).PROGRAMS:
            if program.reference is None or program.refused is not None:
                continue
            file = f"{PROGRAMS / name}.py"
            twin = f"{PROGRAMS}/{program.reference}" if ":" in program.reference else f"{file}:{program.reference}"
            options = [f"--range={argument}={low}:{high}" for argument, (low, high) in program.ranges.items()]
            options += [] if full else [f"--scale={letter}={size}" for letter, size in program.scale.items()]
            yield f"{name}:{program.function}", [f"{file}:{program.function}", "--reference", twin, *options]


def timed(checkout: Path, arguments: Sequence[str]) -> tuple[float, float, int]:
    """Wall-clock and processor seconds of one command, and its exit code."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPATH": str(checkout), "HLOSCOPE_CACHE_DIR": cache}
        command = [sys.executable, "-m", "hloscope", "verify", *arguments]
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        code = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, check=False).returncode
        wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, code


def main() -> None:
    """Runs every pair and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    checkouts = [ROOT, *([options.beside.resolve()] if options.beside else [])]
    totals = [[0.0, 0.0] for _ in checkouts]
    for name, arguments in pairs(options.files, full=options.full):
        runs = [[timed(checkout, arguments) for checkout in checkouts] for _ in range(options.runs)]
        best = [[min(run[at][part] for run in runs) for part in (0, 1)] for at in range(len(checkouts))]
        totals = [
            [a + b for a, b in zip(total, figures, strict=True)] for total, figures in zip(totals, best, strict=True)
        ]
        print(name, *row(best), f"exit {[code for _, _, code in runs[0]]}", sep="\t", flush=True)
    print("together", *row(totals), sep="\t")


def row(figures: list[list[float]]) -> list[str]:
    """The columns of a line."""
    seconds = [f"{part:.2f} s" for part in figures[0]]
    return seconds + [f"x{mine / theirs:.2f}" for mine, theirs in zip(figures[0], figures[-1], strict=True)]


if __name__ == "__main__":
    main()
