"""Shardy's values and operations as the records of the report: named, lettered, with who asked for each axis."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice

from hloscope.analysis.model import SourceFrame
from hloscope.analysis.model.reason import AskedBy, Axes, Operation, Tensor
from hloscope.compiler.shardy_model import CodePlace, ShardyOp, ShardyValue, ValueSharding
from hloscope.program.capture import spec_text
from hloscope.shardy.graph import WRITTEN, ShardyGraph, axes_in, is_written, whole_axis, wholes
from hloscope.shardy.letters import Letters, letters_of_values, shown_letters
from hloscope.shardy.names import assigned_name, is_gradient, search_name
from hloscope.shardy.reshards import is_float

_READS = frozenset({"stablehlo.dynamic_slice", "stablehlo.reshape", "stablehlo.slice"})
_REARRANGING = {
    "stablehlo.reshape": ("reshape", "squeeze", "expand_dims", "broadcast_in_dim", "dynamic_slice", "gather"),
    "stablehlo.transpose": ("transpose",),
}
"""Operations that XLA moves past others, with the names that JAX has for them."""

_CUMULATIVE = re.compile(r"jit\((cum\w+)\)$")
_NUMBERED = re.compile(r"^(?:(?P<holder>\w+)_)?(?P<side>input|output): (?P<number>\d+)$")
_CONTRACTIONS = frozenset({"stablehlo.dot", "stablehlo.dot_general", "stablehlo.convolution"})
_TRANSPOSED = {"stablehlo.reduce": "stablehlo.broadcast_in_dim", "stablehlo.scatter": "stablehlo.gather"}
"""What adds up the gradients of what its original copies, by kind."""


Sizes = tuple[int, ...]
"""The sizes of a shape in order: those of what is transposed are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The user's program as Shardy sees it, with the names that the user gave.

    Attributes:
        graph: The module.
        letters: A letter for each dimension, by value.
        outputs: Names of the program's outputs, in order.
        requested: The outputs whose sharding somebody asked for.
        forward: What the operations of forward passes take, by their line, their kind and its shape's sizes.
        read_with: What their products take, by the root of one of the operands and the sizes of another's shape.
        written: The first collective of a forward pass at each line.
    """

    graph: ShardyGraph
    letters: dict[int, Letters]
    outputs: tuple[str, ...]
    requested: frozenset[int]
    forward: Mapping[tuple[CodePlace, str, Sizes], Mapping[int, ShardyValue]]
    read_with: Mapping[tuple[int, Sizes], Mapping[int, ShardyValue]]
    written: Mapping[CodePlace, ShardyOp]
    _tensors: dict[tuple[int, ValueSharding | None, Axes], Tensor] = field(default_factory=dict)
    _operations: dict[int, Operation] = field(default_factory=dict)


def program_of(
    graph: ShardyGraph,
    argument_letters: Sequence[Letters | None],
    outputs: Sequence[str],
    requested: Iterable[int] | None = None,
) -> Program:
    """Reads the names and letters of a module once; where it is not said which outputs were asked for, all were."""
    forward: dict[tuple[CodePlace, str, Sizes], dict[int, ShardyValue]] = defaultdict(dict)
    read_with: dict[tuple[int, Sizes], dict[int, ShardyValue]] = defaultdict(dict)
    written: dict[CodePlace, ShardyOp] = {}
    for op in graph.module.ops:
        if not op.source or is_gradient(op.op_name):
            continue
        if op.kind in WRITTEN:
            written.setdefault(op.source[0], op)
        taken = [(graph.root(value)[0].index, value) for value in map(graph.value, op.operands)]
        for root, value in taken:
            if not is_float(value.element_type):
                continue
            forward[op.source[0], _class_of(op.kind), _sizes(value)][root] = value
            for other, _ in taken if op.kind in _CONTRACTIONS else ():
                read_with[other, _sizes(value)][root] = value
    return Program(
        graph=graph,
        letters=letters_of_values(graph, argument_letters),
        outputs=tuple(outputs),
        requested=frozenset(range(len(outputs)) if requested is None else requested),
        forward=forward,
        read_with=read_with,
        written=written,
    )


def _sizes(value: ShardyValue) -> Sizes:
    return tuple(sorted(value.shape))


def _class_of(kind: str) -> str:
    """The kind of an operation; one for all contractions."""
    return "contraction" if kind in _CONTRACTIONS else kind


def differentiated(program: Program, op: ShardyOp | None) -> ShardyValue | None:
    """The value of the forward pass whose gradient an operation of the backward pass makes; None for any other.

    That is the one operand of the operation's original that has the gradient's shape and is not read to make it: the
    gradient of a product by one factor is made of the other. The original is at the same line, or, as JAX keeps none of
    a backward pass that is written by hand, a product that reads the same.
    """
    if op is None or not op.source or not op.results or not is_gradient(op.op_name):
        return None
    graph = program.graph
    sizes = _sizes(graph.value(op.results[0]))
    read = {graph.root(graph.value(operand))[0].index for operand in op.operands}
    same = program.forward.get((op.source[0], _class_of(op.kind), sizes), {})
    spread = program.forward.get((op.source[0], _TRANSPOSED.get(op.kind, ""), sizes), {})
    products = read if op.kind in _CONTRACTIONS else ()
    elsewhere = (program.read_with.get((root, sizes), {}) for root in products)
    for taken in ([same], [spread], elsewhere):
        found = _others(taken, read) if sizes else {}
        if len(found) == 1:
            return next(iter(found.values()))
    return None


def _others(taken: Iterable[Mapping[int, ShardyValue]], read: Collection[int]) -> dict[int, ShardyValue]:
    """Values by root without those that are read; no more than two, which are as many as all."""
    found: dict[int, ShardyValue] = {}
    for values in taken:
        unread = (item for item in values.items() if item[0] not in read)
        found.update(islice(unread, 2))
    return found


def tensor_of(
    program: Program, value: ShardyValue, sharding: ValueSharding | None = None, partial_over: Axes = ()
) -> Tensor:
    """A value under the name that the user knows it by.

    That of the variable it is assigned to; else, where its elements only were computed with one by one, that of what
    it is computed from; else what made it.

    Args:
        program: The program.
        value: One of its values.
        sharding: Its sharding, when that differs from the value's own.
        partial_over: Axes over which it holds partial sums.
    """
    key = value.index, sharding, partial_over
    if key not in program._tensors:
        program._tensors[key] = _tensor(program, value, sharding, partial_over)
    return program._tensors[key]


def _tensor(program: Program, value: ShardyValue, sharding: ValueSharding | None, partial_over: Axes) -> Tensor:
    graph = program.graph
    root, rearranged = graph.root(value)
    argument = root.name if graph.is_program_argument(root) else None
    alike = (before for before in graph.chain(value) if before.shape == value.shape)
    name = next((found for before in alike if (found := _name(graph, before))), None) or _carried_on(program, value)
    maker = _maker(graph, value) or graph.maker(root)
    if name is None and argument is not None:
        shown = f"part of {argument}" if rearranged else argument
    else:
        shown = name or (_made_by(program, maker) if maker else _carried(program, root))
    return Tensor(
        name=shown,
        named=name is not None or (argument is not None and not rearranged),
        element_type=value.element_type,
        shape=value.shape,
        letters=shown_letters(value, program.letters),
        sharding=value.sharding if sharding is None else sharding,
        partial_over=partial_over,
        argument=argument,
        source=frames_of(maker.source) if maker else (),
    )


def _maker(graph: ShardyGraph, value: ShardyValue) -> ShardyOp | None:
    """The operation that computes a value, looking through those that only convert it to another type."""
    maker = graph.maker(value)
    while maker is not None and maker.kind == "stablehlo.convert" and not is_gradient(maker.op_name):
        before = graph.maker(graph.value(maker.operands[0]))
        if before is None:
            break
        maker = before
    return maker


def operands_of(program: Program, op: ShardyOp, *, unmoved: bool = False) -> tuple[Tensor, ...]:
    """The operands of an operation, each dimension under the letter that it has in any of them.

    Args:
        program: The program.
        op: The operation.
        unmoved: Whether as they were before Shardy would move them for it.
    """
    values = [program.graph.value(operand) for operand in op.operands]
    found = [tensor_of(program, program.graph.unmoved(operand) if unmoved else operand) for operand in values]
    if op.rule is None or len(op.rule.operands) != len(found):
        return tuple(found)
    factors = _letters_of_factors(found, op.rule.operands)
    lettered = []
    for tensor, mapping in zip(found, op.rule.operands, strict=True):
        dimensions = zip(tensor.letters, tensor.shape, mapping, strict=False)
        letters = tuple(_letter(letter, size, made, factors) for letter, size, made in dimensions)
        is_other = letters != tensor.letters and len(letters) == len(tensor.letters)
        lettered.append(replace(tensor, letters=letters) if is_other else tensor)
    return tuple(lettered)


def _letters_of_factors(found: Sequence[Tensor], mappings: Sequence[Sequence[tuple[int, ...]]]) -> dict[int, str]:
    """The letter of each factor; of two factors with one letter the one that more operands have keeps it."""
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


def _letter(letter: str, size: int, made: tuple[int, ...], factors: Mapping[int, str]) -> str:
    """A dimension's own letter, unless another dimension of the operation has it; else its factor's, or its size."""
    if letter.isalpha() and (len(made) != 1 or factors.get(made[0]) == letter or letter not in factors.values()):
        return letter
    return factors.get(made[0], str(size)) if len(made) == 1 else letter


def _carried(program: Program, value: ShardyValue) -> str:
    """What a loop carries, by the name that it has before the loop."""
    outside = program.graph.outside(value)
    first = None if outside is None else tensor_of(program, outside)
    return f"carried {first.name}" if first is not None and first.named else "a carried value"


def _carried_on(program: Program, value: ShardyValue) -> str | None:
    """What a loop carries on to its next iteration, by the name that it has before the loop; None for anything else."""
    graph = program.graph
    for user, number in graph.real_users(value):
        first = graph.value(user.operands[number]) if user.kind == "stablehlo.while" else None
        if first is not None and first.index != value.index and first.shape == value.shape:
            tensor = tensor_of(program, first)
            return tensor.name if tensor.named else None
    return None


def own_name(program: Program, value: ShardyValue) -> str:
    """The variable that holds a value, or what made it."""
    op = program.graph.maker(value)
    return _name(program.graph, value) or ("a value" if op is None else _made_by(program, op))


def _made_by(program: Program, op: ShardyOp) -> str:
    is_read = op.kind in _READS  # of what the forward pass has kept, or of a gradient: it shows nothing
    original = differentiated(program, op)
    known = None if original is None else tensor_of(program, original)
    if known is not None and known.named:
        return f"gradient of {known.name}"
    is_backward = is_gradient(op.op_name) and not is_read
    return f"{'gradient' if is_backward else 'result'} of {operation_name(program.graph, op)}"


def _name(graph: ShardyGraph, value: ShardyValue) -> str | None:
    return value.name if graph.is_program_argument(value) else assigned_name(graph, value)


def operation_of(program: Program, op: ShardyOp | None) -> Operation | None:
    """An operation under JAX's name; None for None."""
    if op is None:
        return None
    if op.index not in program._operations:
        name = operation_name(program.graph, op)
        program._operations[op.index] = Operation(name=name, op_name=op.op_name, source=frames_of(op.source))
    return program._operations[op.index]


