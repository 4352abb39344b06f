"""hloscope: see, price and pin every byte that sharding moves, on the TPU slice the program will run on.

Example:
    >>> found = hloscope.analyze(step, ("bf16[512@X,2048]", "bf16[2048,8192@Y]"), mesh={"X": 4, "Y": 2})
    >>> print(found)                                     # the report; found.collectives lists what moves
    >>> print(hloscope.explain(found, collective=1))     # why the first one is there
    >>> assert hloscope.check(found, contract=["no all-gather@X", "wire <= 6MB/step"]).passed

Functions:
    analyze: The communication of a program, with its axes and source lines, and the step time.
    explain: The reason for each collective, and changes that would help.
    suggest: Better shardings, each compiled and priced.
    price: The step time on each of several slices.
    timeline: The timeline of one step: what runs when, and what is exposed.
    graph: The compiled program as a graph, with its critical path.
    shardings: The shardings of all arrays, without a compile.
    diff: The differences between the communication of two programs.
    check: A check of programs against a contract, in `hloscope.contracts` or as text; `accept` writes baselines.
    merge_reports: The reports of a sharded check, merged.
    verify: A comparison of a program with its reference, in numbers, structure and communication.
    recording, record: The programs that JAX compiles in a block of Python, or in a script.
    compare, measure: Measured times of a profile, or of a run, compared with the prediction.
    analyze_text, analyze_all: Like `analyze`, for HLO text and for XLA dump folders.
    target: A decorator that states how a function is called.
    doctor: A check of this machine and its installation.

Modules: `aio` has these functions as coroutines, `contracts` builds contracts in Python, `rules` has the pages of the
rules.

The public names load lazily (PEP 562): `import hloscope` imports neither JAX, networkx nor Lark.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from hloscope.base.presenter import register_presenter
from hloscope.version import __version__

if TYPE_CHECKING:
    from hloscope import aio, contracts, rules
    from hloscope.app.accepting import Accepted, accept
    from hloscope.app.analyses import analyze, analyze_all, analyze_text, graph, shardings, timeline
    from hloscope.app.checking import check, merge_reports
    from hloscope.app.comparing import compare, measure
    from hloscope.app.config import ConfigError, ConfigMistakesError
    from hloscope.app.diffing import diff
    from hloscope.app.doctor import doctor
    from hloscope.app.explaining import explain
    from hloscope.app.pricing import price
    from hloscope.app.recorder import Recorder, record, recording
    from hloscope.app.suggesting import suggest
    from hloscope.app.verifying import verify
    from hloscope.base.errors import (
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
    from hloscope.compile.executors import ExecutorError
    from hloscope.compile.jax_support import UnsupportedJaxError
    from hloscope.compile.target import target
    from hloscope.judge.baseline_files import BaselineError
    from hloscope.judge.plugins import PluginError
    from hloscope.model import Analysis, ArrayFact, Collective, Collectives, Total, Totals
    from hloscope.model.finding import Finding
    from hloscope.model.picture import Picture
    from hloscope.model.program_graph import ProgramGraph
    from hloscope.model.recording import RecordedProgram, Recording
    from hloscope.model.timeline import Timeline
    from hloscope.model.trial import SuggestedSpec, Suggestion, Suggestions
    from hloscope.report.checks import CheckReport
    from hloscope.report.checkups import Checkups
    from hloscope.report.diffs import DiffDocument
    from hloscope.report.dumps import DumpedModules, DumpedResult
    from hloscope.report.price import Prices, Unpriced
    from hloscope.report.shardings import ShardingTable
    from hloscope.verification.model import Verification
    from hloscope.why.explanation import Explanation, Explanations

_HOMES = {
    "hloscope.model": "Analysis ArrayFact Collective Collectives Total Totals",
    "hloscope.model.picture": "Picture",
    "hloscope.model.program_graph": "ProgramGraph",
    "hloscope.model.recording": "RecordedProgram Recording",
    "hloscope.model.trial": "SuggestedSpec Suggestion Suggestions",
    "hloscope.model.timeline": "Timeline",
    "hloscope.app.accepting": "Accepted accept",
    "hloscope.app.comparing": "compare measure",
    "hloscope.app.checking": "check merge_reports",
    "hloscope.app.analyses": "analyze analyze_all analyze_text graph shardings timeline",
    "hloscope.app.diffing": "diff",
    "hloscope.app.doctor": "doctor",
    "hloscope.app.explaining": "explain",
    "hloscope.app.pricing": "price",
    "hloscope.app.recorder": "Recorder record recording",
    "hloscope.app.suggesting": "suggest",
    "hloscope.app.verifying": "verify",
    "hloscope.compile.executors": "ExecutorError",
    "hloscope.compile.jax_support": "UnsupportedJaxError",
    "hloscope.app.config": "ConfigError ConfigMistakesError",
    "hloscope.judge.baseline_files": "BaselineError",
    "hloscope.base.errors": "CompileError CompilerDiedError DeviceCountError HbmError HloParseError HloscopeError "
    "ImportedTwiceError MeshError NotationError ProfileError SliceError TargetError TimeLimitError TraceError "
    "UnknownKeywordError WrongCallError",
    "hloscope.model.finding": "Finding",
    "hloscope.compile.target": "target",
    "hloscope.report.checks": "CheckReport",
    "hloscope.report.checkups": "Checkups",
    "hloscope.report.diffs": "DiffDocument",
    "hloscope.report.dumps": "DumpedModules DumpedResult",
    "hloscope.report.price": "Prices Unpriced",
    "hloscope.report.shardings": "ShardingTable",
    "hloscope.judge.plugins": "PluginError",
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
        return _import_quietly(f"hloscope.{name}")
    if name not in _HOME_OF:
        from hloscope.base.errors import make_attribute_error

        raise make_attribute_error("module 'hloscope'", name, __all__)
    return getattr(_import_quietly(_HOME_OF[name]), name)


def _import_quietly(module: str) -> ModuleType:
    """Imports a module, and restores the state of the user's random numbers, which some libraries change on import."""
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


