"""The provenance of a collective: its line in the user's program, and who inserted it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise, takewhile
from pathlib import Path, PurePath, PureWindowsPath
from typing import TYPE_CHECKING, NamedTuple

from hloscope.analysis.dataflow import find_consumers, find_producers
from hloscope.base.environment import find_cell, is_launcher
from hloscope.base.errors import Option, say
from hloscope.hlo import HloInstruction, StackFrame
from hloscope.hlo.call_graph import HloGraph
from hloscope.model import SourceFrame
from hloscope.model.vocabulary import Kind, Origin

if TYPE_CHECKING:
    from hloscope.analysis.transfers import Transfer, TransferSite

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
        later = [user for user in transfer.start.users if user.opcode.endswith(("-update", "-done"))]
        return (*own, *later, *(done for each in later for done in each.users if done.opcode.endswith("-done")))
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

_FUNCTION_OF_PRIMITIVE = {
    "psum2": "psum",
    "psum_invariant": "psum",
    "unreduced_psum": "psum",
    "all_gather_invariant": "all_gather",
    "all_gather_reduced": "all_gather",
    "reduce_scatter": "psum_scatter",
    "unreduced_reduce_scatter": "psum_scatter",
}

_SHARD_MAP = re.compile(r"(^|[/(])shard_map([/)]|$)")
_WINDOWED_EINSUM = "windowed_dot_general"
_MADE_REDUCTION = "make_reduction_computation"


def find_authored_kind(op_name: str | None) -> Kind | None:
    """The kind of the user's own collective if `op_name` is one under shard_map; None otherwise."""
    if op_name is None or not _SHARD_MAP.search(op_name):
        return None
    return KIND_OF_PRIMITIVE.get(op_name.rsplit("/", 1)[-1])


def find_jax_name(primitive: str) -> str:
    """The function of `jax.lax` for a primitive, which is what the user wrote."""
    return _FUNCTION_OF_PRIMITIVE.get(primitive, primitive)


def is_gradient(op_name: str | None) -> bool:
    """Returns whether an operation belongs to a backward pass, which has the lines of the forward one.

    Operations that `jax.checkpoint` recomputes there belong to the forward pass.
    """
    return "transpose(" in (op_name or "") and "rematted_computation" not in (op_name or "")


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
    is_product = _WINDOWED_EINSUM in op.computation.name or (own_op_name or "").rsplit("/", 1)[-1] == "dot_general"
    if kind is Kind.COLLECTIVE_PERMUTE and is_product:
        return Origin.REWRITTEN
    if any(name.startswith(_MADE_REDUCTION) for attribute, name in op.called if attribute == "to_apply"):
        return Origin.REWRITTEN
    if any(instruction.frontend_attributes.get("is_spmd_generated") == "true" for instruction in own):
        return Origin.INSERTED
    primitive = find_authored_kind(near_op_name)
    return Origin.UNKNOWN if primitive is None else _compare_with_authored(kind, primitive)


def _compare_with_authored(kind: Kind, primitive: Kind) -> Origin:
    return Origin.AUTHORED if primitive is kind else Origin.REWRITTEN


# ---- places in the user's code, in the shortest form that still identifies them, and the source lines at them
#
# A program captured in this process names the files it was traced from. HLO text may come from anywhere and name any
# files: only those in a folder that the user allows are read.

_COMPREHENSION = re.compile(r"(\.<locals>\.<(list|set|dict)comp>)+$")
"""The suffix of the comprehension functions of Python 3.11, which later versions do not have."""

CodeOf = tuple[str, str | None]
"""A function, identified by its file and name."""

_LIBRARIES = ("site-packages", "dist-packages", "<frozen", "<string>")


def find_users_frame(frames: Sequence[SourceFrame], helpers: Collection[CodeOf] = ()) -> SourceFrame | None:
    """The innermost frame outside libraries and, if there is one, outside helpers.

    If every frame is in a library, it is the innermost of all; None without frames.
    """
    users = [frame for frame in frames if not any(mark in frame.file for mark in _LIBRARIES)]
    own = (frame for frame in users if (frame.file, frame.function) not in helpers)
    return next(own, next(iter(users or frames), None))


_FEWEST_CALLERS = 3
"""Minimum number of calling lines for a function to be considered a helper."""


