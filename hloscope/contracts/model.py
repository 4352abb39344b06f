"""A contract: what a program may and must move, how large, slow and exposed it may be, and how that is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TypeVar

from hloscope.analysis.vocabulary import REDUCTIONS, SUMS, Kind, Link
from hloscope.contracts.quantities import BYTE_UNITS, MILLIONTHS, NANOSECONDS, Units, format_amount
from hloscope.errors import NotationError, did_you_mean

_PLAIN_AXIS = re.compile(r"[\w*?]+(?::\(\d+\)\d+)?")
"""Names of axes that stand without quotes."""


_IN_JAX = {"sum": "add", "max": "maximum", "min": "minimum"}
"""What JAX calls some operations."""


def _refuse_reduction(kind: str, reduction: str) -> None:
    """Refuses an operation by which no collective of a kind reduces.

    Raises:
        NotationError: There is no such operation, or the kind reduces nothing.
    """
    if reduction not in REDUCTIONS:
        meant = _IN_JAX.get(reduction.removeprefix("p"))
        fix = did_you_mean(reduction, REDUCTIONS, f"use one of {', '.join(REDUCTIONS)}")
        fix = fix if meant is None else f"did you mean {meant}?"
        raise NotationError(f"no collective reduces by {reduction!r}", fix=fix)
    if not any(fnmatchcase(known, kind) for known in SUMS):
        raise NotationError(f"{kind} reduces nothing", fix=f"leave out by {reduction}, or name {' or '.join(SUMS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Which collectives a clause speaks of.

    Attributes:
        kind: A kind of collective, or a pattern with `*` and `?`, such as `all-*`.
        axes: Mesh axes as a product, in no order, or patterns of them; None for whatever axes.
        reduction: The opcode by which it reduces, such as `add`; None for any, and for what reduces nothing.
        link: The network; None for either.
        source: The end of a file's path, such as `model/attention.py`, with `*` and `?`, and perhaps `:LINE`; None for
            whatever place.
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
        """Whether it speaks of every collective that there can be."""
        is_narrowed = any(part is not None for part in (self.axes, self.reduction, self.link, self.source))
        return not is_narrowed and all(fnmatchcase(kind, self.kind) for kind in Kind)

    @property
    def narrowness(self) -> tuple[int, ...]:
        """How much it leaves open: of several expectations that fit, the narrowest takes a collective."""
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
    """There is such a collective, and it keeps to the limits; None where there is none.

    Attributes:
        selector: Which collectives.
        max_bytes: Payload bytes of each of them on one device, per execution.
        max_bytes_per_step: Payload bytes of all of them together on one device, per step.
        max_count: Executions of all of them together, per step.
    """

    selector: Selector
    max_bytes: int | None = None
    max_bytes_per_step: int | None = None
    max_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban:
    """There is no such collective."""

    selector: Selector


class Quantity(StrEnum):
    """What a limit may be set on."""

    WIRE = "wire"
    PAYLOAD = "payload"
    HBM = "hbm"
    TIME = "time"
    EXPOSED = "exposed"


MOVED = (Quantity.WIRE, Quantity.PAYLOAD)
"""What is limited in bytes per step, over axes and networks; all others belong to a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A quantity of one device is at most so much.

    Attributes:
        quantity: `wire` and `payload` are bytes per step, `hbm` bytes, `time` and `exposed` nanoseconds per step.
        most: The limit, in those units; for a share of the step, in millionths of it.
        share: Whether `most` is a share of the step's time (`exposed` only).
        selector: For `wire` and `payload`: what runs over its axes, alone or with others, and over its network.
    """

    quantity: Quantity
    most: int
    share: bool = False
    selector: Selector = Selector()

    @property
    def units(self) -> Units:
        """The units that it is written in."""
        if self.share:
            return MILLIONTHS
        return NANOSECONDS if self.quantity in (Quantity.TIME, Quantity.EXPOSED) else BYTE_UNITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Trips:
    """How often a loop runs whose end the program decides at run time: the user's word.

    Attributes:
        source: Where the loop was written, `moe.py:40`, or its name in the HLO text, `%while.3`.
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
    """What is expected of a program; two contracts of the same clauses are equal, in whatever order they were written.

    Attributes:
        clauses: The clauses, without repetition and in an order of their own.
        closed: Whether nothing else than the expected collectives may be there.
        equivalent: Whether spellings that the compiler may exchange are the same: an all-reduce for a reduce-scatter
            and an all-gather, permutes of a collective matmul for its all-gather or reduce-scatter.
        at_least_ok: Whether a program may hold what is not understood: its contract is then checked against what is.

    Raises:
        NotationError: Two clauses expect the same collectives, or count the same loop, and say different things.
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
                raise _repeated(clause)
            said.add(about)

    def __and__(self, other: Contract) -> Contract:
        """Both contracts at once."""
        if not isinstance(other, Contract):
            return NotImplemented
        return Contract(
            clauses=(*self.clauses, *other.clauses),
            closed=self.closed or other.closed,
            equivalent=self.equivalent or other.equivalent,
            at_least_ok=self.at_least_ok or other.at_least_ok,
        )

    def __str__(self) -> str:
        return format_contract(self)

    def all_of(self, kind: type[AnyClause]) -> tuple[AnyClause, ...]:
        """The clauses of one kind."""
        return tuple(clause for clause in self.clauses if isinstance(clause, kind))

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """What the clauses speak of, but for those on loops."""
        return tuple(clause.selector for clause in self.clauses if not isinstance(clause, Trips))

    @property
    def says_something(self) -> bool:
        """Whether there is anything in it that a program could break: flags and trip counts alone are not."""
        return self.closed or any(not isinstance(clause, Trips) for clause in self.clauses)

    @property
    def speaks_of_collectives(self) -> bool:
        """Whether it says anything about what moves, and not only about memory and time."""
        moves = any(limit.quantity in MOVED for limit in self.all_of(Limit))
        return bool(self.closed or moves or self.all_of(Expectation) or self.all_of(Ban))


def _repeated(clause: Expectation | Trips) -> NotationError:
    """The error about a clause that says something else about what another clause speaks of already."""
    if isinstance(clause, Trips):
        return NotationError(f"the trips of {clause.source} are given twice", fix="keep one of them")
    return NotationError(
        f"{format_selector(clause.selector)} is expected twice",
        why="each collective is held against one expectation",
        fix='join the two, or distinguish them by their place: in "file.py:12"',
    )


def format_contract(contract: Contract) -> str:
    """The text that `parse_contract` reads back to an equal contract, its clauses between semicolons."""
    return "; ".join(clauses_of(contract))


def clauses_of(contract: Contract) -> list[str]:
    """The clauses of a contract as text."""
    words = [format_clause(clause) for clause in contract.clauses]
    if contract.closed:
        words.append("nothing else" if contract.all_of(Expectation) else "none")
    words += ["equivalent"] if contract.equivalent else []
    words += [AT_LEAST_OK] if contract.at_least_ok else []
    return words


def format_clause(clause: Clause) -> str:
    """One clause as text: `all-reduce@Y <= 32KiB x2`."""
    match clause:
        case Expectation():
            return format_selector(clause.selector) + _at_most(clause)
        case Ban():
            return f"no {format_selector(clause.selector)}"
        case Trips():
            return f"trips {_quoted(clause.source)} = {clause.count}"
        case Limit():
            per_step = "/step" if clause.quantity in MOVED else ""
            return f"{clause.quantity}{_where(clause.selector)} <= {format_amount(clause.most, clause.units)}{per_step}"


def format_selector(selector: Selector) -> str:
    """A selector as text: `all-reduce@(X,Y) by add over dcn in "moe.py"`."""
    place = "" if selector.source is None else f" in {_quoted(selector.source)}"
    return f"{selector.kind}{_where(selector)}{place}"


def _where(selector: Selector) -> str:
    names = [axis if _PLAIN_AXIS.fullmatch(axis) else _quoted(axis) for axis in selector.axes or ()]
    named = "" if not names else f"@{names[0]}" if len(names) == 1 else f"@({','.join(names)})"
    named += "" if selector.reduction is None else f" by {selector.reduction}"
    return named + ("" if selector.link is None else f" over {selector.link}")


def _at_most(clause: Expectation) -> str:
    size, per_step = clause.max_bytes, ""
    if size is None and clause.max_bytes_per_step is not None:
        size, per_step = clause.max_bytes_per_step, "/step"
    amount = "" if size is None else f" <= {format_amount(size, BYTE_UNITS)}{per_step}"
    return amount + ("" if clause.max_count is None else f" x{clause.max_count}")


def _quoted(text: str) -> str:
    return f"'{text}'" if '"' in text else f'"{text}"'
