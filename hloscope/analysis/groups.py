"""The participants of a collective: groups of flattened device ids, and the mesh axes that they follow."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, product
from math import prod

import numpy as np

from hloscope.base.errors import HloscopeError
from hloscope.base.units import pluralize
from hloscope.compile.dumps import count_shardy_mesh_devices, find_shardy_meshes, make_named_mesh
from hloscope.hlo import HloInstruction, HloModule, Sharding
from hloscope.hlo.call_graph import find_entry
from hloscope.hlo.records import MAX_DEVICES, NamedMesh
from hloscope.model import Mesh
from hloscope.model.collectives import AxisShift, PermutePattern
from hloscope.model.vocabulary import KIND_OF_OPCODE, Kind

Groups = tuple[tuple[int, ...], ...]
"""Device ids by group; for a permute, its source-target pairs."""

_MOST_GROUPS = 256
"""Number of groups whose results are cached: the same few occur on very many collectives."""


@dataclass(frozen=True, slots=True, order=True)
class SubAxis:
    """A digit of one mesh axis: its coordinate is one of `before` x `size` x `after` combinations, major to minor.

    Attributes:
        axis: The axis's position in the mesh.
        before: Product of the sizes of the more major digits.
        size: Number of values of this digit.
        after: Product of the sizes of the more minor digits.
    """

    axis: int
    before: int
    size: int
    after: int

    def value(self, coordinate: int) -> int:
        """The value of this digit in a coordinate along the axis."""
        return coordinate // self.after % self.size

    def name(self, mesh: Mesh) -> str:
        """The axis's own name, or Shardy's `X:(before)size` for a part of it."""
        whole = mesh.axis_names[self.axis]
        return whole if self.before == self.after == 1 else f"{whole}:({self.before}){self.size}"


@lru_cache(maxsize=_MOST_GROUPS)
def find_axes_of_groups(groups: Groups, mesh: Mesh) -> tuple[str, ...] | None:
    """The mesh axes along which the devices of each group differ.

    Args:
        groups: Groups of partition ids, in any order.
        mesh: The user's mesh.

    Returns:
        Axis names, major first, without axes of size 1; None if the groups are not a product of (sub-)axes.
    """
    digits = find_digits_of_groups(groups, mesh)
    return None if digits is None else tuple(digit.name(mesh) for digit in digits)


def find_digits_of_groups(groups: Groups, mesh: Mesh) -> list[SubAxis] | None:
    """The (sub-)axes along which the devices of each group differ; see `find_axes_of_groups`."""
    positions = _index_mesh_positions(mesh)
    if not all(device in positions for group in groups for device in group):
        return None
    placed = [frozenset(positions[device] for device in group) for group in groups]
    if not placed or sum(len(group) for group in groups) != mesh.device_count:
        return None
    digits = _find_digits_of_group(placed[0], mesh)
    return None if digits is None or set(placed) != _form_groups_over(digits, mesh) else digits


@lru_cache(maxsize=_MOST_GROUPS)
def find_axes_of_pairs(pairs: Groups, mesh: Mesh, *, whole_axes: bool = False) -> tuple[str, ...] | None:
    """The mesh axes whose coordinate a permute changes.

    Args:
        pairs: Source and target partition ids.
        mesh: The user's mesh.
        whole_axes: Whether to name an axis as a whole even if only a part of its coordinate changes.

    Returns:
        Axis names, major first; parts of an axis only if every device is a source. None if an id is not in the mesh.
    """
    positions = _index_mesh_positions(mesh)
    if not all(device in positions for pair in pairs for device in pair):
        return None
    coordinates = _list_coordinates(mesh)
    moves = [(coordinates[positions[s]], coordinates[positions[t]]) for s, t in pairs]
    whole_axes = whole_axes or len({pair[0] for pair in pairs}) < mesh.device_count
    names = []
    for axis in range(len(mesh.axis_sizes)):
        steps = {(source[axis], target[axis]) for source, target in moves if source[axis] != target[axis]}
        if steps:
            names.append(_find_changing_digit(axis, steps, mesh, whole=whole_axes).name(mesh))
    return tuple(names)


def find_digit_of_pairs(pairs: Groups, line: Mesh) -> SubAxis | None:
    """The digit of a one-axis mesh whose value a permute changes; None for a permute that moves nothing."""
    steps = {(source, target) for source, target in pairs if source != target}
    inside = all(0 <= device < line.device_count for step in steps for device in step)
    return _find_changing_digit(0, steps, line, whole=False) if steps and inside else None


@lru_cache(maxsize=8)
def _index_mesh_positions(mesh: Mesh) -> Mapping[int, int]:
    """The row-major position in the mesh of each partition id."""
    return {device: position for position, device in enumerate(mesh.ids)}


@lru_cache(maxsize=8)
def _list_coordinates(mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """The coordinate along each axis, for each position in the mesh in row-major order."""
    return tuple(product(*map(range, mesh.axis_sizes)))


def _find_digits_of_group(group: frozenset[int], mesh: Mesh) -> list[SubAxis] | None:
    """The digits that vary inside one group, major first; None if the group is not their product."""
    coordinates = [_list_coordinates(mesh)[position] for position in group]
    digits: list[SubAxis] = []
    for axis, size in enumerate(mesh.axis_sizes):
        values = sorted({coordinate[axis] for coordinate in coordinates})
        found = _split_into_digits(axis, values, size)
        if found is None:
            return None
        digits.extend(found)
    return digits


def _split_into_digits(axis: int, values: list[int], size: int) -> list[SubAxis] | None:
    """Splits sorted coordinates into nested arithmetic progressions, major first."""
    offsets = [value - values[0] for value in values]
    digits: list[SubAxis] = []
    covered = 1
    while covered < len(offsets):
        stride = offsets[covered]
        count = 1
        while count * covered < len(offsets) and offsets[count * covered] == count * stride:
            count += 1
        block = offsets[:covered]
        if offsets[: count * covered] != [step * stride + low for step in range(count) for low in block]:
            return None
        extent = digits[0].after * digits[0].size if digits else 1
        if size % (stride * count) or stride % extent:
            return None
        digits.insert(0, SubAxis(axis, size // (stride * count), count, stride))
        covered *= count
    return digits if covered == len(offsets) else None


def _form_groups_over(digits: list[SubAxis], mesh: Mesh) -> set[frozenset[int]]:
    """All groups of mesh positions that differ only in these digits."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, coordinates in enumerate(_list_coordinates(mesh)):
        fixed = list(coordinates)
        for digit in digits:
            fixed[digit.axis] -= digit.value(fixed[digit.axis]) * digit.after
        groups.setdefault(tuple(fixed), []).append(position)
    return {frozenset(group) for group in groups.values()}


