"""Outputs that are an argument with a small update, such as new parameters: the update itself must be right.

The rounding of the parameters hides a wrong update, in bf16 all of it. So both programs
are run with the argument removed from the sum, which leaves the update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from hloscope.compiler.jax_internals import count_scan_values
from hloscope.program.jaxprs import open_jaxpr
from hloscope.verification import executing
from hloscope.verification.differences import (
    OutputShard,
    as_double,
    assemble_shards,
    compute_root_mean_square,
    find_region,
    is_inexact,
)
from hloscope.verification.executing import Prepared
from hloscope.verification.job import Function
from hloscope.verification.measuring import MeasuredRounding, ProgramRun, find_global_shape
from hloscope.verification.noise import make_exact
from hloscope.verification.traced import find_path_units, follow_program

_SMALL = 0.25
"""The largest difference, as a share of an argument's size, at which an output counts as the changed argument."""

_KNOWN = 100
"""The least size of a change, in multiples of the output's tolerance, that need not be compared by itself."""

_LOOKED_AT = 4096
"""The elements of an output and of an argument that are compared first."""

_PASSING = frozenset(
    "convert_element_type reduce_precision copy sharding_constraint mesh_cast reshard pvary pcast name device_put "
    "stop_gradient layout_constraint optimization_barrier".split()
)
"""Operations whose result equals their operand, element by element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArgumentOrigin:
    """The origin of a value: an argument, by position, or the sum of one and something else.

    Attributes:
        argument: The argument's position; None for anything else.
        added: The position of the argument in a sum; None for any other value.
        sums: The operand that is the argument, for each operation (by id) that adds to an argument.
    """

    argument: int | None = None
    added: int | None = None
    sums: tuple[tuple[int, int], ...] = ()


_NOTHING = _ArgumentOrigin()


def _find_origins(program: Prepared) -> list[_ArgumentOrigin]:
    """The origin of each output of a program; empty without a trace of the program."""
    if program.traced is None:
        return []
    given = [_ArgumentOrigin(argument=place) for place in range(len(program.traced.jaxpr.invars))]
    return follow_program(program.traced, given, _NOTHING, _follow_step)


def _follow_step(eqn: Any, known: list[_ArgumentOrigin]) -> list[_ArgumentOrigin]:
    name = eqn.primitive.name
    if name == "shard_map":
        return follow_program(eqn.params["jaxpr"], known, _NOTHING, _follow_step)
    if name in ("scan", "while"):
        return _follow_loop(eqn, known)
    if name in _PASSING and len(known) == len(eqn.outvars):
        return known
    if name in ("add", "add_any", "sub"):
        return [_follow_sum(eqn, known)]
    if name == "select_n":  # as of a step that is left out where a gradient is not finite
        return [next((origin for origin in known[1:] if origin.sums), _NOTHING)]
    return [_NOTHING] * len(eqn.outvars)


def _follow_loop(eqn: Any, known: list[_ArgumentOrigin]) -> list[_ArgumentOrigin]:
    """The origins after a loop: the arguments that it carries unchanged."""
    if eqn.primitive.name == "scan":
        consts, carried = count_scan_values(eqn.params)
        body, given = eqn.params["jaxpr"], known[: consts + carried]
    else:
        consts, body = eqn.params["body_nconsts"], eqn.params["body_jaxpr"]
        given = known[eqn.params["cond_nconsts"] :]
    rows = [_NOTHING] * (len(open_jaxpr(body).invars) - len(given))
    after = follow_program(body, [*given, *rows], _NOTHING, _follow_step)
    kept = [
        was if was == now and was.argument is not None else _NOTHING
        for was, now in zip(given[consts:], after, strict=False)
    ]
    return kept + [_NOTHING] * (len(eqn.outvars) - len(kept))


def _follow_sum(eqn: Any, known: Sequence[_ArgumentOrigin]) -> _ArgumentOrigin:
    """The origin of a sum or difference: a sum with an argument stays one when more is added."""
    left, right = known
    if left.sums or right.sums:
        is_one = not (left.sums and right.sums) and (left.sums or eqn.primitive.name != "sub")
        return (left if left.sums else right) if is_one else _NOTHING
    places = [place for place, origin in enumerate(known) if origin.argument is not None]
    if len(places) != 1 or (eqn.primitive.name == "sub" and places[0]):
        return _NOTHING
    same = eqn.invars[places[0]].aval.shape == eqn.outvars[0].aval.shape
    return _ArgumentOrigin(added=known[places[0]].argument, sums=((id(eqn), places[0]),)) if same else _NOTHING


def find_small_changes(reference: ProgramRun, measured: MeasuredRounding) -> dict[int, int]:
    """The outputs that are arguments with changes too small to judge within them: argument positions by output's.

    If only a part of an output is changed, as in a cache, that part decides.

    Args:
        reference: The reference after a run.
        measured: The effect of rounding on its outputs.
    """
    found = {}
    program = reference.program
    units = find_path_units(program.traced) if program.traced is not None else []
    rows = zip(reference.outputs, _find_origins(program), units, strict=False)
    for place, (shards, origin, unit) in enumerate(rows):
        output = assemble_shards(shards, find_global_shape(shards), shards[0].values.dtype)
        argument = _find_similar_argument(output, reference.values)
        if argument is None or origin.argument is not None:
            continue
        change = as_double(output) - as_double(reference.values[argument])
        changed = change[change != 0]
        is_lost = not changed.size and unit > 2.0**-23  # in wider types it is no rounding that hides all of it
        if is_lost or 0 < compute_root_mean_square(changed) < _KNOWN * _find_allowed_error(place, output, measured):
            found[place] = argument
    return found


def make_unchanged_run(reference: ProgramRun, changes: Mapping[int, int]) -> ProgramRun:
    """The run of a program that returns the original arguments in place of some outputs.

    Args:
        reference: The run to compare it with.
        changes: The position of the argument, by the output's position.
    """

    def argument(shards: Sequence[OutputShard], place: int) -> tuple[OutputShard, ...]:
        values = np.asarray(reference.values[place])
        return tuple(replace(shard, values=values[find_region(shard)].astype(shard.values.dtype)) for shard in shards)

    outputs = enumerate(reference.outputs)
    kept = [argument(shards, changes[place]) if place in changes else shards for place, shards in outputs]
    return replace(reference, outputs=kept)


def _find_similar_argument(output: Any, values: Sequence[Any]) -> int | None:
    """The position of the argument that an output differs little from, or None."""
    for place, value in enumerate(values if is_inexact(output) and output.size else ()):
        if np.shape(value) != output.shape or executing.is_key(value) or not is_inexact(value):
            continue
        first, second = (np.ravel(array)[:_LOOKED_AT] for array in (value, output))
        if compute_root_mean_square(as_double(second) - as_double(first)) < _SMALL * compute_root_mean_square(first):
            return place
    return None


def _find_allowed_error(place: int, output: Any, measured: MeasuredRounding) -> float:
    """The allowed error of an output of typical size."""
    spread = measured.spreads[place] if place < len(measured.spreads) else None
    if spread is None:
        return measured.relative * compute_root_mean_square(output)
    return compute_root_mean_square(spread.allowed)


def find_separable_changes(target: Prepared, reference: Prepared, changes: Mapping[int, int]) -> list[int]:
    """The outputs whose change can be separated in both programs: those with an addition to the argument."""
    ours, theirs = _find_origins(target), _find_origins(reference)
    return [
        output
        for output, argument in changes.items()
        if output < min(len(ours), len(theirs))
        and theirs[output].added == argument
        and argument in (ours[output].added, ours[output].argument)
    ]


def prepare_changes(program: Prepared, outputs: Sequence[int]) -> Prepared:
    """Compiles a program that returns, for some outputs, only the addition to their argument.

    Args:
        program: The program.
        outputs: Positions of outputs; each must be such a sum, or the unchanged argument.

    Raises:
        HloscopeError: JAX refuses it.
    """
    closed = program.trace("run without adding its arguments")
    origins = _find_origins(program)
    without = {sum_id: operand for place in outputs for sum_id, operand in origins[place].sums}
    arguments = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=executing.find_sharding(program, place))
        for place, aval in enumerate(program.seen.argument_avals)
    ]
    facts = replace(program.lowered.facts, args=tuple(arguments), kwargs={}, out=None, static={}, donate=None)
    zeros = {place for place in outputs if not origins[place].sums}
    found = executing.prepare_program(
        _make_function_returning(closed, outputs, zeros, without), facts, program.lowered.name
    )
    names = tuple(f"change of {program.seen.result_names[place]}" for place in outputs)
    return replace(found, seen=replace(found.seen, result_names=names))


def _make_function_returning(
    closed: Any, outputs: Sequence[int], zeros: Collection[int], without: Mapping[int, int]
) -> Function:
    evaluated = make_exact(closed, alone=False, without=without)

    def changes(*values: Any) -> list[Any]:
        found = evaluated(*values)
        return [found[place] * 0 if place in zeros else found[place] for place in outputs]

    return changes
