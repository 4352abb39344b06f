"""What somebody does who wants a red check to be green and mends nothing: each try fails, and says why in one message.

Every try begins at a gate that passes, so that what fails is the try itself: a gate that says less than it did. Tries
against the action stand in `test_ci_wiring.py`, those against tests in `tests/pytest_plugin/test_ways_out_of_tests.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from check_examples import ROOT
from click.testing import CliRunner, Result

from hloscope.cli import group
from hloscope.report.checks import compute_seal

LEAST = 161
"""Tries in this file, so that none is lost."""

HLO = (ROOT / "fixtures" / "captured" / "two_matmuls.two_matmuls_shard_map.jax-0.10.hlo").read_text()
CONTRACT = 'contract = ["all-reduce@Y <= 512KiB x1", "nothing else"]'
TARGETS = f"""\
[tool.hloscope.targets.step]
hlo = "step.hlo"
mesh = {{ X = 4, Y = 2 }}
slice = "v5e:4x2"
{CONTRACT}

[tool.hloscope.targets.twin]
hlo = "step.hlo"
mesh = {{ X = 4, Y = 2 }}
contract = "no all-gather"
baseline = false
"""
BASELINE = Path("hloscope_baselines/step.txt")
CHECK, MERGE = ("check",), ("merge-reports", "1.json", "2.json")
Edit = Callable[[Path], object]


class Try(NamedTuple):
    """What somebody does, and what is said of it.

    Attributes:
        said: A part of the one message.
        edit: What is done to the folder of the project.
        arguments: Of `hloscope check`, or another command.
        errors: How many things are wrong with it.
    """

    said: str
    edit: Edit = lambda _: None
    arguments: tuple[str, ...] = CHECK
    errors: int = 1


def config(old: str, new: str) -> Edit:
    """Another text in the targets file."""
    return _replaced(Path("pyproject.toml"), old, new)


def hlo(old: str, new: str) -> Edit:
    return _replaced(Path("step.hlo"), old, new)


def baseline(pattern: str, new: str) -> Edit:
    """Another text in the baseline, by a regular expression."""

    def edit(folder: Path) -> None:
        text = (folder / BASELINE).read_text()
        changed = re.sub(pattern, new, text, flags=re.MULTILINE)
        assert changed != text
        (folder / BASELINE).write_text(changed)

    return edit


def _replaced(path: Path, old: str, new: str) -> Edit:
    def edit(folder: Path) -> None:
        text = (folder / path).read_text()
        assert old in text
        (folder / path).write_text(text.replace(old, new, 1))

    return edit


def both(*edits: Edit) -> Edit:
    return lambda folder: [edit(folder) for edit in edits]


def written(name: str, content: str | bytes) -> Edit:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def moved(old: Path | str, new: str) -> Edit:
    return lambda folder: (folder / old).rename(folder / new)


def removed(path: Path | str) -> Edit:
    return lambda folder: (folder / path).unlink()


def contract(text: str) -> Edit:
    return config(CONTRACT, f"contract = {text}")


def key(text: str) -> Edit:
    """One more line in the target's table."""
    return config(CONTRACT, f"{CONTRACT}\n{text}")


def report(edit: Callable[[dict], object], *, sealed: bool = False) -> Edit:
    """A report of the first shard that somebody edits, and perhaps seals again."""

    def edited(folder: Path) -> None:
        document = json.loads((folder / "1.json").read_text())
        edit(document)
        if sealed:
            document["seal"] = compute_seal(document)
        (folder / "1.json").write_text(json.dumps(document))

    return edited


def program_of(document: dict) -> dict:
    return document["checks"][0]["analysis"]


ONE_TARGET = "[tool.hloscope.targets.step]"
OTHER = '[targets.other]\nhlo = "step.hlo"\nmesh = { X = 4, Y = 2 }\ncontract = "all-reduce@Y"\nbaseline = false\n'
TWIN = TARGETS[TARGETS.index("[tool.hloscope.targets.twin]") :]
LATE = TWIN.replace("twin", "late")

