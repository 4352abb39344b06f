"""One check in every format: text, JSON, workflow annotations, SARIF, Markdown, JUnit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from inspect import signature
from pathlib import Path
from xml.etree import ElementTree

import click
import jsonschema
import pytest
from check_examples import sarif_run

from hloscope.analysis.totals import compute_totals
from hloscope.base.canvas import Canvas
from hloscope.base.errors import HloscopeError
from hloscope.base.units import format_time
from hloscope.cli.options import report_options
from hloscope.contracts import all_reduce, only
from hloscope.judge.baseline_files import write_baselines
from hloscope.judge.baselines import make_baseline
from hloscope.judge.checks import PAGES, Checked, check_analysis, make_failed_check
from hloscope.judge.verdict import BreachKind
from hloscope.model import Analysis, ArrayFact, Collective, Memory, Mesh, SliceFact, SourceFrame, StepTime
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Bound, Kind, Link
from hloscope.report import formats
from hloscope.report.checks import CheckReport, FindingsRenderer
from hloscope.report.formats import FORMATS, find_renderer, render
from hloscope.report.pages import list_pages
from hloscope.report.renderer import Lazy, load

ROOT = Path("/home/me/project")
ARRAY = ArrayFact(
    name="x", dtype="f32", global_shape=(8,), local_shape=(1,), sharding=None, chosen_by=None, bytes_per_device=4
)
GATHER = Collective(
    kind=Kind.ALL_GATHER,
    name="all-gather.8",
    computation="body",
    line=20,
    axes=("X",),
    groups=((0, 1, 2, 3), (4, 5, 6, 7)),
    group_size=4,
    link=Link.ICI,
    operand_shapes=(),
    result_shapes=(),
    payload_bytes=2_097_152,
    wire_bytes=1_572_864,
    executions=6,
    executions_bound=Bound.EXACT,
    source=(SourceFrame(file="/home/me/project/my model/moe, v2.py", line=91, function="expert"),),
    why="W is sharded over X, 50% of it",
)


def program(*collectives):
    return Analysis(
        target="model.py:step",
        module="jit_step",
        slice=SliceFact(name="v5e:2x4", chip="v5e", chips=8, devices=8, slices=1, used_devices=8, chosen_by="user"),
        mesh=Mesh(axis_names=("X", "Y"), axis_sizes=(4, 2)),
        num_partitions=8,
        collectives=collectives,
        totals=compute_totals(collectives),
        arguments=(ARRAY,),
        outputs=(ARRAY,),
        memory=Memory(peak_bytes=2**30),
        time=StepTime(step_us=100.0, compute_us=90.0, exposed_us=10.0, hidden_us=0.0),
    )


REDUCE = replace(GATHER, kind=Kind.ALL_REDUCE, name="all-reduce.1", axes=("Y",), executions=1)


def report(baseline: Path) -> CheckReport:
    """One target that passes, one that breaks its contract and its baseline, one that cannot run."""
    contract = only(all_reduce("Y"))
    write_baselines(baseline, [make_baseline(program(REDUCE), root=ROOT)])
    options = {"contract": contract, "baseline": baseline, "root": ROOT}
    checks = (
        replace(check_analysis("good", program(REDUCE), **options), seconds=1.5),
        replace(check_analysis("bad", program(REDUCE, GATHER), **options), place="pyproject.toml:12", seconds=2.0),
        make_failed_check("gone", "error: there is no f\n   = fix: it has step", place="pyproject.toml:20"),
    )
    return CheckReport(checks=checks, root=ROOT, unused_baselines=(ROOT / "baselines" / "old.txt",))


@pytest.fixture
def rendered(tmp_path):
    return lambda name: render("check", name, report(tmp_path / "b.txt"), Canvas())


def test_text(rendered):
    assert (
        rendered("text")
        == """\
