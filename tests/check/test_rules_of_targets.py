"""What the targets file says of rules: which findings fail a check, what is accepted, rules' options."""

from __future__ import annotations

import pytest

from hloscope.app.checking import check_project as check
from hloscope.app.config import ConfigError, read_project
from hloscope.base.canvas import Canvas
from hloscope.base.errors import NotationError
from hloscope.judge.checks import apply_strictness
from hloscope.report.checks import CheckReport
from hloscope.report.formats import render

HLO = """\
HloModule m, num_partitions=8

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT add = f32[] add(x, y)
}

ENTRY main {
  p = f32[16] parameter(0)
  a = f32[16] all-reduce(p), channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=sum
  b = f32[16] all-reduce(a), channel_id=2, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=sum
  c = f32[16] all-reduce(b), channel_id=3, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=sum
  ROOT d = f32[16] all-reduce(c), channel_id=4, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=sum
}
"""
TARGET = """
[targets.step]
hlo = "step.hlo"
mesh = { X = 4, Y = 2 }
baseline = false
contract = "all-reduce@Y; nothing else"
"""


@pytest.fixture
def checked(tmp_path):
    """The check of one target, by what its table says beside its contract."""

    def run(lines, rest="", text=HLO):
        (tmp_path / "step.hlo").write_text(text)
        path = tmp_path / "hloscope.toml"
        path.write_text(TARGET + lines + rest)
        (found,) = check(read_project(path))
        return found

    return run


def test_rules_fail_a_check_only_where_the_target_says_so(says, checked):
    assert checked("").passed
    assert checked("fail-on = 'error'").passed
    found = checked("fail-on = 'warning'")
    assert not found.passed
    assert [(one.rule, one.severity) for one in found.findings] == [("small-collectives", "error")]
    assert "256 B" in says(found.findings[0].message)


@pytest.mark.parametrize(
    "accepted",
    [
        "allow = ['small-collectives: metrics']",
        "allow = ['small-collectives@Y: metrics']",
        "allow = ['all-reduce@Y: metrics']",
        "rules = { small-collectives = { min-collectives = 5 } }",
        "rules.small-collectives.max_payload_bytes = 63",
    ],
)
def test_what_is_accepted_and_what_is_small(checked, accepted):
    assert checked(f"fail-on = 'warning'\n{accepted}").passed


def test_a_target_says_it_over_the_project(checked):
    project = "\n[rules.small-collectives]\nmin-collectives = 5\n"
    assert checked("fail-on = 'warning'", project).passed
    own = "fail-on = 'warning'\nrules = { small-collectives = { min_collectives = 4 } }"
    assert not checked(own, project).passed


def test_an_accepted_kind_says_what_to_expect(checked):
    """The rule on collectives that nobody asked for is silent until something is allowed."""
    found = checked("fail-on = 'error'\nallow = ['all-gather@X: weights']")
    assert {one.rule for one in found.findings} == {"unexpected-collective"}


@pytest.mark.parametrize(
    ("lines", "named", "where"),
    [
        ("allow = ['small-colectives: metrics']", "'small-colectives'", "hloscope.toml:2, target step"),
        ("allow = ['all-gather@: weights']", "", "hloscope.toml:2, target step, allow, column 12"),
        ("rules.small-collectives.min-colectives = 3", "'min-colectives'", "hloscope.toml:2, target step"),
        ("rules.small-colectives.min-collectives = 3", "'small-colectives'", "hloscope.toml:2, target step"),
        ("rules = { small-colectives = {} }", "'small-colectives'", "hloscope.toml:2, target step"),
    ],
    ids=["allow", "axes", "option", "rule", "empty"],
)
def test_mistakes_are_told_before_anything_is_analyzed(says, checked, lines, named, where):
    with pytest.raises(NotationError) as caught:
        checked(f"fail-on = 'note'\n{lines}")
    assert named in caught.value.what
    assert caught.value.where == where
    says(caught)


def test_an_allow_without_fail_on_is_noted_and_fails_strictly(says, checked):
    found = checked("allow = ['all-reduce@Y: metrics']")
    assert (found.passed, [(one.rule, one.severity) for one in found.findings]) == (True, [("unused-allow", "note")])
    says([found.findings[0].message, found.findings[0].fix])
    (strictly,) = apply_strictness([found], strict=True, whole=True)
    assert not strictly.passed
    assert len(strictly.findings) == 1
    (nothing,) = apply_strictness([checked("allow = ['all-to-all@Y: none']")], strict=True, whole=True)
    assert ["it matches nothing" in one.message for one in nothing.findings] == [True]


def test_an_allow_over_an_axis_that_the_mesh_lacks_names_the_likely_one(says, checked):
    (unused,) = [
        each
        for each in checked("fail-on = 'error'\nallow = ['all-reduce@YY: metrics']").analysis.findings
        if each.rule == "unused-allow"
    ]
    assert "no axis YY" in unused.message
    assert " Y?" in unused.fix
    says([unused.message, unused.fix])


def test_a_contract_as_a_table_is_an_error_with_the_text_to_write(says, checked):
    rest = "\n[targets.other]\nhlo = 'step.hlo'\ncontract = { only = true, expect = [{ kind = 'all-reduce' }] }"
    with pytest.raises(NotationError) as caught:
        checked("", rest)
    says(caught)
    assert caught.value.where == "hloscope.toml:8, target other, contract"
    assert 'contract = ["all-reduce@Y <= 32KiB x2", ' in caught.value.fix


def test_mistakes_of_several_targets_are_told_at_once(says, checked):
    others = {"other": "no all-gatter", "third": "all-gather X"}
    rest = "".join(f"\n[targets.{name}]\nhlo = 'step.hlo'\ncontract = '{text}'" for name, text in others.items())
    with pytest.raises(ConfigError) as caught:
        checked("fail-on = 'note'\nallow = ['x']", rest)
    assert len(caught.value.mistakes) == 3
    says([mistake.what for mistake in caught.value.mistakes])
    assert str(caught.value).count("error: ") == 3


def test_what_was_not_read_is_said_in_every_format(checked, tmp_path):
    code = tmp_path / "src" / "model.py"
    code.parent.mkdir()
    code.write_text("\nx = psum(x)  # hloscope: allow small-collectives: on purpose\n")
    place = HLO.replace("to_apply=sum\n", f'to_apply=sum, metadata={{source_file="{code}" source_line=2}}\n')
    found = checked("fail-on = 'warning'", text=place)
    assert [(one.rule, one.severity) for one in found.findings] == [
        ("small-collectives", "error"),
        ("comments-not-read", "note"),
    ]
    assert str(code) in found.findings[1].message
    report = CheckReport(checks=(found,), root=tmp_path)
    for name in ("text", "markdown", "github", "sarif", "json", "junit"):
        assert "were not read in" in " ".join(render("check", name, report, Canvas(width=200)).split())
    assert checked("fail-on = 'warning'\nsource-root = 'src'", text=place).findings == ()
