"""hloscope: see, price and pin every byte that sharding moves, on the TPU slice the program will run on.

The public names load lazily (PEP 562): `import hloscope` imports neither JAX, networkx nor Lark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hloscope.version import __version__

if TYPE_CHECKING:
    from hloscope.analysis.model import Analysis, Collective
    from hloscope.api.analyzing import analyze, analyze_text
    from hloscope.api.recording import recording
    from hloscope.api.verifying import verify
    from hloscope.errors import HloscopeError
    from hloscope.program.target import target
    from hloscope.verification.model import Verification

_HOMES = {
    "Analysis": "hloscope.analysis.model",
    "Collective": "hloscope.analysis.model",
    "HloscopeError": "hloscope.errors",
    "analyze": "hloscope.api.analyzing",
    "analyze_text": "hloscope.api.analyzing",
    "recording": "hloscope.api.recording",
    "target": "hloscope.program.target",
    "Verification": "hloscope.verification.model",
    "verify": "hloscope.api.verifying",
}

__all__ = [
    "Analysis",
    "Collective",
    "HloscopeError",
    "Verification",
    "__version__",
    "analyze",
    "analyze_text",
    "recording",
    "target",
    "verify",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'hloscope' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
