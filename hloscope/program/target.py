"""The options of a target, and the decorator that attaches them to a function. Does not import JAX."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from hloscope.calls import check_keywords, front_door
from hloscope.errors import TargetError
from hloscope.given import shown
from hloscope.program import options as kinds
from hloscope.program.notation import parse_indices, parse_static
from hloscope.program.options import Option, option

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

FACTS_ATTRIBUTE = "__hloscope_target__"
_MOST_WRAPPERS = 1000
"""More wrappers than Python's own `inspect.unwrap` follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """The options of a target: how to call and place a function, beyond its signature.

    A field is None or empty if it was not given, so that facts from several places can be merged.
    """

    mesh: Any = option(
        says='Axis names mapped to sizes, major first: `{"X": 4, "Y": 2}`; or a `jax.sharding.Mesh` or `AbstractMesh`.',
        of_text=True,
        python=kinds.as_sizes("mesh"),
        shown="--mesh X=4,Y=2",
        help="Mesh axes and sizes, major first.",
        fits=kinds.is_mesh,
        example="{ data = 4, model = 2 }",
    )
    slice: str | None = option(
        says="Slice name: `v5e:2x4`, `2*v5e:2x4`, `cpu:8` or `attached`; by default the smallest v5e block that fits.",
        of_text=True,
        python=kinds.as_slice_name,
        shown="--slice NAME",
        help="v5e:2x4, v5p-16, 2*v5e:2x4, cpu:8, attached.",
        default="smallest v5e that fits",
    )
    args: Any = option(
        says="One entry per positional argument: a notation (`bf16[8@X,2048@Y]`), a pytree of notations, "
        "ShapeDtypeStructs or arrays, or a callable that returns one of these.",
        python=kinds.as_arguments,
        shown="--arg TYPE",
        help="One argument, as jax.typeof prints it: 'bf16[8@X,2048@Y]' or name=TYPE. Repeats.",
        repeats=True,
        read=kinds.as_positional,
        fits=kinds.is_list_of(kinds.is_array),
        example='["bf16[512@data,2048]"]',
    )
    kwargs: Mapping[str, Any] = option(
        says="Keyword arguments, written like `args`.",
        python=kinds.as_mapping("kwargs", '{"w": "bf16[2048,8192@X]"}'),
        given_as="args",
        read=kinds.as_keywords,
        fits=kinds.is_table_of(kinds.is_array),
        example='{ w = "bf16[2048,8192@model]" }',
    )
    out: Any = option(
        says="Output shardings in pytree-leaf order; None leaves an output to the compiler.",
        python=kinds.as_outputs,
        shown="--out SPEC",
        help="An output's sharding: \"P('X', None)\". Repeats, in pytree-leaf order; None leaves an output open.",
        repeats=True,
        read=lambda given: kinds.as_outputs(list(given)),
        fits=kinds.is_list_of(kinds.is_text),
        example='["P(\'data\', None)", "P()"]  # one for each output array, in pytree-leaf order',
    )
    static: Mapping[str, Any] = option(
        says="Static arguments: Python values passed by keyword that are not traced.",
        python=kinds.as_mapping("static", '{"shift": 5}'),
        shown="--static NAME=VALUE",
        help="A Python value passed by keyword. Repeats.",
        repeats=True,
        read=lambda given: dict(map(parse_static, given)),
        fits=kinds.is_table,
        example="{ shift = 5 }",
    )
    donate: tuple[int, ...] | None = option(
        says="Positions of the donated arguments.",
        python=kinds.as_positions,
        shown="--donate 0,1",
        read=lambda text: parse_indices(text) if text else None,
        fits=kinds.is_list_of(kinds.is_count),
        example="[0, 1]",
    )
    dims: Mapping[str, int] = option(
        says='Sizes of the letters in argument types, such as `{"S": 2048}`.',
        python=kinds.as_dims("dims"),
        shown="--dim S=2048,D=4096",
        help="Sizes of letters in argument types. Repeats.",
        repeats=True,
        read=kinds.as_letters,
        fits=kinds.is_table_of(kinds.is_count),
        example="{ S = 2048 }",
    )
    axis_types: str | None = option(
        says="`auto` (the default), `explicit`, or `X=explicit,Y=auto`.",
        python=kinds.as_axis_types,
        shown="--axis-types MODE",
        help="auto, explicit, or X=explicit,Y=auto.",
        default="auto",
        example='"auto"',
    )
    dcn: Mapping[str, int] | None = option(
        says='For several slices, the mesh axis that crosses DCN, mapped to the number of slices it spans: `{"X": 2}`.',
        of_text=True,
        python=kinds.as_sizes("dcn"),
        shown="--dcn X=2",
        help="For several slices: the axis that crosses DCN.",
        default="the first axis that divides",
        fits=kinds.is_mesh,
        example="{ data = 2 }",
    )
    platform: str | None = option(
        says="Platform that the devices report while the program is imported and traced: `tpu`, the default for a "
        "TPU slice, or `cpu`.",
        python=kinds.as_platform,
        shown="--platform tpu|cpu",
        help="The platform that the program sees.",
        default="tpu",
        fits=kinds.is_text,
        example='"cpu"',
    )
    processes: int | None = option(
        says="Number of processes that share the slice, of which the program is the first; by default 1.",
        python=kinds.as_processes,
        shown="--processes N",
        help="The number of processes that the program sees.",
        default="1",
        read=kinds.as_processes,
        fits=kinds.is_count,
        example="2",
    )
    compiler_options: Mapping[str, str] = option(
        says="XLA compiler options by name.",
        python=kinds.as_compiler_options,
        shown="--compiler-option NAME=VALUE",
        help="An XLA option, such as xla_tpu_…=true. Repeats.",
        repeats=True,
        read=kinds.as_settings,
        fits=kinds.is_table,
        example="{ xla_tpu_enable_async_collective_fusion = false }",
    )
    chip_overrides: tuple[str, ...] | None = option(
        says="Overrides of the chip's figures in the built-in table, as `name=value` such as "
        "`hbm_bytes_per_s=750e9`, or as TOML files.",
        of_text=True,
        python=lambda value: kinds.as_texts("chip_overrides", '"hbm_bytes_per_s=750e9"')(value) or None,
        shown="--chip-override --chip-file NAME=VALUE|FILE",
        help="For times: a figure of the chip, such as hbm_bytes_per_s=750e9, or a TOML file of figures. Repeats.",
        repeats=True,
    )
    timeout_s: float | None = option(
        says="Time limit of a compile, in seconds; 0 means no limit. By default `HLOSCOPE_TIMEOUT`, otherwise no limit "
        "if stderr is a terminal and 30 minutes if not.",
        python=kinds.as_time_limit,
        shown="--timeout SECONDS",
        help="Stop a compile after this long; 0 means no limit.",
        default="HLOSCOPE_TIMEOUT, else none on a terminal and 1800 elsewhere",
        seconds=True,
        key="timeout",
        fits=kinds.is_time,
        example="600",
    )
    kernel_costs: Mapping[str, tuple[float, float]] = option(
        says='FLOPs and bytes of Pallas kernels, by name: `{"splash": (7e11, 2e8)}`.',
        of_text=True,
        python=kinds.as_kernel_costs,
        shown="--kernel-cost NAME=FLOPS,BYTES",
        help="For times: the cost of a Pallas kernel, such as splash=7e11,2e8. Repeats.",
        default="its cost_estimate",
        repeats=True,
        fits=kinds.is_table_of(kinds.is_cost),
        example="{ splash = [7e11, 2e8] }",
    )
    allow: tuple[str, ...] = option(
        says="Findings to accept, each with a reason, such as `all-gather@X: weights of FSDP`.",
        of_text=True,
        python=kinds.as_texts("allow", '"all-gather@X: weights of FSDP"'),
        fits=kinds.is_list_of(kinds.is_text),
        example='["all-gather@fsdp: weights of FSDP"]',
    )
    rule_options: Mapping[str, Any] = option(
        says='Values of rule options, by `rule.option`: `{"small-collectives.min_collectives": 8}`.',
        of_text=True,
        python=kinds.as_mapping("rule_options", '{"small-collectives.min_collectives": 8}'),
        key="rules",
        fits=kinds.is_table_of(kinds.is_table_of(kinds.is_number)),
        example="{ small-collectives = { min-collectives = 8 } }",
    )

    def over(self, other: TargetFacts) -> TargetFacts:
        """Returns these facts, completed from `other`; mappings and `allow` are merged."""
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


def _make_option(name: str, described: Option) -> Option:
    key = described.key or (name.replace("_", "-") if described.example else "")
    return replace(described, name=name, help=described.help or described.says, key=key)


OPTIONS = tuple(_make_option(item.name, item.metadata["option"]) for item in fields(TargetFacts))
"""The options in the order of the command line's help."""

