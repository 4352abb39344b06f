"""Documents: what crosses a file or a process as JSON, written and read by msgspec from the types themselves.

A document is a dataclass; its fields in their order are those of the JSON, and their docstrings its schema's
descriptions: `python docs/schemas.py` writes `hloscope/schemas/` from them. msgspec was chosen over cattrs: it makes
schemas, its errors name the field, and it took 10 ms to import and 2 ms to read a first report, where cattrs took 30
and 18. It is imported where a document is written or read.

What a program has in many places, such as a line of its source, a document holds once, in a `Table`; what has it there
holds the number of its row, and a row leaves out what is as its default says. In Python every object has its own
values, and reading a document makes these again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from hloscope.errors import HloscopeError
from hloscope.messages import Either, Message, say

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


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a document, each a value that stands in it once, however many fields have it.

    A field's type says that its values do: `Annotated[SourceFrame, Table("frames", "...")]`.

    Attributes:
        name: The document's field.
        description: What its rows are.
    """

    name: str
    description: str


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Where the plain data of a type has values that stand in tables.

    Attributes:
        table: The table of the type's own values; None where they stand where they are.
        items: The layout of each item of a list, or of each value of a dict.
        fields: Those of a dataclass's fields, as far as they have any.
        defaults: Of a dataclass whose values stand in a table: what its fields are where a row does not have them.
    """

    table: Table | None = None
    items: _Layout | None = None
    fields: Mapping[str, _Layout] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def tables(self) -> Iterator[Table]:
        """All tables, in the order in which rows refer to others: the outermost first."""
        yield from () if self.table is None else (self.table,)
        for inside in (*self.fields.values(), *filter(None, (self.items,))):
            yield from inside.tables()


def is_many(kind: object) -> bool:
    """Whether a type is a tuple of any number of things of one type, with methods of its own."""
    return isinstance(kind, type) and issubclass(kind, tuple) and get_origin(kind) is None and kind is not tuple


@cache
def _layout_of(kind: Any) -> _Layout | None:
    """The layout of a type; None where nothing in it stands in tables."""
    if get_origin(kind) is Annotated:
        of, *said = get_args(kind)
        table = next((each for each in said if isinstance(each, Table)), None)
        within = _layout_of(of) or _Layout()
        return within if table is None else _Layout(table, within.items, within.fields, defaults_of(of))
    if is_many(kind):
        return _layout_of(kind.__orig_bases__[0])
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        found = {each.name: _layout_of(hints[each.name]) for each in fields(kind)}
        known = {name: layout for name, layout in found.items() if layout is not None}
        return _Layout(fields=known) if known else None
    found_inside = (_layout_of(part) for part in get_args(kind))
    inside = next((layout for layout in found_inside if layout is not None), None)
    return _Layout(items=inside) if inside is not None and get_origin(kind) in (tuple, list, dict) else inside


def defaults_of(kind: Any) -> dict[str, Any]:
    """The defaults of a dataclass as plain data, but for those that stand in tables; none of anything else."""
    if not is_dataclass(kind):
        return {}
    hints = get_type_hints(kind, include_extras=True)
    own = (each for each in fields(kind) if get_origin(hints[each.name]) is not Annotated)
    known = {each.name: each.default for each in own if each.default is not MISSING}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()}


def tables_of(kind: type) -> tuple[Table, ...]:
    """The tables that a document has after its own fields."""
    layout = _layout_of(kind)
    return () if layout is None else tuple({table.name: table for table in layout.tables()}.values())


def plain(document: object) -> dict[str, object]:
    """A document as dicts, lists, strings, numbers, booleans and None; infinity is the string `inf`."""
    found: dict[str, object] = json.loads(written(document))
    return found


def written(document: object) -> str:
    """A document as JSON on one line; infinity is the string `inf`."""
    import msgspec

    found = msgspec.to_builtins(document, enc_hook=text_of)
    layout = _layout_of(type(document))  # type: ignore[arg-type]
    if layout is not None:
        rows: dict[str, dict[str, tuple[int, Any]]] = {table.name: {} for table in tables_of(type(document))}
        found = _numbered(found, layout, rows)
        found.update((name, [row for _, row in known.values()]) for name, known in rows.items())
    try:
        return json.dumps(found, ensure_ascii=False, allow_nan=False)
    except ValueError:  # infinity, which JSON does not have
        found = json.loads(json.dumps(found), parse_constant=lambda constant: str(float(constant)))
        return json.dumps(found, ensure_ascii=False)


def document(kind: type[_Document], source: object, /, **given: object) -> _Document:
    """A document whose fields, but for those given, are the source's of the same name."""
    names = [field.name for field in fields(kind) if field.name not in given and hasattr(source, field.name)]  # type: ignore[arg-type]
    return kind(**{name: getattr(source, name) for name in names}, **given)


