"""Each rule fires on a program that shows its fault and stays silent beside it."""

from __future__ import annotations

import ast
import importlib
import os
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rule_cases import (
    LOOP,
    across_slices,
    chain_of_all_reduces,
    compiled,
    judged_with,
    of_rule,
    one_collective,
    program_of,
)

import hloscope
from hloscope.analysis.provenance import NOT_READ
from hloscope.base.errors import NotationError
from hloscope.cli.about import rules as rules_command
from hloscope.judge.rule import Facts, cost_of, read_rule_doc
from hloscope.judge.rules import RULES
from hloscope.judge.rules.exposed_collective import suggest_overlap
from hloscope.judge.verdict import BreachKind
from hloscope.model import IntermediateFact, ModelPart, Phase, Role, SourceFrame, StepTime
from hloscope.model.vocabulary import Kind, Link, Origin
from hloscope.verification.judging import RULE_NAMES

NAMES = [rule.name for rule in RULES]


def cases(*, fires):
    """The cases in the files of rules on which they fire, or do not."""
    return [
        pytest.param(
            rule.name, case, id=f"{rule.name}-{at}", marks=[pytest.mark.tpu_compiler] if "program" in case else []
        )
        for rule in RULES
        for at, case in enumerate(of_rule(rule)[0 if fires else 1])
    ]


def rules_found(known, name):
    return [finding.rule for finding in judged_with(known, select=[name]).findings]


def test_every_rule_has_a_case_that_fires_and_one_that_is_silent():
    assert len(set(NAMES)) == len(NAMES)
    assert [rule.name for rule in RULES if not all(of_rule(rule))] == []


def test_every_file_of_a_rule_is_in_the_registry(root):
    files = {path.stem for path in (root / "hloscope/judge/rules").glob("*.py")} - {"__init__"}
    assert {type(rule).__module__.rpartition(".")[2] for rule in RULES} == files


def test_cases_are_data():
    kinds = {"hlo", "captured", "program"}
    for rule in RULES:
        for case in (*of_rule(rule)[0], *of_rule(rule)[1]):
            assert len(kinds & case.keys()) <= 1
            assert case.keys() <= {*kinds, "mesh", "slice", "dcn", "known", "each"}
            ast.literal_eval(repr(case))


@pytest.mark.parametrize(("name", "case"), cases(fires=True))
def test_fires(name, case):
    found = rules_found(program_of(case), name)
    assert found
    assert set(found) == {name}


@pytest.mark.parametrize(("name", "case"), cases(fires=False))
def test_stays_silent(name, case):
    assert rules_found(program_of(case), name) == []


def test_without_the_text_there_is_no_critical_path():
    (rule,) = (rule for rule in RULES if rule.name == "collective-on-critical-path")
    (case,) = of_rule(rule)[0]
    assert rules_found(Facts(program_of(case).analysis), rule.name) == []


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_every_rule_has_a_page(rule):
    page = read_rule_doc(rule)
    assert page.summary.endswith(".")
    assert all(text.rstrip(".`") for _, text in page.sections)
    assert all(meaning.endswith(".") for _, _, meaning in page.options)


def names_in(expression: ast.expr, module: str) -> list[str]:
    """The names that the `rule` of a finding may have, as it is written in a module."""
    known = vars(importlib.import_module(module))
    match expression:
        case ast.Constant(value=str(name)):
            return [name]
        case ast.Name(id=constant) if isinstance(known.get(constant), str):
            return [known[constant]]
        case ast.Attribute(value=ast.Name(id=enumeration)) if enumeration in known:
            return [str(eval(ast.unparse(expression), known))]
        case ast.Subscript(value=ast.Name(id=table)) if table in known:
            return list(known[table].values())
    several = {"self.name": NAMES, "rule.name": NAMES, "breach.kind": [kind.value for kind in BreachKind]}
    if module.startswith("hloscope.verification"):
        return list(RULE_NAMES)
    return several[ast.unparse(expression)]


