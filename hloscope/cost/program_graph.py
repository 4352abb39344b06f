"""Conversion of a compiled program to its graph: instructions with their known facts, and the requested part.

The neighborhood of an instruction is found by networkx, which is imported on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hloscope.analysis.model import Analysis, Collective
from hloscope.analysis.model.program_graph import EdgeKind, GraphEdge, GraphNode, ProgramGraph
from hloscope.analysis.places import short_source
from hloscope.analysis.provenance import find_source_frames
from hloscope.analysis.vocabulary import Bound
from hloscope.cost.critical_path import CriticalPath, build_dataflow, find_critical_path
from hloscope.cost.predicted import Prediction, predict_step
from hloscope.cost.records import CollectiveKey
from hloscope.cost.walk import find_scheduled_computations
from hloscope.errors import NotationError, did_you_mean
from hloscope.hlo import HloComputation, HloInstruction, HloModule
from hloscope.hlo.call_graph import HloGraph, find_call_sites, may_call
from hloscope.program.capture import Capture
from hloscope.units import pluralize

_NEAR = 3
_UNPRICED = "nothing is priced, so there are no times and no critical path: no TPU slice says how long anything takes"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSelection:
    """The requested part of a program.

    Attributes:
        computation: The name of one computation; None for all that run in a step, without the insides of fusions.
        around: An instruction, by its name or its id; None for the whole part.
        hops: Maximum number of edges from there.
    """

    computation: str | None = None
    around: str | None = None
    hops: int = 3


def build_program_graph(program: Capture, module: HloModule, found: Analysis, wanted: GraphSelection) -> ProgramGraph:
    """The graph of a compiled program, or of a part of it.

    Args:
        program: The program.
        module: Its parsed text.
        found: Its analysis.
        wanted: The part.

    Raises:
        NotationError: There is no such computation or instruction.
    """
    computations = _select_computations(HloGraph(module), wanted)
    part = "the whole step" if wanted.computation is None else f"computation {computations[0].name}"
    edges = tuple(edge for computation in computations for edge in _make_edges(module, computation, computations))
    instructions = [instruction for computation in computations for instruction in computation.instructions]
    if wanted.around is not None:
        centre = _find_instruction(instructions, wanted.around, found)
        near = _find_near(centre, edges, wanted.hops)
        instructions = [instruction for instruction in instructions if _id(instruction) in near]
        edges = tuple(edge for edge in edges if edge.source in near and edge.target in near)
        part = f"{pluralize(wanted.hops, 'hop')} around %{centre.name}"
    details = _collect_details(program, module, found)
    is_priced = details.prediction is not None
    return ProgramGraph(
        target=found.target,
        module=found.module,
        slice=found.slice.name if is_priced and found.slice is not None else None,
        part=part,
        nodes=tuple(map(details.node, instructions)),
        edges=edges,
        critical_path_us=details.path.time_us if is_priced else None,
        bound=Bound.EXACT if found.time is None else found.time.bound,
        notes=() if is_priced else (_UNPRICED,),
    )


def _select_computations(graph: HloGraph, wanted: GraphSelection) -> tuple[HloComputation, ...]:
    """The requested computations, in text order."""
    module = graph.module
    if wanted.computation is None:
        run = {computation.name for computation in (*find_scheduled_computations(graph), *module.outermost)}
        return tuple(computation for computation in module.computations if computation.name in run)
    name = wanted.computation.removeprefix("%")
    try:
        return (module.computation(name),)
    except KeyError:
        names = [computation.name for computation in module.computations]
        raise NotationError(
            f"the module has no computation {name!r}",
            fix=did_you_mean(name, names, f"it has {_join_some(names)}", most=_NEAR),
        ) from None


def _join_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NEAR:,} more" if len(names) > _NEAR else ""
    return ", ".join(names[:_NEAR]) + more


@dataclass(frozen=True, slots=True, kw_only=True)
class _Details:
    """The known facts about each instruction, by computation and name."""

    collectives: Mapping[CollectiveKey, Collective]
    prediction: Prediction | None = None
    executions: Mapping[str, int] = field(default_factory=dict)
    execution_bounds: Mapping[str, Bound] = field(default_factory=dict)
    path: CriticalPath = field(default_factory=CriticalPath)

    def node(self, instruction: HloInstruction) -> GraphNode:
        """The node of an instruction, with all known facts."""
        key = (instruction.computation.name, instruction.name)
        moved = self.collectives.get(key)
        frames = moved.source if moved is not None else find_source_frames(instruction)
        return GraphNode(
            id="/".join(key),
            computation=key[0],
            name=key[1],
            line=instruction.line,
            opcode=instruction.opcode,
            shape=str(instruction.shape),
            bytes=instruction.shape.byte_size,
            collective=None if moved is None else str(moved.kind),
            axes=None if moved is None else moved.axes,
            wire_bytes=None if moved is None else moved.wire_bytes,
            **self._priced(key, moved),
            is_critical=key in self.path.executions,
            op_name=instruction.op_name,
            source=short_source(frames),
        )

    def _priced(self, key: CollectiveKey, moved: Collective | None) -> dict[str, Any]:
        """Its time and executions, with their bounds."""
        if moved is not None:
            bounds = {"bound": moved.bytes_bound, "executions_bound": moved.executions_bound}
            return {"time_us": moved.time_us, "executions": moved.executions, **bounds}
        predicted = None if self.prediction is None else self.prediction.operations.get(key)
        priced = {} if predicted is None else {"time_us": predicted.time_us, "bound": predicted.bound}
        bound = self.execution_bounds.get(key[0], Bound.EXACT)
        return {"executions": self.executions.get(key[0]), "executions_bound": bound, **priced}


def _collect_details(program: Capture, module: HloModule, found: Analysis) -> _Details:
    collectives = {(moved.computation, moved.name): moved for moved in found.collectives}
    prediction = None if module.truncated else predict_step(program, module, found)
    if prediction is None:
        return _Details(collectives=collectives)
    flows: dict[str, Any] = {}

    def flow_of(computation: str) -> Any:
        if computation not in flows:
            flows[computation] = build_dataflow(module.computation(computation))
        return flows[computation]

    executions = {name: sum(counts.values()) for name, counts in prediction.walk.executions().items()}
    path = find_critical_path(prediction.walk.operations, found.collectives, flow_of)
    return _Details(
        collectives=collectives,
        prediction=prediction,
        executions=executions,
        execution_bounds=prediction.walk.execution_bounds(),
        path=path,
    )


def _make_edges(module: HloModule, computation: HloComputation, shown: Sequence[HloComputation]) -> Iterator[GraphEdge]:
    """The edges of a computation's instructions: their operands, and what they pass to their callees."""
    names = {each.name for each in shown}
    for instruction in computation.instructions:
        for position, operand in enumerate(instruction.operands):
            yield GraphEdge(source=_id(operand), target=_id(instruction), kind=EdgeKind.OPERAND, position=position)
        for number, site in enumerate(find_call_sites(instruction) if may_call(instruction.opcode) else ()):
            if site.callee in names:
                yield from _call_edges(module.computation(site.callee), instruction, site.attribute, number)


