"""Rules that a project or a package brings: they are treated as hloscope's own, and what is wrong with one is said."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

import hloscope
from hloscope.app.config import ConfigError, read_project
from hloscope.base.errors import NotationError, TimeLimitError
from hloscope.cli import group
from hloscope.hlo import parse_module
from hloscope.judge import plugins
from hloscope.judge.plugins import load_plugins
from hloscope.judge.selection import apply_rules, make_selection
from hloscope.rules import Case, Facts

GROUPS = "replica_groups={{0,1,2,3}}, use_global_device_ids=true"
STEP = f"""HloModule step, num_partitions=4
add {{
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}}
ENTRY main {{
  p = f32[16] parameter(0)
  a = f32[16] all-reduce(p), channel_id=1, {GROUPS}, to_apply=add
  b = f32[16] all-reduce(a), channel_id=2, {GROUPS}, to_apply=add
  c = f32[16] all-reduce(b), channel_id=3, {GROUPS}, to_apply=add
  ROOT d = f32[16] all-reduce(c), channel_id=4, {GROUPS}, to_apply=add
}}
"""
TARGET = """
[targets.step]
hlo = "step.hlo"
mesh = { X = 4 }
baseline = false
contract = "all-reduce; nothing else"
fail-on = "error"
"""
RULE = '''"""Something of ours.

What it does: looks.

Why it matters: it does.

Example: this.

Use instead: that.
"""
import sys
from dataclasses import dataclass
from typing import ClassVar
from hloscope.rules import Case, Facts, Finding, Severity, finding_at, finding_of

@dataclass(frozen=True)
class Ours:
    """Ours.

    Attributes:
        most: How many.
    """

    name: ClassVar[str] = "ours"
    severity: ClassVar[Severity] = Severity.WARNING
    most: int = 3

    def check(self, facts):
        for at, collective in enumerate(facts.collectives):
            if at >= self.most:
                yield finding_at(self, collective, f"number {at + 1}")

RULES = (Ours(),)
'''


class Project:
    """A folder with a targets file, a program, and the module `ours_N.py`, in which the command is run."""

    count = 0

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        Project.count += 1
        self.folder, self.module = folder, f"ours_{Project.count}"
        self.code = folder / f"{self.module}.py"
        (folder / "step.hlo").write_text(STEP)
        monkeypatch.chdir(folder)
        self.named()

    def named(self, *modules: str, target: str = TARGET) -> None:
        names = json.dumps(modules or [self.module])
        (self.folder / "hloscope.toml").write_text(f"# ours\nplugins = {names}\n{target}")

    def run(self, *arguments: str):
        done = CliRunner().invoke(group, arguments)
        assert "Traceback" not in done.output
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    def without_number(self, text: str) -> str:
        """A text without the number in the module's name, which differs from run to run."""
        return text.replace(self.module, "MODULE").replace(str(self.folder), "TMP")

    def findings(self, *arguments: str) -> dict[str, list]:
        """The findings of an analysis by their rules."""
        done = self.run("analyze", "step.hlo", "--mesh", "X=4", "--format", "json", *arguments)
        assert done.exit_code == 0, done.output
        found: dict[str, list] = {}
        for finding in json.loads(done.stdout)["findings"]:
            found.setdefault(finding["rule"], []).append(finding)
        return found


