"""The analysis stage: turns a parsed module into an `Analysis`, and reports unread text and signs of the wrong text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, permutations

from hloscope.analysis.arrays import find_arguments, find_largest_intermediates, find_outputs
from hloscope.analysis.collectives import FoundCollectives, find_collectives
from hloscope.analysis.compute import find_kernels, find_matmuls
from hloscope.analysis.executions import make_unmodelled
from hloscope.analysis.groups import (
    Groups,
    Placement,
    count_shardy_devices,
    find_axes_of_groups,
    find_numbering,
    read_mesh,
    read_meshes,
)
from hloscope.analysis.model_parts import attach_parts
from hloscope.analysis.spellings import CUSTOM_CALLS, explain_suspicion
from hloscope.analysis.totals import compute_totals, sort_largest_first
from hloscope.hlo import HloInstruction, HloModule, Sharding, pause_collector
from hloscope.hlo.call_graph import find_call_graph, find_entry
from hloscope.model import Analysis, Collective, Collectives, Memory, Mesh, Unmodelled
from hloscope.model.analysis import summarize_memory
from hloscope.model.capture import Capture
from hloscope.model.vocabulary import CompileStage, Kind

_ONLY_TPU_PRINTS = ("estimated_cycles", "used_scoped_memory_configs")


def is_from_tpu(module: HloModule) -> bool:
    """Returns whether the TPU compiler printed a text."""
    return any(module.mentions(word) for word in _ONLY_TPU_PRINTS)


def analyze_program(program: Capture, module: HloModule, *, target: str) -> Analysis:
    """Finds what a compiled program moves and needs, with the names and the placement that its compile knows.

    Args:
        program: The results of its compile.
        module: The parsed text.
        target: The target as the user named it.
    """
    partitions, device_ids = program.compiled.slice_of_partition, program.compiled.device_ids or None
    found = analyze_module(
        module,
        target=target,
        mesh=program.mesh,
        devices_per_slice=program.devices_per_slice,
        placement=Placement(partitions, device_ids) if partitions else None,
        stage=program.compiled.stage,
    )
    return replace(found, memory=summarize_memory(program))


@pause_collector()
def analyze_module(
    module: HloModule,
    *,
    target: str,
    mesh: Mesh | None,
    devices_per_slice: int | None = None,
    placement: Placement | None = None,
    stage: CompileStage = CompileStage.TEXT,
) -> Analysis:
    """Finds what a compiled module moves.

    Args:
        module: The parsed module.
        target: The target as the user named it, for display.
        mesh: The user's mesh; None to use the names in the text.
        devices_per_slice: Devices of one slice when the program runs on several; None if there is only one.
        placement: The slice and the device of each partition when the program runs on several slices. By default each
            slice has as many consecutive partitions as the text counts, and devices cannot be known.
        stage: The stage of its compile.

    Returns:
        The facts that the text holds. Slice, memory and versions are left to the caller that compiled it.
    """
    mesh = read_mesh(module) if mesh is None else mesh
    layout = find_numbering(module.device_count, mesh, devices_per_slice=devices_per_slice, placement=placement)
    graph = find_call_graph(module)
    found = find_collectives(graph, mesh, layout)
    whole = find_unpartitioned(module, mesh, one_slice=layout.one_slice)
    alone = None if whole or found.moves else find_one_device(module, mesh, one_slice=layout.one_slice)
    doubts = (doubt for doubt in (whole, alone) if doubt is not None)
    unread = (*find_unread_instructions(module), *_report_truncation(module), *doubts)
    return Analysis(
        target=target,
        module=module.name,
        stage=stage,
        slice=None,
        mesh=mesh,
        num_partitions=module.num_partitions,
        collectives=Collectives(
            sort_largest_first(attach_parts(graph, [(move.collective, move.results) for move in found.moves]))
        ),
        totals=compute_totals(
            [move.collective for move in found.moves],
            [move.reaches for move in found.moves],
            hidden=found.hidden or bool(unread),
        ),
        arguments=find_arguments(module, mesh, partitioned=whole is None),
        outputs=find_outputs(module, mesh, partitioned=whole is None),
        intermediates=find_largest_intermediates(graph) if whole is None else (),
        matmuls=find_matmuls(graph),
        kernels=find_kernels(graph),
        memory=Memory(),
        unmodelled=tuple(dict.fromkeys((*found.unmodelled, *unread))),
        notes=tuple(_find_notes(module, mesh, found, assumed=layout.guessed)),
    )


@pause_collector()
def list_collectives(module: HloModule, mesh: Mesh | None) -> tuple[tuple[Collective, int | None], ...]:
    """The collectives of a module with their channels, in text order."""
    mesh = read_mesh(module) if mesh is None else mesh
    layout = find_numbering(module.device_count, mesh)
    found = find_collectives(find_call_graph(module), mesh, layout)
    in_order = sorted(found.moves, key=lambda move: move.collective.line)
    return tuple((move.collective, move.transfer.op.channel_id) for move in in_order)


def _report_truncation(module: HloModule) -> Iterator[Unmodelled]:
    last = module.computations[-1].name
    if module.truncated and find_entry(module) is None:
        what = f"the text is cut off before ENTRY, after %{last}, its last whole computation"
        effect = (
            "how often the remaining computations run is unknown: each is counted once, so every count and total is a "
            "lower bound; arguments, outputs and intermediates are not known"
        )
    elif module.truncated:
        what = f"the text is cut off, or broken, after %{last}, its last whole computation"
        effect = "what came after it is not counted, so totals are lower bounds"
    elif _has_lost_entry(module):
        what = f"no computation is marked ENTRY: %{last}, the last one, is used as the entry"
        effect = (
            "the text is likely cut off between two computations; what came after is not counted, so totals are lower "
            "bounds"
        )
    else:
        return
    yield Unmodelled(what=what, effect=effect, computation=last)


def _has_lost_entry(module: HloModule) -> bool:
    """Returns whether a compiler's ENTRY is missing; without one, hand-written text begins in its last part."""
    if module.mentions("ENTRY"):
        return False
    is_called = {
        name
        for computation in module.computations
        for instruction in computation.calling
        for _, name in instruction.called
    }
    alone = len(is_called) < len(module.computations) - 1
    return "entry_computation_layout" in module.header or alone


