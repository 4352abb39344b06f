"""Strings of HLO text that a terminal, a viewer or a runner would obey: none gets through, in any format."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from hloscope.app.analyzing import analyze_hlo
from hloscope.app.diffing import Side, compare_sides
from hloscope.base.canvas import Canvas
from hloscope.judge.checks import check_analysis
from hloscope.judge.notation import parse_contract
from hloscope.judge.selection import make_selection
from hloscope.report.checks import CheckReport
from hloscope.report.formats import list_formats, render
from hloscope.why.explanation import explain_collectives

CONTROL = "\x1b[31mred\x1b]0;title\x07\r\x9b2J"
LINES = "first\nsecond\u2028third"
BIDI = "a\u202eb\u2066c\u200f"
COMMANDS = "\n::error file=x.py,line=1::owned ##vso[task.setvariable variable=x]1 ##[error]x ##teamcity[buildStop]"
MARKUP = "` ```` </code><img src=x> [click](http://evil) |"
EVIL = f"{CONTROL}{LINES}{BIDI}{COMMANDS}{MARKUP}"
UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
RUNNER = re.compile(r"(?mi)^\s*::[a-z]|##(?:vso|teamcity)?\[")


def quoted(text: str) -> str:
    """As XLA escapes strings."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def hostile_text() -> str:
    place = f'metadata={{op_name="jit(f)/{quoted(EVIL)}" source_file="/src/{quoted(EVIL)}.py" source_line=3}}'
    axis = "x" + "".join(char for char in EVIL if char not in "'\\\n\"")
    groups = f"replica_groups=mesh['{axis}'=2,'y'=2] {{'{axis}'}}"
    gathers = "".join(
        f"  g{at} = f32[8] all-gather(p), channel_id=1, use_global_device_ids=true, {groups}, {place}, "
        "dimensions={0}\n"
        for at in range(4)
    )
    argument = f'p = f32[4] parameter(0), metadata={{op_name="{quoted(EVIL)}"}}'
    kernel = f'k = f32[4] custom-call(p), custom_call_target="send{quoted(EVIL)}"'
    return (
        f"HloModule m, num_partitions=4\n\nENTRY main {{\n  {argument}\n  {kernel}\n{gathers}"
        "  ROOT t = (f32[8], f32[8], f32[4]) tuple(g0, g1, k)\n}\n"
    )


@pytest.fixture(scope="module")
def analysis():
    judging = make_selection(rule_options={"unexpected-collective.active": True})
    return analyze_hlo(hostile_text(), name=f"step{EVIL}", judging=judging)


