"""The notations of arguments and options: arrays as `jax.typeof` prints them, PartitionSpecs as in Python.

Parses text into plain values without JAX. Callers that have a mesh check the axis names against it.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NoReturn, get_args

from hloscope.base.environment import read_grammar
from hloscope.base.errors import (
    NotationError,
    Option,
    did_you_mean,
    find_line_and_column,
    format_excerpt,
    placeholder,
    say,
)

if TYPE_CHECKING:
    from lark import Lark, Token, Tree, UnexpectedInput


# ---- the parser from the text of an option to a parse tree, or to an error that points at the column
#
# Lark reads the text; its errors are explained here in the words of the notation, not of the grammar.

Notation = Literal["array", "partition_spec", "integers", "words", "indices"]

_BRACKETS = {"(": ")", "[": "]", "{": "}", "<": ">"}

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")

_MARKS = "LSQB RSQB LPAR RPAR LBRACE RBRACE LESSTHAN MORETHAN COMMA AT STAR COLON EQUAL"
"""Lark's names for `[](){}<>,@*:=`."""

_WORDS = {
    "NAME": "a name",
    "INTEGER": "a number",
    "QUOTED": "a quoted name",
    "KEY": "an element type",
    "WEAK": '"~"',
    "SPEC_CALL": '"P("',
    **{name: f'"{mark}"' for name, mark in zip(_MARKS.split(), "[](){}<>,@*:=", strict=True)},
    "$END": "the end",
}


@cache
def _make_parser() -> Lark:
    from lark import Lark  # which takes its time, and few of these texts need it

    return Lark(
        read_grammar("argument"),
        parser="lalr",
        start=["array", "partition_spec", "integers", "words", "indices"],
        maybe_placeholders=False,
    )


class QuotedText:
    """A text that is quoted by every error about it.

    Attributes:
        text: As the user wrote it.
        where: The place where the user wrote it, such as `pyproject.toml, target step`, or the notation's name.
    """

    __slots__ = ("text", "where")

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where

    def place(self, position: int) -> tuple[str, int, str]:
        """The place of a 0-based position, with its line if there are several; its 1-based column; and that line."""
        line, column, shown = find_line_and_column(self.text, position)
        return f"{self.where}, line {line}" if "\n" in self.text.rstrip("\n") else self.where, column, shown

    def error(self, what: str, position: int, *, why: str | None = None, fix: str | None = None) -> NotationError:
        """The error `what` at the 0-based `position` in the text."""
        where, column, shown = self.place(position)
        excerpt = format_excerpt(shown, column)
        return NotationError(what, where=f"{where}, column {column}", excerpt=excerpt, why=why, fix=fix)


class Source(QuotedText):
    """The text of one option, on one line; `where` is the notation's name, such as `array type`.

    Attributes:
        example: An example of a correct text.
    """

    __slots__ = ("example",)

    def __init__(self, text: str, where: str, example: str) -> None:
        super().__init__(" ".join(text.splitlines()) if "\n" in text or "\r" in text else text, where)
        self.example = example

    def parse(self, notation: Notation) -> Tree[Token]:
        """Parses the text.

        Raises:
            NotationError: It is empty, a bracket is not closed, or something is not allowed by the notation.
        """
        from lark import UnexpectedInput

        if not self.text.strip():
            raise NotationError(f"an empty {self.where}", fix=f"write, for example, {self.example}")
        self._check_brackets()
        try:
            return _make_parser().parse(self.text, start=notation)
        except UnexpectedInput as error:
            self._refuse(error)

    def _check_brackets(self) -> None:
        opened: list[tuple[str, int]] = []
        for position, character in enumerate(_QUOTED.sub(lambda quoted: " " * len(quoted[0]), self.text)):
            if character in _BRACKETS:
                opened.append((character, position))
            elif character in _BRACKETS.values():
                opening = opened.pop()[0] if opened else None
                if opening is None:
                    fix = f"write, for example, {self.example}"
                    raise self.error(f'unmatched "{character}"', position, fix=fix)
                if _BRACKETS[opening] != character:
                    fix = f'close it with "{_BRACKETS[opening]}" first'
                    raise self.error(f'"{character}" cannot close "{opening}"', position, fix=fix)
        for character, position in opened[-1:]:
            fix = f'add the matching "{_BRACKETS[character]}"'
            raise self.error(f'"{character}" is never closed', position, fix=fix)

    def _refuse(self, error: UnexpectedInput) -> NoReturn:
        token = getattr(error, "token", None)
        position = error.pos_in_stream or 0
        found = f'unexpected "{token or self.text[position : position + 1]}"'
        if token is not None and token.type == "$END":
            position, found = len(self.text.rstrip()), "it ends here"
        raise self.error(
            f"this is not a valid {self.where}",
            position,
            why=found + describe_expected(error, _WORDS),
            fix=f"write, for example, {self.example}",
        ) from None


