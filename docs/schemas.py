"""Writes the JSON schema of every document that hloscope prints, from the documents' types: `python docs/schemas.py`.

Beside them it writes the same as types for type checkers, `hloscope/plain_types.py`.

The descriptions are those of the types' docstrings, in which JSON's words stand for Python's.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).parent))

from plain_types import module_of  # noqa: E402

from hloscope.base.documents import Table, find_defaults, find_tables, is_many  # noqa: E402
from hloscope.measurement.model import CompareDocument  # noqa: E402
from hloscope.model import Analysis, Collective  # noqa: E402
from hloscope.model.program_graph import ProgramGraph  # noqa: E402
from hloscope.model.recording import Recording  # noqa: E402
from hloscope.model.timeline import Timeline  # noqa: E402
from hloscope.model.trial import Suggestions  # noqa: E402
from hloscope.report.checks import CheckDocument  # noqa: E402
from hloscope.report.checkups import DoctorDocument  # noqa: E402
from hloscope.report.diffs import DiffDocument  # noqa: E402
from hloscope.report.dumps import DumpedModuleDocument, DumpedModulesDocument  # noqa: E402
from hloscope.report.explanation import ExplainDocument  # noqa: E402
from hloscope.report.price import PriceDocument  # noqa: E402
from hloscope.report.shardings import ShardingTable  # noqa: E402
from hloscope.verification.model import VerificationDocument  # noqa: E402

FOLDER = ROOT / "hloscope" / "schemas"
TYPES = "plain_types.py"
DOCUMENTS = {
    "analysis": Analysis,
    "check": CheckDocument,
    "compare": CompareDocument,
    "diff": DiffDocument,
    "doctor": DoctorDocument,
    "dumped_module": DumpedModuleDocument,
    "dumped_modules": DumpedModulesDocument,
    "explain": ExplainDocument,
    "graph": ProgramGraph,
    "price": PriceDocument,
    "record": Recording,
    "shardings": ShardingTable,
    "suggest": Suggestions,
    "timeline": Timeline,
    "verify": VerificationDocument,
}
UNITS = "Numbers are per device, sizes in bytes and times in microseconds. Unknown values are null, never zero."
MAY_BE_INFINITE = "hloscope.verification.model"
NUMBER = {"type": "integer", "minimum": 0}
"""What stands for a value that is in a table: the number of its row."""

PLAIN = {"type"}.issuperset
IN_JSON = {"None": "null", "True": "true", "False": "false"}


def in_json(text: str) -> str:
    """A docstring's sentences with JSON's words for Python's, code in them aside."""
    words = re.sub(r"`[^`]*`|\b(?:None|True|False)\b", lambda found: IN_JSON.get(found[0], found[0]), text)
    return " ".join(words.split())


def hints_of(kind: Any) -> dict[str, Any]:
    """The types of a type's fields, as the tuples that they are where they have methods of their own."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__orig_bases__[0] if is_many(hint) else hint for name, hint in hints.items()}


def kinds_in(kind: Any) -> Iterator[type]:
    """A type and all that it is made of, as far as a schema gives them a name."""
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, Enum)):
        yield kind
    for part in (*get_args(kind), *(hints_of(kind).values() if is_dataclass(kind) else ())):
        yield from kinds_in(part)


def docstring(kind: type) -> str:
    """Its docstring as every Python has it: from 3.13 on the compiler takes the indentation away."""
    return inspect.cleandoc(kind.__doc__ or "")


def attributes(kind: type) -> dict[str, str]:
    """What the docstrings of a type and of those that it extends say of each field."""
    said: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = docstring(base).partition("Attributes:\n")[2]
        said.update((name, in_json(text)) for name, text in re.findall(r"(?m)^ {4}(\w+): (.*(?:\n {8}.*)*)", section))
    return said


def described(definition: dict[str, Any], kind: type, *, in_rows: bool) -> dict[str, Any]:
    """A type's schema with its descriptions; all that it may say it always says, but for defaults in a table's rows."""
    summary = in_json(re.split(r"Attributes:|\n\n(?:Source|Example):", docstring(kind))[0])
    if "properties" not in definition:
        return {"description": summary, "enum": [member.value for member in kind]}  # type: ignore[attr-defined]
    said = attributes(kind)
    may_be_infinite = kind.__module__ == MAY_BE_INFINITE
    hints = hints_of(kind)
    defaults = find_defaults(kind) if in_rows else {}
    properties = {
        field.name: {
            **simple(numbered(definition["properties"][field.name], hints[field.name]), may_be_infinite),
            **({"default": defaults[field.name]} if field.name in defaults else {}),
            "description": said[field.name] + where(hints[field.name]),
        }
        for field in fields(kind)
    }
    required = [name for name in properties if name not in defaults]
    return {"description": summary, "type": "object", "properties": properties, "required": required}


def numbered(schema: dict[str, Any], hint: Any) -> dict[str, Any]:
    """A field's schema in which the number of a row stands for what is in a table."""
    if get_origin(hint) is Annotated:
        return NUMBER
    if get_origin(hint) in (Union, UnionType):
        of = next(part for part in get_args(hint) if part is not type(None))
        choices = schema.get("anyOf", ())
        changed = [choice if choice == {"type": "null"} else numbered(choice, of) for choice in choices]
        return {**schema, "anyOf": changed} if choices else schema
    return {**schema, "items": numbered(schema["items"], get_args(hint)[0])} if is_list(schema, hint) else schema


