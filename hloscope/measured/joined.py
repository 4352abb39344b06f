"""The runs of a program, joined with its compiled module and its prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from hloscope.analysis.model import Analysis
from hloscope.cost.predicted import Activity, PredictedOperation, Prediction
from hloscope.hlo import HloInstruction, HloModule
from hloscope.hlo.call_graph import HloGraph
from hloscope.measured.observed import (
    ObservedProgram,
    ObservedWait,
    collect_durations_us,
    find_waits,
    parse_printed_form,
)


@dataclass(frozen=True, kw_only=True)
class JoinedProgram:
    """One program, measured and predicted.

    Attributes:
        observed: Its runs.
        module: The compiled module.
        analysis: Its analysis.
        prediction: The prediction for its operations; None if not priced.
    """

    observed: ObservedProgram
    module: HloModule
    analysis: Analysis
    prediction: Prediction | None

    @cached_property
    def graph(self) -> HloGraph:
        """The module's graph."""
        return HloGraph(self.module)

    @cached_property
    def matched(self) -> Mapping[str, HloInstruction]:
        """The instructions of the compiled module for the measured operations, by their names."""
        named = self.module.named(set(self.observed.operations))
        return {name: named[name] for name in self.observed.operations if name in named and self._is_same(named[name])}

    @cached_property
    def predicted(self) -> Mapping[str, PredictedOperation]:
        """The predictions for the operations of the schedule, by their names."""
        if self.prediction is None:
            return {}
        return {name: found for (_, name), found in self.prediction.operations.items()}

    @cached_property
    def waits(self) -> Mapping[str, list[ObservedWait]]:
        """Each measured execution of an asynchronous operation, by the name of its start."""
        starts = {name: found.waits_for for name, found in self.predicted.items() if found.waits_for is not None}
        queues = {name: found.queue for name, found in self.predicted.items() if found.queue is not None}
        return find_waits(self.observed, starts, queues)

    @cached_property
    def durations_us(self) -> Mapping[str, list[float]]:
        """The duration of each measured execution of each operation, by its name."""
        return collect_durations_us(self.observed)

    @cached_property
    def predicted_waits_us(self) -> Mapping[str, float]:
        """The predicted wait for each asynchronous operation, by the name of its start."""
        found: dict[str, float] = {}
        for interval in self.predicted.values():
            if interval.waits_for is not None:
                found[interval.waits_for] = found.get(interval.waits_for, 0.0) + interval.time_us
        return found

    @cached_property
    def matched_share(self) -> float | None:
        """The share of the operations' time in matched ones; None without any."""
        times = {name: self.observed.time_us(name) for name in self.observed.operations}
        whole = sum(times.values())
        return None if whole <= 0 else sum(times[name] for name in self.matched) / whole

    def activity_of(self, name: str) -> Activity | None:
        """The device's activity during an operation; None if the compiled module or its schedule lacks it.

        Without a prediction, as for CPU devices, everything except collectives is assumed to compute.
        """
        if name in self.predicted:
            return self.predicted[name].activity if self._is_in_module(name) else None
        if self.prediction is not None or name not in self.matched:
            return None
        return Activity.COMMUNICATION if name in self._collectives else Activity.COMPUTING

    def _is_in_module(self, name: str) -> bool:
        return name in self.matched or name not in self.observed.operations

    @cached_property
    def _collectives(self) -> frozenset[str]:
        return frozenset(part.name for one in self.analysis.collectives for part in one.parts or (one,))

    def is_calibrated(self, rule: str | None) -> bool:
        """Returns whether a rule was compared with published measurements of this generation."""
        return rule is not None and self.prediction is not None and self.prediction.is_calibrated(rule)

    def _is_same(self, instruction: HloInstruction) -> bool:
        """Returns whether a measured operation has the opcode and shape of the instruction of its name."""
        printed = parse_printed_form(self.observed.operations[instruction.name])
        return printed is None or printed == (str(instruction.shape).replace(" ", ""), instruction.opcode)