register_presenter(
    {
        "report": "hloscope.report.formats:render_report",
        "save": "hloscope.report.formats:save",
        "document": "hloscope.report.formats:make_plain_document",
        "markdown": "hloscope.report.formats:render_in_notebook",
        "fragment": "hloscope.report.fragments:render_fragment",
        "image": "hloscope.report.pictures.svg:make_standalone",
        "timeline": "hloscope.app.analyses:predict_timeline_of_analysis",
        "graph": "hloscope.app.analyses:build_graph_of_analysis",
        "mesh picture": "hloscope.report.pictures.meshes:draw_mesh_picture",
        "array picture": "hloscope.report.pictures.arrays:draw_array_picture",
        "groups": "hloscope.report.collectives:list_groups",
        "select": "hloscope.judge.notation:select_collectives",
        "filter": "hloscope.judge.building:filter_collectives",
        "rule pages": "hloscope.report.pages:list_pages",
        "rule page": "hloscope.report.pages:find_page",
        "failed cases": "hloscope.app.own_rules:run_cases",
    }
)


_ROOMS_OF_0_2 = (
    *("analysis.model", "api", "compiler", "contracts.", "errors", "findings", "hardware", "matching", "measured"),
    *("profiles", "program", "rules.", "shardy", "shown"),
)


class _ModulesOf02:
    """The last import finder: for a missing module that a pickle of 0.2 names, it raises an error with a fix."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.startswith(tuple(f"hloscope.{room}" for room in _ROOMS_OF_0_2)):
            raise ModuleNotFoundError(
                f"{name} is a module of hloscope 0.2, so the pickle that names it was written by 0.2: load it there "
                "and save it as JSON, json.dump(found.to_dict(), file), which hloscope.Analysis.from_dict reads",
                name=name,
            )


sys.meta_path.append(_ModulesOf02)
