"""Bytes on one device, from the figures of the compiler."""

from __future__ import annotations

from hloscope.analysis.model import Memory
from hloscope.program.capture import Capture
from hloscope.units import known_sum


def memory_of(program: Capture) -> Memory:
    """What a program takes of a device's memory, as far as the compiler says."""
    figures = program.compiled.memory_bytes
    names = ("argument", "output", "temp", "alias", "generated_code")
    parts: dict[str, int | None] = {f"{name}_bytes": figures.get(f"{name}_size_in_bytes") for name in names}
    chip = None if program.slice is None else program.slice.chip
    signed = (-size if size and name == "alias_bytes" else size for name, size in parts.items())
    return Memory(
        **parts,
        peak_bytes=known_sum(signed),
        hbm_bytes=chip.hbm_bytes_per_device if chip else None,
        fits=None if chip is None or program.is_text else program.compiled.too_large is None,
    )