def find_shared_helpers(stacks: Iterable[Sequence[SourceFrame]], named: Collection[str] = ()) -> frozenset[CodeOf]:
    """The user's functions that are called from too many lines to be a place in the model, such as a linear layer.

    A helper is called from at least three lines, and from more lines than it has itself on these stacks; a function
    that computes a whole block has more.

    Args:
        stacks: Stacks of one program, innermost frame first.
        named: Files and functions that the user declares as helpers: `layers.py`, `linear`, `Linear.__call__`.
    """
    callers: dict[CodeOf, set[tuple[str, int]]] = {}
    own_lines: dict[CodeOf, set[int]] = {}
    found: set[CodeOf] = set()
    for stack in dict.fromkeys(map(tuple, stacks)):
        for frame, caller in pairwise(stack):
            code = (frame.file, frame.function)
            callers.setdefault(code, set()).add((caller.file, caller.line))
            own_lines.setdefault(code, set()).add(frame.line)
        found.update((frame.file, frame.function) for frame in stack if _is_named(frame, named))
    many = (code for code, lines in callers.items() if len(lines) >= max(_FEWEST_CALLERS, len(own_lines[code]) + 1))
    return frozenset(found.union(many))


def _is_named(frame: SourceFrame, named: Collection[str]) -> bool:
    function = frame.function or ""
    return any(name == function or function.endswith(f".{name}") or frame_path(frame).match(name) for name in named)


@lru_cache(maxsize=1024)
def frame_path(frame: SourceFrame) -> PurePath:
    """The file of a frame, with recognizable folders even if the path was written on Windows."""
    is_windows = "\\" in frame.file and "/" not in frame.file
    return PureWindowsPath(frame.file) if is_windows else PurePath(frame.file)


def render_users_line(frames: Sequence[SourceFrame]) -> str | None:
    """Renders `/home/me/models/moe.py:31`: the user's innermost line, ready to be opened; None without frames."""
    frame = find_users_frame(frames)
    return None if frame is None else f"{frame.file}{_render_line_number(frame)}"


def _render_line_number(frame: SourceFrame) -> str:
    """Renders `:31`; empty if only the file and the function are known."""
    return f":{frame.line}" if frame.line else ""


def split_place(place: str) -> tuple[str, int | None]:
    """Splits `moe.py:31` into a file and a line; the line is None if there is none."""
    file, colon, line = place.rpartition(":")
    return (file, int(line)) if colon and line.isdigit() else (place, None)


def short_source(frames: Sequence[SourceFrame]) -> str | None:
    """Renders `moe.py:31 in expert_forward`, `In[44]:3 in step`: no folders or outer functions; None without frames."""
    frame = find_users_frame(frames)
    if frame is None:
        return None
    where = f"{find_cell(frame.file) or frame_path(frame).name}{_render_line_number(frame)}"
    function = _COMPREHENSION.sub("", frame.function or "").rpartition("<locals>.")[2]
    return where if function in ("", "<module>", "<lambda>") else f"{where} in {function}"


_MOST_BYTES = 16 << 20
"""Maximum size of a source file; handwritten code is never longer."""

NOT_READ = "comments that accept findings were not read in "
"""The start of the note on files that may not be read."""

ONLY_UNDER_ROOT = say("files named in HLO text are read only under ", Option("source-root"))
"""The reason why a file named in HLO text was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """The files whose lines may be read.

    Attributes:
        captured: Whether the program was traced in this process, so that all its files may be read.
        root: The folder in which files named in HLO text may be read; None to read none.
    """

    captured: bool = False
    root: Path | None = None

    def line(self, file: str, number: int) -> str | None:
        """A line by its 1-based number, without its end; empty if the file is shorter; None if it may not be read."""
        if self.captured:
            linecache.checkcache(file)  # it may have been edited since it was read for an earlier program
            return linecache.getline(file, number).rstrip("\r\n")
        path = self._allowed(file)
        if path is None:
            return None
        lines = _read_lines(path, path.stat().st_mtime_ns)
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def _allowed(self, file: str) -> Path | None:
        """The file itself, if it is a regular file inside the folder after all links are resolved."""
        if self.root is None or ".." in Path(file).parts:
            return None
        try:
            root = self.root.resolve(strict=True)
            path = (root / file).resolve(strict=True)
            fits = path.is_relative_to(root) and path.is_file() and path.stat().st_size <= _MOST_BYTES
        except (OSError, ValueError, RuntimeError):  # no such file, an invalid name, a cycle of links
            return None
        return path if fits else None


CAPTURED_SOURCES = SourceFiles(captured=True)
NO_SOURCES = SourceFiles()


@lru_cache(maxsize=64)
def _read_lines(path: Path, _written_at: int) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return ()
