"""What `hloscope doctor` finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from hloscope.documents import SCHEMA, Schema
from hloscope.shown import Shown

if TYPE_CHECKING:
    from hloscope.plain_types import DoctorDict

_MARKS = {True: "works", False: "FAILS", None: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """One thing that was looked at.

    Attributes:
        name: What.
        found: What was found.
        works: Whether it does what it is for; None where it is only reported.
        fix: What helps where it does not.
    """

    name: str
    found: str
    works: bool | None = None
    fix: str | None = None


class Checkups(tuple[Checkup, ...], Shown):
    """Everything that was looked at."""

    __slots__ = ()

    def __repr__(self) -> str:
        failing = [checkup.name for checkup in self if checkup.works is False]
        return f"<Checkups: {', '.join(failing)} fail>" if failing else "<Checkups: everything works>"

    def _subject(self) -> str:
        return "checkups"

    if TYPE_CHECKING:

        def to_dict(self) -> DoctorDict:
            """The result as plain data."""


def lines(found: Sequence[Checkup], _width: int) -> Iterator[Text]:
    """A line for each thing, and what helps below what fails."""
    width = max(len(checkup.name) for checkup in found)
    for checkup in found:
        yield Text(f"{checkup.name:<{width}}  {_MARKS[checkup.works]:<5}  {checkup.found}")
        if checkup.fix:
            yield Text(f"{'':<{width}}         fix: {checkup.fix}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorDocument:
    """What `hloscope doctor` looked at.

    Attributes:
        schema: Version of this document's shape.
        checkups: One for each thing.
    """

    schema: Schema = SCHEMA
    checkups: tuple[Checkup, ...]


def as_document(found: Sequence[Checkup]) -> DoctorDocument:
    """The same as one document."""
    return DoctorDocument(checkups=tuple(found))
