"""A program's arguments and results: their shardings, which belong together, and which results replace arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from hloscope.compiler.shardy_model import ShardyValue, ValueSharding
from hloscope.program.capture import CapturedArray
from hloscope.program.change import LeafChange, Resharding
from hloscope.shardy.graph import ShardyGraph, axes_in

_PART = re.compile(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\d+)\]|\.(\w+)")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One argument or result.

    Attributes:
        index: Its place among the flat arguments or results.
        array: What JAX and the compiler say of it.
        sharding: Axes by dimension; None where nobody says.
        computed: Of a result: its sharding before it is brought into the one that was asked for.
        value: Shardy's value: the argument, or what is returned; None for an argument that the program does not read.
    """

    index: int
    array: CapturedArray
    sharding: ValueSharding | None
    computed: ValueSharding | None = None
    value: ShardyValue | None = None

    @property
    def asked(self) -> ValueSharding | None:
        """The sharding that the user asked for; None where it was left open."""
        return self.sharding if self.array.asked else None

    @property
    def tail(self) -> tuple[str, ...]:
        """Its path within its tree: `('layers', '3', 'w')` of `params['layers'][3].w`."""
        return tuple(next(filter(None, found), "0") for found in _PART.findall(self.array.name))


class Leaves:
    """All of a program's.

    Args:
        arguments: What JAX, and the compiler if it was asked, say of them.
        results: The same of results.
        graph: The program as Shardy propagates it.
    """

    def __init__(
        self, arguments: Sequence[CapturedArray] | None, results: Sequence[CapturedArray] | None, graph: ShardyGraph
    ) -> None:
        self._arguments, self._results = arguments or (), results or ()
        self._graph = graph
        self.mesh = dict(graph.module.mesh)

    @cached_property
    def arguments(self) -> tuple[Leaf, ...]:
        """In their order; empty where the module's arguments are others."""
        arrays = self._arguments
        used = [index for index, array in enumerate(arrays) if array.used]
        values = sorted(
            filter(self._graph.is_program_argument, self._graph.module.values), key=lambda value: value.number
        )
        if len(values) < len(used):
            return ()
        of = dict(zip(used, values[len(values) - len(used) :], strict=True))  # tokens of ordered effects come first
        return tuple(
            Leaf(index=index, array=array, sharding=_known(of.get(index)), value=of.get(index))
            for index, array in enumerate(arrays)
        )

    @cached_property
    def results(self) -> tuple[Leaf, ...]:
        """In their order; empty where the module's results are others."""
        arrays = self._results
        main = self._graph.module.main
        returned = None if main is None else self._graph.returns.get((main, 0))
        if returned is None or len(returned.operands) < len(arrays):
            return ()
        operands = returned.operands[len(returned.operands) - len(arrays) :]
        values = [self._graph.value(operand) for operand in operands]
        return tuple(
            Leaf(
                index=index,
                array=array,
                sharding=_known(value),
                computed=_known(self._graph.unmoved(value)),
                value=value,
            )
            for index, (array, value) in enumerate(zip(arrays, values, strict=True))
        )

    def argument_named(self, name: str | None) -> Leaf | None:
        """The argument of a name."""
        return next((leaf for leaf in self.arguments if leaf.array.name == name), None)

    def argument_of(self, value: ShardyValue) -> Leaf | None:
        """The argument that a value is, whatever shape it has there."""
        root, _ = self._graph.root(value)
        is_own = self._graph.is_program_argument(root)
        return next((leaf for leaf in self.arguments if is_own and leaf.value is not None and leaf.value == root), None)

    @cached_property
    def replaces(self) -> dict[int, int]:
        """For each result the argument that it takes the place of in the next step, as far as that can be told.

        The same tail of the path, shape and type; of the others a donated argument of the same shape and type.
        """
        found: dict[int, int] = {}
        taken: set[int] = set()
        for result in self.results:
            alike = [leaf for leaf in self.arguments if leaf.index not in taken and _same_type(leaf, result)]
            best = max(alike, key=lambda leaf: _common_tail(leaf, result), default=None)
            if best is not None and _common_tail(best, result) > 0:
                found[result.index] = best.index
                taken.add(best.index)
        for result in self.results:
            if result.index not in found:
                left = (
                    leaf
                    for leaf in self.arguments
                    if leaf.array.donated and leaf.index not in taken and _same_type(leaf, result)
                )
                donated = next(left, None)
                if donated is not None:
                    found[result.index] = donated.index
                    taken.add(donated.index)
        return found

    def alike(self, leaf: Leaf) -> tuple[Leaf, ...]:
        """The same argument of all layers, `leaf` among them: names that differ in numbers alone."""
        pattern = _NUMBER.sub("#", leaf.array.name)
        same = (other for other in self.arguments if _NUMBER.sub("#", other.array.name) == pattern)
        return tuple(other for other in same if _same_type(leaf, other) and other.sharding == leaf.sharding)

    def of_one_kind(self, leaf: Leaf) -> tuple[Leaf, ...]:
        """The states of one shape, type and sharding, `leaf` among them, such as the caches of keys and of values."""
        states = {*self.replaces.values()}
        same = (other for other in self.arguments if other.index in states and _same_type(leaf, other))
        return tuple(other for other in same if other.sharding == leaf.sharding)

    def states_of(self, leaf: Leaf) -> tuple[Leaf, ...]:
        """The arguments that belong to one, such as a weight's momenta: the same tail, shape and sharding."""
        return tuple(
            other
            for other in self.arguments
            if other.array.global_shape == leaf.array.global_shape
            and other.sharding == leaf.sharding
            and (other.index == leaf.index or (leaf.tail and other.tail[-len(leaf.tail) :] == leaf.tail))
        )

    def fits(self, array: CapturedArray, sharding: ValueSharding | None) -> bool:
        """Whether JAX takes a sharding for an argument or a result: each axis once, all dimensions divided evenly.

        None is taken for one whose type says of sums whether they were taken: that goes with its sharding.
        """
        if "reduced=" in (array.sharding or ""):
            return False
        if sharding is None:
            return True
        axes = [axis for here in sharding for axis in here]
        if len(axes) != len(set(axes)) or any(":" in axis or axis not in self.mesh for axis in axes):
            return False
        return len(sharding) == len(array.global_shape) and all(
            size % prod(self.mesh[axis] for axis in here) == 0
            for size, here in zip(array.global_shape, sharding, strict=True)
        )

    def change(
        self,
        arguments: Iterable[tuple[Leaf, ValueSharding]] = (),
        results: Iterable[tuple[Leaf, ValueSharding | None]] = (),
    ) -> Resharding | None:
        """A change of specs, with the results that replace the arguments changed along; None where it changes nothing.

        Args:
            arguments: Arguments and their new specs.
            results: Results and theirs; None leaves one open.
        """
        into = {leaf.index: (leaf, spec) for leaf, spec in arguments if spec != leaf.sharding}
        out_of: dict[int, tuple[Leaf, ValueSharding | None]] = {
            leaf.index: (leaf, spec) for leaf, spec in results if spec != leaf.asked
        }
        for index, argument in self.replaces.items():
            result = self.results[index]
            along = into[argument][1] if argument in into else result.asked
            if index not in out_of and result.asked is not None and along != result.asked:
                out_of[index] = (result, along)
        specs = [*into.values(), *out_of.values()]
        if not specs or not all(self.fits(leaf.array, spec) for leaf, spec in specs):
            return None
        return Resharding(
            arguments=tuple(
                replace(_leaf_change(*into[index], into[index][0].sharding), moves=self._moves(index, into, out_of))
                for index in sorted(into)
            ),
            results=tuple(
                _leaf_change(*out_of[index], out_of[index][0].asked, self.replaces.get(index))
                for index in sorted(out_of)
            ),
            frees_output=any(self._frees(index, spec, into) for index, (_, spec) in out_of.items()),
        )

    def _moves(
        self,
        argument: int,
        into: dict[int, tuple[Leaf, ValueSharding]],
        out_of: dict[int, tuple[Leaf, ValueSharding | None]],
    ) -> bool:
        """Whether no result lies as an argument is to lie that it replaces."""
        after = into[argument][1]
        replacing = (index for index, replaced in self.replaces.items() if replaced == argument)
        return all((out_of[index][1] if index in out_of else self.results[index].asked) != after for index in replacing)

    def _frees(self, index: int, spec: ValueSharding | None, into: dict[int, tuple[Leaf, ValueSharding]]) -> bool:
        is_asked = self.results[index].asked is not None
        argument = self.replaces.get(index)
        if argument is None or spec is None:
            return is_asked
        return spec != (into[argument][1] if argument in into else self.arguments[argument].sharding)

    def layouts(self, leaf: Leaf, axes: Iterable[str]) -> Iterator[ValueSharding]:
        """Other shardings of an array that these axes cut: without them, and on each other dimension that divides.

        One that they do not cut yet gets them.
        """
        if leaf.sharding is None:
            return
        wanted = tuple(dict.fromkeys(axis for axis in axes if axis in self.mesh))
        bare = tuple(tuple(axis for axis in here if axis not in wanted) for here in leaf.sharding)
        yield bare
        own = tuple(axis for axis in wanted if axis in axes_in(leaf.sharding)) or wanted
        for number in range(len(bare)):
            yield tuple((*here, *own) if number == at else here for at, here in enumerate(bare))


def _leaf_change(
    leaf: Leaf, after: ValueSharding | None, before: ValueSharding | None, replaces: int | None = None
) -> LeafChange:
    return LeafChange(index=leaf.index, name=leaf.array.name, before=before, after=after, replaces=replaces)


def _known(value: ShardyValue | None) -> ValueSharding | None:
    """A value's sharding; replicated where Shardy leaves it unsaid."""
    if value is None:
        return None
    said = value.sharding
    return said if said is not None and len(said) == len(value.shape) else ((),) * len(value.shape)


def _same_type(one: Leaf, other: Leaf) -> bool:
    return (one.array.global_shape, one.array.dtype) == (other.array.global_shape, other.array.dtype)


def _common_tail(one: Leaf, other: Leaf) -> int:
    """How many names two paths end with alike; numbers alone say nothing."""
    count, named = 0, 0
    for mine, theirs in zip(reversed(one.tail), reversed(other.tail), strict=False):
        if mine != theirs:
            break
        count += 1
        named += not mine.isdigit()
    return count if named else 0
