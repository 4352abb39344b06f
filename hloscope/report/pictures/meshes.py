"""The mesh on its slice, with what crosses each link, as SVG and in characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text

from hloscope.base.results import group_by
from hloscope.base.units import pluralize
from hloscope.cost.link_traffic import LinkTraffic, PlacedAxis, PlacedMesh, place_mesh, sum_link_traffic
from hloscope.hlo import HloModule
from hloscope.model import Analysis
from hloscope.model.capture import find_evidence
from hloscope.model.picture import Picture
from hloscope.model.vocabulary import Bound
from hloscope.report.escaping import escape_line
from hloscope.report.layout import draw_lines, hang
from hloscope.report.pictures import svg
from hloscope.report.pictures.arrays import choose_places
from hloscope.report.pictures.svg import LINE_HEIGHT, MARGIN
from hloscope.report.words import BOUNDS_WORDS
from hloscope.tpu.slices import SliceDevice
from hloscope.tpu.torus import Torus

TORUS_AXES = "xyz"


def describe_mesh(placed: PlacedMesh) -> Iterator[str]:
    """Lines on the mesh, the first of which is the title."""
    mesh = placed.mesh
    axes = "" if mesh is None else " ".join(map("{}={}".format, mesh.axis_names, mesh.axis_sizes))
    yield f"mesh {axes} on {placed.slice.name}" if axes else placed.slice.name
    hosts = len({device.host for device in placed.devices})
    chips = len(placed.devices) // placed.torus.devices_per_chip
    several = f"{placed.slice.slice_count} slices over DCN, each of " if placed.slice.slice_count > 1 else ""
    ids = "the devices of a slice" if several else "device ids"
    yield f"{several}{pluralize(chips, 'chip')} on {pluralize(hosts, 'host')}; numbers are {ids}"
    for axis in placed.axes:
        yield _describe_axis(axis)
    if placed.traffic is not None:
        yield _describe_traffic(placed.traffic)


def _describe_axis(axis: PlacedAxis) -> str:
    """`X=8: along x and y in rings whose neighbors are 1 link apart`, in the order of a ring and not of the axis."""
    said = []
    if axis.slices > 1:
        said.append(f"over DCN between {axis.slices} slices")
    if axis.links is not None and not axis.links.torus_axes:
        said.append("between the devices of a chip")
    elif axis.links is not None:
        along = " and ".join(TORUS_AXES[torus_axis] for torus_axis in axis.links.torus_axes)
        ring = "in rings" if axis.links.is_closed else "in lines"
        if max(map(len, axis.links.rings)) == 2:
            ring = "in pairs"
        apart = f"{'up to ' * (axis.links.hops > 1)}{pluralize(axis.links.hops, 'link')} apart"
        said.append(f"along {along} {ring} whose neighbors are {apart}")
    return f"{axis.name}={axis.size}: {'; '.join(said)}"


def _describe_traffic(traffic: LinkTraffic) -> str:
    """`busiest links per step: x+ 12.6 MB, x- 12.6 MB`."""
    links = [
        f"{TORUS_AXES[axis]}{sign} {traffic.words(traffic.busiest_bytes(axis, direction))}"
        for axis, size in enumerate(traffic.torus.shape)
        if size > 1
        for direction, sign in enumerate("+-")
        if traffic.busiest_bytes(axis, direction) > 0
    ]
    dcn = [f"DCN {traffic.words(traffic.host_bytes)} from the busiest host"] if traffic.host_bytes else []
    said = ", ".join([*links, *dcn])
    if said:
        return f"busiest links each step: {said}"
    is_known = traffic.bound in (Bound.EXACT, Bound.AT_MOST)
    return "nothing crosses the links" if is_known else "nothing is known to cross the links"


_ROW_WIDTH, _LEAST_WIDTH = 900.0, 620.0
_BETWEEN_PLANES = 26.0
_SMALL = 0.8
"""Opacity of small labels."""
_MOST_PLANES = 6
_LARGEST_MAP = 32
"""Chips along an edge of the planes on which the rings of an axis are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """The size of chips in the drawing, and their distance.

    Attributes:
        chip: Width and height of a chip.
        gap: Distance between neighboring chips, across and down.
    """

    chip: tuple[float, float]
    gap: tuple[float, float]

    @property
    def has_labels(self) -> bool:
        """True if there is room for the label of a link."""
        return self.gap[0] >= 50

    @property
    def widest_link(self) -> float:
        """The width of the busiest link."""
        return min(8.0, self.chip[1] / 5)

    @property
    def stub(self) -> tuple[float, float]:
        """Length of the ends of links that lead round the torus."""
        return min(self.gap[0] * 0.45, 14), min(self.gap[1] * 0.45, 14)

    def find_corner(self, origin: tuple[float, float], x: int, y: int) -> tuple[float, float]:
        """The corner of a chip."""
        return origin[0] + x * (self.chip[0] + self.gap[0]), origin[1] + y * (self.chip[1] + self.gap[1])

    def measure(self, columns: int, rows: int) -> tuple[float, float]:
        """The size of a plane of chips."""
        (chip_width, chip_height), (beside, below) = self.chip, self.gap
        return columns * (chip_width + beside) - beside, rows * (chip_height + below) - below