TARGETS_FILE = {
    "no targets": Try("there are no targets", written("pyproject.toml", "[tool.hloscope]\n")),
    "an empty table of targets": Try("there are no targets", written("pyproject.toml", "[tool.hloscope.targets]\n")),
    "a section that is misspelt": Try(
        "no targets are configured", written("pyproject.toml", TARGETS.replace("hloscope", "hloscop"))
    ),
    "a table that is misspelt": Try("unknown key 'target'", config("targets.twin", "target.twin")),
    "a key that is misspelt": Try("unknown key 'contrakt'", config(CONTRACT, CONTRACT.replace("contract", "contrakt"))),
    "a key twice": Try("is not valid TOML", key('contract = "*"')),
    "a target taken out": Try("step.txt is a baseline that no target uses", written("pyproject.toml", TWIN)),
    "a target renamed": Try("has no baseline file", config("targets.step", "targets.stop"), errors=2),
    "a target skipped": Try("unknown key 'skip'", key("skip = true")),
    "strictness in the file": Try("unknown key 'strict'", key("strict = false")),
    "rules to ignore": Try("unknown key 'ignore'", key('ignore = ["*"]')),
    "rules to select": Try("unknown key 'select'", key("select = []")),
    "no slices": Try(r"slices cannot be \[\]", config('slice = "v5e:4x2"', "slices = []")),
    "a switch as text": Try("baseline cannot be 'no'", key('baseline = "no"')),
    "no baseline by default": Try(
        "baseline that no target uses", config(ONE_TARGET, f"[tool.hloscope.defaults]\nbaseline = false\n{ONE_TARGET}")
    ),
    "another folder of baselines": Try(
        "has no baseline file", config(ONE_TARGET, f'[tool.hloscope]\nbaselines = "other"\n{ONE_TARGET}')
    ),
    "a second targets file": Try("both have targets", written("hloscope.toml", OTHER)),
    "an empty second targets file": Try("both have targets", written("hloscope.toml", "")),
    "a target of which nothing is expected": Try(
        "neither a contract nor a baseline", both(config(CONTRACT, "baseline = false"), removed(BASELINE))
    ),
    "fail-on that is none": Try("fail-on cannot be 'never'", key('fail-on = "never"')),
    "a tolerance of 100000%": Try("tolerance cannot be", key('tolerance = { peak = "100000%" }')),
    "a tolerance of all": Try("each less than 100%", key('tolerance = { step = "100%" }')),
    "a tolerance below nothing": Try("tolerance cannot be", key('tolerance = { step = "-5%" }')),
    "a tolerance that is no number": Try("tolerance cannot be", key('tolerance = { step = "nan%" }')),
    "a tolerance of what has none": Try("tolerance cannot be", key('tolerance = { wire = "9%" }')),
    "options of a rule that there is not": Try(
        "there is no rule 'nosuch'", key('fail-on = "error"\nrules = { nosuch = { min = 3 } }')
    ),
}

