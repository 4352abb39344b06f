"""Rules of plug-ins: modules named in a project's targets file, and entry points of installed packages.

Both have `RULES`. A named plug-in that cannot be used is an error. An installed one that cannot be used is a finding
of every analysis, because it was not requested here; so is a rule that fails while it runs. None of them is silent.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hloscope.base.environment import is_library
from hloscope.base.errors import Command, Either, HloscopeError, Option, TimeLimitError, describe_exception, say
from hloscope.judge.rule import Case, Facts, Rule, read_rule_doc
from hloscope.judge.rules import RULES
from hloscope.model.finding import UNUSED_ALLOW, Finding, Severity, page_of_finding
from hloscope.model.vocabulary import Kind

ENTRY_POINTS = "hloscope.rules"
"""The group of entry points that name modules with rules."""

FAILED = "rule-failed"
FAILED_PAGE = page_of_finding(
    FAILED,
    "A rule of a plug-in could not be loaded, or failed.",
    "reports a package whose entry point in `hloscope.rules` cannot be loaded, and a rule of a plug-in that raises an "
    "exception or yields something that is not its own finding. All other rules still run.",
    say(
        "what a rule did not check may be wrong, so `", Option("fail-on"), "` and `", Command("check"), "` exit with 2."
    ),
    "a rule that reads `collective.reason.moved` of a collective that has no `reason`.",
    say(
        "a rule that handles None wherever the analysis does not know something. `",
        Either("hloscope rules --test", "hloscope.rules.failed_cases()"),
        "` runs its cases.",
    ),
)

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NOT_ITS_OWN = (str(Path(__file__).parent.parent), str(Path(importlib.__file__).parent), "<")
"""The beginnings of files whose lines say nothing about a plug-in's mistakes."""


class PluginError(HloscopeError):
    """A plug-in cannot be loaded, or one of its rules is not a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A module with rules.

    Attributes:
        name: The module: `ourteam.rules`.
        where: The place that names it: `pyproject.toml:12`, or the entry point of a package.
        rules: Its rules; empty if it could not be loaded.
        error: Why it could not be loaded; None if it was.
    """

    name: str
    where: str
    rules: tuple[Rule, ...] = ()
    error: PluginError | None = None


_named_plugins: dict[str, Plugin] = {}
"""The plug-ins that were named in this process."""


def load_plugins(*names: str, root: Path | None = None, where: str = "load_plugins") -> None:
    """Makes the rules of modules known to all analyses in this process.

    Args:
        names: Modules with `RULES`, such as `ourteam.rules`.
        root: The project's folder, from which they can be imported; None for the folders of `sys.path` alone.
        where: The place that names them, for messages.

    Raises:
        PluginError: One cannot be loaded, or the values in its `RULES` are not rules.
    """
    if names and root is not None and str(root) not in sys.path:
        sys.path.insert(0, str(root))
    for name in names:
        if not any(plugin.name == name and plugin.error is None for plugin in list_plugins()):
            _named_plugins[name] = _load_plugin(name, where, list_plugins())
        hiding = None if root is None else _find_hiding_file(name, root)
        if hiding is not None:
            raise PluginError(
                f"the plug-in {name} is hidden by another module of that name",
                where=where,
                why=f"this process has imported {hiding}",
                fix="rename it; or, if it belongs to another project, use a separate process",
            )


def _find_hiding_file(name: str, root: Path) -> str | None:
    """The file that a plug-in was imported from, if the project has another file for it."""
    own = root.joinpath(*name.split("."))
    files = [file.resolve() for file in (own.with_suffix(".py"), own / "__init__.py") if file.is_file()]
    imported = getattr(sys.modules.get(name), "__file__", None)
    return imported if imported and files and Path(imported).resolve() not in files else None


def list_plugins() -> tuple[Plugin, ...]:
    """The plug-ins of this process: those of installed packages, then the named ones."""
    return (*_load_installed(), *_named_plugins.values())


def list_known_rules() -> tuple[Rule, ...]:
    """All rules: hloscope's own, then those of plug-ins."""
    return (*RULES, *(rule for plugin in list_plugins() for rule in plugin.rules))