_SCALES = (
    (4, _Scale(chip=(64, 40), gap=(62, 40))),
    (8, _Scale(chip=(44, 30), gap=(28, 24))),
    (16, _Scale(chip=(30, 22), gap=(17, 15))),
)
_SMALLEST = _Scale(chip=(25, 16), gap=(11, 11))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """The chips that have one place along the third axis of a torus.

    Attributes:
        z: That place.
        origin: Where its first chip is drawn.
    """

    z: int
    origin: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sheet:
    """The layout of the drawing.

    Attributes:
        placed: The mesh on its slice.
        head: The lines above.
        scale: How large chips are.
        planes: The planes of chips that are drawn.
        maps: The axes that have a map of their own.
        width: Of the whole picture.
        planes_width: Of the planes, with the space around them.
        planes_top: Where the planes begin.
        planes_end: Where the planes end.
    """

    placed: PlacedMesh
    head: tuple[str, ...]
    scale: _Scale
    planes: tuple[_Plane, ...]
    maps: tuple[PlacedAxis, ...]
    width: float
    planes_width: float
    planes_top: float
    planes_end: float

    @property
    def map_step(self) -> float:
        """Between chips on a map."""
        columns, rows, _ = _find_edges(self.placed)
        return min(max(220 / max(columns, rows), 10), 32)

    @property
    def map_size(self) -> tuple[float, float]:
        """The size of a map with the space around it."""
        columns, rows, _ = _find_edges(self.placed)
        return max(columns * self.map_step, 110.0) + 40, rows * self.map_step + 44

    @property
    def has_maps_beside(self) -> bool:
        """True if there is room for the maps to the right of the planes of one slice."""
        width, height = self.map_size
        is_wide = self.planes_width + len(self.maps) * width <= self.width - MARGIN
        return is_wide and self.placed.slice.slice_count == 1 and self.planes_top + height <= self.planes_end

    def list_map_corners(self) -> Iterator[tuple[float, float]]:
        """The corners of the maps, and then that of the next row."""
        width, height = self.map_size
        if self.has_maps_beside:
            yield from ((self.planes_width + index * width, self.planes_top) for index in range(len(self.maps)))
            yield MARGIN, self.planes_end
            return
        per_row = max(int((self.width - 2 * MARGIN) // width), 1)
        top = self.planes_end + (LINE_HEIGHT * 3 if self.placed.slice.slice_count > 1 else 0)
        for index in range(len(self.maps)):
            yield MARGIN + index % per_row * width, top + index // per_row * height
        yield MARGIN, top + -(-len(self.maps) // per_row) * height

    @property
    def text_width(self) -> float:
        """The room for a line of text."""
        return self.width - 2 * MARGIN


def render_mesh(placed: PlacedMesh) -> str:
    """The mesh on its slice, as an SVG element for a page or a file."""
    title, *said = describe_mesh(placed)
    head = (line for words in said for line in svg.wrap_text(words, _LEAST_WIDTH - 2 * MARGIN))
    sheet = _make_sheet(placed, (title, *head))
    remarks = list(_list_remarks(sheet))
    notes = [line for remark in remarks for line in svg.wrap_text(remark, sheet.text_width)]
    *corners, (_, notes_top) = sheet.list_map_corners()
    height = notes_top + LINE_HEIGHT * len(notes) + MARGIN
    root = svg.make_picture(sheet.width, height, title, " ".join([*said, *remarks]))
    svg.add_title(root, title, sheet.width)
    svg.write_lines(root, sheet.head[1:], MARGIN + 6 + LINE_HEIGHT, sheet.width)
    for plane in sheet.planes:
        _draw_plane(root, placed, sheet.scale, plane)
    if placed.slice.slice_count > 1:
        _draw_other_slices(root, placed, sheet.planes_end)
    for axis, corner in zip(sheet.maps, corners, strict=True):
        _draw_map(root, sheet, axis, corner)
    svg.write_lines(root, notes, notes_top + 0.7 * LINE_HEIGHT, sheet.width)
    return svg.render(root)


def _make_sheet(placed: PlacedMesh, head: tuple[str, ...]) -> _Sheet:
    columns, rows, count = _find_edges(placed)
    longest = max(columns, rows) * (1 if count == 1 else 2)
    scale = next((scale for edge, scale in _SCALES if longest <= edge), _SMALLEST)
    top = MARGIN + LINE_HEIGHT * (len(head) + 1)
    planes, width, end = _place_planes(placed, scale, top)
    has_maps = count == 1 and max(columns, rows) <= _LARGEST_MAP
    return _Sheet(
        placed=placed,
        head=head,
        scale=scale,
        planes=tuple(planes),
        maps=tuple(axis for axis in placed.axes if has_maps and axis.links is not None),
        width=max(width, _LEAST_WIDTH),
        planes_width=width,
        planes_top=top,
        planes_end=end,
    )


def _find_edges(placed: PlacedMesh) -> tuple[int, int, int]:
    first, second, third = (*placed.torus.shape, 1, 1)[:3]
    return first, second, third


def _place_planes(placed: PlacedMesh, scale: _Scale, top: float) -> tuple[list[_Plane], float, float]:
    """The positions of planes, their common width, and their end."""
    columns, rows, count = _find_edges(placed)
    width, height = scale.measure(columns, rows)
    room, padding = scale.stub[0] + 10, scale.stub[1] + 26
    planes: list[_Plane] = []
    x, y, widest = MARGIN + room, top + padding, 0.0
    for z in choose_places(count, _MOST_PLANES):
        if z is None:
            continue
        if planes and x + width > _ROW_WIDTH:
            x, y = MARGIN + room, y + height + 2 * padding
        planes.append(_Plane(z=z, origin=(x, y)))
        x += width + 2 * room + _BETWEEN_PLANES
        widest = max(widest, x - _BETWEEN_PLANES + MARGIN)
    return planes, widest, y + height + padding


def _draw_plane(root: svg.Element, placed: PlacedMesh, scale: _Scale, plane: _Plane) -> None:
    columns, rows, count = _find_edges(placed)
    if count > 1:
        above = 28 if scale.has_labels else scale.stub[1] + 8
        svg.label(root, plane.origin[0], plane.origin[1] - above, f"z={plane.z}", size=11)
    _draw_hosts(root, placed, scale, plane)
    for y in range(rows):
        for x in range(columns):
            _draw_links(root, placed, scale, plane, (x, y))
    devices_in_plane = [device for device in placed.devices if device.coords[2] == plane.z]
    for (x, y), devices in group_by(devices_in_plane, lambda device: device.coords[:2]).items():
        _draw_chip(root, placed, scale, scale.find_corner(plane.origin, x, y), devices)


def _draw_hosts(root: svg.Element, placed: PlacedMesh, scale: _Scale, plane: _Plane) -> None:
    in_plane = (device for device in placed.devices if device.coords[2] == plane.z)
    rim = min(scale.gap) * 0.28
    for host, devices in group_by(in_plane, lambda device: device.host).items():
        chips = [device.coords[:2] for device in devices]
        left, top = scale.find_corner(plane.origin, *min(chips))
        right, bottom = scale.find_corner(plane.origin, *max(chips))
        size = right - left + scale.chip[0] + 2 * rim, bottom - top + scale.chip[1] + 2 * rim
        group = svg.add(root, "g")
        svg.add(group, "title", text=f"host {host}")
        style: dict[str, str | float] = {"fill_opacity": 0.04, "stroke_dasharray": "4 3", "stroke_opacity": 0.6}
        svg.box(group, (left - rim, top - rim), size, rx=5, fill=svg.LINE, **style)
        if scale.has_labels:
            svg.label(group, left - rim, top - rim - 3, f"host {host}", size=9, opacity=_SMALL)


def _draw_chip(
    root: svg.Element, placed: PlacedMesh, scale: _Scale, corner: tuple[float, float], devices: Sequence[SliceDevice]
) -> None:
    width, height = scale.chip
    used = not placed.coordinates or any(device.id in placed.coordinates for device in devices)
    group = svg.add(root, "g")
    place = ",".join(map(str, devices[0].coords[: len(placed.torus.shape)]))
    words = "; ".join(f"device {device.id}{_describe_place(placed, device.id)}" for device in devices)
    svg.add(group, "title", text=f"chip {place} of host {devices[0].host}: {words}{'' if used else ', not used'}")
    tint, dashes = (0.22, "none") if used else (0, "2 2")
    style: dict[str, str | float] = {"fill_opacity": tint, "stroke_opacity": 0.8, "stroke_dasharray": dashes}
    svg.box(group, corner, scale.chip, rx=3, fill=svg.TINT, **style)
    ids = " ".join(str(device.id) for device in devices)
    size = next((size for size in (13, 11, 9, 8) if svg.fits(ids, width - 4, size)), 7)
    position = placed.coordinates.get(devices[0].id, ())
    below = f"({','.join(map(str, position))})" if position and len(devices) == 1 and scale.has_labels else ""
    middle = corner[0] + width / 2, corner[1] + height / 2
    svg.label(group, middle[0], middle[1] + (0 if below else size * 0.36), ids, anchor="middle", size=size)
    if below:
        svg.label(group, middle[0], middle[1] + 13, below, anchor="middle", size=9, opacity=_SMALL)


def _describe_place(placed: PlacedMesh, device: int) -> str:
    """` at X1 Y0`, the place of a device in the mesh; empty if it is not part of one."""
    place = placed.coordinates.get(device)
    if place is None or placed.mesh is None:
        return ""
    return f" at {escape_line(' '.join(map('{}{}'.format, placed.mesh.axis_names, place)))}"


def _draw_links(root: svg.Element, placed: PlacedMesh, scale: _Scale, plane: _Plane, place: tuple[int, int]) -> None:
    """The links from a chip to the next ones along each axis; of those that lead round, both ends."""
    (x, y), (width, height) = place, scale.chip
    left, top = scale.find_corner(plane.origin, x, y)
    centre = left + width / 2, top + height / 2
    columns, rows, count = _find_edges(placed)
    chip = _number_chip(placed, (x, y, plane.z))
    for axis, (at, size) in enumerate(((x, columns), (y, rows), (plane.z, count))[: len(placed.torus.shape)]):
        is_last = at == size - 1
        if size == 1 or (is_last and not placed.torus.wraparound[axis]) or (is_last and size == 2):
            continue
        begin = (left + width, centre[1]) if axis == 0 else (centre[0], top + height)
        step = (scale.gap[0], 0.0) if axis == 0 else (0.0, scale.gap[1])
        if axis == 2:
            begin, step = (left + width, top), (min(scale.gap[0], 12) * 0.7, -min(scale.gap[1], 12) * 0.7)
        group = svg.add(root, "g")
        svg.add(group, "title", text=_describe_link(placed, chip, axis, is_last))
        style = _choose_link_style(placed, chip, axis, scale.widest_link)
        if is_last and axis < 2:
            first = scale.find_corner(plane.origin, 0 if axis == 0 else x, 0 if axis == 1 else y)
            start = (first[0], centre[1]) if axis == 0 else (centre[0], first[1])
            stub = (scale.stub[0], 0.0) if axis == 0 else (0.0, scale.stub[1])
            svg.add_line(group, start, (start[0] - stub[0], start[1] - stub[1]), **style)
            step = stub
        svg.add_line(group, begin, (begin[0] + step[0], begin[1] + step[1]), **style)
        if scale.has_labels and axis < 2 and not is_last and placed.traffic is not None:
            _label_link(group, begin, step, placed.traffic, (chip, axis), at_the_side=x == columns - 1)


def _choose_link_style(placed: PlacedMesh, chip: int, axis: int, widest: float) -> dict[str, str | float]:
    """The style of a link: the wider, the more bytes cross it in its busier direction."""
    traffic = placed.traffic
    most = 0.0 if traffic is None else max(traffic.bytes_between(chip, axis))
    if traffic is None or most == 0:
        dotted = {} if traffic is None else {"stroke_dasharray": "1.5 3"}
        return {"stroke": svg.LINE, "stroke_width": 1.5, "stroke_opacity": 0.55, **dotted}
    share = most / float(traffic.link_bytes.max())
    return {"stroke": svg.TINT, "stroke_width": 1.5 + (widest - 1.5) * share}


def _describe_link(placed: PlacedMesh, chip: int, axis: int, leads_round: bool) -> str:
    """`x link from chip 0: 12.6 MB up and 12.6 MB down each step`."""
    where = f"{TORUS_AXES[axis]} link from the chip of device {chip * placed.torus.devices_per_chip}"
    round_ = " round to the other side" if leads_round else " to the next"
    if placed.traffic is None:
        return f"{where}{round_}"
    up, down = placed.traffic.bytes_between(chip, axis)
    return f"{where}{round_}: {placed.traffic.words(up)} there and {placed.traffic.words(down)} back each step"


def _label_link(
    parent: svg.Element,
    begin: tuple[float, float],
    step: tuple[float, float],
    traffic: LinkTraffic,
    link: tuple[int, int],
    *,
    at_the_side: bool,
) -> None:
    """Labels a link with the traffic of its busier direction."""
    most = max(traffic.bytes_between(*link))
    if most == 0:
        return
    words = traffic.words(most)
    x, y = begin[0] + step[0] / 2, begin[1] + step[1] / 2
    is_across = step[1] == 0
    anchor, left, down = ("middle", 0, -8) if is_across else ("end", -8, 3) if at_the_side else ("start", 8, 3)
    svg.label(parent, x + left, y + down, words, anchor=anchor, size=9)


def _draw_other_slices(root: svg.Element, placed: PlacedMesh, top: float) -> None:
    """The slice that is drawn, joined to the others over DCN."""
    count, width, height, between = placed.slice.slice_count, 190, 26, 150
    others = "slice 1, just as this" if count == 2 else f"slices 1 to {count - 1}, just as this"
    traffic = placed.traffic
    moved = 0.0 if traffic is None else traffic.host_bytes
    group = svg.add(root, "g")
    for x, words in ((MARGIN, "slice 0, drawn above"), (MARGIN + width + between, others)):
        svg.box(group, (x, top), (width, height), rx=3, fill=svg.TINT, fill_opacity=0.22, stroke_opacity=0.8)
        svg.label(group, x + width / 2, top + 17, svg.cut_to(words, width - 6, 11), anchor="middle", size=11)
    style: dict[str, str | float] = {"stroke": svg.LINE, "stroke_dasharray": "6 4", "stroke_width": 1.5}
    if moved:
        style = {**style, "stroke": svg.TINT, "stroke_width": 4}
    middle = top + height / 2
    svg.add_line(group, (MARGIN + width, middle), (MARGIN + width + between, middle), **style)
    said = f"DCN {traffic.words(moved)} a host" if traffic is not None and moved else "DCN"
    svg.label(group, MARGIN + width + between / 2, top + height / 2 - 6, said, anchor="middle", size=10)


def _draw_map(root: svg.Element, sheet: _Sheet, axis: PlacedAxis, corner: tuple[float, float]) -> None:
    """The rings of an axis over the chips, small: that of the first device thick."""
    links, step, placed = axis.links, sheet.map_step, sheet.placed
    if links is None:
        return
    group = svg.add(root, "g")
    svg.label(group, corner[0], corner[1] + 12, svg.cut_to(f"{axis.name}={axis.size}", sheet.map_size[0] - 10))
    first = corner[0] + step / 2, corner[1] + 24 + step / 2
    for ring in links.rings:
        style: dict[str, str | float] = {"stroke": svg.LINE, "stroke_width": 1.2, "stroke_opacity": 0.7, "fill": "none"}
        if next(iter(placed.coordinates), 0) in ring:
            style = {"stroke": svg.TINT, "stroke_width": 4, "fill": "none", "stroke_linejoin": "round"}
        for source, target in pairwise((*ring, *ring[: links.is_closed])):
            svg.add(group, "path", text=None, d=_make_step_path(placed.torus, source, target, first, step), **style)
    for device in placed.devices[:: placed.torus.devices_per_chip]:
        x, y = device.coords[:2]
        svg.add(group, "circle", cx=first[0] + x * step, cy=first[1] + y * step, r=min(step / 5, 3.5), fill=svg.LINE)


def _make_step_path(torus: Torus, source: int, target: int, first: tuple[float, float], step: float) -> str:
    """From one chip to the next of a ring: straight, in a bow over others, or out at one side and in at the other."""
    ends = ((*torus.coordinates(device), 0)[:2] for device in (source, target))
    (x1, y1), (x2, y2) = ((first[0] + x * step, first[1] + y * step) for x, y in ends)
    across, down = x2 - x1, y2 - y1
    begin, end = (f"M{svg.number(x)} {svg.number(y)}" for x, y in ((x1, y1), (x2, y2)))
    distance = abs(across) + abs(down)
    if distance <= 1.01 * step:
        return f"{begin}L{end[1:]}"
    if torus.longest_way([(source, target)]) <= 1:
        out = svg.number(0.45 * step * across / distance), svg.number(0.45 * step * down / distance)
        back = tuple(part.removeprefix("-") if part.startswith("-") else f"-{part}" for part in out)
        return f"{begin}l{' '.join(back)}{end}l{' '.join(out)}"
    bow = f"{svg.number((x1 + x2) / 2 + down * 0.2)} {svg.number((y1 + y2) / 2 - across * 0.2)}"
    return f"{begin}Q{bow} {end[1:]}"


def _list_remarks(sheet: _Sheet) -> Iterator[str]:
    """Remarks on the meaning of the drawing, and on omissions."""
    placed = sheet.placed
    if placed.traffic is not None and placed.traffic.link_bytes.any():
        known = "" if placed.traffic.bound is Bound.EXACT else " that is known"
        yield (
            "The wider a link, the more crosses it in a step, in its busier direction; "
            f"over dotted ones nothing{known} does."
        )
        if placed.traffic.bound is not Bound.EXACT:
            yield BOUNDS_WORDS[placed.traffic.bound]
        yield "Bytes on links are those of arrays as they lie in memory, with the padding of their tiles."
    if any(placed.torus.wraparound):
        yield "Ends that stick out lead round to the other side."
    _, _, count = _find_edges(placed)
    if count > 1:
        yield "Slanted ends lead to the plane of the next z."
    if len(sheet.planes) < count:
        yield f"Drawn are the planes z={', '.join(str(plane.z) for plane in sheet.planes)} of {count}."
    if sheet.maps:
        where = "Beside the chips" if sheet.has_maps_beside else "Below the chips"
        yield f"{where}, what each axis connects; thick is the group of the first device."
    if placed.coordinates and sheet.scale.has_labels:
        yield "Below the id of each device, its place in the mesh."
    yield "Dashed outlines are hosts."
    for note in placed.notes:
        yield f"{note[0].upper()}{note[1:].rstrip('.')}."


_MOST_TEXT_PLANES = 6
_BUSY_WORDS = "Bold links (━ ┃) carry something each step, thin ones nothing."
_ROUND_WORDS = "Links that stick out at the sides lead round to the other one."


def draw_mesh_lines(placed: PlacedMesh, width: int) -> Iterator[Text]:
    """The mesh on its slice, as lines of text; the chips where they fit."""
    title, *said = describe_mesh(placed)
    yield from hang(Text(title, style="bold"), width)
    for words in said:
        yield from hang(Text(words), width)
    columns, rows, count = _find_edges(placed)
    cell = max(len(_format_ids(placed, (column, row, 0))) for column in range(columns) for row in range(rows)) + 2
    if columns * (cell + 2) + 2 <= width:
        for z in choose_places(count, _MOST_TEXT_PLANES):
            if z is not None:
                yield Text()
                yield from _draw_text_plane(placed, z, cell)
        yield Text()
    for words in (*_list_legend(placed), *(f"{note[0].upper()}{note[1:].rstrip('.')}." for note in placed.notes)):
        yield from hang(Text(words, style="dim"), width)


def _draw_text_plane(placed: PlacedMesh, z: int, cell: int) -> Iterator[Text]:
    """The chips that have one place along the third axis."""
    columns, rows, count = _find_edges(placed)
    round_x = placed.torus.wraparound[0] and columns > 2
    if count > 1:
        yield Text(f"z={z}", style="dim")
    for y in range(rows):
        line = Text("━━" if round_x and _is_busy(placed, (columns - 1, y, z), 0) else "──" if round_x else "  ")
        for x in range(columns):
            line.append(_format_ids(placed, (x, y, z)).center(cell), style="reverse")
            if x < columns - 1 or round_x:
                line.append("━━" if _is_busy(placed, (x, y, z), 0) else "──")
        yield line
        if y < rows - 1:
            below = ("┃" if _is_busy(placed, (x, y, z), 1) else "│" for x in range(columns))
            yield Text("  " + "  ".join(mark.center(cell) for mark in below))


def _format_ids(placed: PlacedMesh, place: tuple[int, int, int]) -> str:
    """The devices of a chip."""
    cores = placed.torus.devices_per_chip
    first = _number_chip(placed, place) * cores
    return " ".join(map(str, range(first, first + cores)))


def _number_chip(placed: PlacedMesh, place: tuple[int, int, int]) -> int:
    columns, rows, _ = _find_edges(placed)
    x, y, z = place
    return (z * rows + y) * columns + x


def _is_busy(placed: PlacedMesh, place: tuple[int, int, int], axis: int) -> bool:
    traffic = placed.traffic
    return traffic is not None and max(traffic.bytes_between(_number_chip(placed, place), axis)) > 0


def _list_legend(placed: PlacedMesh) -> Iterator[str]:
    if placed.traffic is not None and placed.traffic.link_bytes.any():
        is_exact = placed.traffic.bound is Bound.EXACT
        yield _BUSY_WORDS if is_exact else f"{_BUSY_WORDS[:-1]} that is known."
        yield from () if is_exact else (BOUNDS_WORDS[placed.traffic.bound],)
    if placed.torus.wraparound[0] and placed.torus.shape[0] > 2:
        yield _ROUND_WORDS


_COLUMNS = 100


def draw_mesh_picture(found: Analysis) -> Picture:
    """The mesh of an analyzed program on its slice.

    Raises:
        HloscopeError: It has no TPU slice.
    """
    placed = place_analysis(found)
    text = draw_lines(draw_mesh_lines(placed, _COLUMNS), _COLUMNS, False).rstrip("\n")
    return Picture(title=f"the mesh of {found.target} on {placed.slice.name}", svg=render_mesh(placed), text=text)


def place_analysis(found: Analysis, module: HloModule | None = None) -> PlacedMesh:
    """The mesh of an analyzed program on its slice, with what crosses the links where the program is known.

    Args:
        found: The analysis.
        module: Its parsed text, if it is already at hand.

    Raises:
        HloscopeError: It has no TPU slice.
    """
    evidence = find_evidence(found)
    if evidence is None:
        return place_mesh(found)
    program = evidence.program
    device_ids = program.compiled.device_ids or None
    traffic = sum_link_traffic(program, module or evidence.module(), found)
    return place_mesh(found, chosen=program.slice, device_ids=device_ids, traffic=traffic)
