"""The stage itself: from a parsed module to an `Analysis`; what was not read, and signs that the text is another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, permutations

from hloscope.analysis.arrays import arguments_of, largest_intermediates, outputs_of
from hloscope.analysis.collectives import Found, find_collectives
from hloscope.analysis.groups import Groups, axes_of_groups
from hloscope.analysis.kernels import kernels_of
from hloscope.analysis.matmuls import matmuls_of
from hloscope.analysis.mesh_text import mesh_from_text, meshes_in_text, shardy_devices
from hloscope.analysis.model import Analysis, Collective, Collectives, Memory, Mesh, Unmodelled
from hloscope.analysis.opcodes import unsupported
from hloscope.analysis.parts import with_parts
from hloscope.analysis.placement import Placement, lay_out
from hloscope.analysis.spellings import CUSTOM_CALLS, may_communicate
from hloscope.analysis.totals import largest_first, totals_of
from hloscope.analysis.vocabulary import Kind
from hloscope.hlo import HloInstruction, HloModule, Sharding, collector_paused
from hloscope.hlo.call_graph import HloGraph, entry_of


def analyze_module(
    module: HloModule,
    *,
    target: str,
    mesh: Mesh | None,
    devices_per_slice: int | None = None,
    placement: Placement | None = None,
) -> Analysis:
    """Finds what a compiled module moves.

    Args:
        module: The parsed module.
        target: What the user named, as it is to be shown.
        mesh: The user's mesh; None to take what names the text has.
        devices_per_slice: Devices of one slice when the program runs on several; None when there is one slice.
        placement: The slice and the device of each partition when the program runs on several slices. By default each
            slice has as many consecutive partitions as the text counts, and devices cannot be known.

    Returns:
        The facts that the text holds. Slice, memory and versions are left for whoever compiled it.
    """
    with collector_paused():
        return _analysis(module, target, mesh, devices_per_slice, placement)


def collectives_alone(module: HloModule, mesh: Mesh | None) -> tuple[tuple[Collective, int | None], ...]:
    """The collectives of a module in the order of its text, without bytes, data flow and executions; their channels."""
    with collector_paused():
        mesh = mesh_from_text(module) if mesh is None else mesh
        layout = lay_out(module.device_count, mesh)
        found = find_collectives(HloGraph(module), mesh, layout, follows=False)
    in_order = sorted(found.moves, key=lambda move: move.collective.line)
    return tuple((move.collective, move.transfer.op.channel_id) for move in in_order)


def _analysis(
    module: HloModule, target: str, mesh: Mesh | None, devices_per_slice: int | None, placement: Placement | None
) -> Analysis:
    mesh = mesh_from_text(module) if mesh is None else mesh
    layout = lay_out(module.device_count, mesh, devices_per_slice=devices_per_slice, placement=placement)
    graph = HloGraph(module)
    found = find_collectives(graph, mesh, layout)
    whole = not_partitioned(module, mesh, one_slice=layout.one_slice)
    alone = None if whole or found.moves else made_for_one_device(module, mesh, one_slice=layout.one_slice)
    doubts = (doubt for doubt in (whole, alone) if doubt is not None)
    unread = (*unread_instructions(module), *_cut_off(module), *doubts)
    return Analysis(
        target=target,
        module=module.name,
        slice=None,
        mesh=mesh,
        num_partitions=module.num_partitions,
        collectives=Collectives(
            largest_first(with_parts(graph, [(move.collective, move.results) for move in found.moves]))
        ),
        totals=totals_of(
            [move.collective for move in found.moves],
            [move.reaches for move in found.moves],
            hidden=found.hidden or bool(unread),
        ),
        arguments=arguments_of(module, mesh, partitioned=whole is None),
        outputs=outputs_of(module, mesh, partitioned=whole is None),
        intermediates=largest_intermediates(graph) if whole is None else (),
        matmuls=matmuls_of(graph),
        kernels=kernels_of(graph),
        memory=Memory(),
        unmodelled=tuple(dict.fromkeys((*found.unmodelled, *unread))),
        notes=notes_on(module, mesh, found, assumed=layout.guessed),
    )


def _cut_off(module: HloModule) -> Iterator[Unmodelled]:
    last = module.computations[-1].name
    if module.truncated and entry_of(module) is None:
        what = f"the text is cut off before ENTRY, after %{last}, its last whole computation"
        effect = (
            "how often the remaining computations run is unknown: each is counted once, so every count and total is a "
            "lower bound; arguments, outputs and intermediates are not known"
        )
    elif module.truncated:
        what = f"the text is cut off, or broken, after %{last}, its last whole computation"
        effect = "what came after it is not counted, so totals are lower bounds"
    elif _lost_its_entry(module):
        what = f"no computation is marked ENTRY: %{last}, the last one, is used as the entry"
        effect = (
            "the text is likely cut off between two computations; what came after is not counted, so totals are lower "
            "bounds"
        )
    else:
        return
    yield Unmodelled(what=what, effect=effect, computation=last)


def _lost_its_entry(module: HloModule) -> bool:
    """Whether the ENTRY that compilers print is missing; without it, text written by hand begins in its last part."""
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
"""Instructions that a note names before it says how many more there are."""


def notes_on(module: HloModule, mesh: Mesh | None, found: Found, *, assumed: bool) -> tuple[str, ...]:
    """One sentence for each thing to know.

    Args:
        module: The module.
        mesh: The user's mesh, or the one that the text names.
        found: Its collectives.
        assumed: Whether it is only assumed which part of the mesh a slice holds.
    """
    return () if mesh is None else tuple(_notes(module, mesh, found, assumed=assumed))


def _notes(module: HloModule, mesh: Mesh, found: Found, *, assumed: bool) -> Iterator[str]:
    devices = module.device_count
    if devices > 1 and mesh.device_count % devices:
        yield (
            f"the mesh has {mesh.device_count} devices and the program has {devices} partitions, "
            "so collectives cannot be named by mesh axes"
        )
        return
    if mesh.axis_types is None:
        yield from _doubts_about_mesh(module, mesh, [move.collective for move in found.moves])
    if assumed:
        yield (
            "the text is the program of one slice and does not say which part of the mesh a slice holds: assumed to be "
            f"{devices} consecutive devices, so axis names are right only if the axis across slices is the major one"
        )
    unplaced = [move.collective.name for move in found.moves if move.transfer.device_ids]
    if unplaced:
        yield (
            f"the mesh axes of {_names(unplaced)} are not known: the text names devices, but does not say which "
            "partition runs on which of them"
        )
    unmatched = [
        move.collective.name
        for move in found.moves
        if move.collective.axes is None and move.collective.groups and not move.transfer.device_ids
    ]
    if unmatched:
        yield f"the groups of {_names(unmatched)} do not match any axes of the mesh and are shown as they are"


def _names(instructions: Iterable[str]) -> str:
    names = [f"%{name}" for name in dict.fromkeys(instructions)]
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


_MOST_AXES = 4
_MOST_GROUPS = 32
"""Different groups tried with each order of the axes."""


def _doubts_about_mesh(module: HloModule, mesh: Mesh, collectives: Sequence[Collective]) -> Iterator[str]:
    """Compares a mesh with the names in the text, and its order with the groups of the collectives.

    Args:
        module: The module.
        mesh: The mesh that was given.
        collectives: What was found with it.
    """
    named: Mesh | None = None
    for printed in meshes_in_text(module):
        if _may_be(_axes(printed), _axes(mesh)):
            return
        named = named or printed
    better = _order_of_whole_axes(mesh, collectives)
    if named is not None:
        yield f"the text names the mesh {_words(named)}, but {_words(mesh)} was given: the given names are used"
    elif better is not None:
        yield (
            f"with its axes in the order {_words(better)} all collectives would run over whole axes of the mesh: "
            f"the order {_words(mesh)} is likely not the program's"
        )


def _axes(mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """The axes of more than one device."""
    axes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return tuple((name, size) for name, size in axes if size > 1)


def _may_be(named: tuple[tuple[str, int], ...], given: tuple[tuple[str, int], ...]) -> bool:
    """Whether two meshes are one, perhaps under other names."""
    renamed = not {name for name, _ in named} & {name for name, _ in given}
    return named == given or (renamed and [size for _, size in named] == [size for _, size in given])


def _words(mesh: Mesh) -> str:
    return " ".join(f"{name}={size}" for name, size in _axes(mesh))


def _order_of_whole_axes(mesh: Mesh, collectives: Sequence[Collective]) -> Mesh | None:
    """The mesh in the one other order in which no collective splits an axis, where all do in its own.

    One alone proves nothing: to change a sharding takes groups over parts of axes. Those of all devices fit any order.
    """
    axes = _axes(mesh)
    groups = {
        collective.groups
        for collective in collectives
        if len(collective.groups) > 1 and collective.kind is not Kind.COLLECTIVE_PERMUTE
    }
    if not 1 < len(axes) <= _MOST_AXES or not 1 < len(groups) <= _MOST_GROUPS:
        return None
    if any(_all_whole(mesh, {members}) for members in groups):
        return None
    orders = (
        Mesh(axis_names=tuple(name for name, _ in order), axis_sizes=tuple(size for _, size in order))
        for order in permutations(axes)
    )
    fitting = [order for order in orders if _all_whole(order, groups)]
    return fitting[0] if len(fitting) == 1 else None


def _all_whole(mesh: Mesh, groups: set[Groups]) -> bool:
    found = (axes_of_groups(members, mesh) for members in groups)
    return all(axes is not None and set(axes) <= set(mesh.axis_names) for axes in found)


_MAY_MOVE = "it may move data between devices that is not counted in the totals"
_NOT_COUNTED = "whatever it runs is not counted, so totals are a lower bound"
_CALLS = frozenset({"while", "conditional", "fusion", "call", "async-start", "fusion-start", "call-start"})
_NAME_SEVERAL = frozenset({"while", "conditional"})


def unread_instructions(module: HloModule) -> Iterable[Unmodelled]:
    """Finds what may hide transfers; of each unknown opcode and target the first use, in text order."""
    found: dict[str, Unmodelled] = {}
    unknown = frozenset(module.unknown_opcodes)
    calls = module.with_opcodes(_CALLS)
    silent = (call for call in calls if not call.called or call.opcode in _NAME_SEVERAL)
    looked_at = (*module.with_opcodes(unknown | CUSTOM_CALLS), *silent)
    for instruction in sorted(looked_at, key=lambda instruction: instruction.line):
        for key, entry in _entries(instruction, unknown):
            found.setdefault(key, entry)
    return found.values()


def _entries(instruction: HloInstruction, unknown: frozenset[str]) -> Iterator[tuple[str, Unmodelled]]:
    """What is to be reported about an instruction, with what it is reported once for."""
    opcode, name = instruction.opcode, instruction.name
    if opcode in unknown:
        yield opcode, unsupported(instruction, f"opcode {opcode} is not known", _MAY_MOVE)
    if opcode in CUSTOM_CALLS:
        what = may_communicate(instruction)
        if what is not None:
            yield what, unsupported(instruction, what, _MAY_MOVE)
    if opcode in _CALLS:
        for missing in _missing(instruction):
            what = f"%{name} in %{instruction.computation.name} is a {opcode} with no {missing}"
            yield what, unsupported(instruction, what, _NOT_COUNTED)


def _missing(instruction: HloInstruction) -> Iterator[str]:
    named = {attribute for attribute, _ in instruction.called}
    if instruction.opcode == "while":
        yield from (attribute for attribute in ("condition", "body") if attribute not in named)
    elif not named:
        yield "computation"
    elif instruction.opcode == "conditional" and len({"true_computation", "false_computation"} & named) == 1:
        yield "other branch"


_MARKERS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"})
_MARKER_PREFIX = "xla.sdy."
_KEEPS_SHARDING = frozenset({"parameter", "send", "send-done", "recv", "recv-done", "infeed", "outfeed"})
"""Opcodes on which compiled text still has shardings: of arguments, and of transfers with the host."""


def not_partitioned(module: HloModule, mesh: Mesh | None = None, *, one_slice: bool = False) -> Unmodelled | None:
    """What shows that a program is not partitioned yet; None for compiled text.

    A program for one device has nothing to partition: compilers leave what they find of meshes and shardings in it.

    Args:
        module: The module.
        mesh: The user's mesh.
        one_slice: Whether the text is the program of one slice of several, which may have a single device.

    Source: JAX's `lowered.as_text("hlo")`, which has Shardy's meshes in the header and no `num_partitions`; and XLA's
        dumps from before the pass `spmd-partitioning`, which have shardings on all instructions.
    """
    entry = entry_of(module)
    last = module.computations[-1].root if entry is None else entry.root
    if "xla.sdy.meshes" in module.header.get("frontend_attributes", "") and shardy_devices(module) != 1:
        return _entry(last, "its header still names Shardy's meshes")
    devices = module.device_count
    for parameter in entry.parameters if entry is not None else ():
        if devices == 1 and not one_slice and _devices_of(parameter.sharding) > 1:
            return _entry(parameter, f"it has one device, but %{parameter.name} is sharded over more")
    alone = devices == 1 and (shardy_devices(module) == 1 or (mesh is not None and mesh.device_count == 1))
    marker = _first_marker(module, devices, alone)
    return None if marker is None else _entry(marker, f"%{marker.name} still requests a sharding")


def made_for_one_device(module: HloModule, mesh: Mesh | None, *, one_slice: bool = False) -> Unmodelled | None:
    """What is to be reported of a program for one device that is said to run on a mesh of several; None for all others.

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


