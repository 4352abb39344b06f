"""Contracts as text: `all-reduce@Y <= 32KiB x2; nothing else`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import NoReturn

from lark import Lark, Token, Tree, UnexpectedInput
from lark.exceptions import UnexpectedToken

from hloscope.base.calls import format_value
from hloscope.base.environment import read_grammar
from hloscope.base.errors import NotationError, did_you_mean
from hloscope.compile.notation import QuotedText, describe_expected, find_start, find_subtrees, find_tokens
from hloscope.judge.model import (
    BYTE_UNITS,
    MOVED,
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
    join_contracts,
    parse_amount,
)
from hloscope.model.collectives import Collective, Collectives
from hloscope.model.vocabulary import Kind, Link

_EXAMPLE = "all-reduce@Y <= 32KiB x2"
_EXAMPLES = {"contract": _EXAMPLE, "selector": 'all-gather@(X,Y) in "model/attention.py"'}
_CLAUSE_WORDS = ("no", *Quantity, "trips", "nothing else", "none", "equivalent", "at-least-ok")

_UP_TO_BLANK = re.compile(r"[^\s;]+")
_WORDS = {
    "KIND": "a kind of collective",
    "AXIS": "a mesh axis",
    "QUOTED": "a place",
    "LINK": "ici or dcn",
    "REDUCTION": "an operation such as add",
    "BY": '"by"',
    "AMOUNT": "an amount with its unit",
    "COUNT": '"x" and a count',
    "PER_STEP": '"/step"',
    "INTEGER": "a number",
    "AT": '"@"',
    "OVER": '"over"',
    "IN": '"in"',
    "__ANON_0": '"<="',
    "EQUAL": '"="',
    "LPAR": '"("',
    "RPAR": '")"',
    "COMMA": '","',
    "SEMICOLON": "the end of the clause",
}

_AS_LIST = 'write ["all-reduce@Y", "nothing else"]'
_INSTEAD_OF_TABLE = (
    'write its clauses as text: contract = ["all-reduce@Y <= 32KiB x2", "no all-gather@X", "hbm <= 14GiB", '
    '\'trips "moe.py:40" = 16\', "nothing else"]'
)
_FLAGS = {
    "NOTHING_ELSE": Contract(closed=True),
    "NONE": Contract(closed=True),
    "EQUIVALENT": Contract(equivalent=True),
    "AT_LEAST_OK": Contract(at_least_ok=True),
}


def read_contract(value: object, *, where: str = "contract") -> Contract:
    """Reads a contract: text, or a list with a line of text for each clause.

    Args:
        value: What the user wrote, in Python or in TOML.
        where: The place where it is written, for messages.

    Raises:
        NotationError: It is neither, or a line is no contract.
    """
    if isinstance(value, str):
        return parse_contract(value, where=where)
    if isinstance(value, Mapping):
        raise NotationError("a contract is text, and this is a table", where=where, fix=_INSTEAD_OF_TABLE)
    if not isinstance(value, list):
        raise NotationError(f"a contract cannot be {format_value(value)}", where=where, fix=_AS_LIST)
    joined = Contract()
    for index, line in enumerate(value, start=1):
        if not isinstance(line, str):
            raise NotationError(
                f"{format_value(line)} is not a line of a contract", where=where, fix='write "all-reduce@Y <= 32KiB"'
            )
        entry = f"{where}, entry {index}"
        try:
            joined = join_contracts(joined, parse_contract(line, where=entry))
        except NotationError as error:
            error.where = error.where or entry
            raise
    return joined


def parse_contract(text: str, *, where: str = "contract") -> Contract:
    """Reads a contract.

    Args:
        text: Clauses on lines of their own or between semicolons; `#` begins a comment.
        where: Where the user wrote it, for messages.

    Raises:
        NotationError: The text is no contract, or is empty; it names no kind of collective; two clauses say different
            things of the same collectives; or it says `none` and expects some.
    """
    source = _ContractSource(text, where)
    contract = Contract()
    clauses = source.parse().children
    if not clauses:
        raise NotationError("an empty contract", where=where, fix="write, for example, all-reduce@Y <= 32KiB x2")
    for clause in clauses:
        if isinstance(clause, Token):
            contract = join_contracts(contract, _FLAGS[clause.type])
        else:
            contract = _join(contract, clause, source)
    none = next((clause for clause in clauses if isinstance(clause, Token) and clause.type == "NONE"), None)
    if contract.all_of(Expectation) and none is not None:
        raise source.error(
            "the contract says none, and expects a collective",
            find_start(none),
            fix='for "no others than these" write: nothing else',
        )
    return contract


def parse_selector(text: str, *, where: str) -> Selector:
    """Reads what collectives a clause speaks of, without the clause: `all-gather@(X,Y) in "model/attention.py"`.

    Raises:
        NotationError: The text is no selector, or names no kind of collective.
    """
    source = _ContractSource(text, where)
    return _parse_selector(source.parse("selector"), source)


def select_collectives(collectives: Collectives, text: str) -> list[Collective]:
    """`Collectives.selected`."""
    wanted = parse_selector(text, where=f"the selector {text!r}")
    return find_matching(collectives, wanted, collectives.mesh_axes)


def _join(contract: Contract, tree: Tree[Token], source: _ContractSource) -> Contract:
    clause = _CLAUSES[tree.data](tree, source)
    try:
        return join_contracts(contract, Contract(clauses=(clause,)))
    except NotationError as error:
        raise source.error(error.what, _find_clause_start(tree), why=error.why, fix=error.fix) from None


def _parse_expectation(tree: Tree[Token], source: _ContractSource) -> Expectation:
    amounts = find_subtrees(tree, "at_most")
    found = {token.type: token for token in (find_tokens(amounts[0]) if amounts else [])}
    size = _parse_amount(found["AMOUNT"], BYTE_UNITS, source) if "AMOUNT" in found else None
    per_step = "PER_STEP" in found
    return Expectation(
        selector=_parse_selector(find_subtrees(tree, "selector")[0], source),
        max_bytes=None if per_step else size,
        max_bytes_per_step=size if per_step else None,
        max_count=int(found["COUNT"].strip("x× \t")) if "COUNT" in found else None,
    )


def _parse_ban(tree: Tree[Token], source: _ContractSource) -> Ban:
    return Ban(selector=_parse_selector(find_subtrees(tree, "selector")[0], source))


def _parse_limit(tree: Tree[Token], source: _ContractSource) -> Limit:
    found = {token.type: token for token in find_tokens(tree)}
    quantity, amount = Quantity(found["QUANTITY"]), found["AMOUNT"]
    selector = Selector(axes=_parse_axes(tree), link=_parse_link(found))
    if quantity not in MOVED and selector != Selector():
        raise source.error(
            f"{quantity} belongs to a {_OWNERS.get(quantity, 'device')}, not to an axis or a network",
            find_start(found["QUANTITY"]),
            fix=f"write {quantity} <= …, or wire@AXIS <= …",
        )
    share = quantity is Quantity.EXPOSED and amount.rstrip().endswith("%")
    if "PER_STEP" in found and (share or quantity in _NOT_PER_STEP):
        what = "a share of the step" if share else _NOT_PER_STEP[quantity]
        raise source.error(
            f"{quantity} is {what}, not an amount per step", find_start(found["PER_STEP"]), fix="leave out /step"
        )
    limit = Limit(quantity=quantity, most=0, share=share, selector=selector)
    most = _parse_amount(amount, limit.units, source)
    if share and most >= WHOLE:
        raise source.error(
            "a step never waits for more than all of its time", find_start(amount), fix="give less than 100%"
        )
    return replace(limit, most=most)


_OWNERS = {Quantity.REPEATED: "program"}
_NOT_PER_STEP = {Quantity.HBM: "a peak, which no step adds to", Quantity.REPEATED: "a ratio"}


def _parse_trips(tree: Tree[Token], source: _ContractSource) -> Trips:
    place, count = find_tokens(tree)
    if not int(count):
        raise source.error("a loop of no trips moves nothing", find_start(count), fix="give 1 trip or more")
    return Trips(source=str(place)[1:-1], count=int(count))


_CLAUSES: dict[str, Callable[[Tree[Token], _ContractSource], Clause]] = {
    "expectation": _parse_expectation,
    "ban": _parse_ban,
    "limit": _parse_limit,
    "trips": _parse_trips,
}


def _parse_selector(tree: Tree[Token], source: _ContractSource) -> Selector:
    found = {token.type: token for token in find_tokens(tree)}
    kind = found["KIND"]
    if not any(fnmatchcase(known, kind) for known in Kind):
        raise source.error(
            f"there is no kind of collective {str(kind)!r}",
            find_start(kind),
            fix=_find_nearest_word(str(kind)) or f"use one of {', '.join(Kind)}, or a pattern such as all-*",
        )
    selector = Selector(
        kind=str(kind),
        axes=_parse_axes(tree),
        link=_parse_link(found),
        source=str(found["QUOTED"])[1:-1] if "QUOTED" in found else str(found["PLACE"]) if "PLACE" in found else None,
    )
    if (reduction := found.get("REDUCTION")) is None:
        return selector
    try:
        return replace(selector, reduction=str(reduction))
    except NotationError as error:
        raise source.error(error.what, find_start(reduction), fix=error.fix) from None


def _parse_link(found: Mapping[str, Token]) -> Link | None:
    return Link(found["LINK"]) if "LINK" in found else None


def _parse_axes(tree: Tree[Token]) -> tuple[str, ...] | None:
    axes = find_subtrees(tree, "axes")
    if not axes:
        return None
    return tuple(token[1:-1] if token.type == "QUOTED_AXIS" else str(token) for token in find_tokens(axes[0]))


def _parse_amount(token: Token, units: Units, source: _ContractSource) -> int:
    where, column, line = source.place(find_start(token))
    return parse_amount(str(token), units, where=where, column=column, line=line)


def _find_clause_start(tree: Tree[Token]) -> int:
    return min(find_start(token) for token in tree.scan_values(lambda value: isinstance(value, Token)))


@cache
def _make_parser() -> Lark:
    return Lark(read_grammar("contract"), parser="lalr", start=["contract", "selector"], maybe_placeholders=False)


class _ContractSource(QuotedText):
    """The text of a contract, or of a part of one."""

    __slots__ = ()

    def parse(self, start: str = "contract") -> Tree[Token]:
        """Reads the text.

        Args:
            start: What it is: a `contract`, or only the `selector` of a clause.

        Raises:
            NotationError: The text is not of that kind.
        """
        try:
            return _make_parser().parse(self.text, start=start)
        except UnexpectedInput as error:
            self._refuse(error, start)

    def _refuse(self, error: UnexpectedInput, start: str) -> NoReturn:
        position, found = self._find_mistake(error)
        raise self.error(
            "this is not a contract" if start == "contract" else "this names no collectives",
            position,
            why=found + describe_expected(error, _WORDS),
            fix=self._suggest(position) or f"write, for example, {_EXAMPLES[start]}",
        ) from None

    def _find_mistake(self, error: UnexpectedInput) -> tuple[int, str]:
        """The 0-based position of what does not belong, and what it is."""
        token = error.token if isinstance(error, UnexpectedToken) else None
        if token is not None and token.type == "$END":
            return len(self.text.rstrip()), "it ends here"
        position = error.pos_in_stream or 0
        if token is not None and token.type == "_NEWLINE":
            return position, "the clause ends here"
        shown = _UP_TO_BLANK.match(self.text, position)
        return position, f'"{shown[0] if shown else self.text[position]}" does not belong here'

    def _suggest(self, position: int) -> str | None:
        """A suggestion for the first word of the clause, if that is no word of the notation."""
        _, column, line = self.place(position)
        clause = line[line.rfind(";", 0, column - 1) + 1 :].split(";")[0].strip()
        first = clause.replace("@", " ").partition(" ")[0]
        if first in ("only", "just"):
            return f"write {clause.removeprefix(first).strip() or _EXAMPLE}; nothing else"
        return None if first in _CLAUSE_WORDS or first in set(Kind) else _find_nearest_word(first)


def _find_nearest_word(word: str) -> str | None:
    """The kind or the clause that a word is near to, as a question; None if it is near to nothing."""
    return did_you_mean(word.lower().replace("_", "-"), (*Kind, *_CLAUSE_WORDS))
