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
    """List the rules, or print the page of the rule NAME."""
    running.check_streams()
    running.write_report(running.guarded(lambda: _page(name) if name else _list(), debug=debug), None)


def _list() -> str:
    from hloscope.contracts.pages import PAGES
    from hloscope.rules import RULES
    from hloscope.rules.rule import doc_of

    docs = [doc_of(rule) for rule in RULES]
    width = max(len(doc.name) for doc in (*docs, *PAGES))
    lines = [*_lines(docs, width), "", "Of hloscope check, and of contracts in tests:", *_lines(PAGES, width)]
    return "\n".join([*lines, "", "hloscope rules NAME prints a rule's page."])


def _lines(docs: Iterable[RuleDoc], width: int) -> list[str]:
    ordered = sorted(docs, key=lambda doc: (-doc.severity.rank, doc.name))
    return [f"{doc.name:<{width}}  {doc.severity:<7}  {doc.summary}" for doc in ordered]


def _page(name: str) -> str:
    from hloscope.contracts.pages import PAGES
    from hloscope.rules.rule import doc_of
    from hloscope.rules.selection import find_rule

    of_contracts = next((page for page in PAGES if page.name == name), None)
    if of_contracts is not None:
        return "\n".join(_page_lines(of_contracts))
    doc = doc_of(find_rule(name))
    return "\n".join([*_page_lines(doc), *_acceptance(doc)])


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
