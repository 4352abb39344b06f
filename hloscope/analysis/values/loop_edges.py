"""Values that leave an iteration of a loop and enter the next one, or enter a loop and leave it."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.values.readers import Reading
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction


@dataclass(frozen=True, slots=True)
class LoopEdge:
    """One element of what a loop carries, and one of the two ways in which a value becomes another there.

    Attributes:
        loop: The `while`.
        path: The element: tuple indices into what is carried.
        is_inside: Whether the value is that of one iteration and becomes that of the next; else it is the one in front
            of the loop and becomes the one behind it, which it is in a loop without iterations.
    """

    loop: HloInstruction
    path: tuple[int, ...]
    is_inside: bool

    def mirrored(self) -> LoopEdge:
        """The other way of the same element."""
        return LoopEdge(self.loop, self.path, not self.is_inside)


def across_loop_edge(graph: HloGraph, reading: Reading | None) -> tuple[LoopEdge, Value] | None:
    """Where a value comes out that all that is done with it is to hand it to a loop.

    Args:
        graph: The module.
        reading: The only place where the value is read.

    Returns:
        The edge, and the carried element in the next iteration or behind the loop; None when the reader is neither a
        loop nor the result of one's body.
    """
    if reading is None or reading.frames:
        return None
    reader, value = reading.reader, reading.value
    if reader.opcode == "while":
        return LoopEdge(reader, value.path, is_inside=False), Value(reader, value.path)
    loop = graph.only_caller(reader.computation.name)
    if loop is None or loop.opcode != "while" or not (reader.is_root and reader.opcode == "tuple"):
        return None
    body = graph.module.computation(dict(loop.called)["body"])
    places = reader.positions_of(value.instruction)
    if body is not reader.computation or len(places) != 1:
        return None
    path = (places[0], *value.path)
    return LoopEdge(loop, path, is_inside=True), Value(body.parameters[0], path)