def test_every_finding_that_a_command_can_print_has_a_page(root):
    found = set()
    for path in sorted((root / "hloscope").rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Finding":
                (rule,) = (keyword.value for keyword in call.keywords if keyword.arg == "rule")
                found.update(names_in(rule, module))
    assert {"unused-allow", "wrong-result", "contract-broken", "baseline-changed", "hbm-exceeded"} <= found
    assert set(NAMES) | set(RULE_NAMES) <= found
    shown = {name: CliRunner().invoke(rules_command, [name]) for name in sorted(found)}
    assert {name: done.stderr for name, done in shown.items() if done.exit_code} == {}
    for name, done in shown.items():
        assert re.match(rf"{name} \((?:error|warning|note)\)\n\n\S.*\.\n", done.stdout)
        for title in ("What it does", "Why it matters", "Example", "Use instead"):
            assert re.search(rf"^{title}\n  \S", done.stdout, re.MULTILINE), (name, title)


def test_a_bound_decided_at_run_time_leaves_the_total_without_a_bound():
    found = hloscope.analyze_text(LOOP.replace("BOUND", "parameter(1)"))
    assert found.findings[0].instruction == "w"
    assert found.totals.bound == "unknown"
    assert (found.collectives[0].executions, found.collectives[0].executions_bound) == (1, "unknown")


def test_a_sum_that_nothing_hides_is_not_told_to_be_fetched_ahead(says):
    found = one_collective(exposed_us=500.0, executions=1, overlap=None)
    timed = replace(found, time=StepTime(step_us=1000.0, compute_us=500.0, exposed_us=500.0, hidden_us=0.0))
    (one,) = judged_with(timed, select=["exposed-collective"]).findings
    assert "fetch" not in says(one.fix)


@pytest.mark.parametrize(
    ("role", "is_layered", "words"),
    [
        (Role.WEIGHTS, True, "do it for the next layer during this one"),
        (Role.WEIGHTS, False, "computation that does not depend on it"),  # as of a batch, a cache, an embedding
        (Role.GRADIENT, True, "the computation of the next layer's gradients"),
        (Role.ACTIVATIONS, True, "the computation of another part of the batch"),
        (None, True, "computation that does not depend on it"),
    ],
)
def test_what_can_run_during_a_collective_follows_what_it_moves(role, is_layered, words):
    part = ModelPart(role=role)
    found = one_collective(exposed_us=500.0, overlap=None, part=part, loops=("while.1",) if is_layered else ())
    assert words in suggest_overlap(found.collectives[0])
    authored = replace(found.collectives[0], origin=Origin.AUTHORED)
    assert suggest_overlap(authored) == f"move less in this call, or {suggest_overlap(found.collectives[0])}"


@pytest.mark.parametrize(
    ("kind", "about", "words"),
    [
        (Kind.ALL_REDUCE, {"role": Role.GRADIENT}, "if the loop runs over microbatches, sum the gradients once"),
        (Kind.ALL_REDUCE, {"phase": Phase.OPTIMIZER}, "if the loop runs over microbatches, sum the gradients once"),
        (Kind.ALL_REDUCE, {"role": Role.ACTIVATIONS}, "give --dcn an axis over which only gradients are summed"),
        (Kind.ALL_GATHER, {"role": Role.GRADIENT}, "give --dcn an axis over which only gradients are summed"),
    ],
)
def test_gradients_over_dcn_in_a_loop_are_not_told_to_take_another_axis(kind, about, words):
    found = one_collective(kind=kind, link=Link.DCN, loops=("while.1",), part=ModelPart(**about))
    (one,) = judged_with(found, select=["model-parallel-over-dcn"]).findings
    assert words in one.fix


def test_small_collectives_are_told_once_at_the_first(says):
    (finding,) = judged_with(chain_of_all_reduces(5, 16), select=["small-collectives"]).findings
    assert (finding.instruction, finding.cost) == ("r1", None)
    assert re.findall(r"\d+", says(finding.message)) == ["5", "320"]


def test_what_crosses_dcn_has_its_cost(says):
    (finding,) = judged_with(
        across_slices("all-gather", "f32[1024,1024]", "f32[2048,1024]"), select=["model-parallel-over-dcn"]
    ).findings
    assert re.findall("outer|DCN", finding.message) == ["outer", "DCN"]
    assert re.findall(r"[\d.]+", finding.cost) == ["4.19"]
    says([finding.message, finding.cost])


def test_unexpected_collectives_are_told_only_when_something_is_expected(says):
    found = chain_of_all_reduces(2, 1024)
    assert judged_with(found).findings == ()
    expecting = judged_with(found, allow=["all-gather@X: weights of FSDP"])
    assert [finding.rule for finding in expecting.findings] == ["unexpected-collective"] * 2 + ["unused-allow"]
    assert "all-reduce@X" in says(expecting.findings[0].fix)


def test_what_is_allowed_stays_with_its_reason():
    accepted = judged_with(chain_of_all_reduces(1, 1024), allow=["all-reduce@X: partial sums"])
    assert [(finding.rule, finding.allowed) for finding in accepted.findings] == [
        ("unexpected-collective", "partial sums")
    ]


def test_another_axis_or_another_file_is_not_allowed(says):
    for text in ("all-reduce@Y: other axis", "all-reduce@X in model.py: other file"):
        found = judged_with(chain_of_all_reduces(1, 1024), allow=[text]).findings
        assert [finding.allowed for finding in found] == [None, None]
        axis = text.split("@")[1][0]
        assert found[1].rule == "unused-allow"
        assert re.findall(r"--allow|all-reduce@\w+", says(found[1].message, axis)) == ["--allow", f"all-reduce@{axis}"]


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("all-reduce@X over ici: fast", True),
        ("all-*@(X): any", True),
        ("all-reduce in 'm*.py:2': there", True),
        ("unexpected-collective@X in me/metrics.py: there", True),
        ("all-reduce@X over dcn: no", False),
        ("all-reduce@(X,Y): no", False),
        ("unexpected-collective@Y: no", False),
        ("unexpected-collective in metrics.py:3: no", False),
    ],
)
def test_collectives_are_named_as_in_contracts(text, accepted):
    (one,) = chain_of_all_reduces(1, 1024).collectives
    placed = replace(one, source=(SourceFrame(file="/home/me/metrics.py", line=2),))
    analysis = replace(chain_of_all_reduces(1, 1024), collectives=(placed,))
    findings = judged_with(analysis, select=["unexpected-collective"], allow=[text]).findings
    assert (findings[0].allowed is not None) is accepted
    assert any(finding.rule == "unused-allow" for finding in findings) is not accepted


