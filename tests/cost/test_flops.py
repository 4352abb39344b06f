"""FLOPs of matmuls and convolutions, by hand and against XLA's own count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.compute import count_flops
from hloscope.cost.operations import Work, count_fused_work, count_work
from hloscope.hlo import parse_module
from hloscope.hlo.call_graph import HloGraph
from hloscope.hlo.shape_rules import ConvolutionWindow, count_valid_positions

NARROW = {"s8": 0.5, "f8e5m2": 0.5}


def flops(line, *operands):
    parameters = "\n".join(f"  %p{number} = {shape} parameter({number})" for number, shape in enumerate(operands))
    module = parse_module(f"HloModule m\nENTRY %e {{\n{parameters}\n  ROOT %r = {line}\n}}\n")
    return count_flops(module.entry.root)


def test_a_dot():
    line = "f32[8,16] dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    assert flops(line, "f32[8,32]", "f32[32,16]") == 2 * 8 * 16 * 32


def test_a_batched_dot():
    line = (
        "f32[4,8,16] dot(%p0, %p1), lhs_batch_dims={0}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    )
    assert flops(line, "f32[4,8,32]", "f32[4,32,16]") == 2 * 4 * 8 * 16 * 32


@pytest.mark.parametrize(
    ("result", "left", "right", "attributes", "expected"),
    [
        ("f32[8,16]", "f32[8,32]", "f32[32,16]", "dim_labels=bf_io->bf", 2 * 8 * 16 * 32),
        (
            "f32[4,8,16]", "f32[4,8,32]", "f32[4,32,16]",
            "window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0io->0bf", 2 * 4 * 8 * 16 * 32,
        ),
        (
            "f32[8,16,2]", "f32[8,32,2]", "f32[32,16,2]",
            "window={size=2 pad=1_1 rhs_reversal=1}, dim_labels=bf0_io0->bf0", None,
        ),
        ("f32[1,4,4,1]", "f32[1,4,4,1]", "f32[3,3,1,1]", "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
         2 * 10 * 10),
    ],
)  # fmt: skip
def test_convolutions(result, left, right, attributes, expected):
    found = flops(f"{result} convolution(%p0, %p1), {attributes}", left, right)
    assert found == expected if expected is not None else found > 0


@pytest.mark.parametrize(
    ("shapes", "attributes", "result"),
    [
        (("f32[2,9,9,4]", "f32[3,3,4,8]"), "window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
         "f32[2,5,5,8]"),
        (("f32[2,9,9,4]", "f32[3,3,4,8]"), "window={size=3x3 rhs_dilate=2x2}, dim_labels=b01f_01io->b01f",
         "f32[2,5,5,8]"),
        (("f32[2,5,4]", "f32[3,4,8]"), "window={size=3 pad=2_2 lhs_dilate=2}, dim_labels=b0f_0io->b0f", "f32[2,11,8]"),
        (("f32[16,8,4]", "f32[16,4,8]"), "window={size=16 stride=15 lhs_dilate=16}, dim_labels=0bf_0io->0bf",
         "f32[16,8,8]"),
    ],
)  # fmt: skip
def test_convolutions_as_xla_counts_them(shapes, attributes, result):
    import jax
    from jaxlib import _hlo, _jax

    text = (
        f"HloModule m\nENTRY %e {{\n  %a = {shapes[0]} parameter(0)\n  %b = {shapes[1]} parameter(1)\n"
        f"  ROOT %r = {result} convolution(%a, %b), {attributes}\n}}\n"
    )
    counted = _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, _hlo.hlo_module_from_text(text))["flops"]
    assert count_flops(parse_module(text).entry.root) == counted


def test_fusions_add_up():
    text = """HloModule m
%inner (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8] parameter(0)
  ROOT %d = f32[8,8] dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
%outer (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8] parameter(0)
  %f = f32[8,8] fusion(%p), kind=kLoop, calls=%inner
  ROOT %d = f32[8,8] dot(%f, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY %e (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8] parameter(0)
  ROOT %f = f32[8,8] fusion(%p), kind=kLoop, calls=%outer
}
"""
    one = 2 * 8**3
    found = count_fused_work(HloGraph(parse_module(text)), NARROW)
    assert found == {"inner": Work(one, one), "outer": Work(2 * one, 2 * one), "e": Work(2 * one, 2 * one)}


@pytest.mark.parametrize(
    ("element_type", "attributes", "passes"),
    [
        ("bf16", "", 1),
        ("f32", "", 1),
        ("f32", ", operand_precision={high,high}", 3),
        ("f32", ", operand_precision={highest,highest}", 6),
        ("bf16", ", operand_precision={highest,highest}", 1),
        ("s32", "", 10),
        ("s8", "", 0.5),
        ("s16", "", 4),
        ("f8e5m2", "", 0.5),
        ("f8e4m3fn", "", 1),
    ],
)
def test_a_matmul_takes_passes_by_its_types(element_type, attributes, passes):
    array = f"{element_type}[8,8]"
    text = (
        f"HloModule m\nENTRY %e {{\n  %a = {array} parameter(0)\n"
        f"  ROOT %d = {array} dot(%a, %a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{attributes}\n}}\n"
    )
    assert count_work(parse_module(text).entry.root, NARROW) == Work(2 * 8**3, passes * 2 * 8**3)


def test_a_matmul_that_is_not_understood_makes_the_work_partial():
    text = """HloModule m
ENTRY %e (p: f32[8,32], w: f32[32,16]) -> f32[8,16] {
  %p = f32[8,32] parameter(0)
  %w = f32[32,16] parameter(1)
  ROOT %c = f32[8,16] convolution(%p, %w), dim_labels=b0f_0io->b0f
}
"""
    assert count_fused_work(HloGraph(parse_module(text)), NARROW) == {"e": Work(is_whole=False)}


def test_labels_that_do_not_fit_are_not_counted():
    assert flops("f32[8,16] convolution(%p0, %p1), dim_labels=b0f_0io->b0f", "f32[8,32]", "f32[32,16]") is None


@given(
    st.tuples(*[st.integers(0, 9)] * 3),
    st.builds(ConvolutionWindow, *[st.integers(1, 5)] * 3, st.integers(-6, 9)),
)
def test_positions_are_counted_as_by_walking_over_them(sizes, window):
    size, kernel, outputs = sizes
    elements = {element * window.hole for element in range(size)}
    walked = sum(
        output * window.stride + offset * window.spread - window.low in elements
        for output in range(outputs)
        for offset in range(kernel)
    )
    assert count_valid_positions(size, kernel, outputs, window) == walked


@pytest.mark.parametrize("window", ["{size=3 stride=0}", "{size=3 lhs_dilate=0}", "{size=3 rhs_dilate=0}"])
def test_a_window_that_cannot_be_meant_is_not_counted(window):
    line = f"f32[2,3,8] convolution(%p0, %p1), window={window}, dim_labels=b0f_0io->b0f"
    assert flops(line, "f32[2,5,4]", "f32[3,4,8]") is None
