"""Contracts in Python: `only(all_reduce("Y", max_bytes="32 KiB"), all_gather("X")) & hbm(max="14 GiB")`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from math import inf
from typing import Concatenate, ParamSpec

from hloscope.base.calls import format_value, front_door
from hloscope.base.errors import NotationError, WrongCallError, did_you_mean
from hloscope.judge.model import (
    BYTE_UNITS,
    FACTOR,
    MILLIONTHS,
    NANOSECONDS,
    WHOLE,
    Ban,
    Clause,
    Contract,
    Expectation,
    Limit,
    Quantity,
    Selector,
    Trips,
    Units,
    find_matching,
    parse_amount,
)
from hloscope.model.collectives import Collective, Collectives
from hloscope.model.vocabulary import Kind, Link

_AXIS = re.compile(r"[^\s\"'(),]+(?::\(\d+\)\d+)?")
_LISTED_AXIS = re.compile(r"[^\"'(),\n]+(?::\(\d+\)\d+)?")
"""One of several, which may hold blanks: alone, `X Y` is rather a mistake for two axes."""

P = ParamSpec("P")
Axes = str | tuple[str, ...] | None
Amount = str | int


@front_door
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
        kind: Kind of collective, or a pattern such as `all-*`.
        axes: A mesh axis, or several as a tuple; None for any axes.
        max_bytes: Maximum payload bytes of each collective on one device, per execution: a number
            or `32 KiB`.
        max_bytes_per_step: Maximum total payload bytes on one device, per step; instead of `max_bytes`.
        count: Maximum total executions, per step.
        by: The operation by which it reduces: `add`, `maximum`, …; None for any.
        source: The end of a file's path, such as `model/attention.py` or `moe.py:40`.
        link: `ici` or `dcn`.

    Raises:
        NotationError: An argument is invalid.
    """
    if max_bytes is not None and max_bytes_per_step is not None:
        raise NotationError("max_bytes and max_bytes_per_step are both given", fix="keep one of them")
    clause = Expectation(
        selector=selector(kind, axes, source, link, by=by),
        max_bytes=_check_amount("max_bytes", max_bytes, BYTE_UNITS),
        max_bytes_per_step=_check_amount("max_bytes_per_step", max_bytes_per_step, BYTE_UNITS),
        max_count=None if count is None else _check_count("count", count, least=0),
    )
    return _make_contract(clause)


def _fix_kind(expect: Callable[Concatenate[str, P], Contract], kind: Kind) -> Callable[P, Contract]:
    """The function that expects one kind of collective, under the name of that kind."""

    def expected(*args: P.args, **kwargs: P.kwargs) -> Contract:
        return expect(kind, *args, **kwargs)

    signature = inspect.signature(expect)
    _, *rest = signature.parameters.values()
    expected.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    expected.__name__ = expected.__qualname__ = kind.replace("-", "_")
    expected.__doc__ = f"An expected {kind}; the arguments are those of `collective` after `kind`."
    return front_door(expected)


all_gather = _fix_kind(collective, Kind.ALL_GATHER)
all_reduce = _fix_kind(collective, Kind.ALL_REDUCE)
reduce_scatter = _fix_kind(collective, Kind.REDUCE_SCATTER)
all_to_all = _fix_kind(collective, Kind.ALL_TO_ALL)
ragged_all_to_all = _fix_kind(collective, Kind.RAGGED_ALL_TO_ALL)
collective_permute = _fix_kind(collective, Kind.COLLECTIVE_PERMUTE)
collective_broadcast = _fix_kind(collective, Kind.COLLECTIVE_BROADCAST)


@front_door
def only(*contracts: Contract, equivalent: bool = False, at_least_ok: bool = False) -> Contract:
    """Combines contracts, and forbids all collectives that they do not expect.

    Args:
        contracts: The contracts to combine.
        equivalent: Whether spellings that the compiler may exchange count as the same.
        at_least_ok: Whether the program may contain parts that are not understood.

    Raises:
        NotationError: Two contracts expect the same collectives with different limits.
        WrongCallError: One of them is not a contract.
    """
    joined = Contract(closed=True, equivalent=equivalent, at_least_ok=at_least_ok)
    for contract in contracts:
        if not isinstance(contract, Contract):
            raise WrongCallError(
                f"only takes contracts, not {format_value(contract)}",
                fix='write only(all_reduce("X"), hbm(max="14 GiB"))',
            )
        joined &= contract
    return joined


@front_door
def none() -> Contract:
    """Forbids all collectives."""
    return Contract(closed=True)


@front_door
def no(
    kind: str, axes: Axes = None, *, by: str | None = None, source: str | None = None, link: str | None = None
) -> Contract:
    """Forbids a collective: `no all-gather@fsdp in "model/attention.py"`.

    Args:
        kind: Kind of collective, or a pattern such as `all-*`.
        axes: Mesh axes that it runs over, alone or with others; None for any axes.
        by: The operation by which it reduces; None for any, and for collectives that do not reduce.
        source: The end of a file's path.
        link: `ici` or `dcn`.

    Raises:
        NotationError: The kind, the operation or the link does not exist, or a name is invalid.
    """
    return _make_contract(Ban(selector=selector(kind, axes, source, link, by=by)))


