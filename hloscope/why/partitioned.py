"""From a collective of the final module back to the one that the partitioner put into the program, and to who wrote it.

Source: measured on the programs of the tests and their like: instructions are named anew, later passes renumber
channels and reuse their numbers, and a combined collective keeps the metadata of its first part only, while each
operand was still made by an operation with its own. So a channel counts together with kind, axes and operation, and
without a channel the operation and the dimensions.

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
from functools import cached_property, lru_cache
from heapq import merge
from itertools import islice
from math import prod

from hloscope.analysis.model import ArrayShape, Collective
from hloscope.analysis.provenance import KIND_OF_PRIMITIVE, source_frames
from hloscope.analysis.vocabulary import SUMS, Kind, Link, Origin
from hloscope.compiler.shardy_model import Identities
from hloscope.hlo import HloInstruction, HloModule
from hloscope.shardy.reshards import is_float
from hloscope.units import array_bytes

_CHANNEL_DEPTH = 3
_MOVES_ELEMENTS = frozenset({"bitcast", "copy", "reshape", "transpose", "slice", "dynamic-slice"})
_KEEPS_ELEMENTS = frozenset({"bitcast", "convert", "copy", "reshape", "transpose"})
_BODY = re.compile(r"^windowed_dot_general_body_(ag|rs)")
_STANDS_FOR = {"ag": Kind.ALL_GATHER, "rs": Kind.REDUCE_SCATTER}
_STEPS = 6

Dimensions = tuple[int, ...]


class Partitioned:
    """What the partitioner put into the program.

    Attributes:
        module: The module right after the partitioner.
        identities: The operations that its instructions were made from.
    """

    def __init__(
        self, module: HloModule, collectives: Sequence[tuple[Collective, int | None]], identities: Identities
    ) -> None:
        """Takes its collectives in the order of the text, each with its channel."""
        self.module, self.identities = module, identities
        self._collectives = collectives
        self._taken: frozenset[int] = frozenset()
        self._by_clue: dict[object, list[int]] = defaultdict(list)
        for number, (collective, channel) in enumerate(collectives):
            for clue in _clues_in(collective, channel, self.numbers_of(collective)):
                self._by_clue[clue].append(number)

    def numbers_of(self, collective: Collective) -> frozenset[int]:
        """The operations that one of its collectives was made from."""
        return numbers_of(collective.name, self.identities)

    def without(self, taken: Collective) -> Partitioned:
        """The same without one collective, which another of the final module is known to be made from."""
        found = copy(self)
        found._taken = self._taken | {id(taken)}
        return found

    def having(self, *clues: object) -> Iterator[Collective]:
        """The collectives that have one of these clues, in the order of the text."""
        numbers = merge(*(self._by_clue.get(clue, ()) for clue in clues))
        found = (self._collectives[number][0] for number in numbers)
        return (collective for collective in found if id(collective) not in self._taken)

    @cached_property
    def outputs(self) -> dict[str, list[int]]:
        """Numbers of the program's outputs by instruction: all are in the root's tuple, or the one is the root."""
        root = self.module.entry.root
        found: dict[str, list[int]] = defaultdict(list)
        for number, result in enumerate(root.operands if root.opcode == "tuple" else (root,)):
            found[result.name].append(number)
        return found

    @cached_property
    def callers(self) -> dict[str, list[HloInstruction]]:
        """The instructions that run each computation, such as the loop of a body."""
        found: dict[str, list[HloInstruction]] = defaultdict(list)
        for computation in self.module.computations:
            for instruction in computation.calling:
                for name in dict.fromkeys(called for _, called in instruction.called):
                    found[name].append(instruction)
        return found


def numbers_of(name: str, identities: Identities) -> frozenset[int]:
    """The operations that an instruction was made from, without the calls that lead to them."""
    return frozenset(identity[-1] for identity in identities.get(name, ()))


def _clues_in(collective: Collective, channel: int | None, numbers: frozenset[int]) -> Iterator[object]:
    """What a final collective is known to be made from this one by."""
    kind, axes = collective.kind, collective.axes
    yield "size", _size(collective)
    if axes is None:
        return
    if channel is not None:
        yield "channel", axes, channel
    if kind in SUMS:
        yield "sum", axes, _significant(collective)
    for number in numbers:
        yield "operation", kind, axes, number, _in_any_order(collective)


@dataclass(frozen=True, slots=True)
class Between:
    """What an instruction lies between, by way of others that no operation of the program is named by.

    Attributes:
        makers: Numbers of the operations whose results it takes.
        arguments: Names of the program's arguments that it takes.
        users: Numbers of the operations that take its result.
        outputs: Numbers of the program's outputs that it becomes.
    """

    makers: frozenset[int] = frozenset()
    arguments: frozenset[str] = frozenset()
    users: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


def between(earlier: Partitioned, collective: Collective) -> Between:
    """What a collective of the partitioner's lies between; what it is itself made from is passed as far as it moves."""
    start = earlier.module.computation(collective.computation).instruction(collective.name)
    makers, first = _numbers_around(earlier, start, lambda instruction: instruction.operands)
    users, last = _numbers_around(earlier, start, lambda instruction: instruction.users)
    if not start.computation.is_entry and any(instruction.is_root for instruction in last):
        callers = earlier.callers.get(start.computation.name, ())
        users |= {identity[-1] for caller in callers for identity in earlier.identities.get(caller.name, ())}
    arguments = (end.op_name for end in first if end.opcode == "parameter" and end.computation.is_entry)
    return Between(makers, frozenset(filter(None, arguments)), users, frozenset(_outputs(earlier, last)))


