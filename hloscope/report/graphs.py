"""A program's graph: its text, its layout in layers, and its picture."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from rich.text import Text

from hloscope.base.canvas import Canvas
from hloscope.base.errors import NotationError, Option, say
from hloscope.base.results import group_by
from hloscope.base.units import format_bytes, format_time, pluralize
from hloscope.model.program_graph import EdgeKind, GraphEdge, GraphNode, ProgramGraph
from hloscope.model.vocabulary import Bound
from hloscope.report.escaping import escape_line
from hloscope.report.layout import INDENT, Breaks, Column, column, fold, fold_all, render_table, section
from hloscope.report.pictures import svg
from hloscope.report.pictures.svg import LINE_HEIGHT, MARGIN
from hloscope.report.renderer import Renderer
from hloscope.report.words import BOUNDS_WORDS, make_legend, render_notes

_WAY = 10.0
"""The width of an edge that passes a layer."""
_SWEEPS = 6


@dataclass(slots=True)
class Layers:
    """The positions of nodes and edges.

    Attributes:
        rows: The nodes and passing edges of each layer, from left to right.
        above: The neighbors of each in the layer above.
        below: The neighbors of each in the layer below.
        ways: The points that each edge passes, from its source to its target.
        x: The middle of each.
    """

    rows: list[list[str]]
    above: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    below: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    ways: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    x: dict[str, float] = field(default_factory=dict)


_NARROWER = (
    "narrow it to a computation, or to what is near an instruction: ",
    Option("around", "all-gather.8"),
    " ",
    Option("hops", 2),
)


def lay_out(nodes: Sequence[str], edges: Sequence[tuple[str, str]], *, width: float, gap: float) -> Layers:
    """Lays a graph out in layers, with few crossings and with neighbors near each other.

    Args:
        nodes: Their names.
        edges: Each edge once, from an operand to its user.
        width: The width of a node.
        gap: The space between nodes.
    """
    layer = _find_layers(nodes, edges)
    layers = Layers(rows=[[] for _ in range(max(layer.values(), default=-1) + 1)])
    for each, number in layer.items():
        layers.rows[number].append(each)
    for source, target in edges:
        _join(layers, layer, source, target)
    for sweep in range(_SWEEPS):
        for row in layers.rows if sweep % 2 == 0 else layers.rows[::-1]:
            _order(row, layers.above if sweep % 2 == 0 else layers.below, layers.rows)
    _place(layers, dict.fromkeys(nodes, width), gap)
    return layers


def _find_layers(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The layer of each node: below its operands; a node without operands is just above its first user."""
    import networkx as nx

    graph: Any = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    while not nx.is_directed_acyclic_graph(graph):  # in text that nobody could run
        graph.remove_edge(*nx.find_cycle(graph)[-1][:2])
    found = {each: row for row, line in enumerate(nx.topological_generations(graph)) for each in line}
    for each in reversed(list(nx.topological_sort(graph))):
        if graph.in_degree(each) == 0 and graph.out_degree(each) > 0:
            found[each] = min(found[user] for user in graph.successors(each)) - 1
    least = min(found.values(), default=0)
    return {each: found[each] - least for each in nodes}


def _join(layers: Layers, layer: Mapping[str, int], source: str, target: str) -> None:
    """Has an edge pass the layers between its ends."""
    way = [source]
    for row in range(layer[source] + 1, layer[target]):
        passing = f"\0{len(layers.ways)}/{row}"
        layers.rows[row].append(passing)
        way.append(passing)
    way.append(target)
    layers.ways[source, target] = way
    for here, there in pairwise(way):
        layers.below[here].append(there)
        layers.above[there].append(here)


def _order(row: list[str], joined: Mapping[str, Sequence[str]], rows: Sequence[Sequence[str]]) -> None:
    """Sorts a layer by the mean position of each node's neighbors."""
    wanted = {other for each in row for other in joined.get(each, ())}
    position = {each: number for line in rows for number, each in enumerate(line) if each in wanted}
    means = {}
    for number, each in enumerate(row):
        others = [position[other] for other in joined.get(each, ())] or [number]
        means[each] = sum(others) / len(others)
    row.sort(key=means.__getitem__)


def _place(layers: Layers, widths: Mapping[str, float], gap: float) -> None:
    """Places nodes from left to right, each near the nodes that it is joined to."""
    for row in layers.rows:
        layers.x.update(zip(row, accumulate((widths.get(each, _WAY) + gap for each in row), initial=0.0), strict=False))
    for sweep in range(_SWEEPS):
        joined = layers.above if sweep % 2 == 0 else layers.below
        for row in layers.rows if sweep % 2 == 0 else layers.rows[::-1]:
            others = {each: joined.get(each) or [each] for each in row}  # a node without neighbors stays
            wanted = [sum(map(layers.x.__getitem__, others[each])) / len(others[each]) for each in row]
            _settle(layers, row, wanted, [widths.get(each, _WAY) + gap for each in row])


