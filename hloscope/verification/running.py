"""The run of both programs on the same random inputs, in this process: the child process, or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import hypot, isfinite, prod, sqrt
from time import monotonic
from typing import Any, TypeVar

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from hloscope.base.errors import HloscopeError, NotationError, describe_exception
from hloscope.base.units import pluralize
from hloscope.compile.loading import load_target
from hloscope.compile.simulated_slice import pose_devices_as
from hloscope.compile.target import TargetFacts, find_target_name
from hloscope.tpu.slices import Slice, parse_slice
from hloscope.verification import executing
from hloscope.verification.executing import Prepared
from hloscope.verification.jaxpr_facts import PSUMS, find_bodies, find_index_sizes, find_unit, follow_program
from hloscope.verification.job import (
    Draw,
    Function,
    OtherProgramError,
    Stage,
    VerificationJob,
    check_range,
    complete_reference_facts,
    complete_target_facts,
    describe_draw,
    find_largest_fan_in,
)
from hloscope.verification.model import Numerics, NumericsStatus, Untested
from hloscope.verification.noise import count_terms
from hloscope.verification.rounding import explain_by_own_rounding, find_invisible_counts
from hloscope.verification.run_comparison import ComparedRuns, compare_runs, draw_value, find_untested

T = TypeVar("T")

# ---- the arguments of a program that are weights, and the number of elements that their products sum over
#
# A product of numbers of size 1 over K elements has the size √K. After one such branch of a model, and even more after
# two in a row, anything added to it is lost in rounding, and a program that omits the addition would agree. So the
# factors of large products are drawn smaller.
#
# Source: LeCun, Bottou, Orr and Müller, "Efficient BackProp" (1998), section 4.6, for weights of deviation 1/√K.

_LAYOUT = frozenset(
    "convert_element_type reduce_precision reshape broadcast_in_dim squeeze expand_dims slice dynamic_slice gather "
    "transpose rev copy copy_p neg pad concatenate select_n split stop_gradient sharding_constraint mesh_cast reshard "
    "layout_constraint all_gather all_gather_invariant all_gather_reduced all_to_all ppermute pbroadcast pvary pcast "
    "optimization_barrier name device_put dynamic_update_slice vary_unreduced_cast".split()
)
"""Operations that pass on the numbers of an argument, elsewhere or in another type."""

_OPERANDS = {
    "dynamic_slice": slice(1),
    "gather": slice(1),
    "select_n": slice(1, None),
    "dynamic_update_slice": slice(2),
}
"""The operands that numbers come from, for operations where not all count."""

_SIZE_OF_INTEGERS = 100 / sqrt(3)
"""The root mean square of integers between -100 and 100."""

_SAME_DIMS = frozenset("convert_element_type reduce_precision copy neg pvary pcast stop_gradient name".split())

_PRODUCTS = frozenset(("dot_general", "ragged_dot", "ragged_dot_general", "conv_general_dilated"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """The facts about a value of the program.

    Attributes:
        arguments: Positions of the arguments that it is, rearranged, or a function of; empty if it mixes them with
            others.
        is_derived: Whether it is a function of them.
        size: The approximate root mean square of its elements, if that of each floating-point argument is 1.
        is_positive: Whether no element is negative, so that a sum of them does not cancel.
        is_constant: Whether it depends on no argument.
        integers: Whether it is an argument of integers, rearranged, or a product with one.
        product: The weights of the product whose result it is, rearranged.
        is_product: Whether it is the result of a product.
        parts: The number of parts into which a `shard_map` cuts each dimension; empty if it does not.
    """

    arguments: frozenset[int] = frozenset()
    is_derived: bool = False
    size: float = 1.0
    is_positive: bool = False
    is_constant: bool = False
    integers: bool = False
    product: frozenset[int] = frozenset()
    is_product: bool = False
    parts: tuple[int, ...] = ()


_NOTHING = _Value()


def find_fan_in(closed: ClosedJaxpr) -> dict[int, float]:
    """The number of elements that the product with each argument sums over, for arguments that are weights.

    The first operation with an argument and another value decides: the argument is a weight if that is a matrix product
    or a convolution with a computed value, or with another argument as the first operand. A factor below 1 that the
    program gives the product, as attention does, makes the number smaller, and so does an operand that is small, such
    as the result of a softmax.
    """
    search = _FanInSearch()
    search.follow(closed, [_make_argument_value(place, var.aval) for place, var in enumerate(closed.jaxpr.invars)])
    return {place: elements for place, elements in search.found.items() if elements > 1}


def _make_argument_value(place: int, aval: Any) -> _Value:
    if find_unit(aval):
        return _Value(arguments=frozenset([place]))
    holds = getattr(aval.dtype, "kind", "") in "iu"
    return _Value(size=_SIZE_OF_INTEGERS if holds else 1.0, integers=holds)


class _FanInSearch:
    """Follows values through a program: `found` has the divisor of the variance for each argument that was used."""

    def __init__(self) -> None:
        self.found: dict[int, float] = {}
        self._touched: set[int] = set()

    def follow(self, program: Any, given: Sequence[_Value]) -> list[_Value]:
        return follow_program(program, given, _NOTHING, self._step)

    def _step(self, eqn: Any, known: list[_Value]) -> Sequence[_Value]:
        name = eqn.primitive.name
        known = [
            _make_literal_value(atom) if isinstance(atom, Literal) else row
            for atom, row in zip(eqn.invars, known, strict=True)
        ]
        bodies = find_bodies(
            eqn, known, lambda row: replace(row, parts=()), lambda row, parts: replace(row, parts=parts)
        )
        if bodies:
            first, *_ = [self.follow(body, given) for body, given in bodies]  # of a loop, the first step decides
            return [replace(_NOTHING, size=row.size) for row in first]
        if name in _PRODUCTS:
            result = self._product(eqn, known)
        elif name in _LAYOUT and known:
            result = self._moved(name, known)
        elif name in ("mul", "div"):
            result = self._scaled(name, known, is_square=eqn.invars[0] is eqn.invars[1])
        else:
            sizes = [self._size(value) for value in known]
            result = self._mixed(known, _make_computed_value(eqn, known, sizes))
        return [result] * len(eqn.outvars)

    def _use(self, known: Sequence[_Value]) -> None:
        """Notes arguments as used unchanged: as no weights, unless they are known to be weights."""
        for value in known:
            for place in value.arguments:
                self.found.setdefault(place, 1.0)

    def _mixed(self, known: Sequence[_Value], result: _Value) -> _Value:
        """The result of an operation: still a function of the same arguments if nothing else is involved."""
        sources = {value.arguments for value in known if not value.is_constant}
        self._touched.update(*sources)
        if len(sources) == 1 and all(self._is_free(value) for value in known if not value.is_constant):
            return replace(result, arguments=sources.pop(), is_derived=True)
        self._use(known)
        return result

    def _is_free(self, value: _Value) -> bool:
        return bool(value.arguments) and not any(place in self.found for place in value.arguments)

    def _is_direct(self, value: _Value) -> bool:
        return self._is_free(value) and not value.is_derived and not value.arguments & self._touched

    def _size(self, value: _Value) -> float:
        """The size of a value, given the arguments that are known to be drawn smaller."""
        return value.size / sqrt(max((self.found.get(place, 1.0) for place in value.arguments), default=1.0))

    def _product(self, eqn: Any, known: list[_Value]) -> _Value:
        """The result of a matrix product or a convolution, whose weight is drawn so that the result has size 1."""
        at = self._place_of_weight(known, is_kernel=eqn.primitive.name == "conv_general_dilated")
        length = count_terms(eqn) * _count_parts(eqn, known)
        sizes = [self._size(value) for value in known[:2]]
        if at is None:
            self._use(known)
            size = _clamp_size(sizes[0] * sizes[1] * sqrt(length))
            return _Value(size=size, integers=any(value.integers for value in known[:2]), is_product=True)
        weight, other = known[at], known[1 - at]
        gain = length * _clamp_size(weight.size * min(1.0, sizes[1 - at])) ** 2
        self._use([other])
        for place in weight.arguments:
            self.found.setdefault(place, max(1.0, gain))
        return _Value(product=weight.arguments, is_product=True, size=min(1.0, sqrt(gain)))

    def _place_of_weight(self, known: Sequence[_Value], *, is_kernel: bool) -> int | None:
        """The operand of a product that is an otherwise unchanged weight; None if neither is."""
        left, right = known[:2]
        is_other = not right.arguments & left.arguments
        if self._is_direct(right) and is_other:
            return 1
        has_weight = right.integers or any(self.found.get(place, 1.0) > 1 for place in right.arguments)
        if self._is_direct(left) and is_other and not (is_kernel or has_weight):
            return 0
        return 1 if self._is_free(right) and is_other else None

    def _moved(self, name: str, known: list[_Value]) -> _Value:
        """A value after it was rearranged, or combined with others."""
        beside = known[_OPERANDS.get(name, slice(None))]
        sources = [value for value in beside if not value.is_constant] or beside[:1]
        parts = sources[0].parts if name in _SAME_DIMS else ()
        kept = replace(sources[0], size=max(value.size for value in sources), parts=parts)
        if all(value == sources[0] for value in sources):
            return kept
        if not all(value.arguments for value in sources):
            self._use(sources)
            return replace(kept, arguments=frozenset(), product=frozenset())
        return replace(kept, arguments=frozenset().union(*(value.arguments for value in sources)))

    def _scaled(self, name: str, known: list[_Value], *, is_square: bool) -> _Value:
        """An elementwise product or quotient; with a constant, it is the same value in another size."""
        left, right = known if known[1].is_constant or name == "div" else known[::-1]
        if right.is_constant:
            factor = _clamp_size(1 / right.size if name == "div" else right.size)
            for place in left.product if factor < 1 else ():
                self.found[place] = max(1.0, self.found[place] * factor**2)
            return replace(left, size=_clamp_size(left.size * factor), parts=())
        large, small = sorted((left, right), key=self._is_free)
        if name == "mul" and large.integers and self._is_free(small):
            if not large.is_product:
                return replace(small, size=large.size, parts=())  # weights of integers, and what makes them small
            for place in small.arguments:
                self.found[place] = max(1.0, large.size**2)
            return _NOTHING
        sizes = [self._size(value) for value in (left, right)]
        result = _Value(
            size=_clamp_size(sizes[0] / sizes[1] if name == "div" else sizes[0] * sizes[1]),
            is_positive=is_square or (left.is_positive and right.is_positive),
            integers=left.integers or right.integers,
            is_product=left.is_product or right.is_product,
        )
        return self._mixed(known, result)


def _count_parts(eqn: Any, known: Sequence[_Value]) -> int:
    """The number of parts into which a `shard_map` cuts the dimensions that a matrix product sums over."""
    if eqn.primitive.name != "dot_general":
        return 1
    sides = zip(known[:2], eqn.params["dimension_numbers"][0], strict=True)
    return max(prod(value.parts[dim] for dim in dims) if value.parts else 1 for value, dims in sides)


def _make_literal_value(atom: Any) -> _Value:
    value = np.asarray(atom.val, np.float64).ravel() if np.size(atom.val) == 1 else np.ones(1)
    return _Value(size=_clamp_size(abs(float(value[0]))), is_positive=bool(value[0] >= 0), is_constant=True)


def _make_computed_value(eqn: Any, known: Sequence[_Value], sizes: Sequence[float]) -> _Value:
    """The result of an operation on values; for one that is not listed, the size is assumed to be 1."""
    name = eqn.primitive.name
    positive = bool(known) and all(value.is_positive for value in known)
    size, stays_positive = 1.0, name in _POSITIVE
    if name in ("add", "add_any", "sub"):
        stays_positive = positive and name != "sub"
        size = sum(sizes) if stays_positive else hypot(*sizes)
    elif name == "reduce_sum" or name in PSUMS:
        count = count_terms(eqn) if name == "reduce_sum" else 1
        size, stays_positive = sizes[0] * (count if positive else sqrt(count)), positive
    elif name in ("integer_pow", "square"):
        power = eqn.params.get("y", 2)
        size, stays_positive = sizes[0] ** power, positive or power % 2 == 0
    elif name in ("sqrt", "rsqrt"):
        size = sizes[0] ** (0.5 if name == "sqrt" else -0.5)
    elif name in _AS_LARGE:
        moving = [size for size, value in zip(sizes, known, strict=True) if not value.is_constant]
        size = max(moving, default=1.0)
    is_constant = bool(known) and all(value.is_constant for value in known)
    return _Value(size=_clamp_size(size), is_positive=stays_positive, is_constant=is_constant)


_AS_LARGE = frozenset("max min abs clamp round floor ceil reduce_max reduce_min".split())
_POSITIVE = frozenset("exp exp2 logistic abs sqrt rsqrt".split())


def _clamp_size(size: float) -> float:
    """A size that is safe to calculate with, whatever constants a program contains."""
    return min(max(size, 1e-6), 1e6) if isfinite(size) else 1.0


_FEWEST_PLACES = 3
"""The most places for which a single index may be any of them; of more it is not one at either end."""

_UNMEASURED = (
    "the effect of rounding on the reference could not be measured, so one tolerance, from types and lengths of sums "
    "alone, applies to every output, and biased errors are not detected"
)


def run_verification(job: VerificationJob, stage: Stage = lambda _: None) -> Numerics:
    """Runs both programs and compares them; an error of a run is its result.

    Raises:
        OtherProgramError: The programs are not those of the job.
    """
    refusal = _explain_too_few_devices(job)
    if refusal:
        return job.came_to(NumericsStatus.NOT_RUN, refusal)
    pose = _find_pose(job)
    with _pose_for_job(job):
        found = _run(job, stage)
    if pose is None or found.status not in (NumericsStatus.FAILED, NumericsStatus.NOT_IMPLEMENTED):
        return found
    again = _run(job, stage)
    if again.status is not NumericsStatus.RAN:
        return found
    why = f"simulated devices cannot run the branch for {pose[0].name}, so the CPU branch ran: {found.message}"
    return replace(again, other_branches=(why,))


def _find_pose(job: VerificationJob) -> tuple[Slice, int] | None:
    return None if job.poses is None or job.platform != "cpu" else (parse_slice(job.poses[0]), job.poses[1])


def _pose_for_job(job: VerificationJob) -> AbstractContextManager[None]:
    """Makes the simulated devices of a job pose as those of the slice that it was compiled for."""
    pose = _find_pose(job)
    return nullcontext() if pose is None else pose_devices_as(pose[0], jax.devices("cpu")[0].client, pose[1])


def _run(job: VerificationJob, stage: Stage) -> Numerics:
    try:
        _check_programs(job, stage)
        prepared = prepare_both(job, stage)
        found = compare_prepared(prepared, job, stage)
        others = (f"in {each.lowered.name} {_BY_PLATFORM}" for each in prepared.values() if each.differs_by_platform)
        return replace(found, other_branches=tuple(dict.fromkeys(others)))
    except (HloscopeError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        words = error.on_one_line() if isinstance(error, HloscopeError) else describe_exception(error)
        missing = "UNIMPLEMENTED" in words or "not implemented" in words.lower()
        status = NumericsStatus.NOT_IMPLEMENTED if missing else NumericsStatus.FAILED
        return job.came_to(status, words, ran_on=_describe_devices(job))


_BY_PLATFORM = "jax.lax.platform_dependent took a different branch than on a TPU"


def prepare_both(job: VerificationJob, stage: Stage = lambda _: None) -> dict[str, Prepared]:
    """Imports and compiles both programs of a job, `target` and `reference`, for one seed or several.

    Raises:
        HloscopeError: JAX refuses one of them.
    """
    stage("importing")
    prepared = {}
    for role, program in zip(("target", "reference"), _load_both(job), strict=True):
        stage(f"compiling the {role}")
        prepared[role] = executing.prepare_program(*program)
    return prepared


def compare_prepared(prepared: Mapping[str, Prepared], job: VerificationJob, stage: Stage = lambda _: None) -> Numerics:
    """Runs both compiled programs on the inputs of the job's seed and compares them."""
    target = prepared["target"]
    refusal = _explain_unlike_arguments(*prepared.values())
    if refusal:
        return job.came_to(NumericsStatus.REFUSED, refusal, ran_on=_describe_devices(job))
    draws = list(_choose_draws(prepared, job))
    basis = replace(_check_size(prepared, job), inputs=tuple(_describe_inputs(target, draws)))
    if basis.status is NumericsStatus.TOO_LARGE:
        return basis

    def value(position: int, *, seed: int) -> Any:
        return draw_value(target.seen.argument_avals[position], draws[position], seed, position)

    begun, seed = monotonic(), job.settings.seed
    found = compare_runs(prepared, [value(position, seed=seed) for position in range(len(draws))], job, stage)
    stage("looking for inputs that no output depends on")
    comparisons = explain_by_own_rounding(found.comparisons, found.runs, found.measured, job)
    parts: tuple[Untested, ...] = ()
    if any(output.informative for output in found.comparisons):
        another = partial(value, seed=seed + 1)
        parts = find_untested(target, found.runs["reference"], another, patience_s=monotonic() - begun)
    return replace(
        basis,
        status=NumericsStatus.RAN,
        comparisons=comparisons,
        not_compared=found.not_compared,
        untested=(*found.hidden, *parts),
        notes=tuple(_make_notes(found)),
    )


