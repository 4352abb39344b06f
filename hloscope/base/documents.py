"""Documents: the JSON in files and between processes, written and read by msgspec from the types themselves.

A document is a dataclass; its fields in their order are those of the JSON, and their docstrings its schema's
descriptions: `python docs/schemas.py` writes `hloscope/schemas/` from them. msgspec was chosen over cattrs: it makes
schemas, its errors name the field, and it took 10 ms to import and 2 ms to read a first report, where cattrs took 30
and 18. It is imported where a document is written or read.

A value with many uses in a program, such as a source line, is stored once in a document, in a `Table`; each use
holds the number of its row, and a row omits fields with their default values. In Python every object has its own
values, and reading a document makes these again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from hloscope.base.errors import Either, HloscopeError, Message, say

Schema = Literal[2]
SCHEMA: Schema = 2
"""The schema version of all documents; changes when a field is renamed, removed or redefined, not when one is added."""

_Document = TypeVar("_Document")


class TextValue:
    """A value that documents store as its text, and that is made from its text; equal if the texts are.

    Raises:
        ValueError: The text does not match the pattern.
    """

    PATTERN: ClassVar[str]
    """The form of its text, as a regular expression that JSON Schema understands too."""

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


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a document: each is a value that is stored once, however many fields have it.

    The type of a field assigns its values to a table: `Annotated[SourceFrame, Table("frames", "...")]`.

    Attributes:
        name: The document's field.
        description: The meaning of its rows.
    """

    name: str
    description: str


@dataclass(frozen=True, slots=True, eq=False)
class _TableLayout:
    """The positions of the values in a type's plain data that are stored in tables.

    Attributes:
        table: The table of the type's own values; None if they are stored in place.
        items: The layout of each item of a list, or of each value of a dict.
        fields: The layouts of a dataclass's fields that have one.
        defaults: For a dataclass with values in a table: the values of the fields that a row omits.
    """

    table: Table | None = None
    items: _TableLayout | None = None
    fields: Mapping[str, _TableLayout] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def tables(self) -> Iterator[Table]:
        """All tables, in the order of their references to each other: the outermost first."""
        yield from () if self.table is None else (self.table,)
        for inside in (*self.fields.values(), *filter(None, (self.items,))):
            yield from inside.tables()


def is_many(kind: object) -> bool:
    """Returns whether a type is a tuple of any number of items of one type, with methods of its own."""
    return isinstance(kind, type) and issubclass(kind, tuple) and get_origin(kind) is None and kind is not tuple


@cache
def _find_layout(kind: Any) -> _TableLayout | None:
    """The layout of a type; None if nothing in it is stored in tables."""
    if get_origin(kind) is Annotated:
        of, *said = get_args(kind)
        table = next((each for each in said if isinstance(each, Table)), None)
        within = _find_layout(of) or _TableLayout()
        return within if table is None else _TableLayout(table, within.items, within.fields, find_defaults(of))
    if is_many(kind):
        return _find_layout(kind.__orig_bases__[0])
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        found = {each.name: _find_layout(hints[each.name]) for each in fields(kind)}
        known = {name: layout for name, layout in found.items() if layout is not None}
        return _TableLayout(fields=known) if known else None
    found_inside = (_find_layout(part) for part in get_args(kind))
    inside = next((layout for layout in found_inside if layout is not None), None)
    return _TableLayout(items=inside) if inside is not None and get_origin(kind) in (tuple, list, dict) else inside


def find_defaults(kind: Any) -> dict[str, Any]:
    """The defaults of a dataclass as plain data, except those stored in tables; empty for any other type."""
    if not is_dataclass(kind):
        return {}
    hints = get_type_hints(kind, include_extras=True)
    own = (each for each in fields(kind) if get_origin(hints[each.name]) is not Annotated)
    known = {each.name: each.default for each in own if each.default is not MISSING}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}


def find_tables(kind: type) -> tuple[Table, ...]:
    """The tables that follow a document's own fields."""
    layout = _find_layout(kind)
    return () if layout is None else tuple({table.name: table for table in layout.tables()}.values())


def to_plain(document: object) -> dict[str, object]:
    """A document as dicts, lists, strings, numbers, booleans and None; infinity is the string `inf`."""
    found: dict[str, object] = json.loads(encode_document(document))
    return found


def encode_document(document: object) -> str:
    """A document as JSON on one line; infinity is the string `inf`."""
    import msgspec

    found = msgspec.to_builtins(document, enc_hook=encode_text)
    layout = _find_layout(type(document))  # type: ignore[arg-type]
    if layout is not None:
        rows: dict[str, dict[str, tuple[int, Any]]] = {table.name: {} for table in find_tables(type(document))}
        found = _replace_by_rows(found, layout, rows)
        found.update((name, [row for _, row in known.values()]) for name, known in rows.items())
    try:
        return json.dumps(found, ensure_ascii=False, allow_nan=False)
    except ValueError:  # infinity, which JSON does not have
        found = json.loads(json.dumps(found), parse_constant=lambda constant: str(float(constant)))
        return json.dumps(found, ensure_ascii=False)


def make_document(kind: type[_Document], source: object, /, **given: object) -> _Document:
    """Makes a document whose fields are the source's of the same name, except for the given ones."""
    names = [field.name for field in fields(kind) if field.name not in given and hasattr(source, field.name)]  # type: ignore[arg-type]
    return kind(**{name: getattr(source, name) for name in names}, **given)


