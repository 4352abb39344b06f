"""How a reduction combines two elements."""

from __future__ import annotations

from hloscope.hlo import HloInstruction

_SAYS = "_xla_megascale_reduce_operation"
_OPCODE_OF_WORD = {"SUM": "add", "MAX": "maximum", "MIN": "minimum", "PROD": "multiply"}
"""How the words begin that say between slices what the opcodes of a reducer say within one."""
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
    reducers = [name for attribute, name in op.called if attribute == "to_apply"]
    if len(reducers) != 1:
        return None
    reducer = op.computation.module.computation(reducers[0])
    opcodes = {one.opcode for one in reducer.instructions} - _CHANGES_NOTHING
    return opcodes.pop() if len(opcodes) == 1 and opcodes <= _OPCODES else None