def _settle(layers: Layers, row: Sequence[str], wanted: Sequence[float], widths: Sequence[float]) -> None:
    """Moves nodes as near to their wanted positions as possible without overlaps; overlapping nodes share the shift."""
    blocks: list[tuple[float, list[int]]] = []  # the place of each block's first, and who is in it
    offsets = [*accumulate(((before + after) / 2 for before, after in pairwise(widths)), initial=0.0)]
    for number in range(len(row)):
        block = (wanted[number] - offsets[number], [number])
        while blocks and blocks[-1][0] > block[0]:
            start, members = blocks.pop()
            together = len(members) + len(block[1])
            block = ((start * len(members) + block[0] * len(block[1])) / together, members + block[1])
        blocks.append(block)
    for start, members in blocks:
        for number in members:
            layers.x[row[number]] = start + offsets[number]


MOST_NODES = 400
_BOX, _GAP = (178.0, 46.0), (16.0, 40.0)
_LEAST_WIDTH = 560.0
_LEGEND = "Filled: collectives. Thick: the critical path. Dashed: into and out of computations that are called."


def draw_graph(found: ProgramGraph) -> svg.Element:
    """The graph as a picture.

    Raises:
        NotationError: It has too many instructions for a picture.
    """
    if len(found.nodes) > MOST_NODES:
        raise NotationError(
            f"a picture of {len(found.nodes):,} instructions could not be read",
            why=f"at most {MOST_NODES} are drawn",
            fix=say(*_NARROWER),
        )
    edges = list(dict.fromkeys((edge.source, edge.target) for edge in found.edges))
    layers = lay_out([node.id for node in found.nodes], edges, width=_BOX[0], gap=_GAP[0])
    nodes = {node.id for node in found.nodes}

    def reach(each: str) -> float:
        return _BOX[0] / 2 if each in nodes else 0.0

    left = min((x - reach(each) for each, x in layers.x.items()), default=0.0) - MARGIN
    right = max((x + reach(each) for each, x in layers.x.items()), default=0.0) + MARGIN
    width, top = max(right - left, _LEAST_WIDTH), MARGIN + 3 * LINE_HEIGHT
    bounds = {bound for node in found.nodes for bound in (node.bound, node.executions_bound)}
    legend = [_LEGEND, *(words for bound, words in BOUNDS_WORDS.items() if bound in bounds)]
    rows_end = top + len(layers.rows) * (_BOX[1] + _GAP[1]) - _GAP[1]
    height = rows_end + (1 + len(legend)) * LINE_HEIGHT + MARGIN
    title, said = f"{found.target}, {found.part}", _describe_graph(found)
    root = svg.make_picture(width, height, title, said)
    svg.add_title(root, title, width)
    svg.write_lines(root, [said], MARGIN + 6 + LINE_HEIGHT, width)
    places = {
        each: (layers.x[each] - left, top + row * (_BOX[1] + _GAP[1]))
        for row, line in enumerate(layers.rows)
        for each in line
    }
    _draw_edges(root, found, layers, places)
    for node in found.nodes:
        _draw_node(root, node, places[node.id])
    svg.write_lines(root, legend, rows_end + 2 * LINE_HEIGHT, width)
    return root


def _describe_graph(found: ProgramGraph) -> str:
    size = f"{pluralize(len(found.nodes), 'instruction')}, {pluralize(len(found.edges), 'edge')}"
    if found.critical_path_us is None:
        return size
    return f"{size}; critical path of the step {found.bound.marked(format_time(found.critical_path_us))}"


def _draw_edges(
    root: svg.Element, found: ProgramGraph, layers: Layers, places: Mapping[str, tuple[float, float]]
) -> None:
    critical = {node.id for node in found.nodes if node.is_critical}
    drawn = set()
    for edge in found.edges:
        ends = (edge.source, edge.target)
        if ends in drawn:
            continue
        drawn.add(ends)
        way = layers.ways[ends]
        style: dict[str, str | float] = {"stroke_width": 1.2, "stroke_opacity": 0.55}
        if edge.source in critical and edge.target in critical:
            style = {"stroke_width": 3, "stroke_opacity": 0.9}
        if edge.kind is not EdgeKind.OPERAND:
            style["stroke_dasharray"] = "5 4"
        svg.add(root, "path", text=None, d=_make_path(way, places), fill="none", stroke=svg.LINE, **style)