@pytest.fixture
def nothing_loaded(monkeypatch):
    """A process that has loaded no plug-in, which is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(plugins, "_named_plugins", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    plugins._load_installed.cache_clear()
    yield
    plugins._load_installed.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("our"):
            del sys.modules[name]


@pytest.fixture
def project(tmp_path, monkeypatch, nothing_loaded):
    return Project(tmp_path, monkeypatch)


def guide_block(root: Path, language: str) -> str:
    return re.search(rf"^```{language}\n(.*?)^```$", (root / "docs" / "rules.md").read_text(), re.M | re.S)[1]


def test_the_example_of_the_guide_works(says, root, project):
    (project.folder / "ourteam").mkdir()
    (project.folder / "ourteam" / "rules.py").write_text(guide_block(root, "python"))
    (project.folder / "hloscope.toml").unlink()
    settings = project.folder / "pyproject.toml"
    settings.write_text(guide_block(root, "toml"))
    tested = project.run("rules", "--test")
    assert tested.exit_code == 0
    assert says(tested.output, "tested").startswith("too-many-gathers: ")
    line = settings.read_text().split("\n").index('plugins = ["ourteam.rules"]') + 1
    listed = project.run("rules").output
    assert re.search(rf" ourteam\.rules \(pyproject\.toml:{line}\):\ntoo-many-gathers\b", listed)
    page = project.run("rules", "too-many-gathers").output
    assert "most = 1: " in page
    assert "Attributes" not in page
    assert " ourteam.rules" in page
    from_where = [text for text in f"{listed}{page}".splitlines() if "ourteam.rules" in text]
    says([text.replace(f".toml:{line}", ".toml:LINE") for text in from_where], "from where")
    text = re.search(r'_GATHER = """(.*?)"""', guide_block(root, "python"), re.S)[1]
    (project.folder / "step.hlo").write_text(text)
    (finding,) = project.findings()["too-many-gathers"]
    assert (finding["instruction"], finding["severity"]) == ("h", "warning")
    assert "too-many-gathers" not in project.findings("--rule-option", "too-many-gathers.most=2")
    (allowed,) = project.findings("--allow", "too-many-gathers: on purpose")["too-many-gathers"]
    assert allowed["allowed"] == "on purpose"
    assert "too-many-gathers" not in project.findings("--ignore", "too-many-gathers")


def test_every_query_of_the_guide_is_one(root):
    guide = (root / "docs" / "rules.md").read_text()
    named = set(re.findall(r"`facts\.(\w+)", guide))
    queries = {name for name in vars(Facts) if not name.startswith("_")}
    assert named >= queries - {"graph"}
    facts = Facts(hloscope.analyze_text(STEP), parse_module(STEP, name="step"))
    assert all(hasattr(facts, name) for name in named)


def test_what_is_not_understood_is_not_said_to_move_much():
    kernel = 'backend_config={"custom_call_config":{"has_communication":true}}'
    text = STEP.replace(
        "d = f32[16] all-reduce(c)", f'd = f32[16] custom-call(c), custom_call_target="tpu_custom_call", {kernel}'
    )
    text = text.replace(f", channel_id=4, {GROUPS}, to_apply=add", "")
    facts = Facts(hloscope.analyze_text(text))
    assert [collective.kind for collective in facts.collectives].count("opaque") == 1
    assert [collective.name for collective in facts.moving(64)] == ["a", "b", "c"]
    assert facts.moving(65) == ()


@pytest.mark.process
def test_a_plug_in_fails_a_check_as_other_rules_do(project):
    project.code.write_text(RULE)
    project.named(target=TARGET.replace('"error"', '"warning"') + "allow = ['small-collectives: yes']\n")
    done = project.run("check", "--format", "sarif")
    assert done.exit_code == 1
    (log,) = json.loads(done.stdout)["runs"]
    assert [result["ruleId"] for result in log["results"]] == ["ours"]
    assert log["tool"]["driver"]["rules"][0]["shortDescription"]["text"] in RULE.splitlines()[0]
    with_option = TARGET + "rules.ours.most = 4\nallow = ['small-collectives: yes']\n"
    project.named(target=with_option.replace('"error"', '"warning"'))
    assert project.run("check").exit_code == 0


@pytest.mark.tpu_compiler
def test_the_processes_that_compile_know_it_too(project):
    project.code.write_text(RULE.replace("most: int = 3", "most: int = 0"))
    (project.folder / "model.py").write_text("import jax.numpy as jnp\ndef step(x, w):\n    return jnp.dot(x, w)\n")
    project.named(
        target="""
