"""Traces a final collective back to the one that the partitioner inserted, and to whoever wrote it.

Source: measured on the programs of the tests and similar ones: instructions are renamed, later passes renumber channels
and reuse their numbers, and a combined collective keeps only the metadata of its first part, while each operand was
produced by an operation with its own. So a channel counts only together with kind, axes and operation; without a
channel, the operation and the dimensions count.

XLA's spmd partitioner (dot_handler.cc) names the bodies of windowed einsums `windowed_dot_general_body_ag` where an
operand is passed around in place of an all-gather, and `windowed_dot_general_body_rs` where partial sums are, in place
of a reduce-scatter.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import merge
from itertools import islice
from math import prod

from hloscope.analysis.provenance import KIND_OF_PRIMITIVE, find_source_frames
from hloscope.base.units import count_array_bytes
from hloscope.hlo import HloInstruction, HloModule
from hloscope.hlo.call_graph import HloGraph, find_call_graph
from hloscope.model import ArrayShape, Collective
from hloscope.model.capture import Identities
from hloscope.model.collectives import list_dimensions
from hloscope.model.vocabulary import REDUCING, Kind, Link, Origin
from hloscope.why.reshards import is_float

_CHANNEL_DEPTH = 3
_MOVES_ELEMENTS = frozenset({"bitcast", "copy", "reshape", "transpose", "slice", "dynamic-slice"})
_KEEPS_ELEMENTS = frozenset({"bitcast", "convert", "copy", "reshape", "transpose"})
_BODY = re.compile(r"^windowed_dot_general_body_(ag|rs)")
_STANDS_FOR = {"ag": Kind.ALL_GATHER, "rs": Kind.REDUCE_SCATTER}
_STEPS = 6

ArrayDimensions = tuple[int, ...]


class SpmdModule:
    """The collectives that the partitioner inserted into the program.

    Attributes:
        module: The module right after the partitioner.
        identities: The operations that its instructions were compiled from.
    """

    def __init__(
        self, module: HloModule, collectives: Sequence[tuple[Collective, int | None]], identities: Identities
    ) -> None:
        """Takes its collectives in text order, each with its channel."""
        self.module, self.identities = module, identities
        self._collectives = collectives
        self._taken: frozenset[int] = frozenset()
        self._by_clue: dict[object, list[int]] = defaultdict(list)
        for number, (collective, channel) in enumerate(collectives):
            for clue in _find_link_clues(collective, channel, self.numbers_of(collective)):
                self._by_clue[clue].append(number)

    def numbers_of(self, collective: Collective) -> frozenset[int]:
        """The operations that one of its collectives was compiled from."""
        return find_numbers(collective.name, self.identities)

    def without(self, taken: Collective) -> SpmdModule:
        """A copy without one collective, which is known to be the origin of another final one."""
        found = copy(self)
        found._taken = self._taken | {id(taken)}
        return found

    def having(self, *clues: object) -> Iterator[Collective]:
        """The collectives that have one of these clues, in text order."""
        numbers = merge(*(self._by_clue.get(clue, ()) for clue in clues))
        found = (self._collectives[number][0] for number in numbers)
        return (collective for collective in found if id(collective) not in self._taken)

    @cached_property
    def outputs(self) -> dict[str, list[int]]:
        """The numbers of the program's outputs by instruction: the root is their tuple, or the single output."""
        root = self.module.entry.root
        found: dict[str, list[int]] = defaultdict(list)
        for number, result in enumerate(root.operands if root.opcode == "tuple" else (root,)):
            found[result.name].append(number)
        return found

    @cached_property
    def graph(self) -> HloGraph:
        """The calls in the module."""
        return find_call_graph(self.module)


def find_numbers(name: str, identities: Identities) -> frozenset[int]:
    """The operations that an instruction was compiled from, without the calls that lead to them."""
    return frozenset(identity[-1] for identity in identities.get(name, ()))


