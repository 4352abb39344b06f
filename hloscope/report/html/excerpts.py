"""What a page shows of compiled text: the instructions around what it tells of, with operands and users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hloscope.analysis.model import Analysis
from hloscope.analysis.model.timeline import Timeline
from hloscope.hlo import HloComputation, HloInstruction, HloModule

_MOST_STARTS = 2500
_LONGEST = 250
"""Operations of the timeline that are shown."""
_NEIGHBOURS = 8
_BODY = 40
_BODIES = 400
_ATTRIBUTES, _ATTRIBUTE = 900, 240
"""Letters of an instruction's attributes, and of one of them."""
_LEFT_OUT = frozenset({"metadata", "frontend_attributes"})


@dataclass(slots=True)
class _Excerpt:
    """What is shown of a module so far."""

    module: HloModule
    shown: dict[HloInstruction, None] = field(default_factory=dict)
    bodies: dict[str, None] = field(default_factory=dict)

    def add(self, start: HloInstruction) -> None:
        """Shows an instruction, what it reads, what reads it, and the beginning of what it calls."""
        self.shown[start] = None
        self.shown.update(dict.fromkeys(start.operands[:_NEIGHBOURS]))
        self.shown.update(dict.fromkeys(start.users[:_NEIGHBOURS]))
        for _, name in start.called:
            if name not in self.bodies and len(self.bodies) < _BODIES:
                self.bodies[name] = None
                self.shown.update(dict.fromkeys(self.module.computation(name).instructions[:_BODY]))


def excerpt_of(module: HloModule, analysis: Analysis, timeline: Timeline | None) -> dict[str, object]:
    """The instructions around collectives, findings, large arrays and what takes longest, by computation.

    Args:
        module: The parsed text.
        analysis: What is told of it.
        timeline: What runs when; None where that is not known.
    """
    found = _Excerpt(module)
    computations = {computation.name: computation for computation in module.computations}
    for place in dict.fromkeys(_places(analysis, timeline)):
        start = _instruction(computations, *place)
        if start is not None:
            found.add(start)
    return {"computations": _as_data(found)}


def _places(analysis: Analysis, timeline: Timeline | None) -> Iterator[tuple[str | None, str]]:
    for collective in analysis.collectives[:_MOST_STARTS]:
        yield collective.computation, collective.name
        yield from ((collective.computation, part.name) for part in collective.parts)
    for finding in analysis.findings[:_LONGEST]:
        if finding.instruction is not None:
            yield finding.computation, finding.instruction
    yield from ((fact.computation, fact.name.partition("[")[0]) for fact in analysis.intermediates)
    if timeline is not None:
        yield from _longest(timeline)


def _longest(timeline: Timeline) -> Iterator[tuple[str, str]]:
    """What takes most of the step."""
    times = [
        (max(one.executions, one.executions_beside) * interval.time_us, one.name, interval.name)
        for one in timeline.computations
        for interval in one.intervals
        if interval.name is not None
    ]
    yield from ((computation, name) for _, computation, name in sorted(times, reverse=True)[:_LONGEST])


def _instruction(computations: dict[str, HloComputation], computation: str | None, name: str) -> HloInstruction | None:
    try:
        return computations[computation or ""].instruction(name)
    except KeyError:
        return None


def _as_data(found: _Excerpt) -> list[dict[str, object]]:
    by_computation: dict[str, list[HloInstruction]] = {}
    for instruction in found.shown:
        by_computation.setdefault(instruction.computation.name, []).append(instruction)
    return [
        {
            "name": computation.name,
            "line": computation.line,
            "is_entry": computation.is_entry,
            "count": len(computation.instructions),
            "instructions": [_line(one) for one in sorted(by_computation[computation.name], key=lambda one: one.line)],
        }
        for computation in found.module.computations
        if computation.name in by_computation
    ]


def _line(instruction: HloInstruction) -> dict[str, object]:
    return {
        "name": instruction.name,
        "opcode": instruction.opcode,
        "shape": str(instruction.shape),
        "line": instruction.line,
        "argument": (instruction.argument or "")[:_ATTRIBUTE],
        "attributes": _attributes(instruction.attributes.items()),
        "op_name": instruction.op_name,
        "operands": list(instruction.operand_names[:64]),
        "users": [user.name for user in instruction.users[:64]],
        "called": [name for _, name in instruction.called],
        "is_root": instruction.is_root,
    }


def _attributes(attributes: Iterable[tuple[str, str]]) -> str:
    """The attributes as printed, without what the page has elsewhere; of long ones the beginning."""
    told = (f"{name}={_cut(value)}" for name, value in attributes if name not in _LEFT_OUT)
    text = ", ".join(told)
    return text if len(text) <= _ATTRIBUTES else f"{text[:_ATTRIBUTES]}…"


def _cut(value: str) -> str:
    return value if len(value) <= _ATTRIBUTE else f"{value[:_ATTRIBUTE]}…"
