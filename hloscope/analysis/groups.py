"""Who takes part: replica groups and source-target pairs as flattened device ids."""

from __future__ import annotations

import re
from functools import lru_cache

from hloscope.analysis.model import Mesh
from hloscope.analysis.vocabulary import Kind
from hloscope.errors import HloscopeError
from hloscope.hlo import HloInstruction, HloModule
from hloscope.hlo.replica_groups import MAX_DEVICES

Groups = tuple[tuple[int, ...], ...]

_SPANS_PARTITIONS = frozenset({Kind.ALL_GATHER, Kind.ALL_REDUCE, Kind.REDUCE_SCATTER})
_PAIR = re.compile(r"\{\s*(-?\d+)\s*,\s*(-?\d+)\s*\}")


def device_groups(op: HloInstruction, kind: Kind, mesh: Mesh | None) -> Groups | None:
    """The groups of devices that exchange data with each other.

    Args:
        op: The collective instruction; for a permute, its pairs are returned instead of groups.
        kind: What it does.
        mesh: The user's mesh, which tells the number of devices when the module does not.

    Returns:
        Groups of flattened ids (replica x num_partitions + partition); None when the text does not tell, or names mesh
        axes that do not fit together, or more devices than any machine has.

    Source: `GetCollectiveOpGroupMode` in xla/service/collective_ops_utils.cc. Ids that cannot be replica ids because
        there are fewer replicas are taken as flattened ids, which is what hand-written text means by them.
    """
    module = op.computation.module
    if module.num_partitions * module.replica_count > MAX_DEVICES:
        return None
    if kind is Kind.COLLECTIVE_PERMUTE:
        pairs = op.source_target_pairs
        return None if pairs is None else _flatten(pairs, op, kind, module)
    groups = op.replica_groups
    if groups is None or groups.text.strip() in ("{}", "{{}}"):
        return _one_group_of_all(op, kind, module, mesh)
    try:
        return _flatten(groups.groups(device_count(module, mesh) or 1), op, kind, module)
    except HloscopeError:
        return None


def device_count(module: HloModule, mesh: Mesh | None) -> int | None:
    """Devices of the program; None when neither the header nor a mesh tells."""
    if "num_partitions" in module.header or "replica_count" in module.header:
        return module.num_partitions * module.replica_count
    return None if mesh is None else mesh.device_count


def are_consistent(groups: Groups, kind: Kind, count: int | None) -> bool:
    """Whether groups name each device once, and only devices that there are; a permute's sources may repeat.

    A permute may have no pairs, in which case nothing moves; anything else without groups is not understood.

    Args:
        groups: Groups of device ids, for a permute its pairs.
        kind: What the collective does.
        count: Devices of the program; None when not known.
    """
    members = [device for group in groups for device in group]
    if members and (min(members) < 0 or (count is not None and max(members) >= count)):
        return False
    return kind is Kind.COLLECTIVE_PERMUTE or 0 < len(set(members)) == len(members)


def pairs_in_text(text: str) -> tuple[tuple[int, int], ...] | None:
    """Reads `{{0,1},{1,2}}`, and `{}` for no pairs; None when it is anything else."""
    pairs = tuple((int(source), int(target)) for source, target in _PAIR.findall(text))
    rest = _PAIR.sub("", text.strip())
    is_list = pairs or text.replace(" ", "") == "{}"
    return pairs if is_list and not rest.strip("{}, ") else None


def _one_group_of_all(op: HloInstruction, kind: Kind, module: HloModule, mesh: Mesh | None) -> Groups | None:
    count = device_count(module, mesh)
    if count is None or count > MAX_DEVICES:
        return None
    if op.channel_id is None or (kind in _SPANS_PARTITIONS and not _uses_global_ids(op)):
        own = (tuple(range(module.replica_count)),) if module.replica_count > 1 or module.num_partitions > 1 else None
        return _one_group(count) if own is None else _flatten(own, op, kind, module)
    if _uses_global_ids(op):
        return _one_group(count)
    return _flatten((tuple(range(module.num_partitions)),), op, kind, module)


@lru_cache(maxsize=16)
def _one_group(count: int) -> Groups:
    return (tuple(range(count)),)


def _flatten(groups: Groups, op: HloInstruction, kind: Kind, module: HloModule) -> Groups:
    """Turns replica or partition ids into flattened ids; every group is repeated for what it leaves open."""
    replicas, partitions = module.replica_count, module.num_partitions
    highest = max((device for group in groups for device in group), default=0)
    is_by_partition = op.channel_id is not None and kind not in _SPANS_PARTITIONS
    if _uses_global_ids(op) or replicas == partitions == 1 or (is_by_partition and replicas == 1):
        return groups
    if op.channel_id is None:
        if highest >= replicas:
            return groups
        return tuple(tuple(r * partitions + p for r in group) for group in groups for p in range(partitions))
    if kind in _SPANS_PARTITIONS:
        if highest >= replicas:
            return groups
        return tuple(tuple(r * partitions + p for r in group for p in range(partitions)) for group in groups)
    return tuple(tuple(r * partitions + p for p in group) for r in range(replicas) for group in groups)


def _uses_global_ids(op: HloInstruction) -> bool:
    return op.attributes.get("use_global_device_ids") == "true"
