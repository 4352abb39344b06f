"""Reports for tests: a program that can be compared with contracts, and the messages of failed comparisons."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dis import get_instructions
from pathlib import Path
from types import FrameType
from typing import Any, TypeGuard, overload

from hloscope.base.calls import front_door
from hloscope.base.errors import NotationError
from hloscope.judge.building import only
from hloscope.judge.evaluate import evaluate
from hloscope.judge.model import Contract, Expectation, find_matching
from hloscope.judge.notation import read_contract
from hloscope.judge.verdict import BreachKind, Verdict, format_found
from hloscope.model import Analysis, Collective, Collectives

_BREACHES_SHOWN = 4


def make_contract(value: object) -> Contract:
    """A contract, or one of its spellings: text, or a list of lines.

    Raises:
        NotationError: It is not one of these, or written wrongly.
    """
    return value if isinstance(value, Contract) else read_contract(value)


class _Comparable:
    """A part of a program that equals an expectation if it satisfies it, and another such part if it moves the same.

    A comparison counts as an assertion about the program, unless its result is discarded.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]
    report: Report
    part: Any

    def is_expectation(self, value: object) -> bool:
        """True if a value is an expectation of this part."""
        raise NotImplementedError

    def verdict(self, expected: Any) -> Verdict:
        """Returns the verdict of an expectation on the part."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if isinstance(other, type(self)):
            if other.part is not self.part and not _is_discarded(sys._getframe(1)):
                self.report.is_judged = other.report.is_judged = True
            return bool(self.part == other.part)
        if not self.is_expectation(other):
            return NotImplemented
        if not _is_discarded(sys._getframe(1)):
            self.report.is_judged = True
        return self.verdict(other).holds

    def __ne__(self, other: object) -> bool:
        """True if it surely breaks an expectation: one that cannot be decided is neither kept nor broken."""
        if not self.is_expectation(other):
            return not self == other
        if not _is_discarded(sys._getframe(1)):
            self.report.is_judged = True
        return _surely_broken(self.verdict(other))


class CollectiveList(_Comparable, Sequence[Collective]):
    """The collectives of a program; equal to a list of expectations if it moves these and nothing else.

    Attributes:
        report: The report on the program.
        part: The collectives.
    """

    __slots__ = ("part", "report")

    def __init__(self, report: Report) -> None:
        self.report = report
        self.part: Collectives = report.part.collectives

    @overload
    def __getitem__(self, index: int) -> Collective: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Collective, ...]: ...

    def __getitem__(self, index: int | slice) -> Collective | tuple[Collective, ...]:
        self.report.is_judged = True
        return self.part[index]

    def __len__(self) -> int:
        self.report.is_judged = True
        return len(self.part)

    def __bool__(self) -> bool:
        """True if anything moves; that something does is no expectation."""
        self.report.is_judged |= not self.part
        return bool(self.part)

    @front_door
    def __contains__(self, wanted: object) -> bool:
        """True if there is such a collective: one of them, or one that an expectation covers, surely or perhaps.

        Raises:
            NotationError: The expectation is invalid, or names an axis that the mesh does not have.
        """
        self.report.is_judged |= isinstance(wanted, Collective | Contract | str)
        if not isinstance(wanted, Contract | str):
            return wanted in self.part
        expected = make_contract(wanted)
        if not expected.clauses or not all(isinstance(clause, Expectation) for clause in expected.clauses):
            raise NotationError(f"{expected} is not an expectation of a program", fix='write all_gather("X")')
        mesh = self.report.part.mesh
        axes = None if mesh is None else mesh.axis_names
        return all(find_matching(self.part, selector, axes) for selector in expected.selectors)

    def is_expectation(self, value: object) -> TypeGuard[list[Contract | str]]:
        """True if a value is a list of expectations."""
        return isinstance(value, list) and all(isinstance(expected, Contract | str) for expected in value)

    @front_door
    def verdict(self, expected: Iterable[object]) -> Verdict:
        """Returns the verdict of a list of expectations on the program: these, and nothing else."""
        return evaluate(only(*map(make_contract, expected)), self.report.part)

    def __repr__(self) -> str:
        return f"[{format_found(self.part)}]" if self.part else "[]"


class Report(_Comparable):
    """The analysis of a program, with all of its attributes; equal to a contract that it satisfies.

    Attributes:
        part: The analysis; reading it here is no assertion.
        root: The project's folder; None if unknown.
        is_judged: Whether something of it was read, or compared and not discarded.
    """

    __slots__ = ("is_judged", "part", "root")

    def __init__(self, analysis: Analysis, root: Path | None = None, *, is_judged: bool = False) -> None:
        self.part: Analysis = analysis
        self.root = root
        self.is_judged = is_judged

    @property
    def report(self) -> Report:  # type: ignore[override]
        """Itself."""
        return self

    @property
    def analysis(self) -> Analysis:
        """The analysis."""
        self.is_judged = True
        return self.part

    def __getattr__(self, name: str) -> Any:
        return getattr(self.analysis, name)

    @property
    def collectives(self) -> CollectiveList:
        """The collectives, which can be compared with a list of expectations."""
        return CollectiveList(self)

    def is_expectation(self, value: object) -> TypeGuard[Contract]:
        """True if a value is a contract."""
        return isinstance(value, Contract)

    @front_door
    def verdict(self, contract: object) -> Verdict:
        """Returns the verdict of a contract on the program."""
        return evaluate(make_contract(contract), self.part, root=self.root)

    def __repr__(self) -> str:
        return repr(self.part)


def _surely_broken(verdict: Verdict) -> bool:
    """True if a program breaks a contract that it could keep.

    Raises:
        NotationError: It is broken because nothing could keep it: it names an axis that the mesh does not have.
    """
    idle = next((breach for breach in verdict.breaches if breach.kind is BreachKind.VACUOUS), None)
    if idle is not None and verdict.broken:
        fix = f"expected {idle.expected}, found {idle.found}"
        raise NotationError(f"the expectation cannot fail: {idle.message}", fix=fix)
    return verdict.broken


def _is_discarded(frame: FrameType) -> bool:
    """True if a frame discards the result of the operator that it runs: `report == only(…)` without `assert`."""
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


def find_failure(left: object, right: object) -> Failure | None:
    """The failed comparison of a report or its collectives with an expectation; None for other comparisons."""
    if isinstance(left, Contract) and isinstance(right, Report):
        left, right = right, left
    if isinstance(left, Report) and isinstance(right, Contract):
        return Failure(expectation="the program keeps to its contract", verdict=left.verdict(right))
    if isinstance(left, CollectiveList) and isinstance(right, list):
        return Failure(expectation="the collectives are these and no others", verdict=left.verdict(right))
    return None
