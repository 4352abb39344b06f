"""The partitioner's warnings as typed records."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hloscope.analysis.model import Mesh, SourceFrame
from hloscope.analysis.model.reason import Rematerialization
from hloscope.analysis.partition_specs import render_partition_spec
from hloscope.compiler.shardy_model import ShardyModule
from hloscope.errors import HloscopeError
from hloscope.hlo import Sharding, parse_module
from hloscope.shardy.graph import ShardyGraph, is_written
from hloscope.shardy.reshards import hlo_type, local_shape
from hloscope.shardy.tensors import render_spec, to_frames

_WARNING = re.compile(
    r"^\[SPMD\] Involuntary full rematerialization\. The compiler cannot go from sharding (?P<before>\{.*?\}) to "
    r"(?P<after>\{.*?\}) efficiently for HLO operation %\S+ = (?P<shape>\w+\[[\d,<=]*\])\S* (?P<opcode>[\w-]+)\("
)
_HANDED_ON = ("parameter", "get-tuple-element", "copy")
"""Instructions that produce nothing new: an argument as it came, or through a barrier."""
_OP_NAME = re.compile(r'metadata=\{[^}]*?op_name="([^"]*)"')
_RANK = re.compile(r"\[([\d,<=]*)\]")


def parse_rematerializations(
    diagnostics: Iterable[str], shardy: ShardyModule | None, mesh: Mesh | None
) -> tuple[Rematerialization, ...]:
    """The warnings about arrays that are replicated only to be cut again.

    Args:
        diagnostics: The messages of the compiler.
        shardy: The module in which the operation's line is found by its name, which is all that the warning has.
        mesh: The user's mesh, in whose axes shardings are written.
    """
    found = ((text, _WARNING.match(text)) for text in diagnostics)
    return tuple(_read_warning(text, match, shardy, mesh) for text, match in found if match)


def _read_warning(text: str, match: re.Match[str], shardy: ShardyModule | None, mesh: Mesh | None) -> Rematerialization:
    named = _OP_NAME.search(text)
    op_name = named.group(1) if named else None
    rank = len([size for size in (_RANK.search(match["shape"]) or match).group(1).split(",") if size])
    before = _render_in_axes(match["before"], rank, mesh)
    if op_name is None and match["opcode"] in _HANDED_ON:
        op_name = _find_warned_argument(match["shape"], before, shardy)
    return Rematerialization(
        op_name=op_name,
        opcode=match["opcode"],
        shape=match["shape"],
        before=before,
        after=_render_in_axes(match["after"], rank, mesh),
        source=_find_warned_source(op_name, shardy) or _find_constraint_source(op_name, shardy),
        text=text,
    )


def _find_warned_argument(shape: str, before: str, shardy: ShardyModule | None) -> str | None:
    """The only argument that all arrays of this shape and sharding are, by XLA's name; None for several.

    The warning has a parameter's number, but not its computation.
    """
    if shardy is None:
        return None
    graph, mesh = ShardyGraph(shardy), dict(shardy.mesh)
    names = set()
    for value in shardy.values:
        if value.sharding is None or render_spec(value.sharding) != before:
            continue
        local = ",".join(map(str, local_shape(value.shape, value.sharding, mesh)))
        if f"{hlo_type(value.element_type)}[{local}]" == shape:
            root, rearranged = graph.root(value)
            names.add(root.name if graph.is_program_argument(root) and not rearranged else None)
    return names.pop() if len(names) == 1 else None


def _render_in_axes(text: str, rank: int, mesh: Mesh | None) -> str:
    sharding = None if mesh is None else _parse_sharding(text, rank, mesh.device_count)
    spec = None if sharding is None or mesh is None else render_partition_spec(sharding, rank, mesh)
    return text if spec is None else spec


def _parse_sharding(text: str, rank: int, devices: int) -> Sharding | None:
    """A sharding, read as that of a module's only parameter; None if it is not understood."""
    shape = f"f32[{','.join('1' * rank)}]"
    module = (
        f"HloModule m, num_partitions={devices}\nENTRY e {{\n  ROOT p = {shape} parameter(0), sharding={text}\n}}\n"
    )
    try:
        return parse_module(module, name="sharding").entry.root.sharding
    except HloscopeError:
        return None


def _find_warned_source(op_name: str | None, shardy: ShardyModule | None) -> tuple[SourceFrame, ...]:
    if op_name is None or shardy is None:
        return ()
    ops = (op for op in shardy.ops if op.op_name and op.source and op_name.endswith(op.op_name))
    return next((to_frames(op.source) for op in ops), ())


def _find_constraint_source(name: str | None, shardy: ShardyModule | None) -> tuple[SourceFrame, ...]:
    """The line of the only constraint that an argument of this name goes into unchanged; empty for none or several."""
    if name is None or shardy is None:
        return ()
    graph = ShardyGraph(shardy)
    found = [
        user
        for value in shardy.values
        if graph.is_program_argument(value) and value.name == name
        for user, _ in graph.users(value)
        if is_written(user)
    ]
    return to_frames(found[0].source) if len(found) == 1 else ()
