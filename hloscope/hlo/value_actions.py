"""The callbacks of the grammar's lower level: shapes, layouts, groups, shardings, metadata, checked values.

Among the attributes that hloscope does not interpret, a few are checked when a text is read, because their values look
the same in all versions of XLA. All other values are kept as printed: versions differ in the words that they know.
"""

# ruff: noqa: D102 - a callback is documented by its rule in the grammar
from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from hloscope.errors import HloscopeError
from hloscope.hlo.lalr_runtime import Token
from hloscope.hlo.opcodes import RULE_OF_VALUE
from hloscope.hlo.records import ComputationHead, ReadError, TextSpan, join_spans
from hloscope.hlo.replica_groups import MAX_DEVICES, AxisReference, Iota, NamedMesh, ReplicaGroups
from hloscope.hlo.shape import COMBINED, UNBOUNDED, Layout, Shape
from hloscope.hlo.sharding import Sharding, convert_mesh_sharding


@dataclass(frozen=True, slots=True)
class ParsedEntries:
    """The entries of metadata or frontend attributes, with their span."""

    values: dict[str, str]
    span: TextSpan


class _DeviceIds(NamedTuple):
    """The devices of a named mesh in row-major order."""

    device_ids: tuple[int, ...]


class _Tag(NamedTuple):
    """One tag of a sharding and its value."""

    name: str
    value: Any


class _Placement(NamedTuple):
    """The placement of axes in a named sharding; `whole` is set if it places the value as a whole."""

    whole: str | None
    dimensions: tuple[tuple[AxisReference, ...], ...]
    axes: tuple[AxisReference, ...]


class Progress(threading.local):
    """The progress of this thread through the computations of a text.

    Attributes:
        head: The head of the computation that is being read.
        end: Offset after the last complete computation; None before the first.
    """

    head: ComputationHead | None = None
    end: int | None = None