@front_door
def at_most(
    *,
    wire_bytes: Amount | None = None,
    payload_bytes: Amount | None = None,
    axis: Axes = None,
    link: str | None = None,
) -> Contract:
    """Limits the bytes per step on one device: `wire@fsdp <= 6MB/step`.

    Args:
        wire_bytes: Maximum bytes sent: a number, or text such as `6 MB`.
        payload_bytes: Maximum payload bytes, likewise.
        axis: Restricts the limit to collectives over this axis or these axes, alone or with others; None for all.
        link: `ici` or `dcn`.

    Raises:
        NotationError: No limit is given, or an amount is invalid.
    """
    given = ((Quantity.WIRE, "wire_bytes", wire_bytes), (Quantity.PAYLOAD, "payload_bytes", payload_bytes))
    clauses = [
        Limit(quantity=quantity, most=most, selector=Selector(axes=_check_axes(axis), link=_check_link(link)))
        for quantity, name, amount in given
        if (most := _check_amount(name, amount, BYTE_UNITS)) is not None
    ]
    if not clauses:
        raise NotationError("at_most limits nothing", fix='write at_most(wire_bytes="6 MB", axis="fsdp")')
    return Contract(clauses=tuple(clauses))


@front_door
def hbm(*, max: Amount) -> Contract:
    """Limits the peak memory of one device: `hbm <= 14GiB`."""
    return _make_limit(Quantity.HBM, "hbm", max, BYTE_UNITS)


@front_door
def time(*, max: str) -> Contract:
    """Limits the predicted step time: `time <= 1.2ms`."""
    return _make_limit(Quantity.TIME, "time", max, NANOSECONDS)


@front_door
def exposed(*, max: str) -> Contract:
    """Limits the exposed communication time of a step, or its share: `exposed <= 5%`."""
    if isinstance(max, str) and max.rstrip().endswith("%"):
        most = parse_amount(max, MILLIONTHS, where="exposed")
        if most >= WHOLE:
            raise NotationError(f"{max} of a step cannot be exceeded", fix="give less than 100%")
        return _make_contract(Limit(quantity=Quantity.EXPOSED, most=most, share=True))
    return _make_limit(Quantity.EXPOSED, "exposed", max, NANOSECONDS)


@front_door
def repeated(*, max: float) -> Contract:
    """Limits the work that devices repeat, as a multiple of the traced program's FLOPs: `repeated <= 1.05`."""
    if isinstance(max, bool) or not isinstance(max, int | float) or not 0 < max < inf:
        raise NotationError(f"repeated is {format_value(max)}", fix="give a number, for example 1.05")
    most = parse_amount(f"{max:f}", FACTOR, where="repeated")
    return _make_contract(Limit(quantity=Quantity.REPEATED, most=most))


@front_door
def trips(source: str, count: int) -> Contract:
    """States the trip count of a loop: `trips "moe.py:40" = 16`."""
    return _make_contract(Trips(source=_check_place(source), count=_check_count("trips", count, least=1)))


def _check_count(name: str, count: object, *, least: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        raise NotationError(
            f"{name} is {format_value(count)}", fix=f"give a whole number of executions, {least} or more"
        )
    return count


def _make_contract(clause: Clause) -> Contract:
    return Contract(clauses=(clause,))


def _make_limit(quantity: Quantity, name: str, amount: Amount, units: Units) -> Contract:
    return _make_contract(Limit(quantity=quantity, most=_check_amount(name, amount, units) or 0))


def selector(kind: str, axes: Axes, source: str | None, link: str | None, *, by: str | None = None) -> Selector:
    """Creates a selector of collectives.

    Raises:
        NotationError: The kind or its operation does not exist, or another argument is invalid.
    """
    if not isinstance(kind, str) or not any(fnmatchcase(known, kind) for known in Kind):
        raise NotationError(
            f"there is no kind of collective {format_value(kind)}",
            fix=did_you_mean(
                str(kind).replace("_", "-"), Kind, f"use one of {', '.join(Kind)}, or a pattern such as all-*"
            ),
        )
    place = None if source is None else _check_place(source)
    return Selector(kind=str(kind), axes=_check_axes(axes), reduction=by, link=_check_link(link), source=place)


def filter_collectives(
    collectives: Collectives, kind: str, axes: Axes, source: str | None, link: str | None
) -> list[Collective]:
    """`Collectives.where`, without the filter by module."""
    return find_matching(collectives, selector(kind, axes, source, link), collectives.mesh_axes)


def _check_axes(axes: Axes) -> tuple[str, ...] | None:
    if axes is None:
        return None
    named = (axes,) if isinstance(axes, str) else tuple(axes) if isinstance(axes, Iterable) else ()
    form = _AXIS if isinstance(axes, str) else _LISTED_AXIS
    if not named or not all(isinstance(axis, str) and form.fullmatch(axis) for axis in named):
        raise NotationError(f"axes cannot be {format_value(axes)}", fix='write "X", or ("X", "Y") for their product')
    return named


def _check_place(source: object) -> str:
    if not isinstance(source, str) or not source.strip() or "\n" in source or {'"', "'"} <= set(source):
        raise NotationError(
            f"{format_value(source)} is not a place in the code", fix='write "model/attention.py" or "moe.py:40"'
        )
    return source


def _check_link(link: str | None) -> Link | None:
    if link is None:
        return None
    if link not in (Link.ICI, Link.DCN):
        raise NotationError(f"there is no link {format_value(link)}", fix="use ici or dcn")
    return Link(link)


def _check_amount(name: str, amount: Amount | None, units: Units) -> int | None:
    if amount is None:
        return None
    if isinstance(amount, str):
        return parse_amount(amount, units, where=name)
    if units is not BYTE_UNITS:
        raise NotationError(
            f"{name} is limited by {format_value(amount)}, without a unit", fix=f'write {name}(max="1.2 ms")'
        )
    if isinstance(amount, bool) or not isinstance(amount, int) or amount < 0:
        raise NotationError(
            f"{name} is {format_value(amount)}", fix=f'write {name}="32 KiB", or a whole number of bytes'
        )
    return amount