def _make_path(way: Sequence[str], places: Mapping[str, tuple[float, float]]) -> str:
    """A smooth line from the source to the target, through the layers between them."""
    x, y = places[way[0]]
    y += _BOX[1]
    parts = [f"M{svg.number(x)} {svg.number(y)}"]
    for each in way[1:]:
        next_x, next_y = places[each]
        middle = svg.number((y + next_y) / 2)
        bends = f"{svg.number(x)} {middle} {svg.number(next_x)} {middle}"
        parts.append(f"C{bends} {svg.number(next_x)} {svg.number(next_y)}")
        x, y = next_x, next_y
        if each != way[-1]:
            y += _BOX[1]
            parts.append(f"V{svg.number(y)}")
    return "".join(parts)


def _draw_node(root: svg.Element, node: GraphNode, place: tuple[float, float]) -> None:
    width, (x, y) = _BOX[0], place
    group = svg.add(root, "g")
    svg.add(group, "title", text=_describe_node(node))
    tint = 0.35 if node.collective is not None else 0.07
    thick = 3.5 if node.is_critical else 1
    svg.box(group, (x - width / 2, y), _BOX, rx=4, fill=svg.TINT, fill_opacity=tint, stroke_width=thick)
    name = svg.cut_to(f"%{node.name}", width - 10, 10.5)
    svg.label(group, x, y + 13, name, anchor="middle", size=10.5, font_weight="bold")
    operation = f"{node.opcode} {node.shape}"
    svg.label(group, x, y + 27, svg.cut_to(operation, width - 10, 9.5), anchor="middle", size=9.5)
    facts = svg.cut_to(", ".join(_list_drawn_facts(node)), width - 10, 9)
    svg.label(group, x, y + 40, facts, anchor="middle", size=9, opacity=0.8)


def _list_drawn_facts(node: GraphNode) -> list[str]:
    moved = [] if node.collective is None else [f"over {','.join(node.axes)}"] if node.axes else ["over unknown axes"]
    often = f" ×{node.executions_bound.marked(f'{node.executions:,}')}" if runs_often(node) else ""
    time = often.strip() if node.time_us is None else node.bound.marked(format_time(node.time_us)) + often
    return [fact for fact in (*moved, format_sent(node) if moved else _format_made(node), time) if fact]


def format_sent(node: GraphNode) -> str:
    """Bytes that one device sends in a collective, with their bound: `≤822 MB`."""
    sent = format_bytes(node.wire_bytes)
    return sent if node.wire_bytes is None else node.bound.marked(sent)


def _format_made(node: GraphNode) -> str:
    """Bytes of a result, an upper bound if dimensions are dynamic."""
    made = format_bytes(node.bytes)
    return Bound.AT_MOST.marked(made) if node.bytes is not None and "<=" in node.shape else made


def runs_often(node: GraphNode) -> bool:
    """True if it runs several times in a step, or may."""
    return node.executions is not None and (node.executions > 1 or node.executions_bound is not Bound.EXACT)


def _describe_node(node: GraphNode) -> str:
    """A node in words."""
    parts = (
        f"%{node.name} of %{node.computation}, {node.opcode} {node.shape}",
        ", ".join(_list_drawn_facts(node)),
        "on the critical path" if node.is_critical else None,
        node.op_name,
        node.source,
    )
    return escape_line("; ".join(part for part in parts if part))


_ROWS = 30
_OPCODES = 8
_STYLES = {EdgeKind.OPERAND: "solid", EdgeKind.ARGUMENT: "dashed", EdgeKind.RESULT: "dashed"}
_OTHERS = "the formats dot, graphml and json have all of it, and svg draws it"


def render_graph(found: ProgramGraph, width: int) -> Iterator[Text]:
    """The size of the graph, and the longest instructions of the critical path in their order."""
    inner = width - INDENT
    place = "" if found.slice is None else f" on {found.slice}"
    yield from fold(Text.assemble((found.target, "bold"), f"{place}, {found.part}"), width)
    counts = Counter(node.opcode for node in found.nodes)
    shown = ", ".join(f"{count:,} {opcode}" for opcode, count in counts.most_common(_OPCODES))
    more = f" and {pluralize(len(counts) - _OPCODES, 'other opcode')}" if len(counts) > _OPCODES else ""
    size = f"{pluralize(len(found.nodes), 'instruction')}, {pluralize(len(found.edges), 'edge')}"
    yield from fold(Text(f"{size}: {shown}{more}"), width)
    critical = [node for node in found.nodes if node.is_critical]
    if found.critical_path_us is not None and critical:
        longest = sorted(critical, key=lambda node: -(node.time_us or 0.0) * (node.executions or 0))[:_ROWS]
        rows = [node for node in critical if node in longest]
        title = f"On the critical path of the step, {found.bound.marked(format_time(found.critical_path_us))}"
        rest = len(critical) - len(rows)
        remark = [Text(f"+{pluralize(rest, 'shorter one')}", style="dim")] if rest else []
        table = render_table(_make_columns(rows), inner)
        yield from section(title, [*table, *remark, *fold_all((make_legend([Text(title), *table]),), inner)], inner)
    yield from render_notes((*found.notes, _OTHERS), inner)


