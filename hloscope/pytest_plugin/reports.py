"""What a test holds in its hands: an analysis that can be compared with a contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from hloscope.analysis.model import Analysis, Collective
from hloscope.contracts.building import only
from hloscope.contracts.evaluate import evaluate
from hloscope.contracts.model import Contract
from hloscope.contracts.notation import read_contract
from hloscope.contracts.suggestions import found_words
from hloscope.contracts.verdict import Verdict

_BREACHES_SHOWN = 4


def contract_of(value: object) -> Contract:
    """A contract, or one of its spellings: text, or a list of lines.

    Raises:
        NotationError: It is none of these, or written wrongly.
    """
    return value if isinstance(value, Contract) else read_contract(value)


class CollectiveList(Sequence[Collective]):
    """The collectives of a program; equal to a list of expectations when it moves these and nothing else.

    Attributes:
        analysis: The program.
    """

    __slots__ = ("analysis",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis

    @overload
    def __getitem__(self, index: int) -> Collective: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Collective, ...]: ...

    def __getitem__(self, index: int | slice) -> Collective | tuple[Collective, ...]:
        return self.analysis.collectives[index]

    def __len__(self) -> int:
        return len(self.analysis.collectives)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list) and all(isinstance(one, Contract | str) for one in other):
            return evaluate(only_these(other), self.analysis).holds
        if isinstance(other, CollectiveList):
            return self.analysis.collectives == other.analysis.collectives
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        """Whether it surely moves something else than a list of expectations says."""
        if isinstance(other, list) and all(isinstance(one, Contract | str) for one in other):
            return evaluate(only_these(other), self.analysis).broken
        return not self == other

    def __repr__(self) -> str:
        return f"[{found_words(self.analysis.collectives)}]" if self.analysis.collectives else "[]"


def only_these(expected: Iterable[object]) -> Contract:
    """The contract of a list of expectations: these, and nothing else."""
    return only(*map(contract_of, expected))


class Report:
    """The analysis of a program, with all of its attributes; equal to a contract that it keeps to.

    Attributes:
        analysis: The analysis itself.
        root: The project's folder; None when it is not known.
    """

    __slots__ = ("analysis", "root")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, analysis: Analysis, root: Path | None = None) -> None:
        self.analysis = analysis
        self.root = root

    def __getattr__(self, name: str) -> Any:
        return getattr(self.analysis, name)

    @property
    def collectives(self) -> CollectiveList:
        """What it moves, to be read one by one or compared with a list of expectations."""
        return CollectiveList(self.analysis)

    def verdict(self, contract: object) -> Verdict:
        """What a contract says of it."""
        return evaluate(contract_of(contract), self.analysis, root=self.root)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Report):
            return self.analysis == other.analysis
        if isinstance(other, Contract):
            return self.verdict(other).holds
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        """Whether it surely breaks a contract: one that cannot be decided is neither kept nor broken."""
        if isinstance(other, Contract):
            return self.verdict(other).broken
        return not self == other

    def __repr__(self) -> str:
        return repr(self.analysis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A comparison that failed.

    Attributes:
        expectation: What was asserted.
        verdict: What is wrong.
    """

    expectation: str
    verdict: Verdict

    @property
    def summary(self) -> list[str]:
        """A line for each breach, no more than pytest shows of an assertion without `-vv`."""
        breaches = self.verdict.breaches
        messages = [f"{one.kind}: {one.message}" for one in breaches[:_BREACHES_SHOWN]]
        hidden = len(breaches) - len(messages)
        return [self.expectation, *messages, *([f"and {hidden} more"] if hidden else []), "told in full below"]


def failure_of(left: object, right: object) -> Failure | None:
    """What is wrong when a report or its collectives are not as expected; None for other comparisons."""
    if isinstance(left, Contract) and isinstance(right, Report):
        left, right = right, left
    if isinstance(left, Report) and isinstance(right, Contract):
        return Failure(expectation="the program keeps to its contract", verdict=left.verdict(right))
    if isinstance(left, CollectiveList) and isinstance(right, list):
        verdict = evaluate(only_these(right), left.analysis)
        return Failure(expectation="the collectives are these and no others", verdict=verdict)
    return None
