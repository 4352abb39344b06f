"""The place of each collective in the user's model (module, layers and pass), from names and from the moved arrays.

Modules have names on the name stack of an operation (Linen, `jax.named_scope`), on arguments (`params['mlp']['gate']`),
or on both; the data flow shows which arguments a collective concerns. JAX's name stack shows the pass, and everything
after the gradient is the optimizer. Otherwise the place is unknown.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hloscope.analysis.arrays import parse_aliases
from hloscope.analysis.compute import MATMUL_OPCODES
from hloscope.analysis.dataflow import (
    Frames,
    Reading,
    cross_loop_edge,
    find_maker,
    find_producers,
    find_readings,
    find_shape,
)
from hloscope.analysis.provenance import find_shared_helpers, find_users_frame
from hloscope.hlo import HloInstruction
from hloscope.hlo.call_graph import HloGraph, Value
from hloscope.hlo.records import UNBOUNDED
from hloscope.model import Analysis, Collective, Collectives, ModelPart, MovedValue, Phase, Role
from hloscope.model.analysis import parse_argument_path
from hloscope.model.collectives import change_collective

# ---- paths to places in a model: pytree paths of arguments, and the name stacks that JAX gives operations
#
# Source: JAX's `jax.tree_util.keystr`, which names arguments, and its name stacks, in which a transformation is
# written around the first name that it found, as in `jit(step)/transpose(jvp(Model))/layers_0/mlp/dot_general`.

ModelPath = tuple[str, ...]

_LEAVES = frozenset({"bias", "embedding", "kernel", "scale", "weight"})
"""The names that frameworks give the arrays of a module."""
_ALL_OF_THEM = frozenset({"parameters", "params"})
_ROOTS = _ALL_OF_THEM | {"model", "weights"}
"""The names of the parameters within a state that also holds the optimizer's."""


_TRANSFORMED = re.compile(r"(?:\w+\()+(?P<inside>[^()]*)\)+")
_CALLS = re.compile(r"\b(?:p?jit|shard_map|core_call|remat2?|checkpoint|custom_[jv][jv]p_call)\(")
_CONTROL = re.compile(
    r"while|body|cond|scan|closed_call|checkpoint|rematted_computation|remat2?|shard_map|custom_[jv][jv]p_call\w*"
    r"|p?jit|branch_\d+_fun|core_call|#\d+|"
)


_NO_NAME = re.compile(r"\(|->")
"""Characters that no module name contains: an open transformation, or the equation of an einsum."""


def parse_scopes(op_name: str | None) -> ModelPath:
    """The names from modules and `jax.named_scope`: `Model`, `layers_0`, `mlp`; empty if there are none.

    Recomputed operations have the outer names twice; one copy is dropped.
    """
    scopes: list[str] = []
    for step in (op_name or "").split("/")[:-1]:
        transformed = None if _CALLS.search(step) else _TRANSFORMED.fullmatch(step)
        name = step if transformed is None else transformed["inside"]
        if not _CONTROL.fullmatch(name) and not _NO_NAME.search(name) and name not in scopes[-1:]:
            scopes.append(name)
    return tuple(scopes)


def find_phase(op_name: str | None) -> Phase | None:
    """The pass according to a name stack; None for operations that were not differentiated."""
    name = op_name or ""
    if "transpose(" in name or "rematted_computation" in name:
        return Phase.BACKWARD
    return Phase.FORWARD if "jvp(" in name else None


def find_model_paths(arguments: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, ModelPath]:
    """The path of each argument within the model; optimizer state has the path of its parameter.

    Args:
        arguments: Names and dimensions of the arguments.

    Returns:
        Paths by name; empty for an argument that is one array.
    """
    paths = {name: parse_argument_path(name) for name, _ in arguments}
    shapes = dict(arguments)
    owners: dict[object, ModelPath] = {}
    for name, path in paths.items():
        for start in (1, 2):
            suffix = path[start:]
            if suffix and (start == 1 or path[1] in _ROOTS):
                known = owners.setdefault((suffix, shapes[name]), path)
                owners[suffix, shapes[name]] = min(known, path, key=len)
    return {name: _drop_own_name(_find_owner(path, shapes[name], owners)) for name, path in paths.items()}


