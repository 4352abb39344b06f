"""Custom calls: Pallas kernels that talk to other chips, and targets whose names say that they do."""

from __future__ import annotations

from hloscope.analysis.opcodes import KIND_OF_OPCODE, target_communicates
from hloscope.analysis.spellings.opaque import opaque_transfer
from hloscope.analysis.transfers import Place, Transfer
from hloscope.analysis.vocabulary import Link
from hloscope.hlo import HloInstruction

_PALLAS = "tpu_custom_call"


def communicates(instruction: HloInstruction) -> bool:
    """Whether a custom call talks to other devices.

    `AsyncCollectiveStart` starts the collective that is its operand, which is read by itself; on anything else it
    starts a transfer that is not understood.
    """
    target = instruction.custom_call_target or ""
    if target == _PALLAS:
        return _has_communication(instruction)
    if target == "AsyncCollectiveStart":
        return not any(operand.opcode in KIND_OF_OPCODE for operand in instruction.operands)
    return target_communicates(target)


def read(place: Place) -> Transfer:
    """Makes an opaque transfer: nothing outside the kernel tells what it sends, and to whom."""
    target = place.op.custom_call_target
    if target == _PALLAS:
        return opaque_transfer(
            place, f"the Pallas kernel %{place.op.name} communicates with other chips by itself", Link.ICI
        )
    return opaque_transfer(place, f"custom call {target} of %{place.op.name} communicates by itself")


def _has_communication(instruction: HloInstruction) -> bool:
    config = instruction.backend_config.get("custom_call_config")
    if isinstance(config, dict):
        return config.get("has_communication") in (True, "true")
    return '"has_communication":true' in str(instruction.backend_config.get("raw", "")).replace(" ", "")
