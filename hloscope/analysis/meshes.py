"""The mesh that the HLO text itself names, used if the user passes none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from math import prod

import numpy as np

from hloscope.analysis.groups import Groups, SubAxis, find_device_groups, find_digit_of_pairs, find_digits_of_groups
from hloscope.compile.dumps import count_shardy_mesh_devices, find_shardy_meshes, make_named_mesh
from hloscope.hlo import HloModule, Sharding
from hloscope.hlo.call_graph import find_entry
from hloscope.hlo.sharding import NamedMesh
from hloscope.model import Mesh
from hloscope.model.vocabulary import KIND_OF_OPCODE, Kind

_INVENTED = re.compile(r"axis_\d+|_axis_\d+|mesh_axis_\d+")


def read_mesh(module: HloModule) -> Mesh | None:
    """Reads the user's mesh from a module.

    Takes Shardy's meshes in the header; else the first mesh among the arguments' shardings and the replica groups
    whose names are the user's, not the `axis_0`, `axis_1` that the partitioner invents.

    Returns:
        The mesh, without axis types; None if the text names none that fits the number of devices. The text of one
        slice's program names the mesh of all slices, so a multiple of its own devices fits.
    """
    return next(read_meshes(module), None)


def read_meshes(module: HloModule) -> Iterator[Mesh]:
    """All of the user's meshes that a module names, in the order of `read_mesh`; one may occur twice."""
    printed = dict.fromkeys(_find_printed_meshes(module))
    named = (mesh for mesh in printed if not any(_INVENTED.fullmatch(name) for name, _ in mesh.axes))
    made = (mesh for each in named for mesh in make_named_mesh(each.axes, each.device_ids))
    for mesh in chain(find_shardy_meshes(module.header.get("frontend_attributes", "")), made):
        if mesh.device_count > 1 and mesh.device_count % module.device_count == 0:
            yield mesh


def count_shardy_devices(module: HloModule) -> int | None:
    """Number of devices of the largest Shardy mesh in the header; None if there is none, or one is not understood."""
    text = module.header.get("frontend_attributes", "")
    counts = count_shardy_mesh_devices(text)
    return max(counts) if counts and len(counts) == text.count("#sdy.mesh<") else None


def _find_printed_meshes(module: HloModule) -> Iterator[NamedMesh]:
    entry = find_entry(module)
    for parameter in entry.parameters if entry is not None else ():
        sharding = parameter.sharding
        for part in () if sharding is None else (sharding, *sharding.elements):
            if part.mesh is not None:
                yield part.mesh
    for instruction in module.with_opcodes(KIND_OF_OPCODE):
        groups = instruction.replica_groups
        if groups is not None and groups.mesh is not None:
            yield groups.mesh


# ---- A mesh for text that names none: `axis_0=2 axis_1=4`, inferred from the groups in which devices exchange data
#
# The names are made up here, so nothing that a user writes down may rely on them: another compile may have others.

_MOST_DEVICES = 1 << 14
"""Maximum number of devices: the groups of larger programs are not examined."""


def infer_mesh(module: HloModule) -> Mesh | None:
    """The coarsest mesh over 0, 1, 2, … in which all groups of devices and all shardings of arguments are products.

    Returns:
        The mesh, with made-up names; None if the text names a mesh itself, has one device or the partitions of one of
        several slices, or is cut in ways that no single mesh explains.
    """
    devices = module.device_count
    if not 1 < devices <= _MOST_DEVICES or module.mentions("_xla_megascale") or read_mesh(module) is not None:
        return None
    line = Mesh(axis_names=("device",), axis_sizes=(devices,))
    grouped = _find_line_digits(module, line)
    if grouped is None:
        return None
    cuts = _find_cuts(grouped) or _find_cuts(_find_permute_digits(module, line))
    ends = sorted({1, devices, *cuts})
    if not cuts or any(after % before for before, after in pairwise(ends)):
        return None
    sizes = tuple(after // before for before, after in pairwise(ends))[::-1]
    return Mesh(axis_names=tuple(f"axis_{number}" for number in range(len(sizes))), axis_sizes=sizes, made_up=True)


def _find_cuts(digits: Iterable[SubAxis]) -> set[int]:
    return {cut for digit in digits for cut in (digit.after, digit.after * digit.size)}


def _find_line_digits(module: HloModule, line: Mesh) -> list[SubAxis] | None:
    """The digits of device numbers that vary within groups and along shardings; None if some are not products."""
    found: list[SubAxis] = []
    for groups in dict.fromkeys((*_find_groups(module), *_find_sharded_groups(module, line.device_count))):
        digits = find_digits_of_groups(groups, line)
        if digits is None:
            return None
        found += digits
    return found


def _find_groups(module: HloModule) -> Iterator[Groups]:
    for kind, found in _find_groups_by_kind(module):
        if kind is not Kind.COLLECTIVE_PERMUTE and any(len(group) > 1 for group in found):
            yield found


def _find_permute_digits(module: HloModule, line: Mesh) -> Iterator[SubAxis]:
    """The digit that each permute of all devices changes: a ring along an axis shows the axis's length."""
    for kind, pairs in _find_groups_by_kind(module):
        if kind is Kind.COLLECTIVE_PERMUTE and len({pair[0] for pair in pairs}) == line.device_count:
            digit = find_digit_of_pairs(pairs, line)
            yield from () if digit is None else (digit,)


def _find_groups_by_kind(module: HloModule) -> Iterator[tuple[Kind, Groups]]:
    for op in module.with_opcodes(KIND_OF_OPCODE):
        kind = KIND_OF_OPCODE[op.opcode]
        groups = find_device_groups(op, kind, None)
        if groups:
            yield kind, groups


def _find_sharded_groups(module: HloModule, devices: int) -> Iterator[Groups]:
    """The groups of devices along each dimension in which an argument is cut or replicated."""
    entry = find_entry(module)
    for parameter in entry.parameters if entry is not None else ():
        sharding = parameter.sharding
        for part in () if sharding is None else (sharding, *sharding.elements):
            if part.kind == "tiled" and sorted(part.devices) == list(range(devices)):
                yield from _find_groups_along_dimensions(part)


def _find_groups_along_dimensions(sharding: Sharding) -> Iterator[Groups]:
    tiles: Sequence[int] = sharding.tile_dimensions
    if prod(tiles) != len(sharding.devices):
        return
    placed = np.array(sharding.devices).reshape(tiles)
    for dimension, size in enumerate(tiles):
        if size > 1:
            rows = np.moveaxis(placed, dimension, -1).reshape(-1, size)
            yield tuple(tuple(map(int, row)) for row in rows)
