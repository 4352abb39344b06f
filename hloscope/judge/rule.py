"""The facts that rules can query, and the interface of rules. A new fact is a query here, not a field of `Analysis`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, dataclass_transform

from hloscope.analysis.provenance import render_users_line, short_source
from hloscope.base.errors import Option, mark
from hloscope.base.units import format_bytes, format_count, format_time
from hloscope.hlo import HloModule
from hloscope.hlo.call_graph import HloGraph
from hloscope.model import Analysis, ArrayFact, Collective, IntermediateFact, bytes_bound
from hloscope.model.finding import SECTIONS, Finding, RuleDoc, Severity
from hloscope.model.reason import Reason
from hloscope.model.vocabulary import Bound, Kind
from hloscope.tpu.slices import Slice

if TYPE_CHECKING:
    from hloscope.cost.program_graph import CriticalPath


SHARE: Mapping[str, bool] = {"is_share": True}
"""The metadata of an option that is a share of something, which is never more than all of it."""


@dataclass(eq=False, repr=False)
class Facts:
    """A compiled program as rules see it; each query is computed on first use and cached.

    Attributes:
        analysis: The analysis that reports show.
        module: The parsed HLO; None if there is only an analysis.
        slice: The slice that the program runs on, with its chip; None if unknown.
        kernel_costs: FLOPs and bytes of kernels as given by the user, by kernel name.
    """

    analysis: Analysis
    module: HloModule | None = None
    slice: Slice | None = None
    kernel_costs: Mapping[str, tuple[float, float]] = field(default_factory=dict, kw_only=True)
    _dataflows: dict[str, Any] = field(default_factory=dict, init=False)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives, most bytes per step first."""
        return self.analysis.collectives

    def moving(self, payload_bytes: int) -> tuple[Collective, ...]:
        """Returns the collectives that move at least so many bytes per execution, or unknown bytes, except opaque ones.

        Collectives in groups of one device send nothing and are excluded.
        """
        return tuple(
            collective
            for collective in self.collectives
            if collective.kind is not Kind.OPAQUE
            and collective.wire_bytes != 0
            and (collective.payload_bytes is None or collective.payload_bytes >= payload_bytes)
        )

    @cached_property
    def sending(self) -> tuple[Collective, ...]:
        """The collectives that are known to send bytes."""
        return tuple(collective for collective in self.collectives if collective.wire_bytes)

    @cached_property
    def explained(self) -> tuple[tuple[Collective, Reason], ...]:
        """The collectives whose reason is known, each with its reason."""
        return tuple(
            (collective, collective.reason) for collective in self.collectives if collective.reason is not None
        )

    @cached_property
    def used_arrays(self) -> tuple[tuple[str, ArrayFact], ...]:
        """The arguments and outputs that the program uses, each with its role: `argument` or `output`."""
        by_role = (("argument", self.analysis.arguments), ("output", self.analysis.outputs))
        return tuple((role, array) for role, arrays in by_role for array in arrays if array.used)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """The number of devices along each mesh axis, major first; empty without a mesh."""
        mesh = self.analysis.mesh
        return {} if mesh is None else dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))

    @property
    def step_us(self) -> float | None:
        """The predicted step time in microseconds; None if not priced."""
        return None if self.analysis.time is None else self.analysis.time.step_us

    @property
    def hbm_share(self) -> float | None:
        """The share of a device's HBM that the program uses, above 1 if it does not fit; None if unknown."""
        memory = self.analysis.memory
        return None if memory.peak_bytes is None or not memory.hbm_bytes else memory.peak_bytes / memory.hbm_bytes

    @cached_property
    def graph(self) -> HloGraph | None:
        """The call graph; None without the HLO."""
        return None if self.module is None else HloGraph(self.module)

    def dataflow(self, computation: str) -> Any:
        """Returns the dependencies of a computation's instructions as a `networkx.DiGraph`; None without the HLO.

        Nodes are instruction names, with the `HloInstruction` as `instruction`; edges lead from an operand to its user.
        `networkx.ancestors(facts.dataflow(c.computation), c.name)` is everything that has to run before `c`.
        """
        if self.module is None:
            return None
        if computation not in self._dataflows:
            from hloscope.cost.program_graph import build_dataflow

            self._dataflows[computation] = build_dataflow(self.module.computation(computation))
        return self._dataflows[computation]

    @cached_property
    def critical_path(self) -> CriticalPath | None:
        """The longest chain of dependent operations; None if not priced."""
        if self.graph is None or self.step_us is None or self.slice is None or self.slice.chip is None:
            return None
        from hloscope.cost.operations import Operations
        from hloscope.cost.program_graph import find_critical_path

        operations = Operations(graph=self.graph, chip=self.slice.chip, kernel_costs=self.kernel_costs)
        return find_critical_path(operations, self.collectives)


# ---- the interface of rules: a name, a severity, options, a page, and a function from facts to findings