def operation_name(graph: ShardyGraph, op: ShardyOp) -> str:
    """`dot_general`: the last part of JAX's name, or of MLIR's where there is none."""
    path, _, last = (op.op_name or "").partition(";")[0].rstrip(":").rpartition("/")  # fused names follow one another
    if op.kind == "stablehlo.reduce_window" and (cumulative := _CUMULATIVE.search(path)) is not None:
        return cumulative.group(1)
    if (search := search_name(graph, op)) is not None:
        return search
    if has_anothers_name(op):
        return op.kind.rpartition(".")[2]
    is_jaxs = path and last and not last.startswith("jit(")  # names without a path are the compiler's own
    return last if is_jaxs else op.symbol or op.kind.rpartition(".")[2]


def has_anothers_name(op: ShardyOp) -> bool:
    """Whether XLA has moved an operation past another one, whose name it goes by."""
    last = (op.op_name or "").partition(";")[0].rstrip(":").rpartition("/")[2]
    return op.kind in _REARRANGING and bool(last) and last not in _REARRANGING[op.kind]


@lru_cache(maxsize=4096)
def frames_of(places: tuple[CodePlace, ...]) -> tuple[SourceFrame, ...]:
    """MLIR's frames as the report's."""
    return tuple(
        SourceFrame(file=place.file, line=place.line, function=place.function or None, column=place.column)
        for place in places
    )