[targets.step]
function = "model.py:step"
mesh = { X = 4 }
args = ["f32[8,64@X]", "f32[64@X,8]"]
baseline = false
contract = "all-reduce; nothing else"
fail-on = "warning"
rules.ours.most = 0
"""
    )
    done = project.run("check", "--no-cache")
    assert done.exit_code == 1, done.output
    assert "ours" in done.output


WRONG = {
    "is missing": (None, "No module named 'MODULE'"),
    "misses something": ("import not_installed_anywhere\n", "No module named 'not_installed_anywhere'"),
    "does not parse": ("def f(:\n", "SyntaxError"),
    "holds a zero byte": ("x = 1\0\n", "null bytes"),
    "raises no Exception": ("\nclass Odd(BaseException): pass\nraise Odd('x')\n", r"Odd: x .*MODULE\.py:3"),
    "raises what has no words": (
        "class Mute(Exception):\n    def __str__(self):\n        raise KeyError\nraise Mute\n",
        r"Mute \(.*MODULE\.py:4",
    ),
    "has an option that cannot be set": (
        RULE.replace("int = 3", "int = field(default=3, init=False)").replace(
            "import dataclass", "import dataclass, field"
        ),
        r"\Aerror: (?!.*\bpage\b).*\bmost\b",
    ),
    "raises": ("\nraise KeyError('x')\n", r"KeyError: 'x' .*MODULE\.py:2"),
    "leaves": ("import sys\nsys.exit(0)\n", r"sys\.exit\(0\)"),
    "has no rules": ("RULES = ()\n", r"hloscope\.toml:2\n(?!.*@dataclass).*RULES = \("),
    "names a class": (RULE.replace("(Ours(),)", "(Ours,)"), "@dataclass"),
    "is no dataclass": (RULE.replace("@dataclass(frozen=True)\n", ""), "@dataclass"),
    "is nothing of the kind": (RULE.replace("(Ours(),)", "(3,)"), r"\b3\b.*\n.*\n.*@dataclass"),
    "has no page": (RULE.replace("Example: this.", ""), "Use instead"),
    "has an option without a line": (RULE.replace("most: How", "least: How"), r"\Aerror: .*\bpage\b.*\bmost\b"),
    "has a list for an option": (RULE.replace("int = 3", "tuple = ()"), r"\Aerror: (?!.*\bpage\b).*\bmost\b"),
    "has a name that is taken": (RULE.replace('"ours"', '"lost-sharding"'), r"'lost-sharding'.* hloscope\n"),
    "has the name of a collective": (RULE.replace('"ours"', '"all-gather"'), r"'all-gather'.* hloscope\n"),
    "has the name of a breach": (RULE.replace('"ours"', '"contract-broken"'), r"'contract-broken'.* hloscope\n"),
    "has a name with a space": (RULE.replace('"ours"', '"our rule"'), r"'our rule'.*\n.*\n.*name: ClassVar"),
    "has a severity of its own": (RULE.replace("= Severity.WARNING", "= 'bad'"), "severity: ClassVar"),
    "takes no facts": (RULE.replace("check(self, facts)", "check(self)"), r"def check\(self, facts"),
    "has no check": (RULE.replace("def check", "def look"), r"def check\(self, facts"),
    "has a case of its own": (
        RULE.replace("most: int", "cases: ClassVar = (3,)\n    most: int"),
        "cases: ClassVar",
    ),
    "is there twice": (RULE.replace("(Ours(),)", "(Ours(), Ours())"), r"'ours'.* MODULE\n"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_that_cannot_be_used_is_one_error_that_names_it(says, project, case):
    code, words = WRONG[case]
    if code is not None:
        project.code.write_text(code)
    texts = set()
    for arguments in (("check",), ("analyze", "step.hlo"), ("rules",), ("rules", "--test")):
        done = project.run(*arguments)
        assert done.exit_code == 2
        assert done.stdout == ""
        assert project.module in done.stderr
        assert "hloscope.toml:2" in done.stderr
        assert done.stderr.count("error: ") == 1
        texts.add(project.without_number(done.stderr))
    assert re.search(words, says(sorted(texts)))


def test_two_plug_ins_cannot_have_a_rule_of_one_name(says, project):
    project.code.write_text(RULE)
    other = f"our_other_{project.module}"
    (project.folder / f"{other}.py").write_text(RULE)
    project.named(project.module, other)
    done = project.run("check")
    assert done.exit_code == 2
    assert re.findall(rf"'ours'|{other}|{project.module}", done.stderr.splitlines()[0]) == [
        "'ours'",
        other,
        project.module,
    ]
    says(project.without_number(done.stderr))


@pytest.mark.parametrize(
    "wrong", ['"ours"', "[3]", '["../ours"]', '["ours.py:RULES"]', '[""]', "{ a = 1 }"], ids=lambda text: text
)
def test_the_targets_file_names_modules(says, tmp_path, wrong):
    for name, head in (("hloscope.toml", ""), ("pyproject.toml", "[tool.hloscope]\n")):
        path = tmp_path / name
        path.write_text(f"{head}plugins = {wrong}\n")
        with pytest.raises(ConfigError) as error:
            read_project(path)
        assert f"{name}:{1 + bool(head)}" in str(error.value.where)
        assert 'plugins = ["ourteam.rules"]' in error.value.fix
        assert error.value.what.startswith("plugins ")
        says(error, name)


FAILING = {
    "raises": ("raise KeyError('moved')", "KeyError: 'moved'", 33),
    "exits": ("sys.exit(0)", r"sys\.exit\(0\)", 33),
    "yields text": ("yield 'wrong'", "'wrong'.*finding_at", None),
    "yields another rule's": (
        "yield Finding(rule='lost-sharding', severity=Severity.NOTE, message='x')",
        "rule='lost-sharding'.*finding_at",
        None,
    ),
    "has a number for a message": ("yield finding_of(self, 3)", "message=3.*finding_at", None),
    "has a severity of its own": (
        "yield Finding(rule='ours', severity='bad', message='x')",
        "severity='bad'.*finding_at",
        None,
    ),
    "has a bool for a line": (
        "yield Finding(rule='ours', severity=Severity.NOTE, message='x', line=True)",
        "line=True.*finding_at",
        None,
    ),
    "stops": ("raise GeneratorExit", "GeneratorExit", 33),
    "yields nothing": ("return None", "'NoneType'", None),
}


@pytest.mark.process
@pytest.mark.parametrize("case", FAILING)
def test_one_that_fails_loses_no_finding_and_is_no_verdict(says, project, case):
    statement, words, line = FAILING[case]
    body = RULE[: RULE.index("        for at")] + f"        print('noise')\n        {statement}\n\nRULES = (Ours(),)\n"
    if line:
        body = body.replace("print('noise')", "print('noise'); yield finding_of(self, 'first')")
    project.code.write_text(body)
    found = project.findings()
    assert len(found["small-collectives"]) == 1
    assert [finding["message"] for finding in found.get("ours", [])] == (["first"] if line else [])
    (failure,) = found["rule-failed"]
    assert failure["severity"] == "error"
    assert re.findall(rf" ours |{project.module}", failure["message"].split(": ")[0]) == [" ours ", project.module]
    assert re.search(words, failure["message"])
    says(project.without_number(failure["message"]))
    number = body.split("\n").index(f"        {statement}") + 1 if line else body.split("\n").index("class Ours:")
    assert failure["source"] == f"{project.code}:{number}"
    verdict = project.run("analyze", "step.hlo", "--fail-on", "error")
    assert verdict.exit_code == 2
    assert "small-collectives" in verdict.stdout
    assert failure["message"] in verdict.stderr
    done = project.run("check")
    assert done.exit_code == 2
    assert "rule-failed" in done.stdout
    assert project.findings("--ignore", "ours").keys() == {"small-collectives"}


def test_a_failure_cannot_be_allowed(says, project):
    project.code.write_text(RULE.replace("        for at", "        1 / 0  # hloscope: allow *: fine\n        for at"))
    found = project.findings("--allow", "all-*: all of it", "--allow", "ours: it fails")
    assert found["rule-failed"][0]["allowed"] is None
    refused = project.run("analyze", "step.hlo", "--allow", "rule-failed: fine")
    assert refused.exit_code == 2
    assert "'rule-failed'" in says(refused.stderr)


@pytest.mark.process
def test_what_it_prints_is_no_report(project):
    """By whatever means, and also where it closes the stream."""
    noise = "import os; os.write(1, b'noise'); print('noise', file=sys.__stdout__, flush=True)"
    project.code.write_text(
        RULE.replace("import sys\n", f"import sys; {noise}\n").replace(
            "        for at", f"        {noise}; sys.__stdout__.close()\n        for at"
        )
    )
    for arguments in (("analyze", "step.hlo", "--format", "json"), ("check",), ("rules",), ("rules", "--test")):
        done = subprocess.run(
            [sys.executable, "-m", "hloscope", *arguments], capture_output=True, text=True, check=False
        )
        assert "noise" not in done.stdout
        assert "noise" in done.stderr
        assert done.returncode == (1 if "--test" in arguments else 0), done.stderr
        assert "ours" in done.stdout or arguments == ("check",)


def test_text_of_another_class_is_text(project):
    """Such as numpy's strings are."""
    words = "type('Words', (str,), {})"
    project.code.write_text(RULE.replace('f"number {at + 1}"', f"{words}('again'), fix={words}('less')"))
    (finding,) = project.findings()["ours"]
    assert (finding["message"], finding["fix"]) == ("again", "less")


