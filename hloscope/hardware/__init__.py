"""Chips, slices and links: tables with their sources, and no JAX.

`chips` holds the figures of every TPU generation, and `slices` the blocks that each is offered in and the names people
write for them (`v5e:2x4`, `v5p-128`, `2*v6e:4x4`). `torus` lays out a slice's chips and links.
"""

from hloscope.hardware.chips import CHIPS, Chip, chip
from hloscope.hardware.slices import Slice, default_slice, parse_slice

__all__ = ["CHIPS", "Chip", "Slice", "chip", "default_slice", "parse_slice"]
