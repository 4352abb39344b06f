"""Custom calls of a TPU's own language: one record for equal calls, with what the text tells of them."""

from __future__ import annotations

import base64

import pytest

from hloscope.model.vocabulary import Bound

PARAMETERS = "%x = bf16[128,64] parameter(0)\n%w = bf16[64,32] parameter(1)"
CONFIG = '"body":"TUzvUgFNTElS"'
ESTIMATE = CONFIG + ',"cost_estimate":{"flops":"524288","transcendentals":"0","bytes_accessed":"28672"}'
COMPILERS = f'"body":"{base64.b64encode(b"module { func.func @main() }").decode()}"'


def call(name, config=CONFIG, *, operands="%x, %w", result="bf16[128,32]", line=7):
    return (
        f'%{name} = {result} custom-call({operands}), custom_call_target="tpu_custom_call", '
        f'metadata={{op_name="jit(step)/{name}/pallas_call" source_file="/a/model.py" source_line={line}}}, '
        f'backend_config={{"custom_call_config":{{{config}}}}}'
    )


@pytest.fixture
def kernels(analyze):
    def found(*calls, **how):
        return analyze("\n".join([PARAMETERS, *calls]), **how).kernels

    return found


def test_what_is_given_returned_and_estimated(kernels):
    [kernel] = kernels(call("splash", ESTIMATE))
    assert (kernel.name, kernel.by_compiler, kernel.calls, kernel.executions) == ("splash", False, 1, 1)
    assert list(map(str, kernel.operand_shapes)) == ["bf16[128,64]", "bf16[64,32]"]
    assert list(map(str, kernel.result_shapes)) == ["bf16[128,32]"]
    assert (kernel.flops, kernel.accessed_bytes) == (524288, 28672)
    assert (kernel.op_name, kernel.source[0].line) == ("jit(step)/splash/pallas_call", 7)


def test_several_results(kernels):
    [kernel] = kernels(call("splash", result="(bf16[128,32], f32[128])"))
    assert list(map(str, kernel.result_shapes)) == ["bf16[128,32]", "f32[128]"]


def test_without_an_estimate_the_cost_is_unknown_and_not_zero(kernels):
    nothing = CONFIG + ',"cost_estimate":{"flops":"0","bytes_accessed":"0"}'
    for config in (CONFIG, nothing):
        [kernel] = kernels(call("splash", config))
        assert (kernel.flops, kernel.accessed_bytes) == (None, None)


@pytest.mark.parametrize(("said", "sends"), [("", False), (',"has_communication":true', True)])
def test_remote_dma(kernels, said, sends):
    [kernel] = kernels(call("ring", CONFIG + said))
    assert kernel.remote_dma is sends


def test_a_configuration_that_cannot_be_read_does_not_say(kernels):
    [kernel] = kernels('%ring = bf16[128,64] custom-call(%x), custom_call_target="tpu_custom_call"')
    assert kernel.remote_dma is None


def test_a_kernel_that_xla_wrote(kernels):
    [kernel] = kernels(call("name.4", COMPILERS))
    assert (kernel.name, kernel.by_compiler) == ("name", True)


def test_calls_that_differ_in_their_number_alone_are_one(kernels):
    [kernel] = kernels(call("splash.1"), call("splash.2.remat"), call("splash.3.clone.1"))
    assert (kernel.name, kernel.calls, kernel.executions, kernel.line) == ("splash", 3, 3, kernel.line)


@pytest.mark.parametrize(
    "other",
    [call("flash.2"), call("splash.2", line=8), call("splash.2", operands="%w, %x"), call("splash.2", result="s8[8]")],
)
def test_another_name_line_or_shape_is_another_kernel(kernels, other):
    assert [kernel.calls for kernel in kernels(call("splash.1"), other)] == [1, 1]


def test_other_custom_calls_are_none(kernels):
    assert kernels('%t = f32[4] custom-call(%x), custom_call_target="TopK"') == ()


LOOP = f"""
%body (p: (s32[], bf16[128,64], bf16[64,32])) -> (s32[], bf16[128,64], bf16[64,32]) {{
  %p = (s32[], bf16[128,64], bf16[64,32]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = bf16[128,64] get-tuple-element(%p), index=1
  %w = bf16[64,32] get-tuple-element(%p), index=2
  {call("splash.1")}
  ROOT %t = (s32[], bf16[128,64], bf16[64,32]) tuple(%i, %x, %w)
}}
%condition (p: (s32[], bf16[128,64], bf16[64,32])) -> pred[] {{
  %p = (s32[], bf16[128,64], bf16[64,32]) parameter(0)
  ROOT %c = pred[] constant(true)
}}
"""
WHILE = """
%zero = s32[] constant(0)
%start = (s32[], bf16[128,64], bf16[64,32]) tuple(%zero, %x, %w)
%while = (s32[], bf16[128,64], bf16[64,32]) while(%start), condition=%condition, body=%body"""


@pytest.mark.parametrize(
    ("known", "bound"), [(', backend_config={"known_trip_count":{"n":"6"}}', Bound.EXACT), ("", None)]
)
def test_runs_in_a_loop_are_counted(kernels, known, bound):
    [kernel] = kernels(WHILE + known, call("splash.2"), computations=LOOP)
    assert (kernel.calls, kernel.executions) == (2, 7 if known else 2)
    assert (kernel.executions_bound is Bound.EXACT) is (bound is Bound.EXACT)


def test_of_equal_calls_one_that_does_not_say_leaves_it_open(kernels):
    silent = call("ring.1").partition(", backend_config")[0]
    for calls in ((call("ring"), silent), (silent, call("ring"))):
        [kernel] = kernels(*calls)
        assert (kernel.calls, kernel.remote_dma) == (2, None)


def test_calls_of_other_estimates_are_told_apart(kernels):
    dearer = ESTIMATE.replace("524288", "1048576")
    assert [one.flops for one in kernels(call("splash", ESTIMATE), call("splash.1", dearer))] == [524288, 1048576]
