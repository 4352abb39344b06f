"""How a reduction combines two elements, and in which type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hloscope.analysis.volume import narrower
from hloscope.hlo import HloComputation, HloInstruction, Shape

_SAYS = "_xla_megascale_reduce_operation"
_OPCODE_OF_WORD = {"SUM": "add", "MAX": "maximum", "MIN": "minimum", "PROD": "multiply"}
"""How the words begin that say between slices what the opcodes of a reducer say within one."""
_ALL_REDUCES = frozenset({"all-reduce", "all-reduce-start"})
_OPCODES = frozenset({"add", "maximum", "minimum", "multiply", "and", "or", "xor"})
_CHANGES_NOTHING = frozenset({"parameter", "convert", "bitcast", "copy", "get-tuple-element", "tuple"})


def says_reduction(op: HloInstruction) -> bool:
    """Whether a transfer between slices names its reduction."""
    return _SAYS in op.frontend_attributes


def reduction_of(op: HloInstruction) -> str | None:
    """The opcode that an `all-reduce`, a `reduce-scatter` or a transfer between slices combines elements with.

    Returns:
        `add`, `maximum`, …; None for what reduces nothing, and for a reducer that is more than one operation.
    """
    said = op.frontend_attributes.get(_SAYS)
    if said is not None:
        return next((opcode for word, opcode in _OPCODE_OF_WORD.items() if said.startswith(word)), None)
    reducer = _reducer_of(op)
    opcodes = set() if reducer is None else {one.opcode for one in reducer.instructions} - _CHANGES_NOTHING
    return opcodes.pop() if len(opcodes) == 1 and opcodes <= _OPCODES else None


def as_reduced(op: HloInstruction, shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """The arrays of a collective in the element type that they have on the wire.

    TPUs reduce, and send, in the type of the reducer, and convert on the way in and out: where it is wider than that of
    an operand or a result, the compiler has folded a conversion into the `all-reduce`. For all others, and in text
    without the tiles of a TPU, the arrays as they are.

    Source: the DMAs and buffers in the low-level code that libtpu 0.0.42.1 dumps for v4, v5e, v5p and v6e. All-reduces
        with a reducer of f32 send as much from f32 to bf16, from bf16 to f32 and from bf16 to bf16 as from f32 to f32,
        twice what they send with a reducer of bf16.
    """
    reducer = _reducer_of(op) if op.opcode in _ALL_REDUCES else None
    if reducer is None or not all(leaf.layout is not None and leaf.layout.tiles for leaf in op.shape.leaves()):
        return tuple(shapes)
    wide = reducer.root.shape.element_type
    return tuple(
        replace(shape, element_type=wide) if narrower(shape.element_type, wide) is not None else shape
        for shape in shapes
    )


def narrower_side(op: HloInstruction, *sides: Iterable[Shape]) -> str | None:
    """The element type in which a TPU reduction takes in or hands out all arrays, narrower than what it sends."""
    for side in sides:
        shapes = tuple(side)
        pairs = zip(shapes, as_reduced(op, shapes), strict=True)
        types = {narrower(shape.element_type, sent.element_type) for shape, sent in pairs}
        if len(types) == 1 and None not in types:
            return types.pop()
    return None


def _reducer_of(op: HloInstruction) -> HloComputation | None:
    reducers = [name for attribute, name in op.called if attribute == "to_apply"]
    return op.computation.module.computation(reducers[0]) if len(reducers) == 1 else None
