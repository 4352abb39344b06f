"""Amounts in contracts: `32KiB`, `6 MB`, `1.2ms`, `5%`, read into whole numbers and printed so that nothing is lost."""

from __future__ import annotations

import re
from decimal import Decimal

from hloscope.errors import NotationError, caret_excerpt

BYTE_UNITS = {
    "B": 1,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", start=1)},
}
NANOSECONDS = {"ns": 1, "us": 1000, "ms": 10**6, "s": 10**9}
MILLIONTHS = {"%": 10**4}
WHOLE = 10**6
"""All of it, in millionths."""
_OTHER_NAMES = {"KB": "kB", "µs": "us", "μs": "us"}
_AMOUNT = re.compile(r"\s*(?P<number>\d[\d_]*(?:\.\d+)?)\s*(?P<unit>\S*?)\s*")
_EXAMPLES = {"B": "32KiB or 6MB", "ns": "1.2ms or 300us", "%": "5%"}

Units = dict[str, int]


def parse_amount(text: str, units: Units, *, where: str, column: int = 1, line: str | None = None) -> int:
    """Reads a number with a unit.

    Args:
        text: Such as `32 KiB`.
        units: What each unit counts.
        where: The place, for messages.
        column: 1-based column of the amount in `line`.
        line: The text that is quoted in messages; `text` when None.

    Raises:
        NotationError: It is no number, the unit is missing or unknown, or it is not a whole number of the least unit.
    """

    def error(what: str, offset: int, fix: str) -> NotationError:
        excerpt = caret_excerpt(line or text, column + offset)
        return NotationError(what, where=f"{where}, column {column + offset}", excerpt=excerpt, fix=fix)

    example = " or ".join(_EXAMPLES[unit] for unit in units if unit in _EXAMPLES)
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise error(f"{text.strip()!r} is not an amount", 0, f"write, for example, {example}")
    unit = _OTHER_NAMES.get(found["unit"], found["unit"])
    if not unit:
        raise error(f"the amount {text.strip()} has no unit", found.end("number"), f"write, for example, {example}")
    if unit not in units:
        near = [name for name in units if name.lower().replace("i", "") == unit.lower().replace("i", "")]
        fix = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(units)}"
        raise error(f"unknown unit {unit!r}", found.start("unit"), fix)
    amount = Decimal(found["number"].replace("_", "")) * units[unit]
    if amount != int(amount):
        least = min(units, key=lambda name: units[name])
        raise error(
            f"{text.strip()} is not a whole number of {least}", 0, f"give it in {least}: {int(amount) + 1}{least}"
        )
    return int(amount)


def format_amount(amount: int, units: Units) -> str:
    """The shortest text that `parse_amount` reads back to the same amount: `32KiB`, `2.5MB`, `300us`."""
    texts = ((_in_unit(amount, unit, size), size) for unit, size in units.items())
    known = ((len(text), size > amount, -size, text) for text, size in texts if text is not None)
    return min(known)[-1]


def _in_unit(amount: int, unit: str, size: int) -> str | None:
    number = Decimal(amount) / Decimal(size)
    if number * size != amount:
        return None
    return f"{number:f}{unit}" if "." not in f"{number:f}" else f"{f'{number:f}'.rstrip('0').rstrip('.')}{unit}"


def rounded_up(amount: int, digits: int = 3) -> int:
    """The least amount of so many digits that is not below `amount`: what a new limit is best set to."""
    if amount < 10**digits:
        return amount
    step: int = 10 ** (len(str(amount)) - digits)
    return -(-amount // step) * step
