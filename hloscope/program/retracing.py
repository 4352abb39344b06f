"""A second trace of a program with other shardings of its arguments and results, by their flat positions."""

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
"""A size written as a number, outside of products and names."""


class DoesNotApplyError(HloscopeError):
    """A change does not apply to a program."""


def build_changed_call(
    call: Call,
    given: Sequence[Any],
    seen: LoweredFacts,
    results: Any,
    mesh: jax.sharding.Mesh | None,
    change: Resharding,
) -> tuple[Any, list[Any]]:
    """Builds the function to jit for a changed call, with its leaves.

    The function is unwrapped from its own `jax.jit`, whose shardings would contradict the new ones; donated arguments
    stay donated, and results keep the requested shardings.

    Args:
        call: The traced call.
        given: The sharding that each argument leaf was given.
        seen: The facts of its lowering.
        results: The structure of its results.
        mesh: The mesh that the new specs name.
        change: The change; its constraints are not applied here.

    Returns:
        A jitted function of flat arguments, and these.

    Raises:
        DoesNotApplyError: The program's leaves are not those of the change.
    """
    leaves, structure = jax.tree.flatten((call.args, dict(call.kwargs)))
    if len(leaves) != len(seen.argument_avals) or len(given) != len(leaves):
        raise DoesNotApplyError("the program's arguments do not match the leaves of its pytrees")
    into = _apply_changes(_find_shardings(given, seen), change.arguments, mesh)
    out_of = _apply_changes(seen.out_shardings, change.results, mesh)
    function, static = _unwrap_jit(call.function), dict(call.static)

    def flat(*flat_leaves: Any) -> Any:
        args, kwargs = jax.tree.unflatten(structure, flat_leaves)
        return function(*args, **kwargs, **static)

    flat.__name__ = flat.__qualname__ = getattr(function, "__name__", "flat")
    donated = tuple(index for index, gone in enumerate(seen.donated) if gone)
    jitted = jax.jit(flat, donate_argnums=donated, out_shardings=jax.tree.unflatten(results, out_of))
    return jitted, [_make_abstract(leaf, sharding) for leaf, sharding in zip(leaves, into, strict=True)]


def build_resharding_call(
    given: Sequence[Any], seen: LoweredFacts, mesh: jax.sharding.Mesh | None, changes: Sequence[LeafChange]
) -> tuple[Any, list[Any]]:
    """Builds a program that only reshards arguments from their present shardings to those of changes.

    Args:
        given: The sharding that each argument leaf of the program was given.
        seen: The facts of its lowering.
        mesh: The mesh that the new specs name.
        changes: The changes of the arguments to reshard.

    Returns:
        A jitted function of these arguments, and these.

    Raises:
        DoesNotApplyError: The program's leaves are not those of the changes.
    """
    before = _find_shardings(given, seen)
    after = _apply_changes(before, changes, mesh)
    places = [change.index for change in changes]

    def moving(*arrays: Any) -> Any:
        return tuple(map(_reshard, arrays, (after[place] for place in places)))

    jitted = jax.jit(moving, out_shardings=tuple(after[place] for place in places))
    return jitted, [_make_abstract(seen.argument_avals[place], before[place]) for place in places]


def _reshard(array: Any, sharding: Any) -> Any:
    """Reshards an array whose type includes its sharding; any other array is returned unchanged."""
    kinds = set(sharding.mesh.axis_types) if isinstance(sharding, jax.sharding.NamedSharding) else set()
    return jax.sharding.reshard(array, sharding) if jax.sharding.AxisType.Explicit in kinds else array


def _find_shardings(given: Sequence[Any], seen: LoweredFacts) -> list[Any]:
    """The sharding of each argument leaf: the program's own, or otherwise the given one."""
    own = {at: sharding for at, sharding in zip(seen.kept, seen.in_shardings, strict=True) if _is_sharding(sharding)}
    return [own.get(index, sharding) for index, sharding in enumerate(given)]


def _unwrap_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside `jax.jit`; `jax.shard_map` and decorators that compute something are kept."""
    while hasattr(function, "trace") and hasattr(function, "lower") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _apply_changes(before: Iterable[Any], changes: Sequence[LeafChange], mesh: jax.sharding.Mesh | None) -> list[Any]:
    after = {change.index: change.after for change in changes}
    found = [sharding if _is_sharding(sharding) else None for sharding in before]
    for index, spec in after.items():
        if index >= len(found):
            raise DoesNotApplyError("the program has fewer leaves than the change")
        found[index] = None if spec is None else _make_sharding(found[index], spec, mesh)
    return found


def _is_sharding(sharding: Any) -> bool:
    return isinstance(sharding, jax.sharding.Sharding)


def _make_sharding(before: Any, spec: ValueSharding, mesh: jax.sharding.Mesh | None) -> jax.sharding.NamedSharding:
    if isinstance(before, jax.sharding.NamedSharding):
        if before.spec.unreduced or before.spec.reduced:
            raise DoesNotApplyError("the change would lose which axes a value is unreduced or reduced over")
        mesh = before.mesh
    if mesh is None:
        raise DoesNotApplyError("there is no mesh to shard over")
    memory_kind = getattr(before, "memory_kind", None)
    return jax.sharding.NamedSharding(mesh, make_partition_spec(spec), memory_kind=memory_kind)


def make_partition_spec(spec: ValueSharding) -> jax.sharding.PartitionSpec:
    """A sharding as a JAX PartitionSpec."""
    return jax.sharding.PartitionSpec(*(axes[0] if len(axes) == 1 else tuple(axes) or None for axes in spec))


def _make_abstract(leaf: Any, sharding: Any) -> Any:
    """A leaf with its sharding; Python numbers are kept."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return leaf
    options = {"weak_type": True} if getattr(leaf, "weak_type", False) else {}
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, **options)


def replace_sizes(facts: TargetFacts, sizes: Sequence[SizeChange]) -> TargetFacts:
    """The facts with other sizes for letters or numbers of the notation.

    Raises:
        DoesNotApplyError: The arguments are defined by code alone.
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
