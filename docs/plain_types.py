"""The types of documents as plain data, from their JSON schemas: `docs/schemas.py` writes `hloscope/plain_types.py`."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

HEAD = '''"""What `to_dict()` returns, for type checkers; written by `python docs/schemas.py`, and never by hand.

What each field means stands in the schemas, `hloscope/schemas/`. A row of a table leaves out what is as its default.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

'''
SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
WIDTH = 120

Schema = Mapping[str, Any]


def module_of(schemas: Mapping[str, Schema]) -> str:
    """The text of the module.

    Args:
        schemas: The schema of each document by the document's type's name.
    """
    known: dict[str, Schema] = {}
    for name, schema in schemas.items():
        known.update(schema["$defs"])
        known[name] = schema
    enums = sorted(name for name, schema in known.items() if "enum" in schema and not is_ambiguous(name, schemas))
    dicts = sorted(name for name, schema in known.items() if "properties" in schema)
    names = {name: f"{name.removesuffix('Document')}Dict" for name in dicts} | {name: f"{name}Text" for name in enums}
    parts = [alias(names[name], known[name]) for name in enums]
    parts += [typed_dict(names[name], schema_in(name, known, schemas), names) for name in dicts]
    return HEAD + "\n".join(parts[: len(enums)]) + "\n\n\n" + "\n\n\n".join(parts[len(enums) :]) + "\n"


def is_ambiguous(name: str, schemas: Mapping[str, Schema]) -> bool:
    """Whether documents have several types of one name."""
    return len({json.dumps(schema["$defs"][name]) for schema in schemas.values() if name in schema["$defs"]}) > 1


def schema_in(name: str, known: Mapping[str, Schema], schemas: Mapping[str, Schema]) -> Schema:
    """A type's schema, in which types with ambiguous names stand where they are used."""
    home = next(schema for document, schema in schemas.items() if document == name or name in schema["$defs"])
    own = {each: schema for each, schema in home["$defs"].items() if is_ambiguous(each, schemas)}

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(each) for each in part]
        if not isinstance(part, dict):
            return part
        of = part.get("$ref", "").rpartition("/")[2]
        return own[of] if of in own else {key: inlined(value) for key, value in part.items()}

    found: Schema = inlined(known[name])
    return found


def literal(values: list[Any]) -> str:
    """Values as a type."""
    return f"Literal[{', '.join(map(quoted, values))}]"


def quoted(value: object) -> str:
    """A value as Python writes it."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def alias(name: str, schema: Schema) -> str:
    """A type of some words."""
    line = f"{name} = {literal(schema['enum'])}"
    if len(line) <= WIDTH:
        return line
    lines = textwrap.wrap(", ".join(map(quoted, schema["enum"])), WIDTH - 8)
    if len(lines) == 1:
        return f"{name} = Literal[\n    {lines[0]}\n]"
    return "\n".join([f"{name} = Literal[", *(f"    {quoted(value)}," for value in schema["enum"]), "]"])


def typed_dict(name: str, schema: Schema, names: Mapping[str, str]) -> str:
    """A dictionary's type."""
    summary = re.split(r"(?<=[.:;])\s", schema["description"], maxsplit=1)[0].rstrip(".:;")
    lines = [f"class {name}(TypedDict):", f'    """{summary}."""', ""]
    return "\n".join([*lines, *fields(schema, names)])


def fields(schema: Schema, names: Mapping[str, str]) -> Iterator[str]:
    """A line for each field."""
    for name, field in schema["properties"].items():
        kind = type_of(field, names)
        yield f"    {name}: {kind if name in schema['required'] else f'NotRequired[{kind}]'}"


def type_of(schema: Schema, names: Mapping[str, str]) -> str:
    """A value's type."""
    if "$ref" in schema:
        return names[schema["$ref"].rpartition("/")[2]]
    if "enum" in schema or "const" in schema:
        return literal(schema.get("enum") or [schema["const"]])
    if "anyOf" in schema:
        kinds = (type_of(choice, names) for choice in schema["anyOf"])
        return " | ".join(sorted(dict.fromkeys(kinds), key="None".__eq__))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(sorted((SIMPLE[each] for each in kind), key="None".__eq__))
    if kind == "array":
        items = [*schema.get("prefixItems", ()), *([schema["items"]] if schema.get("items") else ())]
        of = dict.fromkeys(type_of(item, names) for item in items)
        return f"list[{' | '.join(of) or 'object'}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {type_of(values, names) if isinstance(values, dict) else 'object'}]"
    return SIMPLE[str(kind)]