def read(kind: type[_Document], found: object, *, name: str, key: str, command: str = "analyze") -> _Document:
    """Reads what `plain` made; what follows from other fields is not read.

    Args:
        kind: The document's type.
        found: Plain data, as JSON has it.
        name: The file's name, for messages.
        key: A field that every such document has.
        command: The command that makes one.

    Raises:
        HloscopeError: It is no such document, or one of another schema.
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
    try:
        layout = _layout_of(kind)  # type: ignore[arg-type]
        whole = found if layout is None else _Rows(found).whole(found, layout)
        return msgspec.convert(whole, kind, dec_hook=_from_text)
    except (msgspec.ValidationError, _NoRowError) as error:
        why = _TWO_PLACES.sub(r" - at `\g<outer>\g<inner>`", str(error))
        raise HloscopeError(f"{name} is not a complete report of hloscope", why=why) from None


_TWO_PLACES = re.compile(r" - at `\$(?P<inner>[^`]*)` - at `(?P<outer>[^`]*)`")
"""Of a list with methods of its own, which is read by itself."""


def _numbered(data: Any, layout: _Layout, rows: Mapping[str, dict[str, tuple[int, Any]]]) -> Any:
    """Plain data with the numbers of rows in place of what stands in tables; what is new gets a row."""
    if isinstance(data, dict) and layout.items is None:
        data.update((name, _numbered(data[name], inside, rows)) for name, inside in layout.fields.items())
    elif isinstance(data, dict) and layout.items is not None:
        data = {key: _numbered(value, layout.items, rows) for key, value in data.items()}
    elif isinstance(data, list | tuple):
        data = [item if layout.items is None else _numbered(item, layout.items, rows) for item in data]
    if layout.table is None or data is None:
        return data
    if layout.defaults:
        data = {name: value for name, value in data.items() if value != layout.defaults.get(name, MISSING)}
    known = rows[layout.table.name]
    return known.setdefault(repr(data), (len(known), data))[0]


class _NoRowError(Exception):
    """A number that a table has no row of."""


class _Rows:
    """The tables of a document that is read."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._tables = found
        self._made: dict[tuple[str, int], Any] = {}

    def whole(self, data: Any, layout: _Layout) -> Any:
        """Plain data with rows in place of their numbers."""
        if layout.table is None or type(data) is not int:
            return self._contents(data, layout)
        key = layout.table.name, data
        if key not in self._made:
            self._made[key] = self._contents(self._row(*key), layout)
        return self._made[key]

    def _contents(self, data: Any, layout: _Layout) -> Any:
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


def text_of(value: object) -> str | float:
    """What documents and caches hold in place of a value that msgspec does not know: a message's command-line words."""
    if isinstance(value, Message):
        return str(value.command_line)
    if isinstance(value, str | float):  # of a subclass, such as numpy's
        return str.__str__(value) if isinstance(value, str) else float(value)
    if not isinstance(value, Text):
        raise NotImplementedError(f"no document holds a {type(value).__name__}")
    return str(value)


def _from_text(kind: type, value: object) -> object:
    if is_many(kind):
        import msgspec

        try:
            return kind(msgspec.convert(value, kind.__orig_bases__[0], dec_hook=_from_text))  # type: ignore[attr-defined]
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None  # to which msgspec adds where the list stands
    if not issubclass(kind, Text) or not isinstance(value, str):
        raise TypeError(f"Expected the text of {kind.__name__}, got {value!r}")
    return kind(value)
