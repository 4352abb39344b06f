"""The command line as a user runs it: a process of its own, that sees no settings of the tests' own JAX."""

from __future__ import annotations

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
