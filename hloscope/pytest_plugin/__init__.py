"""The pytest plugin: the fixture `hlo`, the marker `hloscope`, options, failure messages, and a baseline per test.

Everything here is called by pytest; the fixture itself is in `hlo_fixture`. Loading the plugin imports neither JAX nor
the rest of hloscope.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import BooleanOptionalAction
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from hloscope.base.environment import is_ci, is_strict

if TYPE_CHECKING:
    from collections.abc import Generator

    from hloscope.pytest_plugin.hlo_fixture import Hlo
    from hloscope.pytest_plugin.inline import Update
    from hloscope.pytest_plugin.reports import Failure

_FAILURE: pytest.StashKey[Failure | None] = pytest.StashKey()
"""The last of this plugin's assertions that failed, until the report of its test is made."""
_TESTS: pytest.StashKey[set[str]] = pytest.StashKey()
"""The tests that were collected, chosen or not."""
_HLO: pytest.StashKey[Hlo] = pytest.StashKey()
"""The value of the fixture `hlo` in a test."""
_UPDATE: pytest.StashKey[Update] = pytest.StashKey()
"""The texts to write into test files; absent until a test wants one."""
_STARTED_NS: pytest.StashKey[int] = pytest.StashKey()
"""When the session began, with files as they were by then."""
_WRITTEN: pytest.StashKey[_Summary] = pytest.StashKey()
"""The result of writing into files."""
_LEAST_DEVICES = 8
_OF_WORKER, _OF_WORKERS_FILES = "hloscope_tests", "hloscope_expectations"
_UNHEEDED = "hloscope_unheeded"
"""The property of a test that passes whatever its program does: why."""
_FAILED = "hloscope_failed"
"""The property of a test that failed: why that counts although another plugin reports it as passed."""


class _Summary(NamedTuple):
    """The summary of all tests together.

    Attributes:
        lines: One for each thing.
        fails: Whether the session fails over it, where that is strict.
    """

    lines: list[str]
    fails: bool


