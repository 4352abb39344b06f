"""Times without machine code beside those with the compiler's own figures.

`collect` compiles the seed programs and generated ones for each generation and keeps them in a folder, `fit` writes
`hloscope/tpu/estimates.toml` from them, `measure` prints how far estimates are off for programs that were left out, and
`order` compares the order of candidates, none of which is fitted to:

    python tests/benchmarks/estimated_times.py collect --folder times --seeds 1000:1060
    python tests/benchmarks/estimated_times.py fit --folder times
"""

from __future__ import annotations

import argparse
import importlib
import json
import lzma
import pickle
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from generated_steps import EXCHANGE, Step, make_candidates, make_exchange, make_step
from scipy.optimize import least_squares  # type: ignore[import-untyped]
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from hloscope.base.errors import HloscopeError
from hloscope.compile.compiling import start_compile
from hloscope.compile.functions import Function, with_function
from hloscope.compile.lowering import lower
from hloscope.compile.stages import find_stage_check
from hloscope.compile.target import TargetFacts, make_facts
from hloscope.cost import operations as cost_operations
from hloscope.cost import price, price_capture
from hloscope.cost.collectives import (
    _find_algorithm,
    count_partitions,
    estimate_algorithm,
    find_algorithm_facts,
    map_partitions_to_devices,
)
from hloscope.cost.estimated_cycles import _IN_BOTH, PORTS, VECTOR, estimate_cycles
from hloscope.cost.network import make_algorithm
from hloscope.cost.operations import Operations, has_cycles_later, read_cycles
from hloscope.hlo import HloInstruction, HloModule, parse_module
from hloscope.hlo.call_graph import HloGraph
from hloscope.model import Analysis
from hloscope.model.capture import Capture
from hloscope.model.vocabulary import CompileStage, Kind
from hloscope.tpu.chips import find_chip
from hloscope.tpu.estimates import AlgorithmFacts, Estimates, KnownAlgorithm
from hloscope.tpu.slices import find_constants, find_smallest_slice
from hloscope.tpu.torus import Torus

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = ROOT / "fixtures" / "programs"
ESTIMATES = ROOT / "hloscope" / "tpu" / "estimates.toml"
GENERATIONS = ("v4", "v5e", "v5p", "v6e", "7x")


def _list_targets() -> Iterator[str]:
    sys.path.insert(0, str(PROGRAMS))
    for name in importlib.import_module("seed_programs").SEED_PROGRAMS:
        try:
            module = importlib.import_module(name)
        except ImportError:  # flax
            continue
        yield from (f"{PROGRAMS / name}.py:{one.function}" for one in module.PROGRAMS if one.refused is None)


Job = tuple[str, Any, TargetFacts]
"""The name of a program, the target, and how it is called."""


def _list_jobs(seeds: Iterable[int], *, with_fixtures: bool) -> Iterator[Job]:
    if with_fixtures:
        for target in _list_targets():
            yield target.rsplit(":", 1)[1], target, TargetFacts()
    for seed in seeds:
        yield from map(_make_job, (make_step(seed), make_exchange(seed)))


def _make_job(step: Step) -> Job:
    return step.name, step.function, make_facts(mesh=step.mesh, args=step.args)


def collect(folder: Path, generations: Iterable[str], jobs: Iterable[Job]) -> None:
    """Compiles programs for each generation, and keeps what is compiled."""
    for name, target, facts in jobs:
        for generation in generations:
            path = folder / generation / f"{name}.xz"
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            begun = time.monotonic()
            try:
                found = _compile_for(generation, Function(target=target, facts=facts), name)
            except HloscopeError as error:
                print(f"{name} on {generation}: {error.what}", flush=True)
                path.touch()  # it will not be tried again
                continue
            path.write_bytes(lzma.compress(pickle.dumps(found), preset=3))
            print(f"{name} on {generation}: {time.monotonic() - begun:.1f} s", flush=True)


def _compile_for(generation: str, function: Function, name: str) -> Capture:
    def compiled(itself: Any, known: TargetFacts) -> Capture:
        devices = prod((known.mesh or {}).values())
        known = replace(known, slice=find_smallest_slice(devices, generation).name)
        return start_compile(lower(itself, known, name=name)).capture()

    return with_function(function, compiled)


# ---- what was compiled, at both stages

REAL = "real"
"""How the names of programs begin that were put into the folder by hand: whole training steps."""

