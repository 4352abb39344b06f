"""Everything that a command does is one function away: for each command its function, for each option what does it."""

from __future__ import annotations

import inspect

import click
import pytest

import hloscope
from hloscope import rules
from hloscope.cli import group
from hloscope.compile.target import OPTIONS
from hloscope.measurement.model import CompareDocument
from hloscope.model import Analysis
from hloscope.model.program_graph import ProgramGraph
from hloscope.model.recording import Recording
from hloscope.model.timeline import Timeline
from hloscope.model.trial import Suggestions
from hloscope.report.checks import CheckReport
from hloscope.report.checkups import Checkups
from hloscope.report.diffs import DiffDocument
from hloscope.report.dumps import DumpedModules
from hloscope.report.price import Prices
from hloscope.report.shardings import ShardingTable
from hloscope.verification.model import Verification
from hloscope.why.explanation import Explanations

NOTHING = "has no meaning in Python: "
DEBUG = f"{NOTHING}the environment variable HLOSCOPE_TRACEBACK=full shows tracebacks whole"
OF_REPORTS = {
    "format_name": "{result}.report(format)",
    "output": "{result}.save(path)",
    "debug": DEBUG,
}
OF_TARGETS = {option.name: f"{{function}}({option.name})" for option in OPTIONS if option.flags}
"""Options that every command has under the name of Python's parameter."""

COMMANDS = {
    "analyze": (
        hloscope.analyze,
        Analysis,
        {
            "target": "analyze(target)",
            "only": "analyze(only)",
            "memory": "analyze_all(memory)",
            "jobs": "analyze_all(jobs)",
            "save_hlo": "analyze(save_hlo)",
            "quick": "analyze(stage)",
            "try_s": "analyze(try_s)",
            "no_try": "analyze(trials)",
            "source_root": "analyze(source_root)",
            "select": "analyze(select)",
            "ignore": "analyze(ignore)",
            "rule_options": "analyze(rule_options)",
            "allow": "analyze(allow)",
            "fail_on": "Analysis.fails(fail_on)",
            "group_by": "Analysis.report(group_by)",
            "everything": "Analysis.report(everything)",
            "source": "Analysis.report(source)",
        },
    ),
    "record": (
        hloscope.record,
        Recording,
        {
            "command": "record(command)",
            "only": "record(only)",
            "top": "record(top)",
            "run_below_bytes": "record(run_below_bytes)",
            "run_all": "record(run)",
            "stop_after": "record(stop_after)",
            "allow_writes": "record(allow_writes)",
            "save": "record(save)",
            "quick": "record(stage)",
            "select": "record(select)",
            "ignore": "record(ignore)",
            "rule_options": "record(rule_options)",
            "allow": "record(allow)",
            "fail_on": "Recording.fails(fail_on)",
        },
    ),
    "price": (
        hloscope.price,
        Prices,
        {
            "target": "price(target)",
            "slices": "price(slices)",
            "quick": "price(stage)",
            "executor": "price(executor)",
        },
    ),
    "suggest": (
        hloscope.suggest,
        Suggestions,
        {
            "target": "suggest(target)",
            "keep": "suggest(keep)",
            "free": "suggest(free)",
            "fix_mesh": "suggest(fix_mesh)",
            "candidates": "suggest(candidates)",
            "budget_s": "suggest(budget_s)",
            "seed": "suggest(seed)",
            "jobs": "suggest(jobs)",
            "executor": "suggest(executor)",
            "write": f"{NOTHING}the edits of a suggestion are for the caller to apply",
            "yes": f"{NOTHING}as write",
        },
    ),
    "timeline": (hloscope.timeline, Timeline, {"target": "timeline(target)", "quick": "timeline(stage)"}),
    "graph": (
        hloscope.graph,
        ProgramGraph,
        {
            "target": "graph(target)",
            "computation": "graph(computation)",
            "around": "graph(around)",
            "hops": "graph(hops)",
            "quick": "graph(stage)",
        },
    ),
    "explain": (
        hloscope.explain,
        Explanations,
        {
            "target": "explain(target)",
            "collective": "explain(collective)",
            "source_root": "explain(source_root)",
            "try_s": "explain(try_s)",
            "no_try": "explain(trials)",
        },
    ),
    "shardings": (
        hloscope.shardings,
        ShardingTable,
        {"target": "shardings(target)", "draw": "ShardingTable.draw(width)"},
    ),
    "verify": (
        hloscope.verify,
        Verification,
        {
            "target": "verify(target)",
            "reference": "verify(reference)",
            "scales": "verify(scale)",
            "ranges": "verify(ranges)",
            "seed": "verify(seed)",
            "grad": "verify(grad)",
            "against_single_device": "verify(against_single_device)",
            "on": "verify(on)",
            "timeout": "verify(timeout_s)",
            "rtol": "verify(rtol)",
            "atol": "verify(atol)",
            "ignore": "verify(ignore)",
            "strict": "Verification.fails(strict)",
            "fail_on": "Verification.fails(fail_on)",
        },
    ),
    "rules": (rules.pages, None, {"name": "rules.page(name)", "test": "rules.failed_cases(name)", "debug": DEBUG}),
    "check": (
        hloscope.check,
        CheckReport,
        {
            "names": "check(targets)",
            "config": "check(config)",
            "no_cache": "check(cached)",
            "jobs": "check(jobs)",
            "executor": "check(executor)",
            "shard": "check(shard)",
            "strict": "check(strict)",
            "changes": "check(changes)",
            "also": "CheckReport.report(format)",
        },
    ),
    "merge-reports": (
        hloscope.merge_reports,
        CheckReport,
        {
            "files": "merge_reports(files)",
            "config": "merge_reports(config)",
            "strict": "merge_reports(strict)",
            "changes": "merge_reports(changes)",
            "also": "CheckReport.report(format)",
        },
    ),
    "diff": (
        hloscope.diff,
        DiffDocument,
        {
            "programs": "diff(old)",
            "base": "diff(base)",
            "fail_on": "DiffDocument.fails(fail_on)",
            "at_least_ok": "DiffDocument.fails(at_least_ok)",
            "equivalent": "diff(equivalent)",
            "quick": "diff(stage)",
            "source": "DiffDocument.report(source)",
            "config": "diff(config)",
            "no_cache": "diff(cached)",
        },
    ),
    "compare": (
        hloscope.compare,
        CompareDocument,
        {
            "target": "compare(target)",
            "profile": "compare(profile)",
            "only": "compare(only)",
            "save": "compare(save)",
        },
    ),
    "measure": (
        hloscope.measure,
        CompareDocument,
        {"target": "measure(target)", "on": "measure(on)", "runs": "measure(runs)", "save": "measure(save)"},
    ),
    "accept": (
        hloscope.accept,
        None,
        {
            "names": "accept(names)",
            "config": "accept(config)",
            "no_cache": "accept(cached)",
            "jobs": "accept(jobs)",
            "accept_in_ci": "accept(in_ci)",
            "only": "accept(only)",
            "beside": "accept(beside)",
            "all_of_them": f"{NOTHING}nobody is asked in Python",
            "timeout_s": "accept(timeout_s)",
            "debug": DEBUG,
        },
    ),
    "doctor": (hloscope.doctor, Checkups, {}),
}
RESULTS = (
    *(Analysis, Recording, Prices, Explanations, ShardingTable, Verification),
    *(CheckReport, DiffDocument, CompareDocument, Checkups, Suggestions, Timeline, ProgramGraph),
)
HOLDERS = {
    "hloscope": hloscope,
    "rules": rules,
    "DumpedModules": DumpedModules,
    **{kind.__name__: kind for kind in RESULTS},
}


