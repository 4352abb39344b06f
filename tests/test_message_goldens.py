"""The goldens of messages fail where a message is new, changed, gone or without a test."""

from __future__ import annotations

from pathlib import Path

import pytest

ONE = "def test_one(says, tmp_path):\n    says(f'{tmp_path}: no such file')\n"
TWO = """import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_two(says, n):
    says([f"{n} a", "b"], "first")
"""


@pytest.fixture
def suite(pytester):
    """Two test files with a golden, in a folder of a project."""
    pytester.makeini("[pytest]\n")
    pytester.makeconftest(
        "pytest_plugins = ['message_goldens']\n"
        "def pytest_addoption(parser):\n    parser.addoption('--update-goldens', action='store_true')\n"
    )
    pytester.makepyfile(message_goldens=Path(__file__).with_name("message_goldens.py").read_text())
    room = pytester.mkdir("room")
    room.joinpath("test_a.py").write_text(ONE)
    room.joinpath("test_b.py").write_text(TWO)
    return pytester


def run(suite, *arguments, passed=0, failed=0, errors=0):
    done = suite.runpytest_inprocess("-p", "no:hloscope", "-p", "no:cacheprovider", *arguments)
    assert done.parseoutcomes().get("passed", 0) == passed, done.stdout.str()
    assert done.parseoutcomes().get("failed", 0) == failed
    assert done.parseoutcomes().get("errors", 0) == errors
    return done.stdout.str()


def golden(suite):
    return suite.path / "room" / "goldens" / "messages.txt"


def test_what_is_said_is_kept_and_compared(suite):
    assert "in no golden: test_a.py::test_one" in run(suite, passed=3, errors=3)
    run(suite, "--update-goldens", passed=3)
    assert golden(suite).read_text().splitlines()[2:] == [
        *("=== test_a.py::test_one", "TMP: no such file", ""),
        *("=== test_b.py::test_two[1] :: first", "1 a", "b", ""),
        *("=== test_b.py::test_two[2] :: first", "2 a", "b"),
    ]
    before = golden(suite).read_bytes()
    run(suite, passed=3)
    run(suite, "-n", "2", passed=3)
    run(suite, "--update-goldens", passed=3)
    assert golden(suite).read_bytes() == before


def test_another_text_fails_its_test_alone(suite):
    run(suite, "--update-goldens", passed=3)
    golden(suite).write_text(golden(suite).read_text().replace("1 a", "1 x"))
    told = run(suite, passed=3, errors=1)
    assert "said otherwise: test_b.py::test_two[1] :: first" in told
    run(suite, "room/test_b.py", "-k", "1", "--update-goldens", passed=1)
    run(suite, passed=3)


def test_what_a_test_no_longer_says_fails_it(suite):
    run(suite, "--update-goldens", passed=3)
    suite.path.joinpath("room/test_a.py").write_text("def test_one(says):\n    pass\n")
    assert "no longer said: test_a.py::test_one" in run(suite, passed=3, errors=1)
    suite.path.joinpath("room/test_a.py").write_text("def test_one(says):\n    assert says('no') == 'yes'\n")
    assert "no longer said" not in run(suite, passed=2, failed=1)


@pytest.mark.parametrize("gone", ["test", "parameter", "file"])
def test_a_section_without_a_test_fails_until_it_is_dropped(suite, gone):
    run(suite, "--update-goldens", passed=3)
    file = suite.path / "room" / "test_b.py"
    left = {"test": "def test_three(): pass\n", "parameter": TWO.replace("[1, 2]", "[1]")}
    file.unlink() if gone == "file" else file.write_text(left[gone])
    passing = 1 if gone == "file" else 2
    told = run(suite, passed=passing, failed=1)
    assert "of no test: test_b.py::test_two[2] :: first" in told
    run(suite, "room/test_a.py::test_one", passed=1)  # nobody asked for more
    if gone == "file":
        run(suite, "-n", "2", passed=passing, failed=1)
    run(suite, "--update-goldens", passed=passing)
    run(suite, passed=passing)


def test_it_works_from_any_folder(suite, monkeypatch):
    monkeypatch.chdir(suite.path / "room")
    run(suite, "--update-goldens", passed=3)
    monkeypatch.chdir("/")
    run(suite, f"--rootdir={suite.path}", str(suite.path / "room"), "--update-goldens", passed=3)
    run(suite, f"--rootdir={suite.path}", str(suite.path / "room"), passed=3)
    assert golden(suite).is_file()


def test_two_messages_of_one_test_need_keys(suite):
    suite.path.joinpath("room/test_a.py").write_text("def test_one(says):\n    says('a')\n    says('b')\n")
    assert "is said twice" in run(suite, "room/test_a.py", failed=1)
