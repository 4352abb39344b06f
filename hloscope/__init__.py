"""hloscope: see, price and pin every byte that sharding moves, on the TPU slice the program will run on.

The public names load lazily (PEP 562): `import hloscope` imports neither JAX, networkx nor Lark.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from hloscope.version import __version__

if TYPE_CHECKING:
    from hloscope import aio, rules
    from hloscope.analysis.model import Analysis, ArrayFact, Collective, Collectives, Total, Totals
    from hloscope.analysis.model.recording import RecordedProgram, Recording
    from hloscope.api.analyses import analyze, analyze_all, analyze_text
    from hloscope.api.checking import Accepted, accept, check
    from hloscope.api.comparing import compare
    from hloscope.api.diffing import diff
    from hloscope.api.doctor import doctor
    from hloscope.api.explaining import explain
    from hloscope.api.measuring import measure
    from hloscope.api.pricing import price
    from hloscope.api.recorder import Recorder, record, recording
    from hloscope.api.shardings import shardings
    from hloscope.api.verifying import verify
    from hloscope.compiler.jax_support import UnsupportedJaxError
    from hloscope.config import ConfigError, ConfigMistakesError
    from hloscope.contracts.baseline_files import BaselineError
    from hloscope.errors import (
        CompileError,
        CompilerDiedError,
        DeviceCountError,
        HbmError,
        HloParseError,
        HloscopeError,
        ImportedTwiceError,
        MeshError,
        NotationError,
        ProfileError,
        SliceError,
        TargetError,
        TimeLimitError,
        TraceError,
        UnknownKeywordError,
    )
    from hloscope.findings import Finding
    from hloscope.program.target import target
    from hloscope.report.checks import CheckReport
    from hloscope.report.checkups import Checkups
    from hloscope.report.diffs import DiffDocument
    from hloscope.report.dumps import DumpedModules, DumpedResult
    from hloscope.report.price import Prices, Unpriced
    from hloscope.report.shardings import ShardingTable
    from hloscope.rules.plugins import PluginError
    from hloscope.verification.model import Verification
    from hloscope.why.explanation import Explanation, Explanations

_HOMES = {
    "hloscope.analysis.model": "Analysis ArrayFact Collective Collectives Total Totals",
    "hloscope.analysis.model.recording": "RecordedProgram Recording",
    "hloscope.api.analyses": "analyze analyze_all analyze_text",
    "hloscope.api.checking": "Accepted accept check",
    "hloscope.api.comparing": "compare",
    "hloscope.api.diffing": "diff",
    "hloscope.api.doctor": "doctor",
    "hloscope.api.explaining": "explain",
    "hloscope.api.measuring": "measure",
    "hloscope.api.pricing": "price",
    "hloscope.api.recorder": "Recorder record recording",
    "hloscope.api.shardings": "shardings",
    "hloscope.api.verifying": "verify",
    "hloscope.compiler.jax_support": "UnsupportedJaxError",
    "hloscope.config": "ConfigError ConfigMistakesError",
    "hloscope.contracts.baseline_files": "BaselineError",
    "hloscope.errors": "CompileError CompilerDiedError DeviceCountError HbmError HloParseError HloscopeError "
    "ImportedTwiceError MeshError NotationError ProfileError SliceError TargetError TimeLimitError TraceError "
    "UnknownKeywordError",
    "hloscope.findings": "Finding",
    "hloscope.program.target": "target",
    "hloscope.report.checks": "CheckReport",
    "hloscope.report.checkups": "Checkups",
    "hloscope.report.diffs": "DiffDocument",
    "hloscope.report.dumps": "DumpedModules DumpedResult",
    "hloscope.report.price": "Prices Unpriced",
    "hloscope.report.shardings": "ShardingTable",
    "hloscope.rules.plugins": "PluginError",
    "hloscope.verification.model": "Verification",
    "hloscope.why.explanation": "Explanation Explanations",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = ("aio", "rules")

__all__ = [
    "Accepted",
    "Analysis",
    "ArrayFact",
    "BaselineError",
    "CheckReport",
    "Checkups",
    "Collective",
    "Collectives",
    "CompileError",
    "CompilerDiedError",
    "ConfigError",
    "ConfigMistakesError",
    "DeviceCountError",
    "DiffDocument",
    "DumpedModules",
    "DumpedResult",
    "Explanation",
    "Explanations",
    "Finding",
    "HbmError",
    "HloParseError",
    "HloscopeError",
    "ImportedTwiceError",
    "MeshError",
    "NotationError",
    "PluginError",
    "Prices",
    "ProfileError",
    "RecordedProgram",
    "Recorder",
    "Recording",
    "ShardingTable",
    "SliceError",
    "TargetError",
    "TimeLimitError",
    "Total",
    "Totals",
    "TraceError",
    "UnknownKeywordError",
    "Unpriced",
    "UnsupportedJaxError",
    "Verification",
    "__version__",
    "accept",
    "aio",
    "analyze",
    "analyze_all",
    "analyze_text",
    "check",
    "compare",
    "diff",
    "doctor",
    "explain",
    "measure",
    "price",
    "record",
    "recording",
    "rules",
    "shardings",
    "target",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return _imported(f"hloscope.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hloscope' has no attribute {name!r}")
    return getattr(_imported(_HOME_OF[name]), name)


def _imported(module: str) -> ModuleType:
    """A module; the user's random numbers stay as they are, of which libraries take some when they are imported."""
    numbers = sys.modules.get("random")
    if module in sys.modules or numbers is None:
        return import_module(module)
    before = numbers.getstate()
    try:
        return import_module(module)
    finally:
        numbers.setstate(before)


def __dir__() -> list[str]:
    return __all__