# ---- what the user should know about the text

_NAMED = 3
"""Number of instructions that a note names before it counts the rest."""


def _find_notes(module: HloModule, mesh: Mesh | None, found: FoundCollectives, *, assumed: bool) -> Iterator[str]:
    """The notes on a module, one sentence each.

    Args:
        module: The module.
        mesh: The user's mesh, or the one that the text names.
        found: Its collectives.
        assumed: Whether the part of the mesh that a slice holds is only assumed.
    """
    if mesh is None:
        return
    devices = module.device_count
    if devices > 1 and mesh.device_count % devices:
        yield (
            f"the mesh has {mesh.device_count} devices and the program has {devices} partitions, "
            "so collectives cannot be named by mesh axes"
        )
        return
    if mesh.axis_types is None:
        yield from _find_doubts_about_mesh(module, mesh, [move.collective for move in found.moves])
    if assumed:
        yield (
            "the text is the program of one slice and does not say which part of the mesh a slice holds: assumed to be "
            f"{devices} consecutive devices, so axis names are right only if the axis across slices is the major one"
        )
    unplaced = [move.collective.name for move in found.moves if move.transfer.device_ids]
    if unplaced:
        yield (
            f"the mesh axes of {_join_names(unplaced)} are not known: the text names devices, but does not say which "
            "partition runs on which of them"
        )
    unmatched = [
        move.collective.name
        for move in found.moves
        if move.collective.axes is None and move.collective.groups and not move.transfer.device_ids
    ]
    if unmatched:
        yield f"the groups of {_join_names(unmatched)} do not match any axes of the mesh and are shown as they are"


def _join_names(instructions: Iterable[str]) -> str:
    names = [f"%{name}" for name in dict.fromkeys(instructions)]
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


_MOST_AXES = 4
_MOST_GROUPS = 32
"""Maximum number of distinct groups that are tried with each order of the axes."""


def _find_doubts_about_mesh(module: HloModule, mesh: Mesh, collectives: Sequence[Collective]) -> Iterator[str]:
    """Compares a mesh with the axis names in the text, and its axis order with the groups of the collectives.

    Args:
        module: The module.
        mesh: The mesh that the user passed.
        collectives: The collectives found with that mesh.
    """
    named: Mesh | None = None
    for printed in read_meshes(module):
        if _may_be_same_mesh(_find_wide_axes(printed), _find_wide_axes(mesh)):
            return
        named = named or printed
    better = _find_order_of_whole_axes(mesh, collectives)
    if named is not None:
        yield f"the text names the mesh {_mesh_text(named)}, but {_mesh_text(mesh)} was given: the given names are used"
    elif better is not None:
        yield (
            f"with its axes in the order {_mesh_text(better)} all collectives would run over whole axes of the mesh: "
            f"the order {_mesh_text(mesh)} is likely not the program's"
        )


