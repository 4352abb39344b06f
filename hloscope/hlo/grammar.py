"""The HLO language: the parser for the grammar, created on first use, and error messages for invalid text."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

from hloscope.base.errors import HloscopeError
from hloscope.hlo.lalr import (
    RULE_OF_VALUE,
    UPPER_STARTS,
    AcceptedTerminals,
    HloSyntaxError,
    LalrRuntime,
    ParseTables,
    load_tables,
)
from hloscope.hlo.records import (
    COMBINED,
    MAX_DEPTH,
    MAX_DEVICES,
    UNBOUNDED,
    Attribute,
    AxisReference,
    Callee,
    Computation,
    ComputationHead,
    ContradictionError,
    Header,
    Instruction,
    Iota,
    Layout,
    NamedMesh,
    Operand,
    ParsedOp,
    ParsedShape,
    ParsedText,
    ReadError,
    ReplicaGroups,
    Shape,
    Sharding,
    StackTableRow,
    TextSpan,
    Token,
    convert_mesh_sharding,
    join_spans,
)

# ---- the callbacks of the grammar's lower level: shapes, layouts, groups, shardings, metadata, checked values
#
# Among the attributes that hloscope does not interpret, a few are checked when a text is read, because their values
# look the same in all versions of XLA. All other values are kept as printed: versions differ in the words that they
# know.

# ruff: noqa: D102 - a callback is documented by its rule in the grammar


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
            memory_space=single.get("S", 0),
            element_size_in_bits=single.get("E", 0),
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
        letter, _, number, _ = children
        return _Tag(str(letter), int(number))

    element_size = memory_space

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

    # ---- values of attributes, and those that are only checked

    def number(self, children: list[Token]) -> int:
        return int(children[0])

    def boolean(self, children: list[Token]) -> bool:
        return children[0] == "true"

    def quoted(self, children: list[Token]) -> str:
        return unquote(children[0])

    def padding(self, children: list[Token]) -> str:
        return str(children[0])

    dim_labels = padding

    def _nothing(self, _children: list[Any]) -> None:
        return None

    window = window_item = ranges = range = aliasing = alias = donors = donor = shape_index = _nothing
    result_accuracy = _nothing


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


# ---- the callbacks that build records and values during parsing
#
# Each method handles the rule, or the alias of an alternative, of the same name in `hlo.lark`; its argument is the
# list of children.

# ruff: noqa: D102 - a callback is documented by its rule in the grammar


_OPERAND_NAME = re.compile(r"/\*[^*]*\*/|%?([A-Za-z_][A-Za-z0-9_.-]*)")

_MOST_ARRAYS = 1 << 14
"""Number of arrays kept for later texts: the same few make up very many shapes."""


class GrammarActions(ValueActions):
    """Callbacks of the upper level; the lower level is inherited."""

    def __init__(self) -> None:
        super().__init__()
        self._arrays: dict[tuple[str, ...], Shape] = {}

    # ---- text

    def module(self, children: list[Any]) -> ParsedText:
        header, *rest = children
        tables = rest.pop(0) if isinstance(rest[0], list) else ()
        return ParsedText(header=header, tables=tuple(tables), computations=tuple(rest))

    def headerless(self, children: list[Any]) -> ParsedText:
        return ParsedText(computations=tuple(children))

    def continuation(self, children: list[Any]) -> tuple[Computation, ...]:
        return tuple(children)

    def single(self, children: list[Any]) -> ParsedText:
        (item,) = children
        instruction = item if isinstance(item, Instruction) else Instruction(True, None, item)
        return ParsedText(instruction=instruction)

    def header(self, children: list[Any]) -> Header:
        _, name, *attributes = children
        return Header(name.rstrip(":").lstrip("%"), _check_unique(attributes))

    def module_name(self, children: list[Any]) -> Any:
        return children[0]

    opcode = table_row = module_name

    # ---- stack tables

    def tables(self, children: list[Any]) -> list[Any]:
        return children

    operands = value = tables

    def file_names(self, children: list[Any]) -> tuple[StackTableRow, ...]:
        return tuple(children[1:])

    function_names = file_locations = stack_frames = file_names

    def name_row(self, children: list[Token]) -> StackTableRow:
        return unquote(children[1])

    def number_row(self, children: list[Token]) -> StackTableRow:
        keys, numbers = children[2:-1:2], children[3:-1:2]
        return {key[:-1]: int(number) for key, number in zip(keys, numbers, strict=True)}

    # ---- computations

    def computation(self, children: list[Any]) -> Computation:
        head, *instructions, thread = children
        return Computation(head, tuple(instructions), thread)

    leading_computation = computation

    def computation_head(self, children: list[Any]) -> ComputationHead:
        is_entry = children[0].type == "ENTRY"
        name = children[1] if is_entry else children[0]
        head = ComputationHead(is_entry, name, join_spans(children[0], children[-1]))
        self.progress.head = head
        return head

    leading_head = computation_head

    def computation_end(self, children: list[Token]) -> str | None:
        self.progress.head = None
        self.progress.end = children[-1].end_pos
        return unquote(children[2]) if len(children) > 1 else None

    signature = parameter = ValueActions._nothing

    # ---- instructions

    def instruction(self, children: list[Any]) -> Instruction:
        is_root = children[0].type == "ROOT"
        return Instruction(is_root, children[1] if is_root else children[0], children[-1])

    def name(self, children: list[Token]) -> Token:
        (name,) = children
        return name.until(-1) if name.type == "PARAMETER_NAME" else name

    def operation(self, children: list[Any]) -> ParsedOp:
        return self._operation(children, with_attributes=True)

    def _operation(self, children: list[Any], *, with_attributes: bool) -> ParsedOp:
        shape = children.pop(0) if isinstance(children[0], ParsedShape) else None
        opcode, _, *rest = children
        operands = rest.pop(0) if isinstance(rest[0], list) else ()
        closing, *attributes = rest
        span = join_spans(opcode, closing)
        unique = _check_unique(attributes) if with_attributes else ()
        return ParsedOp(shape, str(opcode), span, tuple(operands), None, unique)

    def parameter_operation(self, children: list[Any]) -> ParsedOp:
        shape, opcode, _, argument, closing, *attributes = children
        span = join_spans(opcode, closing)
        argument_span = join_spans(argument, argument)
        return ParsedOp(shape, str(opcode), span, (), argument_span, _check_unique(attributes))

    constant_operation = parameter_operation

    def plain_operands(self, children: list[Token]) -> list[Operand]:
        (names,) = children
        base = names.start_pos
        return [
            Operand(None, found.group(1), TextSpan(base + found.start(), base + found.end()), (), None)
            for found in _OPERAND_NAME.finditer(names)
            if found.group(1)
        ]

    def named_operand(self, children: list[Any]) -> Operand:
        shape = children.pop(0) if isinstance(children[0], ParsedShape) else None
        name = children[0]
        indexes = tuple(int(child) for child in children[2::2])
        span = join_spans(name, name)
        return Operand(shape and shape.shape, name.lstrip("%"), span, indexes, None)

    def nested_operand(self, children: list[Any]) -> Operand:
        nested = self._operation(children, with_attributes=False)
        if _count_nesting(nested) > MAX_DEPTH:
            raise ReadError(nested.span.start, f"operands nest deeper than {MAX_DEPTH} levels")
        return Operand(nested.shape and nested.shape.shape, None, nested.span, (), nested)

    def nested_leaf(self, children: list[Any]) -> Operand:
        nested = self.parameter_operation(children)
        return Operand(children[0].shape, None, nested.span, (), nested)

    def nameless_operand(self, children: list[ParsedShape]) -> Operand:
        return Operand(children[0].shape, None, children[0].span, (), None)

    def left_out(self, _children: list[Any]) -> Operand:
        return Operand(None, None, TextSpan(0, 0), (), None)

    # ---- shapes

    def array_shape(self, children: list[Token]) -> ParsedShape:
        shape = self._arrays.get(tuple(children))
        if shape is None:
            if len(self._arrays) >= _MOST_ARRAYS:
                self._arrays.clear()
            shape = self._arrays[tuple(map(str, children))] = self._array(*children)
        return ParsedShape(shape, join_spans(children[0], children[-1]), 0)

    def _array(self, array: Token, layout: Token | None = None) -> Shape:
        shape: Shape = self.read_at("array", array)
        if layout is None:
            return shape
        found: Layout = self.read_at("layout", layout)
        if len(found.minor_to_major) not in (0, len(shape.dimensions)):
            raise ReadError(layout.start_pos, f"the layout of {shape} lists {len(found.minor_to_major)} dimensions")
        return replace(shape, layout=found)

    def tuple_shape(self, children: list[Any]) -> ParsedShape:
        return self._nested_shape("tuple", children)

    def buffer_shape(self, children: list[Any]) -> ParsedShape:
        return self._nested_shape("buffer", children)

    def _nested_shape(self, element_type: str, children: list[Any]) -> ParsedShape:
        opening, *elements, closing = children
        span = join_spans(opening, closing)
        depth = 1 + max((element.depth for element in elements), default=0)
        if depth > MAX_DEPTH:
            raise ReadError(span.start, f"tuple shapes nest deeper than {MAX_DEPTH} levels")
        shape = Shape(element_type=element_type, elements=tuple(element.shape for element in elements))
        return ParsedShape(shape, span, depth)

    # ---- attributes

    def plain_attribute(self, children: list[Any]) -> Attribute:
        key, value = children
        if isinstance(value, list):
            self._check_value(key[:-1], value[0])
            value = join_spans(value[0], value[-1])
        span = value if isinstance(value, TextSpan) else join_spans(value, value)
        return Attribute(key[:-1], span, ())

    def _check_value(self, key: str, first: Token) -> None:
        """Checks a value that, if valid, is a single token."""
        try:
            check_value(self.read, key, first)
        except ReadError:
            self.read_at(RULE_OF_VALUE[key], first)

    def called_attribute(self, children: list[Any]) -> Attribute:
        key, (span, callees) = children
        return Attribute(key[:-1], span, callees)

    def frontend_attribute(self, children: list[Any]) -> Attribute:
        key, entries = children
        return Attribute(key[:-1], entries.span, ())

    def literal(self, children: list[Any]) -> TextSpan:
        first, last = children[0], children[-1]
        return join_spans(first, last)

    def callee_name(self, children: list[Token]) -> tuple[TextSpan, tuple[Callee, ...]]:
        span = join_spans(children[0], children[0])
        return span, (Callee(children[0].lstrip("%"), span, ()),)

    def callee_list(self, children: list[Any]) -> tuple[TextSpan, tuple[Callee, ...]]:
        opening, *items, closing = children
        callees = tuple(callee for _, found in items for callee in found)
        return join_spans(opening, closing), callees

    def callee_body(self, children: list[Any]) -> tuple[TextSpan, tuple[Callee, ...]]:
        opening, *instructions, closing = children
        span = join_spans(opening, closing)
        return span, (Callee(None, span, tuple(instructions)),)


def _count_nesting(operation: ParsedOp) -> int:
    """Number of levels of nested operands below an operation."""
    level, depth = [operation], 0
    while level:
        level = [operand.nested for item in level for operand in item.operands if operand.nested is not None]
        depth += 1
    return depth


def _check_unique(attributes: list[Attribute]) -> tuple[Attribute, ...]:
    seen: set[str] = set()
    for attribute in attributes:
        if attribute.key in seen:
            raise ReadError(attribute.span.start, f"attribute {attribute.key} appears twice")
        seen.add(attribute.key)
    return tuple(attributes)


class Language:
    """The parser with its callbacks.

    Args:
        tables: The automaton of the grammar.

    Attributes:
        reader: The callbacks; its `progress` has the computation that was open when a parse failed.
    """

    def __init__(self, tables: ParseTables) -> None:
        self.reader = GrammarActions()
        callbacks = {
            name: getattr(self.reader, name)
            for name in {rule.callback for rule in tables.rules if not rule.origin.startswith("_")}
        }
        self._runtime = LalrRuntime(tables, callbacks)
        self.read = lru_cache(maxsize=1 << 14)(self._parse)
        self.reader.read = self.read

    def parse(self, start: str, text: str) -> Any:
        """Parses `text` by the rule `start` and returns what its callback made.

        Raises:
            ReadError: The text does not follow the grammar, or makes no sense; with the offset of the place. A
            `ContradictionError` if its values contradict each other.
        """
        if start in UPPER_STARTS:
            self.reader.progress.head = None
            self.reader.progress.end = None
        return self._parse(start, text)

    def _parse(self, start: str, text: str) -> Any:
        try:
            return self._runtime.parse(start, text)
        except HloSyntaxError as error:
            raise describe_failure(text, error.position, error.opened_at, error.accepted) from None
        except HloscopeError as error:
            raise ContradictionError(0, error.what) from None


@cache
def load_language() -> Language:
    """The only parser of this process."""
    return Language(load_tables())


_MARKS = "LBRACE RBRACE LSQB RSQB LPAR RPAR COMMA EQUAL COLON ARROW LESS_EQUAL ROOT ENTRY HLO_MODULE"
_MARKED = "{ } [ ] ( ) , = : -> <= ROOT ENTRY HloModule"
"""The grammar's names of marks and words, and their spelling."""

