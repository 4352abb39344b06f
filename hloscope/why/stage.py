"""The stage that adds reasons to an analysis, from the compile's other results."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from hloscope.analysis.analyze import list_collectives
from hloscope.analysis.arrays import render_partition_spec
from hloscope.analysis.model_parts import attach_modules
from hloscope.analysis.provenance import find_source_frames
from hloscope.analysis.transfers import gathers_by_summing
from hloscope.base.errors import HloParseError, HloscopeError
from hloscope.base.results import group_by
from hloscope.hlo import HloModule, Sharding, parse_module, pause_collector
from hloscope.hlo.call_graph import find_call_graph
from hloscope.model import Analysis, ArrayShape, Collective, Collectives, Mesh, ModelPart, Role, SourceFrame
from hloscope.model.capture import (
    Capture,
    Identities,
    Identity,
    ShardyModule,
    axes_in,
    find_cut_dimensions,
    remove_axes,
    render_spec,
)
from hloscope.model.collectives import list_dimensions
from hloscope.model.reason import Axes, Reason, ReasonKind, Rematerialization, Tensor
from hloscope.model.vocabulary import REDUCING, Kind, Origin
from hloscope.why import partitioned
from hloscope.why.claims import Claims
from hloscope.why.decisions import find_decisions
from hloscope.why.matching import (
    AT_OWN,
    SUITS_KIND,
    Candidates,
    Clues,
    Match,
    MatchKey,
    OperandReason,
    combines_otherwise,
)
from hloscope.why.partitioned import Neighbors, SpmdModule, WindowedEinsum, drop_ones, find_neighbors
from hloscope.why.reasons import explain_written
from hloscope.why.reshards import have_matching_ends, hlo_type, is_float, local_shape
from hloscope.why.sentences import attach_reason, make_authored_reason, make_unknown_reason
from hloscope.why.shardings import UserProgram, attach_shardings, read_user_program
from hloscope.why.shardy_graph import COLLECTIVE_KINDS, ShardyGraph, find_source_line, is_written, to_frames

# ---- A comparison of a reason with its collective, and a correction if they disagree
#
# Shardy determines what must move, and the partitioner how. Usually it takes the obvious way; if the kind and the
# shapes of the collective show another, the reason is given as the partitioner's choice.


def reconcile_reason(reason: Reason, seen: Sequence[Collective], mesh: Mapping[str, int]) -> Reason:
    """The reason, adjusted to what the collective shows.

    Args:
        reason: The reason for the move according to Shardy's shardings.
        seen: The collective as the partitioner inserted it, if known, and the final collective.
        mesh: Number of devices along each axis.
    """
    kind = seen[0].kind if reason.rewritten_from is None else Kind(reason.rewritten_from)
    if reason.kind is ReasonKind.PARTIAL_SUM and kind not in REDUCING:
        return (
            reason
            if _is_of_parts(reason, kind, seen, mesh)
            else replace(_reduce_to_choice(reason), consumer=reason.producer)
        )
    if kind is Kind.ALL_TO_ALL and reason.kind is ReasonKind.OPERAND_CONFLICT and reason.wanted is None:
        return _reduce_to_choice(reason)  # it makes nothing whole, and Shardy requests nothing else
    if reason.kind is not ReasonKind.PARTITIONERS_CHOICE or reason.moved is None:
        return reason
    shapes = [shape for collective in seen for shape in collective.operand_shapes]
    is_moved = is_float(reason.moved.element_type) in {is_float(shape.dtype) for shape in shapes}
    return reason if is_moved and _is_one_of(reason.moved, shapes, mesh) else replace(reason, moved=None)


def _is_of_parts(reason: Reason, kind: Kind, seen: Sequence[Collective], mesh: Mapping[str, int]) -> bool:
    """Returns whether a collective gathers the parts of a sum, and no operand of which each device sums its own."""
    if kind is not Kind.ALL_GATHER or reason.moved is None:
        return False
    whole = [replace(operand, sharding=remove_axes(operand.sharding or (), reason.axes)) for operand in reason.operands]
    results = [shape for collective in seen for shape in collective.result_shapes]
    parts = [shape for collective in seen for shape in collective.operand_shapes]
    return _is_one_of(reason.moved, parts, mesh) and not any(_is_one_of(operand, results, mesh) for operand in whole)


def _reduce_to_choice(reason: Reason) -> Reason:
    """The reason reduced to its operation, which is all that is known of a choice of the partitioner."""
    return replace(
        reason,
        kind=ReasonKind.PARTITIONERS_CHOICE,
        certain=False,
        moved=None,
        wanted=None,
        dimensions=(),
        producer=None,
        operand=None,
        asked_by=(),
        conflicting=None,
    )


def _is_one_of(tensor: Tensor, shapes: Iterable[ArrayShape], mesh: Mapping[str, int]) -> bool:
    """Returns whether an array's part on one device has one of these shapes."""
    part = local_shape(tensor.shape, tensor.sharding or ((),) * len(tensor.shape), mesh)
    return drop_ones(part) in map(drop_ones, list_dimensions(shapes))


