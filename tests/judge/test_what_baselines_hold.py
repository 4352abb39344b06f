"""What a baseline holds beside bytes: how sums are reduced, arguments and outputs, whose it is; and what it lacks."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path

import pytest
from contract_examples import ARRAY, GATHER, PRICED, REDUCE, SCATTER, program

import hloscope
from hloscope.judge.baseline_files import format_baselines, parse_baselines, write_baselines
from hloscope.judge.baselines import describe_changed_arrays, make_array_rows, make_baseline
from hloscope.judge.changes import AllowedGrowth, Judgement
from hloscope.judge.checks import apply_strictness, check_analysis
from hloscope.judge.judging import judge
from hloscope.model import Memory, SourceFrame
from hloscope.model.vocabulary import Kind
from hloscope.report.checks import CheckReport
from hloscope.version import MODEL_VERSION

SPELLINGS = Path(__file__).parent.parent.parent / "fixtures" / "spellings"
MAXIMUM = replace(REDUCE, reduction="maximum")
VERSIONS = {"hloscope": "0.2.0", "jax": "0.10.2"}


def judged(then, now, edit=lambda baseline: baseline, **options):
    text = format_baselines(edit(make_baseline(then)))
    return judge(parse_baselines(text, name="b.txt")[0], now, **options).judged


# ---- how sums are reduced


def test_a_maximum_in_place_of_a_sum_is_different(says):
    found = judged(program(REDUCE, GATHER), program(MAXIMUM, GATHER))
    (cause,) = found.causes
    assert (found.judgement, cause.judgement, cause.key) == ("different", "different", "reduction")
    assert cause.source == "/home/me/model/mlp.py:7"
    says(cause.message)


def test_it_is_seen_in_another_function_and_of_other_bytes():
    elsewhere = replace(MAXIMUM, source=(SourceFrame(file="/home/me/model/norm.py", line=2, function="clip"),))
    larger = replace(MAXIMUM, payload_bytes=65_536, wire_bytes=65_536)
    for other in (elsewhere, larger, replace(larger, source=elsewhere.source)):
        found = judged(program(REDUCE), program(other))
        assert found.judgement is Judgement.DIFFERENT
        assert any("where add was" in cause.message for cause in found.causes), found.causes


def test_one_of_two_sums_of_one_line():
    found = judged(program(REDUCE, REDUCE), program(REDUCE, MAXIMUM))
    assert found.judgement is Judgement.DIFFERENT
    assert judged(program(REDUCE, MAXIMUM), program(MAXIMUM, REDUCE)).judgement is Judgement.SAME


def test_reductions_of_several_operations_are_mixed():
    mixed = replace(REDUCE, reduction=None)
    assert "bf16 mixed" in format_baselines(make_baseline(program(mixed)))
    assert judged(program(mixed), program(mixed)).judgement is Judgement.SAME
    assert judged(program(mixed), program(REDUCE)).judgement is Judgement.DIFFERENT


def test_a_maximum_is_not_the_two_halves_of_a_sum():
    halves = SCATTER, replace(SCATTER, kind=Kind.ALL_GATHER, reduction=None)
    assert judged(program(REDUCE), program(*halves)).judgement is Judgement.SAME
    assert judged(program(MAXIMUM), program(*halves)).judgement is Judgement.DIFFERENT


SUMS_OF_ALL_FORMS = (
    "authored.psum_scatter_as_all_reduce",
    "by_hand.all_reduce_start",
    "by_hand.async_start_of_reduce_scatter",
    "by_hand.reduce_scatter_fusion_of_two",
    "elsewhere.data_parallel_over_slices",
    "partitioned.sparsecore_calls",
)


@pytest.mark.parametrize("name", SUMS_OF_ALL_FORMS)
def test_fused_and_asynchronous_sums_have_their_operation(name):
    path = next(iter(sorted(SPELLINGS.glob(f"{name}*hlo*"))))
    rows = make_baseline(hloscope.analyze_text(path.read_text() if path.suffix == ".hlo" else unpacked(path))).rows
    assert {row.reduction for row in rows if row.kind in ("all-reduce", "reduce-scatter")} == {"add"}


def unpacked(path):
    return lzma.decompress(path.read_bytes()).decode()


def without_reductions(baseline):
    return replace(baseline, rows=tuple(replace(row, reduction=None) for row in baseline.rows))


def test_a_baseline_that_does_not_say_it_is_not_compared_and_is_looser(says):
    found = judged(program(REDUCE), program(MAXIMUM), without_reductions)
    assert (found.judgement, [cause.key for cause in found.causes]) == ("better", ["reduction"])
    says(found.causes[0].message)


# ---- arguments and outputs

WEIGHT = replace(
    ARRAY, name="w", dtype="bf16", global_shape=(512, 2048), local_shape=(128, 2048), sharding="P('X', None)"
)
WIDE = replace(WEIGHT, dtype="f32")


@pytest.mark.parametrize(
    "others",
    [(ARRAY, WIDE), (ARRAY, replace(WEIGHT, sharding="P(None, 'Y')", local_shape=(512, 1024))), (ARRAY,),
     (ARRAY, WEIGHT, WEIGHT), (replace(ARRAY, dtype="s32"), WIDE)],
    ids=["type", "sharding", "gone", "new", "two"],
)  # fmt: skip
@pytest.mark.parametrize("key", ["arguments", "outputs"])
def test_other_types_are_different(says, others, key):
    found = judged(program(GATHER, **{key: (ARRAY, WEIGHT)}), program(GATHER, **{key: others}))
    (cause,) = found.causes
    assert (found.judgement, cause.key) == ("different", key)
    says(cause.message)


def test_names_and_order_are_no_types():
    renamed = replace(WEIGHT, name="kernel")
    then, now = program(GATHER, arguments=(ARRAY, WEIGHT)), program(GATHER, arguments=(renamed, ARRAY))
    assert judged(then, now).judgement is Judgement.SAME


def test_what_is_worse_besides_is_worse():
    more = replace(GATHER, payload_bytes=4 * GATHER.payload_bytes, wire_bytes=4 * GATHER.wire_bytes)
    found = judged(program(GATHER, arguments=(WEIGHT,)), program(more, arguments=(WIDE,)))
    assert (found.judgement, [cause.judgement for cause in found.causes]) == ("worse", ["worse", "different"])


def many(count):
    return tuple(
        replace(WEIGHT, name=f"w{at}", global_shape=(at, 8), local_shape=(at, 8), bytes_per_device=at)
        for at in range(1, count + 1)
    )


def test_a_large_model_has_a_line_for_each_type_and_few_of_them():
    layers = tuple(replace(WEIGHT, name=f"layers[{at}].w") for at in range(500))
    assert [(row.type, row.count) for row in make_array_rows("argument", layers)] == [
        ("bf16[512,2048] P('X', None) as bf16[128,2048]", 500)
    ]
    rows = make_array_rows("argument", many(100))
    assert (len(rows), sum(row.count for row in rows), rows[-1].type[:7]) == (32, 100, "others ")
    assert len(make_array_rows("argument", many(32))) == 32
    assert not any(row.type.startswith("others") for row in make_array_rows("argument", many(32)))
    then, now = program(arguments=many(100)), program(arguments=(replace(many(1)[0], dtype="s8"), *many(100)[1:]))
    assert judged(then, then).judgement is Judgement.SAME
    assert judged(then, now).judgement is Judgement.DIFFERENT


def test_text_that_does_not_say_the_whole_array_is_compared_on_one_device():
    local = replace(WEIGHT, global_shape=None, sharding=None)
    sides = [make_array_rows("argument", (array,)) for array in (WEIGHT, local)]
    assert describe_changed_arrays("argument", *sides, (local,)) is None
    other = replace(local, local_shape=(64, 2048))
    found = describe_changed_arrays("argument", sides[0], make_array_rows("argument", (other,)), (other,))
    assert found == "argument w is bf16[64,2048] where bf16[128,2048] was"
    assert [cause.key for cause in judged(program(arguments=(local,)), program(arguments=(WEIGHT,))).causes] == [
        "arguments"
    ]


def test_a_baseline_without_them_is_looser(says):
    found = judged(program(GATHER), program(GATHER), lambda baseline: replace(baseline, arrays=None))
    assert found.judgement is Judgement.BETTER
    says(found.causes[0].message)
    first = judge(replace(make_baseline(program(GATHER)), arrays=None, matmuls=None), program(GATHER)).judged
    assert first.causes == ()
    says(first.caveats, "first")


def test_arguments_and_outputs_are_accepted_apart():
    then = make_baseline(program(GATHER, arguments=(ARRAY,), outputs=(ARRAY,)))
    compared = judge(then, program(GATHER, arguments=(WEIGHT,), outputs=(WIDE,)))
    assert [(row.kind, row.type[:4]) for row in compared.accept({"outputs"}).arrays] == [
        ("argument", "f32["),
        ("output", "f32["),
    ]
    assert compared.accept({"outputs"}).arrays[0] == then.arrays[0]
    assert compared.accept().arrays == compared.after.arrays
    unsaid = judge(replace(then, arrays=None), program(GATHER, arguments=(WEIGHT,)))
    assert unsaid.accept({"arguments"}).arrays == unsaid.after.arrays
    assert unsaid.accept({"memory"}).arrays is None


# ---- whose it is


def test_the_baseline_of_another_function_is_different(says):
    decoy = program(GATHER, target="model.py:decoy")
    assert judged(decoy, program(GATHER)).judgement is Judgement.SAME  # of programs, whatever they are called
    found = judged(decoy, program(GATHER), of_target=True)
    assert (found.judgement, found.causes[0].key) == ("different", "target")
    says(found.causes[0].message)


def test_a_rename_is_accepted_with_the_rest_and_not_by_another_change():
    then = make_baseline(program(GATHER, target="model.py:decoy"))
    more = program(replace(GATHER, payload_bytes=4 * GATHER.payload_bytes, wire_bytes=4 * GATHER.wire_bytes))
    compared = judge(then, more, of_target=True)
    assert compared.accept().target == "model.py:step"
    assert compared.accept({"all-gather@X"}).target == "model.py:decoy"
    assert compared.accept({"target"}).target == "model.py:step"


# ---- the step, and what may grow


def checked(tmp_path, edit, now=VERSIONS, **options):
    analysis = program(GATHER, time=PRICED, versions=VERSIONS)
    path = tmp_path / "step.txt"
    write_baselines(path, [edit(make_baseline(analysis, root=tmp_path))])
    later = replace(analysis, versions=now)
    return check_analysis("step", later, contract=None, baseline=path, root=tmp_path, **options)


def strict_and_line(found, tmp_path):
    (strictly,) = apply_strictness([found], strict=True, whole=True)
    return strictly.passed, str(CheckReport(checks=(found,), root=tmp_path)).partition("\n\n")[0]


def of_model(model, **versions):
    def edit(baseline):
        return replace(baseline, step=replace(baseline.step, model=model), versions={**baseline.versions, **versions})

    return edit


@pytest.mark.parametrize("model", [0, MODEL_VERSION + 1])
def test_a_cost_model_that_never_was_is_said_and_fails_strictly(says, tmp_path, monkeypatch, model):
    monkeypatch.setenv("COLUMNS", "300")
    found = checked(tmp_path, of_model(model))
    assert found.passed
    passed, line = strict_and_line(found, tmp_path)
    assert not passed
    says(line)


def test_an_upgrade_fails_no_baseline(says, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("hloscope.judge.baselines.MODEL_VERSION", 3)
    found = checked(tmp_path, of_model(1, hloscope="0.1.0"))
    passed, line = strict_and_line(found, tmp_path)
    assert passed
    says(line)
    same_release = checked(tmp_path, of_model(1))  # which had another model
    assert not strict_and_line(same_release, tmp_path)[0]


@pytest.mark.parametrize("version", [None, "0.3.0", "one", "0.0.9"])
def test_a_baseline_of_no_earlier_release_has_a_step(tmp_path, version):
    def edit(baseline):
        versions = {name: said for name, said in baseline.versions.items() if name != "hloscope"}
        return replace(baseline, step=None, versions={**versions, **({"hloscope": version} if version else {})})

    assert not strict_and_line(checked(tmp_path, edit), tmp_path)[0]
    older = checked(tmp_path, lambda baseline: replace(edit(baseline), versions={"hloscope": "0.1.9"}))
    passed, line = strict_and_line(older, tmp_path)
    assert (passed, "the step is not judged" in line) == (True, True)


def test_a_memory_that_is_not_judged_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    analysis = program(GATHER, memory=Memory(peak_bytes=1000), versions=VERSIONS)
    path = tmp_path / "step.txt"
    older = replace(make_baseline(analysis), memory=Memory(), versions={"hloscope": "0.1.0"})
    write_baselines(path, [older])
    found = check_analysis("step", analysis, contract=None, baseline=path, root=tmp_path)
    passed, line = strict_and_line(found, tmp_path)
    assert (passed, "peak memory is not judged" in " ".join(line.split())) == (True, True)


def test_large_tolerances_stand_in_the_line(says, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    large = AllowedGrowth(step=0.99, memory={"peak": 0.3, "code": 0.25})
    found = checked(tmp_path, lambda baseline: baseline, tolerance=large)
    says(strict_and_line(found, tmp_path)[1])
    assert "may grow" not in strict_and_line(checked(tmp_path, lambda baseline: baseline), tmp_path)[1]
