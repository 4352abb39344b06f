"""What `--help` shows: it fits 80 columns, begins well, and calls one thing by one name in every command."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from hloscope.cli import group

NAMES = group.list_commands(click.Context(group))

TAKEN = {
    "--accept-in-ci": "",
    "--against-single-device": "",
    "--around": "INSTRUCTION",
    "--all": "",
    "--allow": "WHAT: REASON…",
    "--allow-writes": "",
    "--arg": "TYPE…",
    "--at-least-ok": "",
    "--atol": "FLOAT",
    "--axis-types": "MODE",
    "--base": "REVISION",
    "--beside": "",
    "--budget": "TIME",
    "--candidates": "N",
    "--chip-override --chip-file": "NAME=VALUE|FILE…",
    "--compiler-option": "NAME=VALUE…",
    "--computation": "NAME",
    "--config": "FILE",
    "--dcn": "X=2",
    "--debug": "",
    "--dim": "S=2048,D=4096…",
    "--donate": "0,1",
    "--draw": "",
    "--equivalent": "",
    "--executor": "URL",
    "--fail-on": "note|warning|error",
    "--fix-mesh": "",
    "--format": "text|json and others",
    "--free": "NAME…",
    "--grad": "",
    "--group-by": "module|axis|line|kind",
    "--hops": "N",
    "--ignore": "RULE…",
    "--jobs": "N",
    "--keep": "NAME…",
    "--kernel-cost": "NAME=FLOPS,BYTES…",
    "--memory": "SIZE",
    "--mesh": "X=4,Y=2",
    "--no-cache": "",
    "--no-try": "",
    "--quick": "",
    "--on": "tpu|cpu",
    "--only": "NAME",
    "--out": "SPEC…",
    "--platform": "tpu|cpu",
    "--processes": "N",
    "--profile": "DIR",
    "--range": "B=0:8…",
    "--reference": "REF",
    "--rtol": "FLOAT",
    "--rule-option": "RULE.OPTION=VALUE…",
    "--run": "",
    "--run-below": "SIZE",
    "--runs": "N",
    "--save": "DIR",
    "--save-hlo": "FILE",
    "--scale": "B=64,F=256…",
    "--seed": "N",
    "--select": "RULE…",
    "--shard": "I/N",
    "--slice": "NAME",
    "--source-root": "DIR",
    "--static": "NAME=VALUE…",
    "--stop-after": "N",
    "--source --no-source": "",
    "--strict --no-strict": "",
    "--test": "",
    "--timeout": "SECONDS",
    "--top": "N",
    "--try": "TIME",
    "--write": "FORMAT=FILE…",
    "--yes": "",
    "-o --output": "FILE",
}
"""What each option takes, in every command that has it; `…` where it repeats."""

ELSEWHERE = {
    ("--fail-on", "check"): "increase|any",  # of a comparison: a change, where others have findings
    ("--fail-on", "merge-reports"): "increase|any",
    ("--fail-on", "diff"): "increase|any",
    ("--on", "verify"): "auto|cpu|tpu|gpu",
    ("--only", "accept"): "CHANGE…",
    ("--only", "record"): "NAME…",
    ("--slice", "price"): "NAME…",
    ("--strict", "verify"): "",  # its exceptions pass unless it is given, wherever it runs
    ("--save", "compare"): "FILE",
    ("--write", "suggest"): "",
}
"""Where an option takes something else than in other commands."""


def takes(option: click.Option) -> str:
    """What an option takes, as help shows it; of formats what all have."""
    repeats = "…" if option.multiple else ""
    if option.is_flag:
        return ""
    if "--format" in option.opts:
        assert list(option.type.choices)[:2] == ["text", "json"]
        return "text|json and others"
    choices = "|".join(option.type.choices) if isinstance(option.type, click.Choice) else ""
    return f"{option.metavar or choices or option.type.name.upper()}{repeats}"


def options() -> dict[tuple[str, str], str]:
    """What each option of each command takes."""
    context = click.Context(group)
    parts = ((name, part) for name in NAMES for part in group.get_command(context, name).params)
    return {
        (" ".join([*part.opts, *part.secondary_opts]), name): takes(part)
        for name, part in parts
        if isinstance(part, click.Option)
    }


def test_an_option_takes_the_same_in_every_command():
    found = options()
    assert found == {key: ELSEWHERE.get(key, TAKEN.get(key[0])) for key in found}
    assert {flag for flag, _ in found} == {*TAKEN, *(flag for flag, _ in ELSEWHERE)}
    assert set(ELSEWHERE) <= set(found)


@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_fits_80_columns(name):
    arguments = [name] * bool(name)
    for columns in ("80", "200"):
        shown = CliRunner().invoke(group, [*arguments, "--help"], prog_name="hloscope", env={"COLUMNS": columns})
        assert shown.exit_code == 0
        assert [line for line in shown.output.splitlines() if len(line) > 80] == []


def test_without_arguments_a_newcomer_learns_where_to_begin():
    shown = CliRunner().invoke(group, [])
    assert all(f"  {name} " in shown.output for name in NAMES)
    assert shown.output.index("Commands:") < shown.output.index("Begin with")
    begin = shown.output.partition("Begin with")[2]
    assert {line.split()[1] for line in begin.splitlines() if line.startswith("    hloscope")} <= set(NAMES)
    assert "doctor" in begin


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete(shell):
    command = [sys.executable, "-m", "hloscope"]
    words = {"COMP_WORDS": "hloscope sha", "COMP_CWORD": "sha" if shell == "fish" else "1"}
    asked = {**os.environ, **words, "_HLOSCOPE_COMPLETE": f"{shell}_complete"}
    done = subprocess.run(command, env=asked, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "shardings" in done.stdout
    assert "analyze" not in done.stdout
