"""The ways in which compiled text spells communication, one file per family.

Each family has `read(place) -> Transfer | None`: None means that the instruction starts no transfer between devices.
"""

from __future__ import annotations

from hloscope.analysis.opcodes import KIND_OF_OPCODE, base_opcode
from hloscope.analysis.spellings import collectives, custom_calls, opaque, send_recv
from hloscope.analysis.transfers import Place, Transfer
from hloscope.hlo import HloInstruction

__all__ = ["is_worth_reading", "may_transfer", "read_transfer"]

_CUSTOM_CALLS = frozenset({"custom-call", "custom-call-start"})


def is_worth_reading(opcode: str) -> bool:
    """Whether an instruction with this opcode may start a transfer."""
    return opcode in _CUSTOM_CALLS or opaque.looks_like_transfer(opcode)


def may_transfer(instruction: HloInstruction) -> bool:
    """Whether an instruction may start a transfer, so that it has to be read."""
    if instruction.opcode in _CUSTOM_CALLS:
        return custom_calls.communicates(instruction)
    return opaque.looks_like_transfer(instruction.opcode)


def read_transfer(place: Place) -> Transfer | None:
    """Reads one instruction for which `may_transfer` holds."""
    opcode = place.op.opcode
    if base_opcode(opcode) in KIND_OF_OPCODE:
        return collectives.read(place)
    if opcode in ("send", "recv"):
        return send_recv.read(place)
    if base_opcode(opcode) == "custom-call":
        return custom_calls.read(place)
    return opaque.read(place)
