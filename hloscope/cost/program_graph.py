"""Conversion of a compiled program to its graph: instructions with their known facts, and the requested part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from hloscope.analysis.provenance import find_source_frames, short_source
from hloscope.analysis.trip_counts import find_trip_count
from hloscope.base.errors import NotationError, did_you_mean
from hloscope.base.units import pluralize
from hloscope.cost.operations import Operations
from hloscope.cost.predictions import Prediction, predict_step
from hloscope.cost.records import CollectiveKey
from hloscope.cost.walk import ends_chain, find_scheduled_computations
from hloscope.hlo import HloComputation, HloInstruction, HloModule
from hloscope.hlo.call_graph import HloGraph, find_call_graph, find_call_sites, may_call
from hloscope.model import Analysis, Collective
from hloscope.model.capture import Capture
from hloscope.model.program_graph import EdgeKind, GraphEdge, GraphNode, ProgramGraph
from hloscope.model.vocabulary import Bound

# ---- the step's critical path: the longest chain of operations in which each needs the previous one
#
# In whatever order the same instructions run, a predicted step is never faster than this. A collective on the path is
# not necessarily exposed: something else may be computed meanwhile. The algorithms are networkx's, which is loaded
# only here and where graphs are written.

_END = ""
"""The node after all others: no instruction has an empty name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The longest chain of operations that need each other.

    Attributes:
        time_us: Total time of the operations on it, in microseconds per step.
        executions: Executions per step of each instruction on it, by computation and name, in execution order; a loop
        is replaced by the instructions of its body.
    """

    time_us: float = 0.0
    executions: Mapping[CollectiveKey, int] = field(default_factory=dict)


_EMPTY_PATH = CriticalPath()


def build_dataflow(computation: HloComputation) -> Any:
    """The dependencies in a computation, as an immutable `networkx.DiGraph` of instruction names."""
    graph = nx.DiGraph()
    for instruction in computation.instructions:
        graph.add_node(instruction.name, instruction=instruction)
        graph.add_edges_from((operand.name, instruction.name) for operand in instruction.operands)
    return nx.freeze(graph)


def find_critical_path(operations: Operations, collectives: Sequence[Collective]) -> CriticalPath:
    """The critical path of one step.

    Instructions with unknown time count as zero, as do collectives driven by the fusions around them and, in loops,
    those that cross slices, so that the path is too short rather than too long. A loop runs as often as it is priced,
    one iteration after the other.

    Args:
        operations: Prices computing instructions.
        collectives: The collectives with their times.
    """
    return _PathSearch(operations, collectives).whole()


class _PathSearch:
    """Finds the path of each computation once, callees before callers."""

    def __init__(self, operations: Operations, collectives: Sequence[Collective]) -> None:
        self._operations = operations
        self._graph = operations.graph
        self._collectives = {(moved.computation, moved.name): moved for moved in collectives}
        self._paths: dict[str, CriticalPath] = {}

    def whole(self) -> CriticalPath:
        """The path of ENTRY."""
        for computation in find_scheduled_computations(self._graph):
            self._paths[computation.name] = self._path_of(computation)
        return _EMPTY_PATH if self._graph.entry is None else self._path_of(self._graph.entry)

    def _path_of(self, computation: HloComputation) -> CriticalPath:
        parts = {instruction.name: self._part(instruction) for instruction in computation.instructions}
        flow = nx.DiGraph()
        flow.add_weighted_edges_from(
            (instruction.name, user.name, parts[instruction.name].time_us)
            for instruction in computation.instructions
            for user in instruction.users
        )
        flow.add_weighted_edges_from((name, _END, part.time_us) for name, part in parts.items())
        return _join_paths((parts[name], 1) for name in nx.dag_longest_path(flow, weight="weight") if name != _END)

    def _part(self, instruction: HloInstruction) -> CriticalPath:
        """The contribution of one instruction to a path: itself, or the paths of its callees."""
        opcode, key = instruction.opcode, (instruction.computation.name, instruction.name)
        callees = [(attribute, self._paths.get(name, _EMPTY_PATH)) for attribute, name in instruction.called]
        if key in self._collectives:
            return self._transfer(instruction, self._collectives[key])
        if opcode == "while":
            trips = find_trip_count(self._graph, instruction).count
            return _join_paths((callee, trips + (attribute == "condition")) for attribute, callee in callees)
        if opcode == "conditional":
            return max((callee for _, callee in callees), key=lambda callee: callee.time_us, default=_EMPTY_PATH)
        if self._operations.find_copy(instruction) is not None:
            is_prefetch = "cross_program_prefetch_index" in instruction.attributes
            return _EMPTY_PATH if is_prefetch else _single_path(key, self._operations.copy_time(instruction).time_us)
        if opcode == "call" or opcode.endswith("-start"):
            return _join_paths((callee, 1) for _, callee in callees)
        if (
            opcode.endswith(("-done", "-update"))
            or opcode in ("send", "recv")
            or (opcode == "fusion" and ends_chain(self._graph, instruction))
        ):
            return _EMPTY_PATH
        return _single_path(key, self._operations.time_of(instruction).time_us)

    def _transfer(self, instruction: HloInstruction, moved: Collective) -> CriticalPath:
        """The contribution of a collective to a path.

        A collective across slices consists of several transfers; in a loop each may belong to a different iteration, so
        that they run concurrently.
        """
        is_driven = moved.asynchronous and instruction.opcode == "fusion"
        is_spread = bool(moved.parts) and instruction.computation.name != getattr(self._graph.entry, "name", None)
        if is_driven or is_spread or not moved.time_us:
            return _EMPTY_PATH
        return _single_path((moved.computation, moved.name), moved.time_us)


def _join_paths(parts: Iterable[tuple[CriticalPath, int]]) -> CriticalPath:
    """Several paths one after the other, each repeated a number of times."""
    time_us, executions = 0.0, Counter[CollectiveKey]()
    for part, times in parts:
        time_us += part.time_us * times
        for key, count in part.executions.items():
            executions[key] += count * times
    return CriticalPath(time_us=time_us, executions=executions)


def _single_path(key: CollectiveKey, time_us: float) -> CriticalPath:
    return CriticalPath(time_us=time_us, executions={key: 1})


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
    computations = _select_computations(find_call_graph(module), wanted)
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
    executions = {name: sum(counts.values()) for name, counts in prediction.walk.executions().items()}
    path = find_critical_path(prediction.walk.operations, found.collectives)
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