def _find_owner(path: ModelPath, shape: tuple[int, ...], owners: Mapping[object, ModelPath]) -> ModelPath:
    """The parameter that an argument belongs to, or the argument itself if there is none."""
    for start in range(1, len(path)):
        owner = owners.get((path[start:], shape), path)
        if len(owner) < len(path) and (owner[0] != path[0] or (owner[1] in _ROOTS and owner[1] != path[1])):
            return owner
    return path


def find_common_path(paths: Iterable[ModelPath]) -> ModelPath:
    """The common prefix of all paths."""
    found = list(dict.fromkeys(paths))
    if not found:
        return ()
    first, last = min(found), max(found)
    shared = next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), min(map(len, found))
    )
    return first[:shared]


def _drop_own_name(path: ModelPath) -> ModelPath:
    """A path without the argument's own name, and without framework names for all parameters or a module's arrays.

    The argument's own name is kept before a number, which would be meaningless alone: `params[0]`.
    """
    while len(path) > 1 and not path[1].isdigit() and path[1] in _ALL_OF_THEM:
        path = path[1:]
    path = path if len(path) > 1 and path[1].isdigit() else path[1:]
    while len(path) > 1 and path[-1] in _LEAVES:
        path = path[:-1]
    return path


class FoldedPath(NamedTuple):
    """A path with `*` for its numbers.

    Attributes:
        module: `layers.*.mlp.gate`, or `layers_*.mlp.gate`.
        layer: The number that the first `*` stands for; None without one.
    """

    module: str
    layer: int | None


_NUMBERED = re.compile(r"(?P<stem>(?:.*\D)?)(?P<number>\d{1,9})", re.DOTALL)
_FEWEST = 3
"""Minimum number of numbered parts holding nothing but arrays that are considered layers."""


def fold_paths(paths: Iterable[ModelPath]) -> dict[ModelPath, FoldedPath]:
    """The paths with `*` for the numbers of parts that differ only in their number, as layers do.

    A number is folded if the path continues after it, as from `layers_0` to `mlp`, so that `Dense_0` and `Dense_1` of
    one block stay separate; otherwise if it is the first in a path and there are several. A number inside a name, as in
    `layer0` or `linear2`, must meet both conditions.
    """
    every = list(dict.fromkeys(paths))
    numbers: dict[tuple[ModelPath, str], set[int]] = defaultdict(set)
    goes_on: set[tuple[ModelPath, str]] = set()
    for path in every:
        for at, (stem, number) in _find_numbers(path):
            key = (_drop_numbers(path[:at]), stem)
            numbers[key].add(number)
            if at + 1 < len(path):
                goes_on.add(key)
    return {path: _fold_path(path, numbers, goes_on) for path in every}


def _find_numbers(path: ModelPath) -> list[tuple[int, tuple[str, int]]]:
    found = ((at, _NUMBERED.fullmatch(step)) for at, step in enumerate(path))
    return [(at, (match["stem"], int(match["number"]))) for at, match in found if match]


def _drop_numbers(path: ModelPath) -> ModelPath:
    return tuple(re.sub(r"\d+$", "", step) for step in path)


def _fold_path(
    path: ModelPath, numbers: Mapping[tuple[ModelPath, str], set[int]], goes_on: set[tuple[ModelPath, str]]
) -> FoldedPath:
    steps, layer = list(path), None
    for at, (stem, number) in _find_numbers(path):
        key = (_drop_numbers(path[:at]), stem)
        several, is_own_step = len(numbers[key]) >= _FEWEST, not stem or stem.endswith("_")
        goes_deeper = key in goes_on and at + 1 < len(path) and (several or is_own_step)
        if goes_deeper or (layer is None and several and (is_own_step or key in goes_on)):
            steps[at] = f"{stem}*"
            layer = number if layer is None else layer
    return FoldedPath(".".join(steps), layer)


