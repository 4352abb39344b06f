"""The pytest plugin, in suites of its own: HLO text where a compile is not the point."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import takewhile

import pytest
from plugin_examples import HLO

PREAMBLE = """
import pytest
from hloscope.contracts import all_gather, all_reduce, none, only

MESH = {"X": 2, "Y": 4}
"""


@pytest.fixture
def hlo_suite(pytester, suite):
    """A suite whose tests find `step.hlo` in the current directory."""

    def run(tests, *arguments):
        (pytester.path / "step.hlo").write_text(HLO)
        pytester.makepyfile(test_model=PREAMBLE + tests)
        return suite(*arguments)

    return run


def test_what_passes(hlo_suite):
    result = hlo_suite(
        """
        @pytest.mark.hloscope(mesh=MESH)
        class TestStep:
            def test_report(self, hlo):
                report = hlo.analyze("step.hlo")
                assert report == only(all_reduce("Y", max_bytes="8 KiB"))
                assert report.collectives == [all_reduce("Y")]
                assert report.collectives == ["all-reduce@Y <= 8.2kB x1"]
                assert report.collectives[0].kind == "all-reduce"
                assert report.collectives != []
                assert report != none()
                assert len(report.collectives) == 1
                assert report.totals.wire_bytes == 12288

            @pytest.mark.parametrize("contract", ["all-reduce@Y; nothing else", ["no all-gather"], only(all_reduce())])
            def test_expect(self, hlo, contract):
                assert hlo.expect("step.hlo", contract).num_partitions == 8

        def test_call_over_marker(hlo):
            hlo.expect("step.hlo", "no all-gather@data", mesh={"data": 8})

        async def coroutine(hlo):
            return hlo.analyze("step.hlo", mesh=MESH)

        def test_async(hlo):
            import asyncio
            assert asyncio.run(coroutine(hlo)) == all_reduce("Y")
        """.replace("\n        ", "\n")
    )
    result.assert_outcomes(passed=6)


def errors_told(result):
    """The messages of what pytest prints as errors, without pytest's own words around them."""
    lines = (line.removeprefix("E").strip() for line in result.stdout.lines if line.startswith("E "))
    return [re.sub(r"^hloscope\.base\.errors\.\w+: ", "", line) for line in lines]


def sections_told(result):
    """What hloscope adds below each failure."""
    text = result.stdout.str()
    return [
        part.strip() for part in re.findall(r"^-+ hloscope -+\n(.*?)(?=^[-_=]{3,})", text, re.DOTALL | re.MULTILINE)
    ]


def block_told(result, shown):
    """The lines of a failure from the one that shows something, up to the next empty one or ruler."""
    start = next(number for number, line in enumerate(result.stdout.lines) if shown in line)
    return list(takewhile(lambda line: not re.match(r"$|[-_=]{3}", line), result.stdout.lines[start:]))


def test_failure_text(says, hlo_suite):
    result = hlo_suite(
        """
        def test_equal(hlo):
            assert hlo.analyze("step.hlo", mesh=MESH) == only(all_gather("X"))

        def test_list(hlo):
            assert hlo.analyze("step.hlo", mesh=MESH).collectives == []

        def test_expect(hlo):
            hlo.expect("step.hlo", "no all-reduce@Y", mesh=MESH)

        def test_mistake(hlo):
            hlo.expect("step.hlo", "no all-redcue@Y", mesh=MESH)

        def test_caught(hlo):
            with pytest.raises(AssertionError):
                assert hlo.analyze("step.hlo", mesh=MESH) == none()
            assert 1 == 2
        """.replace("\n        ", "\n")
    )
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines(
        [
            "E*assert the program *",
            "E*contract-broken: all-gather@X *",
            "E*contract-broken: the program has 1 all-reduce over Y per step, 8.19 kB payload*",
            "*--- hloscope ---*",
            "step.hlo * 2 ways: all-gather@X; nothing else",
            "error[[]contract-broken[]]: all-gather@X *",
            "   = expected: all-gather@X",
            "   =    found: all-reduce@Y 8.19 kB payload x1",
            "error[[]contract-broken[]]: the program has 1 all-reduce over Y per step, 8.19 kB payload*",
            "  --> * 8.19 kB payload, %r at HLO line 11",
            "   = to accept it: all-reduce@Y <= 8.2kB x1",
            "*assert the collectives *",
            "   = expected: nothing moves",
            "step.hlo * 1 way: no all-reduce@Y",
            "*hloscope.base.errors.NotationError: *'all-redcue'",
            "*   = fix: * all-reduce?",
            "E*assert 1 == 2",
        ]
    )
    assert result.stdout.str().count("--- hloscope ---") == 2
    says(errors_told(result), "errors")
    says("\n\n".join(sections_told(result)), "sections")


