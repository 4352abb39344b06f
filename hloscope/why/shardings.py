"""The shardings that Shardy gave arrays: those of the program, and those of large arrays in the compiled module."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from math import inf, prod

from hloscope.analysis.provenance import find_users_frame, is_gradient
from hloscope.base.results import Brief
from hloscope.base.units import count_array_bytes
from hloscope.model import IntermediateFact, SourceFrame
from hloscope.model.capture import (
    CodePlace,
    ShardyModule,
    ShardyOp,
    ShardyValue,
    ValueSharding,
    render_spec,
)
from hloscope.model.reason import Axes, Frame, Operation, Tensor
from hloscope.why.claims import Askers, Claims
from hloscope.why.reshards import (
    find_assigned_name,
    find_reshards,
    find_search_name,
    have_matching_ends,
    hlo_type,
    is_float,
    known_sharding,
    local_shape,
)
from hloscope.why.shardy_graph import COLLECTIVE_KINDS, MOVE_KINDS, ShardyGraph, find_source_line, is_written, to_frames

# ---- letters of dimensions, from einsums and the notation of arguments, passed from value to value

_EINSUM = re.compile(r"(?:^|[/(])([A-Za-z.]+(?:,[A-Za-z.]+)*)->([A-Za-z.]*)[/)]")
_GRADIENT = "transpose("

Letters = tuple[str | None, ...]


def find_letters(graph: ShardyGraph, of_arguments: Sequence[Letters | None]) -> dict[int, Letters]:
    """The known letters, by value.

    One pass in text order: an operation takes letters from its operands and from the einsum in its name, by the factors
    of its sharding rule, and gives them to its results.

    Args:
        graph: The module.
        of_arguments: The letters in the notation of each argument of the program; None if it has none.
    """
    given = ((value, of_arguments[number]) for number, value in graph.arguments.items() if number < len(of_arguments))
    known = {value.index: letters for value, letters in given if letters and len(letters) == len(value.shape)}
    spelled = {op.index: _read_einsum_letters(op) for op in graph.module.ops if op.op_name and "->" in op.op_name}
    for index, factors in spelled.items():
        op = graph.module.ops[index]
        _give_letters(op.operands, op.rule.operands if op.rule else (), factors, graph, known)
        for operand in op.operands:
            _give_letters_back(operand, graph, known)
    for value in graph.module.values:
        if value.is_argument:
            _copy_letters(value, graph.outside(value), known)
        else:
            _set_result_letters(value, graph, spelled, known)
    return known


def _set_result_letters(
    value: ShardyValue, graph: ShardyGraph, spelled: Mapping[int, dict[int, str]], known: dict[int, Letters]
) -> None:
    op = graph.module.ops[value.owner]
    if op.rule is not None and value.number < len(op.rule.results):
        factors = _find_operand_factors(op.rule.operands, tuple(known.get(operand, ()) for operand in op.operands))
        factors = {**factors, **spelled[op.index]} if op.index in spelled else factors
        _give_letters((value.index,), (op.rule.results[value.number],), factors, graph, known)
        return
    before = graph.before(value)
    _copy_letters(value, before and before[0], known)


def _copy_letters(value: ShardyValue, other: ShardyValue | None, known: dict[int, Letters]) -> None:
    """Copies letters from another value of the same shape, for dimensions that have none."""
    if other is not None and other.index in known and other.shape == value.shape:
        known[value.index] = _fill_letters(known.get(value.index), known[other.index])


def _fill_letters(own: Letters | None, others: Letters) -> Letters:
    return others if own is None else tuple(old or new for old, new in zip(own, others, strict=True))


def render_letters(value: ShardyValue, known: Mapping[int, Letters]) -> tuple[str, ...]:
    """A word for each dimension: its letter, or its size if it has none or shares one with another dimension."""
    letters = known.get(value.index, (None,) * len(value.shape))
    return tuple(
        str(size) if letter is None or letters.count(letter) > 1 else letter
        for letter, size in zip(letters, value.shape, strict=True)
    )


def _find_operand_factors(
    mappings: tuple[tuple[tuple[int, ...], ...], ...], operands: tuple[Letters, ...]
) -> Mapping[int, str]:
    """The letter of each factor, except letters that another dimension of the operands also has."""
    factors: dict[int, str] = {}
    for letters, mapping in zip(operands, mappings, strict=False):
        for letter, dimension in zip(letters, mapping, strict=False):
            if letter is not None and len(dimension) == 1:
                factors.setdefault(dimension[0], letter)
    each = list(factors.values())
    return {factor: letter for factor, letter in factors.items() if each.count(letter) == 1}


def _give_letters(
    values: Sequence[int],
    mappings: Sequence[tuple[tuple[int, ...], ...]],
    factors: Mapping[int, str],
    graph: ShardyGraph,
    known: dict[int, Letters],
) -> None:
    """Gives letters to dimensions that are a single factor, unless they already have some."""
    for index, mapping in zip(values, mappings, strict=False):
        found = tuple(factors.get(dimension[0]) if len(dimension) == 1 else None for dimension in mapping)
        if any(found) and len(found) == len(graph.value(index).shape):
            known[index] = _fill_letters(known.get(index), found)


def _give_letters_back(operand: int, graph: ShardyGraph, known: dict[int, Letters]) -> None:
    """Passes the letters of an einsum's operand back to the values it is computed from element by element."""
    letters = known.get(operand)
    value = graph.value(operand)
    if letters is None:
        return
    for passed in graph.chain(value):
        if passed.shape != value.shape:
            return
        known[passed.index] = _fill_letters(known.get(passed.index), letters)


