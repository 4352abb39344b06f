"""What a user says about a target, and the decorator that says it beside the function. Imports no JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, TypeVar

from hloscope.errors import NotationError, TargetError

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE = "__hloscope_target__"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """How to call and place a function: everything that its signature does not tell.

    Every field is None or empty when it was not said, so that facts from several places can be joined.

    Attributes:
        mesh: Axis name to size, major first, or a `jax.sharding.Mesh` / `AbstractMesh`.
        axis_types: `auto`, `explicit`, or `X=explicit,Y=auto`; None means auto.
        slice: The slice to compile for, such as `v5e:2x4`.
        dcn: For several slices: the mesh axis that crosses DCN and how many slices it spans.
        args: One entry per positional argument: a notation such as `bf16[8@X,2048@Y]`, a pytree of notations, a
            `jax.ShapeDtypeStruct`, an array, or a callable without arguments that returns one of these. The whole
            may be such a callable too, returning the tuple of arguments.
        kwargs: The same by keyword.
        out: Output shardings in the order of the pytree's leaves, such as `P('X', None)`; an entry that is None is the
            compiler's choice.
        static: Python values passed by keyword that stay Python values while tracing.
        donate: Positions of donated arguments.
        dims: Sizes of the letters used in notations.
        compiler_options: XLA compiler options by name.
        chip_overrides: Figures of the slice's chip, as `name=value` or as TOML files; for pricing only.
        kernel_costs: FLOPs and bytes of Pallas kernels by name, for pricing only.
        allow: What of the rules' findings is accepted and why, such as `all-gather@X: weights of FSDP`.
        rule_options: Values of rules' options by `rule.option`, such as `small-collectives.min_collectives`.
        timeout_s: Seconds that its compile may take; None leaves it to `HLOSCOPE_TIMEOUT` and the default.
    """

    mesh: Any = None
    axis_types: str | None = None
    slice: str | None = None
    dcn: Mapping[str, int] | None = None
    args: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    out: Any = None
    static: Mapping[str, Any] = field(default_factory=dict)
    donate: tuple[int, ...] | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    compiler_options: Mapping[str, str] = field(default_factory=dict)
    chip_overrides: tuple[str, ...] | None = None
    kernel_costs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    rule_options: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None

    def over(self, other: TargetFacts) -> TargetFacts:
        """These facts, with what they leave open taken from `other`; mappings and `allow` are joined."""
        joined: dict[str, Any] = {}
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if isinstance(mine, Mapping) and isinstance(theirs, Mapping) and item.name not in ("mesh", "dcn"):
                joined[item.name] = {**theirs, **mine}
            else:
                joined[item.name] = theirs if mine is None else mine
        joined["allow"] = tuple(dict.fromkeys((*self.allow, *other.allow)))
        if self.args is not None:
            joined["kwargs"] = dict(self.kwargs)
        return replace(self, **joined)


def make_facts(
    *,
    mesh: Any = None,
    axis_types: Any = None,
    slice: Any = None,
    dcn: Any = None,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    out: Any = None,
    static: Mapping[str, Any] | None = None,
    donate: Any = None,
    dims: Mapping[str, int] | None = None,
    compiler_options: Mapping[str, Any] | None = None,
    chip_overrides: Iterable[str] = (),
    kernel_costs: Any = (),
    allow: str | Iterable[str] = (),
    rule_options: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> TargetFacts:
    """Facts as users write them in Python, checked: a mesh as a dict or as `X=4,Y=2`, one donated position or several.

    Raises:
        NotationError: One of them is not written as it must be.
    """
    if slice is not None and not isinstance(slice, str):
        raise NotationError(f"slice must be a name, not {slice!r}", fix="write slice='v5e:2x4', or 'v5e-8'")
    if isinstance(axis_types, Mapping):
        axis_types = ",".join(f"{axis}={kind}" for axis, kind in axis_types.items())
    if axis_types is not None and not isinstance(axis_types, str):
        raise NotationError(
            f"axis_types must be text, not {axis_types!r}", fix="write 'auto', 'explicit' or 'X=explicit'"
        )
    return TargetFacts(
        mesh=mesh if hasattr(mesh, "axis_names") else _sizes(mesh, "mesh"),
        axis_types=axis_types,
        slice=slice,
        dcn=_sizes(dcn, "dcn"),
        args=args,
        kwargs=dict(kwargs or {}),
        out=out,
        static=dict(static or {}),
        donate=(donate,) if isinstance(donate, int) else None if donate is None else tuple(donate),
        dims=dict(dims or {}),
        compiler_options={name: str(value) for name, value in (compiler_options or {}).items()},
        chip_overrides=tuple(chip_overrides) or None,
        kernel_costs=read_kernel_costs(kernel_costs),
        allow=(allow,) if isinstance(allow, str) else tuple(allow),
        rule_options=dict(rule_options or {}),
        timeout_s=_seconds(timeout_s),
    )


def _seconds(value: Any) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf):
        return None if value is None else float(value)
    raise NotationError(
        f"a time limit must be a number of seconds, not {value!r}", fix="write 600 for ten minutes; 0 is no limit"
    )


def _sizes(value: Any, what: str) -> Mapping[str, int] | None:
    if value is None:
        return None
    if isinstance(value, str):
        from hloscope.program.notation import parse_mesh

        return parse_mesh(value)
    well_formed = isinstance(value, Mapping) and all(
        isinstance(k, str) and isinstance(v, int) for k, v in value.items()
    )
    if not well_formed or not all(size > 0 for size in value.values()):
        raise NotationError(
            f"{what} must map axis names to sizes, not {value!r}",
            fix=f'write {what}={{"X": 4, "Y": 2}} or {what}="X=4,Y=2"',
        )
    return dict(value)


def read_kernel_costs(given: Any) -> dict[str, tuple[float, float]]:
    """FLOPs and bytes of kernels by name, from `{"splash": (7e11, 2e8)}` or from texts such as `splash=7e11,2e8`.

    Raises:
        NotationError: One of them is not written so, or says nothing.
    """
    pairs = given.items() if isinstance(given, Mapping) else [str(text).partition("=")[::2] for text in given or ()]
    found = {}
    for name, cost in pairs:
        try:
            flops, moved_bytes = (float(part) for part in (cost.split(",") if isinstance(cost, str) else cost))
        except (TypeError, ValueError):
            flops = moved_bytes = 0.0
        if not name or not isfinite(flops + moved_bytes) or min(flops, moved_bytes) < 0 or flops + moved_bytes == 0:
            raise NotationError(
                f"{name}={cost} is no cost of a kernel",
                why="it takes the kernel's name, its FLOPs and the bytes that it reads and writes in HBM",
                fix="write NAME=FLOPS,BYTES, such as splash=7e11,2e8",
            )
        found[str(name)] = (flops, moved_bytes)
    return found


def target(
    *,
    mesh: Any = None,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    out: Any = None,
    slice: str | None = None,
    static: Mapping[str, Any] | None = None,
    donate: int | tuple[int, ...] | None = None,
    dims: Mapping[str, int] | None = None,
    axis_types: str | None = None,
    dcn: Mapping[str, int] | None = None,
    compiler_options: Mapping[str, str] | None = None,
    kernel_costs: Mapping[str, tuple[float, float]] | None = None,
    allow: str | Iterable[str] = (),
    rule_options: Mapping[str, Any] | None = None,
) -> Callable[[F], F]:
    """Attaches facts to a function so that `hloscope analyze module:fn` needs no options.

    The function itself is returned unchanged; JAX is not imported.

    Example:
        >>> @target(mesh={"X": 4, "Y": 2}, args=("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), out="P('X', None)")
        ... def matmul(x, w):
        ...     return x @ w

    Args:
        mesh: Axis name to size, major first: `{"X": 4, "Y": 2}`.
        args: One entry per positional argument: a notation, a pytree of notations, a ShapeDtypeStruct, an array, or a
            callable without arguments that returns one of these.
        kwargs: The same by keyword.
        out: Output shardings in pytree-leaf order; None entries are the compiler's choice.
        slice: The slice to compile for, such as `v5e:2x4`.
        static: Python values that stay Python values while tracing.
        donate: Positions of donated arguments.
        dims: Sizes of the letters used in notations.
        axis_types: `auto` (the default), `explicit`, or `X=explicit,Y=auto`.
        dcn: The mesh axis that crosses DCN and how many slices it spans.
        compiler_options: XLA compiler options by name.
        kernel_costs: FLOPs and bytes of Pallas kernels by name: `{"splash": (7e11, 2e8)}`.
        allow: What of the rules' findings is accepted and why: `all-gather@X: weights of FSDP`.
        rule_options: Values of rules' options by `rule.option`: `{"small-collectives.min_collectives": 8}`.

    Raises:
        NotationError: The mesh, the slice or another fact is not written as it must be.
        TargetError: The function takes no attributes, as a built-in or a bound method does.
    """
    facts = make_facts(
        mesh=mesh,
        axis_types=axis_types,
        slice=slice,
        dcn=dcn,
        args=args,
        kwargs=kwargs,
        out=out,
        static=static,
        donate=donate,
        dims=dims,
        compiler_options=compiler_options,
        kernel_costs=kernel_costs,
        allow=allow,
        rule_options=rule_options,
    )

    def attach(function: F) -> F:
        try:
            setattr(function, ATTRIBUTE, facts)
        except (AttributeError, TypeError) as error:
            raise TargetError(
                f"facts cannot be attached to {function!r}", why=str(error), fix="wrap it: def target(...): return ..."
            ) from error
        return function

    return attach


def attached_facts(function: object) -> TargetFacts:
    """The facts that `target` attached to a function, or to what it wraps; empty ones when there are none."""
    while function is not None:
        found = getattr(function, ATTRIBUTE, None)
        if isinstance(found, TargetFacts):
            return found
        function = getattr(function, "__wrapped__", None)
    return TargetFacts()
