"""The fixture `hlo`: programs that can be compared with contracts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dis import get_instructions
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeGuard, overload

import pytest

from hloscope.analysis.model import Analysis, Collective
from hloscope.ci import is_strict
from hloscope.contracts.building import only
from hloscope.contracts.evaluate import evaluate
from hloscope.contracts.model import Contract, Expectation
from hloscope.contracts.notation import read_contract
from hloscope.contracts.selecting import chosen
from hloscope.contracts.verdict import BreachKind, Verdict, found_words
from hloscope.errors import NotationError, did_you_mean
from hloscope.program.target import BY_NAME, OPTIONS
from hloscope.pytest_plugin.baselines import against_test, name_of_test
from hloscope.python_words import front_door

if TYPE_CHECKING:
    from hloscope.verification.model import Verification

_OF_TEXT = (*(option.name for option in OPTIONS if option.of_text), "source_root")
"""What HLO text can be told beside itself."""
_BREACHES_SHOWN = 4

Program: TypeAlias = "Report | Analysis | Callable[..., Any] | str | Path"


class Hlo:
    """What a test does with compiled programs.

    Example:
        def test_step(hlo):
            report = hlo.analyze(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2})
            assert report == only(all_reduce("Y", max_bytes="32 KiB"))

    Attributes:
        expect: Holds a program against a contract, or against the test's baseline.
        reports: The programs that the test has analysed.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        from hloscope.api.own_rules import load_project_plugins

        load_project_plugins(request.config.rootpath)
        self._request = request
        self._written = 0
        self._is_verified = False
        self._failure: str | None = None
        self.reports: list[Report] = []
        self.expect = Expect(self, request.node)

    @front_door
    def analyze(self, target: Program, args: Any = None, *, judge: bool = True, **options: Any) -> Report:
        """`hloscope.analyze`; what is not given is taken from the marker, then from `--hloscope-slice`.

        An unchanged program is not compiled again: what it was compiled to is in the user's cache.

        Args:
            target: As for `hloscope.analyze`.
            args: As for `hloscope.analyze`.
            judge: Whether the test is to assert something of it; one that does not fails where `CI` is set.
            options: As for `hloscope.analyze`.

        Raises:
            HloscopeError: Bad input, or JAX or the compiler refuses the program.
        """
        if isinstance(target, Report | Analysis) and (options or args is not None):
            raise NotationError("a program that is analysed already takes no options", fix="give them to hlo.analyze")
        if isinstance(target, Report):
            return target
        found = target if isinstance(target, Analysis) else self._analyzed(target, args, options)
        report = Report(found, self._request.config.rootpath, is_judged=not judge)
        self._write(found)
        self.reports.append(report)
        return report

    def fail(self, message: str) -> NoReturn:
        """Fails the test, whatever strings of compiled text the message quotes."""
        from hloscope.report.escaping import for_terminal

        __tracebackhide__ = True
        self._failure = for_terminal(message)
        pytest.fail(self._failure, pytrace=False)

    @property
    def unheeded(self) -> str | None:
        """What of this test can fail without failing it, or cannot fail, so far; None where there is nothing of it."""
        if self._failure is not None:
            said = self._failure.splitlines()[0]
            return f"an expectation failed, and the test went on: {said} (where it is meant to: report != contract)"
        idle = [report for report in self.reports if not report.is_judged]
        if idle:
            name = repr(idle[0])
            return f"nothing of {name} was asserted: compare it, hold it against a contract, or analyze(…, judge=False)"
        return None if self.reports or self._is_verified else "the fixture hlo was asked for, and analysed nothing"

    def last_report(self) -> Report:
        """The program that this test analysed last.

        Raises:
            NotationError: It has analysed none.
        """
        if not self.reports:
            raise NotationError("this test has analysed no program", fix="give one: hlo.expect.baseline(step, args)")
        return self.reports[-1]

    def _analyzed(self, target: Callable[..., Any] | str | Path, args: Any, options: dict[str, Any]) -> Analysis:
        from hloscope.api.analyses import analyze
        from hloscope.api.analyzing import analyze_function
        from hloscope.compiler.client import time_limit
        from hloscope.program.files import names_hlo
        from hloscope.program.loading import ended_after, name_of
        from hloscope.program.target import make_facts
        from hloscope.store import default_store

        settings = self._settings(options)
        if isinstance(target, str | Path) and names_hlo(target):
            others = [name for name in options if name not in _OF_TEXT] + ([] if args is None else ["args"])
            if others:
                fix = f"give {', '.join(_OF_TEXT)} alone"
                raise NotationError(f"{others[0]} does not go with HLO text", where=str(target), fix=fix)
            return analyze(target, **{name: value for name, value in settings.items() if name in _OF_TEXT})
        if isinstance(target, Path):
            return analyze(target)  # which says what is wrong with it
        facts = make_facts(**settings if args is None else {**settings, "args": args})
        with ended_after(time_limit(facts.timeout_s), f"analysing {name_of(target)}"):
            return analyze_function(target, facts, store=default_store())

    def _settings(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a call, over those of the nearest marker, over those of the command line."""
        of_config = {"slice": "--hloscope-slice", "timeout_s": "--hloscope-timeout"}
        given = {name: self._request.config.getoption(flag) for name, flag in of_config.items()}
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        for marker in reversed(list(self._request.node.iter_markers("hloscope"))):
            _check_marker(marker)
            settings.update(marker.kwargs)
        return {**settings, **options}

    @front_door
    def verify(
        self, target: Callable[..., Any] | str, reference: Callable[..., Any] | str, **options: Any
    ) -> Verification:
        """`hloscope.verify`, with the marker's settings; a failed verification fails the test.

        Raises:
            HloscopeError: Bad input, or JAX or the compiler refuses one of the programs.
        """
        from hloscope.api.verifying import verify

        settings = self._settings(options)
        if "timeout_s" not in options:
            settings.pop("timeout_s", None)  # of a verification it limits the run
        found = verify(target, reference, **settings)
        self._is_verified = True
        if not found.passed:
            lines = (f"{finding.severity}[{finding.rule}]: {finding.message}" for finding in found.findings)
            self.fail("\n".join(["the program is not what its reference is", *lines]))
        return found

    def _write(self, analysis: Analysis) -> None:
        """Writes a JSON report, where the command line asks for them."""
        folder = self._request.config.getoption("--hloscope-report")
        if folder is None:
            return
        self._written += 1
        nodeid = self._request.node.nodeid
        module = nodeid.partition("::")[0].replace("/", "-")
        number = f"-{self._written}" if self._written > 1 else ""
        name = f"{module}-{name_of_test(nodeid)}{number}.json"
        path = self._request.config.invocation_params.dir / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        from hloscope.report.escaping import dumped

        path.write_text(dumped(analysis.to_dict()), encoding="utf-8")


class Expect:
    """`hlo.expect(program, contract)` and `hlo.expect.baseline(program)`."""

    def __init__(self, hlo: Hlo, node: pytest.Item) -> None:
        self._hlo = hlo
        self._node = node
        self._baselines: set[Path] = set()

    @front_door
    def __call__(self, program: Program, contract: object, args: Any = None, **options: Any) -> Report:
        """Fails the test when a program does not keep to a contract.

        Args:
            program: A report, or what `analyze` takes.
            contract: A contract in any spelling.
            args: As for `analyze`.
            options: As for `analyze`.

        Raises:
            HloscopeError: Bad input, or JAX or the compiler refuses the program.
        """
        __tracebackhide__ = True
        wanted = _contract_of(contract)
        report = self._hlo.analyze(program, args, **options)
        report.judged()
        verdict = report.verdict(wanted)
        if not verdict.holds:
            self._hlo.fail(str(verdict))
        return report

    @front_door
    def baseline(self, program: Program | None = None, args: Any = None, *, name: str = "", **options: Any) -> Report:
        """Fails the test when a program does not move what it moved when its baseline was written.

        Args:
            program: A report, or what `analyze` takes; the program analysed last when None.
            args: As for `analyze`.
            name: Tells several baselines of one test apart.
            options: As for `analyze`.

        Raises:
            HloscopeError: Bad input, JAX or the compiler refuses the program, or the baseline file is damaged.
        """
        __tracebackhide__ = True
        report = self._hlo.last_report() if program is None else self._hlo.analyze(program, args, **options)
        problem = against_test(
            self._node,
            report.analysis,
            name,
            self._baselines,
            strict=is_strict(self._node.config.getoption("--hloscope-strict")),
        )
        if problem is not None:
            self._hlo.fail(problem)
        return report


def _check_marker(marker: pytest.Mark) -> None:
    if marker.args:
        raise NotationError("the marker hloscope takes keywords only", fix='write hloscope(slice="v5e:2x4")')
    for name in marker.kwargs:
        if name not in BY_NAME:
            fix = did_you_mean(name, BY_NAME, f"use one of {', '.join(BY_NAME)}")
            raise NotationError(f"the marker hloscope has no setting {name!r}", fix=fix)


def _contract_of(value: object) -> Contract:
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
        expected = _contract_of(wanted)
        if not expected.clauses or not all(isinstance(clause, Expectation) for clause in expected.clauses):
            raise NotationError(f"{expected} is not what a program can have", fix='write all_gather("X")')
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
        return evaluate(only(*map(_contract_of, expected)), self.analysis)

    def __repr__(self) -> str:
        return f"[{found_words(self.analysis.collectives)}]" if self.analysis.collectives else "[]"


def _are_expectations(value: object) -> TypeGuard[list[Contract | str]]:
    return isinstance(value, list) and all(isinstance(expected, Contract | str) for expected in value)


class Report:
    """The analysis of a program, with all of its attributes; equal to a contract that it keeps to.

    Attributes:
        root: The project's folder; None when it is not known.
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
        """The analysis itself."""
        self.judged()
        return self._analysis

    def __getattr__(self, name: str) -> Any:
        return getattr(self.analysis, name)

    @property
    def collectives(self) -> CollectiveList:
        """What it moves, to be read one by one or compared with a list of expectations."""
        return CollectiveList(self._analysis, self.judged)

    @front_door
    def verdict(self, contract: object) -> Verdict:
        """What a contract says of it."""
        return evaluate(_contract_of(contract), self._analysis, root=self.root)

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
        raise NotationError(f"the expectation says nothing: {idle.message}", fix=fix)
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
        return [self.expectation, *messages, *([f"and {hidden} more"] if hidden else []), "told in full below"]


def failure_of(left: object, right: object) -> Failure | None:
    """What is wrong when a report or its collectives are not as expected; None for other comparisons."""
    if isinstance(left, Contract) and isinstance(right, Report):
        left, right = right, left
    if isinstance(left, Report) and isinstance(right, Contract):
        return Failure(expectation="the program keeps to its contract", verdict=left.verdict(right))
    if isinstance(left, CollectiveList) and isinstance(right, list):
        return Failure(expectation="the collectives are these and no others", verdict=left.verdict(right))
    return None
