"""Results that have what is hard to show, each with the page it is shown on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import report_examples

from hloscope.analysis.totals import compute_totals
from hloscope.base.errors import HloscopeError
from hloscope.base.results import Shown
from hloscope.contracts import all_reduce, only
from hloscope.judge.baseline_files import write_baselines
from hloscope.judge.baselines import make_baseline
from hloscope.judge.checks import check_analysis, make_failed_check
from hloscope.measurement.model import (
    CalibratedFigure,
    CompareDocument,
    MeasuredAxis,
    MeasuredOperation,
    MeasuredProgram,
    MeasuredRule,
    MeasuredStep,
    MeasuredTransfer,
    StepPart,
    UncomparedProgram,
)
from hloscope.model import Analysis, ArrayFact, Collective, Memory, Mesh, SliceFact, SourceFrame, StepTime
from hloscope.model.trial import Figures, RuleUse, SuggestedSpec, Suggestion, Suggestions
from hloscope.model.vocabulary import Bound, Kind, Link
from hloscope.report.checks import CheckReport
from hloscope.report.price import Prices, Unpriced
from hloscope.verification.differences import OutputShard, compare_shards
from hloscope.verification.judging import judge_verification
from hloscope.verification.model import Bias, Numerics, NumericsStatus, Tolerance, Verification

ROOT = Path("/home/me/project")
RULE = RuleUse(rule="cycles", time_us=90.0, error=0.1, less_us=9.0, more_us=12.0, calibrated=True)
GATHER = replace(
    report_examples.GATHER,
    line=20,
    payload_bytes=2_097_152,
    wire_bytes=1_572_864,
    executions=6,
    source=(SourceFrame(file="/home/me/project/moe.py", line=91, function="expert"),),
    source_of=None,
    why="`W` is sharded over X, and every device needs all of it",
)
REDUCE = replace(GATHER, kind=Kind.ALL_REDUCE, name="all-reduce.1", axes=("Y",), executions=1)
OPAQUE = replace(GATHER, kind=Kind.OPAQUE, name="ring", axes=None, payload_bytes=None, wire_bytes=None, executions=1)
STEP = StepTime(step_us=100.0, compute_us=90.0, exposed_us=10.0, hidden_us=4.0, rules=(RULE,), peak_flops_share=0.4)
FITS = Memory(peak_bytes=2**30, argument_bytes=2**29, output_bytes=2**28, temp_bytes=2**28, hbm_bytes=2**34, fits=True)
ARRAY = ArrayFact(
    name="x", dtype="f32", global_shape=(8,), local_shape=(1,), sharding=None, chosen_by=None, bytes_per_device=4
)


def program(*collectives: Collective, name: str = "v5e:2x4", chips: int = 8, step: float = 1.0) -> Analysis:
    """A program that moves these."""
    return Analysis(
        target="model.py:step",
        module="jit_step",
        slice=SliceFact(
            name=name,
            chip=name.split(":", maxsplit=1)[0],
            chips=chips,
            devices=chips,
            slices=1,
            used_devices=chips,
            chosen_by="user",
        ),
        mesh=Mesh(axis_names=("X", "Y"), axis_sizes=(4, 2)),
        num_partitions=8,
        collectives=collectives,
        totals=compute_totals(collectives),
        arguments=(ARRAY,),
        outputs=(replace(ARRAY, name="result"),),
        memory=FITS,
        time=replace(STEP, step_us=100.0 * step, compute_us=90.0 * step, exposed_us=10.0 * step),
        versions={"jax": "0.10.2", "libtpu": "0.0.42"},
    )


def check(folder: Path) -> CheckReport:
    """Targets that pass, that break contract and baseline, of which not all is known, and that cannot run."""
    baseline = folder / "baseline.txt"
    contract = only(all_reduce("Y"))
    write_baselines(baseline, [make_baseline(program(REDUCE), root=ROOT)])
    options = {"contract": contract, "baseline": baseline, "root": ROOT}
    slower = replace(program(REDUCE, GATHER, step=1.6), memory=replace(FITS, peak_bytes=3 * 2**30))
    plain = {"contract": None, "baseline": None, "root": ROOT}
    checks = (
        replace(check_analysis("block@v5e:2x4", program(REDUCE), **options), seconds=1.5),
        replace(check_analysis("step", slower, **options), place="pyproject.toml:12", seconds=2.0),
        replace(check_analysis("ring", program(OPAQUE), **{**plain, "contract": contract}), seconds=0.2),
        check_analysis("nothing", program(), **plain),
        make_failed_check("gone", "error: there is no f in /home/me/project/model.py\n   = fix: it has step"),
        *(check_analysis(f"layer{number}", program(REDUCE), **options) for number in range(3)),
    )
    return CheckReport(checks=checks, root=ROOT, unused_baselines=(ROOT / "baselines" / "old.txt",), commit="a" * 40)


def prices() -> Prices:
    """Slices that are faster and slower, that it does not fit on, without a price, and that it is not compiled for."""
    of = [("v5e:2x4", 8, 1.0), ("v5e:4x4", 16, 0.56), ("v5e:4x8", 32, 0.4), ("v6e:2x4", 8, 0.45)]
    known = [program(GATHER, name=name, chips=chips, step=step) for name, chips, step in of]
    known[0] = replace(known[0], memory=replace(FITS, peak_bytes=17 * 2**30, fits=False))
    unpriced = replace(
        program(GATHER, name="v4:2x2x2"), time=None, memory=Memory(), notes=("not priced: no chip table",)
    )
    floor = replace(known[2].time, bound=Bound.AT_LEAST, unpriced_kernels=("ring",))
    error = HloscopeError("the compiler died", why="its process was ended")
    refused = Unpriced(target="model.py:step", slice_name="v5p:2x2x1", error=error)
    return Prices((*known[:2], replace(known[2], time=floor), known[3], unpriced, refused))


def suggestions() -> Suggestions:
    """A search that found something better, a tie, what does not fit, and what it does not know all of."""
    figures = Figures(
        step_us=312.0,
        step_us_range=(300.0, 330.0),
        step_bound=Bound.EXACT,
        hbm_bytes=9 * 10**9,
        wire_bytes=10**7,
        wire_bytes_by_axis={"X": 10**7},
        wire_bound=Bound.EXACT,
        collectives=3,
    )
    own = Suggestion(recipe=None, mesh={"X": 4, "Y": 2}, is_own=True, figures=figures)
    weight = SuggestedSpec(
        name="params['w']", count=12, before="P(None, 'X')", after="P('X', None)", notation="f32[8@X,8]"
    )
    free = SuggestedSpec(name="result", is_result=True, before="P('X')", after=None)
    kept = SuggestedSpec(name="x", before="P('X')", after="P('X')")

    def way(recipe: str, step_us: float | None, hbm: int, **about: object) -> Suggestion:
        spread = None if step_us is None else (step_us * 0.95, step_us * 1.06)
        after = replace(figures, step_us=step_us, step_us_range=spread, hbm_bytes=hbm, wire_bytes=4 * 10**6)
        gain = None if step_us is None else 1 - step_us / 312.0
        made = Suggestion(recipe=recipe, mesh={"X": 8}, figures=after, gain=gain, specs=(weight, free, kept))
        return replace(made, **about)

    better = way(
        "FSDP over X",
        250.0,
        7 * 10**9,
        is_worth_it=True,
        because=("less waiting for the all-gather of params['w']", "more bytes over Y"),
        constraints=("remove the constraint at model.py:31",),
        code=("w = jax.device_put(w, NamedSharding(mesh, P('X', None)))", "step(w, x)"),
        device_order=(0, 1, 3, 2, 4, 5, 7, 6),
    )
    unknown = replace(way("hierarchical", 290.0, 4 * 10**9), figures=replace(better.figures, step_bound=Bound.AT_LEAST))
    return Suggestions(
        target="/home/me/project/model.py:step",
        slice="v5e:2x4",
        own=own,
        front=(
            better,
            way("tensor parallel over Y", 305.0, 6 * 10**9, is_tie=True),
            replace(unknown, figures=replace(unknown.figures, step_us=290.0, unknown=("opaque kernel",))),
            way("data parallel", None, 2 * 10**9, fits=False),
        ),
        space=181,
        ranked=181,
        compiled=23,
        failed=2,
        failures={"the compiler refuses the program: an array of /home/me/x is too large": 2},
        refused=1,
        recipes={"FSDP over X": 250.0, "tensor parallel over Y": 305.0},
        freed=("result",),
        freed_gain=0.08,
        notes=("the mesh's sizes were not searched: `--meshes` does",),
        stopped="the time was up",
        seconds=61.0,
    )


def verification() -> Verification:
    """Outputs that agree, that are wrong on one device's shard, and that lean."""
    expected = np.linspace(1, 2, 48 * 96).reshape(48, 96)
    shards = [
        OutputShard(place=f"X={row}", start=(12 * row, 0), values=expected[12 * row : 12 * row + 12])
        for row in range(4)
    ]
    off = shards[1].values + np.where(np.arange(96) % 24 < 8, 0.02, 0.0)
    wrong = [shards[0], replace(shards[1], values=off), *shards[2:]]
    words = {"subject": "target", "against": "reference"}
    allowed = np.full(expected.shape, 0.001)
    good = replace(compare_shards(shards, expected, allowed, name="loss", **words), tolerance=Tolerance(relative=0.001))
    bad = replace(
        compare_shards(wrong, expected, allowed, name="/home/me/out", **words),
        exchanged=("X=1 holds what the reference holds at X=2",),
        tolerance=Tolerance(relative=0.001, source="rounding"),
    )
    exact = compare_shards(
        [OutputShard(place="X=0", start=(0,), values=np.arange(200) + (np.arange(200) > 150))],
        np.arange(200),
        np.zeros(200),
        name="indices",
        **words,
    )
    lean = replace(
        good, name="gradient of w", bias=Bias(ratio=4.0, constant=True, one_way=1.0, shards=(), meaning="the size of X")
    )
    numerics = Numerics(
        status=NumericsStatus.RAN,
        ran_on="8 simulated CPU devices",
        inputs=("x: normal", "w: normal"),
        dims={"B": 64},
        comparisons=(good, bad, exact, lean),
        not_compared={"output aux": "its shape is [3], but [4] in the reference"},
        notes=("sizes were made smaller",),
    )
    return judge_verification(
        replace(program(REDUCE, GATHER), time=replace(STEP, step_us=300.0)), program(REDUCE), numerics
    )