def _numbers_around(
    earlier: Partitioned, start: HloInstruction, onward: Callable[[HloInstruction], Sequence[HloInstruction]]
) -> tuple[frozenset[int], list[HloInstruction]]:
    """The operations met first on every way onward, and the instructions that were passed."""
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


def _outputs(earlier: Partitioned, passed: Iterable[HloInstruction]) -> Iterator[int]:
    """The outputs that instructions are."""
    return (number for instruction in passed for number in earlier.outputs.get(instruction.name, ()))


def link(final: Collective, numbers: frozenset[int], channel: int | None, earlier: Partitioned) -> Collective | None:
    """The partitioner's collective that a final one is, or was made from; None when nothing shows it.

    Args:
        final: A collective of the final module.
        numbers: The operations that it was made from; empty where its text does not say.
        channel: Its channel.
        earlier: What the partitioner put in.
    """
    found = next((each for each in _by_channel(final, numbers, channel, earlier) if each.kind is final.kind), None)
    shape = _in_any_order(final)
    clues = (("operation", final.kind, final.axes, number, shape) for number in sorted(numbers))
    return found or next(earlier.having(*clues), None)


def ancestor_of(
    final: Collective, numbers: frozenset[int], channel: int | None, earlier: Partitioned
) -> Collective | None:
    """The partitioner's collective of another kind that a later pass made a final one from; None when nothing shows it.

    A later pass keeps the channel and the metadata, or drops both: then what is left are axes and operands, and that a
    reduce-scatter is an all-reduce of which a part is kept. The arguments are those of `link`.
    """
    others = (each for each in _by_channel(final, numbers, channel, earlier) if each.kind is not final.kind)
    if (found := next(others, None)) is not None:
        return found
    if final.source_of is None or final.kind not in SUMS:
        return None
    sums = earlier.having(("sum", final.axes, _significant(final)))
    alike = [*islice((candidate for candidate in sums if candidate.kind is not final.kind), 2)]
    return alike[0] if len(alike) == 1 else None


def _by_channel(
    final: Collective, numbers: frozenset[int], channel: int | None, earlier: Partitioned
) -> Iterator[Collective]:
    """Those with the channel and the axes of a final collective, and of its operation.

    Across slices, where final texts say nothing of that and channels are given anew, it is the only one of its size.
    """
    for candidate in earlier.having(("channel", final.axes, channel)):
        others = earlier.numbers_of(candidate)
        if numbers and others:
            is_same = not numbers.isdisjoint(others)
        else:
            is_same = final.link is Link.ICI or len([*islice(earlier.having(("size", _size(candidate))), 2)]) == 1
        if is_same:
            yield candidate


def counted_by_size(finals: Iterable[Collective]) -> Counter[object]:
    """How many collectives there are by kind, axes and size."""
    return Counter(map(_size, finals))


