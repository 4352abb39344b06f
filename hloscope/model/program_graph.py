"""A compiled program as a graph of instructions, with dependencies, calls and the critical path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hloscope.base.calls import front_door
from hloscope.base.documents import SCHEMA, Schema, read_document
from hloscope.base.results import Brief, Shown, shorten_to_line
from hloscope.base.units import pluralize
from hloscope.model.vocabulary import Bound

if TYPE_CHECKING:
    from networkx import MultiDiGraph

    from hloscope.plain_types import ProgramGraphDict


class EdgeKind(StrEnum):
    """The kind of dependency between two instructions."""

    OPERAND = "operand"
    """The source is an operand of the target."""
    ARGUMENT = "argument"
    """The source is handed to a computation that is called, whose parameter the target is."""
    RESULT = "result"
    """The source is the result of a computation that the target calls."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GraphNode(Brief):
    """One instruction.

    Attributes:
        id: Computation and name, joined by `/`.
        computation: The HLO computation that contains it.
        name: Instruction name, without `%`.
        line: 1-based line in the HLO text.
        opcode: Opcode, as printed.
        shape: Result shape on one device, without layouts.
        bytes: Logical bytes of the result on one device, an upper bound if dimensions are dynamic; None if unknown.
        collective: Kind of the collective that it starts; None if it starts none.
        axes: Mesh axes of that collective; None if unknown or if it starts none.
        wire_bytes: Bytes that one device sends in that collective per execution; None if unknown or if it starts none.
        time_us: Time per execution in microseconds, of a transfer by itself or of any other instruction on the core;
            None if not priced, and for instructions that run other computations.
        bound: Whether this time, and the bytes of a collective, are exact or bounds, apart from the error of the model;
            `unknown` for an operation priced without knowing what it does.
        executions: Executions per step; None if unknown.
        executions_bound: Whether `executions` is exact or a bound.
        is_critical: Whether it is on the critical path of the step; also False if unknown.
        op_name: XLA's `op_name`.
        source: Source location, such as `moe.py:31 in expert`; None if unknown.
    """

    id: str
    computation: str
    name: str
    line: int
    opcode: str
    shape: str
    bytes: int | None = None
    collective: str | None = None
    axes: tuple[str, ...] | None = None
    wire_bytes: int | None = None
    time_us: float | None = None
    bound: Bound = Bound.EXACT
    executions: int | None = None
    executions_bound: Bound = Bound.EXACT
    is_critical: bool = False
    op_name: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GraphEdge(Brief):
    """A dependency of one instruction on another.

    Attributes:
        source: The `id` of the producer.
        target: The `id` of the consumer.
        kind: Kind of dependency.
        position: Index of the operand or argument; for a result, the index of the computation among the callees.
        attribute: The attribute that names the called computation, such as `body`; None for operands.
    """

    source: str
    target: str
    kind: EdgeKind
    position: int
    attribute: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProgramGraph(Shown):
    """A compiled program, or a part of it, as a graph.

    Example:
        >>> graph = found.graph(around="all-gather.8", hops=3)
        >>> graph                                        # drawn, in a notebook
        >>> graph.to_networkx()                          # a networkx.MultiDiGraph
        >>> Path("around.dot").write_text(graph.report("dot"))

    Attributes:
        schema: Schema version of the document.
        target: The target as the user named it.
        module: The HLO module's name.
        slice: The slice that times are predicted for; None if not priced.
        part: Description of the part of the module that is shown.
        nodes: The instructions, in text order.
        edges: The dependencies between them.
        critical_path_us: Total time of the instructions on the critical path per step, in microseconds; None if
            unknown.
        bound: Whether that is exact or a bound, apart from the error of the model.
        notes: Assumptions, one sentence each.
    """

    _subject = "graph"

    schema: Schema = SCHEMA
    target: str
    module: str
    slice: str | None
    part: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    critical_path_us: float | None = None
    bound: Bound = Bound.EXACT
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        size = f"{pluralize(len(self.nodes), 'instruction')}, {pluralize(len(self.edges), 'edge')}"
        return shorten_to_line(f"<Graph of {self.target}, {self.part}: {size}>")

    @front_door
    def to_networkx(self) -> MultiDiGraph:
        """Returns a `networkx.MultiDiGraph`: nodes are `id`s, with the known attributes of `GraphNode`.

        Example:
            >>> networkx.ancestors(graph.to_networkx(), "main/all-gather.8")
        """
        import networkx as nx

        graph = nx.MultiDiGraph(target=self.target, module=self.module, part=self.part)
        for node in self.nodes:
            graph.add_node(node.id, **_attributes(node, without=("id",)))
        for edge in self.edges:
            graph.add_edge(edge.source, edge.target, **_attributes(edge, without=("source", "target")))
        return graph

    if TYPE_CHECKING:

        def to_dict(self) -> ProgramGraphDict:
            """The result as plain data."""

    @classmethod
    @front_door
    def from_dict(cls, document: Mapping[str, object]) -> ProgramGraph:
        """Creates a graph from the plain data that `to_dict` returned.

        Raises:
            HloscopeError: The data is not such a document, or has another schema version.
        """
        return read_document(cls, document, name="the document", key="edges")


def _attributes(row: GraphNode | GraphEdge, *, without: tuple[str, ...]) -> dict[str, Any]:
    """The known attributes of a node or an edge as numbers, truth values and texts; axes are joined by commas."""
    found = {each.name: getattr(row, each.name) for each in fields(row) if each.name not in without}
    return {
        name: ",".join(value) if isinstance(value, tuple) else str(value) if isinstance(value, StrEnum) else value
        for name, value in found.items()
        if value is not None
    }