OPTIONS_BY_NAME = {option.name: option for option in OPTIONS}


class ProgramOptions(TypedDict, total=False):
    """The target options that every function of the Python API takes."""

    mesh: Any
    kwargs: Mapping[str, Any] | None
    out: Any
    static: Mapping[str, Any] | None
    donate: int | Sequence[int] | str | None
    dims: Mapping[str, int] | str | None
    axis_types: str | None
    platform: str | None
    processes: int | None
    dcn: Mapping[str, int] | str | None
    compiler_options: Mapping[str, str] | None
    chip_overrides: str | Sequence[str]
    kernel_costs: Mapping[str, tuple[float, float]] | str | Sequence[str]


class TargetOptions(ProgramOptions, total=False):
    """The options of a target."""

    slice: str | None
    allow: str | Sequence[str]
    rule_options: Mapping[str, Any] | None
    timeout_s: float | None


class RecordingOptions(TypedDict, total=False):
    """The options that apply to all programs of a script."""

    platform: str | None
    processes: int | None
    compiler_options: Mapping[str, str] | None
    chip_overrides: str | Sequence[str]
    kernel_costs: Mapping[str, tuple[float, float]] | str | Sequence[str]
    allow: str | Sequence[str]
    rule_options: Mapping[str, Any] | None
    timeout_s: float | None