def _make_columns(rows: Sequence[GraphNode]) -> list[Column]:
    return [
        column(rows, "instruction", lambda node: f"%{node.name}", style="bold", breaks=Breaks.IN_IDENTIFIERS),
        column(rows, "opcode", lambda node: node.collective or node.opcode),
        column(rows, "axes", lambda node: ",".join(node.axes or ()), style="cyan", given_up=3),
        column(rows, "shape", lambda node: node.shape, breaks=Breaks.AFTER_PUNCTUATION, given_up=2),
        column(rows, "time", _format_node_time, right=True),
        column(rows, "times", _format_times, right=True),
        column(rows, "source", lambda node: node.source or "", breaks=Breaks.BETWEEN_WORDS, given_up=1),
    ]


def _format_node_time(node: GraphNode) -> str:
    return "" if node.time_us is None else node.bound.marked(format_time(node.time_us))


def _format_times(node: GraphNode) -> str:
    return "" if node.executions is None else node.executions_bound.marked(f"{node.executions:,}")


class Svg(Renderer):
    """A graph drawn as a file of its own."""

    ending = ".svg"
    escapes_itself = True

    def render_graph(self, found: ProgramGraph, canvas: Canvas) -> str:
        """The picture."""
        return svg.make_standalone(svg.render(draw_graph(found))) + "\n"


class GraphML(Renderer):
    """GraphML, in which attributes have types."""

    ending = ".graphml"
    escapes_itself = True

    def render_graph(self, found: ProgramGraph, canvas: Canvas) -> str:
        """GraphML, in which attributes have types."""
        import networkx as nx

        graph = nx.relabel_nodes(found.to_networkx(), escape_line)
        nodes, edges = (each[-1] for each in graph.nodes(data=True)), (each[-1] for each in graph.edges(data=True))
        for attributes in (graph.graph, *nodes, *edges):
            strings = {name: value for name, value in attributes.items() if isinstance(value, str)}
            attributes.update({name: escape_line(value) for name, value in strings.items()})
        return '<?xml version="1.0" encoding="utf-8"?>\n' + "\n".join(nx.generate_graphml(graph)) + "\n"


class Dot(Renderer):
    """Graphviz's language."""

    ending = ".dot"
    escapes_itself = True

    def render_graph(self, found: ProgramGraph, canvas: Canvas) -> str:
        """DOT, with operands above their users, collectives filled, and the critical path bold."""
        lines = [f"digraph {_quote(found.module)} {{", f"  label={_quote(f'{found.target}, {found.part}')};"]
        lines += ['  labelloc=t; node [shape=box, fontname="monospace", fontsize=10]; edge [color="#808080"];']
        for number, (computation, nodes) in enumerate(group_by(found.nodes, lambda node: node.computation).items()):
            lines += [f"  subgraph cluster_{number} {{", f"    label={_quote(computation)};"]
            lines += [f"    {_quote(node.id)} [{_format_attributes(_make_node_attributes(node))}];" for node in nodes]
            lines += ["  }"]
        critical = {node.id for node in found.nodes if node.is_critical}
        for edge in found.edges:
            attributes = _format_attributes(_make_edge_attributes(edge, critical))
            lines.append(f"  {_quote(edge.source)} -> {_quote(edge.target)} [{attributes}];")
        return "\n".join([*lines, "}"]) + "\n"


def _make_node_attributes(node: GraphNode) -> dict[str, str]:
    words = [f"%{node.name}", f"{node.opcode} {node.shape}", *list_facts(node)]
    attributes = {
        "label": "\n".join(map(escape_line, words)),
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


def list_facts(node: GraphNode) -> Iterator[str]:
    """The facts of a node besides its name and shape: `over X, 822 MB`, `9.28 ms`."""
    if node.collective is not None:
        over = f"over {','.join(node.axes)}, " if node.axes else ""
        yield f"{over}{format_sent(node)}"
    if node.time_us is not None:
        yield _format_node_time(node) + (f", {_format_times(node)} times" if runs_often(node) else "")


def _make_edge_attributes(edge: GraphEdge, critical: set[str]) -> dict[str, str]:
    attributes = {"style": _STYLES[edge.kind], "kind": str(edge.kind), "position": str(edge.position)}
    if edge.attribute is not None:
        attributes["label"] = edge.attribute
    if edge.source in critical and edge.target in critical:
        attributes["penwidth"] = "2.5"
    return attributes


def _format_attributes(attributes: dict[str, str]) -> str:
    return ", ".join(f"{name}={_quote(value)}" for name, value in attributes.items())


def _quote(text: str) -> str:
    """A string of DOT, in which backslashes stand only for line ends and themselves."""
    plain = "\n".join(map(escape_line, text.split("\n")))
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
