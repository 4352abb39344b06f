"""The spellings of communication in compiled text: collectives and custom calls; `send_recv` reads the third kind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import prod

from hloscope.analysis.dataflow import find_computed_value
from hloscope.analysis.executions import make_unmodelled
from hloscope.analysis.groups import (
    DEVICES_PER_SLICE_ID,
    Groups,
    Placement,
    are_consistent,
    count_devices,
    find_device_groups,
    parse_pairs,
)
from hloscope.analysis.transfers import (
    LOWER_BOUND,
    Transfer,
    TransferSite,
    flatten_arrays,
    make_opaque,
    shapes_fit,
    sum_bytes,
)
from hloscope.base.units import count_array_bytes
from hloscope.hlo import HloInstruction, Shape
from hloscope.hlo.call_graph import Value
from hloscope.hlo.records import MAX_DEVICES
from hloscope.model import Unmodelled
from hloscope.model.vocabulary import KIND_OF_OPCODE, Kind, Link

# ---- `send` and `recv`: between slices over the data-center network, between devices, or with the host

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


CUSTOM_CALLS = frozenset({"custom-call", "custom-call-start"})


_COMMUNICATES = re.compile(
    r"(^|-)(all-gather|all-reduce|all-to-all|reduce-scatter|collective|permute|multicast|send|recv)(-|$)"
)


@cache
def starts_transfer(opcode: str) -> bool:
    """Returns whether an instruction with this opcode starts, or seems to start, a transfer between devices.

    Custom calls are not covered: they are classified by their target.
    """
    if opcode.endswith(("-done", "-update")):
        return False
    return opcode in KIND_OF_OPCODE or _COMMUNICATES.search(opcode) is not None


def is_worth_reading(opcode: str) -> bool:
    """Returns whether an instruction with this opcode may start a transfer."""
    return opcode in CUSTOM_CALLS or starts_transfer(opcode)


def may_transfer(instruction: HloInstruction) -> bool:
    """Returns whether an instruction may start a transfer, so that it has to be read."""
    return communicates(instruction) if instruction.opcode in CUSTOM_CALLS else starts_transfer(instruction.opcode)


def read_transfer(place: TransferSite) -> Transfer | None:
    """Reads one instruction for which `may_transfer` holds."""
    opcode = place.op.opcode
    if opcode in KIND_OF_OPCODE:
        return _read_collective(place)
    if opcode in ("send", "recv"):
        return read_send_or_recv(place)
    if opcode in CUSTOM_CALLS:
        return _read_custom_call(place)
    return make_opaque(place, f"opcode {opcode} of %{place.op.name} looks like communication")


_REDUCE_SCATTER_FUSION = "all-reduce-scatter"

_TAKES_SLICE = frozenset({"dynamic-slice", "slice"})
_KEEPS_ITS_SHAPE = "all-reduce-start"
_SLICE = re.compile(r"\{\s*(\d+(?:\s*,\s*\d+)*)\s*\}")
_HAS_DESTINATION = frozenset({Kind.COLLECTIVE_PERMUTE, Kind.RAGGED_ALL_TO_ALL})


def _read_collective(place: TransferSite) -> Transfer:
    """Reads a collective.

    Its operands and results are those of the collective itself: the tuple of a `-start` holds both, and that of an
    asynchronous fusion holds them twice.
    """
    op = place.op
    kind = KIND_OF_OPCODE[op.opcode]
    operands, results = _find_operand_shapes(op, kind), _find_result_shapes(op)
    scattered = _find_scattered_shape(place, operands) if kind is Kind.ALL_REDUCE else None
    if scattered is not None:
        kind, results = Kind.REDUCE_SCATTER, flatten_arrays([scattered])
    named = find_device_groups(op, kind, place.mesh)
    count = count_devices(op.computation.module, place.mesh)
    groups = named if named is not None and are_consistent(named, kind, count) else None
    sliced = _count_sliced_bytes(op)
    misfit = groups is not None and sliced is None and not shapes_fit(kind, operands, results, groups)
    counted = results if kind is Kind.ALL_GATHER else operands
    size = sum_bytes(counted) if sliced is None else sliced
    return Transfer(
        kind=kind,
        start=place.start,
        op=op,
        operands=operands,
        results=results,
        groups=None if misfit else groups,
        operand_bytes=sliced,
        asynchronous=op.opcode.endswith("-start") or place.wrapped_asynchronously or starts_chain(op),
        unmodelled=make_unmodelled(op, f"the shapes of %{op.name} do not fit the size of its groups", LOWER_BOUND)
        if misfit
        else _report_unknown_facts(op, kind, named, groups, size),
    )


def _find_operand_shapes(op: HloInstruction, kind: Kind) -> tuple[Shape, ...]:
    """The operands with data; a ragged all-to-all and a permute of slices also have destination and offset operands.

    Empty if the operands are slices whose sizes cannot be read.
    """
    operands = op.operands
    if "slice_sizes" in op.attributes and _count_sliced_bytes(op) is None:
        return ()
    if kind in _HAS_DESTINATION and ("slice_sizes" in op.attributes or kind is Kind.RAGGED_ALL_TO_ALL):
        operands = operands[:1]
    return flatten_arrays(operand.shape for operand in operands)


def _find_result_shapes(op: HloInstruction) -> tuple[Shape, ...]:
    shape = op.shape
    if op.opcode.endswith("-start") and op.opcode != _KEEPS_ITS_SHAPE and len(shape.elements) > 1:
        shape = shape.elements[1]
    return flatten_arrays([shape])


def _find_scattered_shape(place: TransferSite, operands: tuple[Shape, ...]) -> Shape | None:
    """The result of a reduce-scatter, if the all-reduce is in one of the fusions that spell one on TPU.

    Each device keeps a slice: the fusion takes slices, and its result is smaller than the sum of the all-reduce.
    """
    if not place.computation.name.startswith(_REDUCE_SCATTER_FUSION):
        return None
    wrapper = next((wrapper for wrapper in place.context.wrappers[-1:] if wrapper.opcode == "fusion"), None)
    if wrapper is None and place.graph.entry is None and not place.context.wrappers:
        wrapper = place.computation.root  # the text is cut off before the fusion, whose result is the same
    if wrapper is None or not any(instruction.opcode in _TAKES_SLICE for instruction in place.computation.instructions):
        return None
    before, after = sum_bytes(operands), sum_bytes(flatten_arrays([wrapper.shape]))
    return wrapper.shape if before is not None and after is not None and after < before else None


def starts_chain(op: HloInstruction) -> bool:
    """Returns whether the collective is the first link of an asynchronous collective fusion."""
    return any(user.opcode == "custom-call" and user.custom_call_target == "AsyncCollectiveStart" for user in op.users)


def _count_sliced_bytes(op: HloInstruction) -> int | None:
    """Bytes of a permute that sends slices: `slice_sizes={{64,32}}` of the first operand.

    None for whole operands, and for sizes that cannot be read.
    """
    text = op.attributes.get("slice_sizes")
    if text is None or not op.operands:
        return None
    counts = [prod(int(size) for size in part.split(",")) for part in _SLICE.findall(text)]
    return count_array_bytes(op.operands[0].shape.element_type, sum(counts)) if counts else None


def _report_unknown_facts(
    op: HloInstruction, kind: Kind, named: Groups | None, groups: Groups | None, size: int | None
) -> Unmodelled | None:
    """The report of facts about a collective that the text does not state.

    Args:
        op: The collective.
        kind: Its kind.
        named: The groups that the text names; None if it names none.
        groups: The same groups; None also if they are contradictory.
        size: Bytes on one device; None if unknown.
    """
    if named is None:
        printed = None if kind is Kind.COLLECTIVE_PERMUTE else op.replica_groups
        if printed is not None and printed.contradiction is not None:
            what = f"the replica groups of %{op.name} are inconsistent: {printed.contradiction}"
            return make_unmodelled(op, what, LOWER_BOUND)
        return make_unmodelled(op, f"the participants of %{op.name} cannot be determined from the text", LOWER_BOUND)
    if groups is None:
        what = "source-target pairs" if kind is Kind.COLLECTIVE_PERMUTE else "replica groups"
        return make_unmodelled(op, f"the {what} of %{op.name} are inconsistent", LOWER_BOUND)
    if size is None:
        return make_unmodelled(op, f"the size of what %{op.name} moves cannot be determined from the text", LOWER_BOUND)
    return None


PALLAS = "tpu_custom_call"
"""The custom-call target of Pallas and Mosaic kernels for TPUs."""
_LATER = re.compile(r"(?P<stem>.*?)(?P<gap>[-_.]?)(?:done|update)", re.IGNORECASE)
_COMMUNICATION = re.compile(r'"has_communication"\s*:\s*"?(true|false)')


def communicates(instruction: HloInstruction) -> bool:
    """Returns whether a custom call communicates with other devices.

    `AsyncCollectiveStart` starts the collective that is its operand, which is read separately; with any other operand
    it starts a transfer that is not understood.
    """
    target = instruction.custom_call_target or ""
    if target == PALLAS:
        return has_communication(instruction) is True
    if target == "AsyncCollectiveStart":
        return not any(operand.opcode in tuple(Kind) for operand in instruction.operands)
    return classify_target(target) is True and not _continues_custom_call(instruction, target)


def _continues_custom_call(instruction: HloInstruction, target: str) -> bool:
    """Returns whether a target such as `all-gather-done` ends or continues another custom call."""
    match = _LATER.fullmatch(target)
    if match is None:
        return False
    made = (find_computed_value(Value(operand)).instruction for operand in instruction.operands)
    stem = match["stem"]
    wanted = {stem.lower(), *(f"{stem}{match['gap']}{word}".lower() for word in ("start", "update"))}
    return any((maker.custom_call_target or "").lower() in wanted for maker in made)


def explain_suspicion(instruction: HloInstruction) -> str | None:
    """The reason why a custom call may communicate although its text does not say so; None if that is known."""
    target = instruction.custom_call_target
    if target == PALLAS:
        kernel = f"the Pallas kernel %{instruction.name}"
        silent = has_communication(instruction) is None
        return f"{kernel} does not say whether it communicates with other chips" if silent else None
    if target is None:
        return f"custom call %{instruction.name} without a target may communicate"
    return f"custom call to {target} may communicate" if classify_target(target) is None else None


def _read_custom_call(place: TransferSite) -> Transfer:
    """Makes an opaque transfer: nothing outside the kernel states what it sends, and to whom."""
    target = place.op.custom_call_target
    if target == PALLAS:
        return make_opaque(
            place, f"the Pallas kernel %{place.op.name} communicates with other chips by itself", Link.ICI
        )
    found = make_opaque(place, f"custom call {target} of %{place.op.name} communicates by itself")
    ends_later = any(_continues_custom_call(user, user.custom_call_target or "") for user in place.op.users)
    return found._replace(asynchronous=True) if ends_later else found


def has_communication(instruction: HloInstruction) -> bool | None:
    """The communication flag in a Pallas kernel's configuration; None if it is missing or cannot be fully read.

    Source: `CustomCallBackendConfig.to_json` in jax/_src/tpu_custom_call.py, which writes the key only when it is true.
    """
    config = instruction.backend_config.get("custom_call_config")
    if isinstance(config, dict):
        return {"true": True, "false": False}.get(str(config.get("has_communication", False)).lower())
    said = _COMMUNICATION.search(str(instruction.backend_config.get("raw", "")))
    return None if said is None else said[1] == "true"


_COMPILER = """
    AllocateBuffer AssumeGatherIndicesInBound ConcatBitcast CompactWyHelper GatherScatterIndicesBitpacked
    InvertDiagBlocksLowerTriangular InvertDiagBlocksUpperTriangular LayoutConstraint PadToStatic SliceToDynamic
    PartialReduce PrepareAsyncCallStart PrepareAsyncCallDone SliceId X64Combine X64SplitHigh X64SplitLow MemsetFromValue
    ZeroCrop
    Sharding SPMDFullToShardShape SPMDShardToFullShape InspectSharding MoveToHost MoveToDevice
    annotate_device_placement HostExecute GetRngSeed Pin Unpin
    """
"""Custom calls that XLA and its TPU back end insert themselves.