def _check_size(prepared: Mapping[str, Prepared], job: VerificationJob) -> Numerics:
    """The sizes of the run, with the status that it is too large if there is not enough memory."""
    programs = [program.memory_bytes for program in prepared.values()]
    seen = prepared["target"].seen
    inputs, outputs = (
        sum(prod(aval.shape) * int(aval.dtype.itemsize) for aval in avals)
        for avals in (seen.argument_avals, seen.result_avals)
    )
    host = inputs + 2 * outputs * seen.device_count  # what every device holds of both programs' outputs
    needed = max((count for count in programs if count is not None), default=0) + host  # they run one after the other
    is_too_large = job.memory_bytes is not None and needed > executing.MEMORY_SHARE * job.memory_bytes
    return replace(
        job.came_to(
            NumericsStatus.TOO_LARGE if is_too_large else NumericsStatus.NOT_RUN, ran_on=_describe_devices(job)
        ),
        available_bytes=job.memory_bytes,
        estimated_bytes=None if None in programs and not is_too_large else needed,
    )


def fingerprint_programs(job: VerificationJob) -> tuple[str, str]:
    """The fingerprints of the programs of a job.

    Raises:
        HloscopeError: JAX refuses one of them.
    """
    with _pose_for_job(job):
        target, reference = (executing.fingerprint_program(*program) for program in _load_both(job))
    return target, reference


