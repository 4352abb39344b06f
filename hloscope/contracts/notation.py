"""Contracts as text: `all-reduce@Y <= 32KiB x2; nothing else`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from lark import Token, Tree

from hloscope.analysis.vocabulary import Kind, Link
from hloscope.contracts.model import Ban, Clause, Contract, Expectation, Limit, Quantity, Selector, Trips
from hloscope.contracts.quantities import BYTE_UNITS, MILLIONTHS, NANOSECONDS, Units, format_amount, parse_amount
from hloscope.contracts.syntax import ContractSource, nearest_word
from hloscope.errors import NotationError
from hloscope.program.notation_syntax import start_of, subtrees_of, tokens_of

_FLAGS = {
    "NOTHING_ELSE": Contract(closed=True),
    "NONE": Contract(closed=True),
    "EQUIVALENT": Contract(equivalent=True),
    "AT_LEAST_OK": Contract(at_least_ok=True),
}
_PLACED = (Quantity.WIRE, Quantity.PAYLOAD)
_PLAIN_AXIS = re.compile(r"[\w*?]+(?::\(\d+\)\d+)?")
"""Names of axes that stand without quotes."""


def parse_contract(text: str, *, where: str = "contract") -> Contract:
    """Reads a contract.

    Args:
        text: Clauses on lines of their own or between semicolons; `#` begins a comment.
        where: Where the user wrote it, for messages.

    Raises:
        NotationError: The text is no contract, or is empty; it names no kind of collective; two clauses say different
            things of the same collectives; or it says `none` and expects some.
    """
    source = ContractSource(text, where)
    contract = Contract()
    clauses = source.parse().children
    if not clauses:
        raise NotationError("an empty contract", where=where, fix="write, for example, all-reduce@Y <= 32KiB x2")
    for clause in clauses:
        if isinstance(clause, Token):
            contract &= _FLAGS[clause.type]
        else:
            contract = _joined(contract, clause, source)
    none = next((clause for clause in clauses if isinstance(clause, Token) and clause.type == "NONE"), None)
    if contract.expectations and none is not None:
        raise source.error(
            "the contract says none, and expects a collective",
            start_of(none),
            fix='for "no others than these" write: nothing else',
        )
    return contract


def parse_selector(text: str, *, where: str) -> Selector:
    """Reads what collectives a clause speaks of, without the clause: `all-gather@(X,Y) in "model/attention.py"`.

    Raises:
        NotationError: The text is no selector, or names no kind of collective.
    """
    source = ContractSource(text, where)
    return _selector(source.parse("selector"), source)


def _joined(contract: Contract, tree: Tree[Token], source: ContractSource) -> Contract:
    clause = _CLAUSES[tree.data](tree, source)
    try:
        return contract & Contract(clauses=(clause,))
    except NotationError as error:
        raise source.error(error.what, _start(tree), why=error.why, fix=error.fix) from None


def _expectation(tree: Tree[Token], source: ContractSource) -> Expectation:
    amounts = subtrees_of(tree, "at_most")
    found = {token.type: token for token in (tokens_of(amounts[0]) if amounts else [])}
    size = _amount(found["AMOUNT"], BYTE_UNITS, source) if "AMOUNT" in found else None
    per_step = "PER_STEP" in found
    return Expectation(
        selector=_selector(subtrees_of(tree, "selector")[0], source),
        max_bytes=None if per_step else size,
        max_bytes_per_step=size if per_step else None,
        max_count=int(found["COUNT"].strip("x× \t")) if "COUNT" in found else None,
    )


def _ban(tree: Tree[Token], source: ContractSource) -> Ban:
    return Ban(selector=_selector(subtrees_of(tree, "selector")[0], source))


def _limit(tree: Tree[Token], source: ContractSource) -> Limit:
    found = {token.type: token for token in tokens_of(tree)}
    quantity, amount = Quantity(found["QUANTITY"]), found["AMOUNT"]
    axes = _axes(tree)
    link = Link(found["LINK"]) if "LINK" in found else None
    if quantity not in _PLACED and (axes is not None or link is not None):
        raise source.error(
            f"{quantity} belongs to a device, not to an axis or a network",
            start_of(found["QUANTITY"]),
            fix=f"write {quantity} <= …, or wire@AXIS <= …",
        )
    share = quantity is Quantity.EXPOSED and amount.rstrip().endswith("%")
    if "PER_STEP" in found and (share or quantity is Quantity.HBM):
        what = "a share of the step" if share else "a peak, which no step adds to"
        raise source.error(
            f"{quantity} is {what}, not an amount per step", start_of(found["PER_STEP"]), fix="leave out /step"
        )
    return Limit(
        quantity=quantity,
        most=_amount(amount, units_of(quantity, share=share), source),
        share=share,
        axes=axes,
        link=link,
    )


def units_of(quantity: Quantity, *, share: bool = False) -> Units:
    """The units that a quantity is limited in."""
    if share:
        return MILLIONTHS
    return NANOSECONDS if quantity in (Quantity.TIME, Quantity.EXPOSED) else BYTE_UNITS


def _trips(tree: Tree[Token], source: ContractSource) -> Trips:
    place, count = tokens_of(tree)
    if not int(count):
        raise source.error("a loop of no trips moves nothing", start_of(count), fix="give 1 trip or more")
    return Trips(source=str(place)[1:-1], count=int(count))


_CLAUSES: dict[str, Callable[[Tree[Token], ContractSource], Clause]] = {
    "expectation": _expectation,
    "ban": _ban,
    "limit": _limit,
    "trips": _trips,
}


def _selector(tree: Tree[Token], source: ContractSource) -> Selector:
    found = {token.type: token for token in tokens_of(tree)}
    kind = found["KIND"]
    if not any(fnmatchcase(one, kind) for one in Kind):
        raise source.error(
            f"there is no kind of collective {str(kind)!r}",
            start_of(kind),
            fix=nearest_word(str(kind)) or f"use one of {', '.join(Kind)}, or a pattern such as all-*",
        )
    return Selector(
        kind=str(kind),
        axes=_axes(tree),
        link=Link(found["LINK"]) if "LINK" in found else None,
        source=_place(found),
    )


def _place(found: Mapping[str, Token]) -> str | None:
    return str(found["QUOTED"])[1:-1] if "QUOTED" in found else str(found["PLACE"]) if "PLACE" in found else None


def _axes(tree: Tree[Token]) -> tuple[str, ...] | None:
    axes = subtrees_of(tree, "axes")
    if not axes:
        return None
    return tuple(token[1:-1] if token.type == "QUOTED_AXIS" else str(token) for token in tokens_of(axes[0]))


def _amount(token: Token, units: Units, source: ContractSource) -> int:
    position = start_of(token)
    line, column = source.place(position)
    where = f"{source.where}, line {line}" if source.has_lines else source.where
    return parse_amount(str(token), units, where=where, column=column, line=source.line_at(position))


def _start(tree: Tree[Token]) -> int:
    return min(start_of(token) for token in tree.scan_values(lambda value: isinstance(value, Token)))


def format_contract(contract: Contract) -> str:
    """The text that `parse_contract` reads back to an equal contract, its clauses between semicolons."""
    words = [format_clause(clause) for clause in contract.clauses]
    if contract.closed:
        words.append("nothing else" if contract.expectations else "none")
    words += ["equivalent"] if contract.equivalent else []
    words += ["at-least-ok"] if contract.at_least_ok else []
    return "; ".join(words)


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
            per_step = "/step" if clause.quantity in _PLACED else ""
            amount = format_amount(clause.most, units_of(clause.quantity, share=clause.share))
            return f"{clause.quantity}{_where(clause.axes, clause.link)} <= {amount}{per_step}"


def format_selector(selector: Selector) -> str:
    """A selector as text: `all-gather@(X,Y) over dcn in "moe.py"`."""
    place = "" if selector.source is None else f" in {_quoted(selector.source)}"
    return f"{selector.kind}{_where(selector.axes, selector.link)}{place}"


def _where(axes: tuple[str, ...] | None, link: Link | None) -> str:
    names = [axis if _PLAIN_AXIS.fullmatch(axis) else _quoted(axis) for axis in axes or ()]
    named = "" if not names else f"@{names[0]}" if len(names) == 1 else f"@({','.join(names)})"
    return named + ("" if link is None else f" over {link}")


def _at_most(clause: Expectation) -> str:
    size, per_step = clause.max_bytes, ""
    if size is None and clause.max_bytes_per_step is not None:
        size, per_step = clause.max_bytes_per_step, "/step"
    amount = "" if size is None else f" <= {format_amount(size, BYTE_UNITS)}{per_step}"
    return amount + ("" if clause.max_count is None else f" x{clause.max_count}")


def _quoted(text: str) -> str:
    return f"'{text}'" if '"' in text else f'"{text}"'
