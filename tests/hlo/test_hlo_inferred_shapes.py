"""Shapes that the text leaves out, as XLA infers them."""

from __future__ import annotations

import re

import pytest

from hloscope.hlo import parse_module

ADD = "add {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT s = f32[] add(x, y)\n}\n"
BOTH = """both {
  x = f32[] parameter(0)
  y = s32[] parameter(1)
  a = f32[] parameter(2)
  b = s32[] parameter(3)
  ROOT t = (f32[], s32[]) tuple(a, b)
}
"""
GREATER = ADD.replace("add {", "ge {").replace("f32[] add(x, y)", "pred[] compare(x, y), direction=GE")
LESS = """lt {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  a = s32[] parameter(2)
  b = s32[] parameter(3)
  ROOT s = pred[] compare(x, y), direction=LT
}
"""
BRANCH = "b {\n  x = f32[4] parameter(0)\n  c = f32[] constant(0)\n  ROOT s = pad(x, c), padding=0_5\n}\n"
STEP = """step {
  x = f32[4] parameter(0)
  z = f32[2] parameter(1)
  c = f32[4] parameter(2)
  d = s32[] parameter(3)
  y = bf16[4] convert(x)
  ROOT t = (bf16[4], f32[2], f32[4], s32[]) tuple(y, z, c, d)
}
"""
CONTRACT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
RAGGED = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims"
INDICES = "start_index_map={1}, index_vector_dim=2, slice_sizes={1,4,3}"
BATCHED = "collapsed_slice_dims={}, operand_batching_dims={0}, start_indices_batching_dims={0}"