_WORDS = {
    "NAME": "a name",
    "IDENT": "a name",
    "ARRAY": "a shape",
    "KEY": "an attribute",
    "STRING": "a string",
    "INTEGER": "a number",
    "WORD": "a value",
    "BRACED": "`{`",
    "RAW_DICT": "`{`",
    "BRACKETED": "`[`",
    "PARENTHESIZED": "`(`",
    "LITERAL": "a literal",
    "LAYOUT": "a layout",
    "ELEMENT_TYPE": "an element type",
    "PARAMETER_NAME": "a name",
    **{name: f"`{mark}`" for name, mark in zip(_MARKS.split(), _MARKED.split(), strict=True)},
    "TILE_LETTER": "tiles",
    "THREAD_KEY": "`execution_thread=`",
    "WINDOW_SIZES_KEY": "a field of a window",
    "WINDOW_PAD_KEY": "a field of a window",
    "SIZES": "sizes such as `3x3`",
    "WINDOW_PAD": "a padding such as `0_0x1_1`",
    "PADDING": "a padding such as `0_0x1_1`",
    "DIM_LABELS": "labels such as `b01f_01io->b01f`",
    "MODE_KEY": "`mode=`",
    "TOLERANCE_KEY": "`tolerance=`",
    "ACCURACY_MODE": "`default` or `highest`",
    "BOOLEAN": "`true` or `false`",
}
_END = "the end of the text"
"""Named only if nothing else can follow: LALR tables allow it after any instruction, for single-instruction texts."""
_MOST_NAMED = 5
_MOST_SHOWN = 40


