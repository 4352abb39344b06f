"""The presenter: renders results, and answers those of their methods that need rooms above the results.

Results are records of the lowest rooms, but the code that renders, selects or prices them is far above.
`hloscope/__init__.py` registers its functions by name. Importing any module of the package runs it first, so a result
that is unpickled in a fresh process has its presenter too.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_PLACES: dict[str, str] = {}


def register_presenter(places: Mapping[str, str]) -> None:
    """Registers the places of the functions by name, as `module:function`."""
    _PLACES.update(places)


def ask(name: str, *arguments: Any, **options: Any) -> Any:
    """Calls a function of a room above, which is imported when it is first needed."""
    return load(_PLACES[name])(*arguments, **options)


def load(place: str) -> Any:
    """Loads the object of a place `module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