def _find_wide_axes(mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """The axes with more than one device."""
    axes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return tuple((name, size) for name, size in axes if size > 1)


def _may_be_same_mesh(named: tuple[tuple[str, int], ...], given: tuple[tuple[str, int], ...]) -> bool:
    """Returns whether two meshes are the same, perhaps under other axis names."""
    renamed = not {name for name, _ in named} & {name for name, _ in given}
    return named == given or (renamed and [size for _, size in named] == [size for _, size in given])


def _mesh_text(mesh: Mesh) -> str:
    return " ".join(f"{name}={size}" for name, size in _find_wide_axes(mesh))


def _find_order_of_whole_axes(mesh: Mesh, collectives: Sequence[Collective]) -> Mesh | None:
    """The mesh in its only other axis order that splits no axis, if its own order splits one in every collective.

    One alone proves nothing: to change a sharding takes groups over parts of axes. Those of all devices fit any order.
    """
    axes = _find_wide_axes(mesh)
    groups = {
        collective.groups
        for collective in collectives
        if len(collective.groups) > 1 and collective.kind is not Kind.COLLECTIVE_PERMUTE
    }
    if not 1 < len(axes) <= _MOST_AXES or not 1 < len(groups) <= _MOST_GROUPS:
        return None
    if any(_are_all_axes_whole(mesh, {members}) for members in groups):
        return None
    orders = (
        Mesh(axis_names=tuple(name for name, _ in order), axis_sizes=tuple(size for _, size in order))
        for order in permutations(axes)
    )
    fitting = [order for order in orders if _are_all_axes_whole(order, groups)]
    return fitting[0] if len(fitting) == 1 else None


def _are_all_axes_whole(mesh: Mesh, groups: set[Groups]) -> bool:
    found = (find_axes_of_groups(members, mesh) for members in groups)
    return all(axes is not None and set(axes) <= set(mesh.axis_names) for axes in found)


_MAY_MOVE = "it may move data between devices that is not counted in the totals"
_NOT_COUNTED = "whatever it runs is not counted, so totals are a lower bound"
_CALLING_OPCODES = frozenset({"while", "conditional", "fusion", "call", "async-start", "fusion-start", "call-start"})
_NAME_SEVERAL = frozenset({"while", "conditional"})


def find_unread_instructions(module: HloModule) -> Iterable[Unmodelled]:
    """The instructions that may hide transfers; for each unknown opcode or target only the first use, in text order."""
    found: dict[str, Unmodelled] = {}
    unknown = frozenset(module.unknown_opcodes)
    calls = module.with_opcodes(_CALLING_OPCODES)
    silent = (call for call in calls if not call.called or call.opcode in _NAME_SEVERAL)
    looked_at = (*module.with_opcodes(unknown | CUSTOM_CALLS), *silent)
    for instruction in sorted(looked_at, key=lambda instruction: instruction.line):
        for key, entry in _report_instruction(instruction, unknown):
            found.setdefault(key, entry)
    return found.values()


def _report_instruction(instruction: HloInstruction, unknown: frozenset[str]) -> Iterator[tuple[str, Unmodelled]]:
    """Yields the reports about an instruction, each with a key that prevents it from being reported twice."""
    opcode, name = instruction.opcode, instruction.name
    if opcode in unknown:
        yield opcode, make_unmodelled(instruction, f"opcode {opcode} is not known", _MAY_MOVE)
    if opcode in CUSTOM_CALLS:
        what = explain_suspicion(instruction)
        if what is not None:
            yield what, make_unmodelled(instruction, what, _MAY_MOVE)
    if opcode in _CALLING_OPCODES:
        for missing in _find_missing_callees(instruction):
            what = f"%{name} in %{instruction.computation.name} is a {opcode} with no {missing}"
            yield what, make_unmodelled(instruction, what, _NOT_COUNTED)


def _find_missing_callees(instruction: HloInstruction) -> Iterator[str]:
    named = {attribute for attribute, _ in instruction.called}
    if instruction.opcode == "while":
        yield from (attribute for attribute in ("condition", "body") if attribute not in named)
    elif not named:
        yield "computation"
    elif instruction.opcode == "conditional" and len({"true_computation", "false_computation"} & named) == 1:
        yield "other branch"


_PARTITIONER_MARKERS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
_MARKER_PREFIX = "xla.sdy."
_KEEPS_SHARDING = frozenset({"parameter", "send", "send-done", "recv", "recv-done", "infeed", "outfeed"})
"""Opcodes that still carry shardings in compiled text: arguments, and transfers with the host."""


def find_unpartitioned(module: HloModule, mesh: Mesh | None = None, *, one_slice: bool = False) -> Unmodelled | None:
    """The evidence that a program is not partitioned yet; None for compiled text.

    A program for one device has nothing to partition: compilers leave all meshes and shardings in its text.

    Args:
        module: The module.
        mesh: The user's mesh.
        one_slice: Whether the text is the program of one slice of several, which may have a single device.

    Source: JAX's `lowered.as_text("hlo")`, which has Shardy's meshes in the header and no `num_partitions`; and XLA's
        dumps from before the pass `spmd-partitioning`, which have shardings on all instructions.
    """
    entry = find_entry(module)
    last = module.computations[-1].root if entry is None else entry.root
    if "xla.sdy.meshes" in module.header.get("frontend_attributes", "") and count_shardy_devices(module) != 1:
        return _report_unpartitioned(last, "its header still names Shardy's meshes")
    devices = module.device_count
    for parameter in entry.parameters if entry is not None else ():
        if devices == 1 and not one_slice and _count_sharding_devices(parameter.sharding) > 1:
            return _report_unpartitioned(parameter, f"it has one device, but %{parameter.name} is sharded over more")
    alone = devices == 1 and (count_shardy_devices(module) == 1 or (mesh is not None and mesh.device_count == 1))
    marker = _find_first_marker(module, devices, alone)
    return None if marker is None else _report_unpartitioned(marker, f"%{marker.name} still requests a sharding")


def find_one_device(module: HloModule, mesh: Mesh | None, *, one_slice: bool = False) -> Unmodelled | None:
    """The report about a one-device program that is said to run on a larger mesh; None for all other programs.

    Args:
        module: The module, in which there are no collectives.
        mesh: The user's mesh.
        one_slice: Whether the text is the program of one slice of several, which may have a single device.
    """
    if mesh is None or mesh.device_count == 1 or one_slice or module.device_count > 1:
        return None
    axes = " ".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    return Unmodelled(
        what=f"the program is compiled for one device, but the mesh {axes} has {mesh.device_count}",
        effect="nothing in it is sharded, so it does not show what moves on that mesh",
    )


def _report_unpartitioned(instruction: HloInstruction, evidence: str) -> Unmodelled:
    return make_unmodelled(
        instruction,
        f"the program is not partitioned yet: {evidence}",
        "shapes are global, and the compiler has not inserted its collectives yet",
    )


def _find_first_marker(module: HloModule, devices: int, alone: bool) -> HloInstruction | None:
    """The first custom call or sharding that the partitioner would have removed.

    Args:
        module: The module.
        devices: Number of devices according to the text.
        alone: Whether the program is for a single device.
    """
    calls = () if alone else module.with_opcodes(["custom-call"])
    markers = (call for call in calls if _is_marker(call, devices))
    entry = find_entry(module)
    asking = (
        instruction
        for instruction in (() if module.is_scheduled or entry is None else entry.instructions)
        if instruction.opcode not in _KEEPS_SHARDING
        and not (instruction.is_root and instruction.opcode == "tuple")
        and _count_sharding_devices(instruction.sharding) > 1
    )
    return next(chain(markers, asking), None)


def _is_marker(instruction: HloInstruction, devices: int) -> bool:
    target = instruction.custom_call_target or ""
    if target == "Sharding" and devices == 1:
        return _count_sharding_devices(instruction.sharding) > 1
    return target in _PARTITIONER_MARKERS or target.startswith(_MARKER_PREFIX)


def _count_sharding_devices(sharding: Sharding | None) -> int:
    """Number of devices that a sharding distinguishes; 1 for replicated and unknown ones."""
    if sharding is None:
        return 1
    return max([len(sharding.devices), *(_count_sharding_devices(element) for element in sharding.elements)])