CONTRACTS = {
    "a contract that is empty": Try("an empty contract", contract('""')),
    "a contract of blanks": Try("an empty contract", contract('" ; ;"')),
    "a contract of comments": Try("an empty contract", contract('["# later"]')),
    "a contract of no lines": Try("says nothing that a program could break", contract("[]")),
    "a contract of a number": Try("a contract cannot be|contract cannot be", contract("3")),
    "a contract as a table": Try("a contract is text, and this is a table", contract("{ only = true }")),
    "at-least-ok alone": Try("says nothing that a program could break", contract('"at-least-ok"')),
    "equivalent alone": Try("says nothing that a program could break", contract('"equivalent; at-least-ok"')),
    "trips alone": Try("says nothing that a program could break", contract("'trips \"a.py:3\" = 1'"), errors=2),
    "everything expected": Try("there is nothing else to forbid", contract('"*; nothing else"')),
    "everything expected, and more": Try("nothing else to forbid", contract('["all-reduce@Y", "?*", "nothing else"]')),
    "an axis that is misspelt": Try("the mesh has no axis typo", contract('"no all-gather@typo"')),
    "an axis of another case": Try("the mesh has no axis x", contract('"no all-gather@x"')),
    "a product with an axis that is misspelt": Try("no axis typo", contract('"no all-gather@(X,typo)"')),
    "a part that no axis has": Try("no mesh axis has a part", contract('"no all-gather@X:(1)3"')),
    "a limit over an axis that is misspelt": Try("no axis typo", contract('"wire@typo <= 1MB/step"')),
    "a kind that is misspelt": Try("no kind of collective 'all-gahter'", contract('"no all-gahter"')),
    "a ban on a file that is not there": Try("there is no file gone.py", contract("'no all-gather in \"gone.py\"'")),
    "a ban between slices of one slice": Try("runs on one slice", contract('"no * over dcn"')),
    "waiting for all of the step": Try("never waits for more than all", contract('"exposed <= 100%"')),
    "waiting for more than the step": Try("never waits for more than all", contract('"exposed <= 250 %"')),
    "a limit without a unit": Try("unit", contract('"hbm <= 99999999999"')),
    "a limit on a memory that is not known": Try("hbm <= 9GiB cannot be decided", contract('"hbm <= 9GiB"')),
    "a loop of no trips": Try("a loop of no trips moves nothing", contract("'trips \"a.py:3\" = 0'")),
}

ALLOWANCES = {
    f"allow {text!r}": Try(said, key(f"fail-on = 'error'\nallow = [{json.dumps(text)}]"))
    for text, said in {
        "*: legacy": "accepts whatever is found",
        "?*: legacy": "accepts whatever is found",
        "all-reduce@Y": "does not say what is allowed and why",
        "all-reduce@Y:": "does not say what is allowed and why",
        "all-reduce@Y:   ": "does not say what is allowed and why",
        ": because": "does not say what is allowed and why",
        "": "does not say what is allowed and why",
        "small-colectives: later": "neither a rule nor a kind of collective",
        "small-collectives@typo: later": "the mesh has no axis typo",
        "small-collectives: later": "it matches nothing",
    }.items()
} | {
    "allow without fail-on": Try("it matches nothing: sums", key('allow = ["all-reduce@Y: sums"]')),
}