def _entry(instruction: HloInstruction, evidence: str) -> Unmodelled:
    return unsupported(
        instruction,
        f"the program is not partitioned yet: {evidence}",
        "shapes are global, and the compiler has not inserted its collectives yet",
    )


def _first_marker(module: HloModule, devices: int, alone: bool) -> HloInstruction | None:
    """The first custom call or sharding that the partitioner would have taken away.

    Args:
        module: The module.
        devices: Devices that the text counts.
        alone: Whether one device is all that the program is for.
    """
    calls = () if alone else module.with_opcodes(["custom-call"])
    markers = (call for call in calls if _is_marker(call, devices))
    entry = entry_of(module)
    asking = (
        instruction
        for instruction in (() if module.is_scheduled or entry is None else entry.instructions)
        if instruction.opcode not in _KEEPS_SHARDING
        and not (instruction.is_root and instruction.opcode == "tuple")
        and _devices_of(instruction.sharding) > 1
    )
    return next(chain(markers, asking), None)


def _is_marker(instruction: HloInstruction, devices: int) -> bool:
    target = instruction.custom_call_target or ""
    if target == "Sharding" and devices == 1:
        return _devices_of(instruction.sharding) > 1
    return target in _MARKERS or target.startswith(_MARKER_PREFIX)


def _devices_of(sharding: Sharding | None) -> int:
    """Devices that a sharding tells apart; 1 for replicated and unknown ones."""
    if sharding is None:
        return 1
    return max([len(sharding.devices), *(_devices_of(element) for element in sharding.elements)])
