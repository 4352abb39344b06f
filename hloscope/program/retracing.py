"""A program traced once more with other shardings of its arguments and results, by their flat places."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax

from hloscope.compiler.jax_internals import LoweredFacts
from hloscope.errors import HloscopeError
from hloscope.program.arguments import Call
from hloscope.program.change import LeafChange, Resharding, SizeChange
from hloscope.program.target import TargetFacts

if TYPE_CHECKING:
    from hloscope.compiler.shardy_model import ValueSharding


_NUMBER = re.compile(r"(?<![\w*@(])\d+(?![\w*])")
"""A size that is written as a number, and no part of a product or of a name."""


class DoesNotApplyError(HloscopeError):
    """A change cannot be made to a program."""


def changed_call(
    call: Call,
    given: Sequence[Any],
    seen: LoweredFacts,
    results: Any,
    mesh: jax.sharding.Mesh | None,
    change: Resharding,
) -> tuple[Any, list[Any]]:
    """What to jit in place of a call, and on which leaves.

    The function is taken out of a `jax.jit` of its own, whose shardings would contradict the new ones; what it donates
    stays donated, and results keep the shardings that were asked for.

    Args:
        call: The call that was traced.
        given: The sharding that each argument leaf was given.
        seen: What was lowered of it.
        results: The structure of its results.
        mesh: The mesh that the new specs name.
        change: What is to be otherwise; what it says of constraints is not done here.

    Returns:
        A jitted function of flat arguments, and these.

    Raises:
        DoesNotApplyError: The program's leaves are not those that the change knows.
    """
    leaves, structure = jax.tree.flatten((call.args, dict(call.kwargs)))
    if len(leaves) != len(seen.argument_avals) or len(given) != len(leaves):
        raise DoesNotApplyError("the program's arguments do not match the leaves of its pytrees")
    into = _placed(_shardings(given, seen), change.arguments, mesh)
    out_of = _placed(seen.out_shardings, change.results, mesh)
    function, static = _bare(call.function), dict(call.static)

    def flat(*flat_leaves: Any) -> Any:
        args, kwargs = jax.tree.unflatten(structure, flat_leaves)
        return function(*args, **kwargs, **static)

    flat.__name__ = flat.__qualname__ = getattr(function, "__name__", "flat")
    donated = tuple(index for index, gone in enumerate(seen.donated) if gone)
    jitted = jax.jit(flat, donate_argnums=donated, out_shardings=jax.tree.unflatten(results, out_of))
    return jitted, [_abstract(leaf, sharding) for leaf, sharding in zip(leaves, into, strict=True)]


def moving_call(
    given: Sequence[Any], seen: LoweredFacts, mesh: jax.sharding.Mesh | None, changes: Sequence[LeafChange]
) -> tuple[Any, list[Any]]:
    """A program that does nothing but bring arguments from where they lie to where changes have them.

    Args:
        given: The sharding that each argument leaf of the program was given.
        seen: What was lowered of it.
        mesh: The mesh that the new specs name.
        changes: Of the arguments that are brought elsewhere.

    Returns:
        A jitted function of these arguments, and these.

    Raises:
        DoesNotApplyError: The program's leaves are not those that the changes know.
    """
    before = _shardings(given, seen)
    after = _placed(before, changes, mesh)
    places = [change.index for change in changes]

    def moving(*arrays: Any) -> Any:
        return tuple(map(_resharded, arrays, (after[place] for place in places)))

    jitted = jax.jit(moving, out_shardings=tuple(after[place] for place in places))
    return jitted, [_abstract(seen.argument_avals[place], before[place]) for place in places]


def _resharded(array: Any, sharding: Any) -> Any:
    """An array whose type says how it lies, with another type; any other as it is."""
    kinds = set(sharding.mesh.axis_types) if isinstance(sharding, jax.sharding.NamedSharding) else set()
    return jax.sharding.reshard(array, sharding) if jax.sharding.AxisType.Explicit in kinds else array


def _shardings(given: Sequence[Any], seen: LoweredFacts) -> list[Any]:
    """The sharding of each argument leaf: the program's own, else the one it was given."""
    own = {at: sharding for at, sharding in zip(seen.kept, seen.in_shardings, strict=True) if _is_said(sharding)}
    return [own.get(index, sharding) for index, sharding in enumerate(given)]


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside of `jax.jit`; `jax.shard_map` and decorators that compute something stay."""
    while hasattr(function, "trace") and hasattr(function, "lower") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _placed(before: Iterable[Any], changes: Sequence[LeafChange], mesh: jax.sharding.Mesh | None) -> list[Any]:
    after = {change.index: change.after for change in changes}
    found = [sharding if _is_said(sharding) else None for sharding in before]
    for index, spec in after.items():
        if index >= len(found):
            raise DoesNotApplyError("the program has fewer leaves than the change")
        found[index] = None if spec is None else _sharding(found[index], spec, mesh)
    return found


def _is_said(sharding: Any) -> bool:
    return isinstance(sharding, jax.sharding.Sharding)


def _sharding(before: Any, spec: ValueSharding, mesh: jax.sharding.Mesh | None) -> jax.sharding.NamedSharding:
    if isinstance(before, jax.sharding.NamedSharding):
        if before.spec.unreduced or before.spec.reduced:
            raise DoesNotApplyError("the change would lose which axes a value is unreduced or reduced over")
        mesh = before.mesh
    if mesh is None:
        raise DoesNotApplyError("there is no mesh to shard over")
    memory_kind = getattr(before, "memory_kind", None)
    return jax.sharding.NamedSharding(mesh, partition_of(spec), memory_kind=memory_kind)


def partition_of(spec: ValueSharding) -> jax.sharding.PartitionSpec:
    """A sharding as JAX has it."""
    return jax.sharding.PartitionSpec(*(axes[0] if len(axes) == 1 else tuple(axes) or None for axes in spec))


def _abstract(leaf: Any, sharding: Any) -> Any:
    """A leaf with its sharding; Python's numbers stay what they are."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return leaf
    options = {"weak_type": True} if getattr(leaf, "weak_type", False) else {}
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, **options)


def with_sizes(facts: TargetFacts, sizes: Sequence[SizeChange]) -> TargetFacts:
    """Facts with other sizes for letters of the notation, or for its numbers.

    Raises:
        DoesNotApplyError: Only code says what the arguments are.
    """
    if not sizes:
        return facts
    if (facts.args is None and not facts.kwargs) or callable(facts.args):
        raise DoesNotApplyError("the arguments are made by code, not written in the notation")
    letters = {change.name: change.after for change in sizes if change.name in facts.dims}
    numbers = {change.name: str(change.after) for change in sizes if change.name not in letters}

    def resized(leaf: Any) -> Any:
        if not isinstance(leaf, str):
            return leaf
        kind, bracket, rest = leaf.partition("[")
        return kind + bracket + _NUMBER.sub(lambda match: numbers.get(match[0], match[0]), rest)

    args, kwargs = jax.tree.map(resized, (facts.args, dict(facts.kwargs)))
    return replace(facts, dims={**facts.dims, **letters}, args=args, kwargs=kwargs)
