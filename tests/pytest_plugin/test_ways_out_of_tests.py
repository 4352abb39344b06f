"""Tests that pass whatever their program does: where `CI` is set each try fails the session, and says why in one line.

All of them run in one suite, of which each is a test, or fails the session by itself. The tries
against `hloscope check` stand in `tests/check/test_ways_out.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest
from plugin_examples import HLO

ROOT = Path(__file__).parent.parent.parent

PREAMBLE = """
import contextlib
import threading

import pytest
from hloscope.contracts import all_gather, all_reduce, none, only
from hloscope.judge.model import Contract

pytestmark = pytest.mark.hloscope(mesh={"X": 2, "Y": 4})
"""
IDLE, WENT_ON = "nothing about .* was asserted", "an expectation failed, but the test went on"

FAILING = {
    "analyze, and no more": ('hlo.analyze("step.hlo")', IDLE),
    "ask for the fixture, and no more": ("pass", "requested, but analyzed nothing"),
    "print it": ('print(hlo.analyze("step.hlo"))', IDLE),
    "assert it": ('assert hlo.analyze("step.hlo")', IDLE),
    "assert that something moves": ('assert hlo.analyze("step.hlo").collectives', IDLE),
    "assert that it is something": ('assert hlo.analyze("step.hlo") is not None', IDLE),
    "assert that it has collectives": ('assert hlo.analyze("step.hlo").collectives is not None', IDLE),
    "assert its type": ('assert isinstance(hlo.analyze("step.hlo"), object)', IDLE),
    "compare without assert": ('hlo.analyze("step.hlo") == none()', IDLE),
    "compare collectives without assert": ('hlo.analyze("step.hlo").collectives == []', IDLE),
    "compare the other way round": ('hlo.analyze("step.hlo") != none()', IDLE),
    "compare, and keep that": ('is_none = hlo.analyze("step.hlo") == none()', IDLE),
    "compare, and return that": ('return hlo.analyze("step.hlo") == none()', IDLE),
    "assert a comparison and its message": ('assert (hlo.analyze("step.hlo") == none(), "it moves")', IDLE),
    "compare with itself": ('found = hlo.analyze("step.hlo")\nassert found == found', IDLE),
    "compare its collectives with themselves": (
        'found = hlo.analyze("step.hlo")\nassert found.collectives == found.collectives',
        IDLE,
    ),
    "compare with nothing": ('assert hlo.analyze("step.hlo") != None', IDLE),
    "compare with text": ('assert hlo.analyze("step.hlo") != "none"', IDLE),
    "compare with a number": ('assert hlo.analyze("step.hlo").collectives != 3', IDLE),
    "look for a number": ('assert 3 not in hlo.analyze("step.hlo").collectives', IDLE),
    "compare where nothing runs": (
        'found = hlo.analyze("step.hlo")\nif False:\n    assert found == none()',
        IDLE,
    ),
    "compare in an empty loop": (
        'found = hlo.analyze("step.hlo")\nfor wanted in []:\n    assert found == wanted',
        IDLE,
    ),
    "compare in a function that nobody calls": (
        'found = hlo.analyze("step.hlo")\ncheck = lambda: found == none()',
        IDLE,
    ),
    "judge a program, and not the next": (
        'assert hlo.analyze("step.hlo").totals.wire_bytes < 10**9\nhlo.analyze("step.hlo", mesh={"A": 8})',
        IDLE,
    ),
    "an empty contract": ('hlo.expect("step.hlo", "")', "an empty contract"),
    "a contract of no lines": ('hlo.expect("step.hlo", [])', "says nothing that a program could break"),
    "a contract without clauses": ('assert hlo.analyze("step.hlo") == Contract()', "says nothing that a program"),
    "a contract of flags": ('hlo.expect("step.hlo", "at-least-ok")', "says nothing that a program could break"),
    "everything is expected": ('hlo.expect("step.hlo", "*; nothing else")', "there is nothing else to forbid"),
    "a list of everything": ('assert hlo.analyze("step.hlo").collectives == ["*"]', "nothing else to forbid"),
    "another axis than there is": ('assert hlo.analyze("step.hlo") != only(all_reduce("nosuchaxis"))', "nosuchaxis"),
    "not in it, over no axis of it": ('assert all_gather("Fsdp") not in hlo.analyze("step.hlo").collectives', "Fsdp"),
    "not in it, which nothing is": (
        'assert none() not in hlo.analyze("step.hlo").collectives',
        "not an expectation of a program",
    ),
    "not in it, misspelt": ('assert "all-gahter" not in hlo.analyze("step.hlo").collectives', "all-gahter"),
    "swallow every exception": ('try:\n    hlo.expect("step.hlo", "none")\nexcept BaseException:\n    pass', WENT_ON),
    "suppress every exception": (
        'with contextlib.suppress(BaseException):\n    hlo.expect.baseline("step.hlo")',
        WENT_ON,
    ),
    "expect the exception": ('with pytest.raises(BaseException):\n    hlo.expect("step.hlo", "none")', WENT_ON),
    "expect in a thread": (
        'run = threading.Thread(target=lambda: hlo.expect("step.hlo", "none"))\nrun.start()\nrun.join()',
        WENT_ON,
    ),
    "a baseline that is not there": ('hlo.expect.baseline("step.hlo")', "there is no baseline"),
    "a marker that is misspelt": ('hlo.analyze("step.hlo", mehs={"X": 2})', "mehs"),
}
"""What a test does, and what its failure says."""


class Mark(NamedTuple):
    """A test that pytest lets fail or leaves out."""

    mark: str
    body: str
    said: str
    parameter: str = ""


LET_PASS = {
    "xfail": Mark("xfail", 'hlo.expect("step.hlo", "none")', "expected to fail, without a reason"),
    "xfail, and not run": Mark("xfail(run=False)", 'hlo.expect("step.hlo", "none")', "to fail, without a reason"),
    "xfail on the way": Mark("filterwarnings", "pytest.xfail()", "to fail, without a reason"),
    "xfail of what passes": Mark('xfail(reason="later")', 'hlo.expect("step.hlo", "all-reduce@Y")', "remove xfail"),
    "skip": Mark("skip", "pass", "skipped without a reason"),
    "skip on the way": Mark(
        "filterwarnings", 'pytest.skip()\nhlo.expect("step.hlo", "none")', "skipped without a reason"
    ),
    "no parameters": Mark(
        'parametrize("contract", [])', 'hlo.expect("step.hlo", contract)', "list of parameters is empty", "contract"
    ),
}
GOOD = {
    "xfail with a reason": Mark('xfail(reason="until the next release")', 'hlo.expect("step.hlo", "none")', ""),
    "skip with a reason": Mark('skip(reason="no such chip")', "pass", ""),
    "nothing moves": Mark("filterwarnings", 'assert not hlo.analyze("none.hlo", mesh=None).collectives', ""),
    "two programs are compared": Mark(
        "filterwarnings",
        'first, second = (hlo.analyze("step.hlo") for _ in range(2))\n'
        "assert first == second and first.collectives == second.collectives",
        "",
    ),
    "a comparison that is kept and asserted": Mark(
        "filterwarnings", 'is_none = hlo.analyze("step.hlo") == none()\nassert not is_none', ""
    ),
}


def written_test(number: int, body: str, mark: str = "filterwarnings", parameter: str = "") -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"\n@pytest.mark.{mark}\ndef test_{number}(hlo{f', {parameter}' * bool(parameter)}):\n{lines}\n"


Done = subprocess.CompletedProcess
SWITCHED_OFF = "no:hloscope"
NONE = """\
HloModule m, num_partitions=8

