"""The section on kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_examples import NOTHING

from hloscope.base.canvas import Canvas
from hloscope.model import SourceFrame, StepTime, make_shapes
from hloscope.model.analysis import Kernel
from hloscope.model.vocabulary import Bound
from hloscope.report.formats import render

SPLASH = Kernel(
    name="splash",
    by_compiler=False,
    line=12,
    calls=1,
    executions=36,
    executions_bound=Bound.EXACT,
    operand_shapes=make_shapes("bf16[8,512,128]", "bf16[8,512,128]", "bf16[8,512,128]"),
    result_shapes=make_shapes("f32[8,512,128]"),
    flops=4_294_967_296,
    accessed_bytes=12_582_912,
    remote_dma=False,
    op_name="jit(step)/splash/pallas_call",
    source=(SourceFrame(file="/a/model.py", line=11, column=3, function="attend"),),
)
RING = replace(SPLASH, name="ring", executions_bound=Bound.AT_LEAST, flops=None, accessed_bytes=None, remote_dma=True)
XLAS = replace(SPLASH, name="name", by_compiler=True, remote_dma=None, source=())
TIME = StepTime(
    step_us=1000.0,
    compute_us=600.0,
    exposed_us=400.0,
    hidden_us=0.0,
    first_step_us=1000.0,
    peak_flops_share=None,
    unpriced_kernels=("ring",),
)


def report(*kernels, width=120, time=None):
    return render("analysis", "text", replace(NOTHING, kernels=kernels, time=time), Canvas(width=width))


def rows(text):
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return lines[lines.index("Kernels") + 1 :]


def test_cost_runs_and_shapes_of_each():
    _, _, splash, *rest = rows(report(SPLASH, RING, XLAS, width=160))
    assert splash.startswith("splash 36 4.29 GFLOPs, 12.6 MB none 3 x bf16[8,512,128] f32[8,512,128]")
    ring = next(row for row in rest if row.startswith("ring"))
    assert ring.startswith("ring ≥36 unknown yes, not counted")
    xlas = next(row for row in rest if row.startswith("name"))
    assert xlas.startswith("name, XLA's own 36 4.29 GFLOPs, 12.6 MB not stated")


def test_an_unknown_cost_has_its_way_out():
    said = " ".join(rows(report(SPLASH, RING, time=TIME)))
    assert "--kernel-cost ring=FLOPS,BYTES" in said
    assert "--kernel-cost splash" not in said
    assert "--kernel-cost" not in report(SPLASH, RING)


def test_without_kernels_there_is_no_section():
    assert "Kernels" not in report()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(width):
    text = report(SPLASH, RING, XLAS, width=width, time=TIME)
    assert max(map(len, text.splitlines())) <= width
    assert "model.py" in "".join(text.split())
