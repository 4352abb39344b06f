"""The command line, in this process or in one of its own, that sees no settings of the tests' own JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from hloscope.cli import group

ROOT = Path(__file__).parent.parent


def environment(**changes: str) -> dict[str, str]:
    """What the process sees: all that this one does at this moment but for JAX's, XLA's and the terminal's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_", "COLUMNS", "TPU_"))}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def hloscope_process(*arguments, stdin=None, cwd=ROOT, **changes) -> subprocess.CompletedProcess[str]:
    """Runs `hloscope` with these arguments in a process of its own, in an environment with these changes."""
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


def hloscope(*arguments, stdin=None, cwd=ROOT, environ=None, **changes) -> subprocess.CompletedProcess[str]:
    """What `hloscope` ends with, run in this process, which has JAX, 16 devices and warm workers already.

    For what a command says and computes: where a process of its own matters, there is `hloscope_process`.
    """
    words, before = [*map(str, arguments)], Path.cwd()
    environ = {**dict.fromkeys(os.environ), **(environ or environment(**changes))}
    os.chdir(cwd)
    try:
        done = CliRunner().invoke(group, words, input=stdin, env=environ, prog_name="hloscope")
    finally:
        os.chdir(before)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