ok      good  v5e:2x4  1.57 MB sent per step  100 us  against its contract and baseline
FAILED  bad   v5e:2x4  11.0 MB sent per step  100 us  against its contract  worse than its baseline
    error[contract-broken]: the program has 6 all-gathers over X per step, 2.10 MB payload each; the
      contract allows none
      --> moe, v2.py:91 in expert: 2.10 MB payload x 6, %all-gather.8 at HLO line 20
          why: W is sharded over X, 50% of it
       = expected: nothing else than all-reduce@Y
       =    found: all-gather@X 2.10 MB payload x6
       = to accept it: all-gather@X <= 2.1MB x6
    error[baseline-changed]: worse: 6 all-gathers over X are new, 9.44 MB sent per step
      --> my model/moe, v2.py:91
       = why: W is sharded over X, 50% of it
       = cost: transfers take 251 us more per step
       = fix: hloscope explain bad looks for a fix; to accept the change: hloscope accept bad --only
              all-gather@X

    per device        baseline       now
    ────────────────────────────────────
    transfers alone    52.0 us    303 us
    sent per step      1.57 MB   11.0 MB
    sent over X            0 B   9.44 MB
ERROR   gone
    error: there is no f
       = fix: it has step

1 passed, 1 failed, 1 could not run
"""
    )


def test_text_on_a_narrow_terminal(tmp_path):
    text = render("check", "text", report(tmp_path / "b.txt"), Canvas(width=60))
    assert text.startswith("""\
ok      good  v5e:2x4  1.57 MB sent per step  100 us
        against its contract and baseline
""")
    assert (
        """
    error[contract-broken]: the program has 6 all-gathers
      over X per step, 2.10 MB payload each; the contract
      allows none
      --> moe, v2.py:91 in expert: 2.10 MB payload x 6,
          %all-gather.8 at HLO line 20
"""
        in text
    )
    assert max(map(len, text.splitlines())) <= 60


def test_a_caret_stays_below_what_it_points_at():
    quoted = "a" * 60 + "\n" + " " * 50 + "^"
    error = HloscopeError("no", where="a.toml:1", excerpt=quoted)
    made = CheckReport(checks=(make_failed_check("x", error),), root=ROOT)
    lines = render("check", "text", made, Canvas(width=40)).splitlines()
    assert lines[3:5] == [f"       | {line}" for line in quoted.splitlines()]


def test_github(rendered):
    assert rendered("github") == (
        "::error file=my model/moe%2C v2.py,line=91,title=contract-broken (bad)::the program has 6 all-gathers over X "
        "per step, 2.10 MB payload each; the contract allows none (expected: nothing else than all-reduce@Y; found: "
        "all-gather@X 2.10 MB payload x6)%0Awhy: W is sharded over X, 50%25 of it%0Afix: to accept it: "
        "all-gather@X <= 2.1MB x6\n"
        "::error file=my model/moe%2C v2.py,line=91,title=baseline-changed (bad)::worse: 6 all-gathers over X are new, "
        "9.44 MB sent per step%0Awhy: W is sharded over X, 50%25 of it%0Acost: transfers take 251 us more per step%0A"
        "fix: hloscope explain bad looks for a fix; to accept the change: hloscope accept bad --only "
        "all-gather@X\n"
        "::error file=pyproject.toml,line=20,title=could-not-run (gone)::there is no f = fix: it has step\n"
        "hloscope check: 1 passed, 1 failed, 1 could not run\n"
    )


def many(tmp_path, targets, findings, words=""):
    """A report of targets with as many findings each, every one of a cause of its own."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    found = tuple(
        Finding(rule="contract-broken", severity=Severity.ERROR, message=f"cause {letters[at]} {words}")
        for at in range(findings)
    )
    checks = tuple(Checked(name=f"t{number}", findings=found) for number in range(targets))
    return CheckReport(checks=checks, root=tmp_path)


def test_github_shows_the_worst_and_logs_the_others(tmp_path):
    report = many(tmp_path, 1, 13)
    notes = (Finding(rule="no-baseline", severity=Severity.NOTE, message="none"), *report.checks[0].findings)
    lines = render(
        "check", "github", replace(report, checks=(replace(report.checks[0], findings=notes),)), Canvas()
    ).splitlines()
    assert [line.partition(" ")[0] for line in lines[:10]] == ["::error"] * 10
    assert [line.partition(" ")[0] for line in lines[10:13]] == ["error[contract-broken]"] * 3
    assert lines[13] == "note[no-baseline] t0: none"


