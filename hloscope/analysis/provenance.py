"""The provenance of a collective: its line in the user's program, and who inserted it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, takewhile
from typing import NamedTuple

from hloscope.analysis.defs import find_producers
from hloscope.analysis.model import SourceFrame
from hloscope.analysis.transfers import Transfer, TransferSite
from hloscope.analysis.uses import find_consumers
from hloscope.analysis.vocabulary import Kind, Origin
from hloscope.hlo import HloInstruction, StackFrame
from hloscope.hlo.call_graph import HloGraph
from hloscope.launchers import is_launcher

_SAYS_NOTHING = frozenset({"parameter", "constant", "tuple", "while", "conditional", "partition-id", "after-all"})
"""Instructions whose metadata names an argument or a whole loop rather than an operation."""


class Provenance(NamedTuple):
    """The source of a collective.

    Attributes:
        op_name: XLA's `op_name`; its own, or that of the instruction `source_of`.
        own_op_name: The `op_name` printed on the collective or on its wrappers; None if there is none.
        source: Source frames, innermost first.
        source_of: The instruction that `source` was taken from; None if it is the collective's own.
        nearest: The consumer or producer that replaces missing metadata; None if the collective has its own.
    """

    op_name: str | None
    own_op_name: str | None
    source: tuple[SourceFrame, ...]
    source_of: str | None
    nearest: HloInstruction | None = None


def find_own_instructions(
    place: TransferSite, transfer: Transfer, chain_ends: Mapping[str, HloInstruction]
) -> tuple[HloInstruction, ...]:
    """The instructions that print one collective: itself, its wrappers from the inside out, and its `-done`.

    Args:
        place: The place of the collective.
        transfer: The transfer that was read there.
        chain_ends: The last fusion of each asynchronous collective fusion, by `chain_id`.
    """
    own = [transfer.op, *reversed(place.context.wrappers)]
    if not transfer.asynchronous:
        return tuple(own)
    if transfer.start.opcode != "fusion":
        return (*own, *_find_completions(transfer.start))
    end = chain_ends.get(transfer.op.frontend_attributes.get("chain_id", ""))
    return tuple(own) if end is None else (*own, end)


def find_provenance(
    graph: HloGraph,
    own: Sequence[HloInstruction],
    start: HloInstruction | None = None,
    end: HloInstruction | None = None,
) -> Provenance:
    """Finds the metadata of instructions that together print one thing, such as a collective.

    Compilers drop metadata when they rewrite. An instruction without any takes that of its nearest consumer, or
    otherwise that of its nearest producer.

    Args:
        graph: The module.
        own: The instructions. The source of the first one, and of `start`, is given without saying from where.
        start: The instruction that takes the operands; by default the first one.
        end: The instruction that yields the result; by default `start`.
    """
    start = start or own[0]
    names = (own[0].name, start.name)
    own_op_name = next((instruction.op_name for instruction in own if instruction.op_name), None)
    printed = ((instruction, find_source_frames(instruction)) for instruction in own)
    written, source = next((found for found in printed if found[1]), (None, ()))
    nearest = _find_nearest_source(graph, start, end or start) if written is None else None
    if written is None:
        written, source = nearest, () if nearest is None else find_source_frames(nearest)
    if written is None:
        return Provenance(op_name=own_op_name, own_op_name=own_op_name, source=(), source_of=None)
    return Provenance(
        op_name=own_op_name or written.op_name,
        own_op_name=own_op_name,
        source=source,
        source_of=None if written.name in names else written.name,
        nearest=nearest,
    )


def find_source_frames(instruction: HloInstruction) -> tuple[SourceFrame, ...]:
    """The user's stack at an instruction, innermost frame first; empty if the text does not state it.

    It ends at the start of the program, whether by hloscope or anything else. JAX traces the body of a loop several
    times, which repeats the enclosing frames. A repeated sequence is kept once.
    """
    if instruction.stack_frame_id:
        frames = instruction.computation.module.frames(instruction.stack_frame_id)
        if frames:
            return _keep_users_frames(frames)
    if instruction.source_file and instruction.source_line and not is_launcher(instruction.source_file):
        return (SourceFrame(file=instruction.source_file, line=instruction.source_line),)
    return ()


@lru_cache(maxsize=1024)
def _keep_users_frames(frames: tuple[StackFrame, ...]) -> tuple[SourceFrame, ...]:
    kept: list[SourceFrame] = []
    for frame in takewhile(lambda frame: not is_launcher(frame.file), frames):
        kept.append(SourceFrame(file=frame.file, line=frame.line, function=frame.function, column=frame.column))
        for length in range(1, len(kept) // 2 + 1):
            if kept[-length:] == kept[-2 * length : -length]:
                del kept[-length:]
                break
    return tuple(kept)


def _find_completions(start: HloInstruction) -> list[HloInstruction]:
    """The `-update` and `-done` instructions of an asynchronous start."""
    following = [user for user in start.users if user.opcode.endswith(("-update", "-done"))]
    return following + [done for update in following for done in update.users if done.opcode.endswith("-done")]


def _find_nearest_source(graph: HloGraph, start: HloInstruction, end: HloInstruction) -> HloInstruction | None:
    """The nearest instruction with a source; otherwise the nearest consumer with an op_name."""
    if not graph.prints_sources:
        return next((instruction for instruction in find_consumers(graph, end) if instruction.op_name), None)
    following = [instruction for instruction in find_consumers(graph, end) if instruction.opcode not in _SAYS_NOTHING]
    before = (instruction for instruction in find_producers(graph, start) if instruction.opcode not in _SAYS_NOTHING)
    written = filter(find_source_frames, chain(following, before))
    return next(written, None) or next((instruction for instruction in following if instruction.op_name), None)


_PRIMITIVES = {
    Kind.ALL_REDUCE: "psum psum2 psum_invariant unreduced_psum pmax pmin",
    Kind.ALL_GATHER: "all_gather all_gather_invariant all_gather_reduced",
    Kind.REDUCE_SCATTER: "reduce_scatter psum_scatter unreduced_reduce_scatter",
    Kind.ALL_TO_ALL: "all_to_all",
    Kind.RAGGED_ALL_TO_ALL: "ragged_all_to_all",
    Kind.COLLECTIVE_PERMUTE: "ppermute psend precv",
    Kind.COLLECTIVE_BROADCAST: "pbroadcast",
}
KIND_OF_PRIMITIVE = {name: kind for kind, names in _PRIMITIVES.items() for name in names.split()}
"""JAX's collective primitives, as they end an `op_name`, with the kind of each."""