def accept_options(taken: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Adds the `**options` of a function to its signature and, in place of `{options}`, to its docstring.

    Args:
        taken: The typed dictionary of these options.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        shown = inspect.signature(function)
        own = [known for known in shown.parameters.values() if known.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [option for option in OPTIONS if option.name in taken.__optional_keys__]  # type: ignore[attr-defined]
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(option.name, keyword, default=None) for option in options]
        function.__signature__ = shown.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        doc = function.__doc__ or ""
        indent = doc.partition("{options}")[0].rpartition("\n")[2]  # Python 3.13 takes the common one away
        said = f"\n{indent}".join(f"{option.name}: {option.says}" for option in options)
        function.__doc__ = doc.replace("{options}", said)
        return function

    return decorate


def make_facts(*, args: Any = None, **options: Unpack[TargetOptions]) -> TargetFacts:
    """Checks options as users write them in Python: a mesh as a dict or as `X=4,Y=2`, one donated position or several.

    Raises:
        NotationError: An option has an invalid value.
        UnknownKeywordError: An option does not exist.
    """
    check_keywords(options, list(OPTIONS_BY_NAME), "a target")
    given: dict[str, Any] = {"args": args, **options}
    return TargetFacts(**{name: OPTIONS_BY_NAME[name].python(value) for name, value in given.items()})


@front_door
@accept_options(TargetOptions)
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
        NotationError: The mesh, the slice or another option has an invalid value.
        TargetError: The function does not accept attributes, like a built-in or a bound method.
    """
    facts = make_facts(args=args, **options)

    def attach(function: F) -> F:
        try:
            setattr(function, FACTS_ATTRIBUTE, facts)
        except (AttributeError, TypeError) as error:
            raise TargetError(
                f"facts cannot be attached to {shown(function)}",
                why=str(error),
                fix="wrap it: def target(...): return ...",
            ) from error
        return function

    return attach


def find_attached_facts(function: object) -> TargetFacts:
    """The facts that `target` attached to a function or to what it wraps; empty if there are none.

    Raises:
        TargetError: The function wraps itself, or an endless chain of others.
    """
    asked = function
    for _ in range(_MOST_WRAPPERS):
        if function is None:
            return TargetFacts()
        found = getattr(function, FACTS_ATTRIBUTE, None)
        if isinstance(found, TargetFacts):
            return found
        function = getattr(function, "__wrapped__", None)
    raise TargetError(
        f"{shown(asked)} wraps itself, or others without end",
        why="each __wrapped__ has a __wrapped__ of its own",
        fix="pass the function that does the work",
    )