def test_a_comment_is_no_longer_than_github_takes(tmp_path):
    text = render("check", "markdown", many(tmp_path, 60, 20, "long " * 40), Canvas())
    assert len(text) < 65_536
    assert text.count("| `t") == 60
    left_out = int(re.search(r"so the details of (\d+) targets are left out", text)[1])
    assert text.count("<details>") == 60 - left_out
    assert 0 < left_out < 60


def test_a_comment_of_many_targets_folds_those_that_are_as_expected(tmp_path):
    report = many(tmp_path, 500, 0)
    bad = replace(report.checks[0], name="bad", findings=many(tmp_path, 1, 1).checks[0].findings)
    text = render("check", "markdown", replace(report, checks=(*report.checks, bad)), Canvas())
    assert text.index("| `bad` | ❌ failed |") < text.index("<details><summary>500 targets as expected</summary>")
    assert text.count("| `t") == 500
    assert "left out" not in text


def test_rows_that_a_comment_has_no_room_for_are_counted(tmp_path):
    report = many(tmp_path, 3000, 1)
    good = tuple(Checked(name=f"good {number}") for number in range(7))
    text = render("check", "markdown", replace(report, checks=(*good, *report.checks)), Canvas())
    assert len(text) < 65_536
    rows, details, usual = re.search(
        r"so the rows of ([\d,]+) targets and the details of ([\d,]+) targets and the rows of (\d) targets as expected",
        text,
    ).groups()
    assert text.count("| `t") == 3000 - int(rows.replace(",", ""))
    assert (details, usual) == ("3,000", "7")


def test_sarif(says, rendered):
    run = sarif_run(rendered("sarif"))
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["contract-broken", "baseline-changed", "could-not-run"]
    assert [rule["name"] for rule in rules] == ["ContractBroken", "BaselineChanged", "CouldNotRun"]
    assert all(rule["help"]["markdown"].startswith("**What it does:**") for rule in rules)
    assert rules[2]["fullDescription"]["text"].startswith(list_pages()["could-not-run"].summary)
    says(rules[2]["fullDescription"]["text"])
    assert [rules[result["ruleIndex"]]["id"] for result in run["results"]] == [one["ruleId"] for one in run["results"]]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": "my%20model/moe%2C%20v2.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 91},
    }
    assert run["invocations"] == [{"executionSuccessful": False}]


def test_sarif_of_nothing():
    run = sarif_run(render("check", "sarif", CheckReport(checks=(), root=ROOT), Canvas()))
    assert run["results"] == run["tool"]["driver"]["rules"] == []
    assert run["invocations"] == [{"executionSuccessful": True}]


def test_the_published_schema_refuses_what_is_no_sarif(rendered):
    log = json.loads(rendered("sarif"))
    log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] = 0
    with pytest.raises(jsonschema.ValidationError, match="minimum of 1"):
        sarif_run(json.dumps(log))


def test_results_that_are_alike_have_fingerprints_of_their_own():
    def fingerprints(*lines):
        found = [Finding(rule="r", severity=Severity.NOTE, message=f"at {n}", source=f"{ROOT}/a.py:{n}") for n in lines]
        checks = (Checked(name="t", analysis=program(), findings=tuple(found)),)
        run = sarif_run(render("check", "sarif", CheckReport(checks=checks, root=ROOT), Canvas()))
        return [result["partialFingerprints"]["hloscope/v1"] for result in run["results"]]

    assert len(set(fingerprints(3, 40))) == 2
    assert fingerprints(3, 40) == fingerprints(13, 50)


def test_code_quality(rendered, tmp_path):
    issues = json.loads(rendered("codequality"))
    assert [(one["check_name"], one["severity"]) for one in issues] == [
        ("contract-broken", "major"),
        ("baseline-changed", "major"),
        ("could-not-run", "major"),
    ]
    assert issues[0]["location"] == {"path": "my model/moe, v2.py", "lines": {"begin": 91}}
    assert issues[2]["location"] == {"path": "pyproject.toml", "lines": {"begin": 20}}
    assert issues[0]["description"].startswith("bad: the program has 6 all-gathers over X per step")
    assert len({one["fingerprint"] for one in issues}) == 3


