"""`send` and `recv`: between slices over the data-center network, between devices, or with the host."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hloscope.analysis.groups import Groups, are_consistent, count_devices, parse_pairs
from hloscope.analysis.placement import DEVICES_PER_SLICE_ID, Placement
from hloscope.analysis.transfers import Transfer, TransferSite, make_opaque
from hloscope.analysis.vocabulary import Kind, Link
from hloscope.analysis.volume import flatten_arrays, shapes_fit
from hloscope.hlo import HloInstruction, Shape
from hloscope.hlo.replica_groups import MAX_DEVICES

_HANDLER = "_xla_host_transfer_handler_name"
_RENDEZVOUS = "_xla_host_transfer_rendezvous"
_PAIRS = "_xla_send_recv_source_target_pairs"
_TYPE = "_xla_megascale_transfer_type"
_TARGET = "_xla_megascale_target"
_HOST_HANDLERS = frozenset({"", "pjrt_rendezvous", "tf_rendezvous", "xla_rendezvous"})

_KIND_OF_TYPE = {
    **{kind.name: kind for kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL)},
    "ONE_TO_ONE": Kind.COLLECTIVE_PERMUTE,
}
_LIST = r"\{\s*(\d+(?::\d+)?(?:\s*,\s*\d+(?::\d+)?)*)\s*\}"
_SLICES_BY_DEVICES = re.compile(f"{_LIST}x{_LIST}")
_DEVICE_PAIR = re.compile(r"\{?\s*(\d+)\s*->\s*(\d+)\s*\}?")
_DEVICE_GROUP = re.compile(r"\{\s*(\d+(?:\s*,\s*\d+)*)\s*\}")


def read_send_or_recv(place: TransferSite) -> Transfer | None:
    """Reads a `send` or `recv`; a pair of both is one transfer, named by its `send`.

    Transfers with the host do not connect devices. They are recognised by `is_host_transfer` and the handler's name
    together, because `_xla_host_transfer_*` attributes also leak onto instructions nearby.
    """
    op = place.op
    handler = op.frontend_attributes.get(_HANDLER, "")
    if _TYPE in op.frontend_attributes or _TARGET in op.frontend_attributes or "megascale" in handler:
        return _read_between_slices(place)
    if op.attributes.get("is_host_transfer") == "true":
        if handler in _HOST_HANDLERS:
            return None
        return make_opaque(place, f"the handler {handler} of %{op.name} is not known")
    return _read_between_devices(place)


def _read_between_slices(place: TransferSite) -> Transfer | None:
    attributes = place.op.frontend_attributes
    partners = _find_partner_halves(place, _RENDEZVOUS)
    if place.op.opcode == "recv" and partners:
        return None
    transfer_type = attributes.get(_TYPE, "")
    kind = _KIND_OF_TYPE.get(transfer_type)
    if kind is None:
        return make_opaque(place, f"the transfer type '{transfer_type}' of %{place.op.name} is not known", Link.DCN)
    partitions = place.op.computation.module.num_partitions
    target = parse_target(attributes.get(_TARGET, ""), kind, partitions, place.layout.placement)
    if target is None:
        return make_opaque(place, f"the megascale target of %{place.op.name} cannot be read", Link.DCN)
    if not are_consistent(target.groups, kind, None):
        return make_opaque(place, f"the megascale target of %{place.op.name} is inconsistent", Link.DCN)
    sent, received = _find_shapes(place.op, partners)
    if not shapes_fit(kind, sent, received, target.groups):
        return make_opaque(place, f"the shapes of %{place.op.name} do not fit the size of its groups", Link.DCN)
    return Transfer(
        kind=kind,
        start=place.op,
        op=place.op,
        operands=sent,
        results=received,
        groups=target.groups,
        received=partners[0] if len(partners) == 1 else None,
        asynchronous=True,
        link=Link.DCN,
        global_ids=True,
        device_ids=target.device_ids,
    )


def _read_between_devices(place: TransferSite) -> Transfer | None:
    """Point-to-point transfers of a pipeline; without their pairs, the senders are unknown."""
    partners = [partner for partner in _find_partner_halves(place, _PAIRS) if partner.channel_id == place.op.channel_id]
    if place.op.opcode == "recv" and partners:
        return None
    pairs = parse_pairs(place.op.frontend_attributes.get(_PAIRS, ""))
    if pairs is None:
        return make_opaque(place, f"%{place.op.name} does not say between which devices it moves data")
    if not are_consistent(pairs, Kind.COLLECTIVE_PERMUTE, count_devices(place.op.computation.module, place.mesh)):
        return make_opaque(place, f"the source-target pairs of %{place.op.name} are inconsistent")
    sent, received = _find_shapes(place.op, partners)
    return Transfer(
        kind=Kind.COLLECTIVE_PERMUTE,
        start=place.op,
        op=place.op,
        operands=sent,
        results=received,
        groups=pairs,
        asynchronous=True,
    )


def _find_partner_halves(place: TransferSite, attribute: str) -> list[HloInstruction]:
    """The other halves of a pair: same computation, other direction, same value of `attribute`."""
    opcode = "send" if place.op.opcode == "recv" else "recv"
    own = place.op.frontend_attributes.get(attribute)
    return [
        sibling
        for sibling in place.siblings
        if sibling.opcode == opcode and own is not None and sibling.frontend_attributes.get(attribute) == own
    ]


def _find_shapes(op: HloInstruction, partners: list[HloInstruction]) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """The sent and the received shapes: the first element of each result, before the context and the token."""
    own = flatten_arrays(op.shape.elements[:1])
    other = flatten_arrays(partners[0].shape.elements[:1]) if partners else own
    return (own, other) if op.opcode == "send" else (other, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGroups:
    """The participants of a transfer between slices.

    Attributes:
        groups: Groups of ids over all slices, or a permute's pairs.
        device_ids: Whether they are physical device ids, because the partitions are unknown; otherwise partition ids.
    """

    groups: Groups
    device_ids: bool = False


def parse_target(text: str, kind: Kind, num_partitions: int, placement: Placement | None = None) -> TargetGroups | None:
    """Reads `_xla_megascale_target`.

    Args:
        text: `{1,2}x{0:7}` (slices x devices of each), `{{100000->200000},…}` (pairs) or `{{100000,200000},…}`
            (groups). All of them are physical devices, not partitions: the first form is printed only if all devices of
            a group have one number.
        kind: The kind of the transfer; pairs belong to a permute.
        num_partitions: Number of partitions of one slice's program.
        placement: The placement of the partitions.

    Returns:
        The groups; None if the text has another form. If the placement does not know devices, all slices are assumed to
        be laid out alike; then the partitions of groups whose devices have one number are known, if there is such a
        group for every number. The ids of all other groups are left unchanged.
    """
    product = _SLICES_BY_DEVICES.fullmatch(text.strip())
    if product:
        slices, numbers = (_parse_id_ranges(part) for part in product.groups())
        if not 0 < len(slices) * len(numbers) <= MAX_DEVICES:
            return None
        return _expand_product(slices, numbers, num_partitions, placement)
    pattern = _DEVICE_PAIR if kind is Kind.COLLECTIVE_PERMUTE else _DEVICE_GROUP
    inner = text.strip().removeprefix("{").removesuffix("}")
    if pattern.sub("", inner).strip(", "):
        return None
    found = tuple(tuple(map(int, re.findall(r"\d+", match.group()))) for match in pattern.finditer(inner))
    if not found:
        return None
    placed = None if placement is None else placement.partitions_of(found)
    if placed is None and (placement is None or placement.device_ids is None):
        placed = _map_to_like_slices(found, num_partitions, placement)
    return TargetGroups(groups=found if placed is None else placed, device_ids=placed is None)


def _map_to_like_slices(groups: Groups, num_partitions: int, placement: Placement | None) -> Groups | None:
    """The partitions of groups of devices with one number, for every number; None for all other groups.

    The number of each partition does not matter then: the groups are the same in any order.
    """
    numbers: dict[tuple[int, ...], set[int]] = {}
    for group in groups:
        slices, inside = zip(*(divmod(device, DEVICES_PER_SLICE_ID) for device in group), strict=True)
        if len(set(inside)) > 1 or inside[0] in numbers.setdefault(slices, set()):
            return None
        numbers[slices].add(inside[0])
    if any(found != set(range(num_partitions)) for found in numbers.values()):
        return None
    members = [] if placement is None else placement.partitions_by_slice()
    if placement is None:
        last = max(number for slices in numbers for number in slices)
        members = [
            tuple(range(first, first + num_partitions)) for first in range(0, last * num_partitions, num_partitions)
        ]
    if any(not 0 < number <= len(members) for slices in numbers for number in slices):
        return None
    return tuple(
        tuple(members[number - 1][inside] for number in slices)
        for slices in numbers
        for inside in range(num_partitions)
    )


def _expand_product(
    slices: list[int], devices: list[int], num_partitions: int, placement: Placement | None
) -> TargetGroups | None:
    first = min(1, *slices)
    if placement is not None and placement.device_ids is not None:
        found = tuple(tuple((s - first + 1) * DEVICES_PER_SLICE_ID + d for s in slices) for d in devices)
        placed = placement.partitions_of(found)
        return TargetGroups(groups=found if placed is None else placed, device_ids=placed is None)
    members = () if placement is None else placement.partitions_by_slice()
    if all(s - first < len(members) and d < len(members[s - first]) for s in slices for d in devices):
        return TargetGroups(groups=tuple(tuple(members[s - first][d] for s in slices) for d in devices))
    return TargetGroups(groups=tuple(tuple((s - first) * num_partitions + d for s in slices) for d in devices))


def _parse_id_ranges(text: str) -> list[int]:
    """Reads `0:7` (both ends included), `1,2` or a mixture; empty if that is more than any machine has."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition(":")
        span = range(int(first), int(last or first) + 1)
        if len(span) + len(numbers) > MAX_DEVICES:
            return []
        numbers.extend(span)
    return numbers
