"""Where in the user's model each collective is: its module, layers and pass, from names and from what it moves.

Modules have names on the name stack of an operation (Linen, `jax.named_scope`), on arguments (`params['mlp']['gate']`),
or on both; which arguments a collective is about, the data flow says. Passes are told by JAX's name stack, and the
optimizer by what comes after the gradient. What neither says stays unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from hloscope.analysis.arrays import aliases_in_text
from hloscope.analysis.defs import Frames, maker_of, producers
from hloscope.analysis.model import Collective, ModelPart, MovedValue, Phase, Role
from hloscope.analysis.paths import Path, bodies_of, common_path, folded, phase_of, scopes_of
from hloscope.analysis.places import innermost_own_frame, shared_helpers
from hloscope.analysis.uses import Reading, across_loop_edge, readings_of
from hloscope.graph import HloGraph, Value
from hloscope.hlo import HloInstruction

_FORMS = frozenset({"bitcast", "reshape", "transpose", "convert", "broadcast"})
_FUSIONS = frozenset({"fusion"})
_MOVES = frozenset({
    "slice", "dynamic-slice", "all-gather", "all-gather-start", "all-gather-done", "all-to-all", "collective-permute",
    "collective-permute-start", "collective-permute-done", "copy", "async-start", "async-done", "slice-start",
    "slice-done", "dynamic-slice-start", "dynamic-slice-done", "all-gather-update", "async-update",
})  # fmt: skip
"""Opcodes that bring elements elsewhere, none of them changed."""
_MATMULS = frozenset({"dot", "convolution"})
_MIXES = _MATMULS | {
    "call", "conditional", "custom-call", "gather", "reduce", "reduce-window", "scatter", "select-and-scatter", "sort",
    "while",
}  # fmt: skip
"""Opcodes behind which a value is another one than an update of the same array."""
_WINDOWED = "windowed_dot_general"
_MOST_MOVES = 24
_MOST_VALUES = 24
_MOST_AROUND = 64
_CONCATENATES = "ConcatBitcast"
"""The custom call in which slices of an array that were fetched one by one are the array again."""


class _About(NamedTuple):
    """The arguments that a collective is about, and what it moves of them."""

    role: Role | None
    arguments: tuple[str, ...]


_NOTHING = _About(None, ())


def with_parts(
    graph: HloGraph, moves: Sequence[tuple[Collective, Sequence[Value]]], helpers: Collection[str] = ()
) -> tuple[Collective, ...]:
    """The collectives, each with its place in the user's model.

    Args:
        graph: The module.
        moves: All collectives that it has, with what each yields.
        helpers: Files and functions that the user calls helpers, beside those that many lines call.
    """
    collectives = [collective for collective, _ in moves]
    search = _Search(graph)
    about = [search.about(*move) for move in moves]
    paths = _paths(collectives, about, search.bodies)
    names = folded(path for found in paths for path in found)
    helping = shared_helpers((collective.source for collective in collectives), helpers)
    known: dict[ModelPart, ModelPart] = {}
    parts = []
    for collective, found, own in zip(collectives, about, paths, strict=True):
        numbers = {layer for path in own if (layer := names[path].layer) is not None}
        part = ModelPart(
            module=_joined([names[path].module for path in own]),
            layers=tuple(sorted(numbers)),
            phase=search.phase(collective),
            role=found.role,
            arguments=found.arguments,
            line=innermost_own_frame(collective.source, helping),
        )
        parts.append(replace(collective, part=known.setdefault(part, part)))
    return tuple(parts)


def _joined(modules: Sequence[str]) -> str | None:
    """The module of one that several arguments or scopes name: what they have in common."""
    if len(set(modules)) < 2:
        return modules[0] if modules else None
    return ".".join(common_path(tuple(module.split(".")) for module in modules)) or None


def _paths(
    collectives: Sequence[Collective], about: Sequence[_About], bodies: Mapping[str, Path]
) -> list[tuple[Path, ...]]:
    """The module of each collective, by its scopes or by its arguments: whichever says more, scopes where both do."""
    scoped = [scopes_of(collective.op_name) for collective in collectives]
    shared = len(common_path(filter(None, scoped)))
    scoped = [scopes[shared:] for scopes in scoped]
    found = []
    for collective, scopes, each in zip(collectives, scoped, about, strict=True):
        named = tuple(dict.fromkeys(bodies[name] for name in each.arguments if bodies.get(name)))
        says_more = bool(scopes) and len(collective.operand_shapes) < 2 and len(scopes) >= max(map(len, named), default=0)
        found.append((scopes,) if says_more else named or ((scopes,) if scopes else ()))
    return found


class _Search:
    """Follows values of one module to the arguments they are about; what was followed once is kept."""

    def __init__(self, graph: HloGraph) -> None:
        self.graph = graph
        parameters = () if graph.entry is None else graph.entry.parameters
        named = {number: name for number, parameter in enumerate(parameters) if (name := parameter.op_name)}
        shapes = [(name, parameters[number].shape.dimensions) for number, name in named.items()]
        self.bodies = bodies_of(shapes)
        aliases = aliases_in_text(graph.module.header.get("input_output_alias", ""))
        self._by_output = {
            output[0]: named[number] for output, (number, _) in aliases.items() if output and number in named
        }
        self._behind: dict[tuple[str, str, tuple[int, ...], Frames], str | None] = {}
        self._of_loop: dict[object, _About] = {}
        self._matmuls: dict[str, tuple[HloInstruction, ...]] = {}

    @cached_property
    def _differentiates(self) -> bool:
        return self.graph.module.mentions("transpose(jvp")

    def phase(self, collective: Collective) -> Phase | None:
        """The pass of a collective; of several in one, the pass in which the last of its operands is ready."""
        told = phase_of(collective.op_name)
        if told is Phase.FORWARD and len(collective.moved_values) > 1:
            made = {phase_of(self._made(value).op_name) for value in collective.moved_values}
            told = Phase.BACKWARD if Phase.BACKWARD in made else told
        if told is not None or not self._differentiates:
            return told
        if any("optax" in frame.file for frame in collective.source):
            return Phase.OPTIMIZER
        start = self.graph.module.computation(collective.computation).instruction(collective.name)
        before = producers(self.graph, start, _MOST_AROUND)
        return Phase.OPTIMIZER if any(phase_of(one.op_name) is Phase.BACKWARD for one in before) else None

    def about(self, collective: Collective, results: Sequence[Value]) -> _About:
        """The arguments that a collective moves, updates or multiplies."""
        moved = [name for value in collective.moved_values if (name := self._argument(value)) is not None]
        if moved:
            return _About(Role.WEIGHTS, tuple(dict.fromkeys(moved)))
        loop = self._window_around(collective)
        if loop is None:
            alone = collective.moved_values[:1] if len(collective.moved_values) == 1 else ()
            partners = (name for value in alone for name in self._partners(self._made(value)))
            return self._around(tuple(dict.fromkeys(partners)), results)
        key = loop.computation.name, loop.name, collective.result_shapes
        if key not in self._of_loop:
            shapes = set(map(str, collective.result_shapes))
            brought = (Value(user) for user in loop.users if str(user.shape) in shapes)
            self._of_loop[key] = self._around(self._carried(loop), brought, all_of_them=False)
        return self._of_loop[key]

    def _window_around(self, collective: Collective) -> HloInstruction | None:
        """The loop that is one multiplication, whose parts a permute brings round."""
        if _WINDOWED not in collective.computation:
            return None
        return self.graph.only_caller(collective.computation)

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

    def _around(
        self, multiplied: tuple[str, ...], results: Iterable[Value], *, all_of_them: bool = True
    ) -> _About:
        """What is multiplied with an argument right before or behind, else what an argument is updated with."""
        if multiplied:
            return _About(Role.ACTIVATIONS, multiplied)
        updated: dict[str, None] = {}
        readers: list[Reading] = []
        for value in results:
            updated.update(dict.fromkeys(self._forward(value, readers)))
            if updated and not all_of_them:
                break
        if updated:
            return _About(Role.GRADIENT, tuple(updated))
        behind = dict.fromkeys(name for reading in readers for name in self._partners_of(reading))
        return _About(Role.ACTIVATIONS, tuple(behind)) if behind else _NOTHING

    def _partners_of(self, reading: Reading) -> list[str]:
        return self._multiplied(reading.reader, reading.frames) if reading.reader.opcode in _MATMULS else []

    def _partners(self, instruction: HloInstruction) -> list[str]:
        """The arguments that an instruction, or a fusion, multiplies."""
        if instruction.opcode in _MATMULS:
            return self._multiplied(instruction, ())
        if instruction.opcode != "fusion" or not instruction.called:
            return []
        name = instruction.called[0][1]
        if name not in self._matmuls:
            self._matmuls[name] = tuple(self._matmuls_in(name))
        return [found for matmul in self._matmuls[name] for found in self._multiplied(matmul, (instruction,))]

    def _matmuls_in(self, name: str) -> Iterator[HloInstruction]:
        computation = self.graph.module.computation(name)
        if not _MATMULS.isdisjoint(computation.opcodes):
            yield from (instruction for instruction in computation.instructions if instruction.opcode in _MATMULS)

    def _multiplied(self, matmul: HloInstruction, frames: Frames) -> list[str]:
        found = (self._behind_value(Value(operand), frames) for operand in matmul.operands)
        return [name for name in found if name is not None]

    def _behind_value(self, value: Value, frames: Frames = ()) -> str | None:
        """The argument that a value is, or a part of it, wherever it was brought; None where it was computed."""
        key = (value.instruction.computation.name, value.instruction.name, value.path, frames)
        if key not in self._behind:
            self._behind[key] = self._followed(value, frames)
        return self._behind[key]

    def _followed(self, value: Value, frames: Frames) -> str | None:
        for _ in range(_MOST_MOVES):
            maker = maker_of(self.graph, value, frames, through=_FORMS, into=_FUSIONS)
            value, frames = maker
            instruction = value.instruction
            if instruction.opcode == "parameter" and not frames:
                if instruction.computation.is_entry:
                    name = instruction.op_name
                    return name if self.bodies.get(name or "") else None
                before = self._passed(value)
            elif instruction.operands and _only_moves(instruction):
                at = value.path[1:] if instruction.opcode.endswith("-done") else ()
                before = Value(instruction.operands[0], at if instruction.operands[0].shape.is_tuple else ())
            else:
                before = None
            if before is None:
                return None
            value = before
        return None

    def _passed(self, value: Value) -> Value | None:
        """What a parameter stands for where its computation is called, or the loop around it begins."""
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
        """The arguments that a value updates, element by element; the multiplications that read it are added."""
        pending: deque[tuple[Value, Frames]] = deque([(first, ())])
        seen: set[HloInstruction] = set()
        for _ in range(_MOST_VALUES):
            if not pending:
                break
            for reading in readings_of(self.graph, *pending.popleft(), wanted=_MATMULS):
                if reading is None or reading.reader in seen:
                    continue
                seen.add(reading.reader)
                if reading.reader.opcode in _MATMULS:
                    multiplying.append(reading)
                    continue
                found, following = self._next(reading)
                if found:
                    return found
                pending.extend(following)
        return []

    def _next(self, reading: Reading) -> tuple[list[str], list[tuple[Value, Frames]]]:
        """The arguments that a reader updates with a value; else where the value goes from it."""
        reader = reading.reader
        if reader.is_root and reader.computation.is_entry and not reading.frames:
            outputs = reader.positions_of(reading.value.instruction)
            return [self._by_output[place] for place in outputs if place in self._by_output], []
        edge = across_loop_edge(self.graph, reading)
        if edge is not None:
            return [], [(edge[1], ())]
        if _mixes(self.graph, reader):
            return [], []
        beside = self._beside(reading)
        return ([beside], []) if beside else ([], [(Value(reader), reading.frames)])

    def _beside(self, reading: Reading) -> str | None:
        """The argument of the same size that an elementwise operation reads too."""
        count = _count(reading.value)
        for operand in reading.reader.operands:
            if operand != reading.value.instruction and _count(Value(operand)) == count:
                found = self._behind_value(Value(operand), reading.frames)
                if found is not None:
                    return found
        return None


def _only_moves(instruction: HloInstruction) -> bool:
    return instruction.opcode in _MOVES or (
        instruction.opcode == "custom-call" and instruction.custom_call_target == _CONCATENATES
    )


def _mixes(graph: HloGraph, reader: HloInstruction) -> bool:
    """Whether an instruction does more than compute each element from the same ones of others."""
    if reader.opcode == "fusion" and reader.called:
        return not _MIXES.isdisjoint(graph.module.computation(reader.called[0][1]).opcodes)
    return reader.opcode in _MIXES and not _only_moves(reader)


def _count(value: Value) -> int:
    shape = value.instruction.shape
    for index in value.path:
        if not 0 <= index < len(shape.elements):
            return -1
        shape = shape.elements[index]
    return -1 if shape.is_tuple else shape.element_count