def test_code_quality_names_a_file_for_what_has_no_place(tmp_path):
    found = Finding(rule="r", severity=Severity.WARNING, message="m")
    report = CheckReport(checks=(Checked(name="model.py:step", findings=(found,)),), root=tmp_path)
    (issue,) = json.loads(render("check", "codequality", report, Canvas()))
    assert issue["location"] == {"path": "model.py", "lines": {"begin": 1}}
    assert render("check", "codequality", CheckReport(checks=(), root=tmp_path), Canvas()) == "[]\n"


def test_code_hosts_hear_of_places_below_the_repository(tmp_path):
    (tmp_path / ".git").mkdir()
    project = tmp_path / "services" / "model"
    project.mkdir(parents=True)
    found = Finding(rule="r", severity=Severity.NOTE, message="m", source=f"{project}/a.py:3")
    checks = (
        Checked(name="t", analysis=program(), findings=(found,), place="pyproject.toml:9"),
        make_failed_check("u", "error: no", place="pyproject.toml:12"),
    )
    made = CheckReport(checks=checks, root=project)
    assert render("check", "github", made, Canvas()).splitlines()[:2] == [
        "::error file=services/model/pyproject.toml,line=12,title=could-not-run (u)::no",
        "::notice file=services/model/a.py,line=3,title=r (t)::m",
    ]
    results = sarif_run(render("check", "sarif", made, Canvas()))["results"]
    places = [one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in results]
    assert places == ["services/model/a.py", "services/model/pyproject.toml"]
    cases = ElementTree.fromstring(render("check", "junit", made, Canvas()).partition("\n")[2]).iter("testcase")
    assert [case.get("file") for case in cases] == ["services/model/pyproject.toml"] * 2
    assert "--> a.py:3" in render("check", "text", made, Canvas())


def test_an_error_is_told_on_the_line_that_it_points_at(tmp_path):
    (tmp_path / "model.py").write_text("raise ValueError\n")
    raised = make_failed_check("step", HloscopeError("no", where="model.py:1 in <module>"), place="hloscope.toml:3")
    elsewhere = make_failed_check("step", HloscopeError("no", where="gone.py:1 in <module>"), place="hloscope.toml:3")
    report = CheckReport(checks=(raised, elsewhere), root=tmp_path)
    assert [finding.source for _, finding in report.findings()] == ["model.py:1", "hloscope.toml:3"]


def test_markdown(rendered):
    text = rendered("markdown")
    assert text.startswith("""\
### hloscope: ❌ 1 passed, 1 failed, 1 could not run

| target | result | slice | step | sent per step | HBM |
| --- | --- | --- | --- | --- | --- |
| `good` | ✅ as expected | v5e:2x4 | 100 us | 1.57 MB | 1.07 GB |
| `bad` | ❌ worse than before | v5e:2x4 | 100 us | 1.57 MB → **11.0 MB** | 1.07 GB |
| `gone` | ⚠️ could not run |  |  |  |  |

<details><summary><code>bad: the program has 6 all-gathers over X per step, 2.10 MB payload each; the contract \
allows none</code></summary>
""")
    assert text.count("<details>") == text.count("</details>") == 2
    assert set(FACTS) == {fact for fact in FACTS if fact in text}


def markdown_row(tmp_path, then, now):
    """The cells of the step, of what is sent and of HBM in the comment on a program with a baseline."""
    path = tmp_path / "then.txt"
    write_baselines(path, [make_baseline(then, root=ROOT)])
    checked = check_analysis("step", now, contract=None, baseline=path, root=ROOT)
    text = render("check", "markdown", CheckReport(checks=(checked,), root=ROOT), Canvas())
    (row,) = (line for line in text.splitlines() if line.startswith("| `step` |"))
    return [cell.strip() for cell in row.split("|")[4:7]]


