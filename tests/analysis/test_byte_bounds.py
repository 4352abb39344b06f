"""Bytes that the text only bounds, from both sides, and bytes with tile padding."""

from __future__ import annotations

import pytest

from hloscope.model.vocabulary import Bound, Kind

ROWS = "channel_id=1, use_global_device_ids=true, replica_groups={{0,1,2,3},{4,5,6,7}}"


def reduced(operand: str, result: str):
    return f"%p = {operand} parameter(0)\nROOT %c = {result} all-reduce(%p), {ROWS}, to_apply=%sum"


@pytest.mark.parametrize(
    ("operand", "result", "payload", "least", "bound"),
    [
        ("f32[64]", "f32[64]", 256, 256, Bound.EXACT),
        ("f32[64]", "bf16[64]", 256, 128, Bound.AT_MOST),
        ("bf16[64]", "f32[64]", 128, 128, Bound.AT_LEAST),
        ("f32[<=64]", "f32[<=64]", 256, 0, Bound.AT_MOST),
        ("(f32[64], f32[4])", "(f32[64], bf16[4])", 272, 264, Bound.AT_MOST),
        ("(f32[64], bf16[4])", "(bf16[64], f32[4])", 264, 136, Bound.UNKNOWN),
    ],
)
def test_both_sides_of_the_payload(analyze, operand, result, payload, least, bound):
    elements = operand.strip("()").split(", ")
    parameters = [f"%p{index} = {element} parameter({index})" for index, element in enumerate(elements)]
    names = ", ".join(f"%p{index}" for index in range(len(elements)))
    entry = "\n".join([*parameters, f"ROOT %c = {result} all-reduce({names}), {ROWS}, to_apply=%sum"])
    [found] = analyze(entry).collectives
    assert (found.payload_bytes, found.payload_bytes_at_least, found.bytes_bound) == (payload, least, bound)
    assert (found.wire_bytes, found.wire_bytes_at_least) == (-(-payload * 6 // 4), -(-least * 6 // 4))


TILED = {"f32[64]": "f32[64]{0:T(128)}", "bf16[64]": "bf16[64]{0:T(128)(2,1)}"}


@pytest.mark.parametrize(
    ("operand", "result", "payload", "narrow"),
    [
        ("f32[64]", "f32[64]", 256, None),
        ("f32[64]", "bf16[64]", 256, "bf16"),
        ("bf16[64]", "f32[64]", 256, "bf16"),
        ("bf16[64]", "bf16[64]", 256, "bf16"),
        ("(f32[64], f32[64])", "(f32[64], bf16[64])", 512, None),
        ("(f32[64], bf16[64])", "(bf16[64], f32[64])", 512, None),
    ],
)
def test_on_a_tpu_what_moves_has_the_type_of_the_reducer(analyze, operand, result, payload, narrow):
    elements = [TILED[element] for element in operand.strip("()").split(", ")]
    results = [TILED[element] for element in result.strip("()").split(", ")]
    shape = f"({', '.join(results)})" if len(results) > 1 else results[0]
    parameters = [f"%p{index} = {element} parameter({index})" for index, element in enumerate(elements)]
    names = ", ".join(f"%p{index}" for index in range(len(elements)))
    entry = "\n".join([*parameters, f"ROOT %c = {shape} all-reduce({names}), {ROWS}, to_apply=%sum"])
    [found] = analyze(entry).collectives
    assert (found.payload_bytes, found.payload_bytes_at_least, found.bytes_bound) == (payload, payload, Bound.EXACT)
    assert (found.wire_bytes, found.narrow_type) == (payload * 6 // 4, narrow)
    assert [part.dtype for part in found.operand_shapes] == [part.partition("[")[0] for part in elements]


@pytest.mark.parametrize("layout", ["", "{0}"])
def test_elsewhere_what_moves_has_the_type_of_the_operand(analyze, layout):
    [found] = analyze(reduced(f"bf16[64]{layout}", f"bf16[64]{layout}")).collectives
    assert (found.payload_bytes, found.bytes_bound, found.narrow_type) == (128, Bound.EXACT, None)


def test_a_ragged_all_to_all_sends_between_nothing_and_its_operand(analyze):
    entry = """
    %p = f32[64,8] parameter(0)
    %out = f32[128,8] parameter(1)
    %o = s32[4] parameter(2)
    ROOT %c = f32[128,8] ragged-all-to-all(%p, %out, %o, %o, %o, %o), channel_id=1,
      replica_groups={{0,1,2,3},{4,5,6,7}}
    """
    analysis = analyze(entry)
    [found] = analysis.collectives
    assert (found.kind, found.bytes_bound) == (Kind.RAGGED_ALL_TO_ALL, Bound.AT_MOST)
    assert (found.payload_bytes, found.payload_bytes_at_least) == (2048, 0)
    assert (found.wire_bytes, found.wire_bytes_at_least) == (2048, 0)
    assert analysis.totals.bound is Bound.AT_MOST


def test_unknown_bytes_have_no_bound(analyze):
    entry = '%p = f32[4] parameter(0)\nROOT %k = f32[4] custom-call(%p), custom_call_target="ncclSend"'
    [found] = analyze(entry).collectives
    assert (found.payload_bytes, found.payload_bytes_at_least, found.bytes_bound) == (None, None, Bound.UNKNOWN)
    assert (found.wire_bytes, found.wire_bytes_at_least, found.padded_bytes) == (None, None, None)


@pytest.mark.parametrize(
    ("shape", "payload", "padded"),
    [
        ("f32[3,100]{1,0:T(8,128)}", 1200, 4096),
        ("f32[8,128]{1,0:T(8,128)}", 4096, 4096),
        ("f32[3,100]{1,0}", 1200, 1200),
        ("f32[3,100]", 1200, None),
    ],
)
def test_padding_is_beside_the_payload(analyze, shape, payload, padded):
    [found] = analyze(reduced(shape, shape)).collectives
    assert (found.payload_bytes, found.padded_bytes) == (payload, padded)


def test_the_padding_of_what_a_tpu_widens_is_that_of_the_wider_type(analyze):
    [found] = analyze(reduced("bf16[3]{0:T(256)(128)(2,1)}", "bf16[3]{0:T(256)(128)(2,1)}")).collectives
    assert (found.payload_bytes, found.padded_bytes) == (12, 1024)


def test_the_padding_of_an_all_gather_is_that_of_its_result(analyze):
    entry = f"""
    %p = f32[1,128]{{1,0:T(1,128)}} parameter(0)
    ROOT %c = f32[4,128]{{1,0:T(8,128)}} all-gather(%p), {ROWS}, dimensions={{0}}
    """
    [found] = analyze(entry).collectives
    assert (found.payload_bytes, found.padded_bytes) == (2048, 4096)
