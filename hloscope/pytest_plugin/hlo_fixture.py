"""The fixture `hlo`: `hlo.analyze`, `hlo.expect`, `hlo.expect.baseline`, `hlo.verify`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from hloscope.analysis.model import Analysis
from hloscope.errors import NotationError, did_you_mean
from hloscope.program.options import BY_NAME, OPTIONS
from hloscope.pytest_plugin.baselines import TestBaselines, name_of_test
from hloscope.pytest_plugin.reports import Report, contract_of

if TYPE_CHECKING:
    from hloscope.verification.model import Verification

_OF_TEXT = (*(option.name for option in OPTIONS if option.of_text), "source_root")
"""What HLO text can be told beside itself."""

Program = Report | Analysis | Callable[..., Any] | str | Path


def _fail(message: str) -> NoReturn:
    """Fails the test, whatever strings of compiled text the message quotes."""
    from hloscope.report.escaping import for_terminal

    __tracebackhide__ = True
    pytest.fail(for_terminal(message), pytrace=False)


class Hlo:
    """What a test does with compiled programs.

    Example:
        def test_step(hlo):
            report = hlo.analyze(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2})
            assert report == only(all_reduce("Y", max_bytes="32 KiB"))

    Attributes:
        expect: Holds a program against a contract, or against the test's baseline.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._reports = 0
        self._last: Report | None = None
        self.expect = Expect(self, TestBaselines(request.node))

    def analyze(self, target: Program, args: Any = None, **options: Any) -> Report:
        """`hloscope.analyze`; what is not given is taken from the marker, then from `--hloscope-slice`.

        An unchanged program is not compiled again: what it was compiled to is in the user's cache.

        Raises:
            HloscopeError: Bad input, or JAX or the compiler refuses the program.
        """
        if isinstance(target, Report | Analysis) and (options or args is not None):
            raise NotationError("a program that is analysed already takes no options", fix="give them to hlo.analyze")
        if isinstance(target, Report):
            return target
        found = target if isinstance(target, Analysis) else self._analyzed(target, args, options)
        report = Report(found, self._request.config.rootpath)
        self._write(report.analysis)
        self._last = report
        return report

    def last_report(self) -> Report:
        """The program that this test analysed last.

        Raises:
            NotationError: It has analysed none.
        """
        if self._last is None:
            raise NotationError("this test has analysed no program", fix="give one: hlo.expect.baseline(step, args)")
        return self._last

    def _analyzed(self, target: Callable[..., Any] | str | Path, args: Any, options: dict[str, Any]) -> Analysis:
        from hloscope.api import analyze, analyze_function
        from hloscope.compiler.client import time_limit
        from hloscope.program.files import names_hlo
        from hloscope.program.limits import ended_after
        from hloscope.program.loading import name_of
        from hloscope.program.target import make_facts
        from hloscope.store import default_store

        settings = self._settings(options)
        if isinstance(target, str | Path) and names_hlo(target):
            _check_text_options(target, args, options)
            return analyze(target, **{name: value for name, value in settings.items() if name in _OF_TEXT})
        if isinstance(target, Path):
            return analyze(target)  # which says what is wrong with it
        if args is not None:
            settings["args"] = args
        facts = make_facts(**settings)
        with ended_after(time_limit(facts.timeout_s), f"analysing {name_of(target)}"):
            return analyze_function(target, facts, store=default_store())

    def _settings(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a call, over those of the nearest marker, over those of the command line."""
        slice_name = self._request.config.getoption("--hloscope-slice")
        settings: dict[str, Any] = {} if slice_name is None else {"slice": slice_name}
        limit = self._request.config.getoption("--hloscope-timeout")
        if limit is not None:
            settings["timeout_s"] = limit
        for marker in reversed(list(self._request.node.iter_markers("hloscope"))):
            _check_marker(marker)
            settings.update(marker.kwargs)
        return {**settings, **options}

    def verify(
        self, target: Callable[..., Any] | str, reference: Callable[..., Any] | str, **options: Any
    ) -> Verification:
        """`hloscope.verify`, with the marker's settings; a failed verification fails the test.

        Raises:
            HloscopeError: Bad input, or JAX or the compiler refuses one of the programs.
        """
        from hloscope.api import verify

        settings = self._settings(options)
        if "timeout_s" not in options:
            settings.pop("timeout_s", None)  # of a verification it limits the run
        found = verify(target, reference, **settings)
        if not found.passed:
            told = (f"{one.severity}[{one.rule}]: {one.message}" for one in found.findings)
            _fail("\n".join(["the program is not what its reference is", *told]))
        return found

    def _write(self, analysis: Analysis) -> None:
        """Writes a JSON report, where the command line asks for them."""
        folder = self._request.config.getoption("--hloscope-report")
        if folder is None:
            return
        self._reports += 1
        nodeid = self._request.node.nodeid
        module = nodeid.partition("::")[0].replace("/", "-")
        number = f"-{self._reports}" if self._reports > 1 else ""
        name = f"{module}-{name_of_test(nodeid)}{number}.json"
        path = self._request.config.invocation_params.dir / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        from hloscope.report.escaping import dumped

        path.write_text(dumped(analysis.to_dict()), encoding="utf-8")


class Expect:
    """`hlo.expect(program, contract)` and `hlo.expect.baseline(program)`."""

    def __init__(self, hlo: Hlo, baselines: TestBaselines) -> None:
        self._hlo = hlo
        self._baselines = baselines

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
        wanted = contract_of(contract)
        report = self._hlo.analyze(program, args, **options)
        verdict = report.verdict(wanted)
        if not verdict.holds:
            _fail(str(verdict))
        return report

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
        problem = self._baselines.check(report.analysis, name)
        if problem is not None:
            _fail(problem)
        return report


def _check_text_options(target: str | Path, args: Any, options: dict[str, Any]) -> None:
    others = [name for name in options if name not in _OF_TEXT] + ([] if args is None else ["args"])
    if others:
        raise NotationError(
            f"{others[0]} does not go with HLO text", where=str(target), fix=f"give {', '.join(_OF_TEXT)} alone"
        )


def _check_marker(marker: pytest.Mark) -> None:
    if marker.args:
        raise NotationError("the marker hloscope takes keywords only", fix='write hloscope(slice="v5e:2x4")')
    for name in marker.kwargs:
        if name not in BY_NAME:
            fix = did_you_mean(name, BY_NAME, f"use one of {', '.join(BY_NAME)}")
            raise NotationError(f"the marker hloscope has no setting {name!r}", fix=fix)
