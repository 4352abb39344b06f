"""Records of the grammar's upper level, which refer to spans of the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from hloscope.base.errors import HloscopeError
from hloscope.base.units import count_array_bytes, sum_known

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# ---- shapes and layouts of HLO values, and their sizes in bytes

UNBOUNDED = -1
"""The dimension that XLA prints as `?`."""

COMBINED = -1
"""The tile dimension that XLA prints as `*`: it is merged with the next more minor one before tiling."""


MAX_DEPTH = 100
"""Maximum nesting of tuples and operands; XLA's own stack ends not much later."""


class Token(str):
    """A piece of the text, with its terminal and offsets.

    Attributes:
        type: The terminal's name in the grammar.
        start_pos: Offset of its first character.
        end_pos: Offset after its last character.
    """

    __slots__ = ("end_pos", "start_pos", "type")

    type: str
    start_pos: int
    end_pos: int

    def until(self, end: int) -> Token:
        """The same token without its last characters; `end` is negative."""
        found = Token(self[:end])
        found.type, found.start_pos, found.end_pos = self.type, self.start_pos, self.end_pos + end
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The position of an array's elements in memory.

    Attributes:
        minor_to_major: Dimension numbers from the fastest-varying to the slowest.
        tiles: Tile dimensions, outermost tile first; `COMBINED` for `*`.
        memory_space: The memory space; 0 is the default memory (HBM on a TPU).
        element_size_in_bits: Bits of one stored element; 0 means the element type's own.
        other_items: The remaining items, such as `L(16)`, as printed.
    """

    minor_to_major: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    memory_space: int = 0
    element_size_in_bits: int = 0
    other_items: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The type of an HLO value: an array, a tuple, a token, an opaque value or a buffer.

    Attributes:
        element_type: XLA's name, such as `bf16`; `tuple`, `token`, `opaque` or `buffer`; `unknown` if the text omits
        the shape and it does not follow from the operands.
        dimensions: The sizes; the upper bound of a bounded dynamic dimension, `UNBOUNDED` for `?`.
        dynamic: Whether each dimension is dynamic.
        layout: The layout; None if the text states none.
        elements: The elements of a tuple; the content of a buffer.
    """

    element_type: str
    dimensions: tuple[int, ...] = ()
    dynamic: tuple[bool, ...] = ()
    layout: Layout | None = None
    elements: tuple[Shape, ...] = ()

    @property
    def is_tuple(self) -> bool:
        """True for a tuple, also an empty one."""
        return self.element_type == "tuple"

    @property
    def element_count(self) -> int:
        """Number of elements in the array, over all leaves of a tuple; a bounded dimension counts as its bound.

        Raises:
            HloscopeError: A dimension has no bound.
        """
        if self.elements:
            return sum(element.element_count for element in self.elements)
        if UNBOUNDED in self.dimensions:
            raise HloscopeError(f"the elements of {self} cannot be counted", why="a dimension has no bound")
        return 0 if self.is_tuple else prod(self.dimensions)

    @cached_property  # very many instructions share few shapes
    def byte_size(self) -> int | None:
        """Logical bytes without padding; None if the element type is unknown or a dimension has no bound."""
        if self.elements or self.is_tuple:
            return sum_known(element.byte_size for element in self.elements)
        if UNBOUNDED in self.dimensions:
            return None
        return count_array_bytes(self.element_type, prod(self.dimensions))

    @cached_property
    def padded_byte_size(self) -> int | None:
        """Bytes of the array in memory with its tiles; None if the logical size is unknown.

        Source: xla/layout.h and xla/shape_util.cc: each tile applies to the most minor physical dimensions that
        the one before leaves, rounding each up to a multiple of the tile.
        """
        if self.elements or self.is_tuple:
            return sum_known(element.padded_byte_size for element in self.elements)
        if self.byte_size is None or self.layout is None:
            return self.byte_size
        if any(0 in tile for tile in self.layout.tiles):
            return None  # XLA accepts such a tile without defining its meaning
        alignment = _find_tail_alignment(self.layout)
        count = -(-prod(_tile_dimensions(self.dimensions, self.layout)) // alignment) * alignment
        bits = self.layout.element_size_in_bits
        return -(-bits * count // 8) if bits else count_array_bytes(self.element_type, count)

    @cached_property
    def largest_array_bytes(self) -> int:
        """Bytes of the largest leaf in memory with its tiles; unknown ones count as none."""
        return max((leaf.padded_byte_size or 0 for leaf in self.leaves()), default=0)

    def leaves(self) -> Iterator[Shape]:
        """The arrays, tokens and buffers of a tuple in order; the shape itself if it is not a tuple."""
        if not self.is_tuple:
            yield self
        else:
            for element in self.elements:
                yield from element.leaves()

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        if self.is_tuple:
            return f"({', '.join(map(str, self.elements))})"
        if self.element_type == "buffer":
            return f"b({self.elements[0]})"
        dimensions = zip(self.dimensions, self.dynamic, strict=True)
        return f"{self.element_type}[{','.join(_render_dimension_size(size, dynamic) for size, dynamic in dimensions)}]"


UNKNOWN_SHAPE = Shape(element_type="unknown")
"""The shape of an instruction whose text omits it, if it does not follow from the operands."""


def _render_dimension_size(size: int, dynamic: bool) -> str:
    if size == UNBOUNDED:
        return "?"
    return f"<={size}" if dynamic else str(size)


def _find_tail_alignment(layout: Layout) -> int:
    for item in layout.other_items:
        if item.startswith("L") and item[2:-1].strip().isdigit():
            return max(1, int(item[2:-1]))
    return 1


def _tile_dimensions(dimensions: tuple[int, ...], layout: Layout) -> list[int]:
    """Physical dimensions, major first, after every tile has been applied."""
    order = layout.minor_to_major if len(layout.minor_to_major) == len(dimensions) else range(len(dimensions))[::-1]
    physical = [dimensions[index] for index in reversed(order)]
    for tile in layout.tiles:
        physical = _apply_tile(physical, tile)
    return physical


def _apply_tile(physical: list[int], tile: tuple[int, ...]) -> list[int]:
    """Splits the most minor dimensions into whole tiles: `[16, 200]` by `(8, 128)` is `[2, 2, 8, 128]`."""
    padded = [1] * (len(tile) - len(physical)) + physical
    kept, tiled = padded[: len(padded) - len(tile)], padded[len(padded) - len(tile) :]
    outer: list[int] = []
    carried = 1
    for size, tile_size in zip(tiled, tile, strict=True):
        if tile_size == COMBINED:
            carried *= size
            continue
        outer.append(-(-carried * size // tile_size))
        carried = 1
    return [*kept, *outer, *(size for size in tile if size != COMBINED)]


class TextSpan(NamedTuple):
    """Offsets in the parsed text."""

    start: int
    end: int


def join_spans(first: Token, last: Token) -> TextSpan:
    """The span from the first character of one token to the last of another."""
    return TextSpan(first.start_pos, last.end_pos)


class ParsedShape(NamedTuple):
    """A shape, its span, and the nesting depth of its tuples."""

    shape: Shape
    span: TextSpan
    depth: int


class Operand(NamedTuple):
    """One operand: a name with `#` indexes, a nested operation, only a shape, or nothing between two commas.

    `span` is that of the name, if there is one.
    """

    shape: Shape | None
    name: str | None
    span: TextSpan
    indexes: tuple[int, ...]
    nested: ParsedOp | None


class Callee(NamedTuple):
    """A called computation: its name, or an inline body."""

    name: str | None
    span: TextSpan
    body: tuple[Instruction, ...]


class Attribute(NamedTuple):
    """One attribute: key as printed, span of its value, and the computations it calls."""

    key: str
    span: TextSpan
    callees: tuple[Callee, ...]


class ParsedOp(NamedTuple):
    """The right-hand side of an instruction.

    `argument` is the text in the parentheses of a parameter (its number) or a constant (its literal).
    """

    shape: ParsedShape | None
    opcode: str
    span: TextSpan
    operands: tuple[Operand, ...]
    argument: TextSpan | None
    attributes: tuple[Attribute, ...]


class Instruction(NamedTuple):
    """One instruction; a lone right-hand side has no name."""

    is_root: bool
    name: Token | None
    operation: ParsedOp


class ComputationHead(NamedTuple):
    """The line that opens a computation."""

    is_entry: bool
    name: Token
    span: TextSpan


class Computation(NamedTuple):
    """A computation with its body; `execution_thread` is already unquoted."""

    head: ComputationHead
    instructions: tuple[Instruction, ...]
    execution_thread: str | None


class Header(NamedTuple):
    """The module's header."""

    name: str
    attributes: tuple[Attribute, ...]


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A whole text: a module with its header, computations alone, or one instruction."""

    header: Header | None = None
    tables: tuple[tuple[StackTableRow, ...], ...] = ()
    computations: tuple[Computation, ...] = ()
    instruction: Instruction | None = None


StackTableRow = str | dict[str, int]
"""A row of a stack table: its string, or its numbers by key. The printed number of the row is ignored, as XLA does."""


@dataclass(eq=False)
class ReadError(Exception):
    """Text that does not follow the grammar, or that follows it but makes no sense.

    Attributes:
        position: Offset in the parsed text.
        what: One lower-case sentence.
        fix: The suggested fix.
        at_end: Whether the text ends although more was expected.
        opened_at: Offset of a bracket that is never closed.
    """

    position: int
    what: str
    fix: str | None = None
    at_end: bool = False
    opened_at: int | None = None

    def moved(self, offset: int) -> ReadError:
        """The same error in a text that contains the parsed one at `offset`."""
        opened_at = None if self.opened_at is None else self.opened_at + offset
        return replace(self, position=self.position + offset, opened_at=opened_at)


class ContradictionError(ReadError):
    """Text that follows the grammar, but whose values contradict each other."""


# ---- rows of text: one regular expression cuts a line of the form that XLA prints into its pieces
#
# A piece is one of two things. A name, a list of names, a parameter's number, a simple literal or the body of metadata
# is a hole: its text cannot change how the rest of the line is parsed. Everything else - the shape with the opcode, a
# run of attributes - is a word; the grammar has read each of these words, or its form, once, see `scanner`. The
# grammar's rule for an instruction is exactly these pieces in sequence, and each of them is self-contained, so a line
# whose pieces all follow their rules follows the rule for the whole.
#
# Quantifiers are possessive and groups atomic: no line takes more than linear time. A line that the expression does
# not match is not an error; it is parsed separately.

NAME = r"[A-Za-z_][A-Za-z0-9_.-]*+"
STRING = r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
LEAF_OPCODES = ("parameter", "constant")
"""The opcodes whose parentheses hold no operands; to the grammar all others are alike."""

_OPENING = rf"(?>(?:[^ \n]++ )*?{NAME}\(%s)"
_PARAMETER = r"(?<=[ ]parameter\()[0-9]{1,18}+"
_LITERAL = r"""(?<=[ ]constant\()[^()"'/\s][^()"'/\n\r]*+"""
_NO_ARGUMENT = r"(?<![ ]parameter\()(?<![ ]constant\()"
_BODY = rf"""[^{{}}"'/\n\r]*+(?:{STRING}[^{{}}"'/\n\r]*+)*+"""
_METADATA = rf"\{{{_BODY}(?:\{{{_BODY}\}}{_BODY})*+\}}"


_ATTRIBUTES = r"[^,\n\r]*+(?:,(?! (?:metadata|backend_config)=)[^,\n\r]*+)*+"


Piece = TypeVar("Piece", str, tuple[str, ...])


class Row(NamedTuple, Generic[Piece]):
    """The pieces of a line, or a column of each.

    Attributes:
        root: `ROOT ` or nothing.
        name: The name without `%`; empty if the line is not an instruction of the usual form.
        opening: Shape, opcode and parenthesis: `f32[2]{0} add(`; with the `%` that begins a list of names.
        operands: The list of operands, without its first `%`.
        attributes: The attributes before the metadata.
        metadata: The value of `metadata`, with its braces.
        config: The attribute `backend_config`, which comes last.
        other: The whole line if it is not an instruction of the usual form.
    """

    root: Piece
    name: Piece
    opening: Piece
    operands: Piece
    attributes: Piece
    metadata: Piece
    config: Piece
    other: Piece


class Dialect(NamedTuple):
    """One of XLA's ways of printing instructions.

    Attributes:
        pattern: A pattern that finds one row per line; its groups are the fields of `Row`.
        between: The text between the names of a list.
        split: A pattern that splits a list of operands with shapes into names and the text between them; None if
        operands have no shapes.
    """

    pattern: re.Pattern[str]
    between: str
    split: re.Pattern[str] | None


@cache
def make_dialect(*, percent: bool, shapes: bool) -> Dialect:
    """The dialect with or without `%` before names, and with or without operand shapes."""
    name = f"%({NAME})" if percent else f"(?!ROOT )({NAME})"
    opening = _OPENING % ("" if shapes else "%?+" if percent else "")
    if shapes:  # up to the parenthesis that an attribute or nothing follows; no list of operands holds a `=`
        operands = rf"""{_NO_ARGUMENT}((?:[^"'=\n)]++|(?<=/\*index)=|\)(?!, {NAME}=|\r?$))*+)"""
    else:
        operands = r"(?<=%)([^()#\n]*+)" if percent else rf"{_NO_ARGUMENT}([^()#\n]*+)"
    argument = rf"(?:{_PARAMETER}|{_LITERAL}|{operands}{'|' + _NO_ARGUMENT if percent and not shapes else ''})"
    instruction = (
        rf"^ *+(ROOT )?{name} = ({opening}){argument}\)"
        rf"({_ATTRIBUTES})(?:, metadata=({_METADATA}))?(, backend_config=[^\n\r]*+)?\r?$"
    )
    pattern = re.compile(rf"{instruction}|^(.*+)$", re.MULTILINE)
    return Dialect(pattern, ", %" if percent and not shapes else ", ", _compile_splitter(percent) if shapes else None)


def _compile_splitter(percent: bool) -> re.Pattern[str]:
    if percent:
        return re.compile(rf"%({NAME})")
    return re.compile(rf"(?:(?<=[\]}}\)] )|(?<=, )|(?<=\*/)|^)({NAME})(?=, |$)")


_FIRST_NAME = re.compile(rf"^[ \t]*+(?:ROOT )?(%?){NAME} = ", re.MULTILINE)
_OPERAND_SHAPE = re.compile(rf"^[^\n=]*+= [^\n\"=]*? {NAME}\([a-z][a-z0-9]*+\[", re.MULTILINE)
_LOOKED_AT = 1 << 16


def detect_dialect(text: str, start: int) -> Dialect:
    """The dialect of a text, judged by its first instructions from an offset on. A wrong guess is only slower."""
    first = _FIRST_NAME.search(text, start)
    start = first.start() if first else start
    shapes = _OPERAND_SHAPE.search(text, start, start + _LOOKED_AT) is not None
    return make_dialect(percent=first is not None and first.group(1) == "%", shapes=shapes)


_nested = rf"""(?:[^{{}}"\n]++|{STRING})*+"""
for _ in range(8):  # deeper ones are parsed with their line, only more slowly
    _nested = rf"""(?:[^{{}}"\n]++|{STRING}|\{{{_nested}\}})*+"""
_PLAIN = r"""[^,"{\[]*+"""
_VALUE = rf"""{_PLAIN}(?:(?:\[[^\[\]"{{}}]*+\]|\{{{_nested}\}}|,(?! {NAME}=)|{STRING}){_PLAIN})*+"""

cut_attributes = re.compile(rf", ({NAME})=({_VALUE})").findall
"""Cuts a run of attributes into (key, value). It is only trusted for forms on which the grammar agrees."""


def is_comment(line: str) -> bool:
    """Returns whether a line consists only of comments, which a carriage return also ends."""
    return all(part.lstrip(" \t")[:2] in ("", "//") for part in line.split("\r"))


_ONES = bytes.maketrans(b"0123456789", b"1" * 10)
_LONG = b"1" * 19


def replace_numbers(text: str) -> str:
    """The text with every number replaced by 1: to the grammar, which only knows digits, all numbers are alike.

    A text with a number that may exceed 64 bits is its own form. Bytes take a third of the time that `re` does.
    """
    digits = text.encode("utf-8", "surrogatepass").translate(_ONES)
    if _LONG in digits:
        return text
    for run in (b"1111", b"11", b"11", b"11"):  # 18 digits become 6, 3, 2 and 1
        digits = digits.replace(run, b"1")
    return digits.decode("utf-8", "surrogatepass")


# ---- device groups of collectives, in the three forms that XLA prints, and shardings, each as one tile assignment

MAX_DEVICES = 1 << 20
"""More devices than any machine has; a larger product of sizes is considered broken text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iota:
    """A compact list of devices: `[dimensions]<=[reshape]T(permutation)`.

    Attributes:
        dimensions: The shape of the result.
        reshape: The shape that 0, 1, 2, … first gets.
        permutation: The order into which its dimensions are then transposed; None to keep it.
    """

    dimensions: tuple[int, ...]
    reshape: tuple[int, ...]
    permutation: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        count = prod(self.reshape)
        if count != prod(self.dimensions):
            raise HloscopeError(f"{list(self.dimensions)} does not contain the {count} devices of {list(self.reshape)}")
        if not 0 <= count <= MAX_DEVICES or min((*self.dimensions, *self.reshape), default=0) < 0:
            raise HloscopeError(f"{list(self.reshape)} is not a number of devices")
        if self.permutation is not None and sorted(self.permutation) != list(range(len(self.reshape))):
            raise HloscopeError(f"T{self.permutation} does not permute {len(self.reshape)} dimensions")

    def array(self) -> npt.NDArray[np.int64]:
        """The device ids, shaped by `dimensions`."""
        import numpy as np  # takes a tenth of a second, only needed by texts with such groups

        ids = np.arange(prod(self.reshape)).reshape(self.reshape)
        if self.permutation is not None:
            ids = ids.transpose(self.permutation)
        return ids.reshape(self.dimensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisReference:
    """A mesh axis, or a part of one such as `name:(pre)size`.

    Attributes:
        name: As printed, without quotes.
        pre_size: Number of devices of the axis outside the part, major to it; None for the whole axis.
        size: Number of devices along the part; None for the whole axis.
    """

    name: str
    pre_size: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMesh:
    """The mesh that the named forms of groups and shardings print.

    Attributes:
        axes: (name, size), major first.
        device_ids: The devices in row-major order; None for 0, 1, 2, …
    """

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        count = prod(size for _, size in self.axes)
        if not 0 < count <= MAX_DEVICES or any(size < 1 for _, size in self.axes):
            raise HloscopeError(f"the mesh sizes {[size for _, size in self.axes]} are not numbers of devices")
        if self.device_ids is not None and len(self.device_ids) != count:
            raise HloscopeError(f"device_ids has {len(self.device_ids)} devices, but the mesh has {count}")

    def split_by(self, references: tuple[AxisReference, ...]) -> tuple[npt.NDArray[np.int64], list[int], list[int]]:
        """Splits every axis at the named (sub-)axes.

        Returns:
            The device ids with one dimension for each part, the dimensions of `references` in their order, and the
            remaining dimensions in mesh order.

        Raises:
            HloscopeError: A name is not in the mesh, or a part does not divide its axis.
        """
        import numpy as np

        cuts = [self._cuts(index, references) for index in range(len(self.axes))]
        starts = [0, *accumulate(len(parts) for parts in cuts)]
        sizes = [size for parts in cuts for _, size in parts]
        named: list[int] = []
        for reference in references:
            index = self._axis_index(reference.name)
            wanted = (reference.pre_size or 1, reference.size or self.axes[index][1])
            if wanted not in cuts[index]:
                raise HloscopeError(f"sub-axis {reference.name} overlaps another")
            named.append(starts[index] + cuts[index].index(wanted))
        if len(set(named)) != len(named):
            raise HloscopeError("a mesh axis appears twice")
        flat = np.arange(prod(sizes)) if self.device_ids is None else np.array(self.device_ids)
        rest = [dimension for dimension in range(len(sizes)) if dimension not in named]
        return flat.reshape(sizes), named, rest

    def _axis_index(self, name: str) -> int:
        names = [axis_name for axis_name, _ in self.axes]
        if name in names:
            return names.index(name)
        if name.isdigit() and int(name) < len(names):
            return int(name)
        raise HloscopeError(f"axis {name!r} is not in the mesh {names}")

    def _cuts(self, index: int, references: tuple[AxisReference, ...]) -> list[tuple[int, int]]:
        """(size outside, size) of each part of axis `index`, major first."""
        _, size = self.axes[index]
        marks = {1, size}
        for reference in references:
            if self._axis_index(reference.name) == index and reference.size is not None:
                before = reference.pre_size or 1
                marks |= {before, before * reference.size}
        ordered = sorted(marks)
        if any(low < 1 or high % low for low, high in zip(ordered, [*ordered[1:], size], strict=True)):
            raise HloscopeError(f"a sub-axis of {self.axes[index][0]!r} does not divide its size {size}")
        return [(low, high // low) for low, high in pairwise(ordered)] or [(1, size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroups:
    """The groups of a collective.

    Attributes:
        text: As printed.
        listed: The groups of the form `{{0,1},{2,3}}`; None for the other forms.
        iota: The form `[groups,size]<=[…]T(…)`; None for the other forms.
        mesh: The mesh of the named form; None for the other forms.
        axes: The axes of the named form.
        contradiction: Why the printed text defines no groups; None if it does.
    """

    text: str = ""
    listed: tuple[tuple[int, ...], ...] | None = None
    iota: Iota | None = None
    mesh: NamedMesh | None = None
    axes: tuple[AxisReference, ...] = ()
    contradiction: str | None = None

    def groups(self, device_count: int) -> tuple[tuple[int, ...], ...]:
        """The groups as device numbers.

        Args:
            device_count: The devices of the program; `{}` means one group of all of them.

        Raises:
            HloscopeError: The text names contradictory axes or sizes.
        """
        if self.contradiction is not None:
            raise HloscopeError(self.contradiction)
        return _expand_groups(self, device_count)


@lru_cache(maxsize=4096)
def _expand_groups(replica_groups: ReplicaGroups, device_count: int) -> tuple[tuple[int, ...], ...]:
    if replica_groups.iota is not None:
        rows = replica_groups.iota.array()
    elif replica_groups.mesh is not None:
        ids, named, rest = replica_groups.mesh.split_by(replica_groups.axes)
        group_size = prod(ids.shape[dimension] for dimension in named)
        rows = ids.transpose([*rest, *named]).reshape(-1, group_size)
    else:
        listed = tuple(group for group in replica_groups.listed or () if group)
        return listed or (tuple(range(device_count)),)
    return tuple(tuple(map(int, row)) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The distribution of a value over the devices.

    Attributes:
        kind: `replicated`, `manual`, `maximal`, `unknown`, `unreduced`, `tiled` or `tuple`.
        text: The text, as printed.
        tile_dimensions: Tiles along each dimension of the array, then the trailing subgroup dimensions.
        devices: Devices in row-major order of the tiles; the one device of `maximal`.
        replicate_on_last_tile_dim: Whether the last tile dimension replicates instead of sharding data.
        last_tile_dims: The kind of each trailing subgroup dimension (`manual`, `replicated`, …).
        elements: One sharding for each leaf of a tuple.
        mesh: The mesh of the named form; None for the other forms.
    """

    kind: str
    text: str = ""
    tile_dimensions: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    replicate_on_last_tile_dim: bool = False
    last_tile_dims: tuple[str, ...] = ()
    elements: tuple[Sharding, ...] = ()
    mesh: NamedMesh | None = None


def convert_mesh_sharding(
    mesh: NamedMesh,
    placements: tuple[tuple[AxisReference, ...], ...],
    *,
    manual: tuple[AxisReference, ...],
    unreduced: tuple[AxisReference, ...],
) -> Sharding:
    """Converts the named form to a tile assignment.

    Args:
        mesh: The mesh that the axes belong to.
        placements: For each dimension of the array, the axes that shard it, major first.
        manual: Axes that are manual.
        unreduced: Axes over which the value is a partial sum. Unnamed axes replicate.

    Raises:
        HloscopeError: The axes do not fit the mesh.

    Source: `HloSharding` in xla/hlo/ir/hlo_sharding.cc; subgroup dimensions trail the data dimensions.
    """
    sharded = tuple(axis for axes in placements for axis in axes)
    ids, named, rest = mesh.split_by((*sharded, *manual, *unreduced))
    sizes = iter([ids.shape[dimension] for dimension in named])
    tiles = [prod(next(sizes) for _ in axes) for axes in placements]
    subgroups = {
        "manual": prod(next(sizes) for _ in manual),
        "unreduced": prod(sizes),
        "replicated": prod(ids.shape[dimension] for dimension in rest),
    }
    kept = {kind: size for kind, size in subgroups.items() if size > 1}
    if prod(tiles) == 1 and len(kept) <= 1:
        return Sharding(kind=next(iter(kept), "replicated"), mesh=mesh)
    only_replicated = list(kept) == ["replicated"]  # this has its own form
    return Sharding(
        kind="tiled",
        tile_dimensions=(*tiles, *kept.values()),
        devices=tuple(map(int, ids.transpose([*named, *rest]).reshape(-1))),
        replicate_on_last_tile_dim=only_replicated,
        last_tile_dims=() if only_replicated else tuple(kept),
        mesh=mesh,
    )
