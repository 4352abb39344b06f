"""Calibration of the chip's figures from a profile: clock, links, memory and fixed costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from hloscope.base.errors import ProfileError
from hloscope.cost.predictions import FROM_HOST, TO_HOST, PredictedOperation
from hloscope.cost.records import TimeBasis
from hloscope.measurement.joining import JoinedProgram, measure_transfers
from hloscope.measurement.model import CalibratedFigure, CompareDocument, MeasuredTransfer
from hloscope.model.timeline import Activity
from hloscope.model.vocabulary import Bound
from hloscope.tpu.chips import find_chip
from hloscope.tpu.generation import Chip

LEAST_MATCHED = 0.95
"""The least share of the operations' time: below it, the program was compiled with other flags or another compiler."""

_MICROSECONDS = 1e6
_LEAST_US = 5.0
"""Shorter operations depend on fixed costs that the compiler's cycles do not include."""

_MOST_OFF = 1.3
"""Measurements of one figure that differ by a larger factor do not measure the same thing."""

_ON_SEVERAL_AXES = {"rings along several axes": "grid_share", "asynchronous gather": "dma_grid_share"}
_ONE_WAY = frozenset({"ring in one direction", "ring round a closed axis"})
_BOTH_WAYS = frozenset({"pair", "ring in both directions", "permute", "all-to-all", *_ON_SEVERAL_AXES})
_PERMUTE = "permute"
_SHARES = ("link_share", "one_way_ring_share", "grid_share", "dma_grid_share")
"""Constants of the cost model: the share of a link's bandwidth that transfers reach."""

_RAW_LINK = 1.12
"""A link's raw rate over its usable one: 50 over 45 GB/s, 100 over 90."""

_BOUNDS = {
    "clock_hz": (0.5, 1.2),
    "hbm_bytes_per_s": (0.3, 1.25),
}
"""The plausible range, relative to the figure in the table: outside it, something other than the chip is measured."""

_LITTLE, _MUCH = 0.2, 0.5
"""The shares of a fixed cost in a collective's time at which it hardly matters, and at which it dominates."""

_PCIE = (1e9, 64e9)
"""Bytes per second of hosts: up to 16 lanes of PCIe 5."""