def _read_einsum_letters(op: ShardyOp) -> dict[int, str]:
    """The letter of each factor of an einsum's contraction; empty if the operation does not match its letters."""
    found = _EINSUM.search(op.op_name or "")
    if found is None or _GRADIENT in (op.op_name or "") or op.rule is None or len(op.operands) != len(op.rule.operands):
        return {}
    inputs = found.group(1).split(",")
    everything = "".join(inputs) + found.group(2)
    for order in (inputs, inputs[::-1]):
        factors = _match_factors(order, op)
        if factors is not None:
            upper = everything.lower() == everything
            return {factor: letter.upper() if upper else letter for factor, letter in factors.items()}
    return {}


def _match_factors(inputs: Sequence[str], op: ShardyOp) -> dict[int, str] | None:
    """Factors by letter, if each operand has one letter per dimension and each letter is one factor; otherwise None."""
    rule = op.rule
    if rule is None or [len(letters) for letters in inputs] != [len(mapping) for mapping in rule.operands]:
        return None
    factors: dict[int, str] = {}
    for letters, mapping in zip(inputs, rule.operands, strict=True):
        for letter, dimension in zip(letters, mapping, strict=True):
            if len(dimension) != 1 or factors.setdefault(dimension[0], letter) != letter:
                return None
    return factors if len(set(factors.values())) == len(factors) else None


# ---- shardy's values and operations as records of the report, with names, letters and the origin of each axis

_READS = frozenset({"stablehlo.dynamic_slice", "stablehlo.reshape", "stablehlo.slice"})
_REARRANGING = {
    "stablehlo.reshape": ("reshape", "squeeze", "expand_dims", "broadcast_in_dim", "dynamic_slice", "gather"),
    "stablehlo.transpose": ("transpose",),
}
"""Operations that XLA moves past others, with JAX's names for them."""

_CUMULATIVE = re.compile(r"jit\((cum\w+)\)$")
_CONTRACTIONS = frozenset({"stablehlo.dot", "stablehlo.dot_general", "stablehlo.convolution"})
_TRANSPOSED = {"stablehlo.reduce": "stablehlo.broadcast_in_dim", "stablehlo.scatter": "stablehlo.gather"}
"""The operation that sums gradients, by the kind of the forward operation that copies values."""


