"""The pricing stage: adds times on a slice, and the assumptions behind them, to an analysis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import NamedTuple

from hloscope.analysis.kernels import find_kernel_names
from hloscope.analysis.model import Analysis, Collective, Collectives
from hloscope.analysis.model.step_time import RuleUse, Spread, StepTime, UnknownOperation
from hloscope.analysis.model.timeline import WaitCause
from hloscope.analysis.vocabulary import Bound, Kind
from hloscope.cost.collectives import Pricing, count_partitions, map_partitions_to_devices, price_collectives
from hloscope.cost.network import Network
from hloscope.cost.operations import Operations, TimeBasis
from hloscope.cost.overlaps import attach_overlaps
from hloscope.cost.records import PricedCollectives, Sums
from hloscope.cost.walk import Walk
from hloscope.errors import SliceError
from hloscope.hlo import HloModule, pause_collector
from hloscope.hlo.call_graph import HloGraph
from hloscope.messages import Option, say
from hloscope.program.capture import Capture
from hloscope.tpu.chips import find_chip
from hloscope.tpu.generation import Chip, Constants, Measured
from hloscope.tpu.overrides import find_constants
from hloscope.tpu.slices import Slice
from hloscope.tpu.torus import Torus
from hloscope.units import format_bytes

_MICROSECONDS = 1e6
_ENDLESS_STEP_NOTE = "the step is not priced: according to their trip counts, its loops do not finish"
_ONLY_TPU_PRINTS = ("estimated_cycles", "used_scoped_memory_configs")
SPARSE_CORE_MARKS = ("DEVICE_TYPE_SPARSECORE", 'execution_thread="sparsecore"')

_TOO_DENSE = 1.1
_TOO_THIN = 0.5
"""Limits, as shares of the peak FLOPs per cycle: denser matmuls, or thinner large ones, are another generation's.

