"""Pricing of a compiled program from the results of its compile."""

from __future__ import annotations

from collections.abc import Callable

from hloscope.analysis.analyze import analyze_module
from hloscope.analysis.model import Analysis
from hloscope.analysis.model.evidence import Evidence, attach_evidence
from hloscope.analysis.model.timeline import Timeline
from hloscope.analysis.placement import Placement
from hloscope.cost.intervals import build_timeline
from hloscope.cost.price import price_module, price_walk
from hloscope.hlo import HloModule
from hloscope.program.capture import Capture


def price_capture(program: Capture, module: HloModule, *, target: str) -> Analysis:
    """The priced analysis of a compiled program, without reasons and findings.

    Args:
        program: The results of its compile.
        module: The parsed text.
        target: The target as the user named it.
    """
    found, device_ids = _analyze_capture(program, module, target)
    costs = program.kernel_costs
    return price_module(found, module, program.slice, device_ids=device_ids, kernel_costs=costs)


def predict_timeline(
    program: Capture, module: HloModule, *, target: str, explained: Callable[[Analysis], Analysis]
) -> Timeline | None:
    """The timeline of one step of a compiled program; None if it is not priced.

    Args:
        program: The results of its compile.
        module: The parsed text.
        target: The target as the user named it.
        explained: A function that adds reasons to the collectives of its analysis.
    """
    found, device_ids = _analyze_capture(program, module, target)
    priced = price_walk(found, module, program.slice, device_ids=device_ids, kernel_costs=program.kernel_costs)
    if priced is None or program.slice is None:
        return None
    peak = program.compiled.hbm_peak
    live = {} if peak is None else peak.live_bytes_at
    timeline = build_timeline(priced.walk, explained(priced.analysis), program.slice.name, live)
    return None if timeline is None else attach_evidence(timeline, Evidence(program=program, name=target))


def _analyze_capture(program: Capture, module: HloModule, target: str) -> tuple[Analysis, tuple[int, ...] | None]:
    partitions, device_ids = program.compiled.slice_of_partition, program.compiled.device_ids or None
    found = analyze_module(
        module,
        target=target,
        mesh=program.mesh,
        devices_per_slice=program.devices_per_slice,
        placement=Placement(partitions, device_ids) if partitions else None,
    )
    return found, device_ids
