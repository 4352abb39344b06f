"""The notation of arguments: arrays as `jax.typeof` prints them, PartitionSpecs as Python writes them.

Reads text into plain values and knows no JAX. Axis names are checked against a mesh by whoever has one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from lark import Token, Tree

from hloscope.errors import NotationError
from hloscope.program.notation_dtypes import canonical_dtype, nearest_dtypes
from hloscope.program.notation_options import (
    parse_axis_types,
    parse_dims,
    parse_indices,
    parse_mesh,
    parse_static,
    split_keyword,
)
from hloscope.program.notation_syntax import Source, start_of, subtrees_of, tokens_of

__all__ = [
    "ArraySpec",
    "PartitionEntry",
    "format_array",
    "parse_array",
    "parse_axis_types",
    "parse_dims",
    "parse_indices",
    "parse_mesh",
    "parse_partition_spec",
    "parse_static",
    "split_keyword",
]

PartitionEntry = None | str | tuple[str, ...]
"""One dimension of a PartitionSpec: not sharded, over one mesh axis, or over several, major first."""

_NO_DIMS: Mapping[str, int] = MappingProxyType({})
_REDUCTION_KEYWORD = re.compile(r"[(,]\s*((?:un)?reduced)(?:_kind)?\s*=")
_REDUCTION_KINDS = {"U": None, "U_sum": None, "U_max": "max", "U_min": "min"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """The type of one array: everything that `jax.typeof` prints about it.

    Attributes:
        dtype: NumPy's or ml_dtypes' name, such as `bfloat16`, or a random key's, such as `key<fry>`.
        dimensions: Global sizes.
        spec: Mesh axes per dimension, major first; None where it is not sharded.
        unreduced: Mesh axes over which the values are still to be reduced: `{U:X}`.
        unreduced_kind: `max` or `min`; None for a sum.
        reduced: Mesh axes over which the cotangent is to be reduced: `{R:X}`.
        memory_space: `host` in `f32<host>[8]`; None for device memory.
        weak_type: Whether the type came from a Python scalar: `~f32[]`.
    """

    dtype: str
    dimensions: tuple[int, ...] = ()
    spec: tuple[tuple[str, ...] | None, ...] = ()
    unreduced: tuple[str, ...] = ()
    unreduced_kind: str | None = None
    reduced: tuple[str, ...] = ()
    memory_space: str | None = None
    weak_type: bool = False

    def __post_init__(self) -> None:
        if len(self.spec) != len(self.dimensions):
            raise NotationError(f"{len(self.dimensions)} dimensions and {len(self.spec)} sharding entries")


def parse_array(text: str, dims: Mapping[str, int] = _NO_DIMS) -> ArraySpec:
    """Reads the type of an array.

    Args:
        text: As `jax.typeof` prints it, `bf16[8@X,2048@(Y,Z)]`, with long or short element types, and with names from
            `dims` and products of them as sizes: `f32[S,4*D@X]`.
        dims: Sizes by name.

    Raises:
        NotationError: The text is no array type, the element type is unknown, a name has no size, a size is negative,
            or a mesh axis is used twice.
    """
    source = Source(text, "array type", "bf16[8@X,2048]")
    tree = source.parse("array")
    dimensions = subtrees_of(tree, "dimension")
    axes = [_axes(subtrees_of(dimension, "axes")) for dimension in dimensions]
    unreduced, kind, reduced = _reductions(subtrees_of(tree, "reduction"), source)
    _refuse_repeated([axis for group in (*axes, unreduced, reduced) for axis in group], source)
    spaces = subtrees_of(tree, "memory_space")
    return ArraySpec(
        dtype=_dtype(tokens_of(subtrees_of(tree, "element_type")[0])[0], source),
        dimensions=tuple(_size(subtrees_of(dimension, "size")[0], dims, source) for dimension in dimensions),
        spec=tuple(_names(group) or None for group in axes),
        unreduced=_names(unreduced),
        unreduced_kind=kind,
        reduced=_names(reduced),
        memory_space=_memory_space(tokens_of(spaces[0])[0], source) if spaces else None,
        weak_type=bool(tokens_of(tree)),
    )


def _axes(trees: list[Tree[Token]]) -> list[Token]:
    return tokens_of(trees[0]) if trees else []


def _names(tokens: list[Token]) -> tuple[str, ...]:
    return tuple(str(token) for token in tokens)


def _dtype(token: Token, source: Source) -> str:
    known = canonical_dtype(str(token))
    if known is not None:
        return known
    near = nearest_dtypes(str(token))
    raise source.error(
        f'unknown element type "{token}"',
        start_of(token),
        fix=f"did you mean {' or '.join(near)}?" if near else "use a name of NumPy or HLO, such as bfloat16 or bf16",
    )


def _memory_space(token: Token, source: Source) -> str | None:
    if token == "device":
        return None
    if token == "host":
        return "host"
    raise source.error(f'unknown memory space "{token}"', start_of(token), fix="use <host>, or none for device memory")


def _size(tree: Tree[Token], dims: Mapping[str, int], source: Source) -> int:
    return prod(_factor(token, dims, source) for token in tokens_of(tree))


def _factor(token: Token, dims: Mapping[str, int], source: Source) -> int:
    if token.type == "NAME":
        if token not in dims:
            known = f"; the ones given are {', '.join(f'{name}={size}' for name, size in dims.items())}" if dims else ""
            raise source.error(
                f'the dimension "{token}" has no size',
                start_of(token),
                why=f"a name needs a value{known}",
                fix=f"add --dim {token}=SIZE, or write the number",
            )
        return dims[str(token)]
    if token.startswith("-"):
        raise source.error(f"the size {token} is negative", start_of(token), fix="sizes are 0 or more")
    return int(token)


def _reductions(trees: list[Tree[Token]], source: Source) -> tuple[list[Token], str | None, list[Token]]:
    """Axes and kind of `{U:…}`, and axes of `{R:…}`."""
    unreduced: list[Token] = []
    reduced: list[Token] = []
    kind: str | None = None
    seen: set[str] = set()
    for tree in trees:
        label = tokens_of(tree)[0]
        if label != "R" and label not in _REDUCTION_KINDS:
            raise _unknown_reduction(label, source)
        if label[0] in seen:
            raise source.error(f'"{label[0]}" is given twice', start_of(label), fix="join its axes: {U:(X,Y)}")
        seen.add(label[0])
        if label == "R":
            reduced = _axes(subtrees_of(tree, "axes"))
        else:
            unreduced, kind = _axes(subtrees_of(tree, "axes")), _REDUCTION_KINDS[str(label)]
    return unreduced, kind, reduced


def _unknown_reduction(label: Token, source: Source) -> NotationError:
    if label == "V":
        return source.error(
            "an argument cannot be varying",
            start_of(label),
            why="{V:X} marks values inside shard_map",
            fix="drop it; the arguments of a shard_map are sharded with @ instead",
        )
    return source.error(
        f'"{label}" is no reduction state',
        start_of(label),
        fix="use U for axes still to be reduced, R for reduced ones: {U:X, R:Y}",
    )


def _refuse_repeated(axes: list[Token], source: Source) -> None:
    seen: set[str] = set()
    for axis in axes:
        if axis in seen:
            raise source.error(
                f'the mesh axis "{axis}" is used twice',
                start_of(axis),
                why="each mesh axis can shard one dimension of an array",
                fix="drop it from one of them, or use another axis",
            )
        seen.add(str(axis))


def parse_partition_spec(text: str) -> tuple[PartitionEntry, ...]:
    """Reads a PartitionSpec.

    Args:
        text: `P('X', None)`, `PartitionSpec(("X", "Y"),)`, `jax.P()`, with names in either quotes or in none, or the
            entries alone: `X,None`.

    Returns:
        Its entries as JAX keeps them: a group of one axis is the axis, an empty group is None.

    Raises:
        NotationError: The text is no PartitionSpec, or a mesh axis is used twice.
    """
    source = Source(text, "PartitionSpec", "P('X', None)")
    _refuse_reduction_keywords(source)
    tree = source.parse("partition_spec")
    entries = subtrees_of(tree, "entries")
    tokens = [tokens_of(entry) for entry in subtrees_of(entries[0], "entry")] if entries else []
    _refuse_repeated([_unquoted(token) for group in tokens for token in group if token != "None"], source)
    return tuple(_entry(group, source) for group in tokens)


def _refuse_reduction_keywords(source: Source) -> None:
    keyword = _REDUCTION_KEYWORD.search(source.text)
    if keyword is not None:
        raise source.error(
            f"{keyword[1]} axes cannot be given in a PartitionSpec",
            keyword.start(1),
            why="only the dimensions' axes are read from it",
            fix="for an argument write its type instead, such as f32[8@X]{U:Y}",
        )


def _entry(tokens: list[Token], source: Source) -> PartitionEntry:
    for token in tokens:
        if token.type == "UNCONSTRAINED":
            raise source.error(
                "an argument or a result cannot be unconstrained",
                start_of(token),
                why="UNCONSTRAINED means something only inside the program, in with_sharding_constraint",
                fix="use None, or leave the whole spec out to let the compiler choose",
            )
        if token == "None" and len(tokens) > 1:
            raise source.error("None inside a group of axes", start_of(token), fix="name axes only, as in ('X', 'Y')")
    names = tuple(str(_unquoted(token)) for token in tokens if token != "None")
    return None if not names else names[0] if len(names) == 1 else names


def _unquoted(token: Token) -> Token:
    return Token.new_borrow_pos(token.type, str(token).strip("'\""), token)


def format_array(spec: ArraySpec) -> str:
    """The text that `jax.typeof` would print and `parse_array` reads back: `bfloat16[8@X,2048@(Y,Z)]{U:W}`."""
    sizes = zip(spec.dimensions, spec.spec, strict=True)
    dimensions = ",".join(f"{size}@{_grouped(axes)}" if axes else str(size) for size, axes in sizes)
    kind = "" if spec.unreduced_kind is None else f"_{spec.unreduced_kind}"
    states = [f"U{kind}:{_grouped(spec.unreduced)}"] if spec.unreduced else []
    states += [f"R:{_grouped(spec.reduced)}"] if spec.reduced else []
    return (
        f"{'~' if spec.weak_type else ''}{spec.dtype}{f'<{spec.memory_space}>' if spec.memory_space else ''}"
        f"[{dimensions}]{'{' + ', '.join(states) + '}' if states else ''}"
    )


def _grouped(axes: tuple[str, ...]) -> str:
    return axes[0] if len(axes) == 1 else f"({','.join(axes)})"