ENTRY main {
  ROOT p = f32[4] parameter(0)
}
"""


def suite(folder: Path, tests: str, *arguments: str, conftest: str = "", **variables: str) -> Done:
    (folder / "step.hlo").write_text(HLO)
    (folder / "none.hlo").write_text(NONE)
    (folder / "test_tries.py").write_text(PREAMBLE + tests)
    (folder / "conftest.py").write_text(dedent(conftest))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "PYTEST_"))}
    own = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": "true"}
    installed = [] if SWITCHED_OFF in arguments else ["-p", "hloscope.pytest_plugin"]
    plugin = [*installed, "-p", "no:cacheprovider", "-W", "ignore", "-rA"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *plugin],
        cwd=folder,
        env={**kept, **own, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def told(done: Done) -> dict[str, str]:
    """What is said of each test, by its name, at the end of a session that fails."""
    assert "INTERNALERROR" not in done.stdout, done.stdout
    line = r"^(?:FAILED |)test_tries\.py::(test_\w+)(?:\[NOTSET\])?(?: - |: )(.*)$"
    return dict(re.findall(line, done.stdout, re.MULTILINE))


def failures(done: Done) -> dict[str, str]:
    """The whole failure of each test, by its name."""
    parts = re.split(r"^_+ (test_\w+) _+$", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    tests = (written_test(number, body) for number, (body, _) in enumerate(FAILING.values()))
    return failures(suite(tmp_path_factory.mktemp("failing"), "".join(tests)))


@pytest.mark.parametrize("name", FAILING)
def test_a_test_that_cannot_fail_fails(failing, name):
    number, said = list(FAILING).index(name), FAILING[name][1]
    assert re.search(said, failing[f"test_{number}"].replace("\n", " ")), failing[f"test_{number}"]


@pytest.fixture(scope="module")
def let_pass(tmp_path_factory):
    marked = [*LET_PASS.values(), *GOOD.values()]
    tests = (written_test(number, each.body, each.mark, each.parameter) for number, each in enumerate(marked))
    done = suite(tmp_path_factory.mktemp("let_pass"), "".join(tests))
    assert done.returncode == 1, done.stdout
    assert " failed" not in done.stdout
    return told(done)


@pytest.mark.parametrize("name", LET_PASS)
def test_a_test_that_is_let_pass_fails_the_session(let_pass, name):
    number = list(LET_PASS).index(name)
    assert LET_PASS[name].said in let_pass[f"test_{number}"]


def test_what_was_said_why_fails_nothing(let_pass):
    assert let_pass.keys() == {f"test_{number}" for number in range(len(LET_PASS))}


BROKEN = written_test(1, 'hlo.expect("step.hlo", "none")')
IDLE_TEST = written_test(1, 'hlo.analyze("step.hlo")')
SWALLOWED = """
    import pytest

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(item):
        try:
            yield
        except BaseException:
            pass