def link_by_size(final: Collective, sizes: Counter[object], earlier: Partitioned) -> Collective | None:
    """The partitioner's collective of a final one that has no metadata of its own, by kind, axes and size alone.

    None unless the partitioner put in as many of these as there are in the end, and there is one of them or all are the
    user's; of several in different places the place is not given. Over DCN libtpu drops all metadata and rearranges the
    dimensions, but not the number of elements.

    Args:
        final: A collective of the final module.
        sizes: All of that module, by `counted_by_size`.
        earlier: What the partitioner put in.
    """
    if final.axes is None or (final.op_name is not None and final.source_of is None):
        return None
    alike = list(earlier.having(("size", _size(final))))
    if not alike or len(alike) != sizes[_size(final)]:
        return None
    if len(alike) > 1 and not all(is_authored(candidate) for candidate in alike):
        return None
    is_one_place = len({(candidate.op_name, candidate.source) for candidate in alike}) == 1
    return alike[0] if is_one_place else replace(alike[0], op_name=None, source=(), origin=Origin.AUTHORED)


def only_of_size(part: Collective, earlier: Partitioned) -> Collective | None:
    """The partitioner's collective of a part of a combined one, where there is only one of its kind, axes and size."""
    alike = [*islice(earlier.having(("size", _size(part))), 2)]
    return alike[0] if part.axes is not None and len(alike) == 1 else None


def are_of_one_size(collective: Collective, other: Collective) -> bool:
    """Whether two collectives move as many elements, in the same way over the same axes.

    Their types are the same, but for the width of floats, which the compiler changes.
    """
    types, others = _types(collective), _types(other)
    is_close = len(types) == len(others) and all(map(is_float, (*types, *others)))
    return _elements(collective) == _elements(other) and (types == others or is_close)


def _size(collective: Collective) -> object:
    return _elements(collective), _types(collective)


def _elements(collective: Collective) -> object:
    elements = tuple(sorted(prod(dimensions) for dimensions in dimensions_of(collective.operand_shapes)))
    return collective.kind, collective.axes, elements


def _types(collective: Collective) -> tuple[str, ...]:
    return tuple(sorted(shape.dtype for shape in collective.operand_shapes))


def is_authored(earlier: Collective) -> bool:
    """Whether a collective of the partitioner's text is the user's: there, names under shard_map are relative."""
    name = earlier.op_name or ""
    is_primitive = name.rpartition("/")[2] in KIND_OF_PRIMITIVE
    return earlier.origin is Origin.AUTHORED or (
        earlier.source_of is None and is_primitive and not name.startswith("jit(")
    )


def channel_of(module: HloModule, collective: Collective) -> int | None:
    """The channel of a collective, also inside what wraps it."""
    return next((instruction.channel_id for instruction in sending(module, collective)), None)


def sending(module: HloModule, collective: Collective) -> Iterator[HloInstruction]:
    """The instructions with a channel that a collective is: itself, or what it wraps."""
    wrapping = [module.computation(collective.computation).instruction(collective.name)]
    for _ in range(_CHANNEL_DEPTH + 1):
        yield from (instruction for instruction in wrapping if instruction.channel_id is not None)
        called = [module.computation(name) for instruction in wrapping for _, name in instruction.called]
        wrapping = [inner for computation in called for inner in computation.instructions]


def argument_of(earlier: Partitioned, collective: Collective) -> str | None:
    """The program's argument that a collective of the partitioner's moves, by the name on its parameter.

    None when it moves something computed: followed are only operations that keep all elements.
    """
    computation = earlier.module.computation(collective.computation)
    instruction = computation.instruction(collective.name)
    while instruction.operands and (instruction.name == collective.name or instruction.opcode in _KEEPS_ELEMENTS):
        instruction = instruction.operands[0]
    return instruction.op_name if instruction.opcode == "parameter" and computation.is_entry else None


def argument_at(module: HloModule, collective: Collective) -> str | None:
    """The program's argument that a collective of the final text moves, in loops too, by the name on its parameter.

    None when it moves something computed, or several arrays.
    """
    if len(collective.moved_values) != 1 or collective.moved_values[0].computation != module.entry.name:
        return None
    instruction = module.entry.instruction(collective.moved_values[0].instruction)
    return instruction.op_name if instruction.opcode == "parameter" else None


def dimensions_of(shapes: Iterable[ArrayShape]) -> tuple[Dimensions, ...]:
    """The dimensions of the shapes in which none is decided at run time."""
    return tuple(shape.dimensions for shape in shapes if shape.dimensions is not None)


@lru_cache(maxsize=4096)
def significant(dimensions: Dimensions) -> Dimensions:
    """Dimensions without those of size 1, which compilers add and drop."""
    return tuple(size for size in dimensions if size != 1)


