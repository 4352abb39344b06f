"""A page for each JSON document, from the schemas that lie in the package."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markup import code, escaped, table

SCHEMAS = Path(__file__).parent.parent / "hloscope" / "schemas"

PRINTED_BY = {
    "analysis": "hloscope analyze --format json",
    "check": "hloscope check --format json",
    "compare": "hloscope compare --format json",
    "diff": "hloscope diff --format json",
    "doctor": "hloscope doctor --format json",
    "dumped_module": "hloscope analyze DIR --all --format json, on each line",
    "dumped_modules": "DumpedModules.to_dict() in Python",
    "explain": "hloscope explain --format json",
    "graph": "hloscope graph --format json",
    "price": "hloscope price --format json",
    "record": "hloscope record --format json",
    "shardings": "hloscope shardings --format json",
    "suggest": "hloscope suggest --format json",
    "timeline": "hloscope timeline --format json",
    "verify": "hloscope verify --format json",
}
"""What prints each document."""


def pages() -> Iterator[tuple[str, str]]:
    """The name and the text of each page."""
    schemas = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(SCHEMAS.glob("*.json"))}
    yield "index", _index(schemas)
    for name, schema in schemas.items():
        yield name, _page(name, schema)


def _index(schemas: Mapping[str, Any]) -> str:
    rows = [
        (f"[`{name}`]({name}.md)", code(PRINTED_BY.get(name, "")), escaped(schema["description"].partition(". ")[0]))
        for name, schema in schemas.items()
    ]
    return "\n\n".join(
        [
            "# JSON documents",
            "Numbers are per device, sizes in bytes and times in microseconds. Unknown values are `null`, never zero. "
            "Every document carries the number of its shape in `schema`; fields may be added under the same number.",
            table(("document", "printed by", "what it is"), rows),
            "The schemas themselves lie in the package, in the folder `hloscope/schemas/`; `hloscope.plain_types` has "
            "the same as types for type checkers.",
            "\n".join(["```{toctree}", ":maxdepth: 1", ":hidden:", "", *schemas, "```"]),
        ]
    )


def _page(name: str, schema: Mapping[str, Any]) -> str:
    parts = [f"# {name}.json", escaped(schema["description"]), f"Printed by `{PRINTED_BY.get(name, '')}`."]
    parts += ["## The document", _fields(schema)]
    for kind, definition in schema["$defs"].items():
        parts += [f"({name}-{kind.lower()})=\n## {kind}", escaped(definition["description"])]
        parts.append(_fields(definition) if "properties" in definition else _words(definition["enum"]))
    return "\n\n".join(parts).replace("](#", f"](#{name}-") + "\n"


def _words(values: list[str]) -> str:
    return f"One of {', '.join(map(code, values))}."


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (code(name), type_of(field), escaped(field["description"]) + ("" if name in required else _default(field)))
        for name, field in schema["properties"].items()
    ]
    return table(("field", "type", "meaning"), rows)


def _default(field: Mapping[str, Any]) -> str:
    return f" Left out where it is {code(json.dumps(field['default']))}." if "default" in field else " May be left out."


def type_of(schema: Mapping[str, Any]) -> str:
    """A field's type in words; other types are links to their sections."""
    if "$ref" in schema:
        kind = schema["$ref"].rpartition("/")[2]
        return f"[{kind}](#{kind.lower()})"
    if "enum" in schema or "const" in schema:
        return ", ".join(code(json.dumps(value)) for value in schema.get("enum") or [schema["const"]])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(type_of, schema["anyOf"])))
    kind = schema.get("type", "any")
    if kind == "array":
        items = [*schema.get("prefixItems", ()), *([schema["items"]] if schema.get("items") else ())]
        return f"list of {' or '.join(dict.fromkeys(map(type_of, items))) or 'anything'}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_of(schema['additionalProperties'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
