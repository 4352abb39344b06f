"""Contracts: their clauses, the amounts in them, their text, and the collectives that they speak of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum, StrEnum
from fnmatch import fnmatchcase
from typing import TypeVar

from hloscope.analysis.provenance import frame_path, split_place
from hloscope.base.calls import front_door
from hloscope.base.errors import NotationError, did_you_mean, format_excerpt
from hloscope.model import Collective, SourceFrame
from hloscope.model.vocabulary import REDUCING, REDUCTION_OPCODES, Kind, Link

# ---- amounts: `32KiB`, `6 MB`, `1.2ms`, `5%`, read into whole numbers and printed so that nothing is lost

BYTE_UNITS = {
    "B": 1,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", start=1)},
}
NANOSECONDS = {"ns": 1, "us": 1000, "ms": 10**6, "s": 10**9}
MILLIONTHS = {"%": 10**4}
FACTOR = {"": 10**6}
"""A plain number, in millionths."""
WHOLE = 10**6
"""All of it, in millionths."""
_OTHER_NAMES = {"KB": "kB", "µs": "us", "μs": "us"}
_AMOUNT = re.compile(r"\s*(?P<number>\d[\d_]*(?:\.\d+)?)\s*(?P<unit>\S*?)\s*")
_EXAMPLES = {"B": "32KiB or 6MB", "ns": "1.2ms or 300us", "%": "5%", "": "1.05"}

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
        excerpt = format_excerpt(line or text, column + offset)
        return NotationError(what, where=f"{where}, column {column + offset}", excerpt=excerpt, fix=fix)

    example = " or ".join(_EXAMPLES[unit] for unit in units if unit in _EXAMPLES)
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise error(f"{text.strip()!r} is not an amount", 0, f"write, for example, {example}")
    unit = _OTHER_NAMES.get(found["unit"], found["unit"])
    if not unit and unit not in units:
        raise error(f"the amount {text.strip()} has no unit", found.end("number"), f"write, for example, {example}")
    if unit not in units:
        near = [name for name in units if name.lower().replace("i", "") == unit.lower().replace("i", "")]
        known = ", ".join(filter(None, units))
        fix = (
            f"did you mean {' or '.join(near)}?" if near else f"use one of {known}" if known else "write it without one"
        )
        raise error(f"unknown unit {unit!r}", found.start("unit"), fix)
    amount = Decimal(found["number"].replace("_", "")) * units[unit]
    if amount != int(amount):
        least = min(units, key=lambda name: units[name])
        raise error(
            f"{text.strip()} is not a whole number of {least or 'millionths'}",
            0,
            f"give it in {least}: {int(amount) + 1}{least}" if least else "give six decimal places at most",
        )
    return int(amount)


def format_amount(amount: int, units: Units) -> str:
    """The shortest text that `parse_amount` reads back to the same amount: `32KiB`, `2.5MB`, `300us`."""
    texts = ((_format_in_unit(amount, unit, size), size) for unit, size in units.items())
    known = ((len(text), size > amount, -size, text) for text, size in texts if text is not None)
    return min(known)[-1]


def _format_in_unit(amount: int, unit: str, size: int) -> str | None:
    number = Decimal(amount) / Decimal(size)
    if number * size != amount:
        return None
    return f"{number:f}{unit}" if "." not in f"{number:f}" else f"{f'{number:f}'.rstrip('0').rstrip('.')}{unit}"


def round_up(amount: int) -> int:
    """The least amount of three digits that is not below `amount`: what a new limit is best set to."""
    step: int = 10 ** max(len(str(amount)) - 3, 0)
    return -(-amount // step) * step


# ---- clauses

_PLAIN_AXIS = re.compile(r"[\w*?]+(?::\(\d+\)\d+)?")
"""Names of axes that stand without quotes."""


_IN_JAX = {"sum": "add", "max": "maximum", "min": "minimum"}
"""The names of some operations in JAX."""


def _refuse_reduction(kind: str, reduction: str) -> None:
    """Refuses an operation by which no collective of a kind reduces.

    Raises:
        NotationError: There is no such operation, or the kind reduces nothing.
    """
    if reduction not in REDUCTION_OPCODES:
        meant = _IN_JAX.get(reduction.removeprefix("p"))
        fix = did_you_mean(reduction, REDUCTION_OPCODES, f"use one of {', '.join(REDUCTION_OPCODES)}")
        fix = fix if meant is None else f"did you mean {meant}?"
        raise NotationError(f"no collective reduces by {reduction!r}", fix=fix)
    if not any(fnmatchcase(known, kind) for known in REDUCING):
        raise NotationError(f"{kind} reduces nothing", fix=f"leave out by {reduction}, or name {' or '.join(REDUCING)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """The collectives that a clause applies to.

    Attributes:
        kind: Kind of collective, or a pattern with `*` and `?`, such as `all-*`.
        axes: Mesh axes, in any order, or patterns of them; None for any axes.
        reduction: Opcode of the reducer, such as `add`; None for any, and for collectives that do not reduce.
        link: The network; None for any.
        source: The end of a file's path, such as `model/attention.py`, with `*` and `?` and optionally `:LINE`; None
            for any place.
    """

    kind: str = "*"
    axes: tuple[str, ...] | None = None
    reduction: str | None = None
    link: Link | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        if self.reduction is not None:
            _refuse_reduction(self.kind, self.reduction)
        if self.axes is not None:
            object.__setattr__(self, "axes", tuple(sorted(set(self.axes))))

    @property
    def is_everything(self) -> bool:
        """True if it matches every possible collective."""
        is_narrowed = any(part is not None for part in (self.axes, self.reduction, self.link, self.source))
        return not is_narrowed and all(fnmatchcase(kind, self.kind) for kind in Kind)

    @property
    def narrowness(self) -> tuple[int, ...]:
        """The specificity: among several matching expectations, the most specific one takes a collective."""
        texts = (self.kind, *(self.axes or ()), self.source or "")
        patterns = sum(text.count("*") + text.count("?") for text in texts)
        part_of_axis = any(":" in axis for axis in self.axes or ())
        at_line = ":" in (self.source or "")
        return (
            self.source is not None,
            at_line,
            self.axes is not None,
            part_of_axis,
            self.reduction is not None,
            -patterns,
            self.link is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Expects such a collective, within limits; a limit that is None is not set.

    Attributes:
        selector: The collectives it applies to.
        max_bytes: Maximum payload bytes of each on one device, per execution.
        max_bytes_per_step: Maximum total payload bytes on one device, per step.
        max_count: Maximum total executions, per step.
    """

    selector: Selector
    max_bytes: int | None = None
    max_bytes_per_step: int | None = None
    max_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """Forbids such a collective."""

    selector: Selector


