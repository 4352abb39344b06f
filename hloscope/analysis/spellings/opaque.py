"""Whatever looks like communication and is not understood: reported, never skipped."""

from __future__ import annotations

from hloscope.analysis.opcodes import starts_transfer
from hloscope.analysis.transfers import Place, Transfer
from hloscope.analysis.unmodelled import not_understood
from hloscope.analysis.vocabulary import Kind, Link
from hloscope.analysis.volume import arrays

LOWER_BOUND = "its bytes are not known, so totals are a lower bound"


def looks_like_transfer(opcode: str) -> bool:
    """Whether the opcode is a collective's or resembles one."""
    return starts_transfer(opcode)


def read(place: Place) -> Transfer:
    """Makes an opaque transfer of an instruction whose opcode is not known."""
    return opaque_transfer(place, f"opcode {place.op.opcode} of %{place.op.name} looks like communication")


def opaque_transfer(place: Place, what: str, link: Link | None = None) -> Transfer:
    """A transfer of which only the place is known."""
    op = place.op
    return Transfer(
        kind=Kind.OPAQUE,
        start=place.start,
        op=op,
        operands=arrays(operand.shape for operand in op.operands),
        results=arrays([op.shape]),
        groups=None,
        asynchronous=op.opcode.endswith("-start") or place.wrapped_asynchronously,
        link=link,
        unmodelled=not_understood(op, what, LOWER_BOUND),
    )
