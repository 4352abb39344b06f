"""TPU generations, slices and links, with their sources and without JAX.

Each generation has a file: all its figures, names, slice shapes, measured constants and peculiarities. `generation`
defines the record that it fills in, and `chips` lists the generations. `slices` reads the names people write for slices
(`v5e:2x4`, `v5p-128`, `2*v6e:4x4`), `devices` numbers and orders their devices, and `torus` lays out the links between
chips. `overrides` replaces figures that the user knows better.
"""

from hloscope.tpu.chips import CHIPS, find_chip
from hloscope.tpu.generation import Chip
from hloscope.tpu.slices import Slice, find_smallest_slice, parse_slice

__all__ = ["CHIPS", "Chip", "Slice", "find_chip", "find_smallest_slice", "parse_slice"]