def _check_programs(job: VerificationJob, stage: Stage) -> None:
    if job.programs == (None, None):
        return
    stage("comparing the imported programs with those that were compiled")
    try:
        found = fingerprint_programs(job)
    except HloscopeError as error:
        raise OtherProgramError from error
    if any(known not in (None, here) for known, here in zip(job.programs, found, strict=True)):
        raise OtherProgramError


def _make_notes(found: ComparedRuns) -> Iterator[str]:
    """The notes on the basis of the numbers."""
    if found.measured.failure:
        yield f"{_UNMEASURED}: {found.measured.failure}"
    yield from found.notes
    yield from find_invisible_counts(found.runs["reference"], found.measured, found.comparisons)
    hanging = [output for output in found.comparisons if output.unstable]
    if hanging:
        places = ", ".join(f"{each.unstable:,} of {each.elements:,} elements of {each.name}" for each in hanging)
        why = "rounding changes them much more than others, for example where an index depends on it"
        yield f"not judged, because {why}: {places}"


def _explain_too_few_devices(job: VerificationJob) -> str:
    """Why the available devices are not enough; empty if they are."""
    try:
        found = jax.devices()
    except RuntimeError as error:
        return f"JAX cannot use the attached {job.platform.upper()}: {error}"
    if len(found) >= job.devices:
        return ""
    return f"{pluralize(job.devices, 'device')} are needed, but JAX has {len(found)} ({found[0].device_kind})"


