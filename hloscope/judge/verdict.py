"""The verdict of a contract: what was expected, what was found, and the shortest line that accepts it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from operator import add

from hloscope.analysis.provenance import render_users_line, short_source
from hloscope.base.results import Brief, group_by
from hloscope.base.units import format_bytes, format_time, pluralize
from hloscope.judge.baselines import format_axes
from hloscope.judge.model import (
    AT_LEAST_OK,
    Contract,
    Expectation,
    Limit,
    Selector,
    format_amount,
    format_clause,
    format_selector,
    round_up,
)
from hloscope.model import Collective
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import REDUCING, Bound

_OFFENDERS_SHOWN = 5
NO_REASON = "not known"
"""The beginning of the text of an unknown reason."""
BOUND_WORDS = {Bound.EXACT: "", Bound.AT_LEAST: "at least ", Bound.AT_MOST: "up to ", Bound.UNKNOWN: "perhaps "}
_SHORT = 6
"""Characters: an amount that is longer is rounded up where it is suggested."""


class BreachKind(StrEnum):
    """Why a contract does not hold; the values name rules."""

    BROKEN = "contract-broken"
    UNDECIDED = "contract-undecided"
    VACUOUS = "contract-vacuous"


@dataclass(frozen=True, slots=True, repr=False)
class Breach(Brief):
    """One way in which a program does not keep to its contract.

    Attributes:
        kind: Broken; or not decidable, because something is not known; or vacuous, because nothing could break it.
        message: One sentence, lower case.
        expected: What the contract says.
        found: What the program does.
        offenders: The collectives that it is about.
        accept: The shortest line of a contract that would accept this; None when none should.
    """

    kind: BreachKind
    message: str
    expected: str
    found: str
    offenders: tuple[Collective, ...] = ()
    accept: str | None = None

    def __str__(self) -> str:
        lines = [f"error[{self.kind}]: {self.message}"]
        lines += [line for moved in self.offenders[:_OFFENDERS_SHOWN] for line in _format_offender(moved)]
        hidden = len(self.offenders) - _OFFENDERS_SHOWN
        lines += [f"      and {pluralize(hidden, 'other place')}"] if hidden > 0 else []
        lines += [f"   = expected: {self.expected}", f"   =    found: {self.found}"]
        lines += [f"   = to accept it: {self.accept}"] if self.accept else []
        return "\n".join(line.replace("\n", " ") for line in lines)  # also where HLO text quotes a line end


def make_idle(message: str, expected: str, found: str) -> Breach:
    """The breach of a contract that nothing could break."""
    return Breach(BreachKind.VACUOUS, message, expected, found)


def make_open(message: str, expected: str, found: str, offenders: Sequence[Collective] = ()) -> Breach:
    """The breach of a contract that cannot be decided, because something is not known well enough."""
    return Breach(BreachKind.UNDECIDED, message, expected, found, tuple(offenders), accept=AT_LEAST_OK)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verdict(Brief):
    """The verdict on whether a program keeps to a contract.

    Attributes:
        target: The program.
        contract: The contract.
        breaches: Every breach; empty when it holds.
        remarks: What the verdict rests on beside the program: the user's word for trip counts, bounds let pass.
    """

    target: str
    contract: Contract
    breaches: tuple[Breach, ...]
    remarks: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """True if the program keeps to the contract."""
        return not self.breaches

    @property
    def broken(self) -> bool:
        """True if the program surely breaks the contract; false as well where that cannot be decided."""
        return any(breach.kind is BreachKind.BROKEN for breach in self.breaches)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The breaches as findings, one for each place where there are places."""
        return tuple(finding for breach in self.breaches for finding in _make_findings(breach))

    def __str__(self) -> str:
        if self.holds:
            head = f"{self.target} keeps to its contract: {self.contract}"
        else:
            head = f"{self.target} breaks its contract in {pluralize(len(self.breaches), 'way')}: {self.contract}"
        return "\n\n".join((head, *map(str, self.breaches), *(f"note: {remark}" for remark in self.remarks)))


def _format_offender(moved: Collective) -> Iterator[str]:
    where = short_source(moved.source) or "source not known"
    taken = f" (of %{moved.source_of})" if moved.source and moved.source_of else ""
    yield f"  --> {where}{taken}: {format_moved(moved)}, %{moved.name} at HLO line {moved.line}{_format_guess(moved)}"
    if moved.why and not moved.why.startswith(NO_REASON):
        yield f"      why: {moved.why}"
    if moved.tried is not None:
        yield f"      tried: {moved.tried}"