Source: text that libtpu prints for cholesky, qr, eigh, lu, triangular solves, fft, random bits and 64-bit integers on
v5e; xla/hlo/ir/hlo_instruction.h and the passes of xla/service for the partitioner's and the host offloader's marks.
The partitioner's marks occur only in text that is not partitioned yet, which is reported separately.
"""

_LIBRARY = """
    ApproxTopK Cholesky Eigh EighTpu LuDecomposition LuDecompositionBlock ProductOfElementaryHouseholderReflectors Qr
    QrDecompositionBlock TopK ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeNearest
    ResizeNearestGrad dce_sink shape_assertion stablehlo.dynamic_approx_top_k stablehlo.dynamic_reduce_window
    stablehlo.dynamic_rng_bit_generator stablehlo.dynamic_top_k tridiagonal_solve_perturbed_ffi
    xla.gpu.ext.cub_sort_unassigned_scratch_size xla.gpu.ext.cub_scan_unassigned_scratch_size
    cu_threefry2x32 cu_threefry2x32_ffi hip_threefry2x32 hip_threefry2x32_ffi cu_lu_pivots_to_permutation
    __op$block_scaled_dot __op$quantize __op$dequantize
    hip_lu_pivots_to_permutation cu_cholesky_update_ffi hip_cholesky_update_ffi triton_kernel_call
    """
"""Computations on the arrays of one device.