_NAMES = ("used_scoped_memory_configs",)
"""Keys that are there from the beginning, and are filled by code generation."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One program on one generation.

    Attributes:
        name: Its name.
        generation: The generation.
        capture: The compiled program.
        instructions: What its instructions do, the compiler's cycles of each, and the share of the program's computing
            that they decide: it is small for an instruction that memory limits.
        algorithms: The facts of its collectives, the algorithm and colors of each, and its time.
        time: Its computing, its exposed communication and its step as the compiler's figures have them.
    """

    name: str
    generation: str
    capture: Capture
    instructions: tuple[tuple[Mapping[str, float], int, float], ...]
    algorithms: tuple[tuple[AlgorithmFacts, KnownAlgorithm, float], ...]
    time: tuple[float, float]

    @property
    def fold(self) -> int:
        """The part in which it is left out: the seed programs, which resemble each other, all at once."""
        _, _, seed = self.name.partition("#")
        return int(seed) % FOLDS if seed else 0


def read_examples(folder: Path, generation: str) -> Iterator[Example]:
    """The programs that were kept for a generation."""
    for path in sorted((folder / generation).glob("*.xz")):
        if path.stat().st_size:
            yield _read_example(pickle.loads(lzma.decompress(path.read_bytes())), path.stem, generation)


def _read_example(capture: Capture, name: str, generation: str) -> Example:
    assert capture.slice is not None
    assert capture.slice.chip is not None
    module = parse_module(capture.compiled.text, name=name)
    found, chip = price_capture(capture, module, target=name), capture.slice.chip
    operations = Operations(graph=HloGraph(module), chip=chip, constants=find_constants(chip))
    rows = []
    for instruction in (one for each in module.computations for one in each.instructions):
        cycles = read_cycles(instruction)
        if cycles and has_cycles_later(instruction):
            work = operations.count_cycle_work(instruction)
            if work is not None:
                less_us, more_us = (_time_with(operations, instruction, cycles, by) for by in (0.8, 1.25))
                rows.append((dict(work), cycles, (more_us - less_us) / 0.45))
    computing_us = max(found.time.compute_us if found.time is not None else 0.0, sum(row[2] for row in rows), 1e-9)
    return Example(
        name=name,
        generation=generation,
        capture=capture,
        instructions=tuple((work, cycles, decided_us / computing_us) for work, cycles, decided_us in rows),
        algorithms=tuple(_list_algorithms(found, module, capture)),
        time=(found.time.compute_us, found.time.step_us) if found.time is not None else (0.0, 0.0),
    )


def _time_with(operations: Operations, instruction: HloInstruction, cycles: int, factor: float) -> float:
    """The time of an instruction with more or fewer cycles than it has."""
    with patch.object(cost_operations, "read_cycles", lambda _: round(cycles * factor)):
        return operations.time_of(instruction).time_us


def _list_algorithms(
    found: Analysis, module: HloModule, capture: Capture
) -> Iterator[tuple[AlgorithmFacts, KnownAlgorithm, float]]:
    assert capture.slice is not None
    graph, torus = HloGraph(module), Torus.of(capture.slice)
    ids = capture.compiled.device_ids or None
    device_of, _ = map_partitions_to_devices(found.mesh, capture.slice, count_partitions(found, module), ids)
    for one in found.collectives:
        key = (one.computation, one.name)
        if one.parts or one.kind is Kind.ALL_TO_ALL or not one.groups or not one.time_us or one.payload_bytes is None:
            continue
        algorithm = _find_algorithm(graph, key)
        if not algorithm.name or algorithm.offloaded:
            continue
        groups = tuple(tuple(device_of[member] for member in group) for group in one.groups)
        facts = find_algorithm_facts(torus, one.kind, groups, max(one.payload_bytes, one.padded_bytes or 0))
        known = KnownAlgorithm(facts, algorithm.name, algorithm.directions if "Ring" in algorithm.name else 1)
        yield facts, known, one.time_us * (one.executions or 1)


