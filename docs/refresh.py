"""Runs the commands of a guide again and puts what they print below them: `python docs/refresh.py docs/seeds.md`.

A block is marked ```console and begins with `$ hloscope …`; the command may go on over lines that end in a backslash,
and into a pipe. What a command writes to either stream counts, so that refusals are shown too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```console\n\$ (?P<command>(?:[^\n]*\\\n)*[^\n]*)\n.*?^```$", re.MULTILINE | re.DOTALL)


def refreshed(match: re.Match[str]) -> str:
    """The block with the output of its command."""
    command = match["command"]
    sys.stderr.write(f"$ {command}\n")
    shell = f'hloscope() {{ "{sys.executable}" -m hloscope "$@"; }}\n{command}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    done = subprocess.run(
        ["bash", "-c", shell], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    output = done.stdout.decode().replace(f"{ROOT}/", "").rstrip("\n")
    return f"```console\n$ {command}\n{output}\n```"


def main() -> None:
    """Rewrites the guides named on the command line."""
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(BLOCK.sub(refreshed, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