def describe_expected(error: UnexpectedInput, words: Mapping[str, str]) -> str:
    """Describes what the parser expected at the error: `; expected a name or ","`; empty if no word describes it.

    Args:
        error: The parser's error.
        words: A notation's words for the names of its grammar, in the order in which they are listed.
    """
    ways = ("accepts", "expected", "allowed")  # of a token that cannot stand there, and of a character
    expected = next(filter(None, (getattr(error, way, None) for way in ways)), ())
    possible = [word for name, word in words.items() if name in expected]
    listed = " or ".join(part for part in (", ".join(possible[:-1]), *possible[-1:]) if part)
    return f"; expected {listed}" if possible else ""


def find_start(token: Token) -> int:
    """The 0-based position of a token in its text."""
    return token.start_pos or 0


def find_tokens(tree: Tree[Token], *path: str) -> list[Token]:
    """The tokens directly below `tree`, or below the trees that a path of names leads to, in order."""
    trees = [tree]
    for name in path:
        trees = [child for tree in trees for child in find_subtrees(tree, name)]
    return [child for tree in trees for child in tree.children if isinstance(child, str)]


def find_subtrees(tree: Tree[Token], name: str) -> list[Tree[Token]]:
    """The trees called `name` directly below `tree`, in order."""
    return [child for child in tree.children if not isinstance(child, str) and child.data == name]


_PartitionEntry = None | str | tuple[str, ...]
"""One dimension of a PartitionSpec: not sharded, over one mesh axis, or over several, major first."""