Generations differ by factors of two or more, where they differ at all; a large matmul reaches 0.8 to 1 of its own.
"""

_MOST_NAMED = 3


def price_module(
    analysis: Analysis,
    module: HloModule,
    chosen: Slice | None,
    *,
    device_ids: Sequence[int] | None = None,
    constants: Constants | None = None,
    kernel_costs: Mapping[str, tuple[float, float]] | None = None,
) -> Analysis:
    """Adds the times of the step and of each collective on a slice to an analysis.

    Args:
        analysis: The analysis of the module.
        module: The compiled program; its text order is taken as the order of execution.
        chosen: The slice; without one, or without TPU chips, nothing is priced.
        device_ids: The device of each partition, as passed to the compiler; by default the choice of `jax.make_mesh`.
        constants: The measured constants; by default those of the slice's generation.
        kernel_costs: The user's FLOPs and bytes of kernels, by name.

    Returns:
        The analysis with `time`, and with `time_us` and `exposed_us` of each collective.
    """
    priced = price_walk(analysis, module, chosen, device_ids=device_ids, constants=constants, kernel_costs=kernel_costs)
    return analysis if priced is None else priced.analysis


class PricedWalk(NamedTuple):
    """A priced step.

    Attributes:
        walk: The walk, with what runs when.
        analysis: The analysis with the sums of the walk; without `time` if the step never ends.
    """

    walk: Walk
    analysis: Analysis


@pause_collector()
def price_walk(
    analysis: Analysis,
    module: HloModule,
    chosen: Slice | None,
    *,
    device_ids: Sequence[int] | None = None,
    constants: Constants | None = None,
    kernel_costs: Mapping[str, tuple[float, float]] | None = None,
) -> PricedWalk | None:
    """The walk over a module's schedule, and the analysis with its times.

    Args:
        analysis: The analysis of the module.
        module: As for `price_module`.
        chosen: As for `price_module`.
        device_ids: As for `price_module`.
        constants: As for `price_module`.
        kernel_costs: As for `price_module`.

    Returns:
        The walk and the analysis; None without TPU chips, or if the text is cut off.
    """
    if chosen is None or chosen.chip is None or module.truncated:
        return None
    walk, notes = make_walk(
        analysis, module, chosen, device_ids=device_ids, constants=constants, kernel_costs=kernel_costs
    )
    sums = walk.step()
    if not isfinite(sums.total_us + sums.prefetched_us):
        return PricedWalk(walk, replace(analysis, notes=(*analysis.notes, _ENDLESS_STEP_NOTE)))
    collectives = tuple(
        _attach_times(collective, walk.priced, sums, chosen.chip.measured) for collective in analysis.collectives
    )
    basis = _find_basis_word(sums, module)
    notes += tuple(_note_text(module, is_roofline=basis == "roofline"))
    notes += tuple(_note_kernels(module, walk.operations))
    notes += tuple(_note_calibration(chosen.chip))
    if device_ids is None:
        notes += tuple(_note_generation(module, sums, chosen.chip))
    notes += tuple(_note_transfers(collectives, chosen.name))
    time = _make_step_time(sums, walk.priced, analysis, chosen.chip, basis=basis)
    collectives = attach_overlaps(collectives, walk.graph, walk.operations, time.step_us)
    time = replace(time, is_scheduled=module.is_scheduled, notes=notes)
    return PricedWalk(walk, replace(analysis, collectives=Collectives(collectives), time=time))


def make_walk(
    analysis: Analysis,
    module: HloModule,
    chosen: Slice,
    *,
    device_ids: Sequence[int] | None,
    constants: Constants | None = None,
    kernel_costs: Mapping[str, tuple[float, float]] | None,
) -> tuple[Walk, tuple[str, ...]]:
    """The walk over a module's schedule, not yet started, and the assumptions made.

    Args:
        analysis: The analysis of the module.
        module: The compiled program.
        chosen: The slice.
        device_ids: As for `price_module`.
        constants: As for `price_module`.
        kernel_costs: As for `price_module`.

    Raises:
        SliceError: The slice has no TPU chips.
    """
    if chosen.chip is None:
        raise SliceError(f"{chosen.name} has no price", why="only TPU slices are priced")
    graph, constants = HloGraph(module), find_constants(chosen.chip, constants)
    network = Network(torus=Torus.of(chosen), chip=chosen.chip, constants=constants)
    device_of, notes = map_partitions_to_devices(analysis.mesh, chosen, count_partitions(analysis, module), device_ids)
    known = None if device_ids is None else tuple(device_ids)
    priced = price_collectives(analysis, graph, Pricing(network=network, device_of=device_of, device_ids=known))
    operations = Operations(graph=graph, chip=chosen.chip, constants=constants, kernel_costs=kernel_costs or {})
    return Walk(graph, operations, priced), notes


def make_program_walk(program: Capture, module: HloModule, analysis: Analysis) -> Walk:
    """The walk over a compiled program's schedule, not yet started.

    Args:
        program: The program.
        module: Its parsed text.
        analysis: Its analysis.

    Raises:
        SliceError: It was compiled for no TPU slice.
    """
    if program.slice is None:
        raise SliceError(
            f"{analysis.target} has no price",
            why="no slice is named",
            fix=say("name one: ", Option("slice", "v5e:2x4")),
        )
    device_ids = program.compiled.device_ids or None
    walk, _ = make_walk(analysis, module, program.slice, device_ids=device_ids, kernel_costs=program.kernel_costs)
    return walk


def _find_basis_word(sums: Sums, module: HloModule) -> str:
    """The basis of the computing time, as a word of `StepTime.basis`."""
    by_basis, is_counted = sums.by_basis, module.mentions("estimated_cycles")
    if sums.compute_us == 0:
        return "none"
    if not is_counted and not is_from_tpu(module):
        return "roofline"
    if by_basis[TimeBasis.CYCLES] + by_basis[TimeBasis.VECTOR] + by_basis[TimeBasis.NARROW] > 0:
        return "cycles"
    if by_basis[TimeBasis.ROOFLINE] + by_basis[TimeBasis.UNKNOWN] > 0:  # memory-bound operations may have cycles too
        return "cycles" if is_counted and by_basis[TimeBasis.MEMORY] > 0 else "roofline"
    return "memory"


def _attach_times(collective: Collective, priced: PricedCollectives, sums: Sums, measured: Measured) -> Collective:
    keys = [(collective.computation, part.name) for part in collective.parts or (collective,)]
    times = [priced.times[key] for key in keys]
    if any(time is None for time in times):
        return collective
    exposed = [sums.waits[key] / sums.executions[key] for key in keys if sums.executions.get(key)]
    return replace(
        collective,
        time_us=sum(time.time_us for time in times if time is not None),
        exposed_us=sum(exposed) if len(exposed) == len(keys) else None,
        time_error=max((measured.error_of(time.rule) for time in times if time is not None), default=None),
    )


def _make_step_time(sums: Sums, priced: PricedCollectives, analysis: Analysis, chip: Chip, *, basis: str) -> StepTime:
    step_us = sums.total_us
    first_step_us = step_us - sums.waited_us[WaitCause.LIMIT] + sums.prefetched_us
    peak = chip.bf16_flops_per_s / chip.devices_per_chip
    return StepTime(
        step_us=step_us,
        compute_us=sums.compute_us,
        exposed_us=sums.exposed_us,
        hidden_us=sums.hidden_us,
        hbm_us=sums.hbm_us,
        first_step_us=max(step_us, first_step_us),
        flops=sums.flops,
        peak_flops_share=None
        if sums.kernels or step_us <= 0
        else sums.least_bf16_flops * _MICROSECONDS / (step_us * peak),
        basis=basis,
        roofline_us=sums.by_basis[TimeBasis.ROOFLINE],
        bound=_find_step_bound(sums, analysis),
        rules=_list_rules(sums, priced, chip.measured),
        spread=None if sums.kernels else _spread(chip.measured),
        unknown_operations=_list_unknown_operations(sums),
        unpriced_kernels=tuple(sorted(sums.kernels)),
    )


def _spread(measured: Measured) -> Spread | None:
    return Spread(rows=measured.rows, median=measured.median, worst=measured.worst) if measured.rows else None


def _find_step_bound(sums: Sums, analysis: Analysis) -> Bound:
    bound = sums.bound
    if sums.unpriced:
        bound += Bound.AT_LEAST
    if any(collective.kind is Kind.RAGGED_ALL_TO_ALL for collective in analysis.collectives):
        bound += Bound.AT_MOST
    return bound


def _list_rules(sums: Sums, priced: PricedCollectives, measured: Measured) -> tuple[RuleUse, ...]:
    """The rules that priced the step, and the error of each.

    If an exposed collective takes longer, the step takes longer by the same time; if it takes less, the step only loses
    the exposed part.
    """
    bearing: defaultdict[str, float] = defaultdict(float)
    exposed: defaultdict[str, float] = defaultdict(float)
    for key, waited_us in sums.waits.items():
        transfer = priced.times[key]
        if transfer is not None and waited_us > 0:
            bearing[transfer.rule] += transfer.time_us * sums.executions[key]
            exposed[transfer.rule] += waited_us
    offloaded = {time.rule for time in priced.times.values() if time is not None and time.is_offloaded}
    computing = {basis.value: amount for basis, amount in sums.by_basis.items()}
    uses = []
    for rule, amount in {**computing, **sums.rules}.items():
        error = measured.error_of(rule)
        more_us = computing.get(rule, bearing[rule]) * error
        uses.append(
            RuleUse(
                rule=rule,
                time_us=amount,
                calibrated=measured.is_calibrated(rule),
                measured_once=measured.is_measured_once(rule) or rule in offloaded,
                error=error,
                more_us=more_us,
                less_us=min(more_us, computing.get(rule, exposed[rule])),
            )
        )
    return tuple(sorted((use for use in uses if use.time_us > 0), key=lambda use: use.time_us, reverse=True))


def _list_unknown_operations(sums: Sums) -> tuple[UnknownOperation, ...]:
    found = [
        UnknownOperation(what=what, count=count, bytes=moved, time_us=time_us)
        for what, (time_us, moved, count) in sums.unknown.items()
    ]
    return tuple(sorted(found, key=lambda operation: operation.time_us, reverse=True))


def is_from_tpu(module: HloModule) -> bool:
    """Returns whether the TPU compiler printed a text."""
    return any(module.mentions(word) for word in _ONLY_TPU_PRINTS)


def _note_calibration(chip: Chip) -> Iterator[str]:
    """The note on figures from the user's own profile."""
    found = chip.calibration
    if found is not None:
        names = ", ".join((*found.figures, *(name for name, _ in found.constants)))
        yield f"{found.file} is used, fitted to the profile {found.profile}: {names or 'no figure'}"