BASELINES = {
    "a baseline deleted": Try("has no baseline file", removed(BASELINE)),
    "a baseline renamed": Try("has no baseline file", moved(BASELINE, "hloscope_baselines/stop.txt"), errors=2),
    "a baseline beside it": Try(
        "gone.txt is a baseline that no target uses",
        lambda folder: shutil.copy(folder / BASELINE, folder / "hloscope_baselines" / "gone.txt"),
    ),
    "a baseline emptied": Try("the baseline is empty", written(str(BASELINE), "")),
    "a baseline of blanks": Try("the baseline is empty", written(str(BASELINE), "\n\n")),
    "a baseline in the bin": Try(
        "the baseline is empty",
        both(removed(BASELINE), lambda folder: (folder / BASELINE).symlink_to(os.devnull)),
    ),
    "a baseline that is a folder": Try(
        "cannot be read", both(removed(BASELINE), lambda folder: (folder / BASELINE).mkdir())
    ),
    "a baseline of bytes": Try("cannot be read", written(str(BASELINE), b"\xff\xfe\x00")),
    "a title alone": Try("the baseline is cut off", written(str(BASELINE), "hloscope baseline 2\n")),
    "a title and an end": Try("no line that begins with target:", written(str(BASELINE), "hloscope baseline 2\nend\n")),
    "a baseline cut off": Try("cannot be read", baseline(r"(?s)times? .*", "")),
    "a baseline without its end": Try("the baseline is cut off", baseline("^end\n", "")),
    "a baseline of another version": Try("reads", baseline("baseline 2", "baseline 3")),
    "a baseline said to be of the first version": Try("cannot be read", baseline("baseline 2", "baseline 1")),
    "a conflict left in": Try("cannot be read", baseline("^mesh:", "<<<<<<< HEAD\nmesh:")),
    "a key twice in a baseline": Try("cannot be read", baseline(r"^(memory:.*\n)", r"\1\1")),
    "a section twice": Try("two sections of the same versions", baseline(r"(?s)^(versions:.*)", r"\1\1")),
    "more bytes allowed": Try("is better than its baseline", baseline("524,288 B wire", "9,524,288 B wire")),
    "a row more": Try(
        "all-gather over X .* is missing", baseline("^all-red.*@Y(.*) add(.*\n)", r"all-gather@X\1\2\g<0>")
    ),
    "a row twice": Try("no longer summed over Y", baseline("^(all-reduce.*\n)", r"\1\1")),
    "a row less": Try("an all-reduce over Y is new", baseline("^all-reduce.*\n", "")),
    "a row as a comment": Try("an all-reduce over Y is new", baseline("^all-reduce", "# all-reduce")),
    "fewer bytes": Try("moves more than before", baseline("524,288 B wire", "24,288 B wire")),
    "unknown bytes": Try("some of it is unknown", baseline("524,288 B wire", "unknown B wire")),
    "a bound in place of a number": Try("some of it may not run, as in a branch", baseline("1 time", "at most 1 time")),
    "unknown axes": Try("unknown axes", baseline("all-reduce@Y", "all-reduce@?")),
    "another kind": Try("instead there is an all-reduce over Y", baseline("all-reduce@Y(.*) add", r"opaque@Y\1")),
    "another mesh": Try("the mesh differs", baseline("^mesh: .*", "mesh: none")),
    "another slice": Try("the slice differs", baseline("^slice: .*", "slice: none")),
    "more FLOPs allowed": Try("is better than its baseline", baseline("4,294,967,296 FLOP", "9,294,967,296 FLOP")),
    "the matmuls taken out": Try("the matmuls in .* do more", baseline("^matmuls.*\n", "")),
    "a longer step allowed": Try("is better than its baseline", baseline("^step: 60.8", "step: 99.8")),
    "the step taken out": Try("lacks figures", baseline("^step:.*\n", "")),
    "a maximum in place of a sum": Try("maximum where add was", hlo("{:T(256)} add(", "{:T(256)} maximum(")),
    "another operation": Try("add where maximum was", baseline("bf16 add", "bf16 maximum")),
    "no operation": Try("does not say by which operation", baseline("bf16 add", "bf16")),
    "an operation of what is no sum": Try("cannot be read", baseline("all-reduce@Y", "all-gather@Y")),
    "a cost model that never was": Try("the step is not judged: .* is 0, this is 1", baseline("model 1$", "model 0")),
    "a cost model to come": Try("the step is not judged: .* is 99, this is 1", baseline("model 1$", "model 99")),
    "no cost model": Try("the step of the baseline cannot be read", baseline(", cost model 1$", "")),
    "the baseline of another program": Try("accepted for decoy.hlo", baseline("^target: .*", "target: decoy.hlo")),
    "an argument less": Try("argument Wout of .* is new", baseline("^argument.*\n(?=output)", "")),
    "no arguments": Try("argument .* is new", baseline("^argument.*\n", "")),
    "neither arguments nor outputs": Try("what the arguments and outputs are", baseline("^(argument|output).*\n", "")),
    "an argument of another type": Try("argument .* is bf16.* where f32", baseline("^argument  bf16", "argument  f32")),
    "an output of another sharding": Try("output", baseline("^output .*", "output    bf16[512,2048] P()  1 array")),
    "more that is not understood": Try("is better than its baseline", baseline("understood: 0", "understood: 9")),
    "a baseline with the line ends of Windows, and more bytes": Try(
        "is better than its baseline",
        lambda folder: (folder / BASELINE).write_bytes(
            (folder / BASELINE).read_bytes().replace(b"524,288 B wire", b"9,524,288 B wire").replace(b"\n", b"\r\n")
        ),
    ),
}

