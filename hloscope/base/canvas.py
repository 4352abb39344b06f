"""The canvas of a report: its width and colours, and the options of its listing, each declared here once.

The command line and the signature of `Shown.report` are made from the fields of `Canvas`; renderers read them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, get_args

P = ParamSpec("P")
T = TypeVar("T")

Grouping = Literal["module", "axis", "line", "kind"]
GROUPINGS: tuple[str, ...] = get_args(Grouping)
"""The groupings of an analysis's collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingOption:
    """The description of an option of a report's listing.

    Attributes:
        default: Its value if it is not given.
        flag: Its flag on the command line, as click declares it.
        help: Its text in the command line's help.
        says: Its description in Python.
        of: The subjects of `hloscope.report.formats.FORMATS` whose commands have it.
        choices: The values that it takes; empty for a switch.
        noun: One of its values, in messages.
    """

    default: Any
    flag: str
    help: str
    says: str
    of: tuple[str, ...]
    choices: tuple[str, ...] = ()
    noun: str = ""


def listed(**described: Any) -> Any:
    """Makes a field of `Canvas` for an option, described as in `ListingOption`."""
    option = ListingOption(**described)
    return field(default=option.default, metadata={"option": option})


class Listing(TypedDict, total=False):
    """The options of a listing as Python takes them, by the names of the fields of `Canvas`."""

    group_by: Grouping | None
    everything: bool
    source: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """The place that a report is rendered for, and what the user wants to see.

    Attributes:
        width: Columns.
        colour: Whether ANSI colours are understood.
    """

    width: int = 100
    colour: bool = False
    group_by: Grouping | None = listed(
        default=None,
        flag="--group-by",
        help="How to group collectives. [default: by module when there are too many to list individually]",
        says="For an analysis, what to group collectives by; by default they are grouped if there are many.",
        of=("analysis",),
        choices=GROUPINGS,
        noun="grouping",
    )
    everything: bool = listed(
        default=False,
        flag="--all",
        help="List every collective and every finding individually; for a folder of dumps, analyze every module.",
        says="For an analysis, whether to list each collective and finding individually.",
        of=("analysis",),
    )
    source: bool = listed(
        default=True,
        flag="--source/--no-source",
        help="Of a page: whether it holds lines of the user's code. [default: it does]",
        says="For an HTML page, whether to include lines of user code.",
        of=("analysis", "difference"),
    )


LISTING: dict[str, ListingOption] = {each.name: each.metadata["option"] for each in fields(Canvas) if each.metadata}
"""The options of a listing by the names of their fields, in the order of the command line's help."""


def accept_listing(report: Callable[P, T]) -> Callable[P, T]:
    """Adds the options of a listing to a method's signature and, in place of `{listing}`, to its docstring."""
    shown = inspect.signature(report)
    own = [each for each in shown.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    types, keyword = Canvas.__annotations__, inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=option.default, annotation=types[name])
        for name, option in LISTING.items()
    ]
    report.__signature__ = shown.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    doc = report.__doc__ or ""
    indent = doc.partition("{listing}")[0].rpartition("\n")[2]  # Python 3.13 takes the common one away
    said = f"\n{indent}".join(f"{name}: {option.says}" for name, option in LISTING.items())
    report.__doc__ = doc.replace("{listing}", said)
    return report