def _note_text(module: HloModule, *, is_roofline: bool) -> Iterator[str]:
    """The notes on what the text leaves open."""
    if not module.is_scheduled:
        yield "the text has no schedule: its instruction order is used as one, and what would overlap is not known"
    if is_roofline:
        yield "the text has no cycle estimates: computation is a roofline of FLOPs and bytes, a lower bound"
        if not is_from_tpu(module):
            yield "the text does not look compiled for a TPU, whose compiler would choose other fusions and collectives"


def _note_kernels(module: HloModule, operations: Operations) -> Iterator[str]:
    """The notes on costs for kernels that the text does not have, and on costs that are too low to be possible."""
    calls = module.with_opcodes({"custom-call"})
    known = {name for call in calls for name in find_kernel_names(call)}
    for name in operations.kernel_costs:
        if name not in known:
            yield f"a cost is given for the kernel {name}, but the program has no kernel of that name"
    too_small = {}
    for call in calls:
        (_, said_bytes), written_bytes = operations.said_of(call) or (0.0, 0.0), operations.written_bytes(call)
        if 0 < said_bytes < written_bytes:
            too_small[find_kernel_names(call)[0]] = said_bytes, written_bytes
    for name, (said_bytes, written_bytes) in too_small.items():
        yield (
            f"the kernel {name} is said to move {format_bytes(said_bytes)}, but it writes "
            f"{format_bytes(written_bytes)}: it is priced by what it writes"
        )


