"""What an analysis was made of: kept beside it in the process that made it, and in no document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hloscope.analysis.model.trial import Trials
from hloscope.errors import HloscopeError
from hloscope.hlo import HloModule, parse_module
from hloscope.program.capture import Capture

_Result = TypeVar("_Result", bound="Evident")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A compiled program, from which more can be read than an analysis holds.

    Attributes:
        program: The program.
        name: What the user named.
        source_root: For HLO text: the folder in which files that it names may be read; None for none at all.
        trials: What became of changes that were tried against collectives, by computation and name, as far as known.
    """

    program: Capture
    name: str
    source_root: Path | None = None
    trials: Mapping[tuple[str, str], Trials] = field(default_factory=dict)

    def module(self) -> HloModule:
        """The parsed text, which is parsed at each call: it takes many times the text's memory."""
        return parse_module(self.program.compiled.text, name=f"{self.name} (compiled)")


class Evident:
    """A result that remembers what it was made of, unless it is copied, pickled or read from a document."""

    __slots__ = ("_evidence",)

    if TYPE_CHECKING:
        _evidence: Evidence

    @property
    def evidence(self) -> Evidence:
        """What it was made of.

        Raises:
            HloscopeError: That is not known here.
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
        """Another result of the same program, which remembers what this one does."""
        return with_evidence(other, self._evidence) if hasattr(self, "_evidence") else other


def evidence_if_known(found: Evident) -> Evidence | None:
    """What a result was made of; None where that is not known here."""
    return getattr(found, "_evidence", None)


def with_evidence(result: _Result, evidence: Evidence) -> _Result:
    """The result, which remembers what it was made of from here on."""
    object.__setattr__(result, "_evidence", evidence)
    return result