def comparison() -> CompareDocument:
    """A profile with what agrees, what is far off, what has no match, and a program that is not compared."""
    names = [("fusion.1", 500.0, 480.0), ("fusion.2", 80.0, 75.0), ("all-gather.8", 120.0, 60.0), ("copy.3", 4.0, 5.0)]
    operations = [
        MeasuredOperation(
            name=name,
            computation="main",
            opcode=name.split(".")[0],
            activity="communication" if "all" in name else "computing",
            executions=6 if "all" in name else 1,
            predicted_executions=1,
            measured_us=measured_us,
            predicted_us=predicted_us,
            rule="ring" if "all" in name else "cycles",
            calibrated="all" not in name,
            source="model.py:31",
        )
        for name, measured_us, predicted_us in names
    ]
    strange = replace(
        operations[0], name="custom-call.9", activity=None, computation=None, predicted_us=None, rule=None
    )
    gather = MeasuredTransfer(
        kind="all-gather",
        name="all-gather.8",
        computation="main",
        axes=("X",),
        executions=6,
        wire_bytes=1_572_864,
        measured_us=20.0,
        measured_bound=Bound.AT_MOST,
        predicted_us=10.0,
        measured_exposed_us=15.0,
        predicted_exposed_us=None,
        measured_hidden_us=5.0,
        predicted_hidden_us=None,
        measured_bytes_per_s=7.8e10,
        predicted_bytes_per_s=15.6e10,
        rule="ring",
        calibrated=False,
        source="model.py:31",
    )
    axis = MeasuredAxis(
        axes="X",
        link=Link.ICI,
        collectives=6,
        wire_bytes=9_437_184,
        measured_exposed_us=90.0,
        predicted_exposed_us=None,
        measured_bytes_per_s=7.8e10,
        measured_bound=Bound.AT_LEAST,
        predicted_bytes_per_s=None,
    )
    of = MeasuredProgram(
        program="jit_step(17)",
        runs=24,
        devices=8,
        slice="v5e:2x4",
        slice_chosen_by="profile",
        partitions=8,
        step=MeasuredStep(median_us=720.0, least_us=700.0, most_us=790.0, predicted_us=630.0),
        parts=(
            StepPart(part="computing", measured_us=580.0, predicted_us=560.0),
            StepPart(part="communication", measured_us=120.0, predicted_us=60.0),
            StepPart(part="nothing", measured_us=15.0, predicted_us=10.0),
            StepPart(part="not matched", measured_us=5.0, predicted_us=None),
        ),
        operations=(strange, *operations),
        measured_operations=5,
        matched_operations=4,
        matched_share=0.97,
        transfers=(gather,),
        axes=(axis,),
        rules=(MeasuredRule(rule="cycles", operations=3, measured_us=584.0, predicted_us=560.0, calibrated=True),),
        notes=("one run was left out: it was traced only in part",),
    )
    return CompareDocument(
        target="model.py:step",
        profile="/home/me/logs",
        chip="v5e",
        device_kind="TPU v5 lite",
        devices=8,
        programs=(of,),
        uncompared=(
            UncomparedProgram(program="jit_init(3)", runs=1, measured_us=41.0, why="nothing is compiled of it"),
        ),
        calibration=(CalibratedFigure(name="ici_bytes_per_s", value=4.1e10, before=4.5e10, rests_on=12),),
        notes=("the slice is that of the profile",),
    )


def all_of(folder: Path) -> dict[str, Shown]:
    """One result of each subject that has such a page."""
    return {
        "check": check(folder),
        "comparison": comparison(),
        "prices": prices(),
        "suggestions": suggestions(),
        "verification": verification(),
    }
