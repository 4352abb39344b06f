"""The selection of rules to run on an analysis, their options, and the accepted findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hloscope import given
from hloscope.analysis.model import Analysis
from hloscope.analysis.places import NO_SOURCES, NOT_READ, ONLY_UNDER_ROOT, SourceFiles
from hloscope.errors import NotationError, did_you_mean
from hloscope.messages import Command, Either, say
from hloscope.rules.allow import (
    Allow,
    apply_allows,
    find_allows_in_code,
    find_collective_lines,
    find_finding_lines,
    find_unread_files,
    parse_allow,
)
from hloscope.rules.facts import Facts
from hloscope.rules.plugins import describe_error, list_known_rules, report_broken_plugins, run_rule
from hloscope.rules.rule import Rule
from hloscope.rules.unexpected_collective import UnexpectedCollective

_FILES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSelection:
    """The rules that run on an analysis, and the accepted findings; `make_selection` checks the user's input.

    Attributes:
        select: Names of the rules to run; all when empty.
        ignore: Names of rules not to run.
        allows: The accepted findings, with reasons.
        options: Values of rules' options, by `rule.option`.
        sources: The files of the user's code that may be read for allow comments.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    allows: tuple[Allow, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    sources: SourceFiles = NO_SOURCES

    def of_target(self, allow: Sequence[str], rule_options: Mapping[str, Any]) -> RuleSelection:
        """This selection with the target's own settings; options given here take precedence.

        Raises:
            NotationError: A setting of the target is invalid.
        """
        own = make_selection(allow=allow, rule_options=rule_options, where="the target's allow")
        return replace(self, allows=(*self.allows, *own.allows), options={**own.options, **self.options})

    def rules(self) -> list[Rule]:
        """The rules to run, with their options."""
        wanted = (rule for rule in list_known_rules() if not self.select or rule.name in self.select)
        configured = (self._configured(rule) for rule in wanted if rule.name not in self.ignore)
        return [rule for rule in configured if getattr(rule, "active", True)]

    def _configured(self, rule: Rule) -> Rule:
        """The rule with its options; a rule that is silent by default becomes active if selected."""
        defaults = find_option_defaults(rule)
        named = {option: f"{rule.name}.{option}" for option in defaults}
        values = {option: self.options[name] for option, name in named.items() if name in self.options}
        says_what_to_expect = isinstance(rule, UnexpectedCollective) and any(
            allow.rule is None for allow in self.allows
        )
        if "active" in defaults and (rule.name in self.select or says_what_to_expect):
            values["active"] = True
        try:
            return replace(rule, **values) if values else rule  # type: ignore[type-var]
        except Exception as error:  # its own __post_init__
            raise NotationError(f"the rule {rule.name} rejects its options", why=describe_error(error)) from error


DEFAULT_SELECTION = RuleSelection()


def make_selection(
    *,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    allow: str | Sequence[str] = (),
    rule_options: Mapping[str, Any] | None = None,
    source_root: str | Path | None = None,
    where: str = "allow",
) -> RuleSelection:
    """Checks the user's settings for rules.

    Args:
        select: Names of the rules to run; all when empty.
        ignore: Names of rules not to run.
        allow: The accepted findings with reasons, in the notation of `hloscope.rules.allow`.
        rule_options: Values by `rule.option`, such as `{"small-collectives.min_collectives": 8}`.
        source_root: The folder in which files that HLO text names may be read.
        where: The place of the allows, for messages.

    Raises:
        NotationError: There is no such rule or option, a value is invalid, or an allow cannot be parsed.
    """
    select = given.texts("select", select, example='select="exposed-collective"')
    ignore = given.texts("ignore", ignore, example='ignore="uneven-sharding"')
    allow = given.texts("allow", allow, example='allow="all-gather@X: weights of FSDP"')
    example = 'rule_options={"small-collectives.min_collectives": 8}'
    options = given.mapping("rule_options", rule_options, example=example)
    root = given.path("source_root", source_root, example='source_root="src"')
    for name in (*select, *ignore):
        find_rule(name)
    names = [rule.name for rule in list_known_rules()]
    return RuleSelection(
        select=select,
        ignore=ignore,
        allows=tuple(_parse_narrow_allow(text, names, where) for text in allow),
        options=dict(_parse_option(name, value) for name, value in options.items()),
        sources=NO_SOURCES if root is None else SourceFiles(root=root),
    )


