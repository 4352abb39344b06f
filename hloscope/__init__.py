"""hloscope: see, price and pin every byte that sharding moves, on the TPU slice the program will run on.

The public names load lazily (PEP 562): `import hloscope` imports neither JAX, networkx nor Lark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hloscope.version import __version__

if TYPE_CHECKING:
    from hloscope import aio, rules
    from hloscope.analysis.model import Analysis, Collective, Collectives
    from hloscope.analysis.model.recording import Recording
    from hloscope.api.analyzing import analyze, analyze_text
    from hloscope.api.checking import accept, check
    from hloscope.api.comparing import compare
    from hloscope.api.diffing import diff
    from hloscope.api.doctor import doctor
    from hloscope.api.explaining import explain
    from hloscope.api.measuring import measure
    from hloscope.api.pricing import price
    from hloscope.api.recording import record, recording
    from hloscope.api.shardings import shardings
    from hloscope.api.verifying import verify
    from hloscope.errors import (
        CompileError,
        CompilerDiedError,
        HbmError,
        HloParseError,
        HloscopeError,
        MeshError,
        NotationError,
        ProfileError,
        SliceError,
        TargetError,
        TimeLimitError,
        TraceError,
    )
    from hloscope.findings import Finding
    from hloscope.program.target import target
    from hloscope.verification.model import Verification
    from hloscope.why.explanation import Explanation, Explanations

_HOMES = {
    "hloscope.analysis.model": "Analysis Collective Collectives",
    "hloscope.analysis.model.recording": "Recording",
    "hloscope.api.analyzing": "analyze analyze_text",
    "hloscope.api.checking": "accept check",
    "hloscope.api.comparing": "compare",
    "hloscope.api.diffing": "diff",
    "hloscope.api.doctor": "doctor",
    "hloscope.api.explaining": "explain",
    "hloscope.api.measuring": "measure",
    "hloscope.api.pricing": "price",
    "hloscope.api.recording": "record recording",
    "hloscope.api.shardings": "shardings",
    "hloscope.api.verifying": "verify",
    "hloscope.errors": "CompileError CompilerDiedError HbmError HloParseError HloscopeError MeshError NotationError "
    "ProfileError "
    "SliceError TargetError TimeLimitError TraceError",
    "hloscope.findings": "Finding",
    "hloscope.program.target": "target",
    "hloscope.verification.model": "Verification",
    "hloscope.why.explanation": "Explanation Explanations",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = ("aio", "rules")

__all__ = [
    "Analysis",
    "Collective",
    "Collectives",
    "CompileError",
    "CompilerDiedError",
    "Explanation",
    "Explanations",
    "Finding",
    "HbmError",
    "HloParseError",
    "HloscopeError",
    "MeshError",
    "NotationError",
    "ProfileError",
    "Recording",
    "SliceError",
    "TargetError",
    "TimeLimitError",
    "TraceError",
    "Verification",
    "__version__",
    "accept",
    "aio",
    "analyze",
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
        return import_module(f"hloscope.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hloscope' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
