"""A compiled program as a graph of instructions: what needs what, what calls what, and what is on the critical path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hloscope.analysis.vocabulary import Bound
from hloscope.documents import SCHEMA, Schema, read
from hloscope.python_words import front_door
from hloscope.shown import Brief, Shown, one_line
from hloscope.units import plural

if TYPE_CHECKING:
    from networkx import MultiDiGraph

    from hloscope.plain_types import ProgramGraphDict


class EdgeKind(StrEnum):
    """Why one instruction needs another."""

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
        id: Its computation and its name, joined by `/`.
        computation: The HLO computation that holds it.
        name: Its name, without `%`.
        line: 1-based line in the HLO text.
        opcode: What it does, as printed.
        shape: Its result on one device, without layouts.
        bytes: Logical bytes of its result on one device, at most where dimensions are dynamic; None when not known.
        collective: The kind of collective that it starts; None where it starts none.
        axes: The mesh axes that this runs over; None where it starts none, or they are not known.
        wire_bytes: Bytes that one device sends in it per execution; None where it starts none, or that is not known.
        time_us: How long it takes, each time: of a transfer alone, of all else on the core; None when not priced, and
            of what runs other computations.
        bound: How this time relates to the truth, apart from the error of the model, and with it the bytes of a
            collective: `unknown` of an operation that is priced without knowing what it does.
        executions: How often it runs in one step; None when not known.
        executions_bound: How that relates to the truth.
        is_critical: Whether it is on the step's critical path; False too where that is not known.
        op_name: XLA's `op_name`.
        source: Where it was written, such as `moe.py:31 in expert`; None when not known.
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
    """One value that goes from one instruction to another.

    Attributes:
        source: The `id` of the instruction that makes it.
        target: The `id` of the one that needs it.
        kind: Why that needs it.
        position: Which operand or argument it is; of a result the place of the computation among those that are called.
        attribute: The attribute that names the computation which is called, such as `body`; None for operands.
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
        schema: Version of the document's shape.
        target: What the user named.
        module: The HLO module's name.
        slice: The slice that times are for; None where nothing is priced.
        part: What part of the module it is, in words.
        nodes: The instructions, in the order of the text.
        edges: What goes from one to another.
        critical_path_us: How long the instructions on the critical path take together, per step; None when not known.
        bound: How that relates to the truth, apart from the error of the model.
        notes: Assumptions, one sentence each.
    """

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
        size = f"{plural(len(self.nodes), 'instruction')}, {plural(len(self.edges), 'edge')}"
        return one_line(f"<Graph of {self.target}, {self.part}: {size}>")

    def _subject(self) -> str:
        return "graph"

    @front_door
    def to_networkx(self) -> MultiDiGraph:
        """The graph for networkx: nodes are `id`s; their attributes are those of `GraphNode` that are known.

        Example:
            >>> networkx.ancestors(graph.to_networkx(), "main/all-gather.8")
        """
        graph: Any = import_module("hloscope.cost.program_graph").networkx_of(self)
        return graph

    if TYPE_CHECKING:

        def to_dict(self) -> ProgramGraphDict:
            """The result as plain data."""

    @classmethod
    @front_door
    def from_dict(cls, document: Mapping[str, object]) -> ProgramGraph:
        """The graph that `to_dict` made plain data of.

        Raises:
            HloscopeError: It is no such document, or one of another schema.
        """
        return read(cls, document, name="the document", key="edges")