# ---- programs without numbered operations: an instruction is linked to all operations that share its name and line
#
# These are dumps that the compiler wrote for the user, programs in which a name of the user's looks like a number, and
# programs that call back into this process while they run. Several operations may share both, so nothing found this
# way is certain.


def add_numbers(module: ShardyModule) -> ShardyModule:
    """The same module with a number for each operation; unchanged if they already have some."""
    if any(op.identity for op in module.ops):
        return module
    return replace(module, ops=tuple(replace(op, identity=(op.index,)) for op in module.ops))


def identify_by_name(shardy: ShardyModule, module: HloModule) -> Identities:
    """The possible operations of each instruction in a compiled module, by name, and by line if known."""
    numbered = (op for op in shardy.ops if op.op_name and op.identity)
    named = group_by(numbered, lambda op: _find_last_part(op.op_name or ""))
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


# ---- the partitioner's warnings as typed records

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
    graph, mesh = ShardyGraph(shardy), shardy.mesh
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


_SENDS_ON = frozenset({"collective-permute", "collective-permute-start", "slice", "bitcast", "copy"})
_NOT_ASKED = "Shardy did not propagate this program's shardings (see the notes)"
_NO_AXES = "its device groups do not match any axes of the mesh"
_OPAQUE = "the HLO text does not say what it sends, nor to which devices"
_NO_MATCH = "Shardy moves nothing here, so the partitioner added it for reasons of its own"


@pause_collector()
def explain_analysis(analysis: Analysis, module: HloModule, captured: Capture) -> Analysis:
    """Adds to every collective its reason, its `why`, and the origin that the evidence shows.

    Args:
        analysis: The analysis of `module`.
        module: The final module.
        captured: The results of one compile.
    """
    explainer = _Explainer(analysis, module, captured)
    unread = () if explainer.unread is None else (explainer.unread,)
    intermediates = analysis.intermediates
    if captured.compiled.shardy is not None:
        intermediates = attach_shardings(intermediates, captured.compiled.shardy)
    collectives = explainer.explain_all(analysis.collectives)
    shapes = {array.name: array.global_shape or array.local_shape for array in analysis.arguments}
    collectives = attach_modules(collectives, list(map(_find_model_part, collectives)), shapes)
    return replace(
        analysis,
        intermediates=intermediates,
        notes=(*analysis.notes, *unread),
        collectives=Collectives(map(_mark_as_likely, collectives) if captured.is_text else collectives),
        decisions=find_decisions(collectives, explainer.claims, analysis.time, analysis.repeated),
        rematerializations=parse_rematerializations(
            captured.compiled.diagnostics, captured.compiled.shardy, analysis.mesh
        ),
    )


def _find_model_part(collective: Collective) -> ModelPart:
    """The part of the model, from the reason if the final data flow does not show the arguments."""
    part, reason = collective.part or ModelPart(), collective.reason
    if part.arguments or reason is None or not reason.certain:
        return part
    multiplied = reason.operands if reason.kind is ReasonKind.PARTIAL_SUM else ()
    told = (
        (Role.GRADIENT, () if reason.weight is None else (reason.weight.argument,)),
        (Role.WEIGHTS, () if reason.moved is None else (reason.moved.argument,)),
        (Role.ACTIVATIONS, tuple(tensor.argument for tensor in multiplied)),
    )
    for role, names in told:
        known = tuple(name for name in names if name is not None)
        if known:
            return replace(part, role=role, arguments=known)
    return part