CASES = [
    ("f32[]", "broadcast(p0), dimensions={}", "f32[]"),
    ("bf16[4,8] f32[8,16]", f"dot(p0, p1), {CONTRACT}", "f32[4,16]"),
    ("s8[4,8] u8[8,16]", f"dot(p0, p1), {CONTRACT}", "s8[4,16]"),
    ("s8[4,8] s32[8,16]", f"dot(p0, p1), {CONTRACT}", "s32[4,16]"),
    ("f8e4m3fn[4,8] f8e5m2[8,16]", f"dot(p0, p1), {CONTRACT}", "f8e5m2[4,16]"),
    ("f32[<=4,8] f32[8,16]", f"dot(p0, p1), {CONTRACT}", "f32[<=4,16]"),
    ("f32[4] f32[4]", "dot(p0, p1)", "f32[4,4]"),
    ("f32[4] f32[4]", "dot(p0, p1), lhs_contracting_dims={0}, rhs_contracting_dims={0}", "f32[]"),
    ("f32[2,4,8] f32[2,16,8]", f"dot(p0, p1), {RAGGED}={{2}}", "f32[2,4,16]"),
    ("bf16[8,4] f32[]", "pad(p0, p1), padding=1_2_3x-1_0", "f32[32,3]"),
    ("f32[0,4] f32[]", "pad(p0, p1), padding=1_2_3x-1_0", "f32[3,3]"),
    ("f32[<=8,4] f32[]", "pad(p0, p1), padding=1_2_3x-1_0", "f32[<=32,3]"),
    ("bf16[8,4] bf16[]", "reduce(p0, p1), dimensions={0}, to_apply=add", "f32[4]"),
    ("f32[<=8,<=4] f32[]", "reduce(p0, p1), dimensions={0}, to_apply=add", "f32[<=4]"),
    ("f32[8,4] s32[8,4] f32[] s32[]", "reduce(p0, p1, p2, p3), dimensions={1}, to_apply=both", "(f32[8], s32[8])"),
    ("f32[8,4] f32[]", "reduce-window(p0, p1), window={size=3x1 stride=2x1 pad=1_1x0_0}, to_apply=add", "f32[4,4]"),
    (
        "f32[8,4] f32[]",
        "reduce-window(p0, p1), window={size=3x2 rhs_dilate=2x1 lhs_dilate=2x1 pad=1_1x-1_0}, to_apply=add",
        "f32[13,2]",
    ),
    ("f32[8,4] f32[]", "reduce-window(p0, p1), window={size=20x1}, to_apply=add", "f32[0,4]"),
    (
        "f32[2,9,9,3] f32[3,3,3,16]",
        "convolution(p0, p1), window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
        "f32[2,5,5,16]",
    ),
    (
        "bf16[2,9,9,4] f32[3,3,2,16]",
        "convolution(p0, p1), window={size=3x3 rhs_dilate=2x2 rhs_reversal=1x1}, dim_labels=b01f_01io->f01b, "
        "feature_group_count=2",
        "f32[16,5,5,2]",
    ),
    (
        "f32[4,9,3] f32[3,3,16]",
        "convolution(p0, p1), window={size=3 lhs_dilate=2}, dim_labels=b0f_0io->bf0, batch_group_count=2",
        "f32[2,16,15]",
    ),
    ("f32[4,3] f32[3,16]", "convolution(p0, p1), dim_labels=bf_io->bf", "f32[4,16]"),
    ("f32[<=4,3] bf16[5,3]", "concatenate(p0, p1), dimensions={0}", "f32[<=9,3]"),
    (
        "f32[8,4,3] s32[5,2]",
        "gather(p0, p1), offset_dims={1,2}, collapsed_slice_dims={0}, start_index_map={0,1}, index_vector_dim=1, "
        "slice_sizes={1,4,3}",
        "f32[5,4,3]",
    ),
    ("f32[8,4,3] s32[8,5]", f"gather(p0, p1), offset_dims={{2,3}}, {BATCHED}, {INDICES}", "f32[8,5,4,3]"),
    (
        "f32[8,4] s32[3,1] f32[3,4]",
        "scatter(p0, p1, p2), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=1, to_apply=add",
        "f32[8,4]",
    ),
    ("f32[3,8]", "topk(p0), k=2, largest=true", "(f32[3,2], s32[3,2])"),
    ("f32[3,8]", "fft(p0), fft_type=RFFT, fft_length={8}", "c64[3,5]"),
    ("f64[3,4,8]", "fft(p0), fft_type=RFFT, fft_length={4,8}", "c128[3,4,5]"),
    ("c64[3,5]", "fft(p0), fft_type=IRFFT, fft_length={8}", "f32[3,8]"),
    ("c64[3,5]", "fft(p0), fft_type=FFT, fft_length={5}", "c64[3,5]"),
    ("f64[3,8] f64[3,8]", "complex(p0, p1)", "c128[3,8]"),
    ("f32[<=3,8]", "get-dimension-size(p0), dimensions={0}", "s32[]"),
    ("f32[<=3,8] s32[]", "set-dimension-size(p0, p1), dimensions={1}", "f32[<=3,<=8]"),
    ("", "partition-id()", "u32[]"),
    ("", "replica-id()", "u32[]"),
    (
        "f32[4,8] f32[8] f32[8]",
        "batch-norm-training(p0, p1, p2), epsilon=0.1, feature_index=1",
        "(f32[4,8], f32[8], f32[8])",
    ),
    (
        "f32[4,8] f32[8] f32[8] f32[8] f32[8]",
        "batch-norm-inference(p0, p1, p2, p3, p4), epsilon=0.1, feature_index=1",
        "f32[4,8]",
    ),
    (
        "f32[4,8] f32[8] f32[8] f32[8] f32[4,8]",
        "batch-norm-grad(p0, p1, p2, p3, p4), epsilon=0.1, feature_index=1",
        "(f32[4,8], f32[8], f32[8])",
    ),
    ("f32[4,8] f32[4,8]", "map(p0, p1), dimensions={0,1}, to_apply=add", "f32[4,8]"),
    ("f32[4,4]", "cholesky(p0), lower=true", "f32[4,4]"),
    (
        "f32[4,4] f32[4,2]",
        "triangular-solve(p0, p1), left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE",
        "f32[4,2]",
    ),
    (
        "f32[4,8] f32[2,4] f32[]",
        "select-and-scatter(p0, p1, p2), window={size=2x2 stride=2x2}, select=ge, scatter=add",
        "f32[4,8]",
    ),
    ("f32[4,8] s32[4,8]", "sort(p0, p1), dimensions={1}, to_apply=lt", "(f32[4,8], s32[4,8])"),
    ("f16[4] f32[4]", "maximum(p0, p1)", "f32[4]"),
    ("f16[4] bf16[4]", "add(p0, p1)", "bf16[4]"),
    ("f8e8m0fnu[4] f16[4]", "add(p0, p1)", "f8e8m0fnu[4]"),
    ("f32[4] f32[<=4]", "add(p0, p1)", "f32[<=4]"),
    ("f32[?] f32[4]", "add(p0, p1)", "f32[4]"),
    ("f32[4] f32[<=4]", "compare(p0, p1), direction=LT", "pred[<=4]"),
    ("pred[4] f32[4] bf16[4]", "select(p0, p1, p2)", "f32[4]"),
    ("f32[4] bf16[4] f32[4]", "clamp(p0, p1, p2)", "bf16[4]"),
    ("s32[] f32[4] f32[4]", "conditional(p0, p1, p2), branch_computations={b, b}", "f32[9]"),
    (
        "f32[7,4] f32[7,2] f32[4] s32[]",
        "scan(p0, p1, p2, p3), dimensions={0}, num_carries=2, to_apply=step",
        "(bf16[7,4], f32[7,2], f32[4], s32[])",
    ),
    (
        "bf16[4,8] bf16[2,8,3] s32[2]",
        "ragged-dot(p0, p1, p2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
        "bf16[4,3]",
    ),
    ("bf16[4,8] bf16[8,3] s32[2]", f"ragged-dot(p0, p1, p2), {CONTRACT}, lhs_ragged_dims={{1}}", "bf16[2,4,3]"),
    (
        "bf16[6,4,8] bf16[6,2,8,3] s32[6,2]",
        f"ragged-dot(p0, p1, p2), {RAGGED}={{2}}, lhs_ragged_dims={{1}}, rhs_group_dims={{1}}",
        "bf16[6,4,3]",
    ),
    (
        "bf16[6,4,8] bf16[6,8,3] s32[6,2]",
        f"ragged-dot(p0, p1, p2), {RAGGED}={{1}}, lhs_ragged_dims={{2}}",
        "bf16[2,6,4,3]",
    ),
]  # fmt: skip
UNKNOWN = [
    ("f32[4]", "broadcast(p0), dimensions={1}"),
    ("f32[4,8] u32[4,8]", "stochastic-convert(p0, p1)"),
    ("s8[4] s32[4]", "add(p0, p1)"),
    ("f32[4] f32[5]", "add(p0, p1)"),
    ("f32[4,8] f32[8,16]", "dot(p0, p1), lhs_contracting_dims={7}, rhs_contracting_dims={0}"),
    ("f32[4,8] f32[]", "pad(p0, p1), padding=1_2"),
    ("f32[8,4] f32[]", "reduce(p0, p1), dimensions={0}"),
    ("f32[4]", "topk(p0)"),
    ("f32[4]", "dot(p0)"),
    ("s32[] f32[4] f32[4]", "conditional(p0, p1, p2)"),
    ("f32[4]", "no-such-opcode(p0)"),
]


