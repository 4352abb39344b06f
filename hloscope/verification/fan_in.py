"""The arguments of a program that are weights, and the number of elements that their products sum over.

A product of numbers of size 1 over K elements has the size √K. After one such branch of a model, and even more after
two in a row, anything added to it is lost in rounding, and a program that omits the addition would agree. So the
factors of large products are drawn smaller.

Source: LeCun, Bottou, Orr and Müller, "Efficient BackProp" (1998), section 4.6, for weights of deviation 1/√K.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, isfinite, prod, sqrt
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from hloscope.compiler.jax_internals import count_scan_values
from hloscope.verification.noise import count_terms
from hloscope.verification.traced import PSUMS, count_parts_of_dims, find_unit, follow_program

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
        if name in _HOLDING:
            return [replace(_NOTHING, size=row.size) for row in _HOLDING[name](self, eqn.params, eqn.invars, known)]
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

    def in_scan(self, params: Any, _: Any, known: list[_Value]) -> list[_Value]:
        rows = [replace(row, parts=()) for row in known[sum(count_scan_values(params)) :]]
        return self.follow(params["jaxpr"], [*known[: len(known) - len(rows)], *rows])

    def in_while(self, params: Any, _: Any, known: list[_Value]) -> list[_Value]:
        return self.follow(params["body_jaxpr"], known[params["cond_nconsts"] :])

    def in_branch(self, params: Any, _: Any, known: list[_Value]) -> list[_Value]:
        first, *_others = [self.follow(branch, known[1:]) for branch in params["branches"]]
        return first

    def in_shard_map(self, params: Any, operands: Any, known: list[_Value]) -> list[_Value]:
        sizes = dict(params["mesh"].shape)
        rows = zip(known, params["in_specs"], operands, strict=True)
        cut = [replace(row, parts=count_parts_of_dims(spec, var.aval.ndim, sizes)) for row, spec, var in rows]
        return self.follow(params["jaxpr"], cut)


_HOLDING: Mapping[str, Callable[[_FanInSearch, Any, Any, list[_Value]], list[_Value]]] = {
    "scan": _FanInSearch.in_scan,
    "while": _FanInSearch.in_while,
    "cond": _FanInSearch.in_branch,
    "shard_map": _FanInSearch.in_shard_map,
}
"""Operations that contain programs; for a loop, the first step decides."""


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