def _significant(collective: Collective) -> object:
    return tuple(significant(dimensions) for dimensions in dimensions_of(collective.operand_shapes))


def _in_any_order(collective: Collective) -> object:
    return tuple(tuple(sorted(significant(each))) for each in dimensions_of(collective.operand_shapes))


def parts_of(combined: Collective, module: HloModule) -> tuple[Collective, ...]:
    """A collective for each array, most bytes first; of an ordinary one, itself alone.

    Args:
        combined: A collective of `module`.
        module: The final module.
    """
    count = len(combined.operand_shapes)
    if count < 2 or not count == len(combined.result_shapes) == len(combined.moved_values):
        return (combined,)
    by_size = sorted(range(count), key=lambda number: -_bytes(combined.operand_shapes[number]))
    return tuple(_part(combined, number, module) for number in by_size)


def _bytes(shape: ArrayShape) -> int:
    """Bytes of a shape, for their order; an element type without a size comes first, as the largest there can be."""
    known = array_bytes(shape.dtype, prod(shape.dimensions or ()))
    return 1 << 62 if known is None else known


def _part(combined: Collective, number: int, module: HloModule) -> Collective:
    *_, made = makers = list(_makers(combined, number, module))
    named = next((maker for maker in makers if maker.op_name), None)
    return replace(
        combined,
        name=made.name if named is None else named.name,
        operand_shapes=combined.operand_shapes[number : number + 1],
        result_shapes=combined.result_shapes[number : number + 1],
        moved_values=combined.moved_values[number : number + 1],
        op_name=None if named is None else named.op_name,
        source=() if named is None else source_frames(named),
    )


def _makers(combined: Collective, number: int, module: HloModule) -> Iterator[HloInstruction]:
    """The instruction that hands an array over, then the one that made it."""
    operands = module.computation(combined.computation).instruction(combined.name).operands
    if len(operands) == len(combined.operand_shapes):
        yield operands[number]
    made = combined.moved_values[number]
    yield module.computation(made.computation).instruction(made.instruction)


@dataclass(frozen=True, slots=True)
class Window:
    """A windowed einsum.

    Attributes:
        body: The computation that is its loop's body.
        stands_for: The collective that its permutes take the place of.
    """

    body: str
    stands_for: Kind


def window_of(module: HloModule, permute: Collective) -> Window | None:
    """The windowed einsum that a permute belongs to: inside its loop, or a step before or after it; None for others.

    Args:
        module: The module right after the partitioner.
        permute: One of its collectives.
    """
    if permute.kind is not Kind.COLLECTIVE_PERMUTE:
        return None
    inside = _window(permute.computation)
    if inside is not None:
        return inside
    instruction = module.computation(permute.computation).instruction(permute.name)
    return _after(instruction, _STEPS) or _before(instruction)


def _before(instruction: HloInstruction) -> Window | None:
    """The windowed loop that an instruction's result goes into."""
    carried = [user for user in instruction.users if user.opcode == "tuple"]
    loops = (loop for carrier in carried for loop in carrier.users if loop.opcode == "while")
    return next((found for loop in loops if (found := _of_loop(loop)) is not None), None)


def _of_loop(instruction: HloInstruction) -> Window | None:
    """The window whose loop an instruction is."""
    bodies = (name for attribute, name in instruction.called if attribute == "body")
    return next((found for name in bodies if (found := _window(name)) is not None), None)


def _after(instruction: HloInstruction, steps: int) -> Window | None:
    """The windowed loop that an instruction takes a result of, through a few steps."""
    if (own := _of_loop(instruction)) is not None:
        return own
    operands = instruction.operands if steps and instruction.opcode != "while" else ()
    return next((found for operand in operands if (found := _after(operand, steps - 1)) is not None), None)


def _window(computation: str) -> Window | None:
    found = _BODY.match(computation)
    return None if found is None else Window(computation, _STANDS_FOR[found.group(1)])


def ancestry_of(
    final: Collective, earlier: Collective | None, ancestor: Collective | None, is_explained: bool
) -> tuple[Origin, str | None]:
    """Who put a collective there, unknown without evidence; and the kind that a later pass made it from, if one did.

    The partitioner's text holds the user's collectives and its own, and no others. What is in it and is not the user's,
    which is known before this is asked, is the partitioner's; what is of another kind there was made by a later pass.

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
