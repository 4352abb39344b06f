"""From a parsed HLO module to the facts about it. Knows no chip and imports no JAX.

The names are handed on lazily, so that `hloscope.analysis.model` can be imported without the HLO parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.analysis.analyze import analyze_module, collectives_alone
    from hloscope.analysis.mesh_text import mesh_from_text
    from hloscope.analysis.partition_specs import partition_spec
    from hloscope.analysis.placement import Placement

__all__ = ["Placement", "analyze_module", "collectives_alone", "mesh_from_text", "partition_spec"]

_MODULES = {
    "Placement": "placement",
    "analyze_module": "analyze",
    "collectives_alone": "analyze",
    "mesh_from_text": "mesh_text",
    "partition_spec": "partition_specs",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"hloscope.analysis.{_MODULES[name]}"), name)
