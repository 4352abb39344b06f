"""The selection of rules to run on an analysis, their options, and the accepted findings."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hloscope.analysis.provenance import NO_SOURCES, NOT_READ, ONLY_UNDER_ROOT, SourceFiles, split_place
from hloscope.base import calls
from hloscope.base.environment import format_place
from hloscope.base.errors import Command, Either, NotationError, did_you_mean, say
from hloscope.judge.model import Selector, find_missing_axis, format_selector, is_at, is_exactly
from hloscope.judge.plugins import describe_error, list_known_rules, report_broken_plugins, run_rule
from hloscope.judge.rule import SHARE, Facts, Rule
from hloscope.judge.rules.unexpected_collective import UnexpectedCollective
from hloscope.model import Analysis, Collective, SourceFrame
from hloscope.model.finding import UNUSED_ALLOW, Finding, Severity, page_of_finding
from hloscope.model.vocabulary import CompileStage, Kind

# ---- accepted findings, each with a reason: for a whole target, or in a comment on the line of code
#
# `small-collectives: metrics, once per step` accepts the findings of one rule, `all-gather@X: weights of FSDP` accepts
# collectives of a kind over axes, for all rules. Both can be narrowed like a contract's clauses: a rule over axes,
# `collective-in-loop@X`, and either by ` over dcn` and ` in FILE` or ` in FILE:LINE`. In code:
#
#     metrics = jax.lax.psum(loss, "X")  # hloscope: allow small-collectives: metrics, once per step

UNUSED_PAGE = page_of_finding(
    UNUSED_ALLOW,
    "An `allow` that matches nothing.",
    "reports an `allow`, on the command line, in the targets file or in a comment, that matches no finding.",
    "what it accepted no longer exists, and something new that matches it would be accepted unnoticed.",
    "`# hloscope: allow small-collectives: once per step`, above a sum that is now combined with others.",
    "remove it.",
    severity=Severity.NOTE,
)

_FORM = re.compile(r"(?P<subject>(?P<what>[\w*?-]+).*?)\s*:(?![\d(])\s*(?P<reason>\S.*)", re.DOTALL)
_COMMENT = re.compile(r"#\s*hloscope:\s*allow\s+(?P<text>.+)$")
CodeLine = tuple[str, int]
"""A file and a line, counted from 1."""

_HOW_TO_WRITE = "write RULE: REASON or KIND@AXES: REASON, such as 'all-gather@X: weights of FSDP'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow:
    """One accepted thing, with the reason.

    Attributes:
        rule: The rule whose findings are accepted; None for those of all rules.
        selector: The collectives that they are about.
        reason: The user's words.
        where: The place where the user wrote it.
    """

    rule: str | None
    selector: Selector
    reason: str
    where: str

    def __str__(self) -> str:
        words = format_selector(replace(self.selector, source=None))
        return words if self.rule is None else f"{self.rule}{words.removeprefix('*')}"


def parse_allow(text: str, *, known_rules: Iterable[str], where: str = "--allow") -> Allow:
    """Parses `RULE: REASON` or `KIND@AXES in FILE:LINE: REASON`.

    Raises:
        NotationError: There is no reason, or neither a rule nor a kind has that name.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise NotationError(f"{where} {text!r} does not say what is allowed and why", fix=_HOW_TO_WRITE)
    subject, what, rules = match["subject"], match["what"], tuple(known_rules)
    rule = what if what in rules else None
    if rule is None and what not in set(Kind) and not {"*", "?"} & set(what):
        fix = did_you_mean(what, (*rules, *Kind), say(Command("rules"), " lists them"))
        raise NotationError(f"{where}: {what!r} is neither a rule nor a kind of collective", fix=fix)
    from hloscope.judge.notation import parse_selector

    selector = parse_selector(subject if rule is None else f"*{subject.removeprefix(rule)}", where=where)
    return Allow(rule=rule, selector=selector, reason=match["reason"].strip(), where=where)


def find_allows_in_code(
    lines: Iterable[CodeLine], *, known_rules: Sequence[str], sources: SourceFiles
) -> Iterator[Allow]:
    """The allow comments on lines of the user's code, or on the line above, in the files that may be read.

    Raises:
        NotationError: A comment begins like one of them and cannot be parsed.
    """
    for file, line in sorted(lines):
        above = (sources.line(file, line - 1) or "").strip() if line > 1 else ""
        lines_to_read = (sources.line(file, line) or "", above if above.startswith("#") else "")
        for comment in filter(None, map(_COMMENT.search, lines_to_read)):
            read = parse_allow(comment["text"], known_rules=known_rules, where=format_place(f"{file}:{line}"))
            yield replace(read, selector=replace(read.selector, source=f"{glob.escape(file)}:{line}"))