def where(hint: Any) -> str:
    """What is said of a field whose values stand in a table."""
    names = [table.name for table, _ in in_tables(hint)]
    return f" By number in `{names[0]}`." if names else ""


def is_list(schema: dict[str, Any], hint: Any) -> bool:
    """Whether a type is a list of any number of items of one type."""
    return get_origin(hint) is tuple and get_args(hint)[-1] is Ellipsis and "items" in schema


def rows(document: type) -> dict[str, Any]:
    """The properties of a document that are its tables."""
    values = values_in_tables(document)
    return {
        table.name: {"type": "array", "items": row(values[table]), "description": in_json(table.description)}
        for table in find_tables(document)
    }


def values_in_tables(document: type) -> dict[Table, Any]:
    """The type of the values that each table of a document holds."""
    kinds = filter(is_dataclass, set(kinds_in(document)))
    hints = [hint for kind in kinds for hint in hints_of(kind).values()]
    return {table: of for hint in hints for table, of in in_tables(hint)}


def in_tables(hint: Any) -> Iterator[tuple[Table, Any]]:
    """The tables that values of a type stand in, with their types."""
    for said in getattr(hint, "__metadata__", ()):
        yield said, get_args(hint)[0]
    for part in get_args(hint):
        yield from in_tables(part)


def row(kind: Any) -> dict[str, Any]:
    """The schema of a table's rows."""
    if isinstance(kind, type) and is_dataclass(kind):
        return {"$ref": f"#/$defs/{kind.__name__}"}
    plain_schema = msgspec.json.schema(kind)
    plain_schema.pop("$defs", None)
    return numbered(plain_schema, kind)


def simple(field: dict[str, Any], may_be_infinite: bool) -> dict[str, Any]:
    """A field's schema without its default, and with a choice of plain types in one line."""
    found = {key: value for key, value in field.items() if key != "default"}
    if may_be_infinite and found.get("type") == "number":
        return {"anyOf": [found, {"const": "inf"}]}
    choices = found.get("anyOf", ())
    return {"type": [choice["type"] for choice in choices]} if choices and all(map(PLAIN, choices)) else found


def of_own_type(kind: Any) -> dict[str, Any]:
    """The schema of a type that msgspec does not know."""
    if is_many(kind):
        return {"type": "array", "items": {"$ref": f"#/$defs/{get_args(kind.__orig_bases__[0])[0].__name__}"}}
    return {"type": "string", "pattern": vars(kind)["PATTERN"]}


def schema_of(name: str) -> dict[str, Any]:
    """The schema of a document."""
    document = DOCUMENTS[name]
    kinds = {kind.__name__: kind for kind in kinds_in(document)}
    _, found = msgspec.json.schema_components(
        [document, *({Collective} & set(kinds.values()))],
        schema_hook=of_own_type,
        ref_template="#/$defs/{name}",
    )
    rows_of = set(values_in_tables(document).values())
    known = sorted(found.keys() & kinds)
    definitions = {kind: described(found[kind], kinds[kind], in_rows=kinds[kind] in rows_of) for kind in known}
    whole = definitions.pop(document.__name__)
    tables = rows(document)
    whole["properties"] |= tables
    whole["required"] += tables
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"hloscope {name}",
        **whole,
        "description": f"{whole['description']} {UNITS}",
        "$defs": definitions,
    }


def main() -> None:
    """Writes them all, into another folder where one is named."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    schemas = {name: schema_of(name) for name in DOCUMENTS}
    for name, schema in schemas.items():
        text = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    types = module_of({DOCUMENTS[name].__name__: schema for name, schema in schemas.items()})
    (folder if len(sys.argv) > 1 else FOLDER.parent).joinpath(TYPES).write_text(types, encoding="utf-8")


if __name__ == "__main__":
    main()
