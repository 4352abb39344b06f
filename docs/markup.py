"""Pieces of Markdown that the generated pages are made of."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]*`)")
_FLAG = re.compile(r"(?<![\w`-])(--[a-z][\w-]*)")
_SPECIAL = re.compile(r"([*_\[\]<>#|])")
_ATTRIBUTE = re.compile(r"(?m)^ {4}(\w+): (.*(?:\n {8}.*)*)")


def escaped(text: str) -> str:
    """Prose of docstrings and help, in which backticks mark code and nothing else is special; options become code."""
    parts = [part for piece in _CODE.split(text) for part in _with_flags(piece)]
    return "".join(part.replace("|", "\\|") if part[:1] == "`" else _SPECIAL.sub(r"\\\1", part) for part in parts)


def _with_flags(piece: str) -> list[str]:
    return [piece] if piece[:1] == "`" else _CODE.split(_FLAG.sub(r"`\1`", piece))


def code(text: str) -> str:
    """A piece of code in a table."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}".replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are Markdown of one line each."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in line)} |" for line in lines)


def fenced(text: str, language: str) -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def attributes_of(kind: type) -> dict[str, str]:
    """What a class's docstring says of each attribute."""
    section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    return {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(section)}
