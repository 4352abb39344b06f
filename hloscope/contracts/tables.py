"""Contracts in TOML: a string, a list of strings, or a table of clauses.

contract = ["all-reduce@Y <= 32KiB x2", "nothing else"]

[contract]
only = true
expect = [{ kind = "all-reduce", axes = ["Y"], max-bytes = "32 KiB", count = 2 }]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hloscope.contracts import building
from hloscope.contracts.model import Ban, Contract, Expectation, Limit, Quantity, Selector, Trips
from hloscope.contracts.notation import parse_contract, units_of
from hloscope.contracts.quantities import BYTE_UNITS, format_amount
from hloscope.errors import NotationError, did_you_mean

_SELECTOR_KEYS = ("kind", "axes", "in", "over")
_EXPECTATION_KEYS = (*_SELECTOR_KEYS, "max-bytes", "max-bytes-per-step", "count")
_LIMIT_KEYS = ("max", "axes", "over")
_FLAGS = {"only": "closed", "equivalent": "equivalent", "at-least-ok": "at_least_ok"}
_KEYS = (*_FLAGS, "expect", "no", *Quantity, "trips")


def contract_from_toml(value: object, *, where: str = "contract") -> Contract:
    """Reads a contract as TOML has it.

    Args:
        value: A string, a list of strings, or a table.
        where: Where it stands, for messages.

    Raises:
        NotationError: It is none of these, a key is unknown, or a value is not what the key needs.
    """
    if isinstance(value, str):
        return parse_contract(value, where=where)
    if isinstance(value, list):
        joined = Contract()
        for index, line in enumerate(value, start=1):
            if not isinstance(line, str):
                raise NotationError(
                    f"{line!r} is no line of a contract", where=where, fix='write "all-reduce@Y <= 32KiB"'
                )
            joined = _both(joined, parse_contract(line, where=f"{where}, entry {index}"), f"{where}, entry {index}")
        return joined
    if isinstance(value, Mapping):
        return _table(value, where)
    raise NotationError(f"a contract cannot be {value!r}", where=where, fix='write ["all-reduce@Y", "nothing else"]')


def _table(table: Mapping[str, Any], where: str) -> Contract:
    _check_keys(table, _KEYS, where)
    joined = Contract(
        closed=_flag(table, "only", where),
        equivalent=_flag(table, "equivalent", where),
        at_least_ok=_flag(table, "at-least-ok", where),
    )
    for key, build in (("expect", _expectation), ("no", _ban)):
        for entry in _entries(table.get(key, []), f"{where}, {key}"):
            joined = _both(joined, build(entry, f"{where}, {key}"), f"{where}, {key}")
    for quantity in Quantity:
        for entry in _limits(table.get(quantity, []), f"{where}, {quantity}"):
            joined &= _limit(quantity, entry, f"{where}, {quantity}")
    for place, count in _mapping(table.get("trips", {}), f"{where}, trips").items():
        joined &= _trips(place, count, f"{where}, trips")
    return joined


def _trips(place: str, count: Any, where: str) -> Contract:
    whole = _integer(count, where)
    return _said_where(where, lambda: building.trips(place, whole))


def _both(one: Contract, other: Contract, where: str) -> Contract:
    return _said_where(where, lambda: one & other)


def _entries(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise NotationError(f"{value!r} is no list of tables", where=where, fix='write [{ kind = "all-gather" }]')
    return value


def _limits(value: Any, where: str) -> list[Mapping[str, Any]]:
    entries = value if isinstance(value, list) else [value]
    return [entry if isinstance(entry, Mapping) else {"max": entry} for entry in entries]


def _expectation(entry: Mapping[str, Any], where: str) -> Contract:
    _check_keys(entry, _EXPECTATION_KEYS, where)
    count, selection = entry.get("count"), _selection(entry, where)
    return _said_where(
        where,
        lambda: building.collective(
            **selection,
            max_bytes=entry.get("max-bytes"),
            max_bytes_per_step=entry.get("max-bytes-per-step"),
            count=None if count is None else _integer(count, where),
        ),
    )


def _ban(entry: Mapping[str, Any], where: str) -> Contract:
    _check_keys(entry, _SELECTOR_KEYS, where)
    selection = _selection(entry, where)
    return _said_where(where, lambda: building.no(**selection))


def _selection(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(entry.get("kind"), str):
        raise NotationError("a clause names no kind of collective", where=where, fix='add kind = "all-gather"')
    return {"kind": entry["kind"], "axes": _axes(entry, where), "source": entry.get("in"), "link": entry.get("over")}


def _axes(entry: Mapping[str, Any], where: str) -> Any:
    axes = entry.get("axes")
    if axes is None or isinstance(axes, str):
        return axes
    if not isinstance(axes, list) or not axes or not all(isinstance(axis, str) for axis in axes):
        raise NotationError(f"axes cannot be {axes!r}", where=where, fix='write axes = "X" or axes = ["X", "Y"]')
    return tuple(axes)


def _limit(quantity: Quantity, entry: Mapping[str, Any], where: str) -> Contract:
    _check_keys(entry, _LIMIT_KEYS, where)
    if "max" not in entry:
        raise NotationError(f"{quantity} has no limit", where=where, fix='write max = "6 MB"')
    most, axes, link = entry["max"], _axes(entry, where), entry.get("over")
    if quantity in (Quantity.WIRE, Quantity.PAYLOAD):
        named = {f"{quantity}_bytes": most}
        return _said_where(where, lambda: building.at_most(**named, axis=axes, link=link))
    if axes is not None or link is not None:
        raise NotationError(f"{quantity} belongs to a device, not to an axis or a network", where=where)
    if not isinstance(most, str):
        raise NotationError(f"{quantity} is limited by {most!r}", where=where, fix='give it a unit: "14 GiB", "1.2 ms"')
    build: Callable[..., Contract] = {Quantity.HBM: building.hbm, Quantity.TIME: building.time}.get(
        quantity, building.exposed
    )
    return _said_where(where, lambda: build(max=most))


def _said_where(where: str, build: Callable[[], Contract]) -> Contract:
    try:
        return build()
    except NotationError as error:
        place = where if error.where is None else f"{where}, {error.where}"
        raise NotationError(error.what, where=place, why=error.why, fix=error.fix, excerpt=error.excerpt) from None


def _flag(table: Mapping[str, Any], key: str, where: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise NotationError(f"{key} cannot be {value!r}", where=where, fix=f"write {key} = true, or leave it out")
    return value


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise NotationError(f"{value!r} is no table", where=where, fix='write { "moe.py:40" = 16 }')
    return value


def _integer(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise NotationError(f"{value!r} is no count", where=where, fix="write a whole number, 0 or more")
    return value


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            fix = did_you_mean(key.replace("_", "-"), known, f"use one of {', '.join(known)}")
            raise NotationError(f"unknown key {key!r} in a contract", where=where, fix=fix)


def contract_to_toml(contract: Contract) -> dict[str, Any]:
    """The table that `contract_from_toml` reads back to an equal contract."""
    table: dict[str, Any] = {key: True for key, field in _FLAGS.items() if getattr(contract, field)}
    for clause in contract.clauses:
        match clause:
            case Expectation():
                table.setdefault("expect", []).append({**_selector_entry(clause.selector), **_size_entry(clause)})
            case Ban():
                table.setdefault("no", []).append(_selector_entry(clause.selector))
            case Limit():
                table.setdefault(str(clause.quantity), []).append(_limit_entry(clause))
            case Trips():
                table.setdefault("trips", {})[clause.source] = clause.count
    return table


def _selector_entry(selector: Selector) -> dict[str, Any]:
    entry = {"kind": selector.kind, "axes": _listed(selector.axes), "in": selector.source, "over": _text(selector.link)}
    return {key: value for key, value in entry.items() if value is not None}


def _size_entry(clause: Expectation) -> dict[str, Any]:
    entry = {"max-bytes": clause.max_bytes, "max-bytes-per-step": clause.max_bytes_per_step, "count": clause.max_count}
    return {
        key: value if key == "count" else format_amount(value, BYTE_UNITS)
        for key, value in entry.items()
        if value is not None
    }


def _limit_entry(clause: Limit) -> dict[str, Any]:
    most = format_amount(clause.most, units_of(clause.quantity, share=clause.share))
    entry = {"max": most, "axes": _listed(clause.axes), "over": _text(clause.link)}
    return {key: value for key, value in entry.items() if value is not None}


def _listed(axes: tuple[str, ...] | None) -> list[str] | None:
    return None if axes is None else list(axes)


def _text(link: object) -> str | None:
    return None if link is None else str(link)
