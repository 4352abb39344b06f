"""Every page that `hloscope rules NAME` prints and SARIF carries: one for each finding of any command."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from hloscope.base.errors import Command, NotationError, did_you_mean, say
from hloscope.judge import checks as of_contracts
from hloscope.judge.plugins import FAILED_PAGE, list_plugins
from hloscope.judge.rule import read_rule_doc
from hloscope.judge.rules import RULES
from hloscope.judge.selection import UNUSED_PAGE
from hloscope.model.finding import RuleDoc
from hloscope.verification import judging as of_verification


@cache
def _read_own_pages() -> tuple[RuleDoc, ...]:
    return (*map(read_rule_doc, RULES), UNUSED_PAGE, FAILED_PAGE)


def list_pages_by_command() -> Mapping[str, tuple[RuleDoc, ...]]:
    """The pages, by what finds it: nothing for hloscope's own rules, which every command runs."""
    return {
        "": _read_own_pages(),
        **{
            f"From the plug-in {plugin.name} ({plugin.where})": tuple(map(read_rule_doc, plugin.rules))
            for plugin in list_plugins()
            if plugin.rules
        },
        "From hloscope check and contracts in tests": of_contracts.PAGES,
        "From hloscope verify": of_verification.PAGES,
    }


def list_pages() -> Mapping[str, RuleDoc]:
    """The pages by name."""
    return {page.name: page for part in list_pages_by_command().values() for page in part}


def find_page(name: str) -> RuleDoc:
    """The page of a finding.

    Raises:
        NotationError: No command finds anything of that name.
    """
    known = list_pages()
    if name not in known:
        raise NotationError(
            f"there is no rule {name!r}", fix=did_you_mean(name, known, say(Command("rules"), " lists them"))
        )
    return known[name]
