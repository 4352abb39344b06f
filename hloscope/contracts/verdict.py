"""What evaluating a contract says: each breach with what was expected beside what was found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from hloscope.analysis.model import Collective
from hloscope.analysis.places import short_source, users_line
from hloscope.contracts.model import Contract
from hloscope.findings import Finding, Severity
from hloscope.units import format_bytes, format_time, plural

_OFFENDERS_SHOWN = 5
_NO_REASON = "not known"


class BreachKind(StrEnum):
    """Why a contract does not hold; the values name rules."""

    BROKEN = "contract-broken"
    UNDECIDED = "contract-undecided"
    VACUOUS = "contract-vacuous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
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
        lines += [line for one in self.offenders[:_OFFENDERS_SHOWN] for line in _offender_lines(one)]
        hidden = len(self.offenders) - _OFFENDERS_SHOWN
        lines += [f"      and {plural(hidden, 'other place')}"] if hidden > 0 else []
        lines += [f"   = expected: {self.expected}", f"   =    found: {self.found}"]
        lines += [f"   = to accept it: {self.accept}"] if self.accept else []
        return "\n".join(line.replace("\n", " ") for line in lines)  # also where HLO text quotes a line end


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a program keeps to a contract.

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
        """Whether the program keeps to the contract."""
        return not self.breaches

    @property
    def broken(self) -> bool:
        """Whether the program surely breaks the contract; false as well where that cannot be decided."""
        return any(breach.kind is BreachKind.BROKEN for breach in self.breaches)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The breaches as findings, one for each place where there are places."""
        return tuple(finding for breach in self.breaches for finding in _findings(breach))

    def __str__(self) -> str:
        if self.holds:
            head = f"{self.target} keeps to its contract: {self.contract}"
        else:
            head = f"{self.target} breaks its contract in {plural(len(self.breaches), 'way')}: {self.contract}"
        return "\n\n".join((head, *map(str, self.breaches), *(f"note: {remark}" for remark in self.remarks)))


def _offender_lines(one: Collective) -> Iterator[str]:
    where = short_source(one.source) or "source not known"
    taken = f" (of %{one.source_of})" if one.source and one.source_of else ""
    yield f"  --> {where}{taken}: {amount_words(one)}, %{one.name} at HLO line {one.line}{_guess(one)}"
    if one.why and not one.why.startswith(_NO_REASON):
        yield f"      why: {one.why}"


def amount_words(one: Collective) -> str:
    """`2.1 MB x 6`, with the time of one and what of it is exposed where they are known."""
    count = f" x {one.executions:,}" if one.executions != 1 or one.executions_bound != "exact" else ""
    bound = "" if one.executions_bound == "exact" else f" ({one.executions_bound})"
    time = "" if one.time_us is None else f", {format_time(one.time_us)} each"
    exposed = "" if one.exposed_us is None else f" ({format_time(one.exposed_us)} exposed)"
    return f"{format_bytes(one.payload_bytes)}{count}{bound}{time}{exposed}"


def _guess(one: Collective) -> str:
    """What stands beside axes that are not known for certain."""
    return ", mesh axes guessed" if one.axes_guessed else ""


def _findings(breach: Breach) -> Iterator[Finding]:
    said = f"{breach.message} (expected: {breach.expected}; found: {breach.found}"
    fix = None if breach.accept is None else f"to accept it: {breach.accept}"
    if not breach.offenders:
        yield Finding(rule=breach.kind, severity=Severity.ERROR, message=f"{said})", fix=fix)
    for one in breach.offenders:
        yield Finding(
            rule=breach.kind,
            severity=Severity.ERROR,
            message=f"{said}{_guess(one)})",
            computation=one.computation,
            instruction=one.name,
            line=one.line,
            source=users_line(one.source),
            why=one.why,
            fix=fix,
        )