def _call_edges(callee: HloComputation, caller: HloInstruction, attribute: str, number: int) -> Iterator[GraphEdge]:
    """The edges of a call: its arguments and its result."""
    given = caller.operands[1:][number : number + 1] if caller.opcode == "conditional" else caller.operands
    for position, (operand, parameter) in enumerate(zip(given, callee.parameters, strict=False)):
        yield GraphEdge(
            source=_id(operand),
            target=_id(parameter),
            kind=EdgeKind.ARGUMENT,
            position=position,
            attribute=attribute,
        )
    yield GraphEdge(
        source=_id(callee.root), target=_id(caller), kind=EdgeKind.RESULT, position=number, attribute=attribute
    )


def _id(instruction: HloInstruction) -> str:
    return f"{instruction.computation.name}/{instruction.name}"


def _find_near(centre: HloInstruction, edges: Iterable[GraphEdge], hops: int) -> set[str]:
    """The nodes within a number of edges of an instruction, in either direction."""
    import networkx as nx

    graph = nx.Graph((edge.source, edge.target) for edge in edges)
    graph.add_node(_id(centre))
    return set(nx.single_source_shortest_path_length(graph, _id(centre), cutoff=hops))


def _find_instruction(instructions: Sequence[HloInstruction], name: str, found: Analysis) -> HloInstruction:
    """The only instruction with a name, or with an id."""
    wanted = name.removeprefix("%")
    alike = [each for each in instructions if wanted in (each.name, _id(each))]
    if len(alike) == 1:
        return alike[0]
    if alike:
        ids = [_id(each) for each in alike]
        raise NotationError(f"{len(ids)} instructions have the name {wanted!r}", fix=f"name one of {_join_some(ids)}")
    names = [each.name for each in instructions]
    transfers = [moved.name for moved in found.collectives if moved.name in set(names)]
    otherwise = f"its collectives are {_join_some(transfers)}" if transfers else f"it has {_join_some(names)}"
    raise NotationError(
        f"there is no instruction {wanted!r} in {found.target}, apart from what is inside fusions",
        fix=did_you_mean(wanted, names, otherwise, most=_NEAR),
    )
