"""What the inputs that were tried cannot tell of: shards of arguments that no output of the reference depends on.

A shard is changed, and the reference run again, to see whether anything depends on it. Where that would take long, one
reverse pass tells first which floating-point shards may be without any effect, so that no others are changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hloscope.units import plural
from hloscope.verification import executing
from hloscope.verification.differences import Shard
from hloscope.verification.executing import Prepared
from hloscope.verification.measuring import Run
from hloscope.verification.model import Untested

Another = Callable[[int], Any]
Place = tuple[tuple[slice, ...], tuple[str, ...]]

_PATIENCE_S = 1.0
"""Seconds of runs with changed shards beyond which a reverse pass, which has to be compiled, is quicker."""

_MOST_CHANGES = 128
"""Runs with a changed shard at most."""


def untested(target: Prepared, reference: Run, another: Another, *, patience_s: float) -> tuple[Untested, ...]:
    """Finds the shards of arguments that the reference's outputs do not depend on.

    Arguments that the reference does not read, and donated ones that are only overwritten, are left out. Where changing
    every shard of an argument would take too long it is changed as a whole, and its parts are told as not tried; once
    that takes too long as well, all arguments that are left are told as not tried, in one.

    Args:
        target: The target; its shards count as well as the reference's.
        reference: The reference after a run.
        another: Other random values for the argument at a position.
        patience_s: Seconds that all runs with changed shards may take.
    """
    program = reference.program
    read = set(program.seen.kept)
    cuts = {position: list(_places(position, target, program)) for position in read}
    takes_long = reference.seconds * sum(map(len, cuts.values())) > _PATIENCE_S
    silent = _without_gradient(program, reference.values) if takes_long else None
    most = min(_MOST_CHANGES, int(max(patience_s, _PATIENCE_S) / reference.seconds))
    found, changes, left = [], 0, {}
    for position, name in enumerate(program.seen.argument_names):
        value = reference.values[position]
        if position not in read or not np.size(value):
            continue
        places = cuts[position]
        doubtful = [one for one in places if silent is None or silent(position, one[0])]
        if doubtful and changes >= max(most, 1):
            left[name] = len(places)
            continue
        if changes + len(doubtful) > most and len(doubtful) > 1:
            found.append(Untested(argument=name, shards=(), parts=len(places), tried=False))
            doubtful = [(tuple(slice(None) for _ in np.shape(value)), ())]
        changes += len(doubtful)
        fresh = another(position) if doubtful else None
        idle = [place for place in doubtful if _changes_nothing(reference, position, place[0], fresh)]
        donated = target.seen.donated[position] or program.seen.donated[position]
        if idle and not (donated and len(idle) == len(places)):
            shards = tuple(place for _, held in idle for place in held)
            found.append(Untested(argument=name, shards=shards if len(idle) < len(places) else (), parts=len(places)))
    return (*found, *_left(left))


def _left(parts: Mapping[str, int]) -> list[Untested]:
    """What is told of arguments that there was no time for, by their numbers of parts."""
    if not parts:
        return []
    first, *others = parts
    name = f"{first} and {plural(len(others), 'other argument')}" if others else first
    return [Untested(argument=name, shards=(), parts=sum(parts.values()), tried=False)]


def _without_gradient(program: Prepared, values: Sequence[Any]) -> Callable[[int, tuple[slice, ...]], bool] | None:
    """Whether a part of an argument has no gradient, or none can be said; None where JAX cannot differentiate."""
    floats = [position for position, value in enumerate(values) if _is_real(value)]
    if not floats:
        return lambda position, region: True
    try:
        gradients = dict(zip(floats, executing.gradients(program, values, floats), strict=True))
    except executing.UNEVALUABLE:
        return None

    def silent(position: int, region: tuple[slice, ...]) -> bool:
        return position not in gradients or not np.any(gradients[position][region] != 0)

    return silent


def _is_real(value: Any) -> bool:
    return not executing.is_key(value) and bool(jnp.issubdtype(value.dtype, jnp.floating))


def _places(position: int, *programs: Prepared) -> Iterator[Place]:
    """The parts of an argument that devices hold in the program that cuts it into most, and which devices those are."""
    cuts = [_cut(position, program) for program in programs]
    yield from max(cuts, key=len)


def _cut(position: int, program: Prepared) -> list[Place]:
    shape = tuple(program.seen.argument_avals[position].shape)
    everything: list[Place] = [(tuple(slice(0, size) for size in shape), ())]
    sharding = executing.sharding_of(program, position)
    if sharding is None:
        return everything
    held: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for device, region in sharding.devices_indices_map(shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(region, shape, strict=True))
        held.setdefault(bounds, []).append(executing.place_of(device, program.mesh))
    return [(tuple(slice(*ends) for ends in bounds), tuple(places)) for bounds, places in held.items()]


def _changes_nothing(reference: Run, position: int, region: tuple[slice, ...], fresh: Any) -> bool:
    """Whether the reference gives the same, to the bit, with other values in a part of an argument."""
    values = list(reference.values)
    if executing.is_key(values[position]):
        values[position] = fresh
    else:
        changed = np.array(values[position])
        same = changed[region].tobytes() == fresh[region].tobytes()
        changed[region] = fresh[region]
        if same:
            return False  # a range of one value: nothing can be said
        values[position] = changed
    return _same(reference.outputs, executing.run(reference.program, values))


def _same(one: Sequence[tuple[Shard, ...]], other: Sequence[tuple[Shard, ...]]) -> bool:
    pairs = [pair for mine, theirs in zip(one, other, strict=True) for pair in zip(mine, theirs, strict=True)]
    return all(mine.values.tobytes() == theirs.values.tobytes() for mine, theirs in pairs)
