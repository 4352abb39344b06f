"""Imports go downward only, also lazy ones, those for types alone and modules named in strings."""

from __future__ import annotations

import tomllib

import measures
import pytest
from imports import ROOT, Import, find_circles, find_graph, find_imports, find_longest_path, find_modules

LONGEST_PATH = 20
ENTRY_POINT_GROUP = ("hloscope.judge.plugins", "hloscope.rules")
"""The name of a group of entry points, which happens to be that of a module."""


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return find_imports(find_modules())


def find_layers() -> dict[str, int]:
    """The height of each room: of the layers that pyproject.toml names, the lowest is 0."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in linter["contracts"] if contract["type"] == "layers")
    rooms = [[room.strip(" ()") for room in layer.split("|")] for layer in reversed(layers)]
    return {room: height for height, layer in enumerate(rooms) for room in layer}


def find_height(module: str, layers: dict[str, int]) -> int | None:
    """The height of a module's room; None for the package itself, which hands names on, and its `__main__`."""
    return layers.get(".".join(module.split(".")[:2]))


def test_every_room_has_a_layer():
    layers = find_layers()
    outside = {"hloscope", "hloscope.__main__"}
    assert {name for name in find_modules() if find_height(name, layers) is None} == outside


def test_no_import_goes_upward(imports):
    layers = find_layers()
    upward = {
        (each.importer, each.imported)
        for each in imports
        if (low := find_height(each.importer, layers)) is not None
        and (high := find_height(each.imported, layers)) is not None
        and high > low
    }
    assert upward == {ENTRY_POINT_GROUP}


def test_modules_import_each_other_in_no_circle(imports):
    assert find_circles(find_graph(imports)) == []


def test_strings_and_lazy_imports_are_read(imports):
    assert {each.written for each in imports} == {"statement", "lazy", "types", "string"}
    named = {(each.importer, each.imported) for each in imports if each.written == "string"}
    assert ("hloscope.compile.pool", "hloscope.compile.worker") in named


def test_chains_of_imports_stay_short(imports):
    ordinary = find_graph([each for each in imports if each.written == "statement"])
    assert len(find_longest_path(ordinary)) - 1 <= LONGEST_PATH


CODE = '''"""Doc."""

# why
x = 1  # here


def f():
    """Doc."""
    return (
        2
    )


VALID = [
    1,
]
'''


def test_code_is_counted_without_docstrings_comments_and_cases():
    assert measures.count_code_lines(CODE) == 5
    assert measures.count_code_lines('"""Types, written by `python docs/schemas.py`."""\nx = 1\n') == 0