def _find_link_clues(collective: Collective, channel: int | None, numbers: frozenset[int]) -> Iterator[object]:
    """The clues by which a final collective can be traced back to this one."""
    kind, axes = collective.kind, collective.axes
    yield "size", _size_key(collective)
    if axes is None:
        return
    if channel is not None:
        yield "channel", axes, channel
    if kind in REDUCING:
        yield "sum", axes, _significant_key(collective)
    for number in numbers:
        yield "operation", kind, axes, number, _unordered_key(collective)


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The operations around an instruction, beyond instructions that name none.

    Attributes:
        makers: Numbers of the operations whose results it uses.
        arguments: Names of the program's arguments that it uses.
        users: Numbers of the operations that use its result.
        outputs: Numbers of the program's outputs that it becomes.
    """

    makers: frozenset[int] = frozenset()
    arguments: frozenset[str] = frozenset()
    users: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


def find_neighbors(earlier: SpmdModule, collective: Collective) -> Neighbors:
    """The operations around a collective of the partitioner's; its own are looked through if they only move data."""
    start = earlier.module.computation(collective.computation).instruction(collective.name)
    makers, first = _find_numbers_around(earlier, start, lambda instruction: instruction.operands)
    users, last = _find_numbers_around(earlier, start, lambda instruction: instruction.users)
    if not start.computation.is_entry and any(instruction.is_root for instruction in last):
        callers = (site.caller.name for site in earlier.graph.callers(start.computation.name))
        users |= {identity[-1] for caller in callers for identity in earlier.identities.get(caller, ())}
    arguments = (end.op_name for end in first if end.opcode == "parameter" and end.computation.is_entry)
    outputs = frozenset(number for instruction in last for number in earlier.outputs.get(instruction.name, ()))
    return Neighbors(makers, frozenset(filter(None, arguments)), users, outputs)


def _find_numbers_around(
    earlier: SpmdModule, start: HloInstruction, onward: Callable[[HloInstruction], Sequence[HloInstruction]]
) -> tuple[frozenset[int], list[HloInstruction]]:
    """The first operations on every path in one direction, and the instructions passed on the way."""
    numbers: set[int] = set()
    own = {*earlier.identities.get(start.name, ())}
    passed, seen, pending = [start], {start.name}, [start]
    while pending:
        for following in onward(pending.pop()):
            identities = earlier.identities.get(following.name, ())
            if following.opcode in _MOVES_ELEMENTS and own >= {*identities}:
                identities = ()
            numbers.update(identity[-1] for identity in identities)
            if not identities and following.name not in seen:
                seen.add(following.name)
                passed.append(following)
                pending.append(following)
    return frozenset(numbers), passed


def link(final: Collective, numbers: frozenset[int], channel: int | None, earlier: SpmdModule) -> Collective | None:
    """The partitioner's collective that a final one is, or was compiled from; None without evidence.

    Args:
        final: A collective of the final module.
        numbers: The operations that it was compiled from; empty if its text does not state them.
        channel: Its channel.
        earlier: The partitioner's collectives.
    """
    found = next((each for each in _find_by_channel(final, numbers, channel, earlier) if each.kind is final.kind), None)
    shape = _unordered_key(final)
    clues = (("operation", final.kind, final.axes, number, shape) for number in sorted(numbers))
    return found or next(earlier.having(*clues), None)


def find_ancestor(
    final: Collective, numbers: frozenset[int], channel: int | None, earlier: SpmdModule
) -> Collective | None:
    """The partitioner's collective of another kind that a later pass turned into a final one; None without evidence.

    A later pass keeps the channel and the metadata, or drops both: then only axes and operands are left, and the fact
    that a reduce-scatter is an all-reduce of which a part is kept. The arguments are those of `link`.
    """
    others = (each for each in _find_by_channel(final, numbers, channel, earlier) if each.kind is not final.kind)
    if (found := next(others, None)) is not None:
        return found
    if final.source_of is None or final.kind not in REDUCING:
        return None
    sums = earlier.having(("sum", final.axes, _significant_key(final)))
    alike = [*islice((candidate for candidate in sums if candidate.kind is not final.kind), 2)]
    return alike[0] if len(alike) == 1 else None