def test_a_marker_that_is_written_wrongly(says, hlo_suite):
    result = hlo_suite(
        """
@pytest.mark.hloscope(slise="v5e:2x4")
def test_name(hlo):
    hlo.analyze("step.hlo")


@pytest.mark.hloscope("v5e:2x4")
def test_position(hlo):
    hlo.analyze("step.hlo")


def test_no_program(hlo):
    hlo.expect.baseline()
"""
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "E*Error: *'slise'",
            "E*= fix: * slice?",
            "E*Error: *keywords only",
            "E*Error: *not analyzed a program",
        ]
    )
    says(errors_told(result))


BASELINE = """
        @pytest.mark.hloscope(mesh=MESH)
        @pytest.mark.parametrize("size", ["small", "a/b"])
        def test_step(hlo, size):
            hlo.expect.baseline("step.hlo")
            hlo.expect.baseline("step.hlo", name="second")
        """.replace("\n        ", "\n")


@pytest.mark.long
def test_baselines(says, hlo_suite, suite, pytester):
    missing = hlo_suite(BASELINE)
    missing.assert_outcomes(failed=2)
    missing.stdout.fnmatch_lines(
        [
            "* no baseline hloscope_baselines/test_model/test_step-small.txt",
            "   = fix: pytest --hloscope-update *",
        ]
    )
    says(block_told(missing, "test_step-small.txt"), "missing")
    folder = pytester.path / "hloscope_baselines" / "test_model"
    assert not folder.exists()
    written = suite("--hloscope-update")
    written.assert_outcomes(passed=2)
    written.stdout.fnmatch_lines(["baseline written: hloscope_baselines/test_model/test_step-small.second.txt"])
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 4
    assert {"test_step-small.txt", "test_step-small.second.txt"} < set(names)
    again = suite("--hloscope-update")
    assert "baseline written" not in again.stdout.str()
    passed = suite()
    passed.assert_outcomes(passed=2)
    assert "hloscope" not in passed.stdout.str()

    (pytester.path / "step.hlo").write_text(HLO.replace("16,128", "32,128"))
    changed = suite("-k", "small")
    changed.assert_outcomes(failed=1, deselected=1)
    changed.stdout.fnmatch_lines(
        [
            "step.hlo *baseline hloscope_baselines/test_model/test_step-small.txt was accepted",
            "error[[]baseline-changed[]]: worse: an all-reduce over Y moves more than before, 12.3 kB -> 24.6 kB *",
        ]
    )
    says(block_told(changed, "test_step-small.txt"), "changed")
    assert "that no test uses" not in changed.stdout.str()


def test_baselines_that_no_test_uses_are_told(hlo_suite, suite, pytester):
    hlo_suite(BASELINE, "--hloscope-update").assert_outcomes(passed=2)
    pytester.makepyfile(
        test_model=PREAMBLE
        + """
@pytest.mark.hloscope(mesh=MESH)
@pytest.mark.parametrize("size", ["small"])
def test_step(hlo, size):
    hlo.expect.baseline("step.hlo")
"""
    )
    result = suite()
    result.assert_outcomes(passed=1)
    told = [line for line in result.stdout.lines if line.startswith("baseline that no test uses")]
    assert len(told) == 3
    assert told[-1].endswith("test_step-small.second.txt")
    by_name = suite("test_model.py::test_step")
    told = [line for line in by_name.stdout.lines if line.startswith("baseline that no test uses")]
    assert [line.rpartition("/")[2] for line in told] == ["test_step-small.second.txt"]


@pytest.mark.parametrize("parallel", [(), ("-p", "xdist", "-n", "3")], ids=["alone", "xdist"])
def test_baselines_of_tests_that_did_not_run_are_not_told(says, hlo_suite, suite, pytester, parallel):
    hlo_suite(BASELINE, "--hloscope-update").assert_outcomes(passed=2)
    folder = pytester.path / "hloscope_baselines" / "test_model"
    (folder / "test_gone.txt").write_text("")
    pytester.makeconftest("""
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "small" in item.name]
""")
    (told,) = [line for line in suite(*parallel).stdout.lines if line.startswith("baseline that no test uses")]
    assert says(told).split()[-1] == "hloscope_baselines/test_model/test_gone.txt"


