"""Installs a wheel or an sdist in an environment of its own and runs it there: `python tests/installed.py dist/*.whl`.

Nothing of the checkout is importable there: the commands are run in an empty folder, isolated from `PYTHONPATH`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

PROGRAM = """\
import hloscope


@hloscope.target(
    mesh={"X": 4, "Y": 2}, slice="v5e:4x2", args=("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), out="P('X', None)"
)
def step(x, w):
    return x @ w
"""
TARGETS = """\
[targets.step]
function = "model.py:step"
contract = ["all-reduce@Y <= 32KiB x1", "nothing else"]
"""
TEST = """\
from model import step


def test_step(hlo):
    hlo.expect(hlo.analyze(step), "all-reduce@Y; nothing else")
"""


def run(folder: Path, *command: str | Path) -> str:
    """What a command prints in a folder."""
    kept = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "LANG", "PIP_INDEX_URL", "PIP_CONFIG_FILE")
        if name in os.environ
    }
    kept["HLOSCOPE_CACHE_DIR"] = str(folder / "cache")
    began = time.monotonic()
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=kept, capture_output=True, text=True, check=False
    )
    words = " ".join(Path(str(part)).name for part in command)
    sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {words}\n")
    if done.returncode != 0:
        sys.exit(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def try_out(package: Path, folder: Path) -> None:
    """Installs a package with what it asks for, and does what a newcomer does."""
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    run(folder, programs / "pip", "install", "--quiet", f"{package}[pytest]")
    work = folder / "work"
    work.mkdir()
    files = {"model.py": PROGRAM, "hloscope.toml": TARGETS, "test_model.py": TEST, "pytest.ini": "[pytest]\n"}
    for name, text in files.items():
        (work / name).write_text(text)
    assert "hloscope" in run(work, programs / "hloscope", "--version")
    assert str(folder) in run(work, programs / "python", "-c", "import hloscope; print(hloscope.__file__)")
    found = json.loads(run(work, programs / "hloscope", "analyze", "model.py:step", "--format", "json"))
    assert [(one["kind"], one["axes"]) for one in found["collectives"]] == [("all-reduce", ["Y"])]
    run(work, programs / "hloscope", "doctor")
    run(work, programs / "hloscope", "check", "--no-strict")
    assert "1 passed" in run(work, programs / "python", "-m", "pytest", "-q", "test_model.py")


def main() -> None:
    """Tries each package that is named on the command line."""
    for name in sys.argv[1:]:
        sys.stdout.write(f"{name}, Python {sys.version.split()[0]}\n")
        with tempfile.TemporaryDirectory() as folder:
            try_out(Path(name).resolve(), Path(folder).resolve())


if __name__ == "__main__":
    main()
