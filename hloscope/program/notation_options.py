"""The small notations of options: `X=4,Y=2`, `explicit`, `shift=5`, `0,1`."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Literal

from lark import Token

from hloscope.errors import NotationError, did_you_mean
from hloscope.program.notation_syntax import Notation, Source, start_of, subtrees_of, tokens_of

AxisTypeName = Literal["auto", "explicit", "manual"]

_AXIS_TYPES: dict[str, AxisTypeName] = {"auto": "auto", "explicit": "explicit", "manual": "manual"}
_KEYWORD = re.compile(r"\s*([^\W\d]\w*)\s*=(?!=)\s*(.*)", re.DOTALL)


def _pairs(source: Source, notation: Notation) -> list[tuple[Token, Token]]:
    """Name and value of each item of a `name=value` list, every name once."""
    tree = source.parse(notation)
    items = (tokens_of(item) for item in subtrees_of(tree, notation.removesuffix("s") + "_of"))
    pairs = [(name, value) for name, value in items]
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise source.error(f'"{name}" is given twice', start_of(name), fix="give each name once")
        seen.add(str(name))
    return pairs


def parse_mesh(text: str) -> dict[str, int]:
    """Reads a mesh: `X=4,Y=2`, major axis first.

    Raises:
        NotationError: The text is no such list, an axis is given twice, or its size is not 1 or more.
    """
    source = Source(text, "mesh", "X=4,Y=2")
    pairs = _pairs(source, "integers")
    for name, size in pairs:
        if int(size) < 1:
            raise source.error(
                f'the mesh axis "{name}" has size {size}', start_of(size), fix="a mesh axis has size 1 or more"
            )
    return {str(name): int(size) for name, size in pairs}


def parse_dims(text: str) -> dict[str, int]:
    """Reads the sizes of named dimensions: `S=2048,D=4096`.

    Raises:
        NotationError: The text is no such list, a name is given twice, or a size is negative.
    """
    source = Source(text, "list of dimensions", "S=2048,D=4096")
    pairs = _pairs(source, "integers")
    for name, size in pairs:
        if int(size) < 0:
            raise source.error(f'the dimension "{name}" has size {size}', start_of(size), fix="sizes are 0 or more")
    return {str(name): int(size) for name, size in pairs}


def parse_axis_types(text: str, axis_names: Sequence[str]) -> dict[str, AxisTypeName]:
    """Reads the types of a mesh's axes: one word for all of them, or `X=explicit,Y=auto`.

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
        word = Token("NAME", text.strip(), start_pos=len(text) - len(text.lstrip()))
        return dict.fromkeys(axis_names, _axis_type(word, source))
    types: dict[str, AxisTypeName] = dict.fromkeys(axis_names, "auto")
    for name, word in _pairs(source, "words"):
        if name not in types:
            raise source.error(
                f'the mesh has no axis "{name}"', start_of(name), fix=f"its axes are {', '.join(axis_names)}"
            )
        types[str(name)] = _axis_type(word, source)
    return types


def _axis_type(word: Token, source: Source) -> AxisTypeName:
    known = _AXIS_TYPES.get(word.lower())
    if known is not None:
        return known
    if not word:
        raise NotationError(f"an empty {source.what}", fix=f"write, for example, {source.example}")
    raise source.error(
        f'unknown axis type "{word}"',
        start_of(word),
        fix=did_you_mean(word.lower(), _AXIS_TYPES, "use auto, explicit or manual"),
    )


def parse_indices(text: str) -> tuple[int, ...]:
    """Reads positions of arguments: `0,1`.

    Raises:
        NotationError: The text is no such list, or a position is negative or given twice.
    """
    source = Source(text, "list of positions", "0,1")
    tokens = tokens_of(source.parse("indices"))
    for count, token in enumerate(tokens):
        if int(token) < 0:
            raise source.error(f"the position {token} is negative", start_of(token), fix="count from 0")
        if int(token) in map(int, tokens[:count]):
            raise source.error(f"the position {token} is given twice", start_of(token), fix="give each position once")
    return tuple(int(token) for token in tokens)


_OTHER_LANGUAGES = {"true": "True", "false": "False", "null": "None", "none": "None"}


def parse_static(text: str) -> tuple[str, object]:
    """Reads a Python value for an argument that is not traced: `shift=5`, `mode=fast`, `shape=(8, 128)`.

    A single word is a string, because shells take quotes away.

    Raises:
        NotationError: There is no name, or the value is no Python literal.
    """
    name, value = split_keyword(text)
    source = Source(text, "static argument", "shift=5")
    if name is None:
        raise NotationError(f'"{text}" does not say which argument it is for', fix="write, for example, shift=5")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    if value.isidentifier() and value not in _OTHER_LANGUAGES:
        return name, value
    raise source.error(
        f'"{value}" is no Python literal',
        len(source.text) - len(source.text.partition("=")[2].lstrip()),
        why="only numbers, strings, True, False, None and tuples, lists, dicts and sets of them can be given as text",
        fix=f"write {_OTHER_LANGUAGES[value]}" if value in _OTHER_LANGUAGES else None,
    )


def split_keyword(text: str) -> tuple[str | None, str]:
    """Takes `name=` off the front of an option: `("name", "bf16[8]")`; `(None, text)` when there is none."""
    match = _KEYWORD.fullmatch(text)
    return (match[1], match[2].rstrip()) if match else (None, text)