"""
REPORTED_AS_PASSED = """
    import pytest

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        report.outcome, report.longrepr = "passed", None
        return report
"""
SESSIONS = {
    "a conftest that swallows failures": (BROKEN, (), SWALLOWED, {}, 1, "it failed, but is reported as passed"),
    "a conftest that swallows what strictness finds": (IDLE_TEST, (), SWALLOWED, {}, 1, IDLE),
    "a conftest that reports a failure as passed": (
        BROKEN,
        (),
        REPORTED_AS_PASSED,
        {},
        1,
        "reported as passed",
    ),
    "the plugin is switched off": (BROKEN, ("-p", SWITCHED_OFF), "", {}, 1, "fixture 'hlo' not found"),
    "CI=false": (IDLE_TEST, ("--hloscope-strict",), "", {"CI": "false"}, 1, IDLE),
    "an update in CI": (BROKEN, ("--hloscope-update",), "", {}, 4, "writes nothing where CI is set"),
    "no test is chosen": (BROKEN, ("-k", "nosuch"), "", {}, 5, "1 deselected"),
}


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_that_is_let_pass_fails(tmp_path, name):
    tests, arguments, conftest, variables, code, said = SESSIONS[name]
    done = suite(tmp_path, tests, *arguments, conftest=conftest, **variables)
    assert done.returncode == code, done.stdout + done.stderr
    assert re.search(said, done.stdout + done.stderr)


def test_how_many_tries_there_are():
    assert len(FAILING) + len(LET_PASS) + len(SESSIONS) >= 50