_START_US = (0.1, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurements:
    """The usable part of a profile: operations and transfers of programs that match the profiled ones.

    Attributes:
        chip: The figures of the prediction.
        operations: (prediction, measured microseconds of one execution) of computing operations.
        transfers: Transfers whose times are known exactly, with the prediction for their start.
    """

    chip: Chip
    operations: tuple[tuple[PredictedOperation, float], ...]
    transfers: tuple[tuple[MeasuredTransfer, PredictedOperation], ...]


def fit_figures(joined: Sequence[JoinedProgram]) -> tuple[CalibratedFigure, ...]:
    """Returns each figure with its value from the profile, or why the profile does not determine it.

    A figure is the median over all measurements. It is refused if nothing measures it, if the measurements contradict
    each other, or if no chip could have it.
    """
    predictions = [program.prediction for program in joined if program.prediction is not None]
    if not predictions:
        return ()
    operations = predictions[0].walk.operations
    chip, constants = operations.chip, operations.constants
    found = _select_measurements(joined, chip)
    figures = [
        _fit_figure(name, getattr(chip, name), measured, _find_plausible_range(chip, name))
        for name, measured in (
            ("clock_hz", _estimate_rates(found, chip.clock_hz, TimeBasis.CYCLES)),
            ("hbm_bytes_per_s", _estimate_rates(found, chip.hbm_bytes_per_s, TimeBasis.MEMORY)),
            ("pcie_bytes_per_s", _estimate_host_rates(found, constants.host_share)),
        )
    ]
    for name in _SHARES:
        before = float(getattr(constants, name))
        figures.append(_fit_figure(name, before, _estimate_shares(found, name, before), (0.05, _RAW_LINK)))
    for name, permutes in (("start_us", False), ("permute_start_us", True)):
        before = float(getattr(constants, name))
        figures.append(_fit_figure(name, before, _estimate_starts(found, before, permutes=permutes), _START_US))
    return tuple(figures)


def _find_plausible_range(chip: Chip, name: str) -> tuple[float, float]:
    """The plausible range of a figure: near that of the table, regardless of overrides; that of hosts for PCIe."""
    if name not in _BOUNDS:
        return _PCIE
    least, most = _BOUNDS[name]
    usual = float(getattr(find_chip(chip.name), name))
    return least * usual, most * usual


def _select_measurements(joined: Sequence[JoinedProgram], chip: Chip) -> _Measurements:
    operations: list[tuple[PredictedOperation, float]] = []
    transfers: list[tuple[MeasuredTransfer, PredictedOperation]] = []
    for program in joined:
        if program.prediction is None or (program.matched_share or 0.0) < LEAST_MATCHED:
            continue
        for name, found in program.predicted.items():
            executions = program.observed.executions(name) if name in program.matched else 0.0
            if executions and found.activity is Activity.COMPUTING and found.waits_for is None:
                operations.append((found, program.observed.time_us(name) / executions))
        known = (each for each in measure_transfers(program) if each.measured_bound is Bound.EXACT)
        transfers.extend((each, program.predicted[each.name]) for each in known if each.name in program.predicted)
    return _Measurements(chip=chip, operations=tuple(operations), transfers=tuple(transfers))


def _fit_figure(
    name: str, before: float | None, asked: Iterable[float], bounds: tuple[float, float]
) -> CalibratedFigure:
    values = sorted(asked)
    least, most = bounds
    middle = median(values) if values else None
    why = None
    if middle is None:
        why = "nothing in the profile measures it separately"
    elif not least <= middle <= most:
        why = f"{middle:.4g} is outside the range of a chip, {least:.4g} to {most:.4g}"
    elif _find_spread(values) > _MOST_OFF:
        why = f"its measurements range from {values[0]:.4g} to {values[-1]:.4g}, which is not a single figure"
    return CalibratedFigure(
        name=name, value=middle if why is None else None, before=before, rests_on=len(values), why=why
    )


def _find_spread(values: Sequence[float]) -> float:
    """The factor between the quartiles."""
    quarter = len(values) // 4
    return values[-1 - quarter] / values[quarter]


def _is_paced_by_memory(found: PredictedOperation, measured_us: float, chip: Chip) -> bool:
    """Returns whether an operation took less than twice the time of its bytes through the memory."""
    return 2 * found.hbm_bytes * chip.devices_per_chip / chip.hbm_bytes_per_s * _MICROSECONDS > measured_us


def _estimate_rates(found: _Measurements, figure: float, basis: TimeBasis) -> Iterator[float]:
    """The clock from operations that take the compiler's cycles, or the memory's rate from those that it slows down."""
    for predicted, measured_us in found.operations:
        is_long = predicted.rule == basis and measured_us >= _LEAST_US and predicted.time_us > 0
        if is_long and _is_paced_by_memory(predicted, measured_us, found.chip) is (basis is TimeBasis.MEMORY):
            yield figure * predicted.time_us / measured_us


def _estimate_host_rates(found: _Measurements, share: float) -> Iterator[float]:
    """The rates of copies between host and device, each of which reaches a share of the link's bandwidth."""
    for transfer, predicted in found.transfers:
        if predicted.queue in (FROM_HOST, TO_HOST) and transfer.measured_bytes_per_s is not None:
            yield transfer.measured_bytes_per_s * found.chip.devices_per_chip / share


def _find_share(predicted: PredictedOperation) -> str | None:
    """The constant for the share of a link's bandwidth that a collective's time depends on."""
    if predicted.rule in _ON_SEVERAL_AXES and (predicted.link_axes or 0) > 1:
        return _ON_SEVERAL_AXES[predicted.rule]
    if predicted.rule in _ONE_WAY:
        return "one_way_ring_share"
    return "link_share" if predicted.rule in _BOTH_WAYS else None


def _estimate_shares(found: _Measurements, name: str, before: float) -> Iterator[float]:
    """The shares of bandwidth from collectives whose time is mostly that of their bytes."""
    for transfer, predicted in found.transfers:
        times = transfer.measured_us, predicted.transfer_us, predicted.latency_us
        if _find_share(predicted) != name or None in times:
            continue
        measured_us, predicted_us, latency_us = (float(time or 0.0) for time in times)
        if measured_us > latency_us and latency_us < _LITTLE * predicted_us:
            yield before * (predicted_us - latency_us) / (measured_us - latency_us)


def _estimate_starts(found: _Measurements, before: float, *, permutes: bool) -> Iterator[float]:
    """The start times from collectives whose time is mostly not that of their bytes."""
    for transfer, predicted in found.transfers:
        if transfer.measured_us is None or predicted.transfer_us is None or predicted.latency_us is None:
            continue
        if (predicted.rule == _PERMUTE) is permutes and predicted.latency_us > _MUCH * predicted.transfer_us:
            yield before + transfer.measured_us - predicted.transfer_us


# ---- as a file for --chip-override


def render_calibration_file(document: CompareDocument, of_chip: Callable[[str], bool]) -> str:
    """Returns the text of a file that `--chip-override` reads.

    Args:
        document: A comparison with its calibration.
        of_chip: Whether a name is a figure of the chip; other names are constants of the cost model.

    Raises:
        ProfileError: The profile does not determine any figure.
    """
    settled = [figure for figure in document.calibration if figure.value is not None]
    if not settled or document.chip is None:
        raise ProfileError(
            f"{document.profile} determines no figure",
            why=_explain_none(document),
            fix="take a profile of the compared program, of a step with large matmuls or collectives",
        )
    lines = ["# Written by hloscope compare --save, for --chip-override.", f"[{document.chip}]"]
    lines += [_render_line(figure) for figure in settled if of_chip(figure.name)]
    lines += ["", f"[{document.chip}.measured]"]
    lines += [_render_line(figure) for figure in settled if not of_chip(figure.name)]
    lines += ["", f"[{document.chip}.fitted_to]", f"profile = {json.dumps(document.profile)}"]
    lines += [f"programs = {json.dumps([program.program for program in document.programs])}"]
    lines += ["", *(f"# {figure.name}: {figure.why}" for figure in document.calibration if figure.why is not None)]
    return "\n".join(lines).rstrip() + "\n"


def _render_line(figure: CalibratedFigure) -> str:
    before = "" if figure.before is None else f", before {figure.before:.4g}"
    return f"{figure.name} = {figure.value!r}  # measurements: {figure.rests_on}{before}"


def _explain_none(document: CompareDocument) -> str:
    if document.is_prediction:
        return "it is hloscope's own prediction: nothing in it was measured"
    shares = [program.matched_share or 0.0 for program in document.programs]
    if shares and max(shares) < LEAST_MATCHED:
        return (
            f"only {100 * max(shares):.0f}% of its time is in operations that the compiled module has: it was compiled "
            "with other flags, or by another compiler"
        )
    return "; ".join(f"{figure.name}: {figure.why}" for figure in document.calibration) or "nothing is predicted for it"