def _parse_narrow_allow(text: str, known_rules: Sequence[str], where: str) -> Allow:
    """Parses an allow for something in particular.

    Raises:
        NotationError: It cannot be parsed, or accepts every finding.
    """
    found = parse_allow(text, known_rules=known_rules, where=where)
    if found.rule is None and found.selector.is_everything:
        fix = "name a rule or a kind of collective, such as 'all-gather@X: weights of FSDP'"
        raise NotationError(f"{where} {text!r} accepts whatever is found, so nothing could fail", fix=fix)
    return found


def apply_rules(facts: Facts, selection: RuleSelection = DEFAULT_SELECTION) -> Analysis:
    """The analysis of the facts with the findings of the chosen rules, most severe first, accepted ones last.

    Raises:
        NotationError: An allow in the user's code cannot be parsed.
    """
    analysis, sources = facts.analysis, selection.sources
    names = [rule.name for rule in list_known_rules()]
    lines = find_collective_lines(analysis)
    allows = (*selection.allows, *find_allows_in_code(lines, known_rules=names, sources=sources))
    rules = replace(selection, allows=allows).rules()
    found = [*report_broken_plugins(), *(finding for rule in rules for finding in run_rule(rule, facts))]
    pointed_at = find_finding_lines(found)
    others = find_allows_in_code(pointed_at - lines, known_rules=names, sources=sources)
    marked = apply_allows(found, (*allows, *others), analysis)
    ordered = sorted(marked, key=lambda finding: (finding.allowed is not None, -finding.severity.rank))
    notes = (*analysis.notes, *_note_unread(find_unread_files(pointed_at, sources)))
    return replace(analysis, findings=tuple(ordered), notes=notes)


def _note_unread(files: Sequence[str]) -> Iterator[str]:
    """The note about files of the user's code that were not read, so that comments in them have no effect."""
    if files:
        shown = ", ".join(files[:_FILES_SHOWN])
        more = f" and {len(files) - _FILES_SHOWN:,} more" if len(files) > _FILES_SHOWN else ""
        yield say(f"{NOT_READ}{shown}{more}: ", ONLY_UNDER_ROOT)


def find_rule(name: str) -> Rule:
    """Finds the rule with a name.

    Raises:
        NotationError: There is no such rule.
    """
    by_name = {rule.name: rule for rule in list_known_rules()}
    if name in by_name:
        return by_name[name]
    fix = did_you_mean(name, by_name, say(Command("rules"), " lists them"))
    raise NotationError(f"there is no rule {name!r}", fix=fix)


def find_option_defaults(rule: Rule) -> dict[str, Any]:
    """The options of a rule and their values."""
    return {item.name: getattr(rule, item.name) for item in fields(rule)}  # type: ignore[arg-type]


def _parse_option(name: str, value: Any) -> tuple[str, Any]:
    """The name of an option, such as `small-collectives.min_collectives`, and a value of its type.

    Raises:
        NotationError: There is no such rule or option, or the value is invalid.
    """
    rule_name, dot, written = name.partition(".")
    if not dot:
        raise NotationError(
            f"{name!r} is not an option of a rule",
            fix=say(
                "write RULE.OPTION, as ", Either("hloscope rules RULE", "hloscope.rules.page(RULE)"), " lists them"
            ),
        )
    known = find_option_defaults(find_rule(rule_name))
    option = written.replace("-", "_")
    if option not in known:
        raise NotationError(
            f"the rule {rule_name} has no option {written!r}",
            fix=did_you_mean(option, known, f"it has {', '.join(known)}" if known else "it has none"),
        )
    return f"{rule_name}.{option}", _check_value(name, value, known[option])


def _check_value(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, bool):
        fits, wanted = isinstance(value, bool), "true or false"
    elif isinstance(default, str):
        fits, wanted = isinstance(value, str), "text"
    elif isinstance(default, int):
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        fits, wanted = (
            isinstance(value, int) and not isinstance(value, bool) and value >= 0,
            "a whole number, 0 or more",
        )
    else:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
        wanted = "a number, 0 or more"
    if not fits:
        raise NotationError(f"{name} must be {wanted}, not {value!r}", fix=f"its default is {str(default).lower()}")
    return value