def test_an_option_that_the_rule_refuses_is_one_error(says, project):
    refuses = "most: int = 3\n\n    def __post_init__(self):\n        if self.most > 3: raise ValueError('at most 3')\n"
    project.code.write_text(RULE.replace("most: int = 3\n", refuses))
    done = project.run("analyze", "step.hlo", "--rule-option", "ours.most=4")
    assert done.exit_code == 2
    assert re.search("^error: .*\\bours\\b.*\n   = why: ValueError: at most 3$", done.stderr, re.MULTILINE)
    says(done.stderr)


def test_the_page_shows_the_options_as_they_are(project):
    project.code.write_text(RULE.replace("(Ours(),)", "(Ours(most=1),)"))
    assert "most = 1: How many." in project.run("rules", "ours").stdout


def test_a_time_limit_goes_through_a_rule(nothing_loaded, monkeypatch):
    @dataclass(frozen=True)
    class Slow:
        name: ClassVar[str] = "slow"

        def check(self, facts):
            raise TimeLimitError("looking", 1.0)

    slow = plugins.Plugin(name="our_slow", where="here", rules=(Slow(),))
    monkeypatch.setitem(plugins._named_plugins, "our_slow", slow)
    with pytest.raises(TimeLimitError):
        hloscope.analyze_text(STEP)