def _describe_devices(job: VerificationJob) -> str:
    if job.platform == "cpu":
        return pluralize(job.devices, "simulated CPU device")
    return pluralize(job.devices, f"{jax.devices()[0].device_kind} device")


_Loaded = tuple[Function, TargetFacts, str]
"""A function, its options, and the user's name for it."""


def _load_both(job: VerificationJob) -> tuple[_Loaded, _Loaded]:
    attached = replace(job.facts, slice="attached")
    target = load_target(job.target, attached, job.reference)
    reference = load_target(job.reference, attached, job.target)
    facts = _scale_facts(job, complete_target_facts(target, reference, job.facts))
    others = _scale_facts(job, complete_reference_facts(facts, reference, job.facts))
    return (target, facts, find_target_name(job.target)), (reference, others, find_target_name(job.reference))


def _scale_facts(job: VerificationJob, facts: TargetFacts) -> TargetFacts:
    """The options of a program for a run."""
    return replace(facts, dcn=None, compiler_options={}, dims={**facts.dims, **job.settings.scale})


def _explain_unlike_arguments(target: Prepared, reference: Prepared) -> str:
    """Why both cannot have the same inputs; empty if they can."""
    both = target.seen.argument_avals, reference.seen.argument_avals
    sides = [[(tuple(aval.shape), str(aval.dtype)) for aval in avals] for avals in both]
    if sides[0] == sides[1]:
        return ""
    shown = [", ".join(f"{dtype}{list(shape)}" for shape, dtype in side) or "nothing" for side in sides]
    return f"the target takes {shown[0]}, but the reference {shown[1]}"