Source: the targets that JAX guarantees to be stable (`jax/_src/export/_export.py`) and those that jaxlib registers
for CPUs and GPUs; libtpu's own names for the same.
"""

_FAMILIES = re.compile(
    r"lapack_\w+|(cu|hip|roc)(blas|solver|sparse|fft|dnn|rand)\w*|__(cublas|cudnn|hipblas\w*|cub|cusolver|onednn)\$.+"
    r"|__triton\w*(\$.+)?|__gpu\$(TopK|xla\.gpu\.triton)|(mhlo|chlo|xla_builder\.math)\.\w+"
    r"|(cpu|cu|hip)_csr_sparse_dense\w*|xla_(ffi_|buffer_)?(partitioned_)?python_(cpu|gpu|tpu)_callback"
)
"""Libraries for a single device, and callbacks into Python on the host.

Source: `kGemmCallTarget`, `kCudnnConvForwardCallTarget` and their neighbors in xla/service/gpu; JAX's
`jax/_src/callback.py`, `jax/_src/lax/linalg.py` and `jaxlib/*_kernels`.
"""

_MULTIPLYING = re.compile(
    r"Cholesky|Eigh(Tpu)?|LuDecomposition(Block)?|ProductOfElementaryHouseholderReflectors|Qr(DecompositionBlock)?"
    r"|InvertDiagBlocks(Lower|Upper)Triangular|tridiagonal_solve_perturbed_ffi|(cu|hip)_cholesky_update_ffi"
    r"|__op\$block_scaled_dot|triton_kernel_call|lapack_\w+|(cu|hip|roc)(blas|solver|sparse|fft|dnn)\w*"
    r"|__(cublas|cudnn|hipblas\w*|cusolver|onednn)\$.+|__triton\w*(\$.+)?|__gpu\$xla\.gpu\.triton"
    r"|(cpu|cu|hip)_csr_sparse_dense\w*"
)
"""Those of the above that may do matmuls."""

_ASYNCHRONOUS = frozenset({"AsyncCollectiveStart", "AsyncCollectiveDone"})
"""Marks around a collective, which is printed next to them and counted itself."""

_LOCAL = frozenset((*_COMPILER.split(), *_LIBRARY.split()))
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TELLING = frozenset(
    {"dispatch", "exchange", "halo", "mpi", "peer", "permute", "receive", "recv", "remote", "ring", "send"}
)
_TELLING_PARTS = re.compile(
    r"nccl|rccl|nvshmem|rocshmem|megascale|multicast|multimem|rdma|p2p|a2a|collective|ppermute|sendrecv"
    r"|all.?reduce|all.?gather|reduce.?scatter|all.?to.?all",
    re.IGNORECASE,
)


def multiplies(target: str) -> bool:
    """Returns whether a custom call does matmuls of which the text does not say how many, by the name of its target."""
    return _MULTIPLYING.fullmatch(target) is not None


@cache
def classify_target(target: str) -> bool | None:
    """Returns whether a custom call communicates, by the name of its target; None if the name does not tell.

    Args:
        target: `custom_call_target`; not that of Pallas kernels, whose configuration states it instead.
    """
    if target in _LOCAL or target in _ASYNCHRONOUS:
        return False
    words = {word.lower() for word in _WORDS.findall(target)}
    if _TELLING_PARTS.search(target) or words & _TELLING:
        return True
    return False if _FAMILIES.fullmatch(target) else None
