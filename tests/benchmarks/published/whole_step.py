"""A whole training step that was measured, from the text that the compiler of its day made of it.

Qwen3-8B in Flax NNX on v6e-8 (two hosts, a 2x4), mesh (8, 1) = (fsdp, tp), one sequence of 2048 tokens per chip, as JAX
0.9.0 with libtpu 0.0.34 compiles it. The text is 37 MB and not in the repository; the step took 512.6 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from published.prediction import Table, measured_by

from hloscope.analysis.analyze import analyze_module
from hloscope.cost.price import price_module
from hloscope.hlo import parse_module
from hloscope.model import Analysis, Mesh
from hloscope.model.vocabulary import Kind
from hloscope.tpu import parse_slice

MEASURED_MS = 512.6
MEASURED_SHARES = {
    "computing and synchronous": 0.376 + 0.157 + 0.163,  # fusions, and what the profile has no name for
    "asynchronous gathers": 0.087,  # custom fusions, which start them and wait for them
    "permutes": 0.217,
}
"""Of the step, by the profile's categories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStep:
    """What is predicted of it, in milliseconds: the step, its range, and its parts."""

    step_ms: float
    range_ms: tuple[float, float]
    parts_ms: Mapping[str, float]


def predict_step(path: Path, table: Table) -> WholeStep:
    """The step as the model sees it, from its compiled text."""
    module = parse_module(path.read_text(encoding="utf-8"), name="qwen3")
    mesh = Mesh(axis_names=("fsdp", "tp"), axis_sizes=(8, 1))
    analysis = analyze_module(module, target="qwen3", mesh=mesh)
    found = price_module(analysis, module, measured_by(table, parse_slice("v6e:2x4")))
    time = found.time
    assert time is not None
    waits = {name: _waited_ms(found, name) for name in ("asynchronous gathers", "permutes")}
    parts = {"computing and synchronous": time.step_us / 1e3 - sum(waits.values()), **waits}
    return WholeStep(step_ms=time.step_us / 1e3, range_ms=(time.least_us / 1e3, time.most_us / 1e3), parts_ms=parts)


def _waited_ms(found: Analysis, name: str) -> float:
    kinds = {"permutes": Kind.COLLECTIVE_PERMUTE, "asynchronous gathers": Kind.ALL_GATHER}
    chosen = [one for one in found.collectives if one.kind is kinds[name] and one.asynchronous]
    return sum((one.exposed_us or 0.0) * one.executions for one in chosen) / 1e3
