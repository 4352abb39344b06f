"""What a user says about a target, and the decorator that says it beside the function. Imports no JAX."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from hloscope.errors import TargetError, did_you_mean
from hloscope.program.options import BY_NAME, OPTIONS

P = ParamSpec("P")
T = TypeVar("T")
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


class ProgramOptions(TypedDict, total=False):
    """What every function of Python's takes of a target, beside its positional arguments."""

    mesh: Any
    kwargs: Mapping[str, Any] | None
    out: Any
    static: Mapping[str, Any] | None
    donate: int | tuple[int, ...] | None
    dims: Mapping[str, int] | None
    axis_types: str | None
    dcn: Mapping[str, int] | str | None
    compiler_options: Mapping[str, str] | None
    chip_overrides: Sequence[str]
    kernel_costs: Mapping[str, tuple[float, float]] | Sequence[str]


class TargetOptions(ProgramOptions, total=False):
    """What can be said of a target."""

    slice: str | None
    allow: str | Sequence[str]
    rule_options: Mapping[str, Any] | None
    timeout_s: float | None


def check_names(given: Iterable[str], taker: str) -> None:
    """Refuses keywords that are no options.

    Raises:
        TypeError: One of them is none.
    """
    for name in given:
        if name not in BY_NAME:
            hint = did_you_mean(name, BY_NAME, f"it takes {', '.join(BY_NAME)}")
            raise TypeError(f"{taker} got an unexpected keyword argument {name!r}: {hint}")


def with_options(taken: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Shows what a function takes as `**options` in its signature and, in place of `{options}`, in its docstring.

    Args:
        taken: The typed dictionary that says what it takes.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        shown = inspect.signature(function)
        own = [one for one in shown.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [option for option in OPTIONS if option.name in taken.__optional_keys__]  # type: ignore[attr-defined]
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(option.name, keyword, default=None) for option in options]
        function.__signature__ = shown.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        said = "\n        ".join(f"{option.name}: {option.says}" for option in options)
        function.__doc__ = (function.__doc__ or "").replace("{options}", said)
        return function

    return decorate


def make_facts(*, args: Any = None, **options: Unpack[TargetOptions]) -> TargetFacts:
    """Facts as users write them in Python, checked: a mesh as a dict or as `X=4,Y=2`, one donated position or several.

    Raises:
        NotationError: One of them is not written as it must be.
        TypeError: There is no such option.
    """
    check_names(options, "a target")
    given: dict[str, Any] = {"args": args, **options}
    return TargetFacts(**{name: BY_NAME[name].python(value) for name, value in given.items()})


@with_options(TargetOptions)
def target(*, args: Any = None, **options: Unpack[TargetOptions]) -> Callable[[F], F]:
    """Attaches facts to a function so that `hloscope analyze module:fn` needs no options.

    The function itself is returned unchanged; JAX is not imported.

    Example:
        >>> @target(mesh={"X": 4, "Y": 2}, args=("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), out="P('X', None)")
        ... def matmul(x, w):
        ...     return x @ w

    Args:
        args: One entry per positional argument: a notation, a pytree of notations, a ShapeDtypeStruct, an array, or a
            callable without arguments that returns one of these.
        {options}

    Raises:
        NotationError: The mesh, the slice or another fact is not written as it must be.
        TargetError: The function takes no attributes, as a built-in or a bound method does.
    """
    facts = make_facts(args=args, **options)

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
