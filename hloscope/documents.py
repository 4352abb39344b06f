"""Documents: what crosses a file or a process as JSON, written and read by msgspec from the types themselves.

A document is a dataclass; its fields in their order are those of the JSON, and their docstrings its schema's
descriptions: `python docs/schemas.py` writes `hloscope/schemas/` from them. msgspec was chosen over cattrs: it makes
schemas, its errors name the field, and it took 10 ms to import and 2 ms to read a first report, where cattrs took 30
and 18. It is imported where a document is written or read.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import ClassVar, Literal, TypeVar

from hloscope.errors import HloscopeError

Schema = Literal[2]
SCHEMA: Schema = 2
"""Of all documents; changes when a field is renamed, removed or given another meaning, not when one is added."""

_Document = TypeVar("_Document")


class Text:
    """A value that documents hold as its text, from which it is made; equal where the texts are.

    Raises:
        ValueError: The text is none of its kind.
    """

    PATTERN: ClassVar[str]
    """What its text looks like, as a regular expression that JSON Schema understands too."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        if re.search(self.PATTERN, text) is None:
            raise ValueError(f"{text!r} is no {type(self).__name__}")
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.text == str(other)

    def __hash__(self) -> int:
        return hash(self.text)


def plain(document: object) -> dict[str, object]:
    """A document as dicts, lists, strings, numbers, booleans and None; infinity is the string `inf`."""
    found: dict[str, object] = json.loads(written(document))
    return found


def written(document: object) -> str:
    """A document as JSON on one line; infinity is the string `inf`."""
    import msgspec

    found = msgspec.to_builtins(document, enc_hook=_text_of)
    try:
        return json.dumps(found, ensure_ascii=False, allow_nan=False)
    except ValueError:  # infinity, which JSON does not have
        found = json.loads(json.dumps(found), parse_constant=lambda constant: str(float(constant)))
        return json.dumps(found, ensure_ascii=False)


def document(kind: type[_Document], source: object, /, **given: object) -> _Document:
    """A document whose fields, but for those given, are the source's of the same name."""
    names = [field.name for field in fields(kind) if field.name not in given and hasattr(source, field.name)]  # type: ignore[arg-type]
    return kind(**{name: getattr(source, name) for name in names}, **given)


def read(kind: type[_Document], found: object, *, name: str, key: str) -> _Document:
    """Reads what `plain` made; what follows from other fields is not read.

    Args:
        kind: The document's type.
        found: Plain data, as JSON has it.
        name: The file's name, for messages.
        key: A field that every such document has.

    Raises:
        HloscopeError: It is no such document, or one of another schema.
    """
    import msgspec

    if not isinstance(found, dict) or key not in found:
        raise HloscopeError(
            f"{name} is no report of hloscope", fix="make one with hloscope analyze --format json -o FILE"
        )
    if found.get("schema") != SCHEMA:
        raise HloscopeError(
            f"{name} is a report of schema {found.get('schema')}, and this hloscope reads {SCHEMA}",
            fix="make it again with this version",
        )
    try:
        return msgspec.convert(found, kind, dec_hook=_from_text)
    except msgspec.ValidationError as error:
        raise HloscopeError(f"{name} is no whole report of hloscope", why=str(error)) from None


def _text_of(value: object) -> str:
    if isinstance(value, str):  # of a subclass, such as numpy's
        return str.__str__(value)
    if not isinstance(value, Text):
        raise NotImplementedError(f"no document holds a {type(value).__name__}")
    return str(value)


def _from_text(kind: type, value: object) -> object:
    if not issubclass(kind, Text) or not isinstance(value, str):
        raise TypeError(f"Expected the text of {kind.__name__}, got {value!r}")
    return kind(value)
