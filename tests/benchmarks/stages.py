"""How soon an answer is there that needs no machine code, beside one that waits for it.

    python tests/benchmarks/stages.py facts [--runs N] [--beside CHECKOUT] [TARGET ...]
    python tests/benchmarks/stages.py check [--runs N] --beside CHECKOUT
    python tests/benchmarks/stages.py suggest [--runs N] --beside CHECKOUT

`facts` runs `hloscope analyze --quick` in turns with `hloscope analyze`, the latter of the other checkout if one is
named; it prints median seconds of both, their ratio, and that of the memory of the largest process. Targets are files
with functions; without any, the steps below and the fixture `decoder_step`.

`check` runs `hloscope check` of 40 gradients of one to eight layers, and of 40 programs of the size of a seed, with
contracts on what they send, in both checkouts with empty caches, and prints the ratios of wall-clock and processor
seconds.

Processor seconds are those of the machine, which should do nothing else.

`suggest` prints how many candidates of the 4-layer step each checkout compares in a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
STEPS = """\
import sys
sys.path.insert(0, {folder!r})
import hloscope
from unrolled_step import step_of

SIZES = dict(D=4096, F=14336, V=32768, B=64, S=2048)

def make(layers):
    step, args = step_of(layers)
    return hloscope.target(mesh=dict(data=8, model=8), slice="v5p:4x4x4", args=args, dims=SIZES, donate=(0, 1))(step)

for count in (4, 12, 36):
    globals()[f"layers_{{count}}"] = make(count)
"""
GRADIENTS = """\
import jax

def loss(weights, x):
    for up, down in weights:
        x = x + jax.nn.gelu(x @ up) @ down
    return (x.astype("float32") ** 2).mean()

def step(weights, x):
    return jax.tree.map(lambda w, g: w - {rate} * g, weights, jax.grad(loss)(weights, x))
"""
GRADIENT = """
[targets.step{number}]
function = "gradient{number}.py:step"
args = [[{layers}], "bf16[512@data,2048]"]
contract = ["all-* <= 10GB"]
"""
SMALL = """\
import jax

def layer(x, up, down):
    return jax.nn.gelu(x @ up) @ down * {rate}
"""
SMALL_TARGET = """
[targets.layer{number}]
function = "layer{number}.py:layer"
args = ["bf16[512@data,2048]", "bf16[2048,8192@model]", "bf16[8192@model,2048]"]
contract = ["all-reduce@model", "nothing else"]
"""
HEAD = '[defaults]\nmesh = { data = 4, model = 2 }\nslice = "v5e:2x4"\n'
TARGETS = 40


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command: seconds on the wall and of processors, and the bytes of its largest process."""

    wall_s: float
    processor_s: float
    peak_bytes: int
    output: str


def run(checkout: Path, command: Sequence[str], folder: Path) -> Run:
    """Runs hloscope of a checkout, without what was compiled before; exits if it fails."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPATH": str(checkout), "HLOSCOPE_CACHE_DIR": cache}
        measuring = (
            "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)"
        )
        words = [sys.executable, "-c", measuring, sys.executable, "-m", "hloscope", *command]
        begun, busy = time.perf_counter(), read_processor_seconds()
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        wall, processor = time.perf_counter() - begun, read_processor_seconds() - busy
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return Run(wall, processor, int(done.stderr.strip().splitlines()[-1]) << 10, done.stdout)


def read_processor_seconds() -> float:
    """Seconds that this machine's processors have worked: workers that are ended are in no other sum."""
    user, nice, system, *_ = Path("/proc/stat").read_text().split()[1:]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def compare(what: str, quick: Sequence[Run], whole: Sequence[Run], most: float | None = None) -> None:
    """Prints medians of two ways and their ratios, beside the most that the ratio of wall times shall be."""
    walls, processors, peaks = (
        [statistics.median(getattr(each, part) for each in runs) for runs in (quick, whole)]
        for part in ("wall_s", "processor_s", "peak_bytes")
    )
    bar = "" if most is None else f" (at most {most:g})"
    print(
        f"{what}: {walls[0]:.1f} of {walls[1]:.1f} s = {walls[0] / walls[1]:.3f}{bar}, processors "
        f"{processors[0] / processors[1]:.3f}, memory {peaks[0] / 1e9:.2f} of {peaks[1] / 1e9:.2f} GB",
        flush=True,
    )


def time_facts(targets: Sequence[str], other: Path, runs: int) -> None:
    """Compares the first answer with the whole one, for each target."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "steps.py").write_text(STEPS.format(folder=str(Path(__file__).parent)))
        made = ["steps.py:layers_12", "steps.py:layers_36", f"{ROOT}/fixtures/programs/decoder_step.py:decoder_step"]
        for target in targets or made:
            pairs = [
                (
                    run(ROOT, ["analyze", target, "--quick", "-o", "quick.txt"], folder),
                    run(other, ["analyze", target, "-o", "whole.txt"], folder),
                )
                for _ in range(runs)
            ]
            quick, whole = zip(*pairs, strict=True)
            compare(target, quick, whole)


def make_project(folder: Path, programs: Mapping[str, str], targets: str) -> None:
    """Writes a project of targets that each are a program of their own."""
    (folder / "hloscope.toml").write_text(HEAD + targets)
    for name, text in programs.items():
        (folder / name).write_text(text)


def time_checks(other: Path, runs: int) -> None:
    """Compares cold checks of both checkouts, of programs whose machine code takes long and of small ones."""
    pair = '["bf16[2048@data,8192@model]", "bf16[8192@model,2048@data]"]'
    gradients = {f"gradient{number}.py": GRADIENTS.format(rate=0.1 + number) for number in range(TARGETS)}
    of_gradients = "".join(
        GRADIENT.format(number=number, layers=", ".join([pair] * (number % 8 + 1))) for number in range(TARGETS)
    )
    small = {f"layer{number}.py": SMALL.format(rate=1 + number) for number in range(TARGETS)}
    of_small = "".join(SMALL_TARGET.format(number=number) for number in range(TARGETS))
    kinds = ((f"{TARGETS} gradients", gradients, of_gradients, 0.3), (f"{TARGETS} layers", small, of_small, 1.05))
    for what, programs, targets, most in kinds:
        with tempfile.TemporaryDirectory() as name:
            make_project(Path(name), programs, targets)
            pairs = [tuple(run(each, ["check"], Path(name)) for each in (ROOT, other)) for _ in range(runs)]
        here, there = zip(*pairs, strict=True)
        compare(what, here, there, most)


def time_searches(other: Path, runs: int) -> None:
    """Prints the candidates of a training step that a search of four minutes compares in each checkout."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "steps.py").write_text(STEPS.format(folder=str(Path(__file__).parent)))
        search = ["suggest", "steps.py:layers_4", "--budget", "4m", "--candidates", "400", "--format", "json"]
        for _ in range(runs):
            for label, checkout in (("here", ROOT), ("there", other)):
                done = run(checkout, search, folder)
                found = json.loads(done.output)
                print(f"{label}: {found['compiled']} candidates in {done.wall_s:.0f} s", flush=True)


def main() -> None:
    """Runs one of the comparisons."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("facts", "check", "suggest"))
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("targets", nargs="*")
    options = parser.parse_intermixed_args()
    other = ROOT if options.beside is None else options.beside.resolve()
    if options.what == "facts":
        time_facts(options.targets, other, options.runs)
    elif options.what == "check":
        time_checks(other, options.runs)
    else:
        time_searches(other, options.runs)


if __name__ == "__main__":
    main()
