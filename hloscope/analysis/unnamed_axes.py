"""A mesh for text in which nothing names one: `axis_0=2 axis_1=4`, read off the groups in which devices exchange data.

The names are this file's, and nothing that a user writes down may rest on them: another compile may have other ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import prod

import numpy as np

from hloscope.analysis.groups import Groups, SubAxis, device_groups, digit_of_pairs, digits_of_groups
from hloscope.analysis.mesh_text import mesh_from_text
from hloscope.analysis.model import Mesh
from hloscope.analysis.opcodes import KIND_OF_OPCODE, base_opcode
from hloscope.analysis.vocabulary import Kind
from hloscope.hlo import HloModule, Sharding
from hloscope.hlo.call_graph import entry_of

_MOST_DEVICES = 1 << 14
"""Above this the groups of a text that may say anything are not gone through."""


def unnamed_mesh(module: HloModule) -> Mesh | None:
    """The coarsest mesh over 0, 1, 2, … of which every group of devices and every argument's sharding is a product.

    Returns:
        The mesh, its names made up; None where the text names one itself, has one device or the partitions of one of
        several slices, or is cut in ways that no one mesh has.
    """
    devices = module.device_count
    if not 1 < devices <= _MOST_DEVICES or module.mentions("_xla_megascale") or mesh_from_text(module) is not None:
        return None
    line = Mesh(axis_names=("device",), axis_sizes=(devices,))
    grouped = _digits(module, line)
    if grouped is None:
        return None
    cuts = _cuts(grouped) or _cuts(_of_permutes(module, line))
    ends = sorted({1, devices, *cuts})
    if not cuts or any(after % before for before, after in pairwise(ends)):
        return None
    sizes = tuple(after // before for before, after in pairwise(ends))[::-1]
    return Mesh(axis_names=tuple(f"axis_{number}" for number in range(len(sizes))), axis_sizes=sizes, made_up=True)


def _cuts(digits: Iterable[SubAxis]) -> set[int]:
    return {cut for digit in digits for cut in (digit.after, digit.after * digit.size)}


def _digits(module: HloModule, line: Mesh) -> list[SubAxis] | None:
    """The digits of a device's number that vary within groups and along shardings; None where some are no product."""
    found: list[SubAxis] = []
    for groups in dict.fromkeys((*_groups(module), *_sharded(module, line.device_count))):
        digits = digits_of_groups(groups, line)
        if digits is None:
            return None
        found += digits
    return found


def _groups(module: HloModule) -> Iterator[Groups]:
    for kind, found in _by_kind(module):
        if kind is not Kind.COLLECTIVE_PERMUTE and any(len(group) > 1 for group in found):
            yield found


def _of_permutes(module: HloModule, line: Mesh) -> Iterator[SubAxis]:
    """The digit that each permute of all devices changes: a ring along an axis shows how long that is."""
    for kind, pairs in _by_kind(module):
        if kind is Kind.COLLECTIVE_PERMUTE and len({pair[0] for pair in pairs}) == line.device_count:
            digit = digit_of_pairs(pairs, line)
            yield from () if digit is None else (digit,)


def _by_kind(module: HloModule) -> Iterator[tuple[Kind, Groups]]:
    for op in module.with_opcodes([opcode for opcode in module.opcodes if base_opcode(opcode) in KIND_OF_OPCODE]):
        kind = KIND_OF_OPCODE[base_opcode(op.opcode)]
        groups = device_groups(op, kind, None)
        if groups:
            yield kind, groups


def _sharded(module: HloModule, devices: int) -> Iterator[Groups]:
    """The groups of devices along each dimension in which an argument is cut or repeated."""
    entry = entry_of(module)
    for parameter in entry.parameters if entry is not None else ():
        sharding = parameter.sharding
        for part in () if sharding is None else (sharding, *sharding.elements):
            if part.kind == "tiled" and sorted(part.devices) == list(range(devices)):
                yield from _along_dimensions(part)


def _along_dimensions(sharding: Sharding) -> Iterator[Groups]:
    tiles: Sequence[int] = sharding.tile_dimensions
    if prod(tiles) != len(sharding.devices):
        return
    placed = np.array(sharding.devices).reshape(tiles)
    for dimension, size in enumerate(tiles):
        if size > 1:
            rows = np.moveaxis(placed, dimension, -1).reshape(-1, size)
            yield tuple(tuple(map(int, row)) for row in rows)
