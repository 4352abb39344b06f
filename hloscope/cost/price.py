"""The stage itself: an analysis and a slice become an analysis with times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.model.step_time import RuleUse, StepTime, UnknownOperation
from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.cost.calibration import is_calibrated, spread_of
from hloscope.cost.collectives import Pricing, priced_collectives
from hloscope.cost.constants import CONSTANTS, Constants
from hloscope.cost.network import Network
from hloscope.cost.notes import about_generation, about_kernels, about_text, about_transfers, is_from_tpu
from hloscope.cost.operations import Basis, Operations
from hloscope.cost.overlap import with_overlaps
from hloscope.cost.placement import devices_of_partitions, partition_count
from hloscope.cost.records import CollectiveCost, Key, Priced, Sums
from hloscope.cost.timeline import Timeline
from hloscope.graph import HloGraph
from hloscope.hardware.chip_model import Chip
from hloscope.hardware.slices import Slice
from hloscope.hardware.torus import Torus
from hloscope.hlo import HloModule, collector_paused

_MICROSECONDS = 1e6
_ENDLESS = "the step is not priced: by their trip counts its loops never come to an end"


def price_module(
    analysis: Analysis,
    module: HloModule,
    chosen: Slice,
    *,
    device_ids: Sequence[int] | None = None,
    constants: Constants = CONSTANTS,
    kernel_costs: Mapping[str, tuple[float, float]] | None = None,
) -> Analysis:
    """Fills in how long the step and each collective take on a slice.

    Args:
        analysis: Of the module.
        module: The compiled program; its text order is taken as the order of execution.
        chosen: The slice; without TPU chips nothing is priced.
        device_ids: The device of each partition, as the compiler was told; by default what `jax.make_mesh` chooses.
        constants: What was measured.
        kernel_costs: FLOPs and bytes of kernels, by their names, where the user knows them.

    Returns:
        The analysis with `time`, and with `time_us` and `exposed_us` of each collective.
    """
    if chosen.chip is None or module.truncated:
        return analysis
    with collector_paused():
        return _priced(analysis, module, chosen, device_ids, constants, kernel_costs or {})


def _priced(
    analysis: Analysis,
    module: HloModule,
    chosen: Slice,
    device_ids: Sequence[int] | None,
    constants: Constants,
    kernel_costs: Mapping[str, tuple[float, float]],
) -> Analysis:
    assert chosen.chip is not None
    graph = HloGraph(module)
    network = Network(torus=Torus.of(chosen), chip=chosen.chip, constants=constants)
    device_of, notes = devices_of_partitions(analysis, chosen, partition_count(analysis, module), device_ids)
    known = None if device_ids is None else tuple(device_ids)
    priced = priced_collectives(analysis, graph, Pricing(network=network, device_of=device_of, device_ids=known))
    operations = Operations(graph=graph, chip=chosen.chip, constants=constants, kernel_costs=kernel_costs)
    sums = Timeline(graph, operations, priced).step()
    first_step_us = sums.total_us + sums.prefetched_us
    if not isfinite(first_step_us):
        return replace(analysis, notes=(*analysis.notes, _ENDLESS))
    _make_possible(sums, chosen.chip)
    collectives = tuple(_with_times(one, priced, sums.costs) for one in analysis.collectives)
    basis = _basis(sums, module)
    notes += tuple(about_text(module, is_roofline=basis == "roofline"))
    notes += tuple(about_kernels(module, operations))
    if known is None:
        notes += tuple(about_generation(module, sums, chosen.chip))
    notes += tuple(about_transfers(collectives, chosen.name))
    time = _step_time(sums, analysis, chosen.chip, basis=basis)
    time = replace(time, first_step_us=max(time.step_us, first_step_us))
    collectives = with_overlaps(collectives, graph, operations, time.step_us)
    return replace(analysis, collectives=collectives, time=replace(time, is_scheduled=module.is_scheduled, notes=notes))


def _make_possible(sums: Sums, chip: Chip) -> None:
    """A step never takes less than its bytes take through memory, or its FLOPs through the matrix units.

    What one step prefetches for the next crosses memory beside something else, but it does cross it, in every step.
    """
    hbm_bytes_per_s = chip.hbm_bytes_per_s / chip.devices_per_chip
    peak = chip.bf16_flops_per_s / chip.devices_per_chip
    sums.last_at_least(sums.hbm_bytes / hbm_bytes_per_s * _MICROSECONDS, Basis.MEMORY)
    sums.last_at_least(sums.least_bf16_flops / peak * _MICROSECONDS, Basis.ROOFLINE)


def _basis(sums: Sums, module: HloModule) -> str:
    """What the time in which a step computes rests on, in a word of `StepTime.basis`."""
    by_basis = sums.by_basis
    if sums.compute_us == 0:
        return "none"
    if not module.mentions("estimated_cycles") and not is_from_tpu(module):
        return "roofline"
    if by_basis[Basis.CYCLES] > 0:
        return "cycles"
    return "roofline" if by_basis[Basis.ROOFLINE] + by_basis[Basis.UNKNOWN] > 0 else "memory"


def _with_times(one: Collective, priced: Priced, costs: dict[Key, CollectiveCost]) -> Collective:
    keys = [(one.computation, part.name) for part in one.parts or (one,)]
    times = [priced.time_of(key) for key in keys]
    if any(time is None for time in times):
        return one
    exposed = [costs[key].exposed_us / costs[key].executions for key in keys if key in costs and costs[key].executions]
    return replace(
        one,
        time_us=sum(time.time_us for time in times if time is not None),
        exposed_us=sum(exposed) if len(exposed) == len(keys) else None,
    )


def _step_time(sums: Sums, analysis: Analysis, chip: Chip, *, basis: str) -> StepTime:
    step_us = sums.total_us
    peak = chip.bf16_flops_per_s / chip.devices_per_chip
    return StepTime(
        step_us=step_us,
        compute_us=sums.compute_us,
        exposed_us=sums.exposed_us,
        hidden_us=sums.hidden_us,
        hbm_us=sums.hbm_us,
        flops=sums.flops,
        peak_flops_share=None
        if sums.kernels or step_us <= 0
        else sums.least_bf16_flops * _MICROSECONDS / (step_us * peak),
        basis=basis,
        roofline_us=sums.by_basis[Basis.ROOFLINE],
        bound=_bound(sums, analysis),
        rules=_rules(sums, chip),
        spread=None if sums.kernels else spread_of(chip.name),
        unknown_operations=_unknown(sums),
        unpriced_kernels=tuple(sorted(sums.kernels)),
    )


def _bound(sums: Sums, analysis: Analysis) -> Bound:
    bound = sums.bound
    if sums.unpriced:
        bound += Bound.AT_LEAST
    if any(one.kind is Kind.RAGGED_ALL_TO_ALL for one in analysis.collectives):
        bound += Bound.AT_MOST
    return bound


def _rules(sums: Sums, chip: Chip) -> tuple[RuleUse, ...]:
    amounts = {basis.value: amount for basis, amount in sums.by_basis.items()} | dict(sums.rules)
    uses = [
        RuleUse(rule=rule, time_us=amount, calibrated=is_calibrated(chip.name, rule))
        for rule, amount in amounts.items()
        if amount > 0
    ]
    return tuple(sorted(uses, key=lambda use: use.time_us, reverse=True))


def _unknown(sums: Sums) -> tuple[UnknownOperation, ...]:
    found = [
        UnknownOperation(what=what, count=count, bytes=moved, time_us=time_us)
        for what, (time_us, moved, count) in sums.unknown.items()
    ]
    return tuple(sorted(found, key=lambda one: one.time_us, reverse=True))
