"""Limits on bytes per step, memory and time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

from hloscope.analysis.model import Analysis, Collective, StepTime
from hloscope.analysis.totals import bytes_bound
from hloscope.analysis.vocabulary import Bound
from hloscope.contracts.accepting import accepting_limit
from hloscope.contracts.model import Contract, Limit, Quantity, Selector, format_clause, units_of
from hloscope.contracts.quantities import format_amount
from hloscope.contracts.selecting import Fit, touches
from hloscope.contracts.verdict import Breach, BreachKind
from hloscope.units import format_bytes, format_capacity, format_time

_NOT_PRICED = "the step was not priced, so its time is not known"


def broken_limits(contract: Contract, analysis: Analysis, moving: Sequence[Collective]) -> Iterator[Breach]:
    """The limits that are exceeded, or that cannot be held against what is known."""
    for clause in contract.clauses:
        if isinstance(clause, Limit):
            if clause.quantity in (Quantity.WIRE, Quantity.PAYLOAD):
                yield from _moved(clause, moving, at_least_ok=contract.at_least_ok)
            else:
                yield from _measured(clause, analysis, at_least_ok=contract.at_least_ok)


def _moved(limit: Limit, moving: Sequence[Collective], *, at_least_ok: bool) -> Iterator[Breach]:
    selector = Selector(axes=limit.axes, link=limit.link)
    fits = [(one, touches(selector, part), _bytes(limit, part)) for one in moving for part in _parts(one)]
    surely = [(one, size) for one, fit, size in fits if fit is Fit.YES]
    known = [(size, bytes_bound(one)) for one, size in surely if size is not None]
    total = sum(size for size, _ in known)
    for kind, words in exceeding(known, limit.most, format_bytes):
        yield Breach(
            kind=kind,
            message=f"{words} per step, more than {format_clause(limit)}",
            expected=format_clause(limit),
            found=f"{words} per step",
            offenders=_once(one for one, _ in sorted(surely, key=lambda move: -(move[1] or 0))),
            accept=accepting_limit(limit, total),
        )
    doubtful = [one for one, fit, size in fits if fit is Fit.MAYBE or (fit is Fit.YES and size is None)]
    if doubtful and not at_least_ok:
        yield Breach(
            kind=BreachKind.UNDECIDED,
            message=f"{format_clause(limit)} cannot be decided: bytes or axes are not known",
            expected=format_clause(limit),
            found=f"at least {format_bytes(total)} per step",
            offenders=_once(doubtful),
            accept="at-least-ok",
        )


def exceeding(
    amounts: Sequence[tuple[int, Bound]], most: int, format_amount: Callable[[int], str]
) -> Iterator[tuple[BreachKind, str]]:
    """Whether amounts add up to more than a limit, with words for their sum; nothing where they do not.

    It is not decided where only a branch that may not run, or an upper bound, makes them exceed it.
    """
    total = sum(amount for amount, _ in amounts)
    if total > most:
        certain = sum(amount for amount, bound in amounts if bound in (Bound.EXACT, Bound.AT_LEAST))
        bound = reduce(Bound.__add__, (bound for _, bound in amounts), Bound.EXACT)
        if certain > most and bound is Bound.UNKNOWN:
            yield BreachKind.BROKEN, _bounded(certain, Bound.AT_LEAST, format_amount)
        elif certain > most:
            yield BreachKind.BROKEN, _bounded(total, bound, format_amount)
        else:
            yield BreachKind.UNDECIDED, _bounded(total, bound, format_amount)


def _bounded(amount: int, bound: Bound, format_amount: Callable[[int], str]) -> str:
    """An amount that exceeds a limit; one without any bound is what was counted, and no more than that."""
    surely = {Bound.EXACT: "", Bound.AT_MOST: "up to ", Bound.AT_LEAST: "at least ", Bound.UNKNOWN: "perhaps "}
    return f"{surely[bound]}{format_amount(amount)}"


def _parts(one: Collective) -> tuple[Collective, ...]:
    """The transfers that a collective across slices is made of, each with its own axes and network; else itself."""
    if not one.parts:
        return (one,)
    return tuple(
        replace(
            one,
            kind=part.kind,
            axes=part.axes,
            link=part.link,
            payload_bytes=part.payload_bytes,
            wire_bytes=part.wire_bytes,
            executions=part.executions,
            parts=(),
        )
        for part in one.parts
    )


def _once(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    return tuple({id(one): one for one in collectives}.values())


def _bytes(limit: Limit, one: Collective) -> int | None:
    return one.wire_bytes_per_step if limit.quantity is Quantity.WIRE else one.payload_bytes_per_step


def _measured(limit: Limit, analysis: Analysis, *, at_least_ok: bool) -> Iterator[Breach]:
    found, words = _found(limit, analysis)
    if found is None:
        yield Breach(
            kind=BreachKind.UNDECIDED,
            message=f"{format_clause(limit)} cannot be decided: {words}",
            expected=format_clause(limit),
            found="not known",
        )
    elif found > limit.most:
        amount = format_amount(limit.most, units_of(limit.quantity, share=limit.share))
        yield Breach(
            kind=BreachKind.UNDECIDED if _is_a_ceiling(limit, analysis.time) else BreachKind.BROKEN,
            message=f"{limit.quantity} is {words}, more than {amount}",
            expected=format_clause(limit),
            found=words,
            accept=accepting_limit(limit, found),
        )
    elif limit.quantity is not Quantity.HBM and not at_least_ok and (why := _doubtful_time(analysis.time)):
        yield Breach(
            kind=BreachKind.UNDECIDED,
            message=f"{format_clause(limit)} cannot be decided: {why}",
            expected=format_clause(limit),
            found=f"at least {words}",
            accept="at-least-ok",
        )


def _is_a_ceiling(limit: Limit, time: StepTime | None) -> bool:
    """Whether a step may take less than predicted, because not all of it may run."""
    return limit.quantity is not Quantity.HBM and time is not None and time.bound is Bound.AT_MOST


def _doubtful_time(time: StepTime | None) -> str | None:
    """Why a step may take longer than predicted: a roofline, or something in it not counted or not known; else None."""
    if time is None:
        return None
    if time.basis == "roofline" or time.bound in (Bound.AT_LEAST, Bound.UNKNOWN):
        return "the predicted time is a lower bound"
    if time.rests_on_unknown:
        return f"{time.unknown_operations[0].what} is priced without knowing what it does"
    return None


def _found(limit: Limit, analysis: Analysis) -> tuple[int | None, str]:
    """The quantity in the limit's unit, rounded up, with words for it; None with the reason why it is not known."""
    time = analysis.time
    if limit.quantity is Quantity.HBM:
        peak = analysis.memory.peak_bytes
        return peak, "HLO text does not tell what the compiler allocates" if peak is None else format_capacity(peak)
    if time is None or (limit.share and not time.step_us):
        return None, _NOT_PRICED
    if limit.share:
        share = time.exposed_us / time.step_us
        return _up(share * 1e6), f"{100 * share:.3g}% of {format_time(time.step_us)}"
    micros = time.step_us if limit.quantity is Quantity.TIME else time.exposed_us
    return _up(micros * 1000), format_time(micros)


def _up(amount: float) -> int:
    """Rounded up, but for what floating point adds."""
    return -int(-amount // 1) if amount - int(amount) > 1e-6 else int(amount)