class ValueActions:
    """Callbacks of the lower level.

    Attributes:
        read: A function that reads a text by a start rule; set by the language.
        progress: The progress of reading computations, for errors and for texts that are cut off.
    """

    def __init__(self) -> None:
        self.read: Callable[[str, str], Any] = lambda start, text: None
        self.progress = Progress()

    def read_at(self, start: str, token: Token) -> Any:
        """Reads a coarse token by a rule of the lower level; errors keep their place in the whole text."""
        try:
            return self.read(start, str(token))
        except ReadError as error:
            raise error.moved(token.start_pos) from None

    # ---- shapes and layouts

    def array(self, children: list[Any]) -> Shape:
        dimensions = children[2:-1]
        return Shape(
            element_type=str(children[0]),
            dimensions=tuple(size for size, _ in dimensions),
            dynamic=tuple(dynamic for _, dynamic in dimensions),
        )

    def static_dimension(self, children: list[Token]) -> tuple[int, bool]:
        return _parse_size(children[0]), False

    def bounded_dimension(self, children: list[Token]) -> tuple[int, bool]:
        return _parse_size(children[1]), True

    def unbounded_dimension(self, _: list[Token]) -> tuple[int, bool]:
        return UNBOUNDED, True

    def layout(self, children: list[Any]) -> Layout:
        order = children[1] if isinstance(children[1], tuple) else ()
        items = [child for child in children if isinstance(child, _Tag)]
        single = {item.name: item.value for item in items}
        return Layout(
            minor_to_major=order,
            tiles=tuple(tile for item in items if item.name == "tiles" for tile in item.value),
            memory_space=single.get("memory_space", 0),
            element_size_in_bits=single.get("element_size", 0),
            other_items=tuple(item.value for item in items if item.name == "other"),
        )

    def tiles(self, children: list[Any]) -> _Tag:
        return _Tag("tiles", tuple(children[1:]))

    def tile(self, children: list[Token]) -> tuple[int, ...]:
        sizes = tuple(COMBINED if child == "*" else int(child) for child in children[1:-1])
        if any(child.startswith("-") for child in children):
            raise ReadError(children[0].start_pos, "a tile dimension is negative")
        return sizes

    def memory_space(self, children: list[Token]) -> _Tag:
        return _Tag("memory_space", int(children[2]))

    def element_size(self, children: list[Token]) -> _Tag:
        return _Tag("element_size", int(children[2]))

    def other_layout_item(self, children: list[Token]) -> _Tag:
        return _Tag("other", str(children[0]))

    # ---- integers

    def numbers(self, children: list[Token]) -> tuple[int, ...]:
        return tuple(map(int, children))

    def integers(self, children: list[Any]) -> tuple[int, ...]:
        order: tuple[int, ...] = children[1] if len(children) == 3 else ()
        return order

    def integer_lists(self, children: list[Any]) -> tuple[Any, ...]:
        return tuple(children[1:-1])

    axes = integer_lists

    # ---- groups and meshes

    def listed_groups(self, children: list[Any]) -> ReplicaGroups:
        return ReplicaGroups(listed=children[0])

    def iota_groups(self, children: list[Any]) -> ReplicaGroups:
        return ReplicaGroups(iota=children[0])

    def mesh_groups(self, children: list[Any]) -> ReplicaGroups:
        mesh, axes = children
        mesh.split_by(axes)  # reports names and sizes that do not fit the mesh here, where the place is known
        return ReplicaGroups(mesh=mesh, axes=axes)

    def maximal_mesh_groups(self, children: list[Any]) -> ReplicaGroups:
        if children[-1]:
            raise HloscopeError("a maximal mesh has no axes")
        return ReplicaGroups(listed=((int(children[3]),),))

    def iota(self, children: list[Any]) -> Iota:
        permutation = children[7] if len(children) > 7 else None
        return Iota(dimensions=children[1], reshape=children[5], permutation=permutation)

    def transpose(self, children: list[Any]) -> tuple[int, ...]:
        permutation: tuple[int, ...] = children[2]
        return permutation

    def mesh(self, children: list[Any]) -> NamedMesh:
        device_ids = children[-1].device_ids if isinstance(children[-1], _DeviceIds) else None
        axes = tuple(child.value for child in children if isinstance(child, _Tag))
        return NamedMesh(axes=axes, device_ids=device_ids)

    def mesh_axis(self, children: list[Any]) -> _Tag:
        return _Tag("axis", (children[0], int(children[2])))

    def axis_name(self, children: list[Token]) -> str:
        (name,) = children
        return unquote(name) if name[0] in "\"'" else str(name)

    def listed_device_ids(self, children: list[Any]) -> _DeviceIds:
        return _DeviceIds(children[2])

    def iota_device_ids(self, children: list[Any]) -> _DeviceIds:
        reshape = children[3]
        permutation = children[5] if isinstance(children[5], tuple) else None
        iota = Iota(dimensions=(prod(reshape),), reshape=reshape, permutation=permutation)
        return _DeviceIds(tuple(map(int, iota.array())))

    def axis(self, children: list[Any]) -> AxisReference:
        if len(children) == 1:
            return AxisReference(name=children[0])
        return AxisReference(name=children[0], pre_size=int(children[3]), size=int(children[5]))

    # ---- shardings

    def sharding(self, children: list[Any]) -> Sharding:
        found: Sharding = children[1]
        return found

    def tagged_sharding(self, children: list[_Tag]) -> Sharding:
        tags = {tag.name: tag.value for tag in children}
        if not children:
            return Sharding(kind="tuple")
        if "devices" in tags:
            dimensions, devices = tags["devices"]
            return Sharding(
                kind="tiled",
                tile_dimensions=dimensions,
                devices=devices,
                replicate_on_last_tile_dim="last_tile_dim_replicate" in tags,
                last_tile_dims=tags.get("last_tile_dims", ()),
            )
        kinds = [tag for tag in children if tag.name not in ("ignored", "last_tile_dim_replicate")]
        if len(kinds) != 1:
            raise ReadError(0, "a sharding must have exactly one kind")
        return Sharding(kind=kinds[0].name, devices=kinds[0].value or ())

    def word_tag(self, children: list[Token]) -> _Tag:
        return _Tag(str(children[0]), None)

    def maximal_tag(self, children: list[Token]) -> _Tag:
        return _Tag("maximal", (int(children[2]),))

    def iota_devices_tag(self, children: list[Any]) -> _Tag:
        iota: Iota = children[1]
        return _Tag("devices", (iota.dimensions, tuple(map(int, iota.array().reshape(-1)))))

    def listed_devices_tag(self, children: list[Any]) -> _Tag:
        dimensions, devices = children[2], children[4]
        if prod(dimensions) != len(devices) or len(devices) > MAX_DEVICES:
            raise ReadError(children[1].start_pos, f"{list(dimensions)} does not match {len(devices)} devices")
        return _Tag("devices", (dimensions, devices))

    def last_tile_dims_tag(self, children: list[Token]) -> _Tag:
        return _Tag("last_tile_dims", tuple(map(str, children[2:-1])))

    def ignored_tag(self, _: list[Token]) -> _Tag:
        return _Tag("ignored", None)

    def tuple_sharding(self, children: list[Sharding]) -> Sharding:
        return Sharding(kind="tuple", elements=tuple(children))

    def maximal_mesh_sharding(self, children: list[Token]) -> Sharding:
        return Sharding(kind="maximal", devices=(int(children[3]),))

    def mesh_sharding(self, children: list[Any]) -> Sharding:
        mesh, placement, *extras = children
        if placement.whole is not None and not placement.axes:
            return Sharding(kind=placement.whole, mesh=mesh)
        named = {tag.name: tag.value for tag in (*extras, _Tag(placement.whole or "", placement.axes))}
        manual, unreduced = named.get("manual", ()), named.get("unreduced", ())
        return convert_mesh_sharding(mesh, placement.dimensions, manual=manual, unreduced=unreduced)

    def whole_placement(self, children: list[Any]) -> _Placement:
        axes = children[-1] if isinstance(children[-1], tuple) else ()
        return _Placement(children[0].rstrip("="), (), axes)

    def placements(self, children: list[Any]) -> _Placement:
        return _Placement(None, tuple(children[1:-1]), ())

    def placed(self, children: list[Any]) -> tuple[AxisReference, ...]:
        return tuple(child for child in children[1:-1] if child is not None)

    def axis_or_open(self, children: list[Any]) -> AxisReference | None:
        return children[0] if isinstance(children[0], AxisReference) else None

    def other_axes(self, children: list[Any]) -> _Tag:
        return _Tag(children[0].rstrip("="), children[-1])

    # ---- metadata and frontend attributes

    def metadata(self, children: list[Any]) -> ParsedEntries:
        entries = {child.name: child.value for child in children if isinstance(child, _Tag)}
        return ParsedEntries(entries, join_spans(children[0], children[-1]))

    frontend_attributes = metadata

    def metadata_entry(self, children: list[Token]) -> _Tag:
        key, value = children
        return _Tag(key[:-1], unquote(value) if value.type == "STRING" else str(value))

    frontend_entry = metadata_entry

    # ---- values that are only checked

    def _nothing(self, _children: list[Any]) -> None:
        return None

    window = window_item = ranges = range = aliasing = alias = donors = donor = shape_index = _nothing
    result_accuracy = padding = dim_labels = number = boolean = quoted = _nothing


