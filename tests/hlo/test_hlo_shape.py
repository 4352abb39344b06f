"""Shapes, layouts and bytes."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.base.units import count_element_bits
from hloscope.hlo import Layout, Shape
from hloscope.hlo.grammar import load_language


def shape_of(text):
    return load_language().read("shape", text).shape


@st.composite
def array_texts(draw):
    """The text of an array, and the shape it should be."""
    element_type = draw(st.sampled_from(["f32", "bf16", "s4", "pred", "f8e4m3fn", "c128"]))
    sizes = draw(st.lists(st.integers(0, 300), max_size=5))
    dynamic = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    order = draw(st.permutations(range(len(sizes))))
    tiles = draw(st.lists(st.lists(st.integers(1, 128), min_size=1, max_size=2), max_size=2)) if sizes else []
    space = draw(st.integers(0, 6))
    blank = draw(st.sampled_from(["", " "]))
    dimensions = f"{blank},{blank}".join(f"{'<=' * flag}{size}" for size, flag in zip(sizes, dynamic, strict=True))
    items = "".join(["T"] * bool(tiles) + [f"({','.join(map(str, tile))})" for tile in tiles])
    items += f"S({space})" if space else ""
    text = f"{element_type}[{dimensions}]"
    if sizes:
        text += f"{{{','.join(map(str, order))}{':' * bool(items)}{items}}}"
    elif items:
        text += f"{{:{items}}}"
    layout = Layout(minor_to_major=tuple(order), tiles=tuple(map(tuple, tiles)), memory_space=space)
    return text, Shape(
        element_type=element_type,
        dimensions=tuple(sizes),
        dynamic=tuple(dynamic),
        layout=layout if sizes or items else None,
    )


@given(array_texts())
def test_arrays(case):
    text, shape = case
    assert shape_of(text) == shape
    assert shape_of(str(shape)).dimensions == shape.dimensions
    assert shape.element_count == prod(shape.dimensions)
    assert shape.byte_size == -(-count_element_bits(shape.element_type) * prod(shape.dimensions) // 8)
    assert shape.padded_byte_size >= shape.byte_size


@given(st.lists(array_texts(), max_size=12))
def test_tuples(cases):
    text = ", ".join(f"/*index={index}*/{text}" if index % 5 == 0 else text for index, (text, _) in enumerate(cases))
    shape = shape_of(f"({text})")
    assert shape.is_tuple
    assert shape.elements == tuple(element for _, element in cases)
    assert list(shape.leaves()) == list(shape.elements)
    assert shape.byte_size == sum(element.byte_size for _, element in cases)
    assert shape.element_count == sum(element.element_count for _, element in cases)


@pytest.mark.parametrize(
    ("text", "logical", "padded"),
    [
        ("bf16[8,128]", 2048, 2048),
        ("bf16[8,128]{1,0:T(8,128)(2,1)}", 2048, 2048),
        ("bf16[3,100]{1,0:T(8,128)(2,1)}", 600, 2048),
        ("bf16[100,3]{0,1:T(8,128)(2,1)}", 600, 2048),
        ("f32[2,3,100]{2,1,0:T(8,128)}", 2400, 8192),
        ("f32[]{:T(128)}", 4, 512),
        ("s4[8,128]{1,0:T(8,128)(8,1)E(4)}", 512, 512),
        ("f32[100]{0:T(1024)}", 400, 4096),
        ("f32[2,3,100]{2,1,0:T(*,128)}", 2400, 3072),
        ("f32[10]{0:L(16)}", 40, 64),
        ("f32[0,128]{1,0:T(8,128)}", 0, 0),
        ("token[]", 0, 0),
        ("b(f32[4]{0})", 16, 16),
        ("(f32[4], (bf16[2], s32[]))", 24, 24),
        ("()", 0, 0),
        ("newtype[4]{0:T(128)}", None, None),
        ("(f32[4], newtype[4])", None, None),
        ("f32[?]", None, None),
        ("f32[<=8]", 32, 32),
    ],
)
def test_bytes(text, logical, padded):
    shape = shape_of(text)
    assert (shape.byte_size, shape.padded_byte_size) == (logical, padded)


def test_leaves_of_nested_tuples_and_buffers():
    shape = shape_of("((f32[1], ()), b(f32[2]), token[])")
    assert [str(leaf) for leaf in shape.leaves()] == ["f32[1]", "b(f32[2])", "token[]"]
    assert shape.element_count == 1 + 2 + 1


def test_shapes_are_values():
    assert len({shape_of("f32[2]{0}"), shape_of("f32[ 2 ]{0}"), shape_of("f32[2]")}) == 2


def test_a_tile_of_nothing_has_no_known_size():
    """XLA reads it."""
    shape = load_language().parse("shape", "f32[2]{0:T(0)}").shape
    assert shape.byte_size == 8
    assert shape.padded_byte_size is None