@pytest.mark.process
def test_a_rule_that_never_ends_is_ended_with_its_target(says, project):
    project.code.write_text(RULE.replace("        for at", "        while True: pass\n        for at"))
    done = project.run("check", "--timeout", "0.5")
    assert done.exit_code == 2
    (error,) = re.findall("error: .*", done.stdout)
    assert re.findall(r"\bstep\b|[\d.]+ s\b", says(error)) == ["step", "0.5 s"]
    assert f"{project.code.name}:29 in check" in done.stdout


def test_a_rule_that_is_not_active_runs_where_it_is_selected(project):
    project.code.write_text(
        RULE.replace("most: How", "active: Whether.\n        most: How").replace(
            "most: int", "active: bool = False\n    most: int"
        )
    )
    assert "ours" not in project.findings()
    assert "ours" in project.findings("--select", "ours")
    assert "ours" in project.findings("--rule-option", "ours.active=true")


def test_cases_that_are_not_as_they_say_fail(says, project):
    cases = "cases: ClassVar = (Case(hlo=HLO, fires=True), WRONG, Case(hlo='x', fires=True))"
    head = f"HLO = {STEP!r}\nWRONG = Case(hlo=HLO, fires=False, options={{'most': 1}})\n\n@dataclass(frozen=True)"
    project.code.write_text(
        RULE.replace("@dataclass(frozen=True)", head).replace("most: int", f"{cases}\n    most: int")
    )
    done = project.run("rules", "--test", "ours")
    assert done.exit_code == 1
    ours, *failed = done.output.splitlines()
    assert ours.startswith("ours: ")
    assert [re.findall(r"^  case \d|: number 2$", line) for line in failed[:2]] == [
        ["  case 2", ": number 2"],
        ["  case 3"],
    ]
    says(done.output)
    project.code.write_text(RULE)
    assert project.run("rules", "--test", "lost-sharding").exit_code == 2