class Rule(Protocol):
    """A rule: a frozen dataclass whose fields are its options.

    Its page is its docstring, with the sections of `SECTIONS`, or otherwise that of its module; its own docstring
    describes the options. A rule with the option `active: bool = False` runs only if it is selected or that option is
    set.
    """

    name: ClassVar[str]
    severity: ClassVar[Severity]

    def check(self, facts: Facts) -> Iterator[Finding]:
        """Yields the findings of the rule."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class BuiltinRule:
    """Base class of built-in rules: a frozen dataclass whose name and severity are class keywords."""

    name: ClassVar[str]
    severity: ClassVar[Severity]
    named_options: ClassVar[tuple[Option, ...]] = ()
    """The options that its page names."""

    def __init_subclass__(cls, *, name: str, severity: Severity) -> None:
        cls.name, cls.severity = name, severity
        dataclass(frozen=True, kw_only=True)(cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A test case of a rule: a program on which it should or should not fire.

    Attributes:
        hlo: HLO text, or the path of an HLO file relative to the folder of the rule's module.
        fires: Whether the rule should report a finding.
        mesh: Axis names mapped to sizes, as the user would give them.
        slice: The slice to price it on; None for no slice.
        options: Values of the rule's options that differ from the defaults.
    """

    hlo: str | Path
    fires: bool
    mesh: Mapping[str, int] | None = None
    slice: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def finding_at(rule: Rule, collective: Collective, message: str, *, fix: str | None = None) -> Finding:
    """Creates a finding about one collective, with its place, reason and cost."""
    return finding_of(
        rule,
        message,
        computation=collective.computation,
        instruction=collective.name,
        line=collective.line,
        source=render_users_line(collective.source),
        why=collective.why,
        cost=cost_of(collective),
        fix=fix,
    )


def finding_of(rule: Rule, message: str, **details: Any) -> Finding:
    """Creates a finding about anything else; `details` are fields of `Finding`."""
    return Finding(rule=rule.name, severity=rule.severity, message=message, **details)


def cost_of(collective: Collective) -> str | None:
    """Formats a cost: `822 MB sent per device, 8 times per step (6.58 GB), 9.1 ms each`; None if the bytes are unknown.

    Bounds are marked: `at most 4.2 MB sent per device, at least 1 time per step (~4.2 MB)`.
    """
    if collective.wire_bytes is None:
        return None
    words = f"{collective.bytes_bound.said(format_bytes(collective.wire_bytes))} sent per device"
    if collective.executions != 1 or collective.executions_bound is not Bound.EXACT:
        total = bytes_bound(collective).marked(format_bytes(collective.wire_bytes_per_step))
        count = collective.executions_bound.said(format_count(collective.executions))
        words += f", {count} {'time' if collective.executions == 1 else 'times'} per step ({total})"
    return words if collective.time_us is None else f"{words}, {format_time(collective.time_us)} each"


def element_types(collective: Collective) -> frozenset[str]:
    """Formats the element types that a collective moves: `bf16`."""
    return frozenset(shape.dtype for shape in collective.operand_shapes)


def array_type(array: ArrayFact | IntermediateFact) -> str:
    """Formats the type of an array on one device: `bf16[2,1024]`."""
    return f"{array.dtype}[{','.join(map(str, array.local_shape))}]"


def over_axes(collective: Collective) -> str:
    """Formats kind and axes: `all-gather over X,Y`, or `over X,Y (guessed)`; only the kind if the axes are unknown."""
    guessed = " (guessed)" if collective.axes_guessed else ""
    return f"{collective.kind} over {','.join(collective.axes)}{guessed}" if collective.axes else str(collective.kind)


def place_of(collective: Collective) -> str:
    """Formats the place: `moe.py:26 in expert_forward`, otherwise `%all-gather.3`."""
    return short_source(collective.source) or f"%{collective.name}"


def read_rule_doc(rule: Rule) -> RuleDoc:
    """Returns the page of a rule, from its docstring or its module's, with the options from its own.

    Raises:
        ValueError: A section is missing.
    """
    own, titles = inspect.cleandoc(type(rule).__doc__ or ""), "|".join(SECTIONS)
    is_own = re.search(rf"(?m)^{SECTIONS[0]}:", own) is not None
    of_module = sys.modules[type(rule).__module__].__doc__ or ""
    page = own.partition("\nAttributes:\n")[0] if is_own else inspect.cleandoc(of_module)
    summary, *parts = re.split(rf"(?m)^({titles}): ?", page)
    if tuple(parts[::2]) != SECTIONS:
        raise ValueError(f"the page of {rule.name} needs the sections {', '.join(SECTIONS)}, in this order")
    sections = tuple(
        (title, mark(dedent(text).strip(), *getattr(rule, "named_options", ())))
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    )
    options = tuple(_read_option_doc(rule, field) for field in fields(rule))  # type: ignore[arg-type]
    return RuleDoc(
        name=rule.name, severity=rule.severity, summary=" ".join(summary.split()), sections=sections, options=options
    )


def _read_option_doc(rule: Rule, field: Any) -> tuple[str, str, str]:
    described = re.search(rf"(?m)^ +{field.name}: ((?:.+\n?)(?:^ {{12,}}.+\n?)*)", type(rule).__doc__ or "")
    if described is None:
        raise ValueError(f"the option {field.name} of {rule.name} is not described")
    return field.name, repr(getattr(rule, field.name)), " ".join(described[1].split())