@lru_cache(maxsize=1024)
def spec_of(sharding: ValueSharding | None, unreduced: Axes = ()) -> str | None:
    """A sharding as the user would write it; None when it is not known."""
    return None if sharding is None else spec_text(sharding, unreduced=unreduced)


def askers(program: Program, value: ShardyValue, axes: Iterable[str]) -> tuple[AskedBy, ...]:
    """Who put these axes on a value, each once."""
    return tuple(dict.fromkeys(filter(None, (_asker(program, value, axis) for axis in axes))))


def _asker(program: Program, value: ShardyValue, axis: str) -> AskedBy | None:
    origin = value.origins.get(axis) or value.origins.get(whole_axis(axis))
    if origin is None:
        return None
    if origin == "self":
        return _self(program, value, axis)
    numbered = _NUMBERED.match(origin)
    if numbered is None:
        return _named(program, origin, axis)
    if numbered["holder"]:
        return _named(program, numbered["holder"], axis)
    number = int(numbered["number"])
    if numbered["side"] == "input":
        argument = program.graph.argument_of(number)
        return None if argument is None else _argument(argument, axis)
    return output_asker(program, number, axis)


def holders(program: Program, value: ShardyValue, axes: Iterable[str]) -> tuple[AskedBy, ...]:
    """Who put these axes on what a value is made from: its argument, or a constraint on the way back to it.

    Where neither has them, what Shardy says of the nearest value that it says anything of.
    """
    return tuple(dict.fromkeys(filter(None, (_holder(program, value, axis) for axis in axes))))