class _Explained(NamedTuple):
    """A collective, perhaps with another place, and its findings, not yet put into words."""

    final: Collective
    reason: Reason
    origin: Origin


def _mark_as_likely(final: Collective) -> Collective:
    """A collective of a dump, whose reason was matched by names and lines; facts from its own text stay certain."""
    reason = final.reason
    if reason is None or not reason.certain or reason.kind is ReasonKind.AUTHORED:
        return final
    return attach_reason(final, replace(reason, certain=False), origin=final.origin)


def _keep_users_names(final: Collective, earlier: Collective | None) -> _Explained:
    """A collective that the user wrote; without metadata of its own, it has that of the partitioner's.

    A part of a combined collective that is named after its array's producer has no metadata of its own either.
    """
    is_named = final.op_name is not None and final.source_of is None and final.origin is not Origin.UNKNOWN
    has_own = earlier is None or is_named
    if has_own or earlier is None:
        return _Explained(final, make_authored_reason(final), Origin.AUTHORED)
    named = replace(final, op_name=earlier.op_name, source=earlier.source, source_of=None)
    return _Explained(named if earlier.source else final, make_authored_reason(named), Origin.AUTHORED)


def _describe_combined(final: Collective, parts: Sequence[_Explained]) -> Collective:
    """A combined collective with the reason for its largest part, and the names of the other moved arrays."""
    largest = parts[0]
    claims = tuple(claim for part in parts for claim in part.reason.claims)
    reason = replace(largest.reason, combined=len(parts), claims=claims)
    if reason.kind is not ReasonKind.AUTHORED:
        reason = replace(reason, rewritten_from=reason.rewritten_from or final.kind.value)
    origin = Origin.AUTHORED if largest.origin is Origin.AUTHORED else Origin.REWRITTEN
    others = tuple(other.reason.moved for other in parts[1:])
    return attach_reason(final, reason, others, origin=origin)


def _find_cut_dimensions(reason: Reason, axes: Axes | None) -> tuple[int, ...]:
    """The dimensions that a collective gathers: those that lose axes and that its own axes cut."""
    sharding = None if reason.moved is None else reason.moved.sharding
    if axes is None or sharding is None or reason.kind is ReasonKind.PARTIAL_SUM:
        return reason.dimensions
    own = find_cut_dimensions(sharding, axes)
    return tuple(number for number in reason.dimensions if number in own) or reason.dimensions


def _restrict_to_replicated(reason: Reason) -> Reason:
    """The reason for a gradient's sum, with its argument only if that and the sum have none of the axes."""
    weight = reason.weight
    if weight is None or not {*reason.axes} & (axes_in(weight.sharding) | axes_in(reason.wanted)):
        return reason
    return replace(reason, weight=None)


