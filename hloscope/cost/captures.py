"""From what one compile yielded to a priced analysis: what moves, and how long it takes."""

from __future__ import annotations

from hloscope.analysis import Placement, analyze_module
from hloscope.analysis.model import Analysis
from hloscope.cost.price import price_module
from hloscope.hlo import HloModule
from hloscope.program.capture import Capture


def price_capture(program: Capture, module: HloModule, *, target: str) -> Analysis:
    """The analysis of a compiled program with its times, without reasons and findings.

    Args:
        program: Its text, with what else is known of it.
        module: The parsed text.
        target: What the user named.
    """
    partitions = program.slice_of_partition
    found = analyze_module(
        module,
        target=target,
        mesh=program.mesh,
        devices_per_slice=program.devices_per_slice,
        placement=None if partitions is None else Placement(partitions, program.device_ids),
    )
    costs = program.kernel_costs
    return price_module(found, module, program.slice, device_ids=program.device_ids, kernel_costs=costs)