def test_a_comment_marks_bounds_and_no_step_that_a_baseline_rounds(tmp_path):
    then = program(REDUCE)
    assert markdown_row(tmp_path, then, then) == ["100 us", "1.57 MB", "1.07 GB"]
    finer = replace(then, time=replace(then.time, step_us=6.5249, compute_us=6.0, exposed_us=0.5249))
    assert format_time(round(6.5249, 3)) != format_time(6.5249)
    assert markdown_row(tmp_path, finer, finer)[0] == "6.52 us"
    branch = program(replace(REDUCE, executions=2, executions_bound=Bound.AT_MOST))
    at_most = replace(branch, time=replace(branch.time, step_us=120.0, bound=Bound.AT_MOST))
    assert markdown_row(tmp_path, then, at_most)[:2] == ["100 us → **≤120 us**", "1.57 MB → **≤3.15 MB**"]
    assert markdown_row(tmp_path, at_most, then)[:2] == ["≤120 us → **100 us**", "≤3.15 MB → **1.57 MB**"]
    at_most_130 = replace(at_most, time=replace(at_most.time, step_us=130.0))
    assert markdown_row(tmp_path, at_most, at_most_130)[0] == "≤120 us → ≤130 us"  # which may be the same
    unknown = replace(then, memory=Memory())
    assert markdown_row(tmp_path, then, unknown)[2] == "1.07 GB → **unknown**"


FACTS = (
    "error[contract-broken]: the program has 6 all-gathers over X per step, 2.10 MB payload each",
    "error[baseline-changed]: worse: 6 all-gathers over X are new, 9.44 MB sent per step",
    "  --> my model/moe, v2.py:91\n",
    "   = why: W is sharded over X, 50% of it\n",
    "   = cost: transfers take 251 us more per step\n",
    "hloscope accept bad --only all-gather@X",
    "sent over X            0 B   9.44 MB",
)
"""What each format for people says of the target that is not as expected."""


def test_what_is_better_is_shown_too(tmp_path):
    write_baselines(tmp_path / "b.txt", [make_baseline(program(REDUCE, GATHER), root=ROOT)])
    checked = check_analysis("step", program(REDUCE), contract=None, baseline=tmp_path / "b.txt", root=ROOT)
    made = CheckReport(checks=(checked,), root=ROOT)
    assert made.passed
    for name in ("markdown", "junit", "text"):
        text = render("check", name, made, Canvas())
        assert "better: 6 all-gathers over X are gone" in text.replace("&gt;", ">"), name


def test_the_details_of_one_target_leave_room_for_others(tmp_path):
    long = replace(many(tmp_path, 1, 26, "long " * 400).checks[0], name="long")
    other = many(tmp_path, 1, 1).checks[0]
    text = render("check", "markdown", CheckReport(checks=(long, other), root=tmp_path), Canvas())
    assert len(text) < 65_536
    assert re.search(r"\n… \d+ more lines in the log\n", text)
    assert text.count("<details>") == 2


def test_junit(rendered):
    root = ElementTree.fromstring(rendered("junit").partition("\n")[2])
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("time")) == ("3", "1", "1", "3.500")
    good, bad, gone = root.iter("testcase")
    assert (good.get("name"), list(good)) == ("good", [])
    assert (bad.get("file"), bad.get("line")) == ("pyproject.toml", "12")
    assert bad[0].get("type") == "contract-broken"
    assert bad[0].get("message").endswith("(my model/moe, v2.py:91)")
    assert "expected: nothing else than all-reduce@Y" in bad[0].text
    assert set(FACTS) == {fact for fact in FACTS if fact in bad[0].text}
    assert (gone[0].tag, gone[0].get("message")) == ("error", "error: there is no f")


def test_junit_holds_no_control_characters():
    checks = (make_failed_check("x", "error: \x1b[31mred\x00"),)
    text = render("check", "junit", CheckReport(checks=checks, root=ROOT), Canvas())
    assert ElementTree.fromstring(text.partition("\n")[2])[0][0][0].text == "error: \ufffd[31mred\ufffd"


def test_json(rendered, schema_of):
    document = json.loads(rendered("json"))
    jsonschema.validate(document, schema_of("check"))
    assert (document["passed"], document["unused_baselines"]) == (False, ["baselines/old.txt"])
    good, bad, gone = document["checks"]
    assert (good["passed"], bad["passed"], gone["passed"]) == (True, False, False)
    assert bad["contract"] == "all-reduce@Y; nothing else"
    assert [finding["rule"] for finding in bad["findings"]] == ["contract-broken", "baseline-changed"]
    assert bad["analysis"]["collectives"][1]["kind"] == "all-gather"


def test_every_finding_of_a_check_has_a_page():
    pages = {page.name: page for page in PAGES}
    assert set(BreachKind) < set(pages)
    for page in pages.values():
        assert [title for title, _ in page.sections] == [
            "What it does",
            "Why it matters",
            "Example",
            "Use instead",
        ]
        assert all(text for _, text in page.sections)


