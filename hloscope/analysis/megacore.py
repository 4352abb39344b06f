"""Fusions with separate operations for each core, on chips whose two cores are one device (megacore: v4, v5p).

All other operations are split over both cores, and the compiler's cycles for them are those of such a half. In a
megacore fusion each core has its own operations, one after the other, and the fusion takes as long as the longer of the
two: on v5p a matmul of 281 us alongside reduce-scatters and an all-reduce of 423 us took 424 us.

Source: a profile of a training step on v5p, and the text that libtpu prints for v4 and v5p with
    `xla_tpu_enable_megacore_fusion`.
"""

from __future__ import annotations

import re

from hloscope.hlo import HloInstruction
from hloscope.hlo.call_graph import HloGraph

MEGACORE_MARK = "use_single_core"
"""A word in every text that contains such fusions."""

_CORE = re.compile(r'"megacore_config"\s*:\s*\{[^{}]*"use_single_core"\s*:\s*true[^{}]*')
_NUMBER = re.compile(r'"core_id"\s*:\s*"?(\d+)')

CoreBranches = tuple[tuple[HloInstruction, ...], ...]
"""The instructions that each core runs, in order."""


def find_core_branches(graph: HloGraph, instruction: HloInstruction) -> CoreBranches:
    """The instructions of a fusion that each core runs; empty if both cores run all of it together."""
    if instruction.opcode != "fusion":
        return ()
    found: dict[int, list[HloInstruction]] = {}
    for inner in graph.module.computation(instruction.called[0][1]).instructions:
        core = read_core_id(inner)
        if core is not None:
            found.setdefault(core, []).append(inner)
    return tuple(map(tuple, found.values()))


def read_core_id(instruction: HloInstruction) -> int | None:
    """The number of the core that runs an instruction alone; None for all others."""
    said = _CORE.search(instruction.attributes.get("backend_config", ""))
    number = None if said is None else _NUMBER.search(said[0])
    return None if said is None else int(number[1]) if number else 0