class Quantity(StrEnum):
    """A quantity that can be limited."""

    WIRE = "wire"
    PAYLOAD = "payload"
    HBM = "hbm"
    TIME = "time"
    EXPOSED = "exposed"
    REPEATED = "repeated"


MOVED = (Quantity.WIRE, Quantity.PAYLOAD)
"""Quantities limited in bytes per step, over axes and networks; all others belong to a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limits a quantity on one device.

    Attributes:
        quantity: `wire` and `payload` are bytes per step, `hbm` bytes, `time` and `exposed` nanoseconds per step,
            `repeated` millionths.
        most: The limit, in those units; for a share of the step, in millionths of the step.
        share: Whether `most` is a share of the step's time (`exposed` only).
        selector: For `wire` and `payload`, restricts the limit to collectives over its axes, alone or with others, and
            over its network.
    """

    quantity: Quantity
    most: int
    share: bool = False
    selector: Selector = Selector()

    @property
    def units(self) -> Units:
        """The units of the limit's notation."""
        if self.share:
            return MILLIONTHS
        if self.quantity is Quantity.REPEATED:
            return FACTOR
        return NANOSECONDS if self.quantity in (Quantity.TIME, Quantity.EXPOSED) else BYTE_UNITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Trips:
    """The trip count of a loop with a dynamic end, as stated by the user.

    Attributes:
        source: Source location of the loop, such as `moe.py:40`, or its name in the HLO text, such as `%while.3`.
        count: Trips each time the loop is reached.
    """

    source: str
    count: int


AT_LEAST_OK = "at-least-ok"
"""The clause with which what is not understood is not held against a program."""