FOUND = (
    Finding(rule="duplicate-collective", severity=Severity.NOTE, message="moved twice", source=f"{ROOT}/moe.py:91"),
    Finding(rule="small-collectives", severity=Severity.WARNING, message="many", allowed="metrics"),
)


def test_findings_of_one_program_as_annotations(monkeypatch):
    monkeypatch.setattr(Path, "cwd", lambda: ROOT)
    assert render("analysis", "github", replace(program(REDUCE), findings=FOUND), Canvas()) == (
        "::notice file=moe.py,line=91,title=duplicate-collective (model.py%3Astep)::moved twice\n"
        "hloscope analyze: 1 finding\n"
    )


def test_findings_of_one_program_as_sarif(monkeypatch):
    monkeypatch.setattr(Path, "cwd", lambda: ROOT)
    run = sarif_run(render("analysis", "sarif", replace(program(REDUCE), findings=FOUND), Canvas()))
    (rule,), (result,) = run["tool"]["driver"]["rules"], run["results"]
    assert (rule["id"], result["ruleId"], result["level"]) == ("duplicate-collective",) * 2 + ("note",)
    assert rule["shortDescription"]["text"] == list_pages()["duplicate-collective"].summary


def test_every_page_is_listed_and_can_be_read():
    def said(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "hloscope", "rules", *arguments], capture_output=True, text=True, check=True
        ).stdout

    listed = said()
    assert all(f"{name} " in listed for name in list_pages())
    for name in ("numerics-hung", "unused-allow"):
        assert said(name).startswith(f"{name} ({list_pages()[name].severity})\n\n{list_pages()[name].summary}\n")
    assert said(PAGES[0].name).startswith(
        f"{PAGES[0].name} (error)\n\n{PAGES[0].summary}\n\nWhat it does\n  Compares the"
    )


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_has_a_method_for_each_document_of_its_line(name):
    renderer, documents = find_renderer(name), FORMATS[name][1].split()
    methods = {method.removeprefix("render_") for method in dir(renderer) if method.startswith("render_")}
    assert methods == set(documents) if name != "json" else methods < set(documents)
    kinds = {"text": r"Iterator\[\w+\]", "json": r"\w+Document"}
    returns = kinds.get(name, "str" if renderer.writes == "text" else "OutputFiles")
    for method in (getattr(renderer, f"render_{document}") for document in methods):
        takes = len(method.of_canvas) + 1 if isinstance(method, Lazy) else 2
        found = signature(load(method.path) if isinstance(method, Lazy) else method)
        needed = [parameter for parameter in found.parameters.values() if parameter.default is parameter.empty]
        assert len(needed) <= takes <= len(found.parameters)
        assert re.fullmatch(returns, found.return_annotation)


class Listed(FindingsRenderer):
    """A format as a newcomer writes it."""

    ending = ".list"

    def render_check(self, found: CheckReport, canvas: Canvas) -> str:
        return "\n".join(f"{checked.name}: {finding.message}" for checked, finding in found.findings())


def test_a_format_is_a_class_and_a_line(monkeypatch, tmp_path):
    """It serves commands and results, a check and one program, and is harmless unless it says otherwise."""
    monkeypatch.setattr(formats, "FORMATS", {**FORMATS, "listed": (f"{__name__}:Listed", "analysis check")})
    for document, has_it in (("analysis", True), ("check", True), ("graph", False)):
        (option,) = (
            each for each in report_options(document)(click.command()(print)).params if each.opts == ["--format"]
        )
        assert ("listed" in option.type.choices) is has_it
    found = replace(program(REDUCE), findings=(replace(FOUND[0], message="\n::error::owned \x1b[31m"), *FOUND[1:]))
    text = found.report("listed")
    assert text == render("analysis", "listed", found, Canvas())
    assert "owned" in text
    assert "\n::error" not in text
    assert "\x1b" not in text
    for _ in range(2):  # a report of the format may replace an older one
        found.save(tmp_path / "found.list")
        assert (tmp_path / "found.list").read_text() == f"{text}\n"
    assert "Y" in render("check", "listed", report(tmp_path / "b.txt"), Canvas())