def _parse_size(token: Token) -> int:
    size = int(token)
    if size < 0:
        raise ReadError(token.start_pos, f"a dimension cannot be {size}")
    return size


_PLAIN_PAIRS = re.compile(r"\{(?:\{[0-9]{1,18},[0-9]{1,18}\}(?:,(?=\{)|(?=\})))*+\}")
_DIGITS = re.compile(r"[0-9]{1,18}")


def check_value(read: Callable[[str, str], Any], key: str, value: str) -> None:
    """Checks the value of an attribute, if its key is one of those above.

    Args:
        read: A function that reads a text by a start rule, with a cache: numbers are made equal, so that few values are
        new.
        key: The attribute's name.
        value: Its value as printed.

    Raises:
        ReadError: The value does not follow its rule.
    """
    rule = RULE_OF_VALUE.get(key)
    if rule is not None and not (rule == "integer_lists" and is_plain_pairs(value)):
        read(rule, _DIGITS.sub("0", value))


def is_plain_pairs(value: str) -> bool:
    """Returns whether a value is `{{0,1},{1,2}}` as XLA prints it, so that the grammar need not check it again."""
    return _PLAIN_PAIRS.fullmatch(value) is not None


_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_CONTROL = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def unquote(text: str) -> str:
    """The value of a quoted string: C escapes undone, octal bytes read as UTF-8.

    XLA prints every byte outside ASCII as an octal escape. An escape unknown to C means the character itself.
    """
    body = text[1:-1]
    if "\\" not in body:
        return body
    return _ESCAPE.sub(_unescape, body.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def _unescape(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, character = match.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    return _CONTROL.get(character, character)