def find_plugin(rule_name: str) -> Plugin | None:
    """The plug-in that a rule comes from; None for hloscope's own."""
    return next((plugin for plugin in list_plugins() if any(rule.name == rule_name for rule in plugin.rules)), None)


def refuse_broken_plugins() -> None:
    """Refuses to reach a verdict without the rules of an installed package.

    Raises:
        PluginError: One of them cannot be loaded.
    """
    for plugin in list_plugins():
        if plugin.error is not None:
            raise plugin.error


@cache
def _load_installed() -> tuple[Plugin, ...]:
    """The plug-ins of installed packages, each loaded once; the error of a broken one is kept with it."""
    from importlib.metadata import entry_points

    found: dict[str, Plugin] = {}
    try:
        points = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: (point.value, point.name))
    except Exception as error:  # one package's malformed file is enough
        unread = PluginError("the entry points of installed packages cannot be read", why=describe_error(error))
        return (Plugin(name=ENTRY_POINTS, where="installed packages", error=unread),)
    for point in points:
        module = re.split(r"[:\[]", point.value)[0].strip()
        package = "an installed package"
        with suppress(Exception):  # where its metadata cannot be read
            package = f"{point.dist.name} {point.dist.version}"  # type: ignore[union-attr]
        where = f"entry point {point.name} of {package}"
        if module not in found:
            try:
                found[module] = _load_plugin(module, where, found.values())
            except PluginError as error:
                found[module] = Plugin(name=module, where=where, error=error)
    return tuple(found.values())


def _load_plugin(name: str, where: str, others: Iterable[Plugin]) -> Plugin:
    """A plug-in with its rules; output that its module prints does not reach a report.

    Raises:
        PluginError: It cannot be loaded, or the values in its `RULES` are not rules.
    """
    from hloscope.judge.checks import PAGES  # only here: most programs run without plug-ins

    own = (*(rule.name for rule in RULES), *(page.name for page in PAGES), UNUSED_ALLOW, FAILED, *Kind)
    taken = dict.fromkeys(own, "hloscope") | {rule.name: other.name for other in others for rule in other.rules}
    try:
        with redirect_stdout(sys.stderr):
            rules = getattr(importlib.import_module(name), "RULES", None)
            if not isinstance(rules, tuple | list) or not rules:
                raise PluginError(
                    f"the plug-in {name} has no rules", where=where, fix="write RULES = (YourRule(),) in that module"
                )
            for rule in rules:
                mistake = next(_find_mistakes(rule, taken), None)
                if mistake is not None:
                    called = repr(getattr(rule, "name", rule))
                    place = _find_class_line(rule)
                    raise PluginError(
                        f"the rule {called} of the plug-in {name} {mistake[0]}",
                        where=where if place is None else f"{place}, named in {where}",
                        fix=mistake[1],
                    )
                taken[rule.name] = name
    except (PluginError, KeyboardInterrupt):
        raise
    except BaseException as error:
        line = _find_line(error)
        is_nowhere = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        raise PluginError(
            f"the plug-in {name} cannot be loaded",
            where=where,
            why=describe_error(error) + ("" if line is None else f" ({line})"),
            fix="name a module in the project's folder or of an installed package"
            if is_nowhere
            else f"correct what importing {name} fails on, or remove it from the plug-ins",
        ) from error
    return Plugin(name=name, where=where, rules=tuple(rules))


