"""What `hloscope doctor` finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hloscope.documents import SCHEMA, Schema
from hloscope.report.escaping import dumped
from hloscope.report.formats import Canvas

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


def render(found: Sequence[Checkup], _canvas: Canvas) -> str:
    """A line for each thing, and what helps below what fails."""
    width = max(len(checkup.name) for checkup in found)
    lines = []
    for checkup in found:
        lines.append(f"{checkup.name:<{width}}  {_MARKS[checkup.works]:<5}  {checkup.found}".rstrip())
        lines += [f"{'':<{width}}         fix: {checkup.fix}"] if checkup.fix else []
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorDocument:
    """What `hloscope doctor` looked at.

    Attributes:
        schema: Version of this document's shape.
        checkups: One for each thing.
    """

    schema: Schema = SCHEMA
    checkups: tuple[Checkup, ...]


def render_json(found: Sequence[Checkup], _canvas: Canvas) -> str:
    """The same as one document."""
    return dumped(DoctorDocument(checkups=tuple(found)))