@pytest.mark.parametrize(
    "code_text",
    [
        "import jax\ntotal = psum(loss)  # hloscope: allow small-collectives: once per step\n",
        "# hloscope: allow small-collectives: once per step\ntotal = psum(loss)\n",
    ],
    ids=["on the line", "above it"],
)
def test_a_comment_on_the_line_of_code_or_above_it_allows(says, tmp_path, code_text):
    code = tmp_path / "metrics.py"
    code.write_text(code_text)
    step = LOOP.replace("BOUND", "constant(5)").replace(
        "to_apply=add\n  ROOT out", f'to_apply=add, metadata={{source_file="{code}" source_line=2}}\n  ROOT out'
    )
    found = judged_with(hloscope.analyze_text(step), source_root=tmp_path).findings
    assert [(finding.rule, finding.severity) for finding in found] == [("unused-allow", "note")]
    assert f"{code}:2" in found[0].message
    assert re.findall("small-collectives|once per step", says(found[0].message)) == [
        "small-collectives",
        "once per step",
    ]


def named_in_text(file: str, line: int = 2) -> str:
    """A program whose text says that its all-reduces come from this line of a file."""
    place = f', metadata={{source_file="{file}" source_line={line}}}'
    lines = "".join(f"  r{at + 1} = f32[16] all-reduce(r{at}), {GLOBAL}, to_apply=add{place}\n" for at in range(4))
    head, _, _ = LOOP.partition("condition {")
    return f"{head}ENTRY main {{\n  r0 = f32[16] parameter(0)\n{lines}  ROOT out = f32[16] negate(r4)\n}}\n"


GLOBAL = "channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true"
COMMENT = "total = 0\nx = psum(x)  # hloscope: allow small-collectives: on purpose\n"


def accepted(text: str, root=None):
    """What is accepted of the one finding, and what is said about files that were not read."""
    given = {} if root is None else {"source_root": root}
    analysis = judged_with(hloscope.analyze_text(text, ignore=NAMES, **given), **given)
    (finding,) = analysis.findings
    return finding.allowed, [note for note in analysis.notes if note.startswith(NOT_READ)]


def test_text_opens_no_file_that_it_names(says, tmp_path):
    code = tmp_path / "metrics.py"
    code.write_text(COMMENT)
    allowed, [note] = accepted(named_in_text(str(code)))
    assert allowed is None
    assert str(code) in note
    assert "--source-root" in says(note)
    assert accepted(named_in_text(str(code)), tmp_path) == ("on purpose", [])
    assert accepted(named_in_text("metrics.py"), tmp_path) == ("on purpose", [])
    assert accepted(named_in_text("metrics.py", 99), tmp_path) == (None, [])


def test_a_comment_that_cannot_be_read_in_a_file_that_is_named_is_no_error(says, tmp_path):
    code = tmp_path / "metrics.py"
    code.write_text("\nx = 1  # hloscope: allow nonsense\n")
    assert accepted(named_in_text(str(code)))[0] is None
    with pytest.raises(NotationError) as caught:
        accepted(named_in_text(str(code)), tmp_path)
    assert f"{code}:2" in str(caught.value)
    assert "nonsense" in says(caught)