def read_document(kind: type[_Document], found: object, *, name: str, key: str, command: str = "analyze") -> _Document:
    """Reads the output of `to_plain`; derived fields are not read.

    Args:
        kind: The document's type.
        found: Plain data, as in JSON.
        name: The file's name, for messages.
        key: A field that every such document has.
        command: The command that makes one.

    Raises:
        HloscopeError: It is not such a document, has another schema, or has numbers that are not finite.
    """
    import msgspec

    if not isinstance(found, dict) or key not in found:
        raise HloscopeError(
            f"{name} is not a report of hloscope",
            fix=say(
                "create one with ",
                Either(f"hloscope {command} --format json -o FILE", "json.dump(found.to_dict(), file)"),
            ),
        )
    if found.get("schema") != SCHEMA:
        raise HloscopeError(
            f"{name} is a report of schema {found.get('schema')}, but this hloscope reads schema {SCHEMA}",
            fix="create it again with this version",
        )
    for place, number in _find_infinite(found):
        why = f"`{place}` is {number}, and the numbers of a report are finite"
        raise HloscopeError(f"{name} is not a complete report of hloscope", why=why)
    try:
        layout = _find_layout(kind)  # type: ignore[arg-type]
        whole = found if layout is None else _TableRows(found).whole(found, layout)
        return msgspec.convert(whole, kind, dec_hook=_decode_text)
    except (msgspec.ValidationError, _NoRowError) as error:
        why = _TWO_PLACES.sub(r" - at `\g<outer>\g<inner>`", str(error))
        raise HloscopeError(f"{name} is not a complete report of hloscope", why=why) from None


def _find_infinite(document: object) -> Iterator[tuple[str, float]]:
    """The numbers of plain data that are infinite, or none, with their places: Python's `json` reads them."""
    try:
        json.dumps(document, allow_nan=False)  # many times as fast as a search
    except (ValueError, TypeError):
        yield from _search_infinite(document, "$", [])
    except RecursionError:  # no report in any case
        return


def _search_infinite(data: object, place: str, around: list[object]) -> Iterator[tuple[str, float]]:
    if isinstance(data, float) and not isfinite(data):
        yield place, data
    if any(data is outer for outer in around):
        return
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _search_infinite(value, f"{place}.{key}", [*around, data])
    if isinstance(data, list | tuple):
        for number, value in enumerate(data):
            yield from _search_infinite(value, f"{place}[{number}]", [*around, data])


_TWO_PLACES = re.compile(r" - at `\$(?P<inner>[^`]*)` - at `(?P<outer>[^`]*)`")
"""The two positions in an error about a list with methods of its own, which is read separately."""


def _replace_by_rows(data: Any, layout: _TableLayout, rows: Mapping[str, dict[str, tuple[int, Any]]]) -> Any:
    """Plain data with row numbers in place of the values in tables; a new value gets a new row."""
    if isinstance(data, dict) and layout.items is None:
        data.update((name, _replace_by_rows(data[name], inside, rows)) for name, inside in layout.fields.items())
    elif isinstance(data, dict) and layout.items is not None:
        data = {key: _replace_by_rows(value, layout.items, rows) for key, value in data.items()}
    elif isinstance(data, list | tuple):
        data = [item if layout.items is None else _replace_by_rows(item, layout.items, rows) for item in data]
    if layout.table is None or data is None:
        return data
    if layout.defaults:
        data = {name: value for name, value in data.items() if value != layout.defaults.get(name, MISSING)}
    known = rows[layout.table.name]
    return known.setdefault(repr(data), (len(known), data))[0]


class _NoRowError(Exception):
    """A row number that a table does not have."""


class _TableRows:
    """The tables of a document that is being read."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._tables = found
        self._made: dict[tuple[str, int], Any] = {}

    def whole(self, data: Any, layout: _TableLayout) -> Any:
        """Plain data with rows in place of their numbers."""
        if layout.table is None or type(data) is not int:
            return self._contents(data, layout)
        key = layout.table.name, data
        if key not in self._made:
            self._made[key] = self._contents(self._row(*key), layout)
        return self._made[key]

    def _contents(self, data: Any, layout: _TableLayout) -> Any:
        if isinstance(data, dict) and layout.items is None:
            inside = {name: self.whole(data[name], found) for name, found in layout.fields.items() if name in data}
            return {**data, **inside}
        if isinstance(data, dict) and layout.items is not None:
            return {key: self.whole(value, layout.items) for key, value in data.items()}
        if isinstance(data, list) and layout.items is not None:
            return [self.whole(item, layout.items) for item in data]
        return data

    def _row(self, name: str, number: int) -> Any:
        table = self._tables.get(name)
        if not isinstance(table, list):
            raise _NoRowError(f"`$.{name}` is not a table")
        if not 0 <= number < len(table):
            raise _NoRowError(f"`$.{name}` has {len(table)} rows, but something refers to row {number}")
        return table[number]


def encode_text(value: object) -> str | float:
    """The text that documents and caches store for a value unknown to msgspec; of a message, the command-line words."""
    if isinstance(value, Message):
        return str(value.command_line)
    if isinstance(value, str | float):  # an instance of a subclass, such as numpy's
        return str.__str__(value) if isinstance(value, str) else float(value)
    if not isinstance(value, TextValue):
        raise NotImplementedError(f"no document holds a {type(value).__name__}")
    return str(value)


def _decode_text(kind: type, value: object) -> object:
    if is_many(kind):
        import msgspec

        try:
            return kind(msgspec.convert(value, kind.__orig_bases__[0], dec_hook=_decode_text))  # type: ignore[attr-defined]
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None  # msgspec adds the position of the list
    if not issubclass(kind, TextValue) or not isinstance(value, str):
        raise TypeError(f"Expected the text of {kind.__name__}, got {value!r}")
    return kind(value)