SortedSizes = tuple[int, ...]
"""The sorted sizes of a shape, which are equal for a transposed shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserProgram:
    """The user's program as Shardy sees it, with the user's names.

    Attributes:
        graph: The module.
        letters: A letter for each dimension, by value.
        outputs: Names of the program's outputs, in order.
        requested: The outputs whose sharding was requested.
        forward: The operands of operations in forward passes, by line, kind and shape sizes.
        read_with: The operands of products in forward passes, by the root of one operand and the sizes of another's
        shape.
        written: The first collective of a forward pass at each line.
        askers: Who asks for shardings.
        claims: Which dimensions claim its axes.
    """

    graph: ShardyGraph
    letters: dict[int, Letters]
    outputs: tuple[str, ...]
    requested: frozenset[int]
    forward: Mapping[tuple[CodePlace, str, SortedSizes], Mapping[int, ShardyValue]]
    read_with: Mapping[tuple[int, SortedSizes], Mapping[int, ShardyValue]]
    written: Mapping[CodePlace, ShardyOp]
    askers: Askers
    claims: Claims
    _tensors: dict[tuple[int, ValueSharding | None, Axes], Tensor] = field(default_factory=dict)


def read_user_program(
    graph: ShardyGraph,
    argument_letters: Sequence[Letters | None],
    outputs: Sequence[str],
    requested: Iterable[int] | None = None,
    given: Iterable[int] | None = None,
) -> UserProgram:
    """Reads the names and letters of a module once.

    Args:
        graph: The module.
        argument_letters: The letters of each argument.
        outputs: The names of the outputs.
        requested: The outputs whose sharding was requested; all by default.
        given: The arguments whose sharding was given; by default those that have it by themselves.
    """
    forward: dict[tuple[CodePlace, str, SortedSizes], dict[int, ShardyValue]] = defaultdict(dict)
    read_with: dict[tuple[int, SortedSizes], dict[int, ShardyValue]] = defaultdict(dict)
    written: dict[CodePlace, ShardyOp] = {}
    for op in graph.module.ops:
        if not op.source or is_gradient(op.op_name):
            continue
        if op.kind in COLLECTIVE_KINDS:
            written.setdefault(op.source[0], op)
        taken = [(graph.root(value)[0].index, value) for value in map(graph.value, op.operands)]
        for root, value in taken:
            if not is_float(value.element_type):
                continue
            forward[op.source[0], _classify_operation(op.kind), _sort_sizes(value)][root] = value
            for other, _ in taken if op.kind in _CONTRACTIONS else ():
                read_with[other, _sort_sizes(value)][root] = value
    letters = find_letters(graph, argument_letters)
    asked = frozenset(range(len(outputs)) if requested is None else requested)
    askers = Askers(graph, tuple(outputs), asked, None if given is None else frozenset(given))
    return UserProgram(
        graph=graph,
        letters=letters,
        outputs=tuple(outputs),
        requested=asked,
        askers=askers,
        claims=Claims(askers, letters),
        forward=forward,
        read_with=read_with,
        written=written,
    )


def _sort_sizes(value: ShardyValue) -> SortedSizes:
    return tuple(sorted(value.shape))


def _classify_operation(kind: str) -> str:
    """The kind of an operation, with one kind for all contractions."""
    return "contraction" if kind in _CONTRACTIONS else kind


def find_differentiated(program: UserProgram, op: ShardyOp | None) -> ShardyValue | None:
    """The forward value whose gradient an operation of the backward pass computes; None for any other operation.

    That is the only operand of the original operation that has the gradient's shape and is not read to compute it: the
    gradient of a product by one factor is computed from the other. The original is at the same line or, because JAX
    keeps no line for a backward pass written by hand, a product that reads the same operand.
    """
    if op is None or not op.source or not op.results or not is_gradient(op.op_name):
        return None
    graph = program.graph
    sizes = _sort_sizes(graph.value(op.results[0]))
    read = {graph.root(graph.value(operand))[0].index for operand in op.operands}
    same = program.forward.get((op.source[0], _classify_operation(op.kind), sizes), {})
    spread = program.forward.get((op.source[0], _TRANSPOSED.get(op.kind, ""), sizes), {})
    products = read if op.kind in _CONTRACTIONS else ()
    elsewhere = (program.read_with.get((root, sizes), {}) for root in products)
    for taken in ([same], [spread], elsewhere):
        found = _select_unread(taken, read) if sizes else {}
        if len(found) == 1:
            return next(iter(found.values()))
    return None


def _select_unread(taken: Iterable[Mapping[int, ShardyValue]], read: Collection[int]) -> dict[int, ShardyValue]:
    """Values by root, without those that are read; at most two, because more make no difference."""
    found: dict[int, ShardyValue] = {}
    for values in taken:
        unread = (item for item in values.items() if item[0] not in read)
        found.update(islice(unread, 2))
    return found


def make_tensor(
    program: UserProgram, value: ShardyValue, sharding: ValueSharding | None = None, partial_over: Axes = ()
) -> Tensor:
    """A value under the name that the user knows it by.

    The name is that of its variable; otherwise, if its elements were only processed one by one, that of the array it is
    computed from; otherwise that of its producer.

    Args:
        program: The program.
        value: One of its values.
        sharding: Its sharding, if that differs from the value's own.
        partial_over: Axes over which it holds partial sums.
    """
    key = value.index, sharding, partial_over
    if key not in program._tensors:
        program._tensors[key] = _as_tensor(program, value, sharding, partial_over)
    return program._tensors[key]


def _as_tensor(program: UserProgram, value: ShardyValue, sharding: ValueSharding | None, partial_over: Axes) -> Tensor:
    graph = program.graph
    root, rearranged = graph.root(value)
    argument = graph.argument_behind(value)
    alike = (before for before in graph.chain(value) if before.shape == value.shape)
    name = next(
        (found for before in alike if (found := _find_users_name(graph, before))), None
    ) or _find_carried_on_name(program, value)
    maker = _find_converted_maker(graph, value) or graph.maker(root)
    if name is None and argument is not None:
        shown = f"part of {argument}" if rearranged else argument
    else:
        shown = name or (_find_maker_name(program, maker) if maker else _find_carried_name(program, root))
    return Tensor(
        name=shown,
        named=name is not None or (argument is not None and not rearranged),
        element_type=value.element_type,
        shape=value.shape,
        letters=render_letters(value, program.letters),
        sharding=value.sharding if sharding is None else sharding,
        partial_over=partial_over,
        argument=argument,
        source=to_frames(maker.source) if maker else (),
    )


def _find_converted_maker(graph: ShardyGraph, value: ShardyValue) -> ShardyOp | None:
    """The operation that computes a value, looking through type conversions."""
    maker = graph.maker(value)
    while maker is not None and maker.kind == "stablehlo.convert" and not is_gradient(maker.op_name):
        before = graph.maker(graph.value(maker.operands[0]))
        if before is None:
            break
        maker = before
    return maker


def make_operand_tensors(program: UserProgram, op: ShardyOp, *, unmoved: bool = False) -> tuple[Tensor, ...]:
    """The operands of an operation, each dimension with the letter that it has in any of them.

    Args:
        program: The program.
        op: The operation.
        unmoved: Whether to use them as they were before Shardy moved them for it.
    """
    values = [program.graph.value(operand) for operand in op.operands]
    found = [make_tensor(program, program.graph.unmoved(operand) if unmoved else operand) for operand in values]
    if op.rule is None or len(op.rule.operands) != len(found):
        return tuple(found)
    factors = _find_factor_letters(found, op.rule.operands)
    lettered = []
    for tensor, mapping in zip(found, op.rule.operands, strict=True):
        dimensions = zip(tensor.letters, tensor.shape, mapping, strict=False)
        letters = tuple(_choose_letter(letter, size, made, factors) for letter, size, made in dimensions)
        is_other = letters != tensor.letters and len(letters) == len(tensor.letters)
        lettered.append(replace(tensor, letters=letters) if is_other else tensor)
    return tuple(lettered)


def _find_factor_letters(found: Sequence[Tensor], mappings: Sequence[Sequence[tuple[int, ...]]]) -> dict[int, str]:
    """The letter of each factor; if two factors share a letter, the one that more operands have keeps it."""
    letters: dict[int, str] = {}
    shared: Counter[int] = Counter()
    for tensor, mapping in zip(found, mappings, strict=True):
        alone = [(made[0], letter) for letter, made in zip(tensor.letters, mapping, strict=False) if len(made) == 1]
        shared.update(factor for factor, _ in alone)
        letters |= {factor: letter for factor, letter in alone if letter.isalpha()}
    kept: dict[str, int] = {}
    for factor, letter in letters.items():
        if letter not in kept or shared[factor] > shared[kept[letter]]:
            kept[letter] = factor
    return {factor: letter for letter, factor in kept.items()}


def _choose_letter(letter: str, size: int, made: tuple[int, ...], factors: Mapping[int, str]) -> str:
    """A dimension's own letter, unless another dimension has it; otherwise its factor's letter or its size."""
    if letter.isalpha() and (len(made) != 1 or factors.get(made[0]) == letter or letter not in factors.values()):
        return letter
    return factors.get(made[0], str(size)) if len(made) == 1 else letter


def _find_carried_name(program: UserProgram, value: ShardyValue) -> str:
    """The name of a carried value, from before the loop."""
    outside = program.graph.outside(value)
    first = None if outside is None else make_tensor(program, outside)
    return f"carried {first.name}" if first is not None and first.named else "a carried value"


def _find_carried_on_name(program: UserProgram, value: ShardyValue) -> str | None:
    """The name of a value that a loop carries to its next iteration, from before the loop; None for anything else."""
    graph = program.graph
    for user, number in graph.real_users(value):
        first = graph.value(user.operands[number]) if user.kind == "stablehlo.while" else None
        if first is not None and first.index != value.index and first.shape == value.shape:
            tensor = make_tensor(program, first)
            return tensor.name if tensor.named else None
    return None


def find_own_name(program: UserProgram, value: ShardyValue) -> str:
    """The variable that holds a value, or the name of its producer."""
    op = program.graph.maker(value)
    return _find_users_name(program.graph, value) or ("a value" if op is None else _find_maker_name(program, op))


def _find_maker_name(program: UserProgram, op: ShardyOp) -> str:
    is_read = op.kind in _READS  # of a residual of the forward pass, or of a gradient: it shows nothing
    original = find_differentiated(program, op)
    known = None if original is None else make_tensor(program, original)
    if known is not None and known.named:
        return f"gradient of {known.name}"
    is_backward = is_gradient(op.op_name) and not is_read
    return f"{'gradient' if is_backward else 'result'} of {find_operation_name(program.graph, op)}"


def _find_users_name(graph: ShardyGraph, value: ShardyValue) -> str | None:
    return value.name if graph.is_program_argument(value) else find_assigned_name(graph, value)


def make_operation(program: UserProgram, op: ShardyOp | None) -> Operation | None:
    """An operation under JAX's name; None for None."""
    if op is None:
        return None
    name = find_operation_name(program.graph, op)
    return Operation(name=name, op_name=op.op_name, source=to_frames(op.source))