def _holder(program: Program, value: ShardyValue, axis: str) -> AskedBy | None:
    graph = program.graph
    nearest: AskedBy | None = None
    for before in graph.chain(value):
        op = graph.op(before)
        has = whole_axis(axis) in wholes(axes_in(before.sharding))
        if has and graph.is_program_argument(before):
            return _argument(before, axis)
        if has and op is not None and op.source and op.origin_name is not None:
            return asker_of(program, op, axis)
        nearest = nearest or _asker(program, before, axis)
    return nearest


def output_asker(program: Program, number: int, axis: str) -> AskedBy | None:
    """The program's output of a number, with the sharding that it asks for; None where it was left to the compiler."""
    graph = program.graph
    if number not in program.requested:
        return None
    returned = None if graph.module.main is None else graph.returns.get((graph.module.main, 0))
    sharding = None
    if returned is not None and number < len(returned.operands):
        sharding = spec_of(graph.value(returned.operands[number]).sharding)
    name = program.outputs[number] if number < len(program.outputs) else f"result[{number}]"
    return AskedBy(axis=axis, by="output", name=name, sharding=sharding)


def _self(program: Program, value: ShardyValue, axis: str) -> AskedBy | None:
    op = program.graph.op(value)
    if op is not None:
        return asker_of(program, op, axis)
    return _argument(value, axis) if program.graph.is_program_argument(value) else None


def _argument(value: ShardyValue, axis: str) -> AskedBy:
    name = value.name or f"argument {value.number}"
    return AskedBy(axis=axis, by="argument", name=name, sharding=spec_of(value.sharding))


def _named(program: Program, origin: str, axis: str) -> AskedBy | None:
    op = program.graph.named.get(origin)
    return None if op is None else asker_of(program, op, axis)


def asker_of(program: Program, op: ShardyOp, axis: str) -> AskedBy:
    """An operation that asks for a sharding, or the argument whose sharding it repeats."""
    graph = program.graph
    if op.kind == "sdy.manual_computation":
        return AskedBy(axis=axis, by="shard_map", name=None, source=frames_of(op.source))
    sharding = op.asked or graph.value(op.results[0]).sharding
    root, _ = graph.root(graph.value(op.operands[0]))
    if not is_written(op) and graph.is_program_argument(root) and axis in axes_in(root.sharding):
        # the compiler's copy of an argument's sharding, or explicit mode's of every value's
        return _argument(root, axis)
    return AskedBy(axis=axis, by="constraint", name=None, sharding=spec_of(sharding), source=frames_of(op.source))
