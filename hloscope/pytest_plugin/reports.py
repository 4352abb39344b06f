"""Reports for tests: a program that can be compared with contracts, and the messages of failed comparisons."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dis import get_instructions
from pathlib import Path
from types import FrameType
from typing import Any, TypeGuard, overload

from hloscope.base.calls import front_door
from hloscope.base.errors import NotationError
from hloscope.judge.building import only
from hloscope.judge.evaluate import evaluate
from hloscope.judge.model import Contract, Expectation, chosen
from hloscope.judge.notation import read_contract
from hloscope.judge.verdict import BreachKind, Verdict, found_words
from hloscope.model import Analysis, Collective

_BREACHES_SHOWN = 4


def contract_of(value: object) -> Contract:
    """A contract, or one of its spellings: text, or a list of lines.

    Raises:
        NotationError: It is none of these, or written wrongly.
    """
    return value if isinstance(value, Contract) else read_contract(value)


class CollectiveList(Sequence[Collective]):
    """The collectives of a program; equal to a list of expectations if it moves these and nothing else.

    Attributes:
        analysis: The program.
    """

    __slots__ = ("_judged", "analysis")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, analysis: Analysis, judged: Callable[[], None] = lambda: None) -> None:
        self.analysis = analysis
        self._judged = judged

    @overload
    def __getitem__(self, index: int) -> Collective: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Collective, ...]: ...

    def __getitem__(self, index: int | slice) -> Collective | tuple[Collective, ...]:
        self._judged()
        return self.analysis.collectives[index]

    def __len__(self) -> int:
        self._judged()
        return len(self.analysis.collectives)

    def __bool__(self) -> bool:
        """Whether anything moves; that something does is no expectation."""
        if not self.analysis.collectives:
            self._judged()
        return bool(self.analysis.collectives)

    @front_door
    def __contains__(self, wanted: object) -> bool:
        """Whether there is such a collective: one of them, or what an expectation speaks of, surely or perhaps.

        Raises:
            NotationError: The expectation is none, or names an axis that the mesh does not have.
        """
        if isinstance(wanted, Collective | Contract | str):
            self._judged()
        if not isinstance(wanted, Contract | str):
            return wanted in self.analysis.collectives
        expected = contract_of(wanted)
        if not expected.clauses or not all(isinstance(clause, Expectation) for clause in expected.clauses):
            raise NotationError(f"{expected} is not an expectation of a program", fix='write all_gather("X")')
        mesh = self.analysis.mesh
        axes = None if mesh is None else mesh.axis_names
        return all(chosen(self.analysis.collectives, selector, axes) for selector in expected.selectors)

    def __eq__(self, other: object) -> bool:
        of_another = isinstance(other, CollectiveList) and other.analysis is not self.analysis
        if (of_another or _are_expectations(other)) and not _is_discarded(sys._getframe(1)):
            self._judged()
            if isinstance(other, CollectiveList):
                other._judged()
        if _are_expectations(other):
            return self.verdict(other).holds
        if isinstance(other, CollectiveList):
            return self.analysis.collectives == other.analysis.collectives
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        """Whether it surely moves something else than a list of expectations says."""
        if not _are_expectations(other):
            return not self == other
        if not _is_discarded(sys._getframe(1)):
            self._judged()
        return _surely_broken(self.verdict(other))

    @front_door
    def verdict(self, expected: Iterable[object]) -> Verdict:
        """What a list of expectations says of it: these, and nothing else."""
        return evaluate(only(*map(contract_of, expected)), self.analysis)

    def __repr__(self) -> str:
        return f"[{found_words(self.analysis.collectives)}]" if self.analysis.collectives else "[]"


def _are_expectations(value: object) -> TypeGuard[list[Contract | str]]:
    return isinstance(value, list) and all(isinstance(expected, Contract | str) for expected in value)


class Report:
    """The analysis of a program, with all of its attributes; equal to a contract that it satisfies.

    Attributes:
        root: The project's folder; None if unknown.
        is_judged: Whether something of it was read, or compared and not thrown away.
    """

    __slots__ = ("_analysis", "is_judged", "root")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, analysis: Analysis, root: Path | None = None, *, is_judged: bool = False) -> None:
        self._analysis = analysis
        self.root = root
        self.is_judged = is_judged

    def judged(self) -> None:
        """Takes note that something of it was read or compared."""
        self.is_judged = True

    @property
    def analysis(self) -> Analysis:
        """The analysis."""
        self.judged()
        return self._analysis

    def __getattr__(self, name: str) -> Any:
        return getattr(self.analysis, name)

    @property
    def collectives(self) -> CollectiveList:
        """The collectives, which can be compared with a list of expectations."""
        return CollectiveList(self._analysis, self.judged)

    @front_door
    def verdict(self, contract: object) -> Verdict:
        """Returns the verdict of a contract on the program."""
        return evaluate(contract_of(contract), self._analysis, root=self.root)

    def __eq__(self, other: object) -> bool:
        of_another = isinstance(other, Report) and other._analysis is not self._analysis
        if (of_another or isinstance(other, Contract)) and not _is_discarded(sys._getframe(1)):
            self.judged()
            if isinstance(other, Report):
                other.judged()
        if isinstance(other, Report):
            return self._analysis == other._analysis
        if isinstance(other, Contract):
            return self.verdict(other).holds
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        """Whether it surely breaks a contract: one that cannot be decided is neither kept nor broken."""
        if not isinstance(other, Contract):
            return not self == other
        if not _is_discarded(sys._getframe(1)):
            self.judged()
        return _surely_broken(self.verdict(other))

    def __repr__(self) -> str:
        return repr(self._analysis)


def _surely_broken(verdict: Verdict) -> bool:
    """Whether a program breaks a contract that it could keep.

    Raises:
        NotationError: It is broken because nothing could keep it: it names an axis that the mesh does not have.
    """
    idle = next((breach for breach in verdict.breaches if breach.kind is BreachKind.VACUOUS), None)
    if idle is not None and verdict.broken:
        fix = f"expected {idle.expected}, found {idle.found}"
        raise NotationError(f"the expectation cannot fail: {idle.message}", fix=fix)
    return verdict.broken


def _is_discarded(frame: FrameType) -> bool:
    """Whether nobody looks at what a frame is about to get from an operator: `report == only(…)` without `assert`."""
    instructions = [each for each in get_instructions(frame.f_code) if each.opname != "CACHE"]
    following = [(each.opname, each.argval) for each in instructions if each.offset > frame.f_lasti]
    match following:
        case [("POP_TOP", _), *_]:
            return True
        case [("RETURN_VALUE", _), *_]:  # to pytest, which wants nothing from a test
            return frame.f_code.co_name.startswith("test")
        case [("STORE_FAST", name), *_]:
            loads = [each.argval for each in instructions if "LOAD" in each.opname]
            return not any(name in (loaded if isinstance(loaded, tuple) else (loaded,)) for loaded in loads)
        case [("LOAD_CONST", _), ("BUILD_TUPLE", _), (_, name), *_]:  # assert (report == only(…), "words")
            return str(name).lstrip("('").startswith("@py_assert")
    return False


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
        messages = [f"{breach.kind}: {breach.message}" for breach in breaches[:_BREACHES_SHOWN]]
        hidden = len(breaches) - len(messages)
        return [self.expectation, *messages, *([f"and {hidden} more"] if hidden else []), "reported in full below"]


def failure_of(left: object, right: object) -> Failure | None:
    """What is wrong when a report or its collectives are not as expected; None for other comparisons."""
    if isinstance(left, Contract) and isinstance(right, Report):
        left, right = right, left
    if isinstance(left, Report) and isinstance(right, Contract):
        return Failure(expectation="the program keeps to its contract", verdict=left.verdict(right))
    if isinstance(left, CollectiveList) and isinstance(right, list):
        return Failure(expectation="the collectives are these and no others", verdict=left.verdict(right))
    return None
