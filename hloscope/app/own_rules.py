"""A project's own rules: loads the plug-ins that its targets file names, and runs the cases of their rules."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from hloscope.app.analyzing import analyze_hlo
from hloscope.app.config import load_project_plugins
from hloscope.app.requests import read_hlo_text
from hloscope.base.errors import HloscopeError, NotationError
from hloscope.judge.plugins import FAILED, list_plugins
from hloscope.judge.rule import Case, Rule
from hloscope.judge.selection import make_selection


def run_cases(name: str | None) -> dict[str, tuple[str, ...]]:
    """Runs the cases of plug-ins' rules and returns the failures, by rule name.

    Args:
        name: One rule; None for all of them.

    Raises:
        NotationError: There is no such rule, it is hloscope's own, or no plug-in defines a rule.
        HloscopeError: A plug-in cannot be loaded.
    """
    load_project_plugins(Path.cwd())
    if name is not None:
        from hloscope.report.pages import find_page  # imported here, because it loads the findings of every command

        find_page(name)
    rules = [rule for plugin in list_plugins() for rule in plugin.rules if name in (None, rule.name)]
    if not rules and name is not None:
        raise NotationError(
            f"{name} is built in, and its cases are part of hloscope's tests", fix="name a plug-in's rule"
        )
    if not rules:
        what = "no plug-in defines a rule, so there are no cases to run"
        raise NotationError(what, fix='add a plug-in: plugins = ["ourteam.rules"]')
    return {rule.name: tuple(find_failed_cases(rule)) for rule in rules}


def find_failed_cases(rule: Rule) -> list[str]:
    """Runs the cases of a rule and returns the failures; empty if all pass.

    Args:
        rule: A rule of a loaded plug-in.
    """
    cases: tuple[Case, ...] = tuple(getattr(rule, "cases", ()))
    missing = [
        f"it has no case on which it {'fires' if fires else 'stays silent'}"
        for fires in (True, False)
        if all(case.fires is not fires for case in cases)
    ]
    wrong = (f"case {number}: {text}" for number, case in enumerate(cases, 1) for text in _find_faults(rule, case))
    return [*missing, *wrong]


def _find_faults(rule: Rule, case: Case) -> Iterator[str]:
    """The faults of a case, if any."""
    options = {f"{rule.name}.{option}": value for option, value in case.options.items()}
    try:
        if isinstance(case.hlo, Path):
            name = str(Path(inspect.getfile(type(rule))).parent / case.hlo)
            text = read_hlo_text(name)
        else:
            name, text = "case.hlo", case.hlo
        judging = make_selection(select=[rule.name], rule_options=options)
        found = analyze_hlo(text, name=name, mesh=case.mesh, slice=case.slice, judging=judging).findings
    except HloscopeError as error:
        yield error.on_one_line()
        return
    failures = [finding for finding in found if finding.rule == FAILED]
    yield from (f"{finding.message} ({finding.source})" for finding in failures)
    own = [finding.message for finding in found if finding.rule == rule.name]
    if bool(own) is not case.fires and not failures:
        yield f"it should stay silent, but finds: {own[0]}" if own else "it should fire, but finds nothing"