def find_operation_name(graph: ShardyGraph, op: ShardyOp) -> str:
    """The last part of JAX's name, such as `dot_general`, or of MLIR's if there is none."""
    path, _, last = (op.op_name or "").partition(";")[0].rstrip(":").rpartition("/")  # fused names follow one another
    if op.kind == "stablehlo.reduce_window" and (cumulative := _CUMULATIVE.search(path)) is not None:
        return cumulative.group(1)
    if (search := find_search_name(graph, op)) is not None:
        return search
    if has_anothers_name(op):
        return op.kind.rpartition(".")[2]
    is_jaxs = path and last and not last.startswith("jit(")  # names without a path are the compiler's own
    return last if is_jaxs else op.symbol or op.kind.rpartition(".")[2]


def has_anothers_name(op: ShardyOp) -> bool:
    """Returns whether XLA has moved an operation past another one and it has the other's name."""
    last = (op.op_name or "").partition(";")[0].rstrip(":").rpartition("/")[2]
    return op.kind in _REARRANGING and bool(last) and last not in _REARRANGING[op.kind]


_HELD = frozenset({"func.func", "func.call", "stablehlo.constant", "sdy.constant", "stablehlo.while"})


class ArrayRole(StrEnum):
    """The role of an array in the program."""

    ARGUMENT = "argument"
    CONSTRAINT = "constraint"
    OUTPUT = "output"
    INTERMEDIATE = "intermediate"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShardedArray(Brief):
    """One array of the program, with its sharding.

    Attributes:
        role: Role in the program.
        name: The user's name, or the operation that produces it.
        element_type: XLA's short type name.
        global_shape: Dimensions of the whole array.
        local_shape: Dimensions on one device, rounded up.
        sharding: The sharding, such as `P('X', None)`.
        bytes_per_device: Logical bytes on one device; None if the type is unknown.
        source: Where it is produced or constrained; None for arguments and outputs.
        is_moved: Whether Shardy reshards it before it is used.
    """

    role: ArrayRole
    name: str
    element_type: str
    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    sharding: str
    bytes_per_device: int | None
    source: Frame | None = None
    is_moved: bool = False