def test_a_rule_without_cases_is_not_tested(says, project):
    project.code.write_text(RULE)
    done = project.run("rules", "--test")
    assert done.exit_code == 1
    ours, fires, silent = says(done.output).splitlines()
    assert ours.startswith("ours: ")
    assert "fires" in fires
    assert "silent" in silent


def test_a_case_may_be_a_file_beside_the_module(says, nothing_loaded, tmp_path):
    (tmp_path / "fires.hlo").write_text(STEP)
    cases = "cases: ClassVar = (Case(hlo=Path('fires.hlo'), fires=True), Case(hlo=Path('gone.hlo'), fires=False))"
    code = RULE.replace("import sys\n", "import sys\nfrom pathlib import Path\n")
    (tmp_path / "our_files.py").write_text(code.replace("most: int", f"{cases}\n    most: int"))
    load_plugins("our_files", root=tmp_path)
    from hloscope.app.own_rules import find_failed_cases

    (rule,) = plugins.list_plugins()[-1].rules
    assert isinstance(rule.cases[0], Case)
    (failed,) = find_failed_cases(rule)
    assert failed.startswith("case 2: ")
    assert str(tmp_path / "gone.hlo") in failed
    says(failed)


def installed(folder: Path, code: str, module: str) -> None:
    """A package in a folder of `sys.path` that brings rules to all who install it."""
    folder.mkdir()
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hloscope.rules]\nteam = {module}\n")
    (folder / f"{module}.py").write_text(code)
    sys.path.insert(0, str(folder))


def test_an_installed_package_brings_its_rules(says, project):
    installed(project.folder / "site", RULE, "our_package")
    (project.folder / "hloscope.toml").unlink()
    assert len(project.findings()["ours"]) == 1
    listed = project.run("rules").output
    assert re.search(r" our_package \(.*\bteam\b.* our_package 1\.0\):\nours\b", listed)
    says([line for line in listed.splitlines() if "our_package" in line])
    project.named("our_package")
    assert len(project.findings()["ours"]) == 1


@pytest.mark.parametrize("metadata", [b"\xff\xfe", b"Name: our_odd\nVersion: 1.0\n", b"", None])
def test_a_package_is_read_whatever_its_metadata_is_like(project, metadata):
    installed(project.folder / "site", RULE, "our_odd")
    info = project.folder / "site" / "our_odd-1.0.dist-info"
    (info / "entry_points.txt").write_text("[hloscope.rules]\nteam = our_odd:RULES [fast]\n")
    (info / "METADATA").unlink() if metadata is None else (info / "METADATA").write_bytes(metadata)
    (project.folder / "hloscope.toml").unlink()
    assert len(project.findings()["ours"]) == 1
    assert re.search(r" our_odd \(.*\bteam\b", project.run("rules").output)


