"""`py.typed` holds: user code is checked strictly, by mypy and by pyright, and what is wrong in it is found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hloscope

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "tests" / "user_code" / "a_notebook.py"
MYPY = ("-m", "mypy", "--strict", "--warn-unreachable", "--no-error-summary", "--config-file=")
PYRIGHT = ("-m", "basedpyright", "-p", "pyrightconfig.json")
WRONG = """
import hloscope

def step(x: float) -> float:
    return x

found = hloscope.analyze(step, meshes={"X": 4})
found.collectives.by("place")
found.report("pdf")
found.to_dict()["collective"]
found.totals.wire_bytes = 3
hloscope.price(step)
number: str = found.collectives[0].executions
"""
MISTAKES = 7


def checked(folder: Path, file: Path, *command: str) -> str:
    """What a type checker says of a file, from a folder that is no project's."""
    config = f'{{"typeCheckingMode": "strict", "include": ["{file}"], "extraPaths": ["{ROOT}"]}}'
    (folder / "pyrightconfig.json").write_text(config)
    files = [str(file)] if "mypy" in command else []
    environment = {**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)}
    run = [sys.executable, *command, *files]
    return subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


def lines_of(told: str) -> set[int]:
    """The lines that have errors."""
    return {int(line) for line in re.findall(r":(\d+)(?::\d+)?(?: -|:) error", told)}


@pytest.fixture(params=["mypy", "pyright"])
def checker(request, tmp_path):
    if request.param == "pyright" and find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    command = MYPY if request.param == "mypy" else PYRIGHT
    return lambda file: checked(tmp_path, file, *command)


def test_a_page_of_user_code_has_no_mistake(checker):
    told = checker(PAGE)
    assert not lines_of(told), told


def test_what_is_wrong_in_user_code_is_found(checker, tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    told = checker(tmp_path / "wrong.py")
    assert lines_of(told) == set(range(7, 7 + MISTAKES)), told


def test_the_page_uses_every_public_name_but_errors():
    text = PAGE.read_text()
    unused = [name for name in hloscope.__all__ if name not in text and not name.endswith("Error")]
    assert set(unused) <= {
        "ArrayFact",
        "Collectives",
        "DumpedResult",
        "RecordedProgram",
        "Recorder",
        "Totals",
        "Checkups",
    }
