"""A program's graph in layers, as SVG: what is needed stands above what needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hloscope.analysis.model.program_graph import EdgeKind, GraphNode, ProgramGraph
from hloscope.analysis.vocabulary import Bound
from hloscope.errors import NotationError
from hloscope.messages import Option, say
from hloscope.report.escaping import plain_line
from hloscope.report.pictures import svg
from hloscope.report.pictures.layers import Layers, laid_out
from hloscope.report.words import BOUNDS_WORDS
from hloscope.units import format_bytes, format_time, plural

MOST_NODES = 400
_BOX, _GAP = (178.0, 46.0), (16.0, 40.0)
_MARGIN, _LINE_HEIGHT = 14.0, 17.0
_LEAST_WIDTH = 560.0
_LEGEND = "Filled: collectives. Thick: the critical path. Dashed: into and out of computations that are called."


def graph_svg(found: ProgramGraph) -> str:
    """The graph as an SVG element for a page or a file.

    Raises:
        NotationError: It has more instructions than anybody could look at.
    """
    return svg.written(graph_picture(found))


_NARROWER = (
    "narrow it to a computation, or to what is near an instruction: ",
    Option("around", "all-gather.8"),
    " ",
    Option("hops", 2),
)


def graph_picture(found: ProgramGraph) -> svg.Element:
    """The same, not yet written.

    Raises:
        NotationError: It has more instructions than anybody could look at.
    """
    if len(found.nodes) > MOST_NODES:
        raise NotationError(
            f"a picture of {len(found.nodes):,} instructions could not be read",
            why=f"at most {MOST_NODES} are drawn",
            fix=say(*_NARROWER),
        )
    edges = list(dict.fromkeys((edge.source, edge.target) for edge in found.edges))
    layers = laid_out([node.id for node in found.nodes], edges, width=_BOX[0], gap=_GAP[0])
    nodes = {node.id for node in found.nodes}

    def reach(each: str) -> float:
        return _BOX[0] / 2 if each in nodes else 0.0

    left = min((x - reach(each) for each, x in layers.x.items()), default=0.0) - _MARGIN
    right = max((x + reach(each) for each, x in layers.x.items()), default=0.0) + _MARGIN
    width, top = max(right - left, _LEAST_WIDTH), _MARGIN + 3 * _LINE_HEIGHT
    bounds = {bound for node in found.nodes for bound in (node.bound, node.executions_bound)}
    legend = [_LEGEND, *(words for bound, words in BOUNDS_WORDS.items() if bound in bounds)]
    rows_end = top + len(layers.rows) * (_BOX[1] + _GAP[1]) - _GAP[1]
    height = rows_end + (1 + len(legend)) * _LINE_HEIGHT + _MARGIN
    title, said = f"{found.target}, {found.part}", _said(found)
    root = svg.picture(width, height, title, said)
    svg.label(root, _MARGIN, _MARGIN + 6, svg.cut_to(title, width - 2 * _MARGIN, 14), size=14, font_weight="bold")
    svg.label(root, _MARGIN, _MARGIN + 6 + _LINE_HEIGHT, svg.cut_to(said, width - 2 * _MARGIN), opacity=0.8)
    places = {
        each: (layers.x[each] - left, top + row * (_BOX[1] + _GAP[1]))
        for row, line in enumerate(layers.rows)
        for each in line
    }
    _draw_edges(root, found, layers, places)
    for node in found.nodes:
        _draw_node(root, node, places[node.id])
    for index, words in enumerate(legend):
        y = rows_end + _LINE_HEIGHT * (index + 2)
        svg.label(root, _MARGIN, y, svg.cut_to(words, width - 2 * _MARGIN), opacity=0.8)
    return root


def _said(found: ProgramGraph) -> str:
    size = f"{plural(len(found.nodes), 'instruction')}, {plural(len(found.edges), 'edge')}"
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
        svg.add(root, "path", text=None, d=_path(way, places), fill="none", stroke=svg.LINE, **style)


def _path(way: Sequence[str], places: Mapping[str, tuple[float, float]]) -> str:
    """A smooth line from below the source to above the target, through what lies between."""
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
    svg.add(group, "title", text=_spoken(node))
    tint = 0.35 if node.collective is not None else 0.07
    thick = 3.5 if node.is_critical else 1
    svg.box(group, (x - width / 2, y), _BOX, rx=4, fill=svg.TINT, fill_opacity=tint, stroke_width=thick)
    name = svg.cut_to(f"%{node.name}", width - 10, 10.5)
    svg.label(group, x, y + 13, name, anchor="middle", size=10.5, font_weight="bold")
    operation = f"{node.opcode} {node.shape}"
    svg.label(group, x, y + 27, svg.cut_to(operation, width - 10, 9.5), anchor="middle", size=9.5)
    svg.label(
        group, x, y + 40, svg.cut_to(", ".join(_facts(node)), width - 10, 9), anchor="middle", size=9, opacity=0.8
    )


def _facts(node: GraphNode) -> list[str]:
    moved = [] if node.collective is None else [f"over {','.join(node.axes)}"] if node.axes else ["over unknown axes"]
    often = f" ×{node.executions_bound.marked(f'{node.executions:,}')}" if runs_often(node) else ""
    time = often.strip() if node.time_us is None else node.bound.marked(format_time(node.time_us)) + often
    return [fact for fact in (*moved, sent_words(node) if moved else _made_words(node), time) if fact]


def sent_words(node: GraphNode) -> str:
    """Bytes that one device sends in a collective, with their bound: `≤822 MB`."""
    sent = format_bytes(node.wire_bytes)
    return sent if node.wire_bytes is None else node.bound.marked(sent)


def _made_words(node: GraphNode) -> str:
    """Bytes of a result, at most where dimensions are dynamic."""
    made = format_bytes(node.bytes)
    return Bound.AT_MOST.marked(made) if node.bytes is not None and "<=" in node.shape else made


def runs_often(node: GraphNode) -> bool:
    """Whether it runs several times in a step, or may."""
    return node.executions is not None and (node.executions > 1 or node.executions_bound is not Bound.EXACT)


def _spoken(node: GraphNode) -> str:
    """What a node is, in words."""
    parts = (
        f"%{node.name} of %{node.computation}, {node.opcode} {node.shape}",
        ", ".join(_facts(node)),
        "on the critical path" if node.is_critical else None,
        node.op_name,
        node.source,
    )
    return plain_line("; ".join(part for part in parts if part))