def list_sharded_arrays(
    module: ShardyModule, letters: Sequence[Letters | None], outputs: Sequence[str], *, largest: int = 10
) -> tuple[ShardedArray, ...]:
    """The arguments, constraints and outputs in the program's order, then the largest intermediates.

    Args:
        module: The module after propagation.
        letters: The letters of the arguments.
        outputs: The names of the outputs.
        largest: Maximum number of intermediates; those that look the same in the report count once.
    """
    program = read_user_program(ShardyGraph(module), letters, outputs)
    moved = {same.index for reshard in find_reshards(program.graph) for same in program.graph.passed_in(reshard.value)}
    reader = _ShardingReader(program, dict(module.mesh), moved)
    arguments = [value for value in module.values if program.graph.is_program_argument(value)]
    constraints = [op for op in module.ops if is_written(op)]
    return (
        *(reader.array(ArrayRole.ARGUMENT, value, value.name or f"argument {value.number}") for value in arguments),
        *(reader.constraint(op) for op in constraints),
        *reader.outputs(outputs),
        *reader.largest(largest),
    )


@dataclass(frozen=True, slots=True)
class _ShardingReader:
    program: UserProgram
    mesh: dict[str, int]
    moved: set[int]

    def array(self, role: ArrayRole, value: ShardyValue, name: str, source: SourceFrame | None = None) -> ShardedArray:
        sharding = known_sharding(value)
        local = local_shape(value.shape, sharding, self.mesh)
        element_type = hlo_type(value.element_type)
        return ShardedArray(
            role=role,
            name=name,
            element_type=element_type,
            global_shape=value.shape,
            local_shape=local,
            sharding=render_spec(sharding, value.unreduced) or "P()",
            bytes_per_device=count_array_bytes(element_type, prod(local)),
            source=source,
            is_moved=value.index in self.moved,
        )

    def constraint(self, op: ShardyOp) -> ShardedArray:
        value = self.program.graph.value(op.results[0])
        if op.asked is not None:  # its own sharding may still be its operand's, followed by the reshard
            value = replace(value, sharding=op.asked)
        return self.array(
            ArrayRole.CONSTRAINT, value, find_own_name(self.program, value), find_users_frame(to_frames(op.source))
        )

    def outputs(self, names: Sequence[str]) -> Iterator[ShardedArray]:
        graph = self.program.graph
        returned = None if graph.module.main is None else graph.returns.get((graph.module.main, 0))
        for number, operand in enumerate(() if returned is None else returned.operands):
            name = names[number] if number < len(names) else f"result[{number}]"
            yield self.array(ArrayRole.OUTPUT, graph.value(operand), name)

    def largest(self, count: int) -> list[ShardedArray]:
        graph = self.program.graph
        made = [value for value in graph.module.values if not value.is_argument and value.shape]
        made = [value for value in made if graph.module.ops[value.owner].kind not in MOVE_KINDS | _HELD]
        sized = [(self._bytes(value), value) for value in made if not graph.in_manual(graph.module.ops[value.owner])]
        sized.sort(key=lambda pair: (-pair[0], pair[1].index))
        found: dict[ShardedArray, None] = {}
        for _, value in sized:
            op = graph.module.ops[value.owner]
            name = find_own_name(self.program, value)
            found.setdefault(self.array(ArrayRole.INTERMEDIATE, value, name, find_users_frame(to_frames(op.source))))
            if len(found) == count:
                break
        return list(found)

    def _bytes(self, value: ShardyValue) -> float:
        """Bytes on one device, for sorting; an array whose type has no known size sorts first."""
        local = local_shape(value.shape, known_sharding(value), self.mesh)
        known = count_array_bytes(hlo_type(value.element_type), prod(local))
        return inf if known is None else known