def _note_generation(module: HloModule, sums: Sums, chip: Chip) -> Iterator[str]:
    """The note that a text cannot have been compiled for a chip, by the table's figures, ignoring overrides."""
    if not chip.has_sparse_cores and any(module.mentions(word) for word in SPARSE_CORE_MARKS):
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
            f"the text was likely compiled for a slower generation: by its cycles no large matmul exceeds "
            f"{100 * share:.0f}% of the peak of {chip.name}"
        )


def _note_transfers(collectives: Sequence[Collective], slice_name: str) -> Iterator[str]:
    """The notes on unknown facts about transfers.

    Args:
        collectives: The collectives with their times.
        slice_name: The slice that they were priced on.
    """
    unpriced = [collective for collective in collectives if collective.time_us is None]
    if any(collective.kind is Kind.OPAQUE for collective in unpriced):
        yield "transfers that are not understood are counted as zero time, so the step time is a lower bound"
    unknown = [collective.name for collective in unpriced if collective.kind is not Kind.OPAQUE]
    if unknown:
        more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        named = ", ".join(f"%{name}" for name in unknown[:_MOST_NAMED])
        yield (f"how long {named}{more} would take on {slice_name} is unknown, so the step time is a lower bound")
    if any(collective.kind is Kind.RAGGED_ALL_TO_ALL for collective in collectives):
        yield "a ragged all-to-all is priced as if its whole buffer moved; if fewer rows are used, it takes less"