def as_scheduled(capture: Capture) -> Capture:
    """A compiled program as it was at the scheduled stage: without what code generation has added."""
    check = find_stage_check(capture.versions.get("libtpu"))
    added = set(check.added if check is not None else ()) - {*_NAMES}

    def stripped(line: str) -> str:
        before, mark, config = line.partition("backend_config={")
        if not mark:
            return line
        try:
            said, end = json.JSONDecoder(strict=False).raw_decode("{" + config)
        except ValueError:
            return line
        kept = {key: [] if key in _NAMES else value for key, value in said.items() if key not in added}
        return f"{before}backend_config={json.dumps(kept, separators=(',', ':'))}{config[end - 1 :]}"

    text = "\n".join(map(stripped, capture.compiled.text.split("\n")))
    return replace(capture, compiled=replace(capture.compiled, text=text, stage=CompileStage.SCHEDULED))


# ---- the fit

FOLDS = 5
_FIRST = {
    "start": 2000, "read": 1.3, "write": 1.3, "sharpness": 1, "plain": 2, "widened": 2, "narrowed": 2, "function": 2,
    "divide": 4, "series": 20, "shifted": 4, "kept": 2, "moved": 4, "turned": 8, "lane_broadcast": 1,
    "sublane_broadcast": 0.5,
    "lane_reduce": 2, "lane_reduce_rows": 20, "sublane_reduce": 2, "reduce": 2, "window": 10, "in1": 2, "in2": 2,
    "in4": 2, "out1": 4, "out2": 8, "out4": 8,
    "fused_start": 3500, "from_hbm": 1000, "fused_read": 1.3, "fused_write": 1.3, "fused_sharpness": 1,
    "fused_unit_sharpness": 3, "mxu": 1.03, "push": 0.3, "result": 8, "before_plain": 0.1, "before_function": 0.3,
    "before_moved": 1, "before_reduced": 1, "after_plain": 0.5, "after_function": 1, "after_moved": 1,
    "after_reduced": 1, "ports": 0.2,
}  # fmt: skip
"""Weights from which the fit of all generations together begins; each generation's begins with what comes of it."""
_START = np.log(np.array(list(_FIRST.values()), dtype=float))
_LEAST_SHARE = 0.01
_LEAST_LOGARITHMS = {"mxu": 0.05, "result": 0.5}
"""How far the logarithm of a weight may fall below that of the first where a limit is physical: that of the peak, and
that of the vector unit, which adds up products where `_ADDS_UP_PRODUCTS`."""
_ADDS_UP_PRODUCTS = frozenset({"v4", "v5e", "v5p"})
_PULL, _POOLED_PULL = 0.1, 0.03


def fit_weights(examples: Sequence[Example], first: np.ndarray = _START, pull: float = _POOLED_PULL) -> np.ndarray:
    """Logarithms of the weights that fit the cycles best, each pulled to where it begins."""
    found = first.copy()
    names = np.array(list(_FIRST))
    for is_matmul in (False, True):
        rows = [(one, *row) for one in examples for row in one.instructions if bool(row[0]["matmuls"]) == is_matmul]
        used = np.isin(names, [*_IN_BOTH, *VECTOR, *PORTS]) ^ is_matmul
        found[used] = _fit_rows(rows, names[used], dict(zip(names, np.exp(first), strict=True)), pull)
    return found


def _fit_rows(
    rows: Sequence[tuple[Example, Mapping[str, float], int, float]],
    names: Sequence[str] | np.ndarray,
    weights: Mapping[str, float],
    pull: float,
) -> np.ndarray:
    if not rows:
        return np.log([weights[name] for name in names])
    cycles = np.array([row[2] for row in rows], dtype=float)
    inputs = {name for row in rows for name in row[1]} | {"read", "write"}
    table: dict[str, Any] = {name: np.array([row[1].get(name, 0.0) for row in rows]) for name in inputs}
    table["read"] = table["read"] + 1e-9
    equal = Counter((row[0].generation, row[2]) for row in rows)
    share = np.array([row[3] + _LEAST_SHARE / equal[row[0].generation, row[2]] for row in rows]) ** 0.5
    first = np.log([weights[name] for name in names])

    def differences(values: np.ndarray) -> np.ndarray:
        predicted = estimate_cycles(table, {**weights, **dict(zip(names, np.exp(values), strict=True))})
        return np.concatenate([share * (np.log(predicted) - np.log(cycles)), pull * (values - first)])

    at_first = np.log([_FIRST[name] for name in names])
    adds_up = {row[0].generation for row in rows} <= _ADDS_UP_PRODUCTS
    limits = {name: each for name, each in _LEAST_LOGARITHMS.items() if adds_up or name != "result"}
    lowest = at_first - np.array([limits.get(name, 7.0) for name in names])
    fitted: np.ndarray = least_squares(
        differences,
        np.maximum(first, lowest + 1e-6),
        loss="soft_l1",
        f_scale=0.2,
        max_nfev=30,
        bounds=(lowest, at_first + 5.0),
    ).x
    return fitted


