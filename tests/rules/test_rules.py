"""Each rule fires on a program that shows its fault and stays silent beside it."""

from __future__ import annotations

import pytest
from rule_cases import FIRES, LOOP, SILENT, across_slices, chain_of_all_reduces

import hloscope
from hloscope.errors import NotationError
from hloscope.rules import RULES
from hloscope.rules.rule import doc_of
from hloscope.rules.selection import judged

NAMES = [rule.name for rule in RULES]


def cases(table):
    return [pytest.param(name, make, id=f"{name}-{at}") for name, made in table.items() for at, make in enumerate(made)]


def rules_found(analysis, name):
    return [finding.rule for finding in judged(analysis, select=[name]).findings]


def test_every_rule_has_a_case_that_fires_and_one_that_is_silent():
    assert sorted(FIRES) == sorted(SILENT) == sorted(NAMES)
    assert len(set(NAMES)) == len(NAMES)
    assert all(FIRES.values())
    assert all(SILENT.values())


@pytest.mark.parametrize(("name", "make"), cases(FIRES))
def test_fires(name, make):
    found = rules_found(make(), name)
    assert found
    assert set(found) == {name}


@pytest.mark.parametrize(("name", "make"), cases(SILENT))
def test_stays_silent(name, make):
    assert rules_found(make(), name) == []


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_every_rule_has_a_page(rule):
    page = doc_of(rule)
    assert page.summary.endswith(".")
    assert all(text.rstrip(".`") for _, text in page.sections)
    assert all(meaning.endswith(".") for _, _, meaning in page.options)


def test_a_bound_decided_at_run_time_leaves_the_total_without_a_bound():
    found = hloscope.analyze_text(LOOP.replace("BOUND", "parameter(1)"))
    assert found.findings[0].instruction == "w"
    assert found.totals.bound == "unknown"
    assert (found.collectives[0].executions, found.collectives[0].executions_bound) == (1, "unknown")


def test_small_collectives_are_told_once_at_the_first():
    (finding,) = judged(chain_of_all_reduces(5, 16), select=["small-collectives"]).findings
    assert (finding.instruction, finding.cost) == ("r1", None)
    assert finding.message == "5 all-reduces over X move 320 B together: their time is latency"


def test_what_crosses_dcn_has_its_cost():
    (finding,) = judged(
        across_slices("all-gather", "f32[1024,1024]", "f32[2048,1024]"), select=["model-parallel-over-dcn"]
    ).findings
    assert finding.message == "all-gather over data crosses DCN and is no reduction"
    assert finding.cost == "4.19 MB sent per device"


def test_unexpected_collectives_are_told_only_when_something_is_expected():
    found = chain_of_all_reduces(2, 1024)
    assert judged(found).findings == ()
    expecting = judged(found, allow=["all-gather@X: weights of FSDP"])
    assert [finding.rule for finding in expecting.findings] == ["unexpected-collective"] * 2 + ["unused-allow"]
    assert expecting.findings[0].fix == "change the shardings that meet there, or allow it: all-reduce@X"


def test_what_is_allowed_stays_with_its_reason():
    accepted = judged(chain_of_all_reduces(1, 1024), allow=["all-reduce@X: partial sums"])
    assert [(finding.rule, finding.allowed) for finding in accepted.findings] == [
        ("unexpected-collective", "partial sums")
    ]


def test_another_axis_or_another_file_is_not_allowed():
    for text in ("all-reduce@Y: other axis", "all-reduce@X in model.py: other file"):
        found = judged(chain_of_all_reduces(1, 1024), allow=[text]).findings
        assert [finding.allowed for finding in found] == [None, None]
        axis = text.split("@")[1][0]
        assert found[1].message.startswith(f"--allow allows all-reduce@{axis}, and nothing of it was found: ")


@pytest.mark.parametrize(
    "code_text",
    [
        "import jax\ntotal = psum(loss)  # hloscope: allow small-collectives: once per step\n",
        "# hloscope: allow small-collectives: once per step\ntotal = psum(loss)\n",
    ],
)
def test_a_comment_on_the_line_of_code_or_above_it_allows(tmp_path, code_text):
    code = tmp_path / "metrics.py"
    code.write_text(code_text)
    step = LOOP.replace("BOUND", "constant(5)").replace(
        "to_apply=add\n  ROOT out", f'to_apply=add, metadata={{source_file="{code}" source_line=2}}\n  ROOT out'
    )
    found = judged(hloscope.analyze_text(step)).findings
    assert [(finding.rule, finding.severity) for finding in found] == [("unused-allow", "note")]
    assert found[0].message == (f"{code}:2 allows small-collectives, and nothing of it was found: once per step")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"select": ["smal"]}, "there is no rule 'smal'\n   = fix: hloscope rules lists them"),
        ({"select": ["small-coll"]}, "there is no rule 'small-coll'\n   = fix: did you mean small-collectives?"),
        ({"ignore": ["x"]}, "there is no rule 'x'\n   = fix: hloscope rules lists them"),
        (
            {"allow": ["all-gatter: typo"]},
            "--allow: there is no rule and no kind of collective 'all-gatter'\n   = fix: did you mean all-gather?",
        ),
        (
            {"allow": ["all-gather@X"]},
            "--allow 'all-gather@X' does not say what is allowed and why\n"
            "   = fix: write RULE: REASON or KIND@AXES: REASON, such as 'all-gather@X: weights of FSDP'",
        ),
    ],
)
def test_what_cannot_be_read_says_so(options, message):
    with pytest.raises(NotationError) as error:
        judged(chain_of_all_reduces(1, 8), **options)
    assert str(error.value) == f"error: {message}"