def attach_shardings(found: Sequence[IntermediateFact], module: ShardyModule) -> tuple[IntermediateFact, ...]:
    """Adds to each array the global shape and sharding of the value that it is a device's part of.

    That is the value that is cut to this array's shape and produced by the operation of its name, in any type that the
    compiler keeps it in; otherwise the one of its type from its line of code. The array is unchanged if there is no
    such value, or if there are several with different shardings.

    Args:
        found: Large arrays of the compiled program.
        module: The program after Shardy's propagation.
    """
    graph = ShardyGraph(module)
    cut: dict[tuple[int, ...], list[ShardyValue]] = {fact.local_shape: [] for fact in found}
    for value in module.values:
        if value.is_argument or not value.shape:
            continue
        alike, maker = cut.get(local_shape(value.shape, known_sharding(value), module.mesh)), module.ops[value.owner]
        if alike is not None and maker.kind not in MOVE_KINDS and not graph.in_manual(maker):
            alike.append(value)
    return tuple(_attach_sharding(fact, cut[fact.local_shape], module) for fact in found)


def _attach_sharding(fact: IntermediateFact, values: Iterable[ShardyValue], module: ShardyModule) -> IntermediateFact:
    made_by = [(value, module.ops[value.owner]) for value in values]
    named = [value for value, op in made_by if _has_name_of(fact, op)]
    of_its_type = ((value, op) for value, op in made_by if hlo_type(value.element_type) == fact.dtype)
    chosen = named or [value for value, op in of_its_type if _has_line_of(fact, op)]
    whole = {(value.shape, render_spec(known_sharding(value)) or "P()") for value in chosen}
    if len(whole) != 1:
        return fact
    [(shape, sharding)] = whole
    return replace(fact, global_shape=shape, sharding=sharding)


def _has_name_of(fact: IntermediateFact, op: ShardyOp) -> bool:
    return fact.op_name is not None and op.op_name is not None and have_matching_ends(op.op_name, fact.op_name)


def _has_line_of(fact: IntermediateFact, op: ShardyOp) -> bool:
    return bool(fact.source) and find_source_line(fact.source) == find_source_line(op.source)
