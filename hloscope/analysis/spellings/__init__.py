"""The ways in which compiled text spells communication, one file per family.

Each family has `read(place) -> Transfer | None`: None means that the instruction starts no transfer between devices.
"""

from __future__ import annotations

from hloscope.analysis.opcodes import KIND_OF_OPCODE, base_opcode
from hloscope.analysis.spellings import collectives, custom_calls, opaque, send_recv
from hloscope.analysis.transfers import Place, Transfer
from hloscope.hlo import HloInstruction

__all__ = ["may_transfer", "read_transfer"]


def may_transfer(instruction: HloInstruction) -> bool:
    """Whether an instruction has to be read; cheap, because it is asked of every instruction of a module."""
    opcode = instruction.opcode
    if opcode in ("custom-call", "custom-call-start"):
        return custom_calls.communicates(instruction)
    return opaque.looks_like_transfer(opcode)


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