def _find_changing_digit(axis: int, steps: set[tuple[int, int]], mesh: Mesh, *, whole: bool) -> SubAxis:
    """The smallest contiguous digit of an axis that explains all its coordinate changes."""
    size = mesh.axis_sizes[axis]
    if whole:
        return SubAxis(axis, 1, size, 1)
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    after = max(d for d in divisors if all(s % d == t % d for s, t in steps))
    block = min(d for d in divisors if d % after == 0 and all(s // d == t // d for s, t in steps))
    return SubAxis(axis, size // block, block // after, after)


_SPANS_PARTITIONS = frozenset({Kind.ALL_GATHER, Kind.ALL_REDUCE, Kind.REDUCE_SCATTER})
_PAIR = re.compile(r"\{\s*(-?\d+)\s*,\s*(-?\d+)\s*\}")


def find_device_groups(op: HloInstruction, kind: Kind, mesh: Mesh | None) -> Groups | None:
    """The groups of devices that exchange data with each other.

    Args:
        op: The collective instruction; for a permute, its pairs are returned instead of groups.
        kind: The kind of the collective.
        mesh: The user's mesh, which determines the number of devices if the module does not.

    Returns:
        Groups of flattened ids (replica x num_partitions + partition); None if the text does not state them, names mesh
        axes that contradict each other, or names more devices than any machine has.

    Source: `GetCollectiveOpGroupMode` in xla/service/collective_ops_utils.cc. Ids too large for replica ids are read as
        flattened ids, which is what hand-written text means by them.
    """
    module = op.computation.module
    if module.device_count > MAX_DEVICES:
        return None
    if kind is Kind.COLLECTIVE_PERMUTE:
        pairs = op.source_target_pairs
        return None if pairs is None else _flatten_ids(pairs, op, kind, module)
    groups = op.replica_groups
    if groups is None or groups.text.strip() in ("{}", "{{}}"):
        return _find_group_of_all(op, kind, module, mesh)
    try:
        return _flatten_ids(groups.groups(count_devices(module, mesh) or 1), op, kind, module)
    except HloscopeError:
        return None


def count_devices(module: HloModule, mesh: Mesh | None) -> int | None:
    """Number of devices of the program; None if neither the header nor a mesh states it."""
    if "num_partitions" in module.header or "replica_count" in module.header:
        return module.device_count
    return None if mesh is None else mesh.device_count


@lru_cache(maxsize=_MOST_GROUPS)
def are_consistent(groups: Groups, kind: Kind, count: int | None) -> bool:
    """Returns whether groups name each device once, and only existing ones; a permute's sources may repeat.

    A permute may have no pairs, in which case nothing moves; any other kind without groups is not understood.

    Args:
        groups: Groups of device ids, for a permute its pairs.
        kind: The kind of the collective.
        count: Number of devices of the program; None if unknown.
    """
    members = [device for group in groups for device in group]
    if members and (min(members) < 0 or (count is not None and max(members) >= count)):
        return False
    return kind is Kind.COLLECTIVE_PERMUTE or 0 < len(set(members)) == len(members)


def parse_pairs(text: str) -> tuple[tuple[int, int], ...] | None:
    """Reads `{{0,1},{1,2}}`, and `{}` for no pairs; None for any other text."""
    pairs = tuple((int(source), int(target)) for source, target in _PAIR.findall(text))
    rest = _PAIR.sub("", text.strip())
    is_list = pairs or text.replace(" ", "") == "{}"
    return pairs if is_list and not rest.strip("{}, ") else None


def _find_group_of_all(op: HloInstruction, kind: Kind, module: HloModule, mesh: Mesh | None) -> Groups | None:
    count = count_devices(module, mesh)
    if count is None or count > MAX_DEVICES:
        return None
    if op.channel_id is None or (kind in _SPANS_PARTITIONS and not _uses_global_ids(op)):
        own = (tuple(range(module.replica_count)),) if module.device_count > 1 else None
        return _make_one_group(count) if own is None else _flatten_ids(own, op, kind, module)
    if _uses_global_ids(op):
        return _make_one_group(count)
    return _flatten_ids((tuple(range(module.num_partitions)),), op, kind, module)


@lru_cache(maxsize=16)
def _make_one_group(count: int) -> Groups:
    return (tuple(range(count)),)


def _flatten_ids(groups: Groups, op: HloInstruction, kind: Kind, module: HloModule) -> Groups:
    """Turns replica or partition ids into flattened ids; groups are repeated for the ids that they leave open."""
    replicas, partitions = module.replica_count, module.num_partitions
    highest = max((device for group in groups for device in group), default=0)
    is_by_partition = op.channel_id is not None and kind not in _SPANS_PARTITIONS
    if _uses_global_ids(op) or replicas == partitions == 1 or (is_by_partition and replicas == 1):
        return groups
    if is_by_partition:
        return tuple(tuple(r * partitions + p for p in group) for r in range(replicas) for group in groups)
    if highest >= replicas:
        return groups
    if op.channel_id is None:
        return tuple(tuple(r * partitions + p for r in group) for group in groups for p in range(partitions))
    return tuple(tuple(r * partitions + p for r in group for p in range(partitions)) for group in groups)


def _uses_global_ids(op: HloInstruction) -> bool:
    return op.attributes.get("use_global_device_ids") == "true"


_Steps = Sequence[tuple[int, int]]
"""The source and target of each moving device, as coordinates along one axis or one product of axes."""


@lru_cache(maxsize=_MOST_GROUPS)
def find_permute_pattern(pairs: Groups, mesh: Mesh) -> PermutePattern | None:
    """The one shift that a permute makes everywhere.

    Args:
        pairs: Source and target partition ids; those that keep their data say nothing about a shift.
        mesh: The user's mesh.

    Returns:
        The shift along each single axis; otherwise along the product of all crossed axes, for a ring through several
        axes. None if nothing moves, if a device sends or receives twice, or if the permute is not a uniform shift.
    """
    positions = _index_mesh_positions(mesh)
    moving = sorted({pair for pair in pairs if pair[0] != pair[-1]})
    sources, targets = {pair[0] for pair in moving}, {pair[-1] for pair in moving}
    if not moving or not (len(sources) == len(targets) == len(moving)) or not sources | targets <= positions.keys():
        return None
    coordinates = _list_coordinates(mesh)
    ends = [tuple(coordinates[positions[device]] for device in pair) for pair in moving]
    axes = [axis for axis in range(len(mesh.axis_sizes)) if any(s[axis] != t[axis] for s, t in ends)]
    shifts = [_find_shift_along_axis([(s[axis], t[axis]) for s, t in ends], axis, mesh) for axis in axes]
    known = [shift for shift in shifts if shift is not None]
    if len(known) < len(shifts):
        steps = [(_find_position_through(s, axes, mesh), _find_position_through(t, axes, mesh)) for s, t in ends]
        whole = [SubAxis(axis, 1, mesh.axis_sizes[axis], 1) for axis in axes]
        through = _find_common_shift(steps, whole, mesh)
        known = [] if through is None else [through]
    return PermutePattern(shifts=tuple(known), ring=sources == targets) if known else None


def _find_shift_along_axis(steps: _Steps, axis: int, mesh: Mesh) -> AxisShift | None:
    """The shift along a whole axis, or along the part of it that changes."""
    whole = _find_common_shift(steps, [SubAxis(axis, 1, mesh.axis_sizes[axis], 1)], mesh)
    if whole is not None:
        return whole
    digit = _find_changing_digit(axis, set(steps), mesh, whole=False)
    return _find_common_shift([(digit.value(source), digit.value(target)) for source, target in steps], [digit], mesh)


def _find_position_through(coordinates: Sequence[int], axes: Sequence[int], mesh: Mesh) -> int:
    """The position of coordinates, counted through several axes, major first."""
    position = 0
    for axis in axes:
        position = position * mesh.axis_sizes[axis] + coordinates[axis]
    return position


def _find_common_shift(steps: _Steps, digits: Sequence[SubAxis], mesh: Mesh) -> AxisShift | None:
    """The distance shared by all steps, on a line or otherwise on a ring; None if there is none."""
    size = prod(digit.size for digit in digits)
    straight = {target - source for source, target in steps}
    around = {distance % size for distance in straight}
    if len(around) > 1:
        return None
    [distance] = straight if len(straight) == 1 else around
    if len(straight) > 1 and 2 * distance > size:
        distance -= size
    return AxisShift(
        axes=tuple(digit.name(mesh) for digit in digits),
        size=size,
        distance=distance,
        ring=Counter(source for source, _ in steps) == Counter(target for _, target in steps),
    )


# ---- the placement of a program's devices if it spans several slices

DEVICES_PER_SLICE_ID = 100_000
"""The factor in ids of multi-slice programs: an id is the 1-based slice number times this, plus the device number."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The slice and the device of each partition of the whole program.

    Attributes:
        slice_of_partition: The index of each partition's slice.
        device_ids: The physical device of each partition; None if unknown.
    """

    slice_of_partition: tuple[int, ...]
    device_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.device_ids is not None and len(self.device_ids) != len(self.slice_of_partition):
            raise ValueError(
                f"a placement needs one device for each partition: {pluralize(len(self.device_ids), 'device')}, "
                f"{pluralize(len(self.slice_of_partition), 'partition')}"
            )

    @classmethod
    def in_blocks(cls, devices: int, devices_per_slice: int) -> Placement:
        """The placement in which slice s has the partitions starting at s x `devices_per_slice`."""
        return cls(tuple(partition // devices_per_slice for partition in range(devices)))

    def partitions_by_slice(self) -> tuple[tuple[int, ...], ...]:
        """The partitions of each slice.

        The text of one slice's program numbers them in this order, from 0.

        Source: programs compiled with libtpu whose DCN axis is the minor one, or a part of both axes.
        """
        partitions: dict[int, list[int]] = defaultdict(list)
        for partition, slice_index in enumerate(self.slice_of_partition):
            partitions[slice_index].append(partition)
        return tuple(tuple(partitions[slice_index]) for slice_index in sorted(partitions))

    def over_all_slices(self, groups: Groups) -> Groups | None:
        """Groups of one slice's program, repeated for each slice, as partition ids of the whole program.

        Returns:
            None if the slices differ in size, or an id is not in a slice.
        """
        slices = self.partitions_by_slice()
        sizes = {len(partitions) for partitions in slices}
        if len(sizes) != 1 or any(device not in range(min(sizes)) for group in groups for device in group):
            return None
        return tuple(tuple(partitions[device] for device in group) for partitions in slices for group in groups)

    def partitions_of(self, devices: Groups) -> Groups | None:
        """Partition ids for groups of physical device ids; None if one of them is unknown."""
        partition_of = {device: partition for partition, device in enumerate(self.device_ids or ())}
        if any(device not in partition_of for group in devices for device in group):
            return None
        return tuple(tuple(partition_of[device] for device in group) for group in devices)

    def slice_of(self, partition: int) -> int | None:
        """The slice of a partition; None if there is no such partition."""
        return self.slice_of_partition[partition] if partition in range(len(self.slice_of_partition)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """The meaning of device ids in a text.

    Attributes:
        placement: The placement of partitions; None if the program runs on one slice or the placement is unknown.
        one_slice: Whether the text is the program of one slice of several, whose ids count the devices of that slice.
        guessed: Whether the partitions of such a slice are unknown, so that consecutive ones are assumed.
    """

    placement: Placement | None = None
    one_slice: bool = False
    guessed: bool = False

    def everywhere(self, groups: Groups) -> Groups | None:
        """Groups of the text as partition ids of the whole program; None if they do not fit the placement."""
        return self.placement.over_all_slices(groups) if self.placement is not None and self.one_slice else groups


def find_numbering(
    devices: int, mesh: Mesh | None, *, devices_per_slice: int | None = None, placement: Placement | None = None
) -> Numbering:
    """Distinguishes the text of one slice's program from text that counts all devices.

    Args:
        devices: Number of devices according to the text.
        mesh: The user's mesh, over all slices.
        devices_per_slice: Devices of one slice if there are several.
        placement: The placement of partitions; by default slice after slice, in partition order.
    """
    if placement is not None:
        sizes = {len(partitions) for partitions in placement.partitions_by_slice()}
        if sizes == {devices}:
            return Numbering(placement=placement, one_slice=len(placement.slice_of_partition) > devices)
        if len(placement.slice_of_partition) == devices or devices == 1:
            return Numbering(placement=placement)
    counted = devices > 1 or devices_per_slice == 1
    if mesh is not None and counted and devices != mesh.device_count:
        return Numbering(placement=Placement.in_blocks(mesh.device_count, devices), one_slice=True, guessed=True)
    if devices_per_slice is not None and devices > devices_per_slice:
        return Numbering(placement=Placement.in_blocks(devices, devices_per_slice))
    return Numbering()


# ---- the mesh that the HLO text itself names, used if the user passes none

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