def find_gather(final: Collective, sizes: Counter[object], earlier: SpmdModule) -> Collective | None:
    """The partitioner's all-gather of the array that a final all-reduce sums from the parts of each device.

    None unless there is only one of its size, and none in the final module.
    """
    devices = max(map(len, final.groups), default=1)
    parts = tuple(count // devices for count in _count_elements(final))
    key = (Kind.ALL_GATHER, final.axes, parts), _list_element_types(final)
    alike = [*islice(earlier.having(("size", key)), 2)]
    return alike[0] if len(alike) == 1 and not sizes[key] else None


def _find_by_channel(
    final: Collective, numbers: frozenset[int], channel: int | None, earlier: SpmdModule
) -> Iterator[Collective]:
    """The partitioner's collectives with the channel, axes and operation of a final one.

    Across slices, where final texts do not state these and channels are reassigned, it is the only one of its size.
    """
    for candidate in earlier.having(("channel", final.axes, channel)):
        others = earlier.numbers_of(candidate)
        if numbers and others:
            is_same = not numbers.isdisjoint(others)
        else:
            is_same = final.link is Link.ICI or len([*islice(earlier.having(("size", _size_key(candidate))), 2)]) == 1
        if is_same:
            yield candidate


def count_by_size(finals: Iterable[Collective]) -> Counter[object]:
    """Number of collectives by kind, axes and size, and of the permutes between slices by their pairs as well."""
    known = list(finals)
    return Counter((*map(_size_key, known), *(_pairs_key(each) for each in known if _is_between_slices(each))))


def link_by_size(final: Collective, sizes: Counter[object], earlier: SpmdModule) -> Collective | None:
    """The partitioner's collective of a final one without metadata of its own, by kind, axes and size alone.

    None unless the partitioner inserted exactly as many of these as there are in the final module, and there is only
    one or all are the user's; several in different places get no place. Over DCN, libtpu drops all metadata and
    rearranges the dimensions, but keeps the number of elements. A permute that crosses slices for some of its pairs
    only is split: what crosses them then has a part of the pairs of the partitioner's.

    Args:
        final: A collective of the final module.
        sizes: All collectives of that module, by `count_by_size`.
        earlier: The partitioner's collectives.
    """
    if final.axes is None or (final.op_name is not None and final.source_of is None):
        return None
    alike, count = list(earlier.having(("size", _size_key(final)))), sizes[_size_key(final)]
    if len(alike) != count and _is_between_slices(final):
        alike = [whole for whole in alike if {*final.groups} < {*whole.groups}]
        count = sizes[_pairs_key(final)]
    if not alike or len(alike) != count:
        return None
    if len(alike) > 1 and not all(is_authored(candidate) for candidate in alike):
        return None
    is_one_place = len({(candidate.op_name, candidate.source) for candidate in alike}) == 1
    return alike[0] if is_one_place else replace(alike[0], op_name=None, source=(), origin=Origin.AUTHORED)


def find_only_of_size(part: Collective, earlier: SpmdModule) -> Collective | None:
    """The partitioner's collective for a part of a combined one, if it is the only one of its kind, axes and size."""
    alike = [*islice(earlier.having(("size", _size_key(part))), 2)]
    return alike[0] if part.axes is not None and len(alike) == 1 else None


def are_of_one_size(collective: Collective, other: Collective) -> bool:
    """Returns whether two collectives move equally many elements, in the same way over the same axes.

    Their types are equal except for the width of floats, which the compiler changes.
    """
    types, others = _list_element_types(collective), _list_element_types(other)
    is_close = len(types) == len(others) and all(map(is_float, (*types, *others)))
    return _count_array_elements(collective) == _count_array_elements(other) and (types == others or is_close)


def _is_between_slices(collective: Collective) -> bool:
    return collective.kind is Kind.COLLECTIVE_PERMUTE and collective.link is Link.DCN and bool(collective.groups)


def _pairs_key(permute: Collective) -> object:
    return _size_key(permute), frozenset(permute.groups)


def _size_key(collective: Collective) -> object:
    return _count_array_elements(collective), _list_element_types(collective)


def _count_array_elements(collective: Collective) -> object:
    return collective.kind, collective.axes, _count_elements(collective)


def _count_elements(collective: Collective) -> tuple[int, ...]:
    return tuple(sorted(prod(dimensions) for dimensions in list_dimensions(collective.operand_shapes)))


def _list_element_types(collective: Collective) -> tuple[str, ...]:
    return tuple(sorted(shape.dtype for shape in collective.operand_shapes))


def is_authored(earlier: Collective) -> bool:
    """Returns whether a collective in the partitioner's text is the user's: shard_map names are relative there."""
    name = earlier.op_name or ""
    is_primitive = name.rpartition("/")[2] in KIND_OF_PRIMITIVE
    return earlier.origin is Origin.AUTHORED or (
        earlier.source_of is None and is_primitive and not name.startswith("jit(")
    )


def find_sending_instructions(module: HloModule, collective: Collective) -> Iterator[HloInstruction]:
    """The instructions with a channel in a collective: itself, or those that it wraps."""
    wrapping = [module.computation(collective.computation).instruction(collective.name)]
    for _ in range(_CHANNEL_DEPTH + 1):
        yield from (instruction for instruction in wrapping if instruction.channel_id is not None)
        called = [module.computation(name) for instruction in wrapping for _, name in instruction.called]
        wrapping = [inner for computation in called for inner in computation.instructions]


def find_moved_argument(earlier: SpmdModule, collective: Collective) -> str | None:
    """The program's argument that a collective of the partitioner's moves, by the name on its parameter.

    None if it moves a computed value: only operations that keep all elements are looked through.
    """
    computation = earlier.module.computation(collective.computation)
    instruction = computation.instruction(collective.name)
    while instruction.operands and (instruction.name == collective.name or instruction.opcode in _KEEPS_ELEMENTS):
        instruction = instruction.operands[0]
    return instruction.op_name if instruction.opcode == "parameter" and computation.is_entry else None


def find_final_argument(module: HloModule, collective: Collective) -> str | None:
    """The program's argument that a final collective moves, also in loops, by the name on its parameter.

    None if it moves a computed value or several arrays.
    """
    if len(collective.moved_values) != 1 or collective.moved_values[0].computation != module.entry.name:
        return None
    instruction = module.entry.instruction(collective.moved_values[0].instruction)
    return instruction.op_name if instruction.opcode == "parameter" else None


def drop_ones(dimensions: ArrayDimensions) -> ArrayDimensions:
    """Dimensions without those of size 1, which compilers add and drop."""
    return tuple(size for size in dimensions if size != 1)


def _significant_key(collective: Collective) -> object:
    return tuple(drop_ones(dimensions) for dimensions in list_dimensions(collective.operand_shapes))


def _unordered_key(collective: Collective) -> object:
    return tuple(tuple(sorted(drop_ones(each))) for each in list_dimensions(collective.operand_shapes))


def split_collective(combined: Collective, module: HloModule) -> tuple[Collective, ...]:
    """A collective for each array, most bytes first; an ordinary collective alone.

    Args:
        combined: A collective of `module`.
        module: The final module.
    """
    count = len(combined.operand_shapes)
    if count < 2 or not count == len(combined.result_shapes) == len(combined.moved_values):
        return (combined,)
    by_size = sorted(range(count), key=lambda number: -_count_bytes_for_order(combined.operand_shapes[number]))
    return tuple(_make_collective_part(combined, number, module) for number in by_size)


def _count_bytes_for_order(shape: ArrayShape) -> int:
    """Bytes of a shape, for sorting; an element type without a size sorts first, as the largest possible."""
    known = count_array_bytes(shape.dtype, prod(shape.dimensions or ()))
    return 1 << 62 if known is None else known


def _make_collective_part(combined: Collective, number: int, module: HloModule) -> Collective:
    *_, made = makers = list(_find_makers(combined, number, module))
    named = next((maker for maker in makers if maker.op_name), None)
    return replace(
        combined,
        name=made.name if named is None else named.name,
        operand_shapes=combined.operand_shapes[number : number + 1],
        result_shapes=combined.result_shapes[number : number + 1],
        moved_values=combined.moved_values[number : number + 1],
        op_name=None if named is None else named.op_name,
        source=() if named is None else find_source_frames(named),
    )


def _find_makers(combined: Collective, number: int, module: HloModule) -> Iterator[HloInstruction]:
    """The instruction that passes an array on, then the one that produced it."""
    operands = module.computation(combined.computation).instruction(combined.name).operands
    if len(operands) == len(combined.operand_shapes):
        yield operands[number]
    made = combined.moved_values[number]
    yield module.computation(made.computation).instruction(made.instruction)


@dataclass(frozen=True, slots=True)
class WindowedEinsum:
    """A windowed einsum.

    Attributes:
        body: The computation of its loop's body.
        stands_for: The kind of the collective that its permutes replace.
    """

    body: str
    stands_for: Kind


def find_windowed_einsum(module: HloModule, permute: Collective) -> WindowedEinsum | None:
    """The windowed einsum that a permute belongs to: in its loop, or a step before or after it; None for others.

    Args:
        module: The module right after the partitioner.
        permute: One of its collectives.
    """
    if permute.kind is not Kind.COLLECTIVE_PERMUTE:
        return None
    inside = _make_einsum(permute.computation)
    if inside is not None:
        return inside
    instruction = module.computation(permute.computation).instruction(permute.name)
    return _find_einsum_before(instruction, _STEPS) or _find_einsum_after(instruction)


def _find_einsum_after(instruction: HloInstruction) -> WindowedEinsum | None:
    """The windowed loop that uses an instruction's result."""
    carried = [user for user in instruction.users if user.opcode == "tuple"]
    loops = (loop for carrier in carried for loop in carrier.users if loop.opcode == "while")
    return next((found for loop in loops if (found := _find_einsum_of_loop(loop)) is not None), None)


def _find_einsum_of_loop(instruction: HloInstruction) -> WindowedEinsum | None:
    """The windowed einsum whose loop an instruction is."""
    bodies = (name for attribute, name in instruction.called if attribute == "body")
    return next((found for name in bodies if (found := _make_einsum(name)) is not None), None)


def _find_einsum_before(instruction: HloInstruction, steps: int) -> WindowedEinsum | None:
    """The windowed loop whose result an instruction uses, within a few steps."""
    if (own := _find_einsum_of_loop(instruction)) is not None:
        return own
    operands = instruction.operands if steps and instruction.opcode != "while" else ()
    return next((found for operand in operands if (found := _find_einsum_before(operand, steps - 1)) is not None), None)


def _make_einsum(computation: str) -> WindowedEinsum | None:
    found = _BODY.match(computation)
    return None if found is None else WindowedEinsum(computation, _STANDS_FOR[found.group(1)])


def find_ancestry(
    final: Collective, earlier: Collective | None, ancestor: Collective | None, is_explained: bool
) -> tuple[Origin, str | None]:
    """The origin of a collective, unknown without evidence, and the kind that a later pass made it from, if one did.

    The partitioner's text holds the user's collectives and its own, and no others. A collective in it that is not the
    user's, which the caller has excluded, is the partitioner's; one of another kind there was rewritten by a later
    pass.

    Args:
        final: The collective, with the origin that its own text shows.
        earlier: The partitioner's collective that it still is.
        ancestor: The partitioner's collective of another kind that it was made from.
        is_explained: Whether Shardy says that data must move there.
    """
    if final.origin in (Origin.AUTHORED, Origin.REWRITTEN):
        return final.origin, None if ancestor is None or final.origin is Origin.AUTHORED else ancestor.kind.value
    if earlier is not None:
        combined = len(final.operand_shapes) > len(earlier.operand_shapes)
        return (Origin.REWRITTEN, earlier.kind.value) if combined else (Origin.INSERTED, None)
    if ancestor is not None:
        return Origin.REWRITTEN, ancestor.kind.value
    return Origin.INSERTED if final.origin is Origin.UNKNOWN and is_explained else final.origin, None