def apply_allows(findings: Iterable[Finding], allows: Sequence[Allow], analysis: Analysis) -> tuple[Finding, ...]:
    """Marks the accepted findings, and adds a note for each allow that matches nothing.

    On a program that is only scheduled, of which rules on times find nothing, the note is accepted itself.
    """
    collectives = {(collective.computation, collective.name): collective for collective in analysis.collectives}
    used: set[Allow] = set()
    marked = []
    for finding in findings:
        about = collectives.get((finding.computation or "", finding.instruction or ""))
        fitting = [allow for allow in allows if _fits(allow, finding, about)]
        used.update(fitting)
        marked.append(replace(finding, allowed=fitting[0].reason) if fitting else finding)
    is_judged = analysis.stage is not CompileStage.SCHEDULED
    axes = analysis.collectives.mesh_axes
    unused = (_make_unused_finding(allow, axes, is_judged=is_judged) for allow in allows if allow not in used)
    return (*marked, *unused)


def _fits(allow: Allow, finding: Finding, about: Collective | None) -> bool:
    if allow.rule not in (None, finding.rule):
        return False
    if about is not None:
        return is_exactly(allow.selector, about)
    speaks_of_collectives = allow.rule is None or allow.selector.axes is not None or allow.selector.link is not None
    file, line = split_place(finding.source or "")
    place = allow.selector.source
    is_there = place is None or (line is not None and is_at(place, SourceFrame(file=file, line=line)))
    return is_there and not speaks_of_collectives


def _make_unused_finding(allow: Allow, mesh_axes: Sequence[str] | None, *, is_judged: bool) -> Finding:
    missing = find_missing_axis(allow.selector, mesh_axes)
    but, fix = ("but it matches nothing", "remove it") if is_judged else ("and rules on times have not run", None)
    if missing is not None:
        but, fix = f"but {missing[0]}", missing[1]
    return Finding(
        rule=UNUSED_ALLOW,
        severity=Severity.NOTE,
        message=f"{allow.where} allows {allow}, {but}: {allow.reason}",
        fix=fix,
        allowed=None if is_judged or missing is not None else allow.reason,
    )


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
        configured = (self._configure(rule) for rule in wanted if rule.name not in self.ignore)
        return [rule for rule in configured if getattr(rule, "active", True)]

    def _configure(self, rule: Rule) -> Rule:
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
        allow: The accepted findings with reasons, in the notation of `hloscope.judge.selection`.
        rule_options: Values by `rule.option`, such as `{"small-collectives.min_collectives": 8}`.
        source_root: The folder in which files that HLO text names may be read.
        where: The place of the allows, for messages.

    Raises:
        NotationError: There is no such rule or option, a value is invalid, or an allow cannot be parsed.
    """
    select = calls.texts("select", select, example='select="exposed-collective"')
    ignore = calls.texts("ignore", ignore, example='ignore="uneven-sharding"')
    allow = calls.texts("allow", allow, example='allow="all-gather@X: weights of FSDP"')
    example = 'rule_options={"small-collectives.min_collectives": 8}'
    options = calls.mapping("rule_options", rule_options, example=example)
    root = calls.path("source_root", source_root, example='source_root="src"')
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
    lines = {(frame.file, frame.line) for collective in analysis.collectives for frame in collective.source}
    allows = (*selection.allows, *find_allows_in_code(lines, known_rules=names, sources=sources))
    rules = replace(selection, allows=allows).rules()
    found = [*report_broken_plugins(), *(finding for rule in rules for finding in run_rule(rule, facts))]
    places = (split_place(finding.source) for finding in found if finding.source is not None)
    pointed_at = {(file, line) for file, line in places if line is not None}
    others = find_allows_in_code(pointed_at - lines, known_rules=names, sources=sources)
    marked = apply_allows(found, (*allows, *others), analysis)
    ordered = sorted(marked, key=lambda finding: (finding.allowed is not None, -finding.severity.rank))
    return replace(analysis, findings=tuple(ordered), notes=(*analysis.notes, *_note_unread(pointed_at, sources)))


def _note_unread(lines: Iterable[CodeLine], sources: SourceFiles) -> Iterator[str]:
    """The note about files of the user's code that may not be read, so that comments in them have no effect."""
    files = list(dict.fromkeys(file for file, line in sorted(lines) if sources.line(file, line) is None))
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
    rule = find_rule(rule_name)
    known = find_option_defaults(rule)
    option = written.replace("-", "_")
    if option not in known:
        raise NotationError(
            f"the rule {rule_name} has no option {written!r}",
            fix=did_you_mean(option, known, f"it has {', '.join(known)}" if known else "it has none"),
        )
    shares = [item.name for item in fields(rule) if SHARE.items() <= item.metadata.items()]  # type: ignore[arg-type]
    return f"{rule_name}.{option}", _check_value(name, value, known[option], is_share=option in shares)


def _check_value(name: str, value: Any, default: Any, *, is_share: bool) -> Any:
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
        if is_share:
            fits, wanted = fits and value <= 1, "a share, from 0 to 1"
    if not fits:
        raise NotationError(f"{name} must be {wanted}, not {value!r}", fix=f"its default is {str(default).lower()}")
    return value
