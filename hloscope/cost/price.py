"""The pricing stage: adds times on a slice, and the assumptions behind them, to an analysis."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from operator import attrgetter
from typing import NamedTuple

from hloscope.analysis.analyze import is_from_tpu
from hloscope.analysis.compute import MATMUL_OPCODES, find_kernel_names
from hloscope.analysis.provenance import find_provenance
from hloscope.base.errors import SliceError
from hloscope.base.units import count_array_bytes, format_bytes, format_share
from hloscope.cost.collectives import Pricing, count_partitions, map_partitions_to_devices, price_collectives
from hloscope.cost.network import Network
from hloscope.cost.operations import Operations, Work, count_fused_work, count_work, read_cycles
from hloscope.cost.records import PricedCollectives, Sums, TimeBasis
from hloscope.cost.walk import Walk
from hloscope.hlo import HloInstruction, HloModule, pause_collector
from hloscope.hlo.call_graph import HloGraph, find_call_graph, reach_all
from hloscope.model import Analysis, Collective, Collectives
from hloscope.model.capture import Capture
from hloscope.model.collectives import Overlap, Relation, change_collective
from hloscope.model.timeline import WaitCause
from hloscope.model.trial import RuleUse, Spread, StepTime, UnknownOperation
from hloscope.model.vocabulary import Bound, CompileStage, Kind
from hloscope.tpu.chips import CHIPS, find_chip
from hloscope.tpu.estimates import Estimates, find_estimates
from hloscope.tpu.generation import MEGACORE, Chip, Mark, Measured
from hloscope.tpu.slices import Slice, find_constants, find_smallest_slice
from hloscope.tpu.torus import Torus

# ---- the matrix multiplication that each exposed collective could overlap with

SHARE_OF_STEP = 0.05
"""Share of the step: a less exposed collective is not worth the search, which reads its whole computation."""

_RUNS_ITS_OWN_SCHEDULE = frozenset({"while", "conditional", "call"})
_ASYNCHRONOUS = ("-start", "-update", "-done")

_Neighbors = Callable[[HloInstruction], Sequence[HloInstruction]]


def attach_overlaps(
    collectives: Sequence[Collective], graph: HloGraph, operations: Operations, step_us: float
) -> tuple[Collective, ...]:
    """Adds to the collectives that the step waits for long the matmul that could hide them.

    Asynchronous collectives overlap with work that neither makes their operands nor uses their results; a collective
    matmul overlaps with its own matrix multiplication by moving one part while another is multiplied.

    Args:
        collectives: The collectives with their times.
        graph: The module.
        operations: Prices computing instructions.
        step_us: Time of the step in microseconds.

    Source: Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
        Models" (ASPLOS 2023), for the second.
    """
    return tuple(
        replace(collective, overlap=_find_overlap(collective, graph, operations))
        if (collective.exposed_us or 0.0) * collective.executions > SHARE_OF_STEP * step_us
        else collective
        for collective in collectives
    )


def _find_overlap(collective: Collective, graph: HloGraph, operations: Operations) -> Overlap | None:
    start = _find_scheduled(graph.module.computation(collective.computation).instruction(collective.name), graph)
    before, after = attrgetter("operands"), attrgetter("users")
    related = {*reach_all([start], before), *reach_all([start], after)}
    candidates: tuple[tuple[Relation, Iterable[HloInstruction]], ...] = (
        (Relation.INDEPENDENT, (other for other in start.computation.instructions if other not in related)),
        (Relation.CONSUMER, _find_nearest_matmuls(start, after, operations)),
        (Relation.PRODUCER, _find_nearest_matmuls(start, before, operations)),
    )
    for relation, instructions in candidates:
        timed = [(time_us, other) for other in instructions if (time_us := _matmul_us(other, operations)) is not None]
        if timed:
            time_us, found = max(timed, key=lambda pair: pair[0])
            source = find_provenance(graph, [found]).source
            return Overlap(name=found.name, relation=relation, time_us=time_us, source=source)
    return None


def _find_scheduled(instruction: HloInstruction, graph: HloGraph) -> HloInstruction:
    """The scheduled instruction that contains a collective: itself, or the fusion or wrapper around it."""
    caller = graph.only_caller(instruction.computation.name)
    while caller is not None and caller.opcode not in _RUNS_ITS_OWN_SCHEDULE:
        instruction = caller
        caller = graph.only_caller(instruction.computation.name)
    return instruction


def _find_nearest_matmuls(start: HloInstruction, neighbors: _Neighbors, operations: Operations) -> list[HloInstruction]:
    """The first matrix multiplications on each path from an instruction."""
    found: list[HloInstruction] = []
    seen, pending = {start.name}, [start]
    while pending:
        for other in neighbors(pending.pop()):
            if other.name in seen:
                continue
            seen.add(other.name)
            (pending if _matmul_us(other, operations) is None else found).append(other)
    return found


def _matmul_us(instruction: HloInstruction, operations: Operations) -> float | None:
    """The time of an instruction that multiplies matrices; None for all others."""
    opcode = instruction.opcode
    if opcode in _RUNS_ITS_OWN_SCHEDULE or opcode.endswith(_ASYNCHRONOUS):
        return None
    cost = operations.time_of(instruction)
    return cost.time_us if cost.flops > 0 else None


_MICROSECONDS = 1e6
WITHOUT_MACHINE_CODE = "estimate without machine code"
"""The rule of what the scheduled stage leaves open."""
_ENDLESS_STEP_NOTE = "the step is not priced: according to their trip counts, its loops do not finish"
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
    kernel_costs: Mapping[str, tuple[float, float]] | None = None,
) -> Analysis:
    """Adds the times of the step and of each collective on a slice to an analysis.

    Args:
        analysis: The analysis of the module.
        module: The compiled program; its text order is taken as the order of execution.
        chosen: The slice; without one, or without TPU chips, nothing is priced.
        device_ids: The device of each partition, as passed to the compiler; by default the choice of `jax.make_mesh`.
        kernel_costs: The user's FLOPs and bytes of kernels, by name.

    Returns:
        The analysis with `time`, and with `time_us` and `exposed_us` of each collective.
    """
    priced = price_walk(analysis, module, chosen, device_ids=device_ids, kernel_costs=kernel_costs)
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
    kernel_costs: Mapping[str, tuple[float, float]] | None = None,
) -> PricedWalk | None:
    """The walk over a module's schedule, and the analysis with its times.

    Args:
        analysis: The analysis of the module.
        module: As for `price_module`.
        chosen: As for `price_module`.
        device_ids: As for `price_module`.
        kernel_costs: As for `price_module`.

    Returns:
        The walk and the analysis; None without TPU chips, or if the text is cut off.
    """
    if chosen is None or chosen.chip is None or module.truncated:
        return None
    walk, notes = make_walk(analysis, module, chosen, device_ids=device_ids, kernel_costs=kernel_costs)
    sums = walk.step()
    if not isfinite(sums.total_us + sums.prefetched_us):
        return PricedWalk(walk, replace(analysis, notes=(*analysis.notes, _ENDLESS_STEP_NOTE)))
    collectives = tuple(
        _attach_times(collective, walk.priced, sums, chosen.chip.measured) for collective in analysis.collectives
    )
    basis = _find_basis_word(sums, module, analysis.stage, walk.operations.estimates)
    notes += tuple(_note_text(module, analysis.stage, basis, walk.operations.estimates))
    notes += tuple(_note_kernels(module, walk.operations))
    notes += tuple(_note_calibration(chosen.chip))
    if device_ids is None:
        notes += tuple(_note_generation(module, sums, chosen.chip))
    notes += tuple(_note_transfers(collectives, chosen.name))
    time = _make_step_time(sums, walk.priced, analysis, chosen.chip, basis=basis, estimates=walk.operations.estimates)
    collectives = attach_overlaps(collectives, walk.graph, walk.operations, time.step_us)
    time = replace(time, is_scheduled=module.is_scheduled, notes=notes)
    return PricedWalk(walk, replace(analysis, collectives=Collectives(collectives), time=time))


def make_walk(
    analysis: Analysis,
    module: HloModule,
    chosen: Slice,
    *,
    device_ids: Sequence[int] | None,
    kernel_costs: Mapping[str, tuple[float, float]] | None,
) -> tuple[Walk, tuple[str, ...]]:
    """The walk over a module's schedule, not yet started, and the assumptions made.

    Args:
        analysis: The analysis of the module.
        module: The compiled program.
        chosen: The TPU slice.
        device_ids: As for `price_module`.
        kernel_costs: As for `price_module`.
    """
    assert chosen.chip is not None, "only TPU slices are priced"
    graph, constants = find_call_graph(module), find_constants(chosen.chip)
    network = Network(torus=Torus.of(chosen), chip=chosen.chip, constants=constants)
    device_of, notes = map_partitions_to_devices(analysis.mesh, chosen, count_partitions(analysis, module), device_ids)
    known = None if device_ids is None else tuple(device_ids)
    is_early = analysis.stage is CompileStage.SCHEDULED
    estimates = find_estimates(chosen.chip.name) if is_early else None
    pricing = Pricing(
        network=network,
        device_of=device_of,
        device_ids=known,
        algorithms=() if estimates is None else estimates.algorithms,
    )
    priced = price_collectives(analysis, graph, pricing)
    operations = Operations(
        graph=graph,
        chip=chosen.chip,
        constants=constants,
        kernel_costs=kernel_costs or {},
        has_cycles=not is_early,
        estimates=estimates,
    )
    return Walk(graph, operations, priced), notes


def make_program_walk(program: Capture, module: HloModule, analysis: Analysis) -> Walk:
    """The walk over a compiled program's schedule, not yet started.

    Args:
        program: The program, compiled for a TPU slice.
        module: Its parsed text.
        analysis: Its analysis.
    """
    assert program.slice is not None, "only programs for a slice are priced"
    device_ids = program.compiled.device_ids or None
    walk, _ = make_walk(analysis, module, program.slice, device_ids=device_ids, kernel_costs=program.kernel_costs)
    return walk


def _find_basis_word(sums: Sums, module: HloModule, stage: CompileStage | None, estimates: Estimates | None) -> str:
    """The basis of the computing time, as a word of `StepTime.basis`."""
    by_basis, is_counted = sums.by_basis, module.mentions("estimated_cycles")
    if sums.compute_us == 0:
        return "none"
    if stage is CompileStage.SCHEDULED:
        return "roofline" if estimates is None else "estimates"
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
    return change_collective(
        collective,
        time_us=sum(time.time_us for time in times if time is not None),
        exposed_us=sum(exposed) if len(exposed) == len(keys) else None,
        time_error=max((measured.error_of(time.rule) for time in times if time is not None), default=None),
    )


def _make_step_time(
    sums: Sums,
    priced: PricedCollectives,
    analysis: Analysis,
    chip: Chip,
    *,
    basis: str,
    estimates: Estimates | None,
) -> StepTime:
    step_us = sums.total_us
    first_step_us = step_us - sums.waited_us[WaitCause.LIMIT] + sums.prefetched_us
    peak = chip.bf16_flops_per_s / chip.devices_per_chip
    found = StepTime(
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
        conditional_us=_find_conditional_us(sums, analysis),
        rules=(*_list_estimate_rule(sums, estimates), *_list_rules(sums, priced, chip.measured)),
        spread=None if sums.kernels else _spread(chip.measured),
        unknown_operations=_list_unknown_operations(sums),
        unpriced_kernels=tuple(sorted(sums.kernels)),
    )
    # Whatever else unknown operations do, they take the time of their bytes.
    return replace(found, bound=found.bound + Bound.AT_LEAST) if found.rests_on_unknown else found


def _spread(measured: Measured) -> Spread | None:
    return Spread(rows=measured.rows, median=measured.median, worst=measured.worst) if measured.rows else None


def _find_conditional_us(sums: Sums, analysis: Analysis) -> float | None:
    is_known = isfinite(sums.conditional_us) and not _has_ragged(analysis)
    return sums.conditional_us if is_known else None


def _has_ragged(analysis: Analysis) -> bool:
    """Returns whether a collective moves as much as its operands say, which only the running program knows."""
    return any(collective.kind is Kind.RAGGED_ALL_TO_ALL for collective in analysis.collectives)


def _find_step_bound(sums: Sums, analysis: Analysis) -> Bound:
    bound = sums.bound
    if sums.unpriced:
        bound += Bound.AT_LEAST
    if _has_ragged(analysis):
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


def _list_estimate_rule(sums: Sums, estimates: Estimates | None) -> Iterator[RuleUse]:
    """The error of a step without the compiler's own figures, in addition to the errors with them."""
    if estimates is not None and sums.total_us > 0:
        error_us = estimates.error * sums.total_us
        yield RuleUse(
            rule=WITHOUT_MACHINE_CODE,
            time_us=sums.total_us,
            calibrated=False,
            error=estimates.error,
            more_us=error_us,
            less_us=min(error_us, sums.total_us),
        )