_SHARD_MAP = re.compile(r"(^|[/(])shard_map([/)]|$)")
_WINDOWED_EINSUM = "windowed_dot_general"
_MADE_REDUCTION = "make_reduction_computation"


@lru_cache(maxsize=1024)
def find_authored_kind(op_name: str | None) -> Kind | None:
    """The kind of the user's own collective if `op_name` is one under shard_map; None otherwise."""
    if op_name is None or not _SHARD_MAP.search(op_name):
        return None
    return KIND_OF_PRIMITIVE.get(op_name.rsplit("/", 1)[-1])


def find_origin(
    kind: Kind, op: HloInstruction, own: Iterable[HloInstruction], own_op_name: str | None, near_op_name: str | None
) -> Origin:
    """Finds the origin of a collective from its own text.

    Args:
        kind: The kind of the collective.
        op: The collective instruction.
        own: All instructions that print it.
        own_op_name: The `op_name` that one of these prints.
        near_op_name: The `op_name` of the result's user, if the collective prints no metadata and that user is not
        itself a collective: compilers leave it on the slice of a scatter turned into a reduction.

    Returns:
        Authored for a JAX collective under shard_map, rewritten when that one means another kind; rewritten for the
        permutes of a windowed einsum and for reductions that the compiler moved out of a loop; inserted when the
        partitioner says so, which it does since JAX 0.12; else unknown.
    """
    if (primitive := find_authored_kind(own_op_name)) is not None:
        return _compare_with_authored(kind, primitive)
    if kind is Kind.COLLECTIVE_PERMUTE and _is_windowed_einsum(own_op_name, op):
        return Origin.REWRITTEN
    if any(name.startswith(_MADE_REDUCTION) for attribute, name in op.called if attribute == "to_apply"):
        return Origin.REWRITTEN
    if any(instruction.frontend_attributes.get("is_spmd_generated") == "true" for instruction in own):
        return Origin.INSERTED
    primitive = find_authored_kind(near_op_name)
    return Origin.UNKNOWN if primitive is None else _compare_with_authored(kind, primitive)


def _compare_with_authored(kind: Kind, primitive: Kind) -> Origin:
    return Origin.AUTHORED if primitive is kind else Origin.REWRITTEN


def _is_windowed_einsum(op_name: str | None, op: HloInstruction) -> bool:
    if _WINDOWED_EINSUM in op.computation.name:
        return True
    return op_name is not None and op_name.rsplit("/", 1)[-1] == "dot_general"
