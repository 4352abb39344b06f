"""The large arrays that a compiled program makes on the way: what they are a device's part of."""

from __future__ import annotations

import pytest

from hloscope.model import IntermediateFact
from hloscope.model.capture import ShardyModule, ShardyOp, ShardyValue
from hloscope.why.shardings import attach_shardings


def test_a_large_array_has_its_whole_shape_and_sharding(explained):
    found = explained("wide_layer.py:layer").intermediates
    [hidden] = (one for one in found if one.local_shape == (512, 4096))
    assert (hidden.global_shape, hidden.sharding) == ((2048, 8192), "P('X', 'Y')")
    assert hidden.source[0].line == 12


def test_what_only_one_device_has_is_cut_by_nothing(explained):
    found = explained("wide_layer.py:asks_the_host").intermediates
    assert {(one.local_shape, one.global_shape) for one in found if one.sharding is not None} <= {((64,), (64,))}


def module_of(*shardings):
    """A program in which one operation after the other makes a value of sixteen elements, sharded like this."""
    values = tuple(
        ShardyValue(index=at, shape=(16,), element_type="f32", sharding=sharding, origins={}, owner=at, number=0)
        for at, sharding in enumerate(shardings)
    )
    ops = tuple(
        ShardyOp(index=at, kind="stablehlo.sine", operands=(), results=(at,), op_name="jit(f)/sin")
        for at in range(len(shardings))
    )
    return ShardyModule(mesh={"X": 2, "Y": 2}, values=values, ops=ops, main=0)


def array_of(local_shape, *, dtype="f32", op_name="jit(f)/sin"):
    return IntermediateFact(
        name="sine.1",
        computation="main",
        line=3,
        dtype=dtype,
        global_shape=None,
        local_shape=local_shape,
        bytes_per_device=32,
        padded_bytes_per_device=None,
        memory_space=0,
        op_name=op_name,
    )


@pytest.mark.parametrize(
    ("shardings", "array", "whole"),
    [
        ([(("X",),)], array_of((8,)), ((16,), "P('X')")),
        ([(("X",),)], array_of((8,), dtype="bf16"), ((16,), "P('X')")),
        ([((),)], array_of((16,)), ((16,), "P(None)")),
        ([(("X",),), (("X",),)], array_of((8,)), ((16,), "P('X')")),
        ([(("X",),), (("Y",),)], array_of((8,)), (None, None)),
        ([(("X",),)], array_of((4,)), (None, None)),
        ([(("X",),)], array_of((8,), op_name="jit(f)/cos"), (None, None)),
        ([(("X",),)], array_of((8,), op_name=None), (None, None)),
    ],
)
def test_only_what_is_one_value_for_certain_is_told(shardings, array, whole):
    [found] = attach_shardings([array], module_of(*shardings))
    assert (found.global_shape, found.sharding) == whole
