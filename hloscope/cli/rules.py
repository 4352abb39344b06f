"""`hloscope rules`: what is looked for, and the page of each rule."""

from __future__ import annotations

from collections.abc import Iterable

import click

from hloscope.cli import running
from hloscope.findings import RuleDoc


@click.command()
@click.argument("name", required=False)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(name: str | None, debug: bool) -> None:
    """List the rules and what else commands find, or print the page of NAME."""
    running.check_streams()
    running.write_report(running.guarded(lambda: _page(name) if name else _list(), debug=debug), None)


def _list() -> str:
    from hloscope.report.pages import pages, pages_by_command

    width = max(map(len, pages()))
    lines: list[str] = []
    for command, docs in pages_by_command().items():
        lines += [*(["", f"{command}:"] if command else []), *_lines(docs, width)]
    return "\n".join([*lines, "", "hloscope rules NAME prints the page of one."])


def _lines(docs: Iterable[RuleDoc], width: int) -> list[str]:
    ordered = sorted(docs, key=lambda doc: (-doc.severity.rank, doc.name))
    return [f"{doc.name:<{width}}  {doc.severity:<7}  {doc.summary}" for doc in ordered]


def _page(name: str) -> str:
    from hloscope.report.pages import page_named
    from hloscope.rules import RULES

    doc = page_named(name)
    is_rule = name in [rule.name for rule in RULES]
    return "\n".join([*_page_lines(doc), *(_acceptance(doc) if is_rule else [])])


def _page_lines(doc: RuleDoc) -> list[str]:
    lines = [f"{doc.name} ({doc.severity})", "", doc.summary]
    for title, text in doc.sections:
        shown = text[:1].upper() + text[1:]
        lines += ["", title, *(f"  {line}".rstrip() for line in shown.splitlines())]
    if doc.options:
        lines += ["", "Options", *(f"  {name} = {default}: {text}" for name, default, text in doc.options)]
        lines += [f"  Set one: --rule-option {doc.name}.{doc.options[0][0]}=VALUE"]
    return lines


def _acceptance(doc: RuleDoc) -> list[str]:
    return [
        "",
        f"Accept it with a reason: --allow '{doc.name}: REASON', or in a comment on the line that it points at:",
        f"  # hloscope: allow {doc.name}: REASON",
    ]
