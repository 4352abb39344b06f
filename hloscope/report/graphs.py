"""A program's graph as text, and in the formats that tools for graphs read: DOT, GraphML and SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.text import Text

from hloscope.analysis.model.program_graph import EdgeKind, GraphEdge, GraphNode, ProgramGraph
from hloscope.analysis.vocabulary import Bound
from hloscope.report.escaping import plain_line
from hloscope.report.layout import INDENT, Breaks, Column, column, fold, folded, section, table_lines
from hloscope.report.pictures.graphs import graph_svg, runs_often, sent_words
from hloscope.report.words import legend, notes_section
from hloscope.units import format_time, plural

_ROWS = 30
_OPCODES = 8
_STYLES = {EdgeKind.OPERAND: "solid", EdgeKind.ARGUMENT: "dashed", EdgeKind.RESULT: "dashed"}
_OTHERS = "the formats dot, graphml and json have all of it, and svg draws it"


def lines(found: ProgramGraph, width: int) -> Iterator[Text]:
    """What there is, and the critical path in its order, its longest instructions."""
    inner = width - INDENT
    place = "" if found.slice is None else f" on {found.slice}"
    yield from fold(Text.assemble((found.target, "bold"), f"{place}, {found.part}"), width)
    counts = Counter(node.opcode for node in found.nodes)
    shown = ", ".join(f"{count:,} {opcode}" for opcode, count in counts.most_common(_OPCODES))
    more = f" and {plural(len(counts) - _OPCODES, 'other opcode')}" if len(counts) > _OPCODES else ""
    size = f"{plural(len(found.nodes), 'instruction')}, {plural(len(found.edges), 'edge')}"
    yield from fold(Text(f"{size}: {shown}{more}"), width)
    critical = [node for node in found.nodes if node.is_critical]
    if found.critical_path_us is not None and critical:
        longest = sorted(critical, key=_step_us, reverse=True)[:_ROWS]
        rows = [node for node in critical if node in longest]
        title = f"On the critical path of the step, {found.bound.marked(format_time(found.critical_path_us))}"
        rest = len(critical) - len(rows)
        remark = [Text(f"+{plural(rest, 'shorter one')}", style="dim")] if rest else []
        table = table_lines(_columns(rows), inner)
        yield from section(title, [*table, *remark, *folded((legend([Text(title), *table]),), inner)], inner)
    yield from notes_section((*found.notes, _OTHERS), inner)


def _step_us(node: GraphNode) -> float:
    return (node.time_us or 0.0) * (node.executions or 0)


def _columns(rows: Sequence[GraphNode]) -> list[Column]:
    return [
        column(rows, "instruction", lambda node: f"%{node.name}", style="bold", breaks=Breaks.IN_IDENTIFIERS),
        column(rows, "opcode", lambda node: node.collective or node.opcode),
        column(rows, "axes", lambda node: ",".join(node.axes or ()), style="cyan", given_up=3),
        column(rows, "shape", lambda node: node.shape, breaks=Breaks.AFTER_PUNCTUATION, given_up=2),
        column(rows, "time", _time, right=True),
        column(rows, "times", _times, right=True),
        column(rows, "source", lambda node: node.source or "", breaks=Breaks.BETWEEN_WORDS, given_up=1),
    ]


def _time(node: GraphNode) -> str:
    return "" if node.time_us is None else node.bound.marked(format_time(node.time_us))


def _times(node: GraphNode) -> str:
    return "" if node.executions is None else node.executions_bound.marked(f"{node.executions:,}")


def as_svg(found: ProgramGraph) -> str:
    """The graph drawn, as a file of its own."""
    from hloscope.report.pictures.svg import standalone

    return standalone(graph_svg(found)) + "\n"


def as_graphml(found: ProgramGraph) -> str:
    """GraphML, in which attributes have types."""
    import networkx as nx

    graph = nx.relabel_nodes(found.to_networkx(), plain_line)
    for attributes in (graph.graph, *(data for _, data in graph.nodes(data=True))):
        attributes.update({name: plain_line(value) for name, value in attributes.items() if isinstance(value, str)})
    for _, _, attributes in graph.edges(data=True):
        attributes.update({name: plain_line(value) for name, value in attributes.items() if isinstance(value, str)})
    return '<?xml version="1.0" encoding="utf-8"?>\n' + "\n".join(nx.generate_graphml(graph)) + "\n"


def as_dot(found: ProgramGraph) -> str:
    """DOT: what is needed stands above what needs it; collectives are filled, the critical path is bold."""
    lines = [f"digraph {_quoted(found.module)} {{", f"  label={_quoted(f'{found.target}, {found.part}')};"]
    lines += ['  labelloc=t; node [shape=box, fontname="monospace", fontsize=10]; edge [color="#808080"];']
    for number, (computation, nodes) in enumerate(_by_computation(found).items()):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(computation)};"]
        lines += [f"    {_quoted(node.id)} [{_listed(_of_node(node))}];" for node in nodes]
        lines += ["  }"]
    critical = {node.id for node in found.nodes if node.is_critical}
    lines += [
        f"  {_quoted(edge.source)} -> {_quoted(edge.target)} [{_listed(_of_edge(edge, critical))}];"
        for edge in found.edges
    ]
    return "\n".join([*lines, "}"]) + "\n"


def _by_computation(found: ProgramGraph) -> dict[str, list[GraphNode]]:
    parts: dict[str, list[GraphNode]] = {}
    for node in found.nodes:
        parts.setdefault(node.computation, []).append(node)
    return parts


def _of_node(node: GraphNode) -> dict[str, str]:
    words = [f"%{node.name}", f"{node.opcode} {node.shape}", *facts_of(node)]
    attributes = {
        "label": "\n".join(map(plain_line, words)),
        "tooltip": " ".join(filter(None, (node.op_name, node.source))),
        "opcode": node.opcode,
        "shape_of_result": node.shape,
        "bytes": "" if node.bytes is None else str(node.bytes),
        "time_us": "" if node.time_us is None else f"{node.time_us:.6g}",
        "bound": "" if node.bound is Bound.EXACT else str(node.bound),
        "executions_bound": "" if node.executions_bound is Bound.EXACT else str(node.executions_bound),
        "axes": ",".join(node.axes or ()),
        "source": node.source or "",
    }
    if node.collective is not None:
        attributes |= {"style": "filled", "fillcolor": "#cfe0fc"}
    if node.is_critical:
        attributes |= {"penwidth": "3"}
    return {name: value for name, value in attributes.items() if value}


def facts_of(node: GraphNode) -> Iterator[str]:
    """What a node says besides its name and its shape: `over X, 822 MB`, `9.28 ms`."""
    if node.collective is not None:
        over = f"over {','.join(node.axes)}, " if node.axes else ""
        yield f"{over}{sent_words(node)}"
    if node.time_us is not None:
        yield _time(node) + (f", {_times(node)} times" if runs_often(node) else "")


def _of_edge(edge: GraphEdge, critical: set[str]) -> dict[str, str]:
    attributes = {"style": _STYLES[edge.kind], "kind": str(edge.kind), "position": str(edge.position)}
    if edge.attribute is not None:
        attributes["label"] = edge.attribute
    if edge.source in critical and edge.target in critical:
        attributes["penwidth"] = "2.5"
    return attributes


def _listed(attributes: dict[str, str]) -> str:
    return ", ".join(f"{name}={_quoted(value)}" for name, value in attributes.items())


def _quoted(text: str) -> str:
    """A string of DOT, in which no backslash means anything but a line end."""
    plain = "\n".join(map(plain_line, text.split("\n")))
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
