"""From what one compile yielded to a priced analysis: what moves, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable

from hloscope.analysis.analyze import analyze_module
from hloscope.analysis.model import Analysis
from hloscope.analysis.model.evidence import Evidence, with_evidence
from hloscope.analysis.model.timeline import Timeline
from hloscope.analysis.placement import Placement
from hloscope.cost.intervals import timeline_of
from hloscope.cost.price import price_module, priced_walk
from hloscope.hlo import HloModule
from hloscope.program.capture import Capture


def price_capture(program: Capture, module: HloModule, *, target: str) -> Analysis:
    """The analysis of a compiled program with its times, without reasons and findings.

    Args:
        program: Its text, with what else is known of it.
        module: The parsed text.
        target: What the user named.
    """
    found, device_ids = _analyzed(program, module, target)
    costs = program.kernel_costs
    return price_module(found, module, program.slice, device_ids=device_ids, kernel_costs=costs)


def timeline_of_capture(
    program: Capture, module: HloModule, *, target: str, explained: Callable[[Analysis], Analysis]
) -> Timeline | None:
    """What runs when in one step of a compiled program; None where that is not priced.

    Args:
        program: Its text, with what else is known of it.
        module: The parsed text.
        target: What the user named.
        explained: Gives the collectives of its analysis their reasons.
    """
    found, device_ids = _analyzed(program, module, target)
    priced = priced_walk(found, module, program.slice, device_ids=device_ids, kernel_costs=program.kernel_costs)
    if priced is None or program.slice is None:
        return None
    peak = program.compiled.hbm_peak
    live = {} if peak is None else peak.live_bytes_at
    timeline = timeline_of(priced.walk, explained(priced.analysis), program.slice.name, live)
    return None if timeline is None else with_evidence(timeline, Evidence(program=program, name=target))


def _analyzed(program: Capture, module: HloModule, target: str) -> tuple[Analysis, tuple[int, ...] | None]:
    partitions, device_ids = program.compiled.slice_of_partition, program.compiled.device_ids or None
    found = analyze_module(
        module,
        target=target,
        mesh=program.mesh,
        devices_per_slice=program.devices_per_slice,
        placement=Placement(partitions, device_ids) if partitions else None,
    )
    return found, device_ids