def choose_algorithms(examples: Iterable[Example]) -> tuple[KnownAlgorithm, ...]:
    """The collectives of which the algorithms of all others follow, or nearly all."""
    rows = sorted((row for one in examples for row in one.algorithms), key=lambda row: -row[2])
    kept: list[KnownAlgorithm] = []
    wrong = [rows[0][1]] if rows else []
    while wrong:
        kept.append(wrong[0])
        others = [(facts, known) for facts, known, _ in rows if facts not in {one.facts for one in kept}]
        wrong = [known for facts, known in others if not _cost_alike(known, estimate_algorithm(facts, kept))]
    return tuple(sorted(kept))


def _cost_alike(one: KnownAlgorithm, other: KnownAlgorithm | None) -> bool:
    """Returns whether two algorithms differ in nothing that costs time."""
    return replace(make_algorithm(one), name="") == replace(make_algorithm(other), name="")


def make_estimates(
    weights: np.ndarray, examples: Sequence[Example], steps: Sequence[float] = (0.0,), real: float = 0.0
) -> Estimates:
    """The estimates of a generation.

    Args:
        weights: Logarithms of its weights.
        examples: Its programs.
        steps: The errors of steps that were left out, one for each distinct program.
        real: The largest error of a training step of somebody's own.
    """
    versions = {one.capture.versions.get("libtpu", "") for one in examples}
    errors = np.abs(np.array(steps))
    return Estimates(
        libtpu=", ".join(sorted(versions)),
        programs=len(steps),
        instructions=sum(len(one.instructions) for one in examples),
        error=max(float(np.quantile(errors, 0.9)), real),
        median=float(np.median(errors)),
        worst=float(errors.max()),
        cycles={name: float(f"{each:.3g}") for name, each in zip(_FIRST, np.exp(weights), strict=True)},
        algorithms=choose_algorithms(examples),
    )


# ---- how far off they are


@dataclass
class Errors:
    """What was measured with programs that were left out, of which equal ones count once.

    Attributes:
        times: The times of the programs, with the compiler's figures.
        names: Their names.
        computing: Relative errors of the time of computing.
        steps: Those of the time of the step.
        right_us: The time of the collectives whose algorithm was found.
        all_us: The time of all.
    """

    times: set[tuple[float, float]] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    computing: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    right_us: float = 0.0
    all_us: float = 0.0

    def add(self, one: Example, estimates: Estimates) -> None:
        """Prices a program as it was before its machine code, and compares."""
        scheduled = as_scheduled(one.capture)
        module = parse_module(scheduled.compiled.text, name=one.name)
        with patch.object(price, "find_estimates", lambda _: estimates):
            found = price_capture(scheduled, module, target=one.name).time
        if found is None or min(one.time) <= 0 or one.time in self.times:
            return
        self.times.add(one.time)
        self.names.append(one.name)
        self.computing.append(found.compute_us / one.time[0] - 1)
        self.steps.append(found.step_us / one.time[1] - 1)
        for facts, known, time_us in one.algorithms:
            is_right = _cost_alike(known, estimate_algorithm(facts, estimates.algorithms))
            self.right_us += time_us * is_right
            self.all_us += time_us

    def of_steps(self) -> list[float]:
        """The errors of whole steps that compute: those that only exchange arrays would make them look smaller."""
        return [error for name, error in zip(self.names, self.steps, strict=True) if not name.startswith(EXCHANGE)]

    def of_real(self) -> float:
        """The largest error of the steps of training programs, which are much larger than the generated ones."""
        pairs = zip(self.names, self.steps, strict=True)
        return max((abs(error) for name, error in pairs if name.startswith(REAL)), default=0.0)

    def describe(self) -> str:
        """One line for each figure and sort of programs, and the worst programs."""
        rows = list(zip(self.names, self.computing, self.steps, strict=True))
        exchanges = [row for row in rows if row[0].startswith(EXCHANGE)]
        seeds = [row for row in rows if "#" not in row[0]]
        steps = [row for row in rows if row not in exchanges and row not in seeds]
        lines = [
            f"{len(each)} {sort}: {figure}, median {np.median(errors):.1%}, nine of ten within "
            f"{np.quantile(errors, 0.9):.1%}, worst {errors.max():.1%}"
            for sort, each in (("generated steps", steps), ("seeds", seeds), ("exchanges", exchanges), ("in all", rows))
            for column, figure in ((1, "computing"), (2, "step"))
            if (errors := np.abs([row[column] for row in each])).size
        ]
        lines.append(f"algorithms right for {self.right_us / max(self.all_us, 1e-9):.1%} of the time of collectives")
        worst = sorted(rows, key=lambda row: -max(abs(row[1]), abs(row[2])))[:6]
        return "\n    ".join(
            [*lines, *(f"{one:+.1%} computing, {whole:+.1%} step: {name}" for name, one, whole in worst)]
        )


