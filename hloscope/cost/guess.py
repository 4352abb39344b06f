"""A guess of the TPU generation that HLO text was compiled for, from features that only some generations print.

A guess is made only if everything in the text leaves one generation; it states its evidence. Each mark was seen
in programs compiled for v2 to 7x by the libtpu of JAX 0.10 and 0.12, and the guesses were then counted on others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hloscope.analysis.matmuls import MATMUL_OPCODES
from hloscope.cost.operations import read_cycles
from hloscope.cost.price import SPARSE_CORE_MARKS, is_from_tpu
from hloscope.cost.work import Work, count_fused_work, count_work
from hloscope.errors import SliceError
from hloscope.hlo import HloInstruction, HloModule, pause_collector
from hloscope.hlo.call_graph import HloGraph
from hloscope.tpu.chips import CHIPS
from hloscope.tpu.generation import MEGACORE, Chip, Mark
from hloscope.tpu.slices import Slice, find_smallest_slice
from hloscope.units import count_array_bytes, format_share

_SCALAR_TILE = re.compile(r"\b(?:f32|s32|u32)\[\]\{:T\((\d+)\)|\bbf16\[\]\{:T\((\d+)\)")
_WIDENED = "float_type_correction_info"
"""Arithmetic in bf16 that is done in f32 instead."""

_LEAST_FLOPS = 1e9
_LEAST_INTENSITY = 600.0
"""FLOPs per byte above which no generation's memory slows a matmul down."""
_SHARES = (0.56, 1.1)
"""The share of its own generation's peak that such a matmul reaches, in the compiler's cycles: 0.57 to 0.98 in samples.

Peaks per cycle differ by factors of two from v2 to v5e, v5p and v6e, so that no share of two of them lies here; v4 and
v5p are alike, and so are v6e and 7x.
"""
_NARROW = dict.fromkeys(("s8", "u8", "s4", "u4", "s2", "u2", "f8e5m2", "f8e4m3fn", "f8e4m3b11fnuz", "f8e4m3"), 0.0)
"""Types whose pace relative to bf16's differs between generations: their work is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceGuess:
    """A slice that the user has not named.

    Attributes:
        slice: The guessed generation, in the usual block of as many devices.
        because: The evidence for the guess, in words.
    """

    slice: Slice
    because: str


@pause_collector()
def guess_slice(module: HloModule) -> SliceGuess | None:
    """The slice that a text was likely compiled for.

    Returns:
        A guess; None if the text is not for a TPU, if it fits several generations or none, or if no single slice of the
        generation has as many devices, as for text that is one slice's part of several.
    """
    if not is_from_tpu(module) or module.truncated or module.mentions("_xla_megascale"):
        return None
    left, because = _match_marks(module)
    density = _find_density(module)
    if density > 0:
        left = [chip for chip in left if _may_reach_density(chip, density, module)]
    if len(left) != 1:
        return None
    (chip,) = left
    if density > 0:
        share = format_share(density / _compute_peak_per_cycle(chip))
        because.append(f"a matmul reaches {share} of its peak in the compiler's cycles")
    try:
        found = find_smallest_slice(module.device_count, chip.name)
    except SliceError:
        return None
    return SliceGuess(slice=found, because=" and ".join(because)) if found.device_count == module.device_count else None


def _match_marks(module: HloModule) -> tuple[list[Chip], list[str]]:
    """The generations that print the text's marks, and the evidence in words."""
    left, because = list(CHIPS), []
    for mark in _marks():
        if module.mentions(mark.text) and not all(mark in chip.hlo_marks for chip in left):
            left = [chip for chip in left if mark in chip.hlo_marks]
            because.append(mark.meaning)
    wide = _has_wide_scalar_tiles(module)
    if wide is not None:
        left = [chip for chip in left if chip.has_wide_scalar_tiles is wide]
    if module.mentions(_WIDENED):
        left = [chip for chip in left if not chip.has_bf16_arithmetic]
    if any(module.mentions(word) for word in SPARSE_CORE_MARKS):
        left = [chip for chip in left if chip.has_sparse_cores]
    return left, because


def _marks() -> list[Mark]:
    """The marks of all generations, newest first; those of one generation alone come before all others."""
    printed = Counter(mark for chip in reversed(CHIPS) for mark in chip.hlo_marks)
    return sorted(printed, key=lambda mark: printed[mark] > 1)


def _has_wide_scalar_tiles(module: HloModule) -> bool | None:
    """True if scalars have the tiles of the oldest generations, twice as wide; None if the text has no scalars."""
    match = module.first_match(_SCALAR_TILE)
    if match is None:
        return None
    return int(match[1]) > 128 if match[1] else int(match[2]) > 256


def _may_reach_density(chip: Chip, density: float, module: HloModule) -> bool:
    """True if a generation may reach the density of a matmul; where two cores are one device, it must be split."""
    low, high = _SHARES
    return low <= density / _compute_peak_per_cycle(chip) <= high and (
        not chip.is_megacore or module.mentions(MEGACORE.text)
    )


def _compute_peak_per_cycle(chip: Chip) -> float:
    """A device's bf16 peak in FLOPs per cycle of the clock that the compiler counts in."""
    return chip.bf16_flops_per_s / chip.devices_per_chip / chip.clock_hz


def _find_density(module: HloModule) -> float:
    """FLOPs per cycle of the densest matmul that memory does not slow down; 0 without one."""
    graph = HloGraph(module)
    inside = count_fused_work(graph, _NARROW)
    return max(_iterate_densities(module, inside), default=0.0)


def _iterate_densities(module: HloModule, inside: dict[str, Work]) -> Iterator[float]:
    for instruction in module.with_opcodes({"fusion", *MATMUL_OPCODES}):
        cycles = read_cycles(instruction)
        if cycles:
            is_fusion = instruction.opcode == "fusion"
            work = inside.get(instruction.called[0][1]) if is_fusion else count_work(instruction, _NARROW)
            if work is not None and work.is_whole and _is_dense(instruction, work.bf16_flops):
                yield work.bf16_flops / cycles


def _is_dense(instruction: HloInstruction, flops: float) -> bool:
    shapes = (instruction.shape, *(operand.shape for operand in instruction.operands))
    sizes = [
        count_array_bytes(leaf.element_type, leaf.element_count) or 0 for shape in shapes for leaf in shape.leaves()
    ]
    return flops >= max(_LEAST_FLOPS, _LEAST_INTENSITY * sum(sizes))