Clause = Expectation | Ban | Limit | Trips
AnyClause = TypeVar("AnyClause", Expectation, Ban, Limit, Trips)
_ORDER: tuple[type[Clause], ...] = (Expectation, Ban, Limit, Trips)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A contract that a program is checked against; contracts with the same clauses are equal, regardless of order.

    Attributes:
        clauses: The clauses, without duplicates and in canonical order.
        closed: Whether only the expected collectives are allowed.
        equivalent: Whether spellings that the compiler may exchange count as the same: an all-reduce for a
            reduce-scatter and an all-gather, permutes of a collective matmul for its all-gather or reduce-scatter.
        at_least_ok: Whether a program may contain parts that are not understood; the contract is then checked against
            the rest.

    Raises:
        NotationError: Two clauses contradict each other about the same collectives or the same loop.
    """

    clauses: tuple[Clause, ...] = ()
    closed: bool = False
    equivalent: bool = False
    at_least_ok: bool = False

    def __post_init__(self) -> None:
        distinct = dict.fromkeys(self.clauses)
        ordered = sorted(distinct, key=lambda clause: (_ORDER.index(type(clause)), repr(clause)))
        object.__setattr__(self, "clauses", tuple(ordered))
        said: set[Selector | str] = set()
        for clause in self.clauses:
            if not isinstance(clause, Expectation | Trips):
                continue
            about = clause.selector if isinstance(clause, Expectation) else clause.source
            if about in said:
                raise _make_repeated_error(clause)
            said.add(about)

    @front_door
    def __and__(self, other: Contract) -> Contract:
        """Combines both contracts."""
        return join_contracts(self, other) if isinstance(other, Contract) else NotImplemented

    def __str__(self) -> str:
        return format_contract(self)

    def all_of(self, kind: type[AnyClause]) -> tuple[AnyClause, ...]:
        """Returns the clauses of one type."""
        return tuple(clause for clause in self.clauses if isinstance(clause, kind))

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """The selectors of all clauses except those on loops."""
        return tuple(clause.selector for clause in self.clauses if not isinstance(clause, Trips))

    @property
    def says_something(self) -> bool:
        """True if a program could break it; flags and trip counts alone cannot be broken."""
        return self.closed or any(not isinstance(clause, Trips) for clause in self.clauses)

    @property
    def speaks_of_collectives(self) -> bool:
        """True if it has clauses on collectives, and not only on memory and time."""
        moves = any(limit.quantity in MOVED for limit in self.all_of(Limit))
        return bool(self.closed or moves or self.all_of(Expectation) or self.all_of(Ban))


def join_contracts(first: Contract, second: Contract) -> Contract:
    """A contract with the clauses and the flags of two.

    Raises:
        NotationError: They contradict each other.
    """
    return Contract(
        clauses=(*first.clauses, *second.clauses),
        closed=first.closed or second.closed,
        equivalent=first.equivalent or second.equivalent,
        at_least_ok=first.at_least_ok or second.at_least_ok,
    )


def _make_repeated_error(clause: Expectation | Trips) -> NotationError:
    """The error about a clause that says something else about what another clause speaks of already."""
    if isinstance(clause, Trips):
        return NotationError(f"the trips of {clause.source} are given twice", fix="keep one of them")
    return NotationError(
        f"{format_selector(clause.selector)} is expected twice",
        why="each collective is held against one expectation",
        fix='join the two, or distinguish them by their place: in "file.py:12"',
    )


def format_contract(contract: Contract) -> str:
    """Formats a contract as text, clauses separated by semicolons, that `parse_contract` parses to an equal one."""
    return "; ".join(format_clauses(contract))


def format_clauses(contract: Contract) -> list[str]:
    """Formats each clause of a contract as text."""
    words = [format_clause(clause) for clause in contract.clauses]
    if contract.closed:
        words.append("nothing else" if contract.all_of(Expectation) else "none")
    words += ["equivalent"] if contract.equivalent else []
    words += [AT_LEAST_OK] if contract.at_least_ok else []
    return words


def format_clause(clause: Clause) -> str:
    """Formats a clause as text: `all-reduce@Y <= 32KiB x2`."""
    match clause:
        case Expectation():
            return format_selector(clause.selector) + _format_at_most(clause)
        case Ban():
            return f"no {format_selector(clause.selector)}"
        case Trips():
            return f"trips {_quote(clause.source)} = {clause.count}"
        case Limit():
            per_step = "/step" if clause.quantity in MOVED else ""
            where, amount = _format_where(clause.selector), format_amount(clause.most, clause.units)
            return f"{clause.quantity}{where} <= {amount}{per_step}"


def format_selector(selector: Selector) -> str:
    """Formats a selector as text: `all-reduce@(X,Y) by add over dcn in "moe.py"`."""
    place = "" if selector.source is None else f" in {_quote(selector.source)}"
    return f"{selector.kind}{_format_where(selector)}{place}"


def _format_where(selector: Selector) -> str:
    names = [axis if _PLAIN_AXIS.fullmatch(axis) else _quote(axis) for axis in selector.axes or ()]
    named = "" if not names else f"@{names[0]}" if len(names) == 1 else f"@({','.join(names)})"
    named += "" if selector.reduction is None else f" by {selector.reduction}"
    return named + ("" if selector.link is None else f" over {selector.link}")


def _format_at_most(clause: Expectation) -> str:
    size, per_step = clause.max_bytes, ""
    if size is None and clause.max_bytes_per_step is not None:
        size, per_step = clause.max_bytes_per_step, "/step"
    amount = "" if size is None else f" <= {format_amount(size, BYTE_UNITS)}{per_step}"
    return amount + ("" if clause.max_count is None else f" x{clause.max_count}")


def _quote(text: str) -> str:
    return f"'{text}'" if '"' in text else f'"{text}"'


# ---- which collectives a clause speaks of: surely, surely not, or perhaps


class Fit(IntEnum):
    """The answer to whether a selector covers a collective."""

    NO = 0
    MAYBE = 1
    YES = 2


def is_exactly(selector: Selector, collective: Collective) -> bool:
    """True if an expectation of `selector` takes a collective: its very axes, and nothing about it unknown."""
    kind = fnmatchcase(collective.kind, selector.kind)
    return kind and _fits(selector, collective, _has_axes(selector.axes, collective, alone=True)) is Fit.YES


def touches(selector: Selector, collective: Collective) -> Fit:
    """The coverage of a collective by a ban or a limit on `selector`: over its axes alone or with others.

    An opaque transfer may be of any kind, one without known axes may run over any, one without source may come from
    anywhere: of these the answer is MAYBE.
    """
    kind = Fit.YES if fnmatchcase(collective.kind, selector.kind) else Fit.NO
    if collective.kind is Kind.OPAQUE and kind is Fit.NO:
        kind = Fit.MAYBE
    return min(kind, _fits(selector, collective, _has_axes(selector.axes, collective, alone=False)))


def find_matching(
    collectives: Iterable[Collective], selector: Selector, mesh_axes: Sequence[str] | None
) -> list[Collective]:
    """The collectives that a selector covers, surely or perhaps.

    Args:
        collectives: All of a program.
        selector: Of which.
        mesh_axes: The axes of its mesh; None without a mesh.

    Raises:
        NotationError: It names an axis that the mesh does not have, of which there is never any.
    """
    missing = find_missing_axis(selector, mesh_axes)
    if missing is not None:
        raise NotationError(missing[0], fix=missing[1])
    return [collective for collective in collectives if touches(selector, collective) is not Fit.NO]


def find_missing_axis(selector: Selector, mesh_axes: Sequence[str] | None) -> tuple[str, str | None] | None:
    """A sentence on the first axis of a selector that a mesh does not have, and its fix; None if the mesh has all."""
    for pattern in selector.axes or () if mesh_axes is not None else ():
        if not any(axis_fits(pattern.partition(":")[0], axis) for axis in mesh_axes or ()):
            has = f"its axes are {', '.join(mesh_axes or ())}" if mesh_axes else "it has no axes"
            return f"the mesh has no axis {pattern}", did_you_mean(pattern, mesh_axes or (), has)
    return None


def _fits(selector: Selector, collective: Collective, axes: Fit) -> Fit:
    return min(
        axes,
        _reduces_by(selector.reduction, collective),
        _crosses(selector.link, collective),
        comes_from(selector.source, collective.source),
    )


def _has_axes(patterns: tuple[str, ...] | None, collective: Collective, *, alone: bool) -> Fit:
    if patterns is None:
        return Fit.YES
    if collective.axes is None:
        return Fit.MAYBE
    fits = _is_axis if alone else axis_fits  # what is expected over an axis is not done by a part of it
    all_there = all(any(fits(pattern, axis) for axis in collective.axes) for pattern in patterns)
    no_others = all(any(fits(pattern, axis) for pattern in patterns) for axis in collective.axes)
    return Fit.YES if all_there and (no_others or not alone) else Fit.NO


def _is_axis(pattern: str, axis: str) -> bool:
    return fnmatchcase(axis, pattern)


def axis_fits(pattern: str, axis: str) -> bool:
    """True if a pattern names an axis; one without `:` names the parts of an axis, `X:(1)2`, too."""
    return fnmatchcase(axis if ":" in pattern else axis.partition(":")[0], pattern)


def _reduces_by(reduction: str | None, collective: Collective) -> Fit:
    """The answer to whether it reduces by an operation; MAYBE if by several, or by an unknown one."""
    if reduction is None or reduction == collective.reduction:
        return Fit.YES
    is_open = collective.kind is Kind.OPAQUE or (collective.kind in REDUCING and collective.reduction is None)
    return Fit.MAYBE if is_open else Fit.NO


def _crosses(link: Link | None, collective: Collective) -> Fit:
    crossed = {collective.link, *(part.link for part in collective.parts)}
    if link is None or link in crossed or Link.BOTH in crossed:
        return Fit.YES
    return Fit.MAYBE if Link.UNKNOWN in crossed else Fit.NO


def comes_from(source: str | None, frames: Iterable[SourceFrame]) -> Fit:
    """The answer to whether one of the frames is at a place, `moe.py` or `model/moe.py:40`; MAYBE without frames."""
    if source is None:
        return Fit.YES
    known = list(frames)
    if not known:
        return Fit.MAYBE
    return Fit.YES if any(is_at(source, frame) for frame in known) else Fit.NO


def is_at(source: str, frame: SourceFrame) -> bool:
    """True if a frame is at a place, which is the end of a path with patterns in it, and perhaps `:LINE`."""
    path, line = split_place(source)
    return frame_path(frame).match(path) and line in (None, frame.line)
