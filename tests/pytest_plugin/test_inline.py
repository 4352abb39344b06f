"""Expectations that stand in tests: held there, and written there with `--hloscope-update`.

The suites run in this process, as most of them have to run twice.
"""

from __future__ import annotations

import re
import textwrap
from itertools import takewhile

import pytest
from test_plugin import HLO as SUM
from test_plugin import errors_told

import hloscope
from hloscope import pytest_plugin

HLO = SUM.replace("ROOT add = f32[] add(x, y)", "n = f32[] add(x, y)\n  ROOT m = f32[] maximum(n, x)")
"""What reduces by more than one operation, so that the text of its contract is short."""

PREAMBLE = """
import pytest

MESH = {"X": 2, "Y": 4}
pytestmark = pytest.mark.hloscope(mesh=MESH)
"""
ONE = "all-reduce@Y <= 8KiB x1; nothing else"
UPDATE = "--hloscope-update"


@pytest.fixture(scope="module", autouse=True)
def everything_is_imported():
    """What a suite in this process would import, and throw away at its end."""
    hloscope.analyze_text(HLO).to_dict()


@pytest.fixture
def inline_suite(pytester, monkeypatch):
    """Runs a suite whose tests find `step.hlo`; a text is what `test_model.py` becomes."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(pytest_plugin, "_arrange_devices", lambda *_: None)
    (pytester.path / "step.hlo").write_text(HLO)

    def run(tests=None, *arguments):
        if tests is not None:
            (pytester.path / "test_model.py").write_text(PREAMBLE + textwrap.dedent(tests))
        plugins = ("-p", "hloscope.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:hypothesis")
        return pytester.runpytest_inprocess(*plugins, *arguments)

    return run


def said(result):
    """What hloscope says at the end."""
    lines = result.stdout.lines
    first = next((number for number, line in enumerate(lines) if re.fullmatch("=+ hloscope =+", line)), len(lines))
    return [line for line in takewhile(lambda line: not line.startswith("=="), lines[first + 1 :]) if line]


def failures(result):
    """What is wrong with each test."""
    text = result.stdout.str()
    return [part.strip() for part in re.findall(r"^_+ \w+ _+\n(.*?)(?=^[_=]{3,})", text, re.DOTALL | re.MULTILINE)]


def model(pytester):
    return (pytester.path / "test_model.py").read_text().removeprefix(PREAMBLE)


def test_what_is_empty_fails_and_is_filled(says, inline_suite, pytester):
    empty = inline_suite(
        """
        def test_nothing(hlo):
            hlo.expect.inline("step.hlo")

        def test_blank(hlo):
            hlo.expect.inline("step.hlo", "  # to be written")
        """
    )
    empty.assert_outcomes(failed=2)
    before = model(pytester)
    says(failures(empty)[0])
    updated = inline_suite(None, UPDATE)
    updated.assert_outcomes(passed=2)
    assert updated.ret == 0
    assert said(updated) == ["expectation written: test_model.py:8", "expectation written: test_model.py:11"]
    assert model(pytester) == before.replace('"step.hlo")', f'"step.hlo", "{ONE}")').replace(
        '"  # to be written"', f'"{ONE}"'
    )
    inline_suite().assert_outcomes(passed=2)


def test_what_holds_stays_and_what_does_not_is_written_anew(says, inline_suite, pytester):
    result = inline_suite(
        """
        def test_step(hlo):
            hlo.expect.inline("step.hlo", 'all-reduce <= 1MiB; wire <= 1MB/step')
            hlo.expect.inline("step.hlo", "all-reduce@Y <= 1KiB; wire <= 1MB/step  # at most")
            hlo.expect.inline("step.hlo", "none")

        def test_broken(hlo):
            hlo.expect.inline("step.hlo", "all-gather@X")
        """
    )
    result.assert_outcomes(failed=2)
    says("\n\n".join(failures(result)))
    inline_suite(None, UPDATE).assert_outcomes(passed=2)
    assert model(pytester) == textwrap.dedent(
        f'''
        def test_step(hlo):
            hlo.expect.inline("step.hlo", 'all-reduce <= 1MiB; wire <= 1MB/step')
            hlo.expect.inline(
                "step.hlo",
                """
                all-reduce@Y <= 8KiB x1
                wire <= 1MB/step  # at most
                nothing else
                """,
            )
            hlo.expect.inline("step.hlo", "{ONE}")

        def test_broken(hlo):
            hlo.expect.inline("step.hlo", "{ONE}")
        '''
    )
    written = model(pytester)
    inline_suite().assert_outcomes(passed=2)
    again = inline_suite(None, UPDATE)
    assert (model(pytester), said(again)) == (written, [])


HELPER = """
import pytest