def _choose_draws(prepared: Mapping[str, Prepared], job: VerificationJob) -> Iterator[Draw]:
    """How each argument's values are drawn: alike for both programs, so the reference decides which are weights."""
    sizes = [_read_trace(program, find_index_sizes) for program in prepared.values()]
    weights = _read_trace(prepared["reference"], find_fan_in)
    seen, facts = prepared["target"].seen, prepared["target"].lowered.facts
    for position, (name, aval) in enumerate(zip(seen.argument_names, seen.argument_avals, strict=True)):
        given = job.settings.ranges.get(name)
        if given is not None:
            low, high = (_resolve_bound(bound, facts) for bound in given)
            check_range(name, aval.dtype, (low, high))
            yield Draw(bounds=(low, high))
            continue
        size = max((found[position] for found in sizes if position in found), default=0)
        inner = int(aval.size) == 1 and size > _FEWEST_PLACES  # at an end, a place too far is clamped to the right one
        if size > 1:
            yield Draw(bounds=(int(inner), size - int(inner)), is_index=True)
        elif position in weights:
            yield Draw(fan_in=min(weights[position], find_largest_fan_in(aval.dtype)))
        else:
            yield Draw()


def _read_trace(program: Prepared, read: Callable[[ClosedJaxpr], dict[int, T]]) -> dict[int, T]:
    """The facts about a program's arguments in its trace; empty without a trace."""
    try:
        return {} if program.traced is None else read(program.traced)
    except executing.UNEVALUABLE:
        return {}  # an operation of another form than in the versions of JAX that are known; ranges are then given


def _resolve_bound(bound: float | str, facts: TargetFacts) -> float:
    if not isinstance(bound, str):
        return float(bound)
    if bound not in facts.dims:
        raise NotationError(
            f"the range bound {bound!r} is neither a number nor a letter of the target's dimensions",
            fix=f"its letters are {', '.join(facts.dims)}" if facts.dims else "write a number",
        )
    return float(facts.dims[bound])


def _describe_inputs(program: Prepared, draws: Sequence[Draw]) -> Iterator[str]:
    for name, aval, draw in zip(program.seen.argument_names, program.seen.argument_avals, draws, strict=True):
        yield f"{name}: {'random keys' if executing.is_key(aval) else describe_draw(aval.dtype, draw)}"