def command_named(name: str) -> click.Command:
    found = group.get_command(click.Context(group), name)
    assert found is not None
    return found


def test_every_command_has_its_function():
    assert set(COMMANDS) == set(group.list_commands(click.Context(group)))


def ways(name: str) -> dict[str, str]:
    """What does each option of a command."""
    function, result, own = COMMANDS[name]
    shared = OF_TARGETS if result is not None else {}
    reports = OF_REPORTS if result is not None else {}
    named = {"function": function.__name__, "result": "" if result is None else result.__name__}
    return {option: way.format(**named) for option, way in {**shared, **reports, **own}.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_its_parameter_or_method(name):
    known = ways(name)
    options = [parameter.name for parameter in command_named(name).params]
    assert [option for option in options if option not in known] == []
    assert set(COMMANDS[name][2]) - set(options) == set(), "in the table, and no option"
    for option in options:
        if known[option].startswith(NOTHING):
            continue
        place, _, parameter = known[option].rstrip(")").partition("(")
        holder, _, function = place.rpartition(".")
        taker = getattr(HOLDERS[holder or "hloscope"], function)
        assert parameter in inspect.signature(taker).parameters, known[option]
        assert f"{parameter}:" in (taker.__doc__ or ""), f"{known[option]} is not described"


@pytest.mark.parametrize("name", [name for name, (_, result, _) in COMMANDS.items() if result is not None])
def test_every_command_returns_what_its_report_is_made_of(name):
    function, result, _ = COMMANDS[name]
    assert inspect.signature(function).return_annotation == result.__name__
    assert {"report", "save", "to_dict", "_repr_markdown_"} <= set(dir(result))