@pytest.fixture(scope="module")
def report(analysis, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    contract = parse_contract("none")
    good = check_analysis(f"good{EVIL}", analysis, contract=contract, baseline=None, root=folder)
    return CheckReport(checks=(good,), root=folder, unused_baselines=(folder / f"old{EVIL.replace('/', '')}",))


def strings_in(document: object):
    if isinstance(document, str):
        yield document
    for inner in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from strings_in(inner)


@pytest.mark.parametrize("width", [24, 80, 200])
@pytest.mark.parametrize("colour", [False, True])
def test_text(analysis, report, width, colour):
    canvas = Canvas(width=width, colour=colour)
    for text in (
        render("analysis", "text", analysis, canvas),
        render("check", "text", report, canvas),
        render("explanation", "text", explain_collectives(analysis), canvas),
        render("overview", "text", explain_collectives(analysis), canvas),
    ):
        bare = re.sub(r"\x1b\[[\d;]*m", "", text) if colour else text
        assert UNSEEN.search(bare) is None
        assert RUNNER.search(bare) is None
        assert width < 200 or not any(line.strip().startswith("second") for line in bare.splitlines())


@pytest.mark.parametrize(
    ("subject", "name"), [(what, name) for what in ("analysis", "check") for name in list_formats(what)]
)
def test_every_format(analysis, report, subject, name):
    text = render(subject, name, analysis if subject == "analysis" else report, Canvas())
    assert UNSEEN.search(text) is None
    assert name == "github" or RUNNER.search(text) is None  # whose commands are its own


def test_github(analysis, report):
    for text in (render("analysis", "github", analysis, Canvas()), render("check", "github", report, Canvas())):
        *commands, headline = text.splitlines()
        assert commands
        assert all(re.match(r"::(?:error|warning|notice) (?:file=|title=)", line) for line in commands)
        assert not headline.startswith("::")
        assert UNSEEN.search(text) is None
        assert re.search(r"(?i)##(?:vso|teamcity)?\[", text) is None
        assert all(line.count("::") == 2 or "::error" not in line[10:].partition("::")[0] for line in commands)


def test_markdown(report):
    text = render("check", "markdown", report, Canvas())
    assert UNSEEN.search(text) is None
    assert RUNNER.search(text) is None
    fences = re.findall(r"(?m)^(`{3,})", text)
    assert fences
    assert len(fences) == 2 * len(set(fences))
    outside = re.sub(r"(?ms)^(`{4,})text\n.*?^\1$", "", text)
    assert "<img" not in re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", outside)


@pytest.mark.parametrize("name", ["json", "sarif"])
def test_json_is_escaped_and_reads_back_the_same(analysis, report, name):
    for text in (render("analysis", name, analysis, Canvas()), render("check", name, report, Canvas())):
        assert UNSEEN.search(text) is None
        assert RUNNER.search(text) is None
        read = list(strings_in(json.loads(text)))
        assert read
        if name == "json":
            assert any(EVIL in string for string in read)


def test_sarif_shows_what_no_viewer_obeys(report):
    (run,) = json.loads(render("check", "sarif", report, Canvas()))["runs"]
    assert run["results"]
    for result in run["results"]:
        shown = [result["message"]["text"]]
        shown += [
            one["fullyQualifiedName"] for place in result.get("locations", ()) for one in place["logicalLocations"]
        ]
        assert all(UNSEEN.search(text) is None for text in shown)
        assert "](" not in result["message"]["text"]


@pytest.mark.parametrize("name", ["text", "json", "markdown"])
def test_diff(analysis, name):
    fewer = replace(analysis, target=f"older{EVIL}", collectives=analysis.collectives[:2])
    found = compare_sides(Side.of(fewer.target, fewer), Side.of(analysis.target, analysis))
    assert found.changes
    assert analysis.target in found.not_understood
    text = render("difference", name, found, Canvas())
    assert len(text) > 200
    assert UNSEEN.search(text) is None
    assert RUNNER.search(text) is None


def test_junit(report):
    text = render("check", "junit", report, Canvas())
    assert UNSEEN.search(text) is None
    assert RUNNER.search(text) is None
    assert ET.fromstring(text).tag == "testsuites"


def test_what_is_harmless_stays():
    from hloscope.report.escaping import dump_json, escape_for_terminal

    text = "all-gather · 12.6 MB → `x` std::vector<a> # hloscope: allow\n  ┃ µs naïve 東京 ##"
    assert escape_for_terminal(text) == text
    assert json.loads(dump_json({"a": text})) == {"a": text}
    assert "→" in dump_json({"a": text})


@pytest.mark.parametrize("blank", ["\xa0", "\u2003", "\u3000", "\u205f", " \x1b[1m\xa0"])
def test_a_command_behind_any_blank_is_none(blank):
    """The runner trims what .NET calls white space, not blanks and tabs alone."""
    from hloscope.report.escaping import escape_commands

    assert RUNNER.search(escape_commands(f"{blank}::warning::x")) is None


@pytest.mark.process
def test_messages_on_stderr(root, tmp_path):
    file = tmp_path / "e.hlo"
    file.write_text(
        "HloModule m\n\nENTRY main {\n  p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p), "
        'metadata={op_name="\x1b[31m ##vso[x] \u202e"} metadata\n}\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "hloscope", "analyze", str(file)],
        cwd=root,
        env={**os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert UNSEEN.search(done.stderr) is None
    assert RUNNER.search(done.stderr) is None
