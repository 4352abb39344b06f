"""The import graph of the package: ordinary, lazy and type-only imports, and modules named in strings.

A module named in a string (`import_module("hloscope.report.formats")`, a registry's `"hloscope.report.sarif"`) is
imported as surely as one named in a statement, so it counts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import networkx as nx

ROOT = Path(__file__).parents[2]
PACKAGE = "hloscope"
_DOTTED = re.compile(rf"{PACKAGE}(?:\.\w+)+")


class Import(NamedTuple):
    """One import of one module by another.

    Attributes:
        importer: Dotted name of the importing module.
        imported: Dotted name of the imported module.
        line: Line in the importing file.
        written: `statement`, `lazy` (inside a function), `types` (below `TYPE_CHECKING`) or `string`.
    """

    importer: str
    imported: str
    line: int
    written: str


def find_modules(root: Path = ROOT) -> dict[str, Path]:
    """The modules of the package by dotted name; a package is its `__init__.py`."""
    paths = sorted((root / PACKAGE).rglob("*.py"))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def find_imports(modules: dict[str, Path]) -> list[Import]:
    """Every import between two of the modules, in the order of the files and lines."""
    found = []
    for name, path in modules.items():
        tree = ast.parse(path.read_text())
        found += [
            Import(name, other, line, written)
            for other, line, written in sorted(
                _imports_below(tree, set(modules), "statement"), key=lambda each: each[1]
            )
            if other != name
        ]
    return found


def _imports_below(node: ast.AST, modules: set[str], written: str) -> Iterator[tuple[str, int, str]]:
    for child in ast.iter_child_nodes(node):
        inner = _place_of_imports(child, written)
        if isinstance(child, ast.ImportFrom) and child.module and child.module.partition(".")[0] == PACKAGE:
            names = {f"{child.module}.{alias.name}" for alias in child.names}
            yield from ((name, child.lineno, inner) for name in names & modules or {child.module})
        elif isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno, inner) for alias in child.names if alias.name in modules)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            named = _DOTTED.fullmatch(child.value.partition(":")[0])
            if named and named[0] in modules:
                yield named[0], child.lineno, "string"
        yield from _imports_below(child, modules, inner)


def _place_of_imports(node: ast.AST, outside: str) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return "lazy"
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return "types"
    return outside


def find_graph(imports: list[Import]) -> nx.DiGraph:
    """The graph of modules: an edge from each importer to what it imports."""
    return nx.DiGraph((each.importer, each.imported) for each in imports)


def find_circles(graph: nx.DiGraph) -> list[list[str]]:
    """Groups of modules that import each other, the largest first."""
    circles = (sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1)
    return sorted(circles, key=len, reverse=True)


def find_longest_path(graph: nx.DiGraph) -> list[str]:
    """The longest chain of imports; a circle counts as one module."""
    condensed = nx.condensation(graph)
    return [min(condensed.nodes[each]["members"]) for each in nx.dag_longest_path(condensed)]
