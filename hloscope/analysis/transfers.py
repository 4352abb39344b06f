"""The common form of all spellings of a collective, before any arithmetic."""

from __future__ import annotations

from typing import NamedTuple

from hloscope.analysis.executions import Context
from hloscope.analysis.groups import Groups
from hloscope.analysis.megacore import read_core_id
from hloscope.analysis.model import Mesh, Unmodelled
from hloscope.analysis.opcodes import make_unmodelled
from hloscope.analysis.placement import Numbering
from hloscope.analysis.vocabulary import Kind, Link
from hloscope.analysis.volume import flatten_arrays
from hloscope.hlo import HloComputation, HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph


class Transfer(NamedTuple):
    """One place that starts a transfer.

    Attributes:
        kind: Kind of transfer.
        start: The instruction that starts it and gives it its name.
        op: The instruction that holds its groups and operands; may lie in a computation that `start` calls.
        operands: Arrays that one device contributes.
        results: Arrays that one device receives.
        groups: Groups of device ids, for a permute source-target pairs; None if the text does not state them.
        received: The `recv` that belongs to a `send`; None for all others.
        operand_bytes: Bytes contributed, if the operands' shapes do not determine them; None to use `operands`.
        asynchronous: Whether it is printed as a start and a done instruction.
        link: The network, if the spelling determines it.
        global_ids: Whether `groups` count the devices of all slices, in text that is one slice's program.
        device_ids: Whether `groups` hold physical device ids, because their partitions are unknown.
        unmodelled: The part of it that was not understood.
    """

    kind: Kind
    start: HloInstruction
    op: HloInstruction
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    groups: Groups | None
    received: HloInstruction | None = None
    operand_bytes: int | None = None
    asynchronous: bool = False
    link: Link | None = None
    global_ids: bool = False
    device_ids: bool = False
    unmodelled: Unmodelled | None = None


class TransferSite(NamedTuple):
    """An instruction that may start a transfer, in one of the contexts in which it runs.

    Attributes:
        op: The instruction.
        context: The way in which ENTRY reaches it.
        siblings: All such instructions of its computation, including `op`.
        graph: The module.
        mesh: The user's mesh.
        layout: The meaning of device ids in the text.
    """

    op: HloInstruction
    context: Context
    siblings: tuple[HloInstruction, ...]
    graph: HloGraph
    mesh: Mesh | None
    layout: Numbering

    @property
    def computation(self) -> HloComputation:
        """The computation that holds the instruction."""
        return self.op.computation

    @property
    def start(self) -> HloInstruction:
        """The instruction that names the transfer: the outermost fusion or call around it, if it is alone in that.

        In a fusion with separate operations for each core, other transfers may accompany it.
        """
        if not self.context.wrappers or len(self.siblings) != 1:
            return self.op
        around, *inside = (*self.context.wrappers, self.op)
        return inside[0] if around.opcode == "fusion" and read_core_id(inside[0]) is not None else around

    @property
    def wrapped_asynchronously(self) -> bool:
        """True if an asynchronous start runs the computation."""
        return any(wrapper.opcode.endswith("-start") for wrapper in self.context.wrappers)


LOWER_BOUND = "its bytes are not known, so totals are a lower bound"


def make_opaque(place: TransferSite, what: str, link: Link | None = None) -> Transfer:
    """A transfer of which nothing but the place is known."""
    op = place.op
    return Transfer(
        kind=Kind.OPAQUE,
        start=place.start,
        op=op,
        operands=flatten_arrays(operand.shape for operand in op.operands),
        results=flatten_arrays([op.shape]),
        groups=None,
        asynchronous=op.opcode.endswith("-start") or place.wrapped_asynchronously,
        link=link,
        unmodelled=make_unmodelled(op, what, LOWER_BOUND),
    )