def test_one_baseline_for_two_calls_is_refused(says, hlo_suite):
    result = hlo_suite(
        """
def test_step(hlo):
    hlo.expect.baseline("step.hlo", mesh=MESH)
    hlo.expect.baseline("step.hlo", mesh=MESH)
""",
        "--hloscope-update",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*used twice*", '   = fix: *: baseline(*, name="forward")'])
    says(block_told(result, "used twice"))


def test_what_cannot_be_decided_is_neither_equal_nor_unequal(hlo_suite):
    result = hlo_suite(
        """
from hloscope.contracts import no, none, time


def test_step(hlo):
    report = hlo.analyze("step.hlo", mesh=MESH)
    assert report != none() and report.collectives != []
    assert not report == time(max="1 s") and not report != time(max="1 s")
    assert not report == no("all-gather", "Z") and not report != no("all-gather", "Z")
"""
    )
    result.assert_outcomes(passed=1)


def test_options_that_nobody_reads_are_refused(says, hlo_suite):
    result = hlo_suite(
        """
def test_keyword(hlo):
    hlo.analyze("step.hlo", mehs=MESH)

def test_text(hlo):
    hlo.analyze("step.hlo", ("f32[8]",), mesh=MESH)

def test_report(hlo):
    hlo.expect(hlo.analyze("step.hlo", mesh=MESH), "none", slice="v5e:2x4")
"""
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*Error: *keyword argument 'mehs'*"])
    result.stdout.fnmatch_lines(["*Error: args *HLO text*"])
    result.stdout.fnmatch_lines(["*Error: *been analyzed *no options*"])
    says(errors_told(result))


def test_reports(hlo_suite, pytester):
    result = hlo_suite(
        """
def test_step(hlo):
    hlo.analyze("step.hlo", mesh=MESH)
    hlo.analyze("step.hlo")
""",
        "--hloscope-report",
        "reports",
    )
    result.assert_outcomes(passed=1)
    first = pytester.path / "reports" / "test_model.py-test_step.json"
    assert json.loads(first.read_text())["mesh"]["axis_names"] == ["X", "Y"]
    assert (pytester.path / "reports" / "test_model.py-test_step-2.json").is_file()


def test_odd_names_are_told_apart_in_files(hlo_suite, pytester):
    """What the operating system cannot have in a name, two parameters that leave the same letters, a very long one."""
    result = hlo_suite(
        """
@pytest.mark.parametrize("odd", ["[]", "-", "a/b", "a b", "x" * 300], ids=str)
def test_step(hlo, odd):
    hlo.expect.baseline("step.hlo", mesh=MESH)
    hlo.expect.baseline("step.hlo", mesh=MESH, name="of/" + odd)
""",
        "--hloscope-update",
        "--hloscope-report",
        "reports",
    )
    result.assert_outcomes(passed=5)
    assert len(list((pytester.path / "reports").iterdir())) == 10
    assert len(list((pytester.path / "hloscope_baselines" / "test_model").glob("*.txt"))) == 10


STEP = """
import pytest
from hloscope.contracts import all_reduce, only


def step(x, w):
    return x @ w


ARGS = ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]")
"""


@pytest.mark.long
@pytest.mark.tpu_compiler
def test_compiled_functions_of_several_processes(suite, pytester):
    pytester.makepyfile(
        test_step=STEP
        + """
@pytest.mark.hloscope(mesh={"X": 8, "Y": 2}, out="P('X', None)")
@pytest.mark.parametrize("slice_name", ["v5e:4x4", "v6e:4x4"])
def test_step(hlo, slice_name):
    report = hlo.analyze(step, ARGS, slice=slice_name)
    assert report.collectives == [all_reduce("Y", max_bytes="16 KiB")]
    hlo.expect.baseline()


@pytest.mark.hloscope(mesh={"X": 4, "Y": 2}, out="P('X', None)")
def test_from_the_command_line(hlo):
    assert hlo.analyze(step, ARGS).slice.name == "v5e:4x2"
"""
    )
    options = ("-p", "xdist", "-n", "2", "--hloscope-slice", "v5e:4x2")
    result = suite(*options, "--hloscope-update")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["baseline written: hloscope_baselines/test_step/test_step-v5e-4x4-*.txt"])
    again = suite(*options)
    again.assert_outcomes(passed=3)
    assert "that no test uses" not in again.stdout.str()


@pytest.mark.long
@pytest.mark.tpu_compiler
def test_a_mesh_larger_than_what_jax_was_started_with(suite, pytester):
    pytester.makepyfile(
        test_step="import jax\n\njax.devices()\n"
        + STEP
        + """
def test_step(hlo):
    assert hlo.analyze(step, ARGS, mesh={"X": 8, "Y": 2}).mesh.device_count == 16
    assert jax.device_count() == 1
"""
    )
    suite().assert_outcomes(passed=1)


@pytest.mark.long
def test_devices_are_arranged_before_jax_starts(suite, pytester):
    pytester.makeini("[pytest]\nhloscope_devices = 12\n")
    pytester.makepyfile(
        """
import jax


def test_devices(hlo):
    assert len(jax.devices("cpu")) == 12
"""
    )
    suite().assert_outcomes(passed=1)


def test_a_suite_without_the_fixture_is_left_alone(suite, pytester):
    pytester.makepyfile(
        """
import os
import sys


def test_nothing():
    assert "JAX_NUM_CPU_DEVICES" not in os.environ
    assert not {"jax", "numpy", "lark", "hloscope.analysis"} & set(sys.modules)
"""
    )
    suite("--strict-markers").assert_outcomes(passed=1)


def test_loading_imports_nothing_heavy():
    code = (
        "import sys, pytest; before = set(sys.modules); import hloscope.pytest_plugin\n"
        "print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {
        "importlib.metadata",
        "hloscope",
        "hloscope.base.environment",
        "hloscope.base",
        "hloscope.base.presenter",
        "hloscope.version",
        "hloscope.pytest_plugin",
    }


SLOW = """
import re
import hloscope

def endless(x):
    while True:  # as a tracing that never ends
        x + 1

def test_endless(hlo):
    hlo.analyze(endless, ("f32[8]",), slice="v5e:1x1")

@pytest.mark.hloscope(timeout_s=60)
def test_the_next(hlo):
    hlo.analyze("step.hlo")
"""


@pytest.mark.long
def test_a_limit_ends_tracing_too(hlo_suite):
    result = hlo_suite(SLOW, "--hloscope-timeout", "5")
    result.assert_outcomes(failed=1, passed=1)
    told = ["*TimeLimitError: *endless * 5 s", "*--> test_model.py:* in endless"]
    result.stdout.fnmatch_lines(told)


IDLE = """
@pytest.mark.hloscope(mesh=MESH)
class TestIdle:
    def test_nothing_read(self, hlo):
        hlo.analyze("step.hlo")

    def test_thrown_away(self, hlo):
        report = hlo.analyze("step.hlo")
        report == only(all_gather("X"))
        report.collectives == []
        report != none()

    def test_nothing_analyzed(self, hlo):
        assert True

    def test_second_program(self, hlo):
        assert hlo.analyze("step.hlo").totals.wire_bytes < 10**9
        hlo.analyze("step.hlo", mesh={"A": 8})
"""
JUDGED = """
@pytest.mark.hloscope(mesh=MESH)
class TestJudged:
    def test_read(self, hlo):
        assert hlo.analyze("step.hlo").totals.wire_bytes < 10**9

    def test_compared(self, hlo):
        report = hlo.analyze("step.hlo")
        assert report == only(all_reduce("Y"))

    def test_in_a_condition(self, hlo):
        if hlo.analyze("step.hlo") != only(all_reduce("Y")):
            raise ValueError

    def test_held(self, hlo):
        hlo.expect("step.hlo", "all-reduce@Y")

    def test_listed(self, hlo):
        assert [moved.kind for moved in hlo.analyze("step.hlo").collectives] == ["all-reduce"]

    def test_member(self, hlo):
        report = hlo.analyze("step.hlo")
        assert all_reduce("Y") in report.collectives
        assert "all-gather@X" not in report.collectives
        assert report.collectives[0] in report.collectives

    def test_meant_so(self, hlo):
        hlo.analyze("step.hlo", judge=False)

    def test_skipped(self, hlo):
        pytest.skip("not today")
"""


def test_a_test_that_asserts_nothing_is_noted_on_a_desk(says, hlo_suite, monkeypatch):
    alone = hlo_suite(IDLE)
    alone.assert_outcomes(passed=4)
    lines = [line for line in alone.stdout.lines if "(fails in CI)" in line]
    assert len(lines) == 4
    says("\n".join(lines))
    monkeypatch.setenv("CI", "true")
    hlo_suite(IDLE, "--no-hloscope-strict").assert_outcomes(passed=4)


def test_a_test_that_asserts_something_passes_in_ci(hlo_suite, monkeypatch):
    monkeypatch.setenv("CI", "true")
    result = hlo_suite(JUDGED)
    result.assert_outcomes(passed=7, skipped=1)
    assert not [line for line in result.stdout.lines if "CI" in line]


def test_ci_writes_baselines_when_told_and_leaves_none_behind(hlo_suite, suite, pytester, monkeypatch):
    hlo_suite(BASELINE, "--hloscope-update").assert_outcomes(passed=2)
    monkeypatch.setenv("CI", "true")
    suite("--hloscope-update", "--accept-in-ci").assert_outcomes(passed=2)
    assert suite().ret == 0
    (pytester.path / "hloscope_baselines" / "test_model" / "test_gone.txt").write_text("")
    orphaned = suite()
    orphaned.assert_outcomes(passed=2)
    assert orphaned.ret == pytest.ExitCode.TESTS_FAILED
    assert suite("-p", "xdist", "-n", "2").ret == pytest.ExitCode.TESTS_FAILED
    assert suite("--no-hloscope-strict").ret == 0


def test_a_call_wins_over_the_nearest_marker_and_that_over_the_command_line(hlo_suite):
    result = hlo_suite(
        """
@pytest.mark.hloscope(mesh={"A": 8}, slice="v6e:2x4")
class TestMarked:
    def test_by_its_class(self, hlo):
        report = hlo.analyze("step.hlo")
        assert (report.mesh.axis_names, report.slice.name) == (("A",), "v6e:2x4")

    @pytest.mark.hloscope(mesh=MESH)
    def test_by_itself(self, hlo):
        report = hlo.analyze("step.hlo")
        assert (report.mesh.axis_names, report.slice.name) == (("X", "Y"), "v6e:2x4")

    def test_in_the_call(self, hlo):
        report = hlo.analyze("step.hlo", mesh={"B": 8}, slice="v5p:2x2x2")
        assert (report.mesh.axis_names, report.slice.name) == (("B",), "v5p:2x2x2")


def test_not_marked(hlo):
    assert hlo.analyze("step.hlo").slice.name == "v5e:2x4"
""",
        "--hloscope-slice",
        "v5e:2x4",
    )
    result.assert_outcomes(passed=4)


SLOW_ANALYSIS = """
import time

import hloscope.app.analyses


def slow(*_, **__):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass


def test_slow(hlo, monkeypatch):
    monkeypatch.setattr(hloscope.app.analyses, "analyze", slow)
    hlo.analyze(slow)
"""


def test_the_limit_of_the_command_line_ends_an_analysis(hlo_suite):
    result = hlo_suite(SLOW_ANALYSIS, "--hloscope-timeout", "0.5")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*TimeLimitError: *slow * 0.5 s", "*--> test_model.py:* in slow"])


def test_a_baseline_fails_what_is_worse_and_in_ci_what_is_better(hlo_suite, suite, pytester, monkeypatch):
    tests = """
def test_step(hlo):
    hlo.expect.baseline("step.hlo", mesh=MESH)
"""
    hlo_suite(tests, "--hloscope-update").assert_outcomes(passed=1)
    baseline = pytester.path / "hloscope_baselines" / "test_model" / "test_step.txt"
    accepted = baseline.read_text()
    baseline.write_text(accepted.replace("12,288 B wire", "2,288 B wire"))
    worse = suite()
    worse.assert_outcomes(failed=1)
    worse.stdout.fnmatch_lines(["error[[]baseline-changed[]]: worse: *2.29 kB -> 12.3 kB*"])
    baseline.write_text(accepted.replace("12,288 B wire", "92,288 B wire"))
    suite().assert_outcomes(passed=1)
    monkeypatch.setenv("CI", "true")
    looser = suite()
    looser.assert_outcomes(failed=1)
    looser.stdout.fnmatch_lines(["note[[]baseline-looser[]]: *"])
    suite("--no-hloscope-strict").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("ini", "mesh", "devices"), [("", {"X": 4, "Y": 3}, 12), ("", {"X": 2}, 8), ("hloscope_devices = 10", {"X": 2}, 10)]
)
def test_devices_are_as_many_as_marked_meshes_need(suite, pytester, ini, mesh, devices):
    pytester.makeini(f"[pytest]\n{ini}\n")
    pytester.makepyfile(
        f"""
import os

import pytest


@pytest.mark.hloscope(mesh={mesh})
def test_devices(hlo):
    assert os.environ["JAX_NUM_CPU_DEVICES"] == "{devices}"
"""
    )
    suite().assert_outcomes(passed=1)


VERIFYING = """
def step(x):
    return x + 1


def twin(x):
    return 1 + x


def other(x):
    return x + 2


@pytest.mark.hloscope(mesh={"X": 2}, slice="cpu:2", timeout_s=60)
class TestVerified:
    def test_the_same(self, hlo):
        assert hlo.verify(step, twin, args=("f32[8@X]",)).passed

    def test_another(self, hlo):
        hlo.verify(step, other, args=("f32[8@X]",))
"""


def test_a_failed_verification_fails_its_test(hlo_suite):
    result = hlo_suite(VERIFYING)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["the program differs from its reference", "error[[]wrong-result[]]: *"])