def format_moved(moved: Collective) -> str:
    """`2.1 MB payload x 6`, with the time of one and what of it is exposed where they are known."""
    count = f" x {moved.executions:,}" if moved.executions != 1 or moved.executions_bound != "exact" else ""
    bound = "" if moved.executions_bound == "exact" else f" ({moved.executions_bound})"
    time = "" if moved.time_us is None else f", {format_time(moved.time_us)} each"
    exposed = "" if moved.exposed_us is None else f" ({format_time(moved.exposed_us)} exposed)"
    return f"{format_bytes(moved.payload_bytes)} payload{count}{bound}{time}{exposed}"


def _format_guess(moved: Collective) -> str:
    """The remark on guessed axes."""
    return ", mesh axes guessed" if moved.axes_guessed else ""


def _make_findings(breach: Breach) -> Iterator[Finding]:
    said = f"{breach.message} (expected: {breach.expected}; found: {breach.found}"
    fix = None if breach.accept is None else f"to accept it: {breach.accept}"
    found = Finding(rule=breach.kind, severity=Severity.ERROR, message=f"{said})", fix=fix)
    yield from () if breach.offenders else (found,)
    for moved in breach.offenders:
        yield replace(
            found,
            message=f"{said}{_format_guess(moved)})",
            computation=moved.computation,
            instruction=moved.name,
            line=moved.line,
            source=render_users_line(moved.source),
            why=moved.why,
        )


def suggest_expectation(collectives: Sequence[Collective]) -> str:
    """The shortest expectation that takes collectives of one kind and axes: `all-gather@fsdp <= 2.1MB x6`."""
    first = collectives[0]
    sizes = [moved.payload_bytes for moved in collectives]
    largest = None if None in sizes else max(size for size in sizes if size is not None)
    clause = Expectation(
        selector=_select(first),
        max_bytes=None if largest is None else round_up(largest),  # in powers of 1000, as what was found is said
        max_count=sum(moved.executions for moved in collectives),
    )
    return format_clause(clause)


def _select(moved: Collective) -> Selector:
    """The selector of a collective: its kind and axes, and its reduction unless that is a sum."""
    return Selector(kind=moved.kind, axes=moved.axes or None, reduction=_unusual(moved))


def _unusual(moved: Collective) -> str | None:
    return moved.reduction if moved.kind in REDUCING and moved.reduction != "add" else None


def suggest_limit(limit: Limit, found: int) -> str:
    """The limit, raised so far that what was found keeps to it."""
    is_short = len(format_amount(found, limit.units)) <= _SHORT
    return format_clause(replace(limit, most=found if is_short else round_up(found)))


def format_found(collectives: Iterable[Collective]) -> str:
    """`all-gather@fsdp 2.1 MB payload x6, all-reduce@Y 32.8 kB payload x1`; `nothing` for none."""
    words = (
        f"{format_selector(_select(group[0]))} {_format_payload(group)} x{sum(moved.executions for moved in group)}"
        for group in group_by_axes(collectives)
    )
    return ", ".join(words) or "nothing"


def format_group(group: Sequence[Collective]) -> str:
    """`6 all-gathers over fsdp per step, up to 2.1 MB payload each`: collectives of one kind and axes in a sentence."""
    first, count = group[0], sum(moved.executions for moved in group)
    bound = reduce(add, (moved.executions_bound for moved in group), Bound.EXACT)
    each = " each" if count != 1 else ""
    over = format_axes(first) + ("" if _unusual(first) is None else f" by {first.reduction}")
    return f"{BOUND_WORDS[bound]}{pluralize(count, first.kind)} over {over} per step, {_format_payload(group)}{each}"


def _format_payload(group: Sequence[Collective]) -> str:
    sizes = {moved.payload_bytes for moved in group}
    known = [size for size in sizes if size is not None]
    if None in sizes:
        return "unknown payload"
    return f"{'up to ' if len(sizes) > 1 else ''}{format_bytes(max(known))} payload"


def group_by_axes(collectives: Iterable[Collective]) -> list[tuple[Collective, ...]]:
    """The collectives in groups of one kind and one set of axes, in the order of their first."""
    groups = group_by(
        collectives, lambda moved: (moved.kind, moved.axes and tuple(sorted(moved.axes)), _unusual(moved))
    )
    return list(map(tuple, groups.values()))