def _list_unknown_operations(sums: Sums) -> tuple[UnknownOperation, ...]:
    found = [
        UnknownOperation(what=what, count=count, bytes=moved, time_us=time_us)
        for what, (time_us, moved, count) in sums.unknown.items()
    ]
    return tuple(sorted(found, key=lambda operation: operation.time_us, reverse=True))


def _note_calibration(chip: Chip) -> Iterator[str]:
    """The note on figures from the user's own profile."""
    found = chip.calibration
    if found is not None:
        names = ", ".join((*found.figures, *(name for name, _ in found.constants)))
        yield f"{found.file} is used, fitted to the profile {found.profile}: {names or 'no figure'}"


def _note_text(module: HloModule, stage: CompileStage | None, basis: str, estimates: Estimates | None) -> Iterator[str]:
    """The notes on what the text leaves open."""
    if not module.is_scheduled:
        yield "the text has no schedule: its instruction order is used as one, and what would overlap is not known"
    if stage is CompileStage.SCHEDULED and estimates is not None:
        yield (
            f"the program is scheduled, not yet compiled: times are estimated without machine code, ±"
            f"{format_share(estimates.error)}; a compile to the end has those of the compiler's own figures"
        )
    elif stage is CompileStage.SCHEDULED:
        yield (
            "the program is scheduled, not yet compiled: computation is a roofline of FLOPs and bytes, a lower bound, "
            "and the algorithms of collectives are not known"
        )
    elif basis == "roofline":
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


