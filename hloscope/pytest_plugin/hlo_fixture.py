"""The fixture `hlo`: programs that can be compared with contracts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import pytest

from hloscope.base.calls import front_door
from hloscope.base.environment import is_strict
from hloscope.base.errors import NotationError, did_you_mean
from hloscope.compile.target import OPTIONS_BY_NAME
from hloscope.model import Analysis
from hloscope.pytest_plugin.baselines import check_against_baseline, name_test
from hloscope.pytest_plugin.inline import Update, check_against_source, find_calling_frame
from hloscope.pytest_plugin.reports import Report, make_contract

if TYPE_CHECKING:
    from hloscope.verification.model import Verification

Program: TypeAlias = "Report | Analysis | Callable[..., Any] | str | Path"


class Hlo:
    """The fixture `hlo`, with which a test compiles and checks programs.

    Example:
        def test_step(hlo):
            report = hlo.analyze(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2})
            assert report == only(all_reduce("Y", max_bytes="32 KiB"))

    Attributes:
        expect: Checks a program against a contract or the test's baseline.
        reports: The reports on the programs that the test has analyzed.
    """

    def __init__(self, request: pytest.FixtureRequest, update: Update | None = None) -> None:
        from hloscope.app.config import load_project_plugins

        load_project_plugins(request.config.rootpath)
        self._request = request
        self._written = 0
        self._is_verified = False
        self._failure: str | None = None
        self.reports: list[Report] = []
        self.expect = Expect(self, request.node, update)

    @front_door
    def analyze(self, target: Program, args: Any = None, *, judge: bool = True, **options: Any) -> Report:
        """Calls `hloscope.analyze`; options that are not given are taken from the marker, then from `--hloscope-slice`.

        An unchanged program is not compiled again, but taken from the user's cache.

        Args:
            target: As for `hloscope.analyze`.
            args: As for `hloscope.analyze`.
            judge: Whether the test has to assert something about the program; a test that does not fails if `CI` is
                set.
            options: As for `hloscope.analyze`.

        Raises:
            HloscopeError: The input is invalid, or JAX or the compiler rejects the program.
        """
        if isinstance(target, Report | Analysis) and (options or args is not None):
            raise NotationError("a program that has been analyzed takes no options", fix="give them to hlo.analyze")
        if isinstance(target, Report):
            return target
        found = target if isinstance(target, Analysis) else self._analyze(target, args, options)
        report = Report(found, self._request.config.rootpath, is_judged=not judge)
        self._write(found)
        self.reports.append(report)
        return report

    def fail(self, message: str) -> NoReturn:
        """Fails the test, whatever strings of compiled text the message quotes."""
        from hloscope.report.escaping import escape_for_terminal

        __tracebackhide__ = True
        self._failure = escape_for_terminal(message)
        pytest.fail(self._failure, pytrace=False)

    @property
    def unheeded(self) -> str | None:
        """The complaint about a part of this test that cannot fail, or can fail alone; None without one."""
        if self._failure is not None:
            said = self._failure.splitlines()[0]
            return f"an expectation failed, but the test went on: {said} (if it should fail, write report != contract)"
        idle = [report for report in self.reports if not report.is_judged]
        if idle:
            name = repr(idle[0])
            return f"nothing about {name} was asserted: compare it with a contract, or analyze it with judge=False"
        return None if self.reports or self._is_verified else "the fixture hlo was requested, but analyzed nothing"

    def last_report(self) -> Report:
        """The report on the program that this test analyzed last.

        Raises:
            NotationError: The test has not analyzed a program.
        """
        if not self.reports:
            raise NotationError("this test has not analyzed a program", fix="give one: hlo.expect.baseline(step, args)")
        return self.reports[-1]

    def _analyze(self, target: Callable[..., Any] | str | Path, args: Any, options: dict[str, Any]) -> Analysis:
        from hloscope.app.analyses import analyze
        from hloscope.app.requests import Request, check_target
        from hloscope.compile.client import choose_time_limit
        from hloscope.compile.loading import limit_time
        from hloscope.compile.target import find_target_name, make_facts

        if isinstance(target, Path) or Request(target=check_target(target)).is_text:
            of_text = {name: value for name, value in self._find_settings({}).items() if OPTIONS_BY_NAME[name].of_text}
            return analyze(target, args, **{"trials": False, **of_text, **options})
        settings = self._find_settings(options)
        limit_s = choose_time_limit(make_facts(timeout_s=settings.get("timeout_s")).timeout_s)
        with limit_time(limit_s, f"analyzing {find_target_name(target)}"):
            return analyze(target, args, **{"trials": False, **settings})

    def _find_settings(self, options: dict[str, Any]) -> dict[str, Any]:
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
        """Calls `hloscope.verify` with the marker's settings; a failed verification fails the test.

        Raises:
            HloscopeError: The input is invalid, or JAX or the compiler rejects one of the programs.
        """
        from hloscope.app.verifying import verify

        settings = self._find_settings(options)
        if "timeout_s" not in options:
            settings.pop("timeout_s", None)  # of a verification it limits the run
        found = verify(target, reference, **settings)
        self._is_verified = True
        if not found.passed:
            lines = (f"{finding.severity}[{finding.rule}]: {finding.message}" for finding in found.findings)
            self.fail("\n".join(["the program differs from its reference", *lines]))
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
        name = f"{module}-{name_test(nodeid)}{number}.json"
        path = self._request.config.invocation_params.dir / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        from hloscope.report.escaping import dump_json

        path.write_text(dump_json(analysis.to_dict()), encoding="utf-8")


class Expect:
    """The checks `hlo.expect(program, contract)`, `hlo.expect.inline(program)` and `hlo.expect.baseline(program)`."""

    def __init__(self, hlo: Hlo, node: pytest.Item, update: Update | None) -> None:
        self._hlo = hlo
        self._node = node
        self._update = update
        self._baselines: set[Path] = set()

    @front_door
    def __call__(self, program: Program, contract: object, args: Any = None, **options: Any) -> Report:
        """Fails the test if a program does not satisfy a contract.

        Args:
            program: A report, or a target as for `analyze`.
            contract: A contract, in Python or as text.
            args: As for `analyze`.
            options: As for `analyze`.

        Raises:
            HloscopeError: The input is invalid, or JAX or the compiler rejects the program.
        """
        __tracebackhide__ = True
        wanted = make_contract(contract)
        report = self._hlo.analyze(program, args, **options)
        report.is_judged = True
        verdict = report.verdict(wanted)
        if not verdict.holds:
            self._hlo.fail(str(verdict))
        return report

    @front_door
    def inline(self, program: Program, expected: str = "", args: Any = None, **options: Any) -> Report:
        """Fails the test if a program does not satisfy the contract that hloscope wrote into the test.

        `pytest --hloscope-update` writes a contract that allows what the program moves and nothing else, if there is no
        text yet or if it no longer holds. Limits, bans and trip counts in the text come from the user and are kept.

        Args:
            program: A report, or a target as for `analyze`.
            expected: The contract, as a string literal in the call; omitted if it is still to be written.
            args: As for `analyze`.
            options: As for `analyze`.

        Raises:
            HloscopeError: The input is invalid, JAX or the compiler rejects the program, or the text cannot be written
                here.
        """
        __tracebackhide__ = True
        report = self._hlo.analyze(program, args, **options)
        report.is_judged = True
        problem = check_against_source(self._node, report.analysis, expected, find_calling_frame(), self._update)
        if problem is not None:
            self._hlo.fail(problem)
        return report

    @front_door
    def baseline(self, program: Program | None = None, args: Any = None, *, name: str = "", **options: Any) -> Report:
        """Fails the test if a program moves something else than when its baseline was written.

        Args:
            program: A report, or a target as for `analyze`; by default the program analyzed last.
            args: As for `analyze`.
            name: Distinguishes several baselines of one test.
            options: As for `analyze`.

        Raises:
            HloscopeError: The input is invalid, JAX or the compiler rejects the program, or the baseline file is
                damaged.
        """
        __tracebackhide__ = True
        report = self._hlo.last_report() if program is None else self._hlo.analyze(program, args, **options)
        problem = check_against_baseline(
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
        if name not in OPTIONS_BY_NAME:
            fix = did_you_mean(name, OPTIONS_BY_NAME, f"use one of {', '.join(OPTIONS_BY_NAME)}")
            raise NotationError(f"the marker hloscope has no setting {name!r}", fix=fix)
