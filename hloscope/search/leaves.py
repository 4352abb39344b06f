"""A program's arguments and results: their shardings, which of them belong together, and replaced arguments."""

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
class ProgramLeaf:
    """One argument or result.

    Attributes:
        index: Its position among the flat arguments or results.
        array: The facts from JAX and the compiler.
        sharding: Axes by dimension; None if unknown.
        computed: For a result, its sharding before it is resharded to the requested one.
        value: Shardy's value: the argument or the returned value; None for an argument that the program does not read.
    """

    index: int
    array: CapturedArray
    sharding: ValueSharding | None
    computed: ValueSharding | None = None
    value: ShardyValue | None = None

    @property
    def asked(self) -> ValueSharding | None:
        """The sharding that the user requested; None if left open."""
        return self.sharding if self.array.asked else None

    @property
    def tail(self) -> tuple[str, ...]:
        """The path within its tree: `('layers', '3', 'w')` of `params['layers'][3].w`."""
        return tuple(next(filter(None, found), "0") for found in _PART.findall(self.array.name))


class ProgramLeaves:
    """All leaves of a program.

    Args:
        arguments: The facts about arguments from JAX, and from the compiler if it ran.
        results: The same about results.
        graph: The program as Shardy propagates it.
    """

    def __init__(
        self, arguments: Sequence[CapturedArray] | None, results: Sequence[CapturedArray] | None, graph: ShardyGraph
    ) -> None:
        self._arguments, self._results = arguments or (), results or ()
        self._graph = graph
        self.mesh = dict(graph.module.mesh)

    @cached_property
    def arguments(self) -> tuple[ProgramLeaf, ...]:
        """The arguments in order; empty if the module's arguments differ."""
        arrays = self._arguments
        used = [index for index, array in enumerate(arrays) if array.used]
        values = sorted(
            filter(self._graph.is_program_argument, self._graph.module.values), key=lambda value: value.number
        )
        if len(values) < len(used):
            return ()
        of = dict(zip(used, values[len(values) - len(used) :], strict=True))  # tokens of ordered effects come first
        return tuple(
            ProgramLeaf(index=index, array=array, sharding=_find_sharding(of.get(index)), value=of.get(index))
            for index, array in enumerate(arrays)
        )

    @cached_property
    def results(self) -> tuple[ProgramLeaf, ...]:
        """The results in order; empty if the module's results differ."""
        arrays = self._results
        main = self._graph.module.main
        returned = None if main is None else self._graph.returns.get((main, 0))
        if returned is None or len(returned.operands) < len(arrays):
            return ()
        operands = returned.operands[len(returned.operands) - len(arrays) :]
        values = [self._graph.value(operand) for operand in operands]
        return tuple(
            ProgramLeaf(
                index=index,
                array=array,
                sharding=_find_sharding(value),
                computed=_find_sharding(self._graph.unmoved(value)),
                value=value,
            )
            for index, (array, value) in enumerate(zip(arrays, values, strict=True))
        )

    def argument_named(self, name: str | None) -> ProgramLeaf | None:
        """The argument with a name."""
        return next((leaf for leaf in self.arguments if leaf.array.name == name), None)

    def argument_of(self, value: ShardyValue) -> ProgramLeaf | None:
        """The argument of a value, regardless of the value's shape."""
        root, _ = self._graph.root(value)
        is_own = self._graph.is_program_argument(root)
        return next((leaf for leaf in self.arguments if is_own and leaf.value is not None and leaf.value == root), None)

    @cached_property
    def replaces(self) -> dict[int, int]:
        """The argument that each result replaces in the next step, as far as known.

        The tail of the path, shape and type are equal; otherwise, a donated argument has the same shape and type.
        """
        found: dict[int, int] = {}
        taken: set[int] = set()
        for result in self.results:
            alike = [leaf for leaf in self.arguments if leaf.index not in taken and _have_same_type(leaf, result)]
            best = max(alike, key=lambda leaf: _count_common_tail(leaf, result), default=None)
            if best is not None and _count_common_tail(best, result) > 0:
                found[result.index] = best.index
                taken.add(best.index)
        for result in self.results:
            if result.index not in found:
                left = (
                    leaf
                    for leaf in self.arguments
                    if leaf.array.donated and leaf.index not in taken and _have_same_type(leaf, result)
                )
                donated = next(left, None)
                if donated is not None:
                    found[result.index] = donated.index
                    taken.add(donated.index)
        return found

    def alike(self, leaf: ProgramLeaf) -> tuple[ProgramLeaf, ...]:
        """The same argument of all layers, including `leaf`: names that differ only in numbers."""
        pattern = _NUMBER.sub("#", leaf.array.name)
        same = (other for other in self.arguments if _NUMBER.sub("#", other.array.name) == pattern)
        return tuple(other for other in same if _have_same_type(leaf, other) and other.sharding == leaf.sharding)

    def of_one_kind(self, leaf: ProgramLeaf) -> tuple[ProgramLeaf, ...]:
        """The states with the same shape, type and sharding, including `leaf`, such as caches of keys and values."""
        states = {*self.replaces.values()}
        same = (other for other in self.arguments if other.index in states and _have_same_type(leaf, other))
        return tuple(other for other in same if other.sharding == leaf.sharding)

    def states_of(self, leaf: ProgramLeaf) -> tuple[ProgramLeaf, ...]:
        """The arguments that belong to another one, such as a weight's momenta: the same tail, shape and sharding."""
        return tuple(
            other
            for other in self.arguments
            if other.array.global_shape == leaf.array.global_shape
            and other.sharding == leaf.sharding
            and (other.index == leaf.index or (leaf.tail and other.tail[-len(leaf.tail) :] == leaf.tail))
        )

    def fits(self, array: CapturedArray, sharding: ValueSharding | None) -> bool:
        """Returns whether JAX accepts a sharding for an array: each axis once, all dimensions divided evenly.

        A type that records pending sums accepts no other sharding, because they belong to its own.
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
        arguments: Iterable[tuple[ProgramLeaf, ValueSharding]] = (),
        results: Iterable[tuple[ProgramLeaf, ValueSharding | None]] = (),
    ) -> Resharding | None:
        """A change of specs, including those of the results that replace the arguments; None if it changes nothing.

        Args:
            arguments: Arguments and their new specs.
            results: Results and their new specs; None leaves one open.
        """
        into = {leaf.index: (leaf, spec) for leaf, spec in arguments if spec != leaf.sharding}
        out_of: dict[int, tuple[ProgramLeaf, ValueSharding | None]] = {
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
                replace(
                    _make_leaf_change(*into[index], into[index][0].sharding), moves=self._moves(index, into, out_of)
                )
                for index in sorted(into)
            ),
            results=tuple(
                _make_leaf_change(*out_of[index], out_of[index][0].asked, self.replaces.get(index))
                for index in sorted(out_of)
            ),
            frees_output=any(self._frees(index, spec, into) for index, (_, spec) in out_of.items()),
        )

    def _moves(
        self,
        argument: int,
        into: dict[int, tuple[ProgramLeaf, ValueSharding]],
        out_of: dict[int, tuple[ProgramLeaf, ValueSharding | None]],
    ) -> bool:
        """Returns whether no result that replaces an argument has the argument's new sharding."""
        after = into[argument][1]
        replacing = (index for index, replaced in self.replaces.items() if replaced == argument)
        return all((out_of[index][1] if index in out_of else self.results[index].asked) != after for index in replacing)

    def _frees(
        self, index: int, spec: ValueSharding | None, into: dict[int, tuple[ProgramLeaf, ValueSharding]]
    ) -> bool:
        is_asked = self.results[index].asked is not None
        argument = self.replaces.get(index)
        if argument is None or spec is None:
            return is_asked
        return spec != (into[argument][1] if argument in into else self.arguments[argument].sharding)

    def layouts(self, leaf: ProgramLeaf, axes: Iterable[str]) -> Iterator[ValueSharding]:
        """Other shardings of an array for these axes: without them, and on each other dimension that they divide.

        An array that they do not shard yet is sharded by them.
        """
        if leaf.sharding is None:
            return
        wanted = tuple(dict.fromkeys(axis for axis in axes if axis in self.mesh))
        bare = tuple(tuple(axis for axis in here if axis not in wanted) for here in leaf.sharding)
        yield bare
        own = tuple(axis for axis in wanted if axis in axes_in(leaf.sharding)) or wanted
        for number in range(len(bare)):
            yield tuple((*here, *own) if number == at else here for at, here in enumerate(bare))


def _make_leaf_change(
    leaf: ProgramLeaf, after: ValueSharding | None, before: ValueSharding | None, replaces: int | None = None
) -> LeafChange:
    return LeafChange(index=leaf.index, name=leaf.array.name, before=before, after=after, replaces=replaces)


def _find_sharding(value: ShardyValue | None) -> ValueSharding | None:
    """A value's sharding; replicated if Shardy does not give one."""
    if value is None:
        return None
    said = value.sharding
    return said if said is not None and len(said) == len(value.shape) else ((),) * len(value.shape)


def _have_same_type(one: ProgramLeaf, other: ProgramLeaf) -> bool:
    return (one.array.global_shape, one.array.dtype) == (other.array.global_shape, other.array.dtype)


def _count_common_tail(one: ProgramLeaf, other: ProgramLeaf) -> int:
    """The number of names that two paths share at their ends; numbers alone do not count."""
    count, named = 0, 0
    for mine, theirs in zip(reversed(one.tail), reversed(other.tail), strict=False):
        if mine != theirs:
            break
        count += 1
        named += not mine.isdigit()
    return count if named else 0