# ---- A guess of the TPU generation that HLO text was compiled for, from features that only some generations print
#
# A guess is made only if everything in the text leaves one generation; it states its evidence. Each mark was seen in
# programs compiled for v2 to 7x by the libtpu of JAX 0.10 and 0.12, and the guesses were then counted on others.

_SCALAR_TILE = re.compile(r"\b(?:f32|s32|u32)\[\]\{:T\((\d+)\)|\bbf16\[\]\{:T\((\d+)\)")
_WIDENED = "float_type_correction_info"
"""Arithmetic in bf16 that is done in f32 instead."""

_LEAST_FLOPS = 1e9
_LEAST_INTENSITY = 600.0
"""FLOPs per byte above which no generation's memory slows a matmul down."""
_SHARES = (0.56, 1.1)
"""The share of its own generation's peak that such a matmul reaches, in the compiler's cycles: 0.57 to 0.98 in samples.

Peaks per cycle differ by factors of two from v2 to v5e, v5p and v6e, so that no share of two of them lies here; v4 and
v5p are alike, and so are v6e and 7x.
"""
_NARROW = dict.fromkeys(("s8", "u8", "s4", "u4", "s2", "u2", "f8e5m2", "f8e4m3fn", "f8e4m3b11fnuz", "f8e4m3"), 0.0)
"""Types whose pace relative to bf16's differs between generations: their work is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceGuess:
    """A slice that the user has not named.

    Attributes:
        slice: The guessed generation, in the usual block of as many devices.
        because: The evidence for the guess, in words.
    """

    slice: Slice
    because: str


@pause_collector()
def guess_slice(module: HloModule) -> SliceGuess | None:
    """The slice that a text was likely compiled for.

    Returns:
        A guess; None if the text is not for a TPU, if it fits several generations or none, or if no single slice of the
        generation has as many devices, as for text that is one slice's part of several.
    """
    if not is_from_tpu(module) or module.truncated or module.mentions("_xla_megascale"):
        return None
    left, because = _match_marks(module)
    density = _find_density(module)
    if density > 0:
        left = [chip for chip in left if _may_reach_density(chip, density, module)]
    if len(left) != 1:
        return None
    (chip,) = left
    if density > 0:
        share = format_share(density / _compute_peak_per_cycle(chip))
        because.append(f"a matmul reaches {share} of its peak in the compiler's cycles")
    try:
        found = find_smallest_slice(module.device_count, chip.name)
    except SliceError:
        return None
    return SliceGuess(slice=found, because=" and ".join(because)) if found.device_count == module.device_count else None


def _match_marks(module: HloModule) -> tuple[list[Chip], list[str]]:
    """The generations that print the text's marks, and the evidence in words."""
    left, because = list(CHIPS), []
    for mark in _marks():
        if module.mentions(mark.text) and not all(mark in chip.hlo_marks for chip in left):
            left = [chip for chip in left if mark in chip.hlo_marks]
            because.append(mark.meaning)
    wide = _has_wide_scalar_tiles(module)
    if wide is not None:
        left = [chip for chip in left if chip.has_wide_scalar_tiles is wide]
    if module.mentions(_WIDENED):
        left = [chip for chip in left if not chip.has_bf16_arithmetic]
    if any(module.mentions(word) for word in SPARSE_CORE_MARKS):
        left = [chip for chip in left if chip.has_sparse_cores]
    return left, because


