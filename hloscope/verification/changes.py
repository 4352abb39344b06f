"""Outputs that are an argument with a small change, as new parameters are: the change is what has to be right.

Beside the parameters themselves a wrong change is hidden by their rounding, in bf16 the whole of it. So both programs
are run with the argument taken out of the sum, which leaves the change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from hloscope.compiler.jax_internals import scan_sizes
from hloscope.program.jaxprs import opened
from hloscope.verification import executing
from hloscope.verification.differences import Shard, as_double, is_inexact, region_of, root_mean_square, whole
from hloscope.verification.executing import Prepared
from hloscope.verification.job import Function
from hloscope.verification.measuring import Measured, Run, shape_of
from hloscope.verification.noise import plain
from hloscope.verification.traced import followed, path_units

_SMALL = 0.25
"""The share of an argument's size up to which an output that differs from it by so much is the argument, changed."""

_KNOWN = 100
"""How many times what is allowed for an output its change is, at least, where it need not be compared by itself."""

_LOOKED_AT = 4096
"""Elements of an output and of an argument that are compared first."""

_PASSING = frozenset(
    "convert_element_type reduce_precision copy sharding_constraint mesh_cast reshard pvary pcast name device_put "
    "stop_gradient layout_constraint optimization_barrier".split()
)
"""Operations whose result is their operand, element by element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """What a value is: an argument, by position, or the sum of one and something else.

    Attributes:
        argument: The argument's position; None for anything else.
        added: That of the argument in a sum; None for what is no such sum.
        sums: For each operation, by id, that adds to an argument, which operand the argument is.
    """

    argument: int | None = None
    added: int | None = None
    sums: tuple[tuple[int, int], ...] = ()


_NOTHING = _Origin()


def _origins(program: Prepared) -> list[_Origin]:
    """What each output of a program is; empty where there is no trace of it."""
    if program.traced is None:
        return []
    given = [_Origin(argument=place) for place in range(len(program.traced.jaxpr.invars))]
    return followed(program.traced, given, _NOTHING, _step)


def _step(eqn: Any, known: list[_Origin]) -> list[_Origin]:
    name = eqn.primitive.name
    if name == "shard_map":
        return followed(eqn.params["jaxpr"], known, _NOTHING, _step)
    if name in ("scan", "while"):
        return _kept(eqn, known)
    if name in _PASSING and len(known) == len(eqn.outvars):
        return known
    if name in ("add", "add_any", "sub"):
        return [_sum(eqn, known)]
    if name == "select_n":  # as of a step that is left out where a gradient is not finite
        return [next((origin for origin in known[1:] if origin.sums), _NOTHING)]
    return [_NOTHING] * len(eqn.outvars)


def _kept(eqn: Any, known: list[_Origin]) -> list[_Origin]:
    """What comes out of a loop: the arguments that it carries along as they are."""
    if eqn.primitive.name == "scan":
        consts, carried = scan_sizes(eqn.params)
        body, given = eqn.params["jaxpr"], known[: consts + carried]
    else:
        consts, body = eqn.params["body_nconsts"], eqn.params["body_jaxpr"]
        given = known[eqn.params["cond_nconsts"] :]
    rows = [_NOTHING] * (len(opened(body).invars) - len(given))
    after = followed(body, [*given, *rows], _NOTHING, _step)
    kept = [
        was if was == now and was.argument is not None else _NOTHING
        for was, now in zip(given[consts:], after, strict=False)
    ]
    return kept + [_NOTHING] * (len(eqn.outvars) - len(kept))


def _sum(eqn: Any, known: Sequence[_Origin]) -> _Origin:
    """What a sum, or a difference, is: one with an argument in it stays that when more is added."""
    left, right = known
    if left.sums or right.sums:
        is_one = not (left.sums and right.sums) and (left.sums or eqn.primitive.name != "sub")
        return (left if left.sums else right) if is_one else _NOTHING
    places = [place for place, origin in enumerate(known) if origin.argument is not None]
    if len(places) != 1 or (eqn.primitive.name == "sub" and places[0]):
        return _NOTHING
    same = eqn.invars[places[0]].aval.shape == eqn.outvars[0].aval.shape
    return _Origin(added=known[places[0]].argument, sums=((id(eqn), places[0]),)) if same else _NOTHING


def small_changes(reference: Run, measured: Measured) -> dict[int, int]:
    """For outputs that are arguments with changes too small to be judged beside them, by position, that argument's.

    Of an output of which only a part is changed, as of a cache, that part decides.

    Args:
        reference: The reference after a run.
        measured: What rounding does to its outputs.
    """
    found = {}
    program = reference.program
    units = path_units(program.traced) if program.traced is not None else []
    rows = zip(reference.outputs, _origins(program), units, strict=False)
    for place, (shards, origin, unit) in enumerate(rows):
        output = whole(shards, shape_of(shards), shards[0].values.dtype)
        argument = _argument_like(output, reference.values)
        if argument is None or origin.argument is not None:
            continue
        change = as_double(output) - as_double(reference.values[argument])
        changed = change[change != 0]
        is_lost = not changed.size and unit > 2.0**-23  # in wider types it is no rounding that hides all of it
        if is_lost or 0 < root_mean_square(changed) < _KNOWN * _allowed(place, output, measured):
            found[place] = argument
    return found


def unchanged(reference: Run, changes: Mapping[int, int]) -> Run:
    """The run of a program that returns arguments as they were given in the place of outputs.

    Args:
        reference: The run that it is to be compared with.
        changes: For outputs, by position, that of the argument.
    """

    def argument(shards: Sequence[Shard], place: int) -> tuple[Shard, ...]:
        values = np.asarray(reference.values[place])
        return tuple(replace(shard, values=values[region_of(shard)].astype(shard.values.dtype)) for shard in shards)

    outputs = enumerate(reference.outputs)
    kept = [argument(shards, changes[place]) if place in changes else shards for place, shards in outputs]
    return replace(reference, outputs=kept)


def _argument_like(output: Any, values: Sequence[Any]) -> int | None:
    """The argument that an output differs little from, by position; None where there is none."""
    for place, value in enumerate(values if is_inexact(output) and output.size else ()):
        if np.shape(value) != output.shape or executing.is_key(value) or not is_inexact(value):
            continue
        first, second = (np.ravel(array)[:_LOOKED_AT] for array in (value, output))
        if root_mean_square(as_double(second) - as_double(first)) < _SMALL * root_mean_square(first):
            return place
    return None


def _allowed(place: int, output: Any, measured: Measured) -> float:
    """How far an output of typical size may be off."""
    spread = measured.spreads[place] if place < len(measured.spreads) else None
    if spread is None:
        return measured.relative * root_mean_square(output)
    return root_mean_square(spread.allowed)


def told_apart(target: Prepared, reference: Prepared, changes: Mapping[int, int]) -> list[int]:
    """The outputs whose change can be taken out of both programs: where it is added to the argument."""
    ours, theirs = _origins(target), _origins(reference)
    return [
        output
        for output, argument in changes.items()
        if output < min(len(ours), len(theirs))
        and theirs[output].added == argument
        and argument in (ours[output].added, ours[output].argument)
    ]


def prepare_changes(program: Prepared, outputs: Sequence[int]) -> Prepared:
    """Compiles a program that returns of some outputs what is added to their argument.

    Args:
        program: The program.
        outputs: Positions of outputs; each has to be such a sum, or the argument as it was given.

    Raises:
        HloscopeError: JAX refuses it.
    """
    closed = program.trace("run without adding its arguments")
    origins = _origins(program)
    without = {sum_id: operand for place in outputs for sum_id, operand in origins[place].sums}
    arguments = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=executing.sharding_of(program, place))
        for place, aval in enumerate(program.seen.argument_avals)
    ]
    facts = replace(program.lowered.facts, args=tuple(arguments), kwargs={}, out=None, static={}, donate=None)
    zeros = {place for place in outputs if not origins[place].sums}
    found = executing.prepare(_returning(closed, outputs, zeros, without), facts, program.lowered.name)
    names = tuple(f"change of {program.seen.result_names[place]}" for place in outputs)
    return replace(found, seen=replace(found.seen, result_names=names))


def _returning(closed: Any, outputs: Sequence[int], zeros: Collection[int], without: Mapping[int, int]) -> Function:
    evaluated = plain(closed, alone=False, without=without)

    def changes(*values: Any) -> list[Any]:
        found = evaluated(*values)
        return [found[place] * 0 if place in zeros else found[place] for place in outputs]

    return changes
