"""The command line as a user runs it: a process of its own, that sees no settings of the tests' own JAX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def environment(**changes: str) -> dict[str, str]:
    """What the process sees: all that this one does at this moment but for JAX's, XLA's and the terminal's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_", "COLUMNS", "TPU_"))}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def hloscope(*arguments, stdin=None, cwd=ROOT, **changes) -> subprocess.CompletedProcess[str]:
    """Runs `hloscope` with these arguments, in an environment with these changes."""
    return subprocess.run(
        [sys.executable, "-m", "hloscope", *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


_ONE_BY_ONE = """
import contextlib, io, json, sys
from hloscope.cli import group

ended = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = group(arguments, prog_name="hloscope")
        except SystemExit as exit:
            code = exit.code
    ended.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(ended))
"""


def hloscope_one_by_one(commands) -> list[subprocess.CompletedProcess[str]]:
    """What `hloscope` ends with for each of several commands, all in one process, which imports JAX once."""
    done = subprocess.run(
        [sys.executable, "-c", _ONE_BY_ONE],
        cwd=ROOT,
        input=json.dumps([[str(argument) for argument in command] for command in commands]),
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    ended = json.loads(done.stdout)
    return [subprocess.CompletedProcess(command, *each) for command, each in zip(commands, ended, strict=True)]
