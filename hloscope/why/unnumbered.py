"""Programs without numbered operations: an instruction is linked to all operations that share its name and line.

These are dumps that the compiler wrote for the user, programs in which a name of the user's looks like a number, and
programs that call back into this process while they run. Several operations may share both, so nothing found this way
is certain.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hloscope.analysis.provenance import find_source_frames
from hloscope.compiler.shardy_model import Identities, Identity, ShardyModule, ShardyOp
from hloscope.hlo import HloModule
from hloscope.shardy.graph import find_source_line
from hloscope.shardy.names import have_matching_ends


def add_numbers(module: ShardyModule) -> ShardyModule:
    """The same module with a number for each operation; unchanged if they already have some."""
    if any(op.identity for op in module.ops):
        return module
    return replace(module, ops=tuple(replace(op, identity=(op.index,)) for op in module.ops))


def identify_by_name(shardy: ShardyModule, module: HloModule) -> Identities:
    """The possible operations of each instruction in a compiled module, by name, and by line if known."""
    named: dict[str, list[ShardyOp]] = defaultdict(list)
    for op in shardy.ops:
        if op.op_name and op.identity:
            named[_find_last_part(op.op_name)].append(op)
    found: dict[str, tuple[Identity, ...]] = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            name = instruction.op_name or ""
            alike = [op for op in named.get(_find_last_part(name), ()) if have_matching_ends(op.op_name or "", name)]
            place = find_source_line(find_source_frames(instruction)) if alike else None
            here = [op for op in alike if find_source_line(op.source) == place] or alike
            if here:
                found[instruction.name] = tuple(op.identity for op in here)
    return found


def _find_last_part(name: str) -> str:
    """The operation at the end of a name."""
    return name.rpartition("/")[2].rstrip(":")