def test_a_broken_package_kills_no_command_and_every_verdict_says_so(says, project):
    installed(project.folder / "site", "import nowhere_to_be_found\n", "our_broken")
    (project.folder / "hloscope.toml").unlink()
    found = project.findings()
    assert len(found["small-collectives"]) == 1
    (failure,) = found["rule-failed"]
    assert " our_broken " in failure["message"]
    assert re.search(r"\bteam\b.* our_broken 1\.0\b.*ModuleNotFoundError", failure["why"])
    says([failure["message"], failure["why"]])
    assert project.run("analyze", "step.hlo", "--fail-on", "error").exit_code == 2
    listed = project.run("rules")
    assert listed.exit_code == 2
    assert "lost-sharding" in listed.stdout
    assert " our_broken " in says(listed.stderr, "hloscope rules")
    (project.folder / "hloscope.toml").write_text(TARGET)
    done = project.run("check")
    assert done.exit_code == 2
    assert " our_broken " in says(done.stderr, "hloscope check")
    (project.folder / "hloscope.toml").write_text(TARGET.replace('fail-on = "error"', ""))
    assert project.run("check").exit_code == 2


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("[hloscope.rules]\nno equals sign\n", "the entry points "),
        ("[hloscope.rules]\nteam = not a module!\n", " not a module! "),
        ("[hloscope.rules]\nteam = our_malformed:RULES[x]\n", " our_malformed "),
    ],
    ids=["no entry", "no name", "no rules"],
)
def test_malformed_entry_points_kill_nothing(says, project, lines, words):
    installed(project.folder / "site", "", "our_malformed")
    (project.folder / "site" / "our_malformed-1.0.dist-info" / "entry_points.txt").write_text(lines)
    (project.folder / "hloscope.toml").write_text(TARGET)
    found = project.findings()
    assert len(found["small-collectives"]) == 1
    assert words in says(found["rule-failed"][0]["message"])
    done = project.run("check")
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.process
def test_the_fixture_of_tests_knows_them(pytester):
    pytester.makefile(".hlo", step=STEP)
    pytester.makefile(".toml", hloscope='plugins = ["our_tests"]\n')
    pytester.makepyfile(our_tests=RULE)
    pytester.makepyfile(
        "def test_step(hlo):\n"
        "    found = hlo.analyze('step.hlo', mesh={'X': 4}).findings\n"
        "    assert 'ours' in [finding.rule for finding in found]\n"
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    (pytester.path / "our_tests.py").unlink()
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["E *PluginError: * our_tests *"])


def test_one_that_another_project_hides_is_an_error(says, nothing_loaded, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "our_hidden.py").write_text(RULE.replace('"ours"', f'"ours-{name}"'))
    load_plugins("our_hidden", root=tmp_path / "first")
    load_plugins("our_hidden", root=tmp_path / "first")
    with pytest.raises(plugins.PluginError) as error:
        load_plugins("our_hidden", root=tmp_path / "second")
    assert "our_hidden is hidden" in error.value.what
    assert str(tmp_path / "first" / "our_hidden.py") in error.value.why
    says(error)


def test_python_names_plug_ins_itself(says, nothing_loaded, tmp_path):
    (tmp_path / "our_python.py").write_text(RULE)
    with pytest.raises(NotationError) as unknown:
        make_selection(select=["ours"])
    assert "'ours'" in says(unknown, "rule")
    load_plugins("our_python", root=tmp_path)
    load_plugins("our_python", root=tmp_path)
    found = apply_rules(Facts(hloscope.analyze_text(STEP)), make_selection(select=["ours"]))
    assert [finding.message for finding in found.findings] == ["number 4"]
    with pytest.raises(plugins.PluginError) as missing:
        load_plugins("our_missing")
    assert str(missing.value.where).startswith("load_plugins")
    assert " our_missing " in says(missing, "module")
