"""`send` and `recv`: between slices over the data-center network, between devices, or with the host."""

from __future__ import annotations

import re

from hloscope.analysis.groups import Groups, pairs_in_text
from hloscope.analysis.spellings.opaque import opaque_transfer
from hloscope.analysis.transfers import Place, Transfer
from hloscope.analysis.vocabulary import Kind, Link
from hloscope.analysis.volume import arrays
from hloscope.hlo import HloInstruction, Shape

_HANDLER = "_xla_host_transfer_handler_name"
_RENDEZVOUS = "_xla_host_transfer_rendezvous"
_PAIRS = "_xla_send_recv_source_target_pairs"
_TYPE = "_xla_megascale_transfer_type"
_TARGET = "_xla_megascale_target"
_HOST_HANDLERS = frozenset({"", "pjrt_rendezvous", "tf_rendezvous", "xla_rendezvous"})

_KIND_OF_TYPE = {
    "ALL_REDUCE": Kind.ALL_REDUCE,
    "ALL_GATHER": Kind.ALL_GATHER,
    "REDUCE_SCATTER": Kind.REDUCE_SCATTER,
    "ALL_TO_ALL": Kind.ALL_TO_ALL,
    "ONE_TO_ONE": Kind.COLLECTIVE_PERMUTE,
}
_SLICES_BY_PARTITIONS = re.compile(r"\{([\d,:\s]+)\}x\{([\d,:\s]+)\}")
_DEVICE_PAIR = re.compile(r"\{?\s*(\d+)\s*->\s*(\d+)\s*\}?")
_DEVICE_GROUP = re.compile(r"\{\s*(\d+(?:\s*,\s*\d+)*)\s*\}")
_DEVICES_PER_SLICE_ID = 100_000
"""A global device id in megascale text is the slice's number, from 1, times this, plus the device's number in it."""


def read(place: Place) -> Transfer | None:
    """Reads a `send` or `recv`; a pair of both is one transfer, named by its `send`.

    Transfers with the host are none between devices. They are told by `is_host_transfer` and the handler's name
    together, because `_xla_host_transfer_*` attributes also leak onto instructions nearby.
    """
    op = place.op
    handler = op.frontend_attributes.get(_HANDLER, "")
    if _TYPE in op.frontend_attributes or _TARGET in op.frontend_attributes or "megascale" in handler:
        return _between_slices(place)
    if op.attributes.get("is_host_transfer") == "true":
        if handler in _HOST_HANDLERS:
            return None
        return opaque_transfer(place, f"the handler {handler} of %{op.name} is not known")
    return _between_devices(place)


def _between_slices(place: Place) -> Transfer | None:
    attributes = place.op.frontend_attributes
    partners = _partners(place, _RENDEZVOUS)
    if place.op.opcode == "recv" and partners:
        return None
    transfer_type = attributes.get(_TYPE, "")
    kind = _KIND_OF_TYPE.get(transfer_type)
    if kind is None:
        return opaque_transfer(place, f"the transfer type '{transfer_type}' of %{place.op.name} is not known", Link.DCN)
    groups = groups_of_target(attributes.get(_TARGET, ""), kind, place.op.computation.module.num_partitions)
    if groups is None:
        return opaque_transfer(place, f"the megascale target of %{place.op.name} cannot be read", Link.DCN)
    sent, received = _data(place.op, partners)
    return Transfer(
        kind=kind,
        start=place.op,
        op=place.op,
        operands=sent,
        results=received,
        groups=groups,
        asynchronous=True,
        link=Link.DCN,
        global_ids=True,
    )


def _between_devices(place: Place) -> Transfer | None:
    """Point-to-point transfers of a pipeline; without their pairs, nothing tells who sends."""
    partners = _partners(place, _PAIRS)
    if place.op.opcode == "recv" and partners:
        return None
    pairs = pairs_in_text(place.op.frontend_attributes.get(_PAIRS, ""))
    if pairs is None:
        return opaque_transfer(place, f"%{place.op.name} does not say between which devices it moves data")
    sent, received = _data(place.op, partners)
    return Transfer(
        kind=Kind.COLLECTIVE_PERMUTE,
        start=place.op,
        op=place.op,
        operands=sent,
        results=received,
        groups=pairs,
        asynchronous=True,
    )


def _partners(place: Place, attribute: str) -> list[HloInstruction]:
    """The other halves of a pair: same computation, other direction, same value of `attribute`."""
    opcode = "send" if place.op.opcode == "recv" else "recv"
    own = place.op.frontend_attributes.get(attribute)
    return [
        sibling
        for sibling in place.siblings
        if sibling.opcode == opcode and own is not None and sibling.frontend_attributes.get(attribute) == own
    ]


def _data(op: HloInstruction, partners: list[HloInstruction]) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """What is sent and what is received: the first element of each result, before the context and the token."""
    own = arrays(op.shape.elements[:1])
    other = arrays(partners[0].shape.elements[:1]) if partners else own
    return (own, other) if op.opcode == "send" else (other, own)


def groups_of_target(text: str, kind: Kind, num_partitions: int) -> Groups | None:
    """Reads `_xla_megascale_target` into groups of ids over all slices (slice x num_partitions + device).

    Args:
        text: `{1,2}x{0:7}` (slices x partitions), `{{100000->200000},…}` (pairs) or `{{100000,200000},…}` (groups).
        kind: What the transfer does; pairs belong to a permute.
        num_partitions: Partitions of one slice's program.

    Returns:
        The groups, or a permute's pairs. Where the text has device ids, these stand in for partition ids: their order
        within a slice may differ, which does not change which slices take part. None when it is something else.
    """
    product = _SLICES_BY_PARTITIONS.fullmatch(text.strip())
    if product:
        slices, partitions = (_numbers(part) for part in product.groups())
        first = min(1, *slices)
        return tuple(tuple((s - first) * num_partitions + p for s in slices) for p in partitions)
    pattern = _DEVICE_PAIR if kind is Kind.COLLECTIVE_PERMUTE else _DEVICE_GROUP
    inner = text.strip().removeprefix("{").removesuffix("}")
    if pattern.sub("", inner).strip(", "):
        return None
    found = [[int(number) for number in re.findall(r"\d+", match.group())] for match in pattern.finditer(inner)]
    first = min((1, *(device // _DEVICES_PER_SLICE_ID for group in found for device in group)))
    groups = tuple(tuple(_flat_id(device, first, num_partitions) for device in group) for group in found)
    return groups or None


def _flat_id(device: int, first_slice: int, num_partitions: int) -> int:
    slice_number, local = divmod(device, _DEVICES_PER_SLICE_ID)
    return (slice_number - first_slice) * num_partitions + local


def _numbers(text: str) -> list[int]:
    """Reads `0:7` (both ends included), `1,2` or a mixture."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition(":")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers
