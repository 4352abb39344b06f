"""Contracts in Python: `only(all_reduce("Y", max_bytes="32 KiB"), all_gather("X")) & hbm(max="14 GiB")`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import partial

from hloscope.analysis.vocabulary import Kind, Link
from hloscope.contracts.model import Ban, Clause, Contract, Expectation, Limit, Quantity, Selector, Trips
from hloscope.contracts.quantities import BYTE_UNITS, MILLIONTHS, NANOSECONDS, WHOLE, Units, parse_amount
from hloscope.errors import NotationError, did_you_mean

_AXIS = re.compile(r"[^\s\"'(),]+(?::\(\d+\)\d+)?")
_LISTED_AXIS = re.compile(r"[^\"'(),\n]+(?::\(\d+\)\d+)?")
"""One of several, which may hold blanks: alone, `X Y` is rather a mistake for two axes."""

Axes = str | tuple[str, ...] | None
Amount = str | int


def collective(
    kind: str,
    axes: Axes = None,
    *,
    max_bytes: Amount | None = None,
    max_bytes_per_step: Amount | None = None,
    count: int | None = None,
    by: str | None = None,
    source: str | None = None,
    link: str | None = None,
) -> Contract:
    """Expects a collective: `all-reduce@Y <= 32KiB x2`.

    Args:
        kind: A kind, or a pattern such as `all-*`.
        axes: A mesh axis, or several as a tuple; None for whatever axes.
        max_bytes: Most payload bytes of each on one device, per execution: `32 KiB`, or a number.
        max_bytes_per_step: Most payload bytes of all of them together, per step; instead of `max_bytes`.
        count: Most executions of all of them together, per step.
        by: The operation by which it reduces: `add`, `maximum`, …; None for any.
        source: The end of a file's path, such as `model/attention.py` or `moe.py:40`.
        link: `ici` or `dcn`.

    Raises:
        NotationError: One of them is not written as it must be.
    """
    if max_bytes is not None and max_bytes_per_step is not None:
        raise NotationError("max_bytes and max_bytes_per_step are both given", fix="keep one of them")
    clause = Expectation(
        selector=selector(kind, axes, source, link, by=by),
        max_bytes=_amount("max_bytes", max_bytes, BYTE_UNITS),
        max_bytes_per_step=_amount("max_bytes_per_step", max_bytes_per_step, BYTE_UNITS),
        max_count=None if count is None else _count("count", count, least=0),
    )
    return _just(clause)


all_gather = partial(collective, Kind.ALL_GATHER)
all_reduce = partial(collective, Kind.ALL_REDUCE)
reduce_scatter = partial(collective, Kind.REDUCE_SCATTER)
all_to_all = partial(collective, Kind.ALL_TO_ALL)
ragged_all_to_all = partial(collective, Kind.RAGGED_ALL_TO_ALL)
collective_permute = partial(collective, Kind.COLLECTIVE_PERMUTE)
collective_broadcast = partial(collective, Kind.COLLECTIVE_BROADCAST)
"""Each expects a collective of one kind, and takes what `collective` takes after it."""


def only(*contracts: Contract, equivalent: bool = False, at_least_ok: bool = False) -> Contract:
    """All of these contracts, and no other collective than they expect.

    Args:
        contracts: What is expected.
        equivalent: Whether spellings that the compiler may exchange are the same.
        at_least_ok: Whether the program may hold what is not understood.

    Raises:
        NotationError: Two of them expect the same collectives, and say different things.
    """
    joined = Contract(closed=True, equivalent=equivalent, at_least_ok=at_least_ok)
    for contract in contracts:
        joined &= contract
    return joined


def none() -> Contract:
    """No collective at all."""
    return Contract(closed=True)


def no(
    kind: str, axes: Axes = None, *, by: str | None = None, source: str | None = None, link: str | None = None
) -> Contract:
    """No such collective: `no all-gather@fsdp in "model/attention.py"`.

    Args:
        kind: A kind, or a pattern such as `all-*`.
        axes: What runs over these axes, alone or with others; None for whatever axes.
        by: The operation by which it reduces; None for any, and for what reduces nothing.
        source: The end of a file's path.
        link: `ici` or `dcn`.

    Raises:
        NotationError: There is no such kind, operation or link, or a name cannot be one.
    """
    return _just(Ban(selector=selector(kind, axes, source, link, by=by)))


def at_most(
    *,
    wire_bytes: Amount | None = None,
    payload_bytes: Amount | None = None,
    axis: Axes = None,
    link: str | None = None,
) -> Contract:
    """A limit on the bytes per step of one device: `wire@fsdp <= 6MB/step`.

    Args:
        wire_bytes: Most bytes sent: `6 MB`, or a number.
        payload_bytes: Most payload bytes.
        axis: What runs over this axis, or these, alone or with others; None for everything.
        link: `ici` or `dcn`.

    Raises:
        NotationError: Nothing is limited, or an amount is not written as it must be.
    """
    given = ((Quantity.WIRE, "wire_bytes", wire_bytes), (Quantity.PAYLOAD, "payload_bytes", payload_bytes))
    clauses = [
        Limit(quantity=quantity, most=most, selector=Selector(axes=_axes(axis), link=_link(link)))
        for quantity, name, amount in given
        if (most := _amount(name, amount, BYTE_UNITS)) is not None
    ]
    if not clauses:
        raise NotationError("at_most limits nothing", fix='write at_most(wire_bytes="6 MB", axis="fsdp")')
    return Contract(clauses=tuple(clauses))


def hbm(*, max: Amount) -> Contract:
    """A limit on what is live at once in one device's memory: `hbm <= 14GiB`."""
    return _limit(Quantity.HBM, "hbm", max, BYTE_UNITS)


def time(*, max: str) -> Contract:
    """A limit on the predicted time of a step: `time <= 1.2ms`."""
    return _limit(Quantity.TIME, "time", max, NANOSECONDS)


def exposed(*, max: str) -> Contract:
    """A limit on the time that a step only waits for communication, or on its share: `exposed <= 5%`."""
    if isinstance(max, str) and max.rstrip().endswith("%"):
        most = parse_amount(max, MILLIONTHS, where="exposed")
        if most >= WHOLE:
            raise NotationError(f"{max} of a step cannot be exceeded", fix="give less than 100%")
        return _just(Limit(quantity=Quantity.EXPOSED, most=most, share=True))
    return _limit(Quantity.EXPOSED, "exposed", max, NANOSECONDS)


def trips(source: str, count: int) -> Contract:
    """The user's word for how often a loop runs: `trips "moe.py:40" = 16`."""
    return _just(Trips(source=_place(source), count=_count("trips", count, least=1)))


def _count(name: str, count: object, *, least: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        raise NotationError(f"{name} is {count!r}", fix=f"give a whole number of executions, {least} or more")
    return count


def _just(clause: Clause) -> Contract:
    return Contract(clauses=(clause,))


def _limit(quantity: Quantity, name: str, amount: Amount, units: Units) -> Contract:
    return _just(Limit(quantity=quantity, most=_amount(name, amount, units) or 0))


def selector(kind: str, axes: Axes, source: str | None, link: str | None, *, by: str | None = None) -> Selector:
    """Which collectives are spoken of.

    Raises:
        NotationError: There is no such kind, or operation of it, or one of the others cannot be read.
    """
    if not isinstance(kind, str) or not any(fnmatchcase(known, kind) for known in Kind):
        raise NotationError(
            f"there is no kind of collective {kind!r}",
            fix=did_you_mean(
                str(kind).replace("_", "-"), Kind, f"use one of {', '.join(Kind)}, or a pattern such as all-*"
            ),
        )
    place = None if source is None else _place(source)
    return Selector(kind=str(kind), axes=_axes(axes), reduction=by, link=_link(link), source=place)


def _axes(axes: Axes) -> tuple[str, ...] | None:
    if axes is None:
        return None
    named = (axes,) if isinstance(axes, str) else tuple(axes) if isinstance(axes, Iterable) else ()
    form = _AXIS if isinstance(axes, str) else _LISTED_AXIS
    if not named or not all(isinstance(axis, str) and form.fullmatch(axis) for axis in named):
        raise NotationError(f"axes cannot be {axes!r}", fix='write "X", or ("X", "Y") for their product')
    return named


def _place(source: object) -> str:
    if not isinstance(source, str) or not source.strip() or "\n" in source or {'"', "'"} <= set(source):
        raise NotationError(f"{source!r} is not a place in the code", fix='write "model/attention.py" or "moe.py:40"')
    return source


def _link(link: str | None) -> Link | None:
    if link is None:
        return None
    if link not in (Link.ICI, Link.DCN):
        raise NotationError(f"there is no link {link!r}", fix="use ici or dcn")
    return Link(link)


def _amount(name: str, amount: Amount | None, units: Units) -> int | None:
    if amount is None:
        return None
    if isinstance(amount, str):
        return parse_amount(amount, units, where=name)
    if units is not BYTE_UNITS:
        raise NotationError(f"{name} is limited by {amount!r}, without a unit", fix=f'write {name}(max="1.2 ms")')
    if isinstance(amount, bool) or not isinstance(amount, int) or amount < 0:
        raise NotationError(f"{name} is {amount!r}", fix=f'write {name}="32 KiB", or a whole number of bytes')
    return amount
