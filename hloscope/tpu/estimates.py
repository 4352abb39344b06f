"""Estimates of the figures that libtpu prints only with its machine code, fitted to those that it printed.

`python tests/benchmarks/estimated_times.py fit` writes `estimates.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


class AlgorithmFacts(NamedTuple):
    """The facts that decide the algorithm of a collective.

    Attributes:
        kind: Its kind.
        axes: The axes of the torus along which the devices of a group lie.
        devices: The devices of a group.
        payload_bytes: Bytes of the larger side on one device.
    """

    kind: str
    axes: int
    devices: int
    payload_bytes: int


class KnownAlgorithm(NamedTuple):
    """A collective of which the compiler has printed the algorithm.

    Attributes:
        facts: The facts that decided it.
        algorithm: The emitter and the strategy.
        colors: The number of parts of the data with a path of their own.
    """

    facts: AlgorithmFacts
    algorithm: str
    colors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """The estimates of a generation. Errors are those of programs that were left out of the fit.

    Attributes:
        libtpu: The version whose figures they were fitted to.
        programs: The number of programs.
        instructions: The number of their instructions with cycles.
        error: How far nine of ten steps are off at the most, as a share of their time, or the worst of whole training
            steps if that is more.
        median: How far half of the steps are off at the most.
        worst: How far the worst step is off.
        cycles: The weights of the cycles of instructions.
        algorithms: Collectives of which the algorithm is known.
    """

    libtpu: str
    programs: int
    instructions: int
    error: float
    median: float
    worst: float
    cycles: Mapping[str, float]
    algorithms: tuple[KnownAlgorithm, ...]


@cache
def _read_estimates() -> Mapping[str, Estimates]:
    text = Path(__file__).with_name("estimates.toml").read_text(encoding="utf-8")
    return {
        name: Estimates(**{**found, "algorithms": tuple(map(_make_known, found["algorithms"]))})
        for name, found in tomllib.loads(text).items()
    }


def _make_known(row: Sequence[Any]) -> KnownAlgorithm:
    return KnownAlgorithm(AlgorithmFacts(*row[:4]), *row[4:])


def find_estimates(generation: str) -> Estimates | None:
    """The estimates of a generation, by its name; None if it has none."""
    return _read_estimates().get(generation)