def measure(examples: Mapping[str, Sequence[Example]]) -> dict[str, Errors]:
    """The errors of each generation's estimates on programs that they were not fitted to."""
    found: dict[str, Errors] = defaultdict(Errors)
    for fold in range(FOLDS):
        kept = {name: [one for one in each if one.fold != fold] for name, each in examples.items()}
        pooled = fit_weights([one for each in kept.values() for one in each])
        for name, each in kept.items():
            estimates = make_estimates(fit_weights(each, pooled, _PULL), each)
            for one in examples[name]:
                if one.fold == fold:
                    found[name].add(one, estimates)
    return found


def describe_order(examples: Sequence[Example]) -> str:
    """The rank correlation of the steps of candidates with those that the compiler's figures give, by program."""
    pairs: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in examples:
        scheduled = as_scheduled(one.capture)
        found = price_capture(scheduled, parse_module(scheduled.compiled.text, name=one.name), target=one.name).time
        if found is not None:
            pairs[one.name.partition("#")[0]].append((one.time[1], found.step_us))
            pairs["all"].append(pairs[one.name.partition("#")[0]][-1])
    found_of = {name: spearmanr(*zip(*each, strict=True)).statistic for name, each in pairs.items()}
    return ", ".join(f"{name} {found_of[name]:.3f} ({len(pairs[name])})" for name in pairs)


def write_estimates(examples: Mapping[str, Sequence[Example]], errors: Mapping[str, Errors], path: Path) -> None:
    """Writes the estimates of all generations."""
    pooled = fit_weights([one for each in examples.values() for one in each])
    lines = ["# generated by `python tests/benchmarks/estimated_times.py fit`"]
    for name, each in examples.items():
        made = make_estimates(fit_weights(each, pooled, _PULL), each, errors[name].of_steps(), errors[name].of_real())
        chip = find_chip(f"v{name}" if name[0].isdigit() else name).name
        lines += ["", f"[{chip}]", f'libtpu = "{made.libtpu}"', f"programs = {made.programs}"]
        lines += [f"instructions = {made.instructions}"]
        lines += [f"{name} = {getattr(made, name):.3f}" for name in ("error", "median", "worst")]
        lines += ["algorithms = [", *(f"    {json.dumps([*row.facts, *row[1:]])}," for row in made.algorithms), "]"]
        lines += [f"[{chip}.cycles]", *(f"{key} = {value:g}" for key, value in made.cycles.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("collect", "fit", "measure", "order"))
    parser.add_argument("--folder", type=Path, default=Path("times"))
    parser.add_argument("--generations", default=",".join(GENERATIONS))
    parser.add_argument("--seeds", default="1000:1060")
    parser.add_argument("--no-fixtures", action="store_true")
    said = parser.parse_args()
    generations = said.generations.split(",")
    if said.what == "collect":
        seeds = range(*map(int, said.seeds.split(":")))
        collect(said.folder, generations, _list_jobs(seeds, with_fixtures=not said.no_fixtures))
        return
    if said.what == "order":
        collect(said.folder / "candidates", generations, map(_make_job, make_candidates()))
        for name in generations:
            print(f"{name}: {describe_order(list(read_examples(said.folder / 'candidates', name)))}")
        return
    examples = {name: list(read_examples(said.folder, name)) for name in generations}
    errors = measure(examples)
    for name, found in errors.items():
        count = sum(len(one.instructions) for one in examples[name])
        print(f"{name}: {len(found.names)} programs, {count} instructions\n    {found.describe()}", flush=True)
    if said.what == "fit":
        write_estimates(examples, errors, ESTIMATES)


if __name__ == "__main__":
    main()
