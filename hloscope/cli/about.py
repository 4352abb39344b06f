"""Commands about hloscope itself.

`rules` prints the list of rules, the page of each, and the results of plug-ins' cases; `doctor` says what works here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloscope.base.errors import EXIT_BROKEN, EXIT_COULD_NOT_RUN, EXIT_OK
from hloscope.cli import running
from hloscope.cli.options import debug_option
from hloscope.model.finding import RuleDoc

if TYPE_CHECKING:
    from hloscope.report.checkups import Checkup


@click.command()
@click.argument("name", required=False)
@click.option("--test", is_flag=True, help="Run the test cases of the plug-ins' rules, or those of NAME.")
@debug_option
def rules(name: str | None, test: bool, debug: bool) -> None:
    """List the rules and the other findings of commands, or print the page of NAME."""
    running.print_text(lambda: _answer(name, test), debug=debug)


def _answer(name: str | None, test: bool) -> tuple[str, int]:
    """The text, and the exit code."""
    from hloscope.app.config import load_project_plugins

    if test:
        return _test_rules(name)
    load_project_plugins(Path.cwd())
    return (_list_rules(), _say_broken()) if name is None else (_format_page(name), EXIT_OK)


def _test_rules(name: str | None) -> tuple[str, int]:
    """The results of the cases of plug-ins' rules as text, and the exit code."""
    from hloscope.app.own_rules import run_cases

    found = run_cases(name)
    lines, code = [], _say_broken()
    for rule, wrong in found.items():
        lines += [f"{rule}: {'failed' if wrong else 'passed'}", *(f"  {words}" for words in wrong)]
        code = max(code, EXIT_BROKEN if wrong else EXIT_OK)
    return "\n".join(lines), code


def _say_broken() -> int:
    """Reports the installed plug-ins that cannot be used; returns the exit code."""
    from hloscope.judge.plugins import list_plugins

    errors = [plugin.error for plugin in list_plugins() if plugin.error is not None]
    for error in errors:
        running.say(str(error))
    return EXIT_COULD_NOT_RUN if errors else EXIT_OK


def _list_rules() -> str:
    from hloscope.report.pages import list_pages, list_pages_by_command

    width = max(map(len, list_pages()))
    lines: list[str] = []
    for command, docs in list_pages_by_command().items():
        lines += [*(["", f"{command}:"] if command else []), *_format_rules(docs, width)]
    return "\n".join([*lines, "", "hloscope rules NAME prints the page of NAME."])


def _format_rules(docs: Iterable[RuleDoc], width: int) -> list[str]:
    ordered = sorted(docs, key=lambda doc: (-doc.severity.rank, doc.name))
    return [f"{doc.name:<{width}}  {doc.severity:<7}  {doc.summary}" for doc in ordered]


def _format_page(name: str) -> str:
    from hloscope.judge.plugins import find_plugin, list_known_rules
    from hloscope.report.pages import find_page

    doc, plugin = find_page(name), find_plugin(name)
    source = [] if plugin is None else ["", f"From the plug-in {plugin.name}, named in {plugin.where}."]
    is_rule = name in [rule.name for rule in list_known_rules()]
    return "\n".join([*_list_page_lines(doc), *source, *(_describe_acceptance(doc) if is_rule else [])])


def _list_page_lines(doc: RuleDoc) -> list[str]:
    lines = [f"{doc.name} ({doc.severity})", "", doc.summary]
    for title, text in doc.sections:
        shown = text[:1].upper() + text[1:]
        lines += ["", title, *(f"  {line}".rstrip() for line in shown.splitlines())]
    if doc.options:
        lines += ["", "Options", *(f"  {name} = {default}: {text}" for name, default, text in doc.options)]
        lines += [f"  Set one: --rule-option {doc.name}.{doc.options[0][0]}=VALUE"]
    return lines


def _describe_acceptance(doc: RuleDoc) -> list[str]:
    return [
        "",
        f"Accept it with a reason: --allow '{doc.name}: REASON', or in a comment on the line that it points to:",
        f"  # hloscope: allow {doc.name}: REASON",
    ]


def _choose_exit_code(found: tuple[Checkup, ...], _options: object) -> int:
    return EXIT_COULD_NOT_RUN if any(checkup.works is False for checkup in found) else EXIT_OK


@click.command()
@running.reports("checkups", _choose_exit_code)
def doctor() -> tuple[Checkup, ...]:
    """Report versions, the TPU compiler, JAX's private parts, the cache and the workers, and which of these work."""
    from hloscope.app import doctor as checkups

    with running.reserve_stdout():
        return checkups.doctor()
