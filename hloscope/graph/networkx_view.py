"""One computation as a networkx graph, for exports and for questions that need graph algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.hlo import HloComputation

if TYPE_CHECKING:
    import networkx


def to_networkx(computation: HloComputation) -> networkx.MultiDiGraph:
    """The data flow of a computation.

    Args:
        computation: Any computation of a module.

    Returns:
        A directed graph whose nodes are instruction names with the attributes `opcode`, `shape`, `line`, `is_root`
        and `op_name` (empty when there is none), in text order; an edge for every operand, with the attribute
        `operand` (its position), from the operand to its user.
    """
    import networkx

    graph = networkx.MultiDiGraph(name=computation.name)
    for instruction in computation.instructions:
        graph.add_node(
            instruction.name,
            opcode=instruction.opcode,
            shape=str(instruction.shape),
            line=instruction.line,
            is_root=instruction.is_root,
            op_name=instruction.op_name or "",
        )
    for instruction in computation.instructions:
        for position, operand in enumerate(instruction.operand_names):
            graph.add_edge(operand, instruction.name, operand=position)
    return graph