def _find_mistakes(rule: Any, taken: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The reasons why something is not a rule, and how to fix them."""
    name = getattr(rule, "name", None)
    if isinstance(rule, type) or not is_dataclass(rule):
        yield "is not an instance of a dataclass", "decorate its class with @dataclass, and write RULES = (YourRule(),)"
        return
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield "has no name that can be written in an allow", 'write name: ClassVar[str] = "too-many-gathers"'
        return
    if name in taken:
        yield f"has a name that is taken by {taken[name]}", "give it another name"
    if not isinstance(getattr(rule, "severity", None), Severity):
        yield "has no severity", "write severity: ClassVar[Severity] = Severity.WARNING"
    if not _takes_facts(getattr(rule, "check", None)):
        yield "has no check that takes the facts", "write def check(self, facts: Facts) -> Iterator[Finding]"
    for option in fields(rule):
        if not isinstance(getattr(rule, option.name), bool | int | float | str):
            yield f"has the option {option.name}, whose default is not a number, text or bool", "give it such a default"
        if not option.init:
            yield f"has the option {option.name}, which cannot be set", "leave out init=False"
    if not all(isinstance(case, Case) for case in getattr(rule, "cases", ())):
        yield "has a case that is not a hloscope.rules.Case", "write cases: ClassVar = (Case(hlo=..., fires=True),)"
    yield from _find_page_mistakes(rule)


def _find_page_mistakes(rule: Any) -> Iterator[tuple[str, str]]:
    try:
        read_rule_doc(rule)
    except ValueError as error:
        yield f"has no page: {error}", "write the sections in the docstring of its class or its module"


def _takes_facts(check: Any) -> bool:
    try:
        inspect.signature(check).bind(object())
    except (TypeError, ValueError):
        return False
    return True


def _spell_finding(finding: object) -> str:
    """A finding with each of its fields as text, because they may have any value."""
    if not isinstance(finding, Finding):
        return repr(finding)
    given = ((field.name, getattr(finding, field.name)) for field in fields(finding))
    return f"Finding({', '.join(f'{name}={value!r}' for name, value in given if value is not None)})"


def run_rule(rule: Rule, facts: Facts) -> list[Finding]:
    """The findings of a rule; for a plug-in's rule that fails, its findings until then and the failure."""
    plugin = find_plugin(rule.name)
    if plugin is None:
        return list(rule.check(facts))
    found = []
    try:
        with redirect_stdout(sys.stderr):
            for finding in rule.check(facts):
                if not _is_its_own(finding, rule):
                    raise TypeError(
                        f"it yields {_spell_finding(finding)}, which is not its own finding: "
                        "use finding_at or finding_of"
                    )
                found.append(finding)
    except (TimeLimitError, KeyboardInterrupt):
        raise
    except BaseException as error:
        failure = Finding(
            rule=FAILED,
            severity=Severity.ERROR,
            message=f"the rule {rule.name} of the plug-in {plugin.name} failed: {describe_error(error)}",
            source=_find_line(error) or _find_class_line(rule),
            why=f"{plugin.name} is named in {plugin.where}",
            fix=say("correct the rule, or leave it out: ", Option("ignore", [rule.name])),
        )
        found.append(failure)
    return found


def report_broken_plugins() -> Iterator[Finding]:
    """A finding for each installed package with unusable rules."""
    for plugin in list_plugins():
        if plugin.error is not None:
            yield Finding(
                rule=FAILED,
                severity=Severity.ERROR,
                message=f"{plugin.error.what}, so its rules did not run",
                why="; ".join(filter(None, (plugin.error.where, plugin.error.why))),
                fix="repair or uninstall the package",
            )


def _is_its_own(finding: object, rule: Rule) -> bool:
    """Returns whether a value that a rule yields can be reported."""
    if not isinstance(finding, Finding) or finding.rule != rule.name or not isinstance(finding.severity, Severity):
        return False
    texts = ("computation", "instruction", "source", "why", "cost", "fix", "allowed")
    said = all(isinstance(getattr(finding, name), str | None) for name in texts)
    return said and isinstance(finding.message, str) and type(finding.line) in (int, type(None))


def describe_error(error: BaseException) -> str:
    """An exception in its own words, on one line."""
    return " ".join(describe_exception(error).split())


def _find_line(error: BaseException) -> str | None:
    """The innermost line of the plug-in's own code in a traceback, or otherwise of any code that it calls."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(_NOT_ITS_OWN)]
    own = [frame for frame in outside if not is_library(frame.filename)] or outside
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def _find_class_line(rule: object) -> str | None:
    kind = rule if isinstance(rule, type) else type(rule)
    try:
        return f"{inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):
        return None
