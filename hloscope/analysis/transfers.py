"""The common form that every spelling of a collective is read into, before any arithmetic."""

from __future__ import annotations

from typing import NamedTuple

from hloscope.analysis.executions import Context
from hloscope.analysis.groups import Groups
from hloscope.analysis.megacore import core_of
from hloscope.analysis.model import Mesh, Unmodelled
from hloscope.analysis.opcodes import unsupported
from hloscope.analysis.placement import Layout
from hloscope.analysis.vocabulary import Kind, Link
from hloscope.analysis.volume import arrays
from hloscope.hlo import HloComputation, HloInstruction, Shape
from hloscope.hlo.call_graph import HloGraph


class Transfer(NamedTuple):
    """One place that starts a transfer.

    Attributes:
        kind: What it does.
        start: The instruction that starts it and gives it its name.
        op: The instruction that holds its groups and operands; may lie in a computation that `start` calls.
        operands: Arrays that one device puts in.
        results: Arrays that one device gets out.
        groups: Groups of device ids, for a permute source-target pairs; None when the text does not say.
        received: The `recv` that belongs to a `send`; None for all others.
        operand_bytes: Bytes put in, where the operands' shapes do not say; None to take them from `operands`.
        asynchronous: Whether it is printed as a start and a done.
        link: The network, when the spelling says.
        global_ids: Whether `groups` count the devices of all slices, in text that is one slice's program.
        device_ids: Whether `groups` hold physical device ids, because nothing says the partitions on them.
        unmodelled: What was not understood about it.
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


class Place(NamedTuple):
    """An instruction that may start a transfer, in one of the contexts in which it runs.

    Attributes:
        op: The instruction.
        context: How ENTRY comes to it.
        siblings: All such instructions of its computation, `op` among them.
        graph: The module.
        mesh: The user's mesh.
        layout: How ids in the text are to be read.
    """

    op: HloInstruction
    context: Context
    siblings: tuple[HloInstruction, ...]
    graph: HloGraph
    mesh: Mesh | None
    layout: Layout

    @property
    def computation(self) -> HloComputation:
        """The computation that holds the instruction."""
        return self.op.computation

    @property
    def start(self) -> HloInstruction:
        """The instruction that names the transfer: the outermost fusion or call around it, if it is alone in there.

        What one core of several runs of a fusion may stand there with other transfers.
        """
        if not self.context.wrappers or len(self.siblings) != 1:
            return self.op
        around, *inside = (*self.context.wrappers, self.op)
        return inside[0] if around.opcode == "fusion" and core_of(inside[0]) is not None else around

    @property
    def wrapped_asynchronously(self) -> bool:
        """Whether an asynchronous start runs the computation."""
        return any(wrapper.opcode.endswith("-start") for wrapper in self.context.wrappers)


LOWER_BOUND = "its bytes are not known, so totals are a lower bound"


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
        unmodelled=unsupported(op, what, LOWER_BOUND),
    )
