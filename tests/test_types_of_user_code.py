"""`py.typed` holds: user code is checked strictly, by mypy and by pyright, and what is wrong in it is found."""

from __future__ import annotations

import json
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
found.report(format=7)
found.to_dict()["collective"]
found.totals.wire_bytes = 3
hloscope.price(step)
number: str = found.collectives[0].executions
"""
MISTAKES = 7


def checked(folder: Path, *command: str) -> str:
    """What a type checker says of both files, from a folder that is no project's."""
    both = [str(PAGE), str(folder / "wrong.py")]
    config = {"typeCheckingMode": "strict", "include": both, "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    (folder / "wrong.py").write_text(WRONG)
    files = [f"--cache-dir={ROOT / '.mypy_cache' / 'user_code'}", *both] if "mypy" in command else []
    environment = {**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)}
    run = [sys.executable, *command, *files]
    return subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


def lines_of(told: str, file: str) -> set[int]:
    """The lines of a file that have errors."""
    return {int(line) for line in re.findall(rf"{file}:(\d+)(?::\d+)?(?: -|:) error", told)}


@pytest.mark.parametrize("name", ["mypy", "pyright"])
def test_a_page_of_user_code_has_no_mistake_and_wrong_code_has_each(name, tmp_path):
    if name == "pyright" and find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed")
    told = checked(tmp_path, *(MYPY if name == "mypy" else PYRIGHT))
    assert not lines_of(told, PAGE.name), told
    assert lines_of(told, "wrong.py") == set(range(7, 7 + MISTAKES)), told


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
