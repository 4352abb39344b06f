"""One record per collective, whatever its spelling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hloscope.analysis.executions import Context, count_executions
from hloscope.analysis.hierarchy import join_across_slices
from hloscope.analysis.model import Mesh, Unmodelled
from hloscope.analysis.placement import Layout
from hloscope.analysis.records import Move, Recorder
from hloscope.analysis.spellings import is_worth_reading, may_transfer, read_transfer
from hloscope.analysis.spellings.collectives import starts_chain
from hloscope.analysis.transfers import Place
from hloscope.analysis.unmodelled import not_understood
from hloscope.graph import HloGraph
from hloscope.hlo import HloInstruction, HloModule

_CHAIN = "async_collective_fusion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The collectives of a module.

    Attributes:
        moves: In text order of the computations that hold them, callers first.
        unmodelled: What was not understood.
        hidden: Whether some of that may hide transfers that are not among them.
    """

    moves: tuple[Move, ...]
    unmodelled: tuple[Unmodelled, ...]
    hidden: bool


def find_collectives(graph: HloGraph, mesh: Mesh | None, layout: Layout) -> Found:
    """Finds every place that starts a transfer, walking from ENTRY.

    `channel_id` and `op_name` are no identities: what appears twice runs twice. The one exception is the chain of an
    asynchronous collective fusion, whose later links repeat the collective that its first link starts.

    Args:
        graph: The module.
        mesh: The user's mesh, to name axes.
        layout: How ids in the text are to be read, when the program spans several slices.
    """
    candidates = _candidates(graph.module)
    continued = _continued(graph.module, candidates)
    executions = count_executions(graph, candidates.keys() - continued)
    recorder = Recorder(
        graph=graph,
        mesh=mesh,
        layout=layout,
        chain_ends=_chain_ends(graph, candidates, continued),
        holders=candidates.keys(),
    )
    moves: list[Move] = []
    unmodelled = list(executions.unmodelled)
    for computation in graph.reachable:
        if computation.name not in candidates or computation.name in continued:
            continue
        for context in executions.contexts.get(computation.name, ()):
            for place in _places(graph, candidates[computation.name], context, mesh, layout):
                transfer = read_transfer(place)
                if transfer is not None:
                    moves.append(recorder.record(place, transfer))
                    unmodelled.extend([transfer.unmodelled] if transfer.unmodelled else [])
    lost = [*_unreached(graph, candidates), *_unstarted_chains(candidates, continued)]
    return Found(moves=tuple(join_across_slices(recorder, moves)), unmodelled=(*unmodelled, *lost), hidden=bool(lost))


def _candidates(module: HloModule) -> dict[str, tuple[HloInstruction, ...]]:
    """The instructions that may start a transfer, by the computation that holds them."""
    found: dict[str, list[HloInstruction]] = {}
    for instruction in module.with_opcodes([opcode for opcode in module.opcodes if is_worth_reading(opcode)]):
        if may_transfer(instruction):
            found.setdefault(instruction.computation.name, []).append(instruction)
    return {name: tuple(instructions) for name, instructions in found.items()}


def _places(
    graph: HloGraph, ops: tuple[HloInstruction, ...], context: Context, mesh: Mesh | None, layout: Layout
) -> Iterator[Place]:
    for op in ops:
        yield Place(op=op, context=context, siblings=ops, graph=graph, mesh=mesh, layout=layout)


def _continued(module: HloModule, candidates: Iterable[str]) -> set[str]:
    """The computations that carry on a collective that another one starts."""
    ends = {
        instruction.computation.name
        for instruction in module.with_opcodes(["custom-call"])
        if instruction.custom_call_target == "AsyncCollectiveDone"
    }
    return {name for name in candidates if name in ends or name.startswith(_CHAIN)}


def _unreached(graph: HloGraph, candidates: dict[str, tuple[HloInstruction, ...]]) -> Iterator[Unmodelled]:
    reached = {computation.name for computation in graph.reachable}
    for name, ops in candidates.items():
        if name not in reached:
            yield not_understood(
                ops[0],
                f"computation %{name} holds %{ops[0].name}, but nothing that ENTRY reaches calls it",
                "its transfers are not counted, so totals are a lower bound",
            )


def _chain_ends(
    graph: HloGraph, candidates: dict[str, tuple[HloInstruction, ...]], continued: set[str]
) -> dict[str, HloInstruction]:
    """The fusion that ends each asynchronous collective fusion, by `chain_id`."""
    ends: dict[str, HloInstruction] = {}
    for name in continued:
        caller = graph.only_caller(name)
        if caller is not None and not name.startswith(_CHAIN):
            chains = (op.frontend_attributes.get("chain_id") for op in candidates[name])
            ends.update({chain: caller for chain in chains if chain is not None})
    return ends


def _unstarted_chains(candidates: dict[str, tuple[HloInstruction, ...]], continued: set[str]) -> Iterator[Unmodelled]:
    """Continuations of an asynchronous collective fusion whose start is nowhere in the text."""
    started = {
        op.frontend_attributes.get("chain_id")
        for name in (candidates.keys() - continued if continued else ())
        for op in candidates[name]
        if starts_chain(op)
    }
    for name, ops in candidates.items():
        for op in ops if name in continued else ():
            chain = op.frontend_attributes.get("chain_id")
            if chain not in started:
                yield not_understood(
                    op,
                    f"%{op.name} carries on an asynchronous collective (chain_id {chain}) that nothing starts",
                    "it is not counted, so totals are a lower bound",
                )