PROGRAMS = {
    "a program that is gone": Try("there is no file step.hlo", removed("step.hlo"), errors=2),
    "a program without text": Try("the text is empty", written("step.hlo", ""), errors=2),
    "a program of comments": Try("the text ends too early", written("step.hlo", "// later\n"), errors=2),
    "a program cut off": Try(
        "cut off", lambda folder: (folder / "step.hlo").write_text(HLO[: HLO.index("all-reduce(")]), errors=7
    ),
    "a program on one device": Try("program for 1", hlo("num_partitions=8", "num_partitions=1"), errors=2),
    "a mesh of other sizes": Try("program for 8", config("{ X = 4, Y = 2 }", "{ X = 2, Y = 2 }")),
    "a mesh with an axis of one device": Try("mesh differs", config("{ X = 4, Y = 2 }", "{ X = 1, Y = 8 }"), errors=4),
    "no mesh": Try("names mesh axes", config("mesh = { X = 4, Y = 2 }", ""), errors=5),
}

COMMAND_LINE = {
    "a name that is empty": Try("there is no target ''", arguments=("check", "")),
    "a name of blanks": Try("there is no target ' '", arguments=("check", " ")),
    "a name that is none": Try("there is no target 'stop'", arguments=("check", "twin", "stop")),
    "a name as a pattern": Try("there is no target", arguments=("check", "st*")),
    "names with commas": Try("there is no target", arguments=("check", "step,twin")),
    "a slice that is none": Try("has no slice", arguments=("check", "step@v5e:2x4")),
    "a targets file that is not there": Try("there is no file x.toml", arguments=("check", "--config", "x.toml")),
    "a targets file in the bin": Try("there is no file", arguments=("check", "--config", os.devnull)),
    "another targets file": Try(
        "baseline that no target uses", written("other.toml", OTHER), ("check", "--config", "other.toml")
    ),
    "shard 0/0": Try("'0/0' is not a shard", arguments=("check", "--shard", "0/0")),
    "shard 5/4": Try("'5/4' is not a shard", arguments=("check", "--shard", "5/4")),
    "a shard of nothing": Try("3 shards of 2 targets", arguments=("check", "--shard", "1/3")),
    "no shard": Try("'' is not a shard", arguments=("check", "--shard", "")),
    "no jobs": Try("--jobs", arguments=("check", "--jobs", "0")),
    "changes that are none": Try("--fail-on", arguments=("check", "--fail-on", "never")),
    "rules on the command line": Try("--select", arguments=("check", "--select", "none")),
    "a format that is none": Try("--format", arguments=("check", "--format", "green")),
    "a report in no folder": Try("does not exist", arguments=("check", "--write", "junit=gone/x.xml")),
    "accepting in CI": Try("not written in continuous integration", arguments=("accept", "--all")),
    "accepting one change in CI": Try("not written in continuous", arguments=("accept", "--only", "step")),
}

MERGED = {
    "a report missing": Try("shard 2/2 is missing", arguments=MERGE[:2]),
    "a report twice": Try(
        "both have the target", lambda folder: shutil.copy(folder / "1.json", folder / "3.json"), (*MERGE, "3.json")
    ),
    "no report": Try("REPORT.json", arguments=("merge-reports",)),
    "a report that is not there": Try("cannot be read", arguments=(*MERGE, "3.json")),
    "a report without text": Try("is not valid JSON", written("2.json", ""), MERGE),
    "an empty report": Try("is not a report of hloscope", written("2.json", "{}"), MERGE),
    "a report that says that it passed": Try(
        "the seal", report(lambda found: found.update(passed=True, checks=[])), MERGE
    ),
    "a report without a collective": Try(
        "the seal", report(lambda found: program_of(found).update(collectives=[])), MERGE
    ),
    "a report without its time": Try("the seal", report(lambda found: program_of(found).update(time=None)), MERGE),
    "a report without a seal": Try("the seal", report(lambda found: found.pop("seal")), MERGE),
    "a report of fewer shards": Try("the seal", report(lambda found: found.update(shard=None)), MERGE),
    "a report without its analysis": Try(
        "step was not checked",
        report(lambda found: found["checks"][0].update(analysis=None, error=None), sealed=True),
        MERGE,
    ),
    "a report of another target": Try(
        "has the unknown target 'renamed'",
        report(lambda found: found["checks"][0].update(name="renamed"), sealed=True),
        MERGE,
    ),
    "a report of another commit": Try(
        "is a report of the commit 0123", report(lambda found: found.update(commit="0123"), sealed=True), MERGE
    ),
    "a report of an older schema": Try("schema", report(lambda found: found.update(schema=1), sealed=True), MERGE),
    "a target added since": Try("late was not checked", config(TWIN, f"{LATE}\n{TWIN}"), MERGE),
    "a baseline loosened since": Try("better than its baseline", baseline("524,288 B wire", "9,524,288 B wire"), MERGE),
}

