"""The compiled program behind a result, kept with it in the process that made it but not in documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hloscope.base.errors import HloscopeError
from hloscope.model.capture import Capture
from hloscope.model.trial import Trials

if TYPE_CHECKING:
    from hloscope.hlo import HloModule

_Result = TypeVar("_Result", bound="Evident")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A compiled program, from which more can be derived than its analysis contains.

    Attributes:
        program: The program.
        name: The target as the user named it.
        source_root: For HLO text, the folder below which source files that it names may be read; None to read none.
        trials: Known results of changes tried against collectives, by computation and name.
    """

    program: Capture
    name: str
    source_root: Path | None = None
    trials: Mapping[tuple[str, str], Trials] = field(default_factory=dict)

    def module(self) -> HloModule:
        """The parsed text; parsed on each call, because it takes many times the memory of the text."""
        from hloscope.hlo import parse_module  # reading an analysis needs no parser

        return parse_module(self.program.compiled.text, name=f"{self.name} (compiled)")


class Evident:
    """A result that keeps its evidence, unless it is copied, pickled or read from a document."""

    __slots__ = ("_evidence",)

    if TYPE_CHECKING:
        _evidence: Evidence

    @property
    def evidence(self) -> Evidence:
        """The evidence for this result.

        Raises:
            HloscopeError: The evidence is not available in this process.
        """
        found: Evidence | None = getattr(self, "_evidence", None)
        if found is None:
            raise HloscopeError(
                "the compiled program of this analysis is not available here",
                why="it was read from a document, or made in another process",
                fix="analyze the target again in this process",
            )
        return found

    def _remembered_by(self, other: _Result) -> _Result:
        """Copies the evidence of this result to another result of the same program."""
        return attach_evidence(other, self._evidence) if hasattr(self, "_evidence") else other


def find_evidence(found: Evident) -> Evidence | None:
    """Returns the evidence for a result; None if it is not available in this process."""
    return getattr(found, "_evidence", None)


def attach_evidence(result: _Result, evidence: Evidence) -> _Result:
    """Returns the result with its evidence attached."""
    object.__setattr__(result, "_evidence", evidence)
    return result