def test_the_folder_is_not_left(tmp_path):
    root, outside = tmp_path / "src", tmp_path / "secret.py"
    (root / "sub").mkdir(parents=True)
    outside.write_text(COMMENT)
    (root / "link.py").symlink_to(outside)
    (root / "away").symlink_to(tmp_path)
    (root / "circle.py").symlink_to(root / "circle.py")
    os.mkfifo(root / "pipe.py")
    for file in (
        str(outside),
        "../secret.py",
        "sub/../../secret.py",
        str(root / ".." / "secret.py"),
        "link.py",
        "away/secret.py",
        "circle.py",
        "pipe.py",
        "sub",
        "gone.py",
        "x" * 5000,
    ):
        allowed, notes = accepted(named_in_text(file), root)
        assert (allowed, len(notes)) == (None, 1)
    (root / "sub" / "inside.py").write_text(COMMENT)
    (root / "inner.py").symlink_to(root / "sub" / "inside.py")
    assert accepted(named_in_text("inner.py"), root) == ("on purpose", [])
    assert accepted(named_in_text("inner.py"), tmp_path / "gone")[0] is None


@pytest.mark.parametrize(
    ("options", "wrong", "way_out"),
    [
        ({"select": ["smal"]}, "'smal'", "hloscope rules"),
        ({"select": ["small-coll"]}, "'small-coll'", "small-collectives"),
        ({"ignore": ["x"]}, "'x'", "hloscope rules"),
        ({"allow": ["all-gatter: typo"]}, "'all-gatter'", "all-gather"),
        ({"allow": ["all-gather@X"]}, "'all-gather@X'", "REASON"),
        ({"allow": ["all-gather@X,: weights"]}, "column 14", "all-gather@(X,Y)"),
        ({"rule_options": {"small-collectives": 8}}, "'small-collectives'", "RULE.OPTION"),
        ({"rule_options": {"small-collective.min_collectives": 8}}, "'small-collective'", "small-collectives"),
        ({"rule_options": {"small-collectives.min-collective": 8}}, "'min-collective'", "min_collectives"),
        ({"rule_options": {"opaque-communication.limit": 8}}, "opaque-communication", "none"),
        ({"rule_options": {"small-collectives.min_collectives": 2.5}}, "not 2.5", "4"),
        ({"rule_options": {"exposed-collective.share": "much"}}, "not 'much'", "0.25"),
        ({"rule_options": {"unexpected-collective.active": 1}}, "not 1", "false"),
        ({"rule_options": {"exposed-collective.share": 2}}, "a share, from 0 to 1, not 2", "0.25"),
        ({"rule_options": {"hbm-near-limit.share": 1.01}}, "not 1.01", "0.9"),
        ({"rule_options": {"collective-on-critical-path.share": 5}}, "not 5", "0.05"),
        ({"rule_options": {"uneven-sharding.min-padding": 25}}, "not 25", "0.05"),
        ({"rule_options": {"exposed-collective.share": -1}}, "not -1", "0.25"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_what_cannot_be_read_says_so(says, options, wrong, way_out):
    with pytest.raises(NotationError) as error:
        judged_with(chain_of_all_reduces(1, 8), **options)
    what, _, fix = says(error).partition("= fix: ")
    assert wrong in what
    assert way_out in fix


@pytest.mark.tpu_compiler
def test_a_comment_allows_where_a_finding_points_though_nothing_moves_there():
    found = compiled("whole_on_purpose").findings
    assert [one.rule for one in found] == ["repeated-work", "replicated-large-array"]
    assert found[0].allowed is None
    assert "distances" in found[1].allowed


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"small-collectives.min_collectives": 5}, []),
        ({"small-collectives.min-collectives": 4.0}, ["small-collectives"]),
        ({"small-collectives.max_payload_bytes": 63}, []),
        ({"unexpected-collective.active": True}, ["unexpected-collective"] * 4 + ["small-collectives"]),
        ({"exposed-collective.share": 1, "widened-collective.padding": 3}, ["small-collectives"]),
    ],
)
def test_an_option_of_a_rule_is_obeyed(options, found):
    assert [one.rule for one in judged_with(chain_of_all_reduces(4, 16), rule_options=options).findings] == found


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("collective-in-loop", {"loop_invariant": True, "loops": ("w",), "loop_trips": (5,)}),
        ("widened-collective", {"narrow_type": "bf16"}),
        ("model-parallel-over-dcn", {"link": Link.DCN, "loops": ("w",), "loop_trips": (5,)}),
    ],
)
def test_bytes_that_are_not_known_are_not_taken_for_few(name, facts):
    [finding] = judged_with(one_collective(payload_bytes=None, wire_bytes=None, **facts), select=[name]).findings
    assert (finding.rule, finding.cost) == (name, None)


