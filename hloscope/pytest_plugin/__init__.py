"""The pytest plugin: the fixture `hlo`, the marker `hloscope`, options, failure text, baselines per test.

Everything here is called by pytest; what a test works with is in `hlo_fixture`. Loading it imports neither JAX nor
anything else of hloscope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from hloscope.pytest_plugin.hlo_fixture import Failure, Hlo

_FAILURE: pytest.StashKey[Failure | None] = pytest.StashKey()
"""The last of this plugin's assertions that failed, until the report of its test is made."""
_TESTS: pytest.StashKey[set[str]] = pytest.StashKey()
"""The tests that were collected, chosen or not."""
_OF_WORKER = "hloscope_tests"
_MARKER = (
    "hloscope(slice=..., mesh=..., ...): what hlo.analyze takes by default in this test, such as slice='v5e:2x4' and "
    "mesh={'X': 8}"
)
_DEVICES = "simulated CPU devices that JAX is to be started with (default: what the marked meshes need, 8 or more)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, which share one prefix."""
    group = parser.getgroup("hloscope", "communication of compiled JAX programs")
    group.addoption("--hloscope-slice", metavar="NAME", help="slice to compile for where a test names none: v5e:2x4")
    group.addoption(
        "--hloscope-timeout", type=float, metavar="SECONDS", help="end an analysis after so long; 0 is no limit"
    )
    group.addoption("--hloscope-update", action="store_true", help="write the baselines that tests ask for")
    group.addoption("--hloscope-report", metavar="DIR", help="write a JSON report of every analysed program into DIR")
    parser.addini("hloscope_devices", _DEVICES, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", _MARKER)
    config.stash[_TESTS] = set()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Remembers each test, whether it is chosen to run or not: its baselines are no orphans."""
    item.config.stash[_TESTS].add(item.nodeid)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Arranges simulated devices before JAX starts, when a test of this session needs them."""
    marked = [item for item in session.items if "hlo" in getattr(item, "fixturenames", ())]
    if marked:
        from hloscope.pytest_plugin.hlo_fixture import arrange_devices

        arrange_devices(marked, session.config)


@pytest.fixture
def hlo(request: pytest.FixtureRequest) -> Hlo:
    """Compiles programs for TPU slices that nobody has, and holds them against expectations."""
    from hloscope.pytest_plugin.hlo_fixture import Hlo

    return Hlo(request)


def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> list[str] | None:
    """The failure text of `assert report == contract` and `assert report.collectives == [...]`."""
    if op != "==" or not type(left).__module__.startswith("hloscope."):
        return None
    from hloscope.pytest_plugin.hlo_fixture import failure_of

    failure = failure_of(left, right)
    if failure is None:
        return None
    config.stash[_FAILURE] = failure
    from hloscope.report.escaping import for_terminal

    return [for_terminal(line) for line in failure.summary]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the whole failure text, of which an assertion itself shows no more than some lines."""
    report = yield
    failure = item.config.stash.get(_FAILURE, None)
    item.config.stash[_FAILURE] = None
    add_section = getattr(report.longrepr, "addsection", None)
    if (
        failure is not None
        and call.excinfo is not None
        and failure.expectation in str(call.excinfo.value)
        and add_section
    ):
        from hloscope.report.escaping import for_terminal

        add_section("hloscope", for_terminal(str(failure.verdict)))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Reports to the process that prints the summary which tests this one found, where pytest-xdist runs several."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        collected = session.config.stash[_TESTS]
        output[_OF_WORKER] = sorted(collected)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes what a process of pytest-xdist reported at its end."""
    node.config.stash[_TESTS].update(getattr(node, "workeroutput", {}).get(_OF_WORKER, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Reports which baselines were written, and which are of no test."""
    entries = [entry for group in terminalreporter.stats.values() for entry in group]
    reports = [entry for entry in entries if isinstance(entry, pytest.TestReport)]
    modules = {config.rootpath / report.nodeid.partition("::")[0] for report in reports}
    if not any((module.parent / "hloscope_baselines" / module.stem).is_dir() for module in modules):
        return
    from hloscope.pytest_plugin.baselines import summary_lines

    collected = config.stash[_TESTS]
    lines = summary_lines(reports, config, collected)
    if lines:
        terminalreporter.section("hloscope")
        for line in lines:
            terminalreporter.write_line(line)
