"""What a predicted time takes for granted, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hloscope.analysis.model import Collective
from hloscope.analysis.vocabulary import Kind
from hloscope.cost.operations import Operations, kernel_names
from hloscope.cost.records import Sums
from hloscope.hardware.chip_model import Chip
from hloscope.hardware.chips import chip as find_chip
from hloscope.hlo import HloModule
from hloscope.units import format_bytes

_ONLY_TPU_PRINTS = ("estimated_cycles", "used_scoped_memory_configs")
_SPARSE_CORE = ("DEVICE_TYPE_SPARSECORE", 'execution_thread="sparsecore"')
_WITHOUT_SPARSE_CORES = frozenset({"v2", "v3", "v5e"})
"""Source: Google Cloud's page of each TPU version."""

_TOO_DENSE = 1.1
_TOO_THIN = 0.5
"""Of the peak FLOPs per cycle: matmuls above the one, and large ones below the other, are another generation's.

Generations differ by factors of two or more, where they differ at all; a large matmul reaches 0.8 to 1 of its own.
"""

_MOST_NAMED = 3


def is_from_tpu(module: HloModule) -> bool:
    """Whether the TPU compiler has printed a text."""
    return any(module.mentions(word) for word in _ONLY_TPU_PRINTS)


def about_text(module: HloModule, *, is_roofline: bool) -> Iterator[str]:
    """What the text leaves open."""
    if not module.is_scheduled:
        yield "the text carries no schedule: its order is taken as one, and what would overlap is not known"
    if is_roofline:
        yield "the text carries no cycle estimates: computation is a roofline of FLOPs and bytes, a lower bound"
        if not is_from_tpu(module):
            yield "the text does not look compiled for a TPU, which would choose other fusions and collectives"


def about_kernels(module: HloModule, operations: Operations) -> Iterator[str]:
    """Costs that were given for kernels that the text does not have, and those that are less than they can be."""
    calls = module.with_opcodes({"custom-call"})
    known = {name for call in calls for name in kernel_names(call)}
    for name in operations.kernel_costs:
        if name not in known:
            yield f"a cost is given for the kernel {name}, and the program has no kernel of that name"
    too_small = {}
    for call in calls:
        (_, said_bytes), written_bytes = operations.said_of(call) or (0.0, 0.0), operations.written_bytes(call)
        if 0 < said_bytes < written_bytes:
            too_small[kernel_names(call)[0]] = said_bytes, written_bytes
    for name, (said_bytes, written_bytes) in too_small.items():
        yield (
            f"the kernel {name} is said to move {format_bytes(said_bytes)}, and it writes "
            f"{format_bytes(written_bytes)}: it is priced by what it writes"
        )


def about_generation(module: HloModule, sums: Sums, chip: Chip) -> Iterator[str]:
    """Why a text cannot have been compiled for a chip; the figures are the table's, whatever was overridden."""
    if chip.name in _WITHOUT_SPARSE_CORES and any(module.mentions(word) for word in _SPARSE_CORE):
        yield f"the text was compiled for a generation with SparseCores, which {chip.name} does not have"
        return
    usual = find_chip(chip.name)
    share = sums.densest * usual.devices_per_chip * usual.clock_hz / usual.bf16_flops_per_s
    if share > _TOO_DENSE:
        yield (
            f"the text was compiled for a faster generation: a matmul in it takes {share:.1f} times fewer cycles than "
            f"{chip.name} would need at its peak"
        )
    elif 0 < share < _TOO_THIN:
        yield (
            f"the text was likely compiled for a slower generation: in its cycles no large matmul comes above "
            f"{100 * share:.0f}% of the peak of {chip.name}"
        )


def about_transfers(collectives: Sequence[Collective], slice_name: str) -> Iterator[str]:
    """What is not known of transfers.

    Args:
        collectives: With their times.
        slice_name: Where they were priced.
    """
    if any(one.time_us is None and one.kind is Kind.OPAQUE for one in collectives):
        yield "transfers that are not understood take no time here, so the step takes at least as long as it says"
    unknown = [one.name for one in collectives if one.time_us is None and one.kind is not Kind.OPAQUE]
    if unknown:
        more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        named = ", ".join(f"%{name}" for name in unknown[:_MOST_NAMED])
        yield (
            f"nothing tells how long {named}{more} would take on {slice_name}, so the step takes at least as long as "
            "it says"
        )
    if any(one.kind is Kind.RAGGED_ALL_TO_ALL for one in collectives):
        yield "a ragged all-to-all is priced as if its whole buffer moved; with fewer rows in use it takes less"