@pytest.mark.parametrize(("kind", "is_left"), [(Kind.ALL_GATHER, False), (Kind.ALL_REDUCE, True)])
def test_the_result_of_an_all_gather_is_no_array_that_was_left_whole(kind, is_left):
    found = one_collective(kind=kind)
    (collective,) = found.collectives
    whole = {"global_shape": (16384, 8192), "local_shape": (16384, 8192), "sharding": "P(None, None)"}
    sizes = {"dtype": "bf16", "bytes_per_device": 1 << 28, "padded_bytes_per_device": 1 << 28, "memory_space": 0}
    for name, is_reported in ((f"{collective.name}[1]", is_left), ("fusion.1", True)):
        made = IntermediateFact(name=name, computation=collective.computation, line=1, **whole, **sizes)
        judged = judged_with(replace(found, intermediates=(made,)), select=["replicated-large-array"])
        assert [finding.rule for finding in judged.findings] == ["replicated-large-array"] * is_reported


@pytest.mark.parametrize(
    ("offset", "fix"),
    [("mine", "jax.lax.all_to_all or"), ("shifted", "jax.lax.psum_scatter"), ("part", "jax.lax.psum_scatter")],
)
def test_parts_at_places_of_their_own_are_gathered_and_others_are_summed(offset, fix):
    text = f"""HloModule parts, num_partitions=4

add {{
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}}

ENTRY main {{
  p = f32[8] parameter(0)
  zero = f32[] constant(0)
  whole = f32[32] broadcast(zero), dimensions={{}}
  number = u32[] partition-id()
  id = s32[] convert(number)
  part = s32[] constant(8)
  four = s32[] constant(4)
  mine = s32[] multiply(id, part)
  shifted = s32[] multiply(id, four)
  placed = f32[32] dynamic-update-slice(whole, p, {offset})
  sum = f32[32] all-reduce(placed), channel_id=1, replica_groups=[1,4]<=[4], use_global_device_ids=true, to_apply=add
  ROOT own = f32[8] dynamic-slice(sum, mine), dynamic_slice_sizes={{8}}
}}
"""
    found = hloscope.analyze_text(text, mesh={"X": 4}, select="all-reduce-then-slice")
    assert [fix in finding.fix for finding in found.findings] == [True]


def test_bytes_that_are_not_known_are_not_small():
    found = chain_of_all_reduces(4, 16)
    unknown = replace(found, collectives=tuple(replace(one, payload_bytes=None) for one in found.collectives))
    assert judged_with(unknown, select=["small-collectives"]).findings == ()


def test_a_cost_says_what_of_it_is_a_bound(says):
    text = """HloModule m, num_partitions=2

add {
  l = s32[] parameter(0)
  o = s32[] parameter(1)
  ROOT s = s32[] add(l, o)
}

cond {
  c = (s32[<=1024,1024]) parameter(0)
  ROOT k = pred[] custom-call(), custom_call_target="unknown"
}

body {
  b = (s32[<=1024,1024]) parameter(0)
  x = s32[<=1024,1024] get-tuple-element(b), index=0
  r = s32[<=1024,1024] all-reduce(x), replica_groups={{0,1}}, to_apply=add
  ROOT t = (s32[<=1024,1024]) tuple(r)
}

ENTRY e {
  p = (s32[<=1024,1024]) parameter(0)
  ROOT w = (s32[<=1024,1024]) while(p), condition=cond, body=body
}
"""
    (collective,) = hloscope.analyze_text(text).collectives
    sent, *times = cost_of(collective).split(", ")
    assert (collective.bytes_bound, re.findall(r"at most|[\d.]+", sent)) == ("at most", ["at most", "4.19"])
    assert collective.executions_bound == "unknown"
    assert [re.findall(r"~?[\d.]+", text) for text in times] == [["1", "~4.19"]]
    says([sent, *times])


def test_what_sends_nothing_is_not_moving():
    text = (
        "HloModule m, num_partitions=2\n\nadd {\n  l = bf16[] parameter(0)\n  r = bf16[] parameter(1)\n"
        "  ROOT s = bf16[] add(l, r)\n}\n\nENTRY e {\n  p = bf16[1024,1024] parameter(0)\n"
        "  ROOT a = bf16[1024,1024] all-reduce(p), replica_groups=GROUPS, to_apply=add\n}\n"
    )
    for groups, names in (("{{0},{1}}", []), ("{{0,1}}", ["a"])):
        facts = Facts(hloscope.analyze_text(text.replace("GROUPS", groups)))
        assert [collective.name for collective in facts.moving(0)] == names