TRIES = TARGETS_FILE | CONTRACTS | ALLOWANCES | BASELINES | PROGRAMS | COMMAND_LINE | MERGED
ENVIRONMENTS = {
    "CI=false": {"CI": "false"},
    "CI=0": {"CI": "0"},
    "CI=": {"CI": ""},
    "HLOSCOPE_CACHE=0": {"HLOSCOPE_CACHE": "0"},
    "HLOSCOPE_TIMEOUT=0": {"HLOSCOPE_TIMEOUT": "0"},
    "HLOSCOPE_MAX_WORKERS=1": {"HLOSCOPE_MAX_WORKERS": "1"},
    "HLOSCOPE_TRACEBACK=": {"HLOSCOPE_TRACEBACK": ""},
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(group, arguments)


@pytest.fixture(scope="module")
def passing(tmp_path_factory):
    """A repository whose check passes where CI is set, with the reports of its two shards."""
    folder = tmp_path_factory.mktemp("gate") / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(TARGETS)
    (folder / "step.hlo").write_text(HLO)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run("accept", "--all").exit_code == 0
        git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "good"]):
            subprocess.run([*git, *command], check=True, capture_output=True)
        patch.setenv("CI", "true")
        for number in (1, 2):
            done = run("check", "--shard", f"{number}/2", "--format", "json", "-o", f"{number}.json")
            assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def gate(passing, tmp_path, monkeypatch):
    """A copy of it, in continuous integration."""
    folder = tmp_path / "project"
    shutil.copytree(passing, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("COLUMNS", "200")
    return folder


def said_of(done: Result) -> str:
    said = done.stdout + done.stderr
    assert done.exit_code in (1, 2), said
    assert "Traceback" not in said
    assert isinstance(done.exception, SystemExit), done.exception
    return said


@pytest.mark.parametrize("arguments", [CHECK, MERGE], ids=lambda arguments: arguments[0])
def test_the_gate_passes_before(gate, arguments):
    done = run(*arguments)
    assert done.exit_code == 0, done.stdout + done.stderr


def test_line_ends_of_windows_are_read(gate):
    (gate / BASELINE).write_bytes((gate / BASELINE).read_bytes().replace(b"\n", b"\r\n"))
    assert run("check").exit_code == 0


@pytest.mark.parametrize("name", TRIES)
def test_a_try_fails(gate, name):
    attempt = TRIES[name]
    attempt.edit(gate)
    said = said_of(run(*attempt.arguments))
    assert re.search(attempt.said, said), said
    assert len(re.findall(r"^ *[Ee]rror[:\[]", said, re.MULTILINE)) == attempt.errors, said


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_no_variable_makes_a_strict_check_lenient(gate, monkeypatch, name):
    (gate / BASELINE).unlink()
    for variable, value in ENVIRONMENTS[name].items():
        monkeypatch.setenv(variable, value)
    assert "has no baseline file" in said_of(run("check", "--strict"))


def test_how_many_tries_there_are():
    assert len(TRIES) + len(ENVIRONMENTS) >= LEAST