class _Explainer:
    """Everything that is read once for all collectives of a program."""

    def __init__(self, analysis: Analysis, module: HloModule, captured: Capture) -> None:
        compiled = captured.compiled
        self._module, self._shardy = module, compiled.shardy
        self._finals = analysis.collectives
        self._whole = set(map(id, self._finals))
        self._sizes = partitioned.count_by_size(self._finals)
        self._sums: dict[Axes | None, set[str]] = defaultdict(set)
        for final in self._finals:
            if final.kind in REDUCING:
                self._sums[final.axes].add(final.name)
        self._is_numbered = compiled.identities is not None
        self._identities = compiled.identities or {}
        if not self._is_numbered and self._shardy is not None:
            self._shardy = add_numbers(self._shardy)
            self._identities = identify_by_name(self._shardy, module)
        self.unread: str | None = None
        self._earlier = self._partitioned(captured, analysis)
        self._own_numbers: dict[tuple[str, bool], frozenset[int]] = {}
        self._taken: set[MatchKey] = set()
        self._windows: dict[WindowedEinsum, Reason] = {}
        self._mesh = {} if self._shardy is None else dict(self._shardy.mesh)
        self._candidates = _read_candidates(self._shardy, captured)
        self._written = _read_candidates(compiled.shardy_as_written, captured)

    @property
    def claims(self) -> Claims | None:
        """The claims to the program's axes; None if Shardy was not asked."""
        return None if self._candidates is None else self._candidates.program.claims

    def _partitioned(self, captured: Capture, analysis: Analysis) -> SpmdModule | None:
        """The partitioner's module; None if it was not kept or cannot be read."""
        text = captured.compiled.partitioned
        if text is None:
            return None
        try:
            module = parse_module(text, name="partitioned")
        except HloParseError as error:
            self.unread = (
                f"the module right after the partitioner cannot be read ({error.what}): reasons are less precise"
            )
            return None
        identities = captured.compiled.partitioned_identities
        if not self._is_numbered and self._shardy is not None:
            identities = identify_by_name(self._shardy, module)
        return SpmdModule(module, list_collectives(module, analysis.mesh), identities)

    def explain_all(self, collectives: Sequence[Collective]) -> tuple[Collective, ...]:
        """All collectives in the given order, examined in text order, which unrolled layers keep."""
        reasoned: dict[str, Collective] = {}
        for final in sorted(collectives, key=lambda collective: collective.line):
            whole = self._realigned(final)
            found = None if whole is None else reasoned.get(whole)
            if found is None or found.reason is None:
                reasoned[final.name] = self.explain(final)
            else:
                reason = replace(found.reason, realigns=found.name, certain=False, combined=1)
                reasoned[final.name] = attach_reason(final, reason, origin=Origin.REWRITTEN)
        return tuple(reasoned[final.name] for final in collectives)

    def _realigned(self, final: Collective) -> str | None:
        """The reduce-scatter of a padded array whose edge a permute without its own operation sends on."""
        if final.kind is not Kind.COLLECTIVE_PERMUTE or final.name in self._identities:
            return None
        sums = self._sums[final.axes]
        instruction = self._module.computation(final.computation).instruction(final.name)
        while instruction.name not in sums and instruction.operands and instruction.opcode in _SENDS_ON:
            instruction = instruction.operands[0]
        return instruction.name if instruction.name in sums else None

    def explain(self, final: Collective) -> Collective:
        """A collective with its reason, why and origin; for a combined one, those of its largest part."""
        parts = partitioned.split_collective(final, self._module)
        told, left = [], self._earlier
        for part in (self._named(part, final) for part in parts if len(parts) > 1):
            found = None if left is None else partitioned.link(part, self._numbers(part), None, left)
            told.append(self._told(part, None, left))
            left = left if left is None or found is None else left.without(found)
        if told and told[0].reason.kind is not ReasonKind.UNKNOWN:
            return _describe_combined(final, told)
        sending = partitioned.find_sending_instructions(self._module, final)
        channel = next((instruction.channel_id for instruction in sending), None)
        whole = self._told(final, channel, self._earlier)
        return attach_reason(whole.final, whole.reason, origin=whole.origin)

    def _named(self, part: Collective, whole: Collective) -> Collective:
        """One part of a combined collective, named by its own operation, and the user's only if that operation is.

        The producer of its array may do more, such as a fusion named after another of its results: then the part
        belongs to the operation that the whole is named after.
        """
        if self._candidates is None:
            return part
        ops = list(self._candidates.at(self._numbers(part)))
        if ops and all(combines_otherwise(op, whole.reduction) for op in ops):
            part = replace(part, name=whole.name, op_name=whole.op_name, source=whole.source)
            ops = list(self._candidates.at(self._numbers(part)))
        is_users = not ops or any(op.kind in COLLECTIVE_KINDS for op in ops)
        return part if is_users or whole.origin is not Origin.AUTHORED else replace(part, origin=Origin.UNKNOWN)

    def _told(self, final: Collective, channel: int | None, before: SpmdModule | None) -> _Explained:
        earlier = ancestor = None
        if before is not None:
            own = self._numbers(final)
            earlier = partitioned.link(final, own, channel, before)
            ancestor = None if earlier is not None else partitioned.find_ancestor(final, own, channel, before)
            is_whole = id(final) in self._whole
            if earlier is None and ancestor is None and is_whole:
                gathers = gathers_by_summing(find_call_graph(self._module), final)
                ancestor = partitioned.find_gather(final, self._sizes, before) if gathers else None
            if earlier is None and ancestor is None:
                earlier = (
                    partitioned.link_by_size(final, self._sizes, before)
                    if is_whole
                    else partitioned.find_only_of_size(final, before)
                )
        if final.origin is Origin.AUTHORED or (earlier is not None and partitioned.is_authored(earlier)):
            return self._of_user(final, earlier)
        if ancestor is not None and partitioned.is_authored(ancestor):
            reason = replace(make_authored_reason(ancestor), rewritten_from=ancestor.kind.value, axes=final.axes or ())
            return _Explained(final, reason, Origin.REWRITTEN)
        reason = self._reason(final, earlier or ancestor)
        is_placed = bool(self._numbers(final)) or earlier is None or partitioned.are_of_one_size(final, earlier)
        reason = reason if self._is_numbered and is_placed else replace(reason, certain=False)
        is_known = reason.kind is not ReasonKind.UNKNOWN
        origin, rewritten_from = partitioned.find_ancestry(final, earlier, ancestor, is_known)
        if not is_known:
            return _Explained(final, reason, origin)
        reason = reconcile_reason(reason, [*filter(None, (earlier or ancestor,)), final], self._mesh)
        reason = replace(
            reason,
            axes=final.axes or reason.axes,
            dimensions=_find_cut_dimensions(reason, final.axes),
            rewritten_from=reason.rewritten_from or rewritten_from,
            combined=max(len(final.operand_shapes), 1),
            in_loop=reason.in_loop and bool(final.loops),  # a pass may have moved it out of the loop
            loop_invariant=reason.loop_invariant and bool(final.loops),
        )
        return _Explained(final, _restrict_to_replicated(reason), origin)

    def _of_user(self, final: Collective, earlier: Collective | None) -> _Explained:
        """A collective of the program as written: the user's own, or one that differentiation added."""
        if self._candidates is None:
            return _keep_users_names(final, earlier)
        numbers = self._numbers(final)
        if earlier is not None and self._earlier is not None:
            numbers |= self._earlier.numbers_of(earlier)
        added = self._candidates.differentiation(numbers, final.axes or ())
        if added is None:
            written, known = self._candidates.written(numbers), _keep_users_names(final, earlier)
            if written is None:
                return known
            return known._replace(reason=explain_written(self._candidates.program, written, known.reason))
        return _Explained(final, _restrict_to_replicated(replace(added, in_loop=bool(final.loops))), Origin.AUTHORED)

    def _numbers(self, final: Collective, earlier: Collective | None = None) -> frozenset[int]:
        """The operations that a collective was compiled from, by its own text or by the partitioner's."""
        before = None if earlier is None or self._earlier is None else self._earlier.numbers_of(earlier)
        key = final.name, id(final) in self._whole
        if key not in self._own_numbers:
            inner = partitioned.find_sending_instructions(self._module, final) if key[1] else ()
            names = chain([final.name], (instruction.name for instruction in inner))
            found = (partitioned.find_numbers(name, self._identities) for name in names)
            self._own_numbers[key] = next(filter(None, found), frozenset())
        return self._own_numbers[key] or before or frozenset()

    def _reason(self, final: Collective, earlier: Collective | None) -> Reason:
        if self._candidates is None:
            return make_unknown_reason(final, _NOT_ASKED)
        if final.axes is None:
            return make_unknown_reason(final, _OPAQUE if final.kind is Kind.OPAQUE else _NO_AXES)
        window = None
        if earlier is not None and self._earlier is not None:
            window = partitioned.find_windowed_einsum(self._earlier.module, earlier)
        if window in self._windows:
            return self._windows[window]
        clues = self._clues(final, earlier, final.axes, window)
        if self._written is not None:
            expanded = self._written.expanded(clues, self._candidates.program.graph.module)
            if expanded is not None:
                return expanded
        return self._matched(clues, self._candidates) or make_unknown_reason(final, _NO_MATCH)

    def _clues(self, final: Collective, earlier: Collective | None, axes: Axes, window: WindowedEinsum | None) -> Clues:
        numbers, around, argument = self._numbers(final, earlier), Neighbors(), None
        if earlier is not None and self._earlier is not None:
            around = find_neighbors(self._earlier, earlier)
            argument = partitioned.find_moved_argument(self._earlier, earlier)
            if argument is None and not around.makers and len(around.arguments) == 1:
                (argument,) = around.arguments
        elif not numbers and final.source_of is not None:
            around = Neighbors(makers=partitioned.find_numbers(final.source_of, self._identities))
        argument = argument or partitioned.find_final_argument(self._module, final)
        if final.kind in REDUCING and self._candidates is not None:
            numbers |= self._candidates.matcher.within(numbers)
        texts = [final] if earlier is None else [earlier, final]
        pairs = texts[0].groups if texts[0].kind is Kind.COLLECTIVE_PERMUTE else ()
        is_one_way = {pair[0] for pair in pairs} != {pair[1] for pair in pairs}
        return Clues(
            kind=texts[0].kind if window is None else window.stands_for,
            axes=axes,
            numbers=numbers,
            between=around,
            operands=list_dimensions(shape for text in texts for shape in text.operand_shapes),
            results=list_dimensions(shape for text in texts for shape in text.result_shapes),
            element_types=frozenset(shape.dtype for text in texts for shape in text.operand_shapes),
            argument=argument,
            window=window,
            in_loop=bool(final.loops) and window is None,
            reduction=final.reduction,
            is_edge=window is None and is_one_way,
        )

    def _matched(self, clues: Clues, candidates: Candidates) -> Reason | None:
        """The reason at the reshard that a collective carries out, or at the operand that it moves."""
        match = candidates.matcher.best(clues, self._taken)
        suits = match is not None and match.suits
        at_operand = None if suits and not clues.is_edge else candidates.at_operand(clues, is_nothing_else=not suits)
        is_edge = clues.is_edge and at_operand is not None and at_operand.reason.kind is ReasonKind.HALO
        if at_operand is not None and (at_operand.reason.certain or is_edge):
            return at_operand.reason
        if match is not None and match.is_certain:
            self._taken.add(match.key)
            reason = candidates.reason_of(match)
            if clues.window is not None:
                reason = self._windows[clues.window] = replace(reason, rewritten_from=clues.window.stands_for.value)
            return reason
        at_operand = at_operand or candidates.at_operand(clues)
        if at_operand is not None and (match is None or _fits_better(at_operand, match)):
            return at_operand.reason
        return None if match is None else candidates.reason_of(match)


def _fits_better(found: OperandReason, match: Match) -> bool:
    """Returns whether an operand explains a collective better than a reshard supported only by its place."""
    sums_here = match.reshard.is_sum and match.place == AT_OWN  # padding may hide the shape of its parts
    if found.reason.kind is ReasonKind.PARTITIONERS_CHOICE and (match.shape >= SUITS_KIND or sums_here):
        return False
    return found.reason.certain or found.place > match.place or (found.place == match.place and not match.shape)


def _read_candidates(module: ShardyModule | None, captured: Capture) -> Candidates | None:
    return None if module is None else Candidates(read_captured(module, captured))


def read_captured(module: ShardyModule, captured: Capture) -> UserProgram:
    """Reads a module of a program, with the names and requests of its arguments and outputs."""
    arguments = [argument for argument in captured.arguments or () if argument.used]
    letters = [argument.letters for argument in arguments]
    outputs = captured.outputs or ()
    requested = (number for number, output in enumerate(outputs) if output.asked)
    given = [number for number, argument in enumerate(arguments) if argument.asked]
    names = [output.name for output in outputs]
    graph = ShardyGraph(module)
    return read_user_program(graph, letters, names, requested, None if captured.is_text else given)