_MARKER = (
    "hloscope(slice=..., mesh=..., ...): defaults of hlo.analyze in this test, such as slice='v5e:2x4' and "
    "mesh={'X': 8}"
)
_DEVICES = "number of simulated CPU devices that JAX starts with (default: what the marked meshes need, at least 8)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, which share one prefix."""
    group = parser.getgroup("hloscope", "communication of compiled JAX programs")
    group.addoption("--hloscope-slice", metavar="NAME", help="slice for tests that name none, e.g. v5e:2x4")
    group.addoption(
        "--hloscope-timeout", type=float, metavar="SECONDS", help="time limit of one analysis; 0 for no limit"
    )
    group.addoption(
        "--hloscope-update", action="store_true", help="write the baselines and inline expectations of the tests"
    )
    group.addoption("--accept-in-ci", action="store_true", help="let --hloscope-update write even where CI is set")
    group.addoption(
        "--hloscope-strict",
        action=BooleanOptionalAction,
        default=None,
        help="whether tests that assert nothing about what they analyze, and baselines that no test uses, fail "
        "(default: where CI is set)",
    )
    group.addoption("--hloscope-report", metavar="DIR", help="write a JSON report of every analyzed program into DIR")
    parser.addini("hloscope_devices", _DEVICES, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker; refuses to write anything in continuous integration, where a test would agree with itself.

    Raises:
        pytest.UsageError: `--hloscope-update` is given, and `CI` is set.
    """
    config.addinivalue_line("markers", _MARKER)
    config.stash[_TESTS] = set()
    config.stash[_STARTED_NS] = time.time_ns()
    if config.getoption("--hloscope-update") and is_ci() and not config.getoption("--accept-in-ci"):
        raise pytest.UsageError(
            "--hloscope-update writes nothing where CI is set, because a test against what was just written cannot "
            "fail; update on your own machine, or pass --accept-in-ci"
        )


def _is_strict_here(config: pytest.Config) -> bool:
    return is_strict(config.getoption("--hloscope-strict"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Remembers each test, whether it is chosen to run or not: its baselines are no orphans."""
    item.config.stash[_TESTS].add(item.nodeid)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Arranges simulated devices before JAX starts, when a test of this session needs them."""
    marked = [item for item in session.items if "hlo" in getattr(item, "fixturenames", ())]
    if marked:
        _arrange_devices(marked, session.config)


def _arrange_devices(items: list[pytest.Item], config: pytest.Config) -> None:
    """Sets the number of CPU devices that JAX is started with, and keeps libtpu quiet and shareable.

    JAX that was started already, by a conftest.py for example, keeps what it has.
    """
    from hloscope.compile.environment import find_largest_device_count, prepare_environment

    prepare_environment(0, attached=True)
    largest = find_largest_device_count()
    marked = [count for count in map(_count_marked, items) if count <= largest]  # a test refuses a larger mesh itself
    count = _read_count(config) or max([_LEAST_DEVICES, *marked])
    if "jax" not in sys.modules:
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(count))
        return
    import jax

    from hloscope.compile.jax_private import backends_are_initialised

    if not backends_are_initialised():
        jax.config.update("jax_num_cpu_devices", max(count, jax.config.jax_num_cpu_devices))


def _read_count(config: pytest.Config) -> int:
    text = str(config.getini("hloscope_devices")).strip()
    if text and not text.isdigit():
        raise pytest.UsageError(f"hloscope_devices is {text!r} and should be a number")
    return int(text or 0)


def _count_marked(item: pytest.Item) -> int:
    """The devices in the mesh of a test's marker; 0 if it names none, or an invalid one that the test will refuse."""
    from hloscope.base.errors import HloscopeError

    for marker in item.iter_markers("hloscope"):
        mesh = marker.kwargs.get("mesh")
        try:
            if isinstance(mesh, str):
                from hloscope.compile.notation import parse_mesh

                mesh = parse_mesh(mesh)
            if isinstance(mesh, Mapping):
                return prod(mesh.values())
            if mesh is not None:
                return int(mesh.size)
        except (HloscopeError, AttributeError, TypeError, ValueError):
            return 0  # the test itself will say what is wrong
    return 0


@pytest.fixture
def hlo(request: pytest.FixtureRequest) -> Hlo:
    """Compiles programs for TPU slices that need not be attached, and checks them against expectations."""
    from hloscope.pytest_plugin.hlo_fixture import Hlo

    update = _get_update(request.config) if request.config.getoption("--hloscope-update") else None
    made = request.node.stash[_HLO] = Hlo(request, update)
    return made


def _get_update(config: pytest.Config) -> Update:
    """The texts to write at the end of the session."""
    from hloscope.pytest_plugin.inline import Update

    return config.stash.setdefault(_UPDATE, Update(since_ns=config.stash[_STARTED_NS]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fails a test that passes whatever its program does, where that is strict; takes note of it in any case."""
    own = (_UNHEEDED, _FAILED)
    item.user_properties[:] = [pair for pair in item.user_properties if pair[0] not in own]  # it may run again
    try:
        yield
    except (Exception, pytest.fail.Exception):
        if _HLO in item.stash:
            item.user_properties.append((_FAILED, "it failed, but is reported as passed"))
        raise
    used = item.stash.get(_HLO, None)
    problem = None if used is None else used.unheeded
    if problem is None:
        return
    item.user_properties.append((_UNHEEDED, problem))
    if _is_strict_here(item.config):
        pytest.fail(problem, pytrace=False)


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> list[str] | None:
    """The failure text of `assert report == contract` and `assert report.collectives == [...]`."""
    if op != "==" or not type(left).__module__.startswith("hloscope."):
        return None
    from hloscope.pytest_plugin.reports import find_failure

    failure = find_failure(left, right)
    if failure is None:
        return None
    config.stash[_FAILURE] = failure
    from hloscope.report.escaping import escape_for_terminal

    return [escape_for_terminal(line) for line in failure.summary]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the whole failure text, of which an assertion itself shows no more than some lines.

    A test of a program that is left out, or let fail, without a reason is one that passes whatever the program does.
    """
    report = yield
    excused = _find_excuse(report) if "hlo" in getattr(item, "fixturenames", ()) else None
    if excused is not None:
        report.user_properties.append((_UNHEEDED, excused))
    failure = item.config.stash.get(_FAILURE, None)
    item.config.stash[_FAILURE] = None
    add_section = getattr(report.longrepr, "addsection", None)
    if (
        failure is not None
        and call.excinfo is not None
        and failure.expectation in str(call.excinfo.value)
        and add_section
    ):
        from hloscope.report.escaping import escape_for_terminal

        add_section("hloscope", escape_for_terminal(str(failure.verdict)))
    return report


def _find_excuse(report: pytest.TestReport) -> str | None:
    """The complaint about a test that was skipped or let fail without a reason; None if it has a reason, or ran."""
    expected_to_fail = getattr(report, "wasxfail", None)
    if expected_to_fail is not None and report.passed:
        return "it is expected to fail, but passes: remove xfail"
    if expected_to_fail is not None:
        reason = expected_to_fail.removeprefix("reason: ").removeprefix("[NOTRUN]").strip()
        return None if reason else "it is expected to fail, without a reason"
    if not report.skipped or not isinstance(report.longrepr, tuple):
        return None
    reason = report.longrepr[2].removeprefix("Skipped").removeprefix(": ")
    if reason.startswith("got empty parameter set"):
        return "its list of parameters is empty, so nothing ran"
    return "it is skipped without a reason" if reason in ("", "unconditional skip") else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes expectations into files; fails the session where that cannot be, or where something was not checked.

    That is, where strict: baselines of no test, and tests that pass whatever happens.

    A process of pytest-xdist reports to the one that prints the summary which tests it found, and what they want.
    """
    config = session.config
    update = config.stash.get(_UPDATE, None)
    output: dict[str, object] | None = getattr(config, "workeroutput", None)
    if output is not None:
        collected = config.stash[_TESTS]
        output[_OF_WORKER] = sorted(collected)
        output[_OF_WORKERS_FILES] = [] if update is None else [tuple(wanted) for wanted in update.wanted]
        return
    if update is not None:
        from hloscope.pytest_plugin.inline import write_expectations

        config.stash[_WRITTEN] = _Summary(*write_expectations(update.wanted, config.rootpath))
    fails = update is not None and config.stash[_WRITTEN].fails
    if session.exitstatus == pytest.ExitCode.OK and (fails or (_is_strict_here(config) and _summarize(config).fails)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes what a process of pytest-xdist reported at its end."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[_TESTS].update(output.get(_OF_WORKER, ()))
    if wanted := output.get(_OF_WORKERS_FILES):
        _get_update(node.config).take(wanted)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Reports what was written, which baselines are of no test, and which tests assert nothing."""
    written = config.stash.get(_WRITTEN, None)
    lines = [*([] if written is None else written.lines), *_summarize(config).lines]
    if lines:
        terminalreporter.section("hloscope")
        for line in lines:
            terminalreporter.write_line(line)


def _summarize(config: pytest.Config) -> _Summary:
    """The summary of all tests together."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    entries = [] if reporter is None else [entry for group in reporter.stats.values() for entry in group]
    reports = [entry for entry in entries if isinstance(entry, pytest.TestReport)]
    modules = {config.rootpath / report.nodeid.partition("::")[0] for report in reports}
    strict, lines, fails = _is_strict_here(config), list[str](), False
    if any((module.parent / "hloscope_baselines" / module.stem).is_dir() for module in modules):
        from hloscope.pytest_plugin.baselines import summary

        collected = config.stash[_TESTS]
        lines, fails = summary(reports, config, collected, strict=strict)
    idle = {
        report.nodeid: str(why)
        for report in reports
        for key, why in report.user_properties
        if key == _UNHEEDED or (key == _FAILED and report.passed)
        if not report.failed and report.when != "teardown"
    }
    in_ci = "" if strict else " (fails in CI)"
    lines += [f"{nodeid}{in_ci}: {problem}" for nodeid, problem in idle.items()]
    return _Summary(lines, fails or bool(idle))
