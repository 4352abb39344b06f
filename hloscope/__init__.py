"""hloscope: see, price and pin every byte that sharding moves, on the TPU slice the program will run on.

Example:
    >>> found = hloscope.analyze(step, ("bf16[512@X,2048]", "bf16[2048,8192@Y]"), mesh={"X": 4, "Y": 2})
    >>> print(found)                                     # the report; found.collectives lists what moves
    >>> print(hloscope.explain(found, collective=1))     # why the first one is there
    >>> assert hloscope.check(found, contract=["no all-gather@X", "wire <= 6MB/step"]).passed

Functions:
    analyze: What a program moves, over which axes and from which line, and its step time.
    explain: Why each collective is there, and what would help.
    suggest: Better shardings, each compiled and priced.
    price: The step time on each of several slices.
    timeline: What runs when in one step, and what is exposed.
    graph: The compiled program as a graph, with its critical path.
    shardings: The shardings of all arrays, without a compile.
    diff: What one program moves and another does not.
    check: Whether programs satisfy a contract, in `hloscope.contracts` or as text; `accept` writes baselines.
    merge_reports: The reports of a sharded check, merged.
    verify: Whether a program computes the same as its reference.
    recording, record: The programs that JAX compiles in a block of Python, or in a script.
    compare, measure: Measured times of a profile, or of a run, compared with the prediction.
    analyze_text, analyze_all: Like `analyze`, for HLO text and for XLA dump folders.
    target: A decorator that states how a function is called.
    doctor: Whether everything works on this machine.

Modules: `aio` has these functions as coroutines, `contracts` builds contracts in Python, `rules` has the pages of the
rules.

The public names load lazily (PEP 562): `import hloscope` imports neither JAX, networkx nor Lark.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from hloscope.presenter import Presenter, register_presenter
from hloscope.version import __version__

if TYPE_CHECKING:
    from hloscope import aio, contracts, rules
    from hloscope.analysis.model import Analysis, ArrayFact, Collective, Collectives, Total, Totals
    from hloscope.analysis.model.picture import Picture
    from hloscope.analysis.model.program_graph import ProgramGraph
    from hloscope.analysis.model.recording import RecordedProgram, Recording
    from hloscope.analysis.model.suggestion import SuggestedSpec, Suggestion, Suggestions
    from hloscope.analysis.model.timeline import Timeline
    from hloscope.api.accepting import Accepted, accept
    from hloscope.api.analyses import analyze, analyze_all, analyze_text, graph, shardings, timeline
    from hloscope.api.checking import check, merge_reports
    from hloscope.api.comparing import compare, measure
    from hloscope.api.diffing import diff
    from hloscope.api.doctor import doctor
    from hloscope.api.explaining import explain
    from hloscope.api.pricing import price
    from hloscope.api.recorder import Recorder, record, recording
    from hloscope.api.suggesting import suggest
    from hloscope.api.verifying import verify
    from hloscope.compiler.elsewhere import ExecutorError
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
        WrongCallError,
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
    "hloscope.analysis.model.picture": "Picture",
    "hloscope.analysis.model.program_graph": "ProgramGraph",
    "hloscope.analysis.model.recording": "RecordedProgram Recording",
    "hloscope.analysis.model.suggestion": "SuggestedSpec Suggestion Suggestions",
    "hloscope.analysis.model.timeline": "Timeline",
    "hloscope.api.accepting": "Accepted accept",
    "hloscope.api.comparing": "compare measure",
    "hloscope.api.checking": "check merge_reports",
    "hloscope.api.analyses": "analyze analyze_all analyze_text graph shardings timeline",
    "hloscope.api.diffing": "diff",
    "hloscope.api.doctor": "doctor",
    "hloscope.api.explaining": "explain",
    "hloscope.api.pricing": "price",
    "hloscope.api.recorder": "Recorder record recording",
    "hloscope.api.suggesting": "suggest",
    "hloscope.api.verifying": "verify",
    "hloscope.compiler.elsewhere": "ExecutorError",
    "hloscope.compiler.jax_support": "UnsupportedJaxError",
    "hloscope.config": "ConfigError ConfigMistakesError",
    "hloscope.contracts.baseline_files": "BaselineError",
    "hloscope.errors": "CompileError CompilerDiedError DeviceCountError HbmError HloParseError HloscopeError "
    "ImportedTwiceError MeshError NotationError ProfileError SliceError TargetError TimeLimitError TraceError "
    "UnknownKeywordError WrongCallError",
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
_MODULES = ("aio", "contracts", "rules")

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
    "ExecutorError",
    "Explanation",
    "Explanations",
    "Finding",
    "HbmError",
    "HloParseError",
    "HloscopeError",
    "ImportedTwiceError",
    "MeshError",
    "NotationError",
    "Picture",
    "PluginError",
    "Prices",
    "ProfileError",
    "ProgramGraph",
    "RecordedProgram",
    "Recorder",
    "Recording",
    "ShardingTable",
    "SliceError",
    "SuggestedSpec",
    "Suggestion",
    "Suggestions",
    "TargetError",
    "TimeLimitError",
    "Timeline",
    "Total",
    "Totals",
    "TraceError",
    "UnknownKeywordError",
    "Unpriced",
    "UnsupportedJaxError",
    "Verification",
    "WrongCallError",
    "__version__",
    "accept",
    "aio",
    "analyze",
    "analyze_all",
    "analyze_text",
    "check",
    "compare",
    "contracts",
    "diff",
    "doctor",
    "explain",
    "graph",
    "measure",
    "merge_reports",
    "price",
    "record",
    "recording",
    "rules",
    "shardings",
    "suggest",
    "target",
    "timeline",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return _imported(f"hloscope.{name}")
    if name not in _HOME_OF:
        from hloscope.errors import no_attribute

        raise no_attribute("module 'hloscope'", name, __all__)
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


@register_presenter
def _load_presenter() -> Presenter:
    """The presenter of all results; the import is lazy, since importing one result must not import every report."""
    from hloscope.api import presenting

    return presenting