_NO_DIMS: Mapping[str, int] = MappingProxyType({})
_REDUCTION_KEYWORD = re.compile(r"[(,]\s*((?:un)?reduced)(?:_kind)?\s*=")
_REDUCTION_KINDS = {"U": None, "U_sum": None, "U_max": "max", "U_min": "min", "R": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """The type of one array: everything that `jax.typeof` prints about it.

    Attributes:
        dtype: NumPy's or ml_dtypes' name, such as `bfloat16`, or a random key's, such as `key<fry>`.
        dimensions: Global sizes.
        letters: The letter for each size, None for a size written as a number or a product.
        spec: Mesh axes per dimension, major first; None for an unsharded dimension.
        unreduced: Mesh axes over which the values are still to be reduced: `{U:X}`.
        unreduced_kind: `max` or `min`; None for a sum.
        reduced: Mesh axes over which the cotangent is to be reduced: `{R:X}`.
        memory_space: `host` in `f32<host>[8]`; None for device memory.
        weak_type: Whether the type came from a Python scalar: `~f32[]`.
    """

    dtype: str
    dimensions: tuple[int, ...] = ()
    letters: tuple[str | None, ...] = field(default=(), compare=False)
    spec: tuple[tuple[str, ...] | None, ...] = ()
    unreduced: tuple[str, ...] = ()
    unreduced_kind: str | None = None
    reduced: tuple[str, ...] = ()
    memory_space: str | None = None
    weak_type: bool = False

    def __post_init__(self) -> None:
        if len(self.spec) != len(self.dimensions):
            raise NotationError(f"{len(self.dimensions)} dimensions, but {len(self.spec)} sharding entries")


def parse_array(text: str, dims: Mapping[str, int] = _NO_DIMS) -> ArraySpec:
    """Parses the type of an array.

    Args:
        text: As `jax.typeof` prints it, `bf16[8@X,2048@(Y,Z)]`, with long or short element types, and with names from
            `dims` and products of them as sizes: `f32[S,4*D@X]`.
        dims: Sizes by name.

    Raises:
        NotationError: The text is not an array type, an element type is unknown, a name has no size, a size is below 0,
            or a mesh axis is used twice.
    """
    source = Source(text, "array type", "bf16[8@X,2048]")
    if text.lstrip().startswith(("{", "(", "[")):
        fix = 'write the pytree itself, its arrays as text: { w = "bf16[8@X,2048]" } in TOML, {"w": …} in Python'
        raise source.error("a pytree as text is not an array type", 0, fix=fix)
    tree = source.parse("array")
    dimensions = find_subtrees(tree, "dimension")
    sizes = [find_tokens(dimension, "size") for dimension in dimensions]
    axes = [find_tokens(dimension, "axes") for dimension in dimensions]
    reductions = _parse_reductions(tree, source)
    unreduced_kind, unreduced = reductions.get("U", (None, []))
    _, reduced = reductions.get("R", (None, []))
    _refuse_repeated([axis for group in (*axes, unreduced, reduced) for axis in group], source)
    return ArraySpec(
        dtype=_parse_dtype(find_tokens(tree, "element_type")[0], source),
        dimensions=tuple(prod(_parse_factor(token, dims, source) for token in size) for size in sizes),
        letters=tuple(str(size[0]) if [token.type for token in size] == ["NAME"] else None for size in sizes),
        spec=tuple(tuple(map(str, group)) or None for group in axes),
        unreduced=tuple(map(str, unreduced)),
        unreduced_kind=unreduced_kind,
        reduced=tuple(map(str, reduced)),
        memory_space=_parse_memory_space(find_tokens(tree, "memory_space"), source),
        weak_type=bool(find_tokens(tree)),
    )


def _parse_dtype(token: Token, source: Source) -> str:
    known = find_canonical_dtype(str(token))
    if known is not None:
        return known
    near = find_nearest_dtypes(str(token))
    raise source.error(
        f'unknown element type "{token}"',
        find_start(token),
        fix=f"did you mean {' or '.join(near)}?" if near else "use a name of NumPy or HLO, such as bfloat16 or bf16",
    )


def _parse_memory_space(tokens: list[Token], source: Source) -> str | None:
    for token in tokens:
        if token not in ("device", "host"):
            fix = "use <host>, or none for device memory"
            raise source.error(f'unknown memory space "{token}"', find_start(token), fix=fix)
    return "host" if "host" in tokens else None


def _parse_factor(token: Token, dims: Mapping[str, int], source: Source) -> int:
    if token.type == "NAME":
        if token not in dims:
            known = f"; the given ones are {', '.join(f'{name}={size}' for name, size in dims.items())}" if dims else ""
            raise source.error(
                f'the dimension "{token}" has no size',
                find_start(token),
                why=f"a named dimension needs a size{known}",
                fix=say("add ", Option("dim", {str(token): placeholder("SIZE")}), ", or write the number"),
            )
        return dims[str(token)]
    if token.startswith("-"):
        raise source.error(f"the size {token} is negative", find_start(token), fix="sizes are 0 or more")
    return int(token)


def _parse_reductions(tree: Tree[Token], source: Source) -> dict[str, tuple[str | None, list[Token]]]:
    """The kind and axes of `{U:…}` and of `{R:…}`."""
    found: dict[str, tuple[str | None, list[Token]]] = {}
    for reduction in find_subtrees(tree, "reduction"):
        label = find_tokens(reduction)[0]
        if label not in _REDUCTION_KINDS:
            raise _make_unknown_reduction_error(label, source)
        if label[0] in found:
            raise source.error(f'"{label[0]}" is given twice', find_start(label), fix="join its axes: {U:(X,Y)}")
        found[label[0]] = _REDUCTION_KINDS[label], find_tokens(reduction, "axes")
    return found


def _make_unknown_reduction_error(label: Token, source: Source) -> NotationError:
    if label == "V":
        return source.error(
            "an argument cannot be varying",
            find_start(label),
            why="{V:X} marks values inside shard_map",
            fix="drop it; the arguments of a shard_map are sharded with @ instead",
        )
    return source.error(
        f'"{label}" is not a reduction state',
        find_start(label),
        fix="use U for unreduced axes and R for reduced ones: {U:X, R:Y}",
    )


def _refuse_repeated(axes: list[Token], source: Source) -> None:
    seen: set[str] = set()
    for axis in axes:
        if axis in seen:
            raise source.error(
                f'the mesh axis "{axis}" is used twice',
                find_start(axis),
                why="each mesh axis can shard one dimension of an array",
                fix="drop it from one of them, or use another axis",
            )
        seen.add(str(axis))


def parse_partition_spec(text: str) -> tuple[_PartitionEntry, ...]:
    """Parses a PartitionSpec.

    Args:
        text: `P('X', None)`, `PartitionSpec(("X", "Y"),)`, `jax.P()`, with names in either quotes or in none, or the
            entries alone: `X,None`.

    Returns:
        Its entries in JAX's form: a group of one axis is the axis, an empty group is None.

    Raises:
        NotationError: The text is not a PartitionSpec, or a mesh axis is used twice.
    """
    source = Source(text, "PartitionSpec", "P('X', None)")
    _refuse_reduction_keywords(source)
    entries = find_subtrees(source.parse("partition_spec"), "entries")
    tokens = [find_tokens(entry) for entry in find_subtrees(entries[0], "entry")] if entries else []
    _refuse_repeated([_strip_quotes(token) for group in tokens for token in group if token != "None"], source)
    return tuple(_parse_entry(group, source) for group in tokens)


def _refuse_reduction_keywords(source: Source) -> None:
    keyword = _REDUCTION_KEYWORD.search(source.text)
    if keyword is not None:
        raise source.error(
            f"{keyword[1]} axes cannot be set in a PartitionSpec",
            keyword.start(1),
            why="only the axes of the dimensions are read from it",
            fix="for an argument write its type instead, such as f32[8@X]{U:Y}",
        )


def _parse_entry(tokens: list[Token], source: Source) -> _PartitionEntry:
    for token in tokens:
        if token.type == "UNCONSTRAINED":
            raise source.error(
                "an argument or a result cannot be unconstrained",
                find_start(token),
                why="UNCONSTRAINED is meaningful only inside the program, in with_sharding_constraint",
                fix="use None, or leave the whole spec out to let the compiler choose",
            )
        if token == "None" and len(tokens) > 1:
            raise source.error("None inside a group of axes", find_start(token), fix="name axes only, as in ('X', 'Y')")
    names = tuple(str(_strip_quotes(token)) for token in tokens if token != "None")
    return None if not names else names[0] if len(names) == 1 else names


def _strip_quotes(token: Token) -> Token:
    return token.update(value=token.strip("'\""))


_AxisTypeName = Literal["auto", "explicit", "manual"]

_AXIS_TYPES: dict[str, _AxisTypeName] = {name: name for name in get_args(_AxisTypeName)}
_KEYWORD = re.compile(r"\s*([^\W\d]\w*)\s*=(?!=)\s*(.*)", re.DOTALL)


def _parse_pairs(source: Source, notation: Notation) -> dict[Token, Token]:
    """The values by name in a `name=value` list, with every name once."""
    pairs: dict[Token, Token] = {}
    for item in find_subtrees(source.parse(notation), notation.removesuffix("s") + "_of"):
        name, value = find_tokens(item)
        if name in pairs:
            raise source.error(f'"{name}" is given twice', find_start(name), fix="give each name once")
        pairs[name] = value
    return pairs


def _parse_sizes(source: Source, what: str, least: int, fix: str) -> dict[str, int]:
    """A list of sizes by name, each at least `least`."""
    pairs = _parse_pairs(source, "integers")
    for name, size in pairs.items():
        if int(size) < least:
            raise source.error(f'the {what} "{name}" has size {size}', find_start(size), fix=fix)
    return {str(name): int(size) for name, size in pairs.items()}


def parse_mesh(text: str) -> dict[str, int]:
    """Parses a mesh: `X=4,Y=2`, major axis first.

    Raises:
        NotationError: The text is not such a list, an axis is given twice, or a size is less than 1.
    """
    return _parse_sizes(Source(text, "mesh", "X=4,Y=2"), "mesh axis", 1, "a mesh axis has size 1 or more")


def parse_dims(text: str) -> dict[str, int]:
    """Parses the sizes of named dimensions: `S=2048,D=4096`.

    Raises:
        NotationError: The text is not such a list, a name is given twice, or a size is negative.
    """
    return _parse_sizes(Source(text, "list of dimensions", "S=2048,D=4096"), "dimension", 0, "sizes are 0 or more")


def parse_axis_types(text: str, axis_names: Sequence[str]) -> dict[str, _AxisTypeName]:
    """Parses the types of a mesh's axes: one word for all of them, or `X=explicit,Y=auto`.

    Args:
        text: The notation; `auto`, `explicit` or `manual`, in any case.
        axis_names: The axes of the mesh.

    Returns:
        A type for every axis, in the mesh's order; an axis that the text does not name is `auto`.

    Raises:
        NotationError: A type or an axis is unknown, or an axis is given twice.
    """
    source = Source(text, "list of axis types", "explicit, or X=explicit,Y=auto")
    if "=" not in text:
        return dict.fromkeys(axis_names, _parse_axis_type(text.strip(), len(text) - len(text.lstrip()), source))
    types: dict[str, _AxisTypeName] = dict.fromkeys(axis_names, "auto")
    for name, word in _parse_pairs(source, "words").items():
        if name not in types:
            raise source.error(
                f'the mesh has no axis "{name}"', find_start(name), fix=f"its axes are {', '.join(axis_names)}"
            )
        types[str(name)] = _parse_axis_type(word, find_start(word), source)
    return types


def _parse_axis_type(word: str, position: int, source: Source) -> _AxisTypeName:
    known = _AXIS_TYPES.get(word.lower())
    if known is not None:
        return known
    if not word:
        raise NotationError(f"an empty {source.where}", fix=f"write, for example, {source.example}")
    raise source.error(
        f'unknown axis type "{word}"',
        position,
        fix=did_you_mean(word.lower(), _AXIS_TYPES, "use auto, explicit, or X=explicit,Y=auto"),
    )


def parse_indices(text: str) -> tuple[int, ...]:
    """Parses the positions of arguments: `0,1`.

    Raises:
        NotationError: The text is not such a list, or a position is negative or given twice.
    """
    source = Source(text, "list of positions", "0,1")
    tokens = find_tokens(source.parse("indices"))
    for count, token in enumerate(tokens):
        if int(token) < 0:
            raise source.error(f"the position {token} is negative", find_start(token), fix="count from 0")
        if int(token) in map(int, tokens[:count]):
            raise source.error(f"the position {token} is given twice", find_start(token), fix="give each position once")
    return tuple(int(token) for token in tokens)


_LITERALS_OF_OTHER_LANGUAGES = {"true": "True", "false": "False", "null": "None", "none": "None"}


def parse_static(text: str) -> tuple[str, object]:
    """Parses a Python value for an argument that is not traced: `shift=5`, `mode=fast`, `shape=(8, 128)`.

    A single word is a string, because shells remove quotes.

    Raises:
        NotationError: There is no name, or the value is not a Python literal.
    """
    name, value = split_keyword(text)
    source = Source(text, "static argument", "shift=5")
    if name is None:
        raise NotationError(f'"{text}" does not name its argument', fix="write, for example, shift=5")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    if value.isidentifier() and value not in _LITERALS_OF_OTHER_LANGUAGES:
        return name, value
    raise source.error(
        f'"{value}" is not a Python literal',
        len(source.text) - len(source.text.partition("=")[2].lstrip()),
        why="only numbers, strings, True, False, None and tuples, lists, dicts and sets of them can be given as text",
        fix=f"write {_LITERALS_OF_OTHER_LANGUAGES[value]}" if value in _LITERALS_OF_OTHER_LANGUAGES else None,
    )


def split_keyword(text: str) -> tuple[str | None, str]:
    """Splits `name=` off the front of an option: `("name", "bf16[8]")`; `(None, text)` without a name."""
    match = _KEYWORD.fullmatch(text)
    return (match[1], match[2].rstrip()) if match else (None, text)


_SHORT_NAMES: dict[str, tuple[str, ...]] = {
    "bool": ("pred",),
    **{f"int{bits}": (f"s{bits}", f"i{bits}") for bits in (1, 2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": (f"u{bits}", f"ui{bits}") for bits in (1, 2, 4, 8, 16, 32, 64)},
    "bfloat16": ("bf16",),
    **{f"float{bits}": (f"f{bits}",) for bits in (16, 32, 64)},
    **{
        f"float{bits}_{format}": (f"f{bits}{format.replace('_', '')}", f"f{bits}_{format}")
        for bits, formats in (
            (8, ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")),
            (6, ("e2m3fn", "e3m2fn")),
            (4, ("e2m1fn",)),
        )
        for format in formats
    },
    "complex64": ("c64",),
    "complex128": ("c128",),
}
"""Long name -> short names. Source: `xla/primitive_util.h`, `ml_dtypes`, `jax._src.dtypes.short_dtype_name`.

`c64` is HLO's and JAX's name for the type whose real and imaginary part have 32 bits each.
"""

_LONG_NAME = {short: long for long, shorts in _SHORT_NAMES.items() for short in (long, *shorts)}

LONG_NAMES: tuple[str, ...] = tuple(_SHORT_NAMES)
"""The canonical names of all element types, except random keys."""


def find_canonical_dtype(name: str) -> str | None:
    """The long NumPy or ml_dtypes name of an element type; None for an unknown type.

    Args:
        name: A long name (`bfloat16`), HLO's short one (`bf16`, `s32`, `pred`, `f8e4m3fn`), JAX's (`i32`, `f8_e4m3fn`)
            or a random key's (`key<fry>`, which has no other spelling).
    """
    return name if name.startswith("key<") else _LONG_NAME.get(name.lower())


def find_short_dtype(name: str) -> str:
    """HLO's short name of an element type, such as `bf16` for `bfloat16`; `name` itself if HLO has none (keys).

    Args:
        name: Any spelling that `find_canonical_dtype` knows.
    """
    shorts = _SHORT_NAMES.get(find_canonical_dtype(name) or "")
    return shorts[0] if shorts else name


def find_nearest_dtypes(name: str) -> tuple[str, ...]:
    """Up to three long names of element types that are spelled like `name`, the nearest first."""
    close = difflib.get_close_matches(name.lower(), _LONG_NAME, n=6, cutoff=0.5)
    return tuple(dict.fromkeys(_LONG_NAME[spelling] for spelling in close))[:3]