def held(hlo, program):
    return hlo.expect.inline(program, "")


@pytest.fixture
def step(hlo):
    return hlo.expect.inline("step.hlo", mesh={"X": 2, "Y": 4})
"""


def test_calls_in_loops_helpers_and_fixtures(inline_suite, pytester):
    (pytester.path / "conftest.py").write_text(HELPER)
    tests = """
        from conftest import held

        @pytest.mark.parametrize("size", [1, 2])
        def test_loop(hlo, step, size):
            for program in (step, "step.hlo"):
                held(hlo, program)

        def test_comprehension(hlo):
            assert [hlo.expect.inline(each, "").num_partitions for each in 3 * ["step.hlo"]] == [8, 8, 8]
            assert (lambda: hlo.expect.inline("step.hlo", ""))() == hlo.expect.inline("step.hlo", "")
        """
    result = inline_suite(tests, UPDATE)
    result.assert_outcomes(passed=3)
    lines = [int(line.rpartition(":")[2]) for line in said(result)]
    assert lines == [6, 11, 15, 22, 28]
    inline_suite().assert_outcomes(passed=3)


def test_one_text_for_two_programs_is_refused(says, inline_suite, pytester):
    tests = """
        @pytest.mark.parametrize("mesh", [{"X": 2, "Y": 4}, {"A": 8}], ids=["two", "one"])
        def test_meshes(hlo, mesh):
            hlo.expect.inline("step.hlo", "", mesh=mesh)

        def test_loop(hlo):
            for mesh in ({"X": 2, "Y": 4}, {"A": 8}):
                hlo.expect.inline("step.hlo", "all-reduce@Y x1; nothing else", mesh=mesh)

        def test_other(hlo):
            hlo.expect.inline("step.hlo", "")
        """
    inline_suite(tests)
    before = model(pytester)
    result = inline_suite(None, UPDATE)
    result.assert_outcomes(passed=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    says("\n".join(said(result)))
    assert model(pytester) == before.replace('"step.hlo", "")', f'"step.hlo", "{ONE}")')


REFUSED = """
    TEXT = "none"

    def test_variable(hlo):
        hlo.expect.inline("step.hlo", TEXT)

    def test_f_string(hlo):
        hlo.expect.inline("step.hlo", f"{TEXT}")

    def test_sum(hlo):
        hlo.expect.inline("step.hlo", "no" + "ne")

    def test_starred(hlo):
        hlo.expect.inline(*("step.hlo", "none"))

    def test_twice_starred(hlo):
        hlo.expect.inline("step.hlo", **{"expected": "none"})

    def test_map(hlo):
        list(map(hlo.expect.inline, ["step.hlo"]))

    def test_made_as_it_runs(hlo):
        exec('hlo.expect.inline("step.hlo")')

    def test_no_text(hlo):
        hlo.expect.inline("step.hlo", None)

    def test_no_contract(hlo):
        hlo.expect.inline("step.hlo", "all-redcue@Y")

    def test_users_own(hlo):
        hlo.expect.inline("step.hlo", "hbm <= 1GiB")
    """


def test_what_cannot_be_written_is_refused(says, inline_suite, pytester):
    inline_suite(REFUSED)
    before = model(pytester)
    result = inline_suite(None, UPDATE)
    result.assert_outcomes(failed=10)
    assert (model(pytester), said(result)) == (before, [])
    says("\n".join(errors_told(result)), "errors")
    says(failures(result)[-1], "users own")


def test_a_text_that_is_computed_may_hold(inline_suite):
    tests = f"""
        TEXT = "{ONE}"

        def test_variable(hlo):
            hlo.expect.inline("step.hlo", TEXT)
        """
    inline_suite(tests, UPDATE).assert_outcomes(passed=1)


CHANGES = {
    "read-only": "os.chmod(__file__, 0o444)",
    "changed before": "open(__file__, 'a').write('\\n')",
    "changed after": "request.addfinalizer(lambda: open(__file__, 'a').write('\\n'))",
    "gone after": "request.addfinalizer(lambda: os.unlink(__file__))",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_cannot_be_written_stays(says, inline_suite, pytester, change):
    tests = f"""
        import os

        def test_step(hlo, request):
            {change}
            hlo.expect.inline("step.hlo", "")
        """
    result = inline_suite(tests, UPDATE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    says("\n".join((*errors_told(result), *said(result))).replace(str(pytester.path), "FOLDER"))
    path = pytester.path / "test_model.py"
    assert not path.exists() or ONE not in path.read_text()
    assert {each.name for each in pytester.path.glob("*test_model*")} <= {"test_model.py"}


def test_a_file_of_a_package_is_not_written(says, inline_suite, pytester, monkeypatch):
    folder = pytester.path / "site-packages"
    folder.mkdir()
    (folder / "helping.py").write_text(HELPER)
    monkeypatch.syspath_prepend(folder)
    result = inline_suite("from helping import held\n\ndef test_step(hlo):\n    held(hlo, 'step.hlo')\n", UPDATE)
    result.assert_outcomes(failed=1)
    assert (folder / "helping.py").read_text() == HELPER
    says("\n".join(errors_told(result)).replace(str(pytester.path), "FOLDER"))


LOOP = """\
HloModule m, num_partitions=8

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT add = f32[] add(x, y)
}

