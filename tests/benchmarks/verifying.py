"""What the numbers of `hloscope verify` cost on every target of a folder, each compared with itself.

    python tests/benchmarks/verifying.py [--beside CHECKOUT] [--runs N] [FOLDER]

Prints for each target the wall-clock and processor seconds of the process that runs the numbers, the smallest of its
runs. With `--beside` another checkout of hloscope runs the same, in turns, and the last two columns are this one's
figures over that one's. The folder is `fixtures/programs` by default.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LIST = """\
import importlib, inspect, json, sys
from hloscope.program.target import attached_facts, TargetFacts
for path in sys.argv[1:]:
    sys.path.insert(0, path.rpartition("/")[0])
    module = importlib.import_module(path.rpartition("/")[2].removesuffix(".py"))
    for name, value in vars(module).items():
        facts = attached_facts(value) if callable(value) else TargetFacts()
        mine = getattr(inspect.unwrap(value), "__module__", "") == module.__name__ if callable(value) else False
        if facts != TargetFacts() and mine and isinstance(facts.mesh, dict):
            size = 1
            for length in facts.mesh.values():
                size *= length
            print(json.dumps([f"{path}:{name}", size]))
"""
RUN = """\
import json, resource, sys, time
from hloscope.program.target import TargetFacts
from hloscope.verification.job import Job, Side
from hloscope.verification.numerics import run_in_child
target, devices = json.loads(sys.argv[1])
side = Side(target=target, facts=TargetFacts())
begun = time.perf_counter()
found = run_in_child(Job(target=side, reference=side, devices=devices), timeout_s=300)
wall = time.perf_counter() - begun
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([wall, used.ru_utime + used.ru_stime, str(found.status)]))
"""


def said(checkout: Path, code: str, *arguments: str) -> list[str]:
    """The lines that a process prints which imports hloscope from a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", code, *arguments]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    done = subprocess.run(command, cwd=checkout, env=environment, check=True, **quiet)
    return done.stdout.decode().splitlines()


def timed(checkout: Path, target: str) -> tuple[float, float, str]:
    """Wall-clock and processor seconds of one run of the numbers, and how it ended."""
    wall, processor, status = json.loads(said(checkout, RUN, target)[-1])
    return wall, processor, status


def main() -> None:
    """Runs every target and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "fixtures" / "programs")
    options = parser.parse_args()
    checkouts = [ROOT, *([options.beside.resolve()] if options.beside else [])]
    files = [str(path.resolve()) for path in sorted(options.folder.glob("*.py"))]
    totals = [[0.0, 0.0] for _ in checkouts]
    for target in said(ROOT, LIST, *files):
        runs = [[timed(checkout, target) for checkout in checkouts] for _ in range(options.runs)]
        best = [[min(run[at][part] for run in runs) for part in (0, 1)] for at in range(len(checkouts))]
        for total, figures in zip(totals, best, strict=True):
            total[0] += figures[0]
            total[1] += figures[1]
        print(json.loads(target)[0].rpartition("/")[2], *row(best), runs[0][0][2], sep="\t", flush=True)
    print("together", *row(totals), sep="\t")


def row(figures: list[list[float]]) -> list[str]:
    """The columns of a line."""
    seconds = [f"{part:.2f} s" for part in figures[0]]
    return seconds + [f"x{mine / theirs:.2f}" for mine, theirs in zip(figures[0], figures[-1], strict=True)]


if __name__ == "__main__":
    main()