def text_of(operands: str, line: str) -> str:
    parameters = "".join(f"  p{at} = {shape} parameter({at})\n" for at, shape in enumerate(operands.split()))
    computations = {"add": ADD, "both": BOTH, "ge": GREATER, "lt": LESS, "b": BRANCH, "step": STEP}
    called = "".join(text for name, text in computations.items() if re.search(rf"[={{]{name}\b", line))
    return f"HloModule m\n\n{called}\nENTRY main {{\n{parameters}  ROOT r = {line}\n}}\n"


@pytest.mark.parametrize(("operands", "line", "shape"), CASES, ids=[line.partition("(")[0] for _, line, _ in CASES])
def test_a_shape_that_the_text_leaves_out_is_inferred_as_xla_does(operands, line, shape):
    text = text_of(operands, line)
    assert str(parse_module(text).entry.root.shape) == shape
    xla = pytest.importorskip("jaxlib._hlo").hlo_module_from_text(text)
    assert str(parse_module(xla.to_string()).entry.root.shape) == shape


@pytest.mark.parametrize(("operands", "line"), UNKNOWN)
def test_what_operands_do_not_give_is_unknown(operands, line):
    assert str(parse_module(text_of(operands, line)).entry.root.shape) == "unknown[]"


def test_what_is_inferred_carries_on():
    text = text_of("f32[4,8] f32[8,16]", f"dot(p0, p1), {CONTRACT}").replace("ROOT r", "d")
    text = text.replace("\n}\n", "\n  ROOT n = negate(d)\n}\n")
    assert str(parse_module(text).entry.root.shape) == "f32[4,16]"