def _marks() -> list[Mark]:
    """The marks of all generations, newest first; those of one generation alone come before all others."""
    printed = Counter(mark for chip in reversed(CHIPS) for mark in chip.hlo_marks)
    return sorted(printed, key=lambda mark: printed[mark] > 1)


def _has_wide_scalar_tiles(module: HloModule) -> bool | None:
    """True if scalars have the tiles of the oldest generations, twice as wide; None if the text has no scalars."""
    match = module.first_match(_SCALAR_TILE)
    if match is None:
        return None
    return int(match[1]) > 128 if match[1] else int(match[2]) > 256


def _may_reach_density(chip: Chip, density: float, module: HloModule) -> bool:
    """True if a generation may reach the density of a matmul; where two cores are one device, it must be split."""
    low, high = _SHARES
    return low <= density / _compute_peak_per_cycle(chip) <= high and (
        not chip.is_megacore or module.mentions(MEGACORE.text)
    )


def _compute_peak_per_cycle(chip: Chip) -> float:
    """A device's bf16 peak in FLOPs per cycle of the clock that the compiler counts in."""
    return chip.bf16_flops_per_s / chip.devices_per_chip / chip.clock_hz


def _find_density(module: HloModule) -> float:
    """FLOPs per cycle of the densest matmul that memory does not slow down; 0 without one."""
    graph = find_call_graph(module)
    inside = count_fused_work(graph, _NARROW)
    return max(_iterate_densities(module, inside), default=0.0)


def _iterate_densities(module: HloModule, inside: dict[str, Work]) -> Iterator[float]:
    for instruction in module.with_opcodes({"fusion", *MATMUL_OPCODES}):
        cycles = read_cycles(instruction)
        if cycles:
            is_fusion = instruction.opcode == "fusion"
            work = inside.get(instruction.called[0][1]) if is_fusion else count_work(instruction, _NARROW)
            if work is not None and work.is_whole and _is_dense(instruction, work.bf16_flops):
                yield work.bf16_flops / cycles


def _is_dense(instruction: HloInstruction, flops: float) -> bool:
    shapes = (instruction.shape, *(operand.shape for operand in instruction.operands))
    sizes = [
        count_array_bytes(leaf.element_type, leaf.element_count) or 0 for shape in shapes for leaf in shape.leaves()
    ]
    return flops >= max(_LEAST_FLOPS, _LEAST_INTENSITY * sum(sizes))
