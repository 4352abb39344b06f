"""Programs whose operations have no numbers: an instruction is of whatever operations share its name and its line.

So it is where the compiler wrote a dump for the user, where a name of the user's looks like a number, and where the
program asks this process back while it runs. Several operations may share both, so that nothing found so is certain.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hloscope.analysis.provenance import source_frames
from hloscope.compiler.shardy_model import Identities, Identity, ShardyModule, ShardyOp
from hloscope.hlo import HloModule
from hloscope.shardy.graph import place_of
from hloscope.shardy.names import ends_alike


def with_numbers(module: ShardyModule) -> ShardyModule:
    """The same with a number for each operation; as it is where they have some."""
    if any(op.identity for op in module.ops):
        return module
    return replace(module, ops=tuple(replace(op, identity=(op.index,)) for op in module.ops))


def identities_by_name(shardy: ShardyModule, module: HloModule) -> Identities:
    """The operations that the instructions of a compiled module may be of, by name, and by line where that is known."""
    named: dict[str, list[ShardyOp]] = defaultdict(list)
    for op in shardy.ops:
        if op.op_name and op.identity:
            named[_last_part(op.op_name)].append(op)
    found: dict[str, tuple[Identity, ...]] = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            name = instruction.op_name or ""
            alike = [op for op in named.get(_last_part(name), ()) if ends_alike(op.op_name or "", name)]
            place = place_of(source_frames(instruction)) if alike else None
            here = [op for op in alike if place_of(op.source) == place] or alike
            if here:
                found[instruction.name] = tuple(op.identity for op in here)
    return found


def _last_part(name: str) -> str:
    """The operation at the end of a name."""
    return name.rpartition("/")[2].rstrip(":")
