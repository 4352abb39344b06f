"""The results of `hloscope doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from hloscope.base.documents import SCHEMA, Schema
from hloscope.base.results import Shown

if TYPE_CHECKING:
    from hloscope.plain_types import DoctorDict

_MARKS = {True: "works", False: "FAILS", None: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """One check of the machine or the installation.

    Attributes:
        name: What was checked.
        found: What was found.
        works: Whether it works; None if it is only reported.
        fix: How to fix it if it does not work.
    """

    name: str
    found: str
    works: bool | None = None
    fix: str | None = None


class Checkups(tuple[Checkup, ...], Shown):
    """The results of all checks."""

    _subject = "checkups"

    __slots__ = ()

    def __repr__(self) -> str:
        failing = [checkup.name for checkup in self if checkup.works is False]
        return f"<Checkups: {', '.join(failing)} fail>" if failing else "<Checkups: everything works>"

    if TYPE_CHECKING:

        def to_dict(self) -> DoctorDict:
            """The result as plain data."""


def render_checkups(found: Sequence[Checkup], _width: int) -> Iterator[Text]:
    """A line for each checkup, with the fix below one that fails."""
    width = max(len(checkup.name) for checkup in found)
    for checkup in found:
        yield Text(f"{checkup.name:<{width}}  {_MARKS[checkup.works]:<5}  {checkup.found}")
        if checkup.fix:
            yield Text(f"{'':<{width}}         fix: {checkup.fix}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorDocument:
    """The results of `hloscope doctor`, as a document.

    Attributes:
        schema: Schema version of the document.
        checkups: One result per check.
    """

    schema: Schema = SCHEMA
    checkups: tuple[Checkup, ...]


def make_doctor_document(found: Sequence[Checkup]) -> DoctorDocument:
    """The checkups as one document."""
    return DoctorDocument(checkups=tuple(found))