body {
  p = (f32[16], pred[]) parameter(0)
  x = f32[16] get-tuple-element(p), index=0
  more = pred[] get-tuple-element(p), index=1
  r = f32[16] all-reduce(x), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=sum
  ROOT t = (f32[16], pred[]) tuple(r, more)
}

condition {
  p = (f32[16], pred[]) parameter(0)
  ROOT more = pred[] get-tuple-element(p), index=1
}

ENTRY main {
  p = (f32[16], pred[]) parameter(0)
  ROOT w = (f32[16], pred[]) while(p), condition=condition, body=body
}
"""


def test_the_operation_of_a_sum_is_written(inline_suite, pytester):
    (pytester.path / "sum.hlo").write_text(SUM)
    inline_suite("def test_sum(hlo):\n    hlo.expect.inline('sum.hlo')\n", UPDATE).assert_outcomes(passed=1)
    assert "all-reduce@Y by add <= 8KiB x1\n" in model(pytester)
    (pytester.path / "sum.hlo").write_text(SUM.replace("add(x, y)", "maximum(x, y)"))
    inline_suite().assert_outcomes(failed=1)


def test_what_is_not_known_is_not_made_up(inline_suite, pytester):
    (pytester.path / "loop.hlo").write_text(LOOP)
    tests = """
        def test_loop(hlo):
            hlo.expect.inline("loop.hlo")

        def test_counted(hlo):
            hlo.expect.inline("loop.hlo", 'trips "%w" = 3')

        def test_no_mesh(hlo):
            hlo.expect.inline("step.hlo", "", mesh={"A": 8})
        """
    inline_suite(tests, UPDATE).assert_outcomes(passed=3)
    text = model(pytester)
    assert (
        "            all-reduce@Y by add <= 64B\n            nothing else\n            at-least-ok  # "
        in text.replace("        ", "            ")
    )
    assert "all-reduce@Y by add <= 64B x3\n" in text
    inline_suite().assert_outcomes(passed=3)


def test_ci_writes_no_expectations(inline_suite, pytester, monkeypatch):
    tests = """
        def test_step(hlo):
            hlo.expect.inline("step.hlo")
        """
    inline_suite(tests)
    before = model(pytester)
    monkeypatch.setenv("CI", "true")
    assert inline_suite(None, UPDATE).ret == pytest.ExitCode.USAGE_ERROR
    assert model(pytester) == before
    inline_suite().assert_outcomes(failed=1)
    inline_suite(None, UPDATE, "--accept-in-ci").assert_outcomes(passed=1)
    inline_suite().assert_outcomes(passed=1)


def test_what_is_never_reached_is_no_assertion(inline_suite, monkeypatch):
    tests = """
        def test_step(hlo):
            report = hlo.analyze("step.hlo")
            if report is None:
                hlo.expect.inline(report, "")
        """
    monkeypatch.setenv("CI", "true")
    inline_suite(tests).assert_outcomes(failed=1)


def test_an_encoding_of_its_own(inline_suite, pytester):
    lines = (
        "# coding: latin-1",
        "MESH = {'\xe9': 8}",
        "def test(hlo):",
        "\thlo.expect.inline('step.hlo', mesh=MESH)",
        "",
    )
    (pytester.path / "test_odd.py").write_bytes("\r\n".join(lines).encode("latin-1"))
    inline_suite(None, UPDATE).assert_outcomes(passed=1)
    after = (pytester.path / "test_odd.py").read_bytes()
    assert b"all-reduce@\xe9" in after
    assert after.count(b"\n") == after.count(b"\r\n")
    inline_suite().assert_outcomes(passed=1)


@pytest.fixture
def side_by_side(inline_suite, suite, pytester):
    """Runs a suite in processes of their own: one, or two of pytest-xdist."""

    def run(tests, *arguments):
        inline_suite(tests, "--collect-only")
        return suite(*arguments)

    return run


@pytest.mark.long
def test_several_processes_write_what_one_would(side_by_side, inline_suite, pytester):
    result = side_by_side(
        """
        @pytest.mark.parametrize("number", range(4))
        class TestAll:
            def test_same(self, hlo, number):
                hlo.expect.inline("step.hlo", "")

            def test_others(self, hlo, number):
                hlo.expect.inline("step.hlo", mesh={"A": 8} if number == 3 else MESH)
        """,
        UPDATE,
        "-p",
        "xdist",
        "-n",
        "2",
    )
    result.assert_outcomes(passed=8)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert said(result)[:2] == [
        "expectation written: test_model.py:10",
        "expectation not written: test_model.py:13 runs with programs that move different things",
    ]
    assert f'hlo.expect.inline("step.hlo", "{ONE}")' in model(pytester)
    assert 'hlo.expect.inline("step.hlo", mesh=' in model(pytester)
    inline_suite(None, "-k", "same").assert_outcomes(passed=4, deselected=4)


@pytest.mark.long
def test_failures_of_several_processes_are_as_good_as_of_one(side_by_side):
    tests = """
        from hloscope.contracts import all_gather, hbm, only

        def test_equal(hlo):
            assert hlo.analyze("step.hlo") == only(all_gather("X")) & hbm(max="1 GiB")

        def test_list(hlo):
            assert hlo.analyze("step.hlo").collectives == []

        def test_expect(hlo):
            hlo.expect("step.hlo", "no all-reduce@Y; all-gather@X; nothing else")

        def test_inline(hlo):
            hlo.expect.inline("step.hlo", "none")

        def test_empty(hlo):
            hlo.expect.inline("step.hlo", "")

        def test_baseline(hlo):
            hlo.expect.baseline("step.hlo")

        def test_mistake(hlo):
            hlo.expect("step.hlo", "no all-redcue@Y")

        def test_idle(hlo):
            hlo.analyze("step.hlo")
        """
    told = []
    for options in ((), ("-p", "xdist", "-n", "2")):
        result = side_by_side(tests, "--hloscope-strict", *options)
        result.assert_outcomes(failed=8)
        told.append(sorted(of_failures(result)))
    assert len(told[0]) == 8
    assert told[0] == told[1]


def of_failures(result):
    """What pytest prints of each failure, without the process and the addresses that it was in."""
    text = result.stdout.str().partition("= FAILURES =")[2].partition("= short test summary")[0]
    parts = re.split(r"^_{3,}.* _{3,}\n", text, flags=re.MULTILINE)[1:]
    return [re.sub(r"^\[gw\d\] .*\n| at 0x\w+", "", part, flags=re.MULTILINE).rstrip("=\n") for part in parts]
