"""Runs the commands of a guide again and puts what they print below them: `python docs/refresh.py docs/seeds.md`.

A block is marked ```console and begins with `$ hloscope …`; the command may go on over lines that end in a backslash,
and into a pipe. What a command writes to either stream counts, so that refusals are shown too.

A guide with the comment `<!-- in a folder of its own -->` is worked through as a reader does, in an empty folder: each
block whose first line is a comment with the name of a file is written there, and ```diff blocks are applied.

What stands between `<!-- made by: COMMAND -->` and `<!-- end -->` is what that command prints.

`--check` changes nothing: it prints what has become different and exits with 1 where something has.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\$ (?P<command>(?:[^\n]*\\\n)*[^\n]*)\n")
FILE = re.compile(r"# (?P<name>[\w./-]+\.\w+)\n")
MADE = re.compile(r"(?P<head><!-- made by: (?P<command>[^\n]*) -->\n).*?(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)
OWN_FOLDER = "<!-- in a folder of its own -->"
VARIES = re.compile(
    r"(?m)^(searching: .*|ok +\S+ .*|FAILED +\S+ .*|.*, in \d[\d.]* m?s$|hloscope \d.*, jax .*"
    r"| *= not tried: the rest .*| *= tried: \d+ other .*)\n?"
)
"""Lines that differ from run to run, or from version to version."""
LINE_NUMBER = re.compile(r"(?<=\bline )\d+(?=$|[ ,])", re.MULTILINE)
"""Lines of HLO text, at whose beginning there are tables of whoever called the tracer."""


class Guide:
    """A guide that is being worked through."""

    def __init__(self, text: str, scratch: Path) -> None:
        self.text = text
        self.cache = scratch / "cache"
        self.folder = scratch / "work" if OWN_FOLDER in text else ROOT
        self.folder.mkdir(exist_ok=True)

    def refreshed(self) -> str:
        """Its text, with what its commands print now."""
        return MADE.sub(self._made, BLOCK.sub(self._block, self.text))

    def _made(self, match: re.Match[str]) -> str:
        return f"{match['head']}\n{self._printed_by(match['command'])}\n"

    def _block(self, match: re.Match[str]) -> str:
        body = match["body"]
        if match["kind"] == "console" and (asked := COMMAND.match(body)):
            return f"```console\n$ {asked['command']}\n{self._printed_by(asked['command'])}```"
        if self.folder != ROOT and match["kind"] == "diff":
            subprocess.run(["patch", "--quiet", "-p0"], input=body, text=True, cwd=self.folder, check=True)
        elif self.folder != ROOT and (named := FILE.match(body)):
            path = self.folder / named["name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")  # with that comment, as a reader pastes it
        return match[0]

    def _printed_by(self, command: str) -> str:
        sys.stderr.write(f"$ {command}\n")
        shell = (
            f'hloscope() {{ "{sys.executable}" -m hloscope "$@"; }}\npython() {{ "{sys.executable}" "$@"; }}\n{command}'
        )
        kept = {"HLOSCOPE_CACHE_DIR": str(self.cache)}  # a new one: what was tried before is in later reports
        environment = {**os.environ, **kept, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
        done = subprocess.run(
            ["bash", "-c", shell],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output = done.stdout.decode().replace(f"{self.folder}/", "").rstrip("\n")
        return f"{output}\n" if output else ""


def refresh(path: Path, *, check: bool) -> bool:
    """Brings one guide up to date; returns whether it was."""
    text = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        made = Guide(text, Path(scratch).resolve()).refreshed()
    before, after = (VARIES.sub("", LINE_NUMBER.sub("…", each)).splitlines() for each in (text, made))
    if check:
        sys.stdout.writelines(
            f"{line}\n" for line in difflib.unified_diff(before, after, str(path), "now", lineterm="")
        )
    else:
        path.write_text(made, encoding="utf-8")
    return before == after


def main() -> None:
    """Goes through the guides named on the command line."""
    check = "--check" in sys.argv
    up_to_date = [refresh(Path(name), check=check) for name in sys.argv[1:] if name != "--check"]
    sys.exit(1 if check and not all(up_to_date) else 0)


if __name__ == "__main__":
    main()
