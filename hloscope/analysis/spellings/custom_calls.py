"""Custom calls: Pallas kernels that talk to other chips, and targets whose names say that they do."""

from __future__ import annotations

import re
from dataclasses import replace

from hloscope.analysis.custom_call_targets import Talk, talk_of
from hloscope.analysis.opcodes import KIND_OF_OPCODE
from hloscope.analysis.spellings.opaque import opaque_transfer
from hloscope.analysis.transfers import Place, Transfer
from hloscope.analysis.values.handing_on import origin
from hloscope.analysis.vocabulary import Link
from hloscope.graph import Value
from hloscope.hlo import HloInstruction

_PALLAS = "tpu_custom_call"
_LATER = re.compile(r"(?P<stem>.*?)(?P<gap>[-_.]?)(?:done|update)", re.IGNORECASE)
_COMMUNICATION = re.compile(r'"has_communication"\s*:\s*"?(true|false)')


def communicates(instruction: HloInstruction) -> bool:
    """Whether a custom call talks to other devices.

    `AsyncCollectiveStart` starts the collective that is its operand, which is read by itself; on anything else it
    starts a transfer that is not understood.
    """
    target = instruction.custom_call_target or ""
    if target == _PALLAS:
        return _has_communication(instruction) is True
    if target == "AsyncCollectiveStart":
        return not any(operand.opcode in KIND_OF_OPCODE for operand in instruction.operands)
    return talk_of(target) is Talk.NAMED and not _goes_on(instruction, target)


def _goes_on(instruction: HloInstruction, target: str) -> bool:
    """Whether a target such as `all-gather-done` ends, or carries on, what another custom call has started."""
    match = _LATER.fullmatch(target)
    if match is None:
        return False
    made = (origin(Value(operand)).instruction for operand in instruction.operands)
    stem = match["stem"]
    wanted = {stem.lower(), *(f"{stem}{match['gap']}{word}".lower() for word in ("start", "update"))}
    return any((one.custom_call_target or "").lower() in wanted for one in made)


def may_communicate(instruction: HloInstruction) -> str | None:
    """Why a custom call may talk to other devices although nothing says so; None when it is known whether it does."""
    target = instruction.custom_call_target
    if target == _PALLAS:
        kernel = f"the Pallas kernel %{instruction.name}"
        silent = _has_communication(instruction) is None
        return f"{kernel} does not say whether it communicates with other chips" if silent else None
    if target is None:
        return f"custom call %{instruction.name} without a target may communicate"
    return f"custom call to {target} may communicate" if talk_of(target) is Talk.UNKNOWN else None


def read(place: Place) -> Transfer:
    """Makes an opaque transfer: nothing outside the kernel tells what it sends, and to whom."""
    target = place.op.custom_call_target
    if target == _PALLAS:
        return opaque_transfer(
            place, f"the Pallas kernel %{place.op.name} communicates with other chips by itself", Link.ICI
        )
    found = opaque_transfer(place, f"custom call {target} of %{place.op.name} communicates by itself")
    ends_later = any(_goes_on(user, user.custom_call_target or "") for user in place.op.users)
    return replace(found, asynchronous=True) if ends_later else found


def _has_communication(instruction: HloInstruction) -> bool | None:
    """What a Pallas kernel's configuration says; None when there is none, or it cannot be read to its end.

    Source: `CustomCallBackendConfig.to_json` in jax/_src/tpu_custom_call.py, which writes the key only when it is true.
    """
    config = instruction.backend_config.get("custom_call_config")
    if isinstance(config, dict):
        return {"true": True, "false": False}.get(str(config.get("has_communication", False)).lower())
    said = _COMMUNICATION.search(str(instruction.backend_config.get("raw", "")))
    return None if said is None else said[1] == "true"