def render_layers(module: str, layers: Sequence[int]) -> str:
    """Renders `layers[0-35].mlp.gate`, or `layers_3`: a folded path with the numbers that its first `*` stands for."""
    if not layers:
        return module
    ranges = f"[{render_number_ranges(layers)}]"
    if ".*" in module:
        return module.replace(".*", ranges, 1)
    return module.replace("*", str(layers[0]) if len(layers) == 1 else ranges, 1)


def render_number_ranges(numbers: Iterable[int]) -> str:
    """Renders `0-2, 4`: numbers in ascending order, with consecutive ones joined."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def attach_modules(
    collectives: Sequence[Collective],
    parts: Sequence[ModelPart],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[Collective, ...]:
    """Completes the parts of collectives with module, layers and line.

    Args:
        collectives: All of one program.
        parts: The known part of each place: pass, role and arguments.
        shapes: Dimensions of the program's arguments, by name.
    """
    bodies = find_model_paths(shapes.items())
    paths = _find_collective_paths(collectives, parts, bodies)
    names = fold_paths(path for found in paths for path in found)
    helping = find_shared_helpers(collective.source for collective in collectives)
    named = []
    for collective, part, own in zip(collectives, parts, paths, strict=True):
        layers = {layer for path in own if (layer := names[path].layer) is not None}
        whole = replace(
            part,
            module=_join_modules([names[path].module for path in own]),
            layers=tuple(sorted(layers)),
            line=find_users_frame(collective.source, helping),
        )
        named.append(change_collective(collective, part=whole))
    return tuple(named)


def skip_helpers(analysis: Analysis, helpers: Collection[str]) -> Analysis:
    """The analysis with lines of its collectives outside the files and functions that the user declares as helpers."""
    if not helpers:
        return analysis
    helping = find_shared_helpers((collective.source for collective in analysis.collectives), helpers)
    lines = (find_users_frame(collective.source, helping) for collective in analysis.collectives)
    moved = (
        collective if collective.part is None else replace(collective, part=replace(collective.part, line=line))
        for collective, line in zip(analysis.collectives, lines, strict=True)
    )
    return analysis._remembered_by(replace(analysis, collectives=Collectives(moved)))


def _join_modules(modules: Sequence[str]) -> str | None:
    """The common part of several modules that the arguments of one collective name."""
    if len(set(modules)) < 2:
        return modules[0] if modules else None
    return ".".join(find_common_path(tuple(module.split(".")) for module in modules)) or None


def _find_collective_paths(
    collectives: Sequence[Collective], parts: Sequence[ModelPart], bodies: Mapping[str, ModelPath]
) -> list[tuple[ModelPath, ...]]:
    """The modules of each collective, from its scopes or its arguments, whichever say more; scopes if both do.

    A collective that the compiler combined has the name of one of its parts alone, so that its arguments say more; they
    are called as the scopes are in which they are used, where that is known.
    """
    scoped = [parse_scopes(collective.op_name) for collective in collectives]
    shared = len(find_common_path(filter(None, scoped)))
    alone = (len(collective.operand_shapes) < 2 for collective in collectives)
    own = [scopes[shared:] if single else () for scopes, single in zip(scoped, alone, strict=True)]
    named = [tuple(dict.fromkeys(bodies[name] for name in part.arguments if bodies.get(name))) for part in parts]
    scope_of = {
        body[0]: scopes
        for scopes, body in zip(own, named, strict=True)
        if len(body) == 1 and scopes[-1:] == body[0][-1:] and len(scopes) >= len(body[0])
    }
    found: list[tuple[ModelPath, ...]] = []
    for scopes, body in zip(own, named, strict=True):
        told = tuple(scope_of.get(path, path) for path in body)
        longest = max(map(len, told), default=0)
        found.append((scopes,) if scopes and len(scopes) >= longest else told or ((scopes,) if scopes else ()))
    return found


_FORMS = frozenset({"bitcast", "reshape", "transpose", "convert", "broadcast"})
_NONE: frozenset[str] = frozenset()
_MOVES = frozenset({
    "slice", "dynamic-slice", "all-gather", "all-gather-start", "all-gather-done", "all-to-all", "collective-permute",
    "collective-permute-start", "collective-permute-done", "copy", "async-start", "async-done", "slice-start",
    "slice-done", "dynamic-slice-start", "dynamic-slice-done", "all-gather-update", "async-update",
})  # fmt: skip
"""Opcodes that move elements without changing them."""
_MIXES = MATMUL_OPCODES | {
    "call", "conditional", "custom-call", "gather", "reduce", "reduce-window", "scatter", "select-and-scatter", "sort",
    "while",
}  # fmt: skip
"""Opcodes whose result is no longer an update of the same array."""
_WINDOWED = "windowed_dot_general"
_MOST_MOVES = 24
_MOST_VALUES = 24
_MOST_AROUND = 256
_CONCATENATES = "ConcatBitcast"
"""The custom call that reassembles an array from slices that were fetched one by one."""


def attach_parts(graph: HloGraph, moves: Sequence[tuple[Collective, Sequence[Value]]]) -> tuple[Collective, ...]:
    """Adds to each collective its place in the user's model.

    Args:
        graph: The module.
        moves: All its collectives, with their results.
    """
    search = _ArgumentSearch(graph)
    moved = [search.moved(*move) for move in moves]
    parts = []
    for (collective, results), direct in zip(moves, moved, strict=True):
        part = direct or search.around(collective, results)
        parts.append(replace(part, phase=search.phase(collective)))
    return attach_modules([collective for collective, _ in moves], parts, search.shapes)


class _ArgumentSearch:
    """Traces values of one module to the arguments that they derive from; results are cached."""

    def __init__(self, graph: HloGraph) -> None:
        self.graph = graph
        parameters = () if graph.entry is None else graph.entry.parameters
        named = {number: name for number, parameter in enumerate(parameters) if (name := parameter.op_name)}
        self.shapes = {name: parameters[number].shape.dimensions for number, name in named.items()}
        aliases = parse_aliases(graph.module.header.get("input_output_alias", ""))
        self._by_output = {
            output[0]: named[number] for output, (number, _) in aliases.items() if output and number in named
        }
        self._behind: dict[tuple[str, str, tuple[int, ...], Frames], str | None] = {}
        self._brought: dict[tuple[str, str, tuple[int, ...]], str] = {}
        self._differentiates = graph.module.mentions("transpose(jvp")

    def phase(self, collective: Collective) -> Phase | None:
        """The pass of a collective; for a combined one, the pass in which its last operand is ready."""
        told = find_phase(collective.op_name)
        if told is Phase.FORWARD and len(collective.moved_values) > 1:
            made = {find_phase(self._made(value).op_name) for value in collective.moved_values}
            told = Phase.BACKWARD if Phase.BACKWARD in made else told
        if told is not None or not self._differentiates:
            return told
        if any("optax" in frame.file for frame in collective.source):
            return Phase.OPTIMIZER
        start = self.graph.module.computation(collective.computation).instruction(collective.name)
        before = find_producers(self.graph, start, _MOST_AROUND)
        return Phase.OPTIMIZER if any(find_phase(one.op_name) is Phase.BACKWARD for one in before) else None

    def moved(self, collective: Collective, results: Sequence[Value]) -> ModelPart | None:
        """The arguments that a collective moves, and its results as these; None if it moves none."""
        moved = [name for value in collective.moved_values if (name := self._argument(value)) is not None]
        if len(moved) == len(results) == 1:
            self._brought[results[0].key] = moved[0]
        return ModelPart(role=Role.WEIGHTS, arguments=tuple(dict.fromkeys(moved))) if moved else None

    def around(self, collective: Collective, results: Sequence[Value]) -> ModelPart:
        """The arguments that adjacent multiplications use; otherwise those that are updated."""
        is_windowed = _WINDOWED in collective.computation  # a permute passes parts around in a loop that multiplies
        loop = self.graph.only_caller(collective.computation) if is_windowed else None
        if loop is None:
            alone = collective.moved_values[:1] if len(collective.moved_values) == 1 else ()
            partners = (name for value in alone for name in self._partners(self._made(value)))
            return self._about(tuple(dict.fromkeys(partners)), results)
        shapes = set(map(str, collective.result_shapes))
        brought = (Value(user) for user in loop.users if str(user.shape) in shapes)
        return self._about(self._carried(loop), brought, all_of_them=False)

    def _carried(self, loop: HloInstruction) -> tuple[str, ...]:
        """The arguments that such a loop multiplies."""
        carried = loop.operand(0)
        operands = () if carried is None or carried.opcode != "tuple" else carried.operands
        found = (self._behind_value(Value(operand)) for operand in operands if len(operand.shape.dimensions) > 1)
        return tuple(dict.fromkeys(name for name in found if name is not None))

    def _made(self, value: MovedValue) -> HloInstruction:
        return self.graph.module.computation(value.computation).instruction(value.instruction)

    def _argument(self, value: MovedValue) -> str | None:
        return self._behind_value(Value(self._made(value), value.element))

    def _about(self, multiplied: tuple[str, ...], results: Iterable[Value], *, all_of_them: bool = True) -> ModelPart:
        """The values multiplied with an argument just before or after; otherwise those that update an argument."""
        if multiplied:
            return ModelPart(role=Role.ACTIVATIONS, arguments=multiplied)
        updated: dict[str, None] = {}
        readers: list[Reading] = []
        for value in results:
            updated.update(dict.fromkeys(self._forward(value, readers)))
            if updated and not all_of_them:
                break
        if updated:
            return ModelPart(role=Role.GRADIENT, arguments=tuple(updated))
        multiplying = (reading for reading in readers if reading.reader.opcode in MATMUL_OPCODES)
        behind = dict.fromkeys(name for at in multiplying for name in self._multiplied(at.reader, at.frames))
        return ModelPart(role=Role.ACTIVATIONS, arguments=tuple(behind)) if behind else ModelPart()

    def _partners(self, instruction: HloInstruction) -> list[str]:
        """The arguments that an instruction or a fusion multiplies."""
        if instruction.opcode in MATMUL_OPCODES:
            return self._multiplied(instruction, ())
        if instruction.opcode != "fusion" or not instruction.called:
            return []
        inside = self.graph.module.computation(instruction.called[0][1]).instructions
        matmuls = (each for each in inside if each.opcode in MATMUL_OPCODES)
        return [found for matmul in matmuls for found in self._multiplied(matmul, (instruction,))]

    def _multiplied(self, matmul: HloInstruction, frames: Frames) -> list[str]:
        found = (self._behind_value(Value(operand), frames) for operand in matmul.operands)
        return [name for name in found if name is not None]

    def _behind_value(self, value: Value, frames: Frames = ()) -> str | None:
        """The argument that a value equals or is part of, wherever it was moved; None if it was computed."""
        key = (value.instruction.computation.name, value.instruction.name, value.path, frames)
        if key not in self._behind:
            self._behind[key] = self._followed(value, frames)
        return self._behind[key]

    def _followed(self, value: Value, frames: Frames) -> str | None:
        for _ in range(_MOST_MOVES):
            value, frames = find_maker(self.graph, value, frames, through=_FORMS, into=_NONE)
            instruction = value.instruction
            if not frames and value.key in self._brought:
                return self._brought[value.key]
            if instruction.opcode == "parameter" and instruction.computation.is_entry:
                name = instruction.op_name
                return name if len(parse_argument_path(name or "")) > 1 else None
            before = self._before(value)
            if before is None:
                return None
            frames = (*frames, instruction) if instruction.opcode == "fusion" else frames
            value = before
        return None

    def _before(self, value: Value) -> Value | None:
        """The previous position of a value, before it was moved or passed to a computation; None if it was computed."""
        instruction = value.instruction
        if instruction.opcode == "fusion" and instruction.called:
            return Value(self.graph.module.computation(instruction.called[0][1]).root, value.path)
        if instruction.opcode == "parameter":
            return self._passed(value)
        if not instruction.operands or not _only_moves(instruction):
            return None
        operand = instruction.operands[0]
        return Value(operand, value.path[1:] if operand.shape.is_tuple else ())

    def _passed(self, value: Value) -> Value | None:
        """The value that a parameter receives from the call of its computation or at the start of its loop."""
        sites = self.graph.callers(value.instruction.computation.name)
        number = value.instruction.parameter_number
        callers = {site.caller for site in sites}
        if len(callers) != 1 or number is None:
            return None
        caller = sites[0].caller
        place = sites[0].position + 1 if caller.opcode == "conditional" else number
        passed = caller.operand(place)
        return None if passed is None else Value(passed, value.path)

    def _forward(self, first: Value, multiplying: list[Reading]) -> list[str]:
        """The arguments that a value updates element by element; multiplications that read it are recorded instead."""
        if _count_elements(first) < 2:
            return []  # a sum, such as that of a loss or a norm
        pending: deque[tuple[Value, Frames]] = deque([(first, ())])
        seen: set[HloInstruction] = set()
        for _ in range(_MOST_VALUES):
            if not pending:
                break
            for reading in find_readings(self.graph, *pending.popleft(), wanted=MATMUL_OPCODES):
                if reading is None or reading.reader in seen:
                    continue
                seen.add(reading.reader)
                if reading.reader.opcode in MATMUL_OPCODES:
                    multiplying.append(reading)
                    return []
                found, following = self._next(reading)
                if found:
                    return found
                pending.extend(following)
        return []

    def _next(self, reading: Reading) -> tuple[list[str], list[tuple[Value, Frames]]]:
        """The arguments that a reader updates with a value; otherwise the values that it passes on."""
        reader = reading.reader
        if reader.is_root and reader.computation.is_entry and not reading.frames:
            outputs = reader.positions_of(reading.value.instruction)
            return [self._by_output[place] for place in outputs if place in self._by_output], []
        edge = cross_loop_edge(self.graph, reading)
        if edge is not None:
            return [], [(edge[1], ())]
        mixes = _mixes(self.graph, reader)
        if mixes and not _has_side_sum(self.graph, reader):
            return [], []
        beside = self._beside(reading)
        if mixes and not beside:
            return [], []
        return ([beside], []) if beside else ([], [(Value(reader), reading.frames)])

    def _beside(self, reading: Reading) -> str | None:
        """The argument of the same size that an elementwise operation also reads."""
        count = _count_elements(reading.value)
        for operand in reading.reader.operands:
            if operand != reading.value.instruction and _count_elements(Value(operand)) == count:
                found = self._behind_value(Value(operand), reading.frames)
                if found is not None:
                    return found
        return None


def _only_moves(instruction: HloInstruction) -> bool:
    return instruction.opcode in _MOVES or (
        instruction.opcode == "custom-call" and instruction.custom_call_target == _CONCATENATES
    )


def _mixes(graph: HloGraph, reader: HloInstruction) -> bool:
    """Returns whether an instruction does more than compute each element from the same elements of its operands."""
    if reader.opcode == "fusion" and reader.called:
        return not _MIXES.isdisjoint(graph.module.computation(reader.called[0][1]).opcodes)
    return reader.opcode in _MIXES and not _only_moves(reader)


def _has_side_sum(graph: HloGraph, reader: HloInstruction) -> bool:
    """Returns whether a fusion sums a value that it also passes on, as when computing the norm of all gradients."""
    if reader.opcode != "fusion" or not reader.called:
        return False
    computation = graph.module.computation(reader.called[0][1])
    return computation.root.opcode == "tuple" and _MIXES.intersection(computation.opcodes) == {"reduce"}


def _count_elements(value: Value) -> int:
    """Number of elements of an array; -1 for a tuple, and if they cannot be counted."""
    shape = find_shape(value)
    if shape is None or shape.is_tuple or UNBOUNDED in shape.dimensions:
        return -1
    return shape.element_count