def describe_failure(text: str, position: int, opened_at: int | None, accepted: AcceptedTerminals) -> ReadError:
    """Converts a failed parse to an error that states what was found and what was expected.

    Args:
        text: The text that was parsed.
        position: The offset at which the parser could not continue.
        opened_at: The bracket that is never closed, if that is what failed.
        accepted: The terminals that would have been accepted there.
    """
    if opened_at is not None:
        what = f"the `{text[opened_at]}` is never closed"
        return ReadError(opened_at, what, fix="close it; or was the file cut off?", at_end=True, opened_at=opened_at)
    expected = _render_expected(accepted)
    if position >= len(text):
        what = f"the text ends where {expected} was expected" if expected else "the text ends too early"
        return ReadError(len(text), what, fix="was the file cut off?", at_end=True)
    found = _render_excerpt(text, position)
    what = f"unexpected {found} where {expected} was expected" if expected else f"unexpected {found}"
    return ReadError(position, what)


def _render_expected(accepted: AcceptedTerminals) -> str:
    """Renders `a name, `,` or `}``; empty if there are too many possibilities to be helpful."""
    words = sorted({_WORDS[name] for name in accepted if name in _WORDS} - {_END}) or [_END]
    if len(words) > _MOST_NAMED:
        return ""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _render_excerpt(text: str, position: int) -> str:
    character = text[position]
    if character in "\"'":
        return "string" if text.find(character, position + 1) >= 0 else "unterminated string"
    if not character.isprintable():
        return f"character U+{ord(character):04X}"
    word = re.compile(r"%?[A-Za-z0-9_.-]*").match(text, position)
    found = word.group() if word is not None else ""
    if not found:
        return f"`{character}`"
    return f"`{found}`" if len(found) <= _MOST_SHOWN else f"`{found[:_MOST_SHOWN]}…`"
