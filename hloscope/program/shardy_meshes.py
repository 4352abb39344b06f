"""Meshes as Shardy prints them, in the attributes of HLO text and in MLIR."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from hloscope.program.capture import Mesh

_MESH = re.compile(
    r"(?:#sdy\.mesh|\bsdy\.mesh @[\w.$-]+ =\s*)"
    r"<\[(?P<axes>[^\]]*)\](?:\s*,\s*device_ids\s*=\s*\[(?P<ids>[^\]]*)\])?\s*>"
)
_AXIS = re.compile(r'\\?"(?P<name>(?:[^"\\]|\\.)+?)\\?"\s*=\s*(?P<size>\d+)')


def find_shardy_meshes(text: str) -> Iterator[Mesh]:
    """The meshes in a text, in order, without axis types and without meshes that have no axes."""
    for match in _MESH.finditer(text):
        yield from make_named_mesh(_parse_axes(match), _parse_integers(match["ids"]) if match["ids"] else None)


def count_shardy_mesh_devices(text: str) -> list[int]:
    """The number of devices of each mesh in a text, including meshes that cannot be used."""
    return [prod(size for _, size in _parse_axes(match)) for match in _MESH.finditer(text)]


def make_named_mesh(axes: Sequence[tuple[str, int]], ids: tuple[int, ...] | None) -> Iterator[Mesh]:
    """A mesh of named axes, unless there are no axes or two have the same name.

    Args:
        axes: Names and sizes, major first.
        ids: The partition at each position; None for 0, 1, 2, …
    """
    names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
    if not axes or len(set(names)) != len(names):
        return
    if ids is not None and (ids == tuple(range(prod(sizes))) or len(ids) != prod(sizes)):
        ids = None
    yield Mesh(axis_names=names, axis_sizes=sizes, partition_ids=ids)


def _parse_axes(match: re.Match[str]) -> list[tuple[str, int]]:
    return [(axis["name"], int(axis["size"])) for axis in _AXIS.finditer(match["axes"])]


def _parse_integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))
