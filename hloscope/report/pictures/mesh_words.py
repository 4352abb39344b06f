"""What is said of the mesh on its slice, above its picture and instead of one."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.vocabulary import Bound
from hloscope.cost.link_traffic import LinkTraffic
from hloscope.cost.placed import PlacedAxis, PlacedMesh
from hloscope.units import plural

TORUS_AXES = "xyz"


def mesh_words(placed: PlacedMesh) -> Iterator[str]:
    """What is said of the mesh, a line each; the first one is the title."""
    mesh = placed.mesh
    axes = (
        ""
        if mesh is None
        else " ".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    )
    yield f"mesh {axes} on {placed.slice.name}" if axes else placed.slice.name
    hosts = len({device.host for device in placed.devices})
    chips = len(placed.devices) // placed.torus.devices_per_chip
    several = f"{placed.slice.slice_count} slices over DCN, each of " if placed.slice.slice_count > 1 else ""
    ids = "the devices of a slice" if several else "device ids"
    yield f"{several}{plural(chips, 'chip')} on {plural(hosts, 'host')}; numbers are {ids}"
    for axis in placed.axes:
        yield _axis_words(placed, axis)
    if placed.traffic is not None:
        yield _traffic_words(placed.traffic)


def _axis_words(placed: PlacedMesh, axis: PlacedAxis) -> str:
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
        apart = f"{'up to ' * (axis.links.hops > 1)}{plural(axis.links.hops, 'link')} apart"
        said.append(f"along {along} {ring} whose neighbors are {apart}")
    return f"{axis.name}={axis.size}: {'; '.join(said)}"


def _traffic_words(traffic: LinkTraffic) -> str:
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
