"""The options of a target, and the decorator that attaches them to a function. Does not import JAX."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import partial
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from hloscope.base import calls, errors
from hloscope.base.calls import check_keywords, format_value, front_door
from hloscope.base.errors import NotationError, TargetError
from hloscope.compile.notation import parse_dims, parse_indices, parse_mesh, parse_static, split_keyword

# ---- the name of a target


def find_target_name(target: Any) -> str:
    """The name of a target in reports: as the user wrote it, or that of the underlying object; never an address.

    A partial gets the name of its function, a jitted method that of its method, an object that of its type, and a JAX
    object that of the function it was traced from.
    """
    if isinstance(target, str):
        return target
    if isinstance(target, partial):
        return find_target_name(target.func)
    lowering = getattr(target, "_lowering", None)
    for said in (getattr(target, "__qualname__", None), getattr(target, "fun_name", None)):
        if isinstance(said, str) and said:
            return said
    jitted = _JITTED.fullmatch(str(getattr(lowering, "_name", "")))
    return jitted["name"] if jitted else type(target).__qualname__


_JITTED = re.compile(r"\w+\((?P<name>.+)\)")
"""JAX's name for a function that it lowered: `jit(step)`."""


# ---- the definition of a target option, and how its values are read from Python, the command line and the targets
# file
#
# The options themselves are the fields of `hloscope.compile.target.TargetFacts`. Does not import JAX.


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a target.

    Attributes:
        name: Its name in Python, and the field of `TargetFacts` that holds it.
        says: Its description, for docstrings.
        of_text: Whether it also applies to HLO text, which is already compiled.
        python: The conversion of a value from Python or a targets file to that of `TargetFacts`.
        shown: Its flags and its value on the command line, as in the help; empty if the command line has another way
            to set it.
        help: Its text in the command line's help; by default its description.
        default: The default on the command line, for the help; empty if the help text already has it.
        repeats: Whether it may be repeated on the command line.
        seconds: Whether its value there is a number of seconds.
        given_as: The command-line option that holds it, if not itself.
        read: The conversion of its texts on the command line to the value of `TargetFacts`; by default `python`.
        key: Its key in the targets file, if not its name with dashes; empty if it has none.
        fits: Returns whether the key accepts a value.
        example: An example of such a value, for messages; empty if the targets file has no such key.
    """

    says: str
    name: str = ""
    of_text: bool = False
    python: Callable[[Any], Any] = lambda value: value
    shown: str = ""
    help: str = ""
    default: str = ""
    repeats: bool = False
    seconds: bool = False
    given_as: str = ""
    read: Callable[[Any], Any] | None = None
    key: str = ""
    fits: Callable[[Any], bool] = lambda value: isinstance(value, str)
    example: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags on the command line."""
        return tuple(self.shown.split()[:-1])

    @property
    def metavar(self) -> str:
        """The placeholder for its value in the command line's help."""
        return self.shown.rpartition(" ")[2]

    def of_command_line(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The field of `TargetFacts` that the command line sets; empty if it does not set it.

        Raises:
            NotationError: The value is not valid.
        """
        said = options.get(self.given_as or self.name) if self.flags or self.given_as else None
        return {} if said is None or said == () else {self.name: (self.read or self.python)(said)}


def option(**described: Any) -> Any:
    """Makes a field of `TargetFacts` for an option, described as in `Option`; empty by default."""
    made = Option(**described)
    return field(default_factory=lambda: made.python(None), metadata={"option": made})


def is_text(value: Any) -> bool:
    """Returns whether a value of the targets file is text."""
    return isinstance(value, str)


def is_count(value: Any) -> bool:
    """Returns whether a value of the targets file is a whole number, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value: Any) -> bool:
    """Returns whether a value of the targets file is a number."""
    return isinstance(value, int | float)


def is_share(value: Any) -> bool:
    """Returns whether a value of the targets file is a share below 100%, such as `5%`."""
    return is_text(value) and re.fullmatch(r"\d+(\.\d+)? ?%", value) is not None and float(value.rstrip("% ")) < 100


def is_table(value: Any) -> bool:
    """Returns whether a value of the targets file is a table."""
    return isinstance(value, dict)


def is_list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Returns a check that a value of the targets file is a list of such values."""
    return lambda value: isinstance(value, list) and all(map(check, value))


def is_table_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Returns a check that a value of the targets file is a table of such values."""
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def is_array(value: Any) -> bool:
    """Returns whether a value of the targets file is a notation, or a pytree of notations."""
    return is_text(value) or is_list_of(is_array)(value) or is_table_of(is_array)(value)


def is_mesh(value: Any) -> bool:
    """Returns whether a value of the targets file is a mesh: its notation, or sizes by name."""
    return is_text(value) or (is_table_of(is_count)(value) and all(value.values()))


def is_cost(value: Any) -> bool:
    """Returns whether a value of the targets file is a pair of FLOPs and bytes."""
    return is_list_of(is_number)(value) and len(value) == 2


def is_time(value: Any) -> bool:
    """Returns whether a value is a number of seconds."""
    return is_number(value) and not isinstance(value, bool) and 0 <= value < math.inf


def as_sizes(what: str) -> Callable[[Any], Any]:
    """Reads `X=4,Y=2` or a table of sizes by name; a JAX mesh is returned unchanged.

    Args:
        what: The option's name, for messages.
    """

    def read(value: Any) -> Any:
        if value is None or hasattr(value, "axis_names"):
            return value
        if isinstance(value, str):
            return parse_mesh(value)
        example = f'{what}={{"X": 4, "Y": 2}} or {what}="X=4,Y=2"'
        return calls.counts(what, value, least=1, what="axis names to sizes", example=example)

    return read


def as_dims(name: str) -> Callable[[Any], dict[str, int]]:
    """Reads sizes of letters: `S=2048,D=4096` or a table of them.

    Args:
        name: The option's name, for messages.
    """

    def read(value: Any) -> dict[str, int]:
        if value is None or isinstance(value, str):
            return {} if value is None else parse_dims(value)
        example = f'{name}={{"S": 2048}} or {name}="S=2048"'
        return calls.counts(name, value, least=0, what="letters to sizes", example=example)

    return read


def as_slice_name(value: Any) -> str | None:
    """Reads the name of a slice."""
    if value is None or isinstance(value, str):
        return value
    raise NotationError(
        f"slice must be a name, not {calls.format_value(value)}", fix="write slice='v5e:2x4', or 'v5e-8'"
    )


def as_axis_types(value: Any) -> str | None:
    """Reads axis types: text, one of JAX's types, or a table of either by axis."""
    if isinstance(value, Mapping):
        return ",".join(f"{axis}={_read_axis_type(kind)}" for axis, kind in value.items())
    return None if value is None else _read_axis_type(value)


def _read_axis_type(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name.lower()
    example = "'auto', 'explicit' or 'X=explicit'"
    return calls.text("axis_types", value, example=example)


def as_platform(value: Any) -> str | None:
    """Reads the platform that devices should report."""
    if value is None or (isinstance(value, str) and value in ("tpu", "cpu")):
        return value
    raise NotationError(
        f"{calls.format_value(value)} is not a platform that devices can claim to be", fix="write 'tpu' or 'cpu'"
    )


def as_processes(value: Any) -> int | None:
    """Reads the number of processes that share a slice."""
    if value is None:
        return None
    found = int(value) if isinstance(value, str) and value.isdecimal() else calls.integer(value)
    if not found or found < 0:
        shown = calls.format_value(value)
        raise NotationError(
            f"{shown} is not a number of processes", fix="write a number from 1 to the slice's number of hosts"
        )
    return found


def as_mapping(name: str, example: str) -> Callable[[Any], dict[str, Any]]:
    """Reads a table.

    Args:
        name: The option's name, for messages.
        example: What to write.
    """
    return lambda value: calls.mapping(name, value, example=f"{name}={example}")


def as_outputs(value: Any) -> Any:
    """Reads output shardings; None leaves an output to the compiler."""
    if isinstance(value, bool | int | float | bytes):
        calls.refuse("out", "an output's sharding or a list of them", value, """out="P('X', None)\"""")
    return [None if str(spec).strip() == "None" else spec for spec in value] if isinstance(value, list) else value


def as_arguments(value: Any) -> Any:
    """Reads arguments: a tuple or list with one entry for each, or a function that returns it, or a single array."""
    if isinstance(value, list):
        return tuple(value)
    if value is None or isinstance(value, tuple) or callable(value):
        return value
    if isinstance(value, str) or (hasattr(value, "shape") and hasattr(value, "dtype")):
        return (value,)
    return calls.refuse("args", "a tuple with one entry for each argument", value, 'args=("bf16[8@X,2048]",)')


def as_texts(name: str, example: str) -> Callable[[Any], tuple[str, ...]]:
    """Reads one text or several.

    Args:
        name: The option's name, for messages.
        example: What to write.
    """
    return lambda value: calls.texts(name, value, example=f"{name}={example}")


def as_positions(value: Any) -> tuple[int, ...] | None:
    """Reads one position or several."""
    if value is None:
        return None
    if isinstance(value, str):
        return parse_indices(value)
    many = isinstance(value, Iterable) and not isinstance(value, bytes | Mapping)
    found = [calls.integer(each) for each in (value if many else (value,))]
    if any(each is None or each < 0 for each in found):
        calls.refuse("donate", "positions of arguments, counted from 0", value, "donate=0, or donate=(0, 1)")
    return tuple(each for each in found if each is not None)


def as_compiler_options(value: Any) -> dict[str, str]:
    """Reads XLA options by name, with booleans in XLA's spelling."""
    table = calls.mapping("compiler_options", value, example='compiler_options={"xla_tpu_enable_x": True}')
    return {name: str(set_to).lower() if isinstance(set_to, bool) else str(set_to) for name, set_to in table.items()}


def as_time_limit(value: Any) -> float | None:
    """Reads a number of seconds or a duration such as `5m`."""
    if value is None:
        return None
    found = None if isinstance(value, str) and not value.strip() else value
    try:
        return calls.seconds("a time limit", found, example="")
    except NotationError as error:
        raise NotationError(error.what, fix="write 600 for ten minutes; 0 means no limit") from None


def as_kernel_costs(value: Any) -> dict[str, tuple[float, float]]:
    """Reads FLOPs and bytes of kernels by name, from `{"splash": (7e11, 2e8)}` or texts such as `splash=7e11,2e8`.

    Raises:
        NotationError: One of them is not valid, or empty.
    """
    example = 'kernel_costs={"splash": (7e11, 2e8)}'
    table = isinstance(value, Mapping)
    texts = () if table else calls.texts("kernel_costs", value, example=example)
    given = (
        [(calls.format_value({name: cost}), name, cost) for name, cost in value.items()]
        if table
        else [(text, *text.partition("=")[::2]) for text in texts]
    )
    found = {}
    for shown, name, cost in given:
        try:
            flops, moved_bytes = (float(part) for part in (cost.split(",") if isinstance(cost, str) else cost))
        except (TypeError, ValueError):
            flops = moved_bytes = 0.0
        if not name or not math.isfinite(flops + moved_bytes) or min(flops, moved_bytes) < 0 or not flops + moved_bytes:
            raise NotationError(
                f"{shown} is not the cost of a kernel",
                why="it takes the kernel's name, its FLOPs and the bytes that it reads and writes in HBM",
                fix=errors.say("write, for example, ", errors.Option("kernel-cost", {"splash": (7e11, 2e8)})),
            )
        found[str(name)] = (flops, moved_bytes)
    return found


def as_positional(texts: Sequence[str]) -> tuple[Any, ...]:
    """Reads the positional arguments of a command line."""
    return tuple(_parse_argument(text) for name, text in map(split_keyword, texts) if name is None)


def as_keywords(texts: Sequence[str]) -> dict[str, Any]:
    """Reads the named arguments of a command line."""
    return {name: _parse_argument(text) for name, text in map(split_keyword, texts) if name is not None}


def _parse_argument(text: str) -> Any:
    """One argument: a notation, or a pytree of notations as a Python literal."""
    if not text.lstrip().startswith(("{", "[", "(")):
        return text
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise NotationError(
            f"{text} is not a pytree of array types",
            why=str(error),
            fix=errors.say(
                "quote the types inside: ", errors.Option("arg", ({"w": "bf16[8@X,2048]", "b": "f32[2048]"},))
            ),
        ) from error


def as_letters(texts: Sequence[str]) -> dict[str, int]:
    """Reads sizes of letters from a command line."""
    return {letter: size for text in texts for letter, size in parse_dims(text).items()}


def as_settings(texts: Sequence[str]) -> dict[str, str]:
    """Reads XLA options from a command line."""
    found = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            raise NotationError(
                f"{text!r} is not a compiler option",
                fix=errors.say(
                    "write ",
                    errors.Option("compiler-option", {"NAME": errors.placeholder("VALUE")}),
                    ", such as xla_tpu_enable_x=true",
                ),
            )
        found[name] = value
    return found


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
        python=as_sizes("mesh"),
        shown="--mesh X=4,Y=2",
        help="Mesh axes and sizes, major first.",
        fits=is_mesh,
        example="{ data = 4, model = 2 }",
    )
    slice: str | None = option(
        says="Slice name: `v5e:2x4`, `2*v5e:2x4`, `cpu:8` or `attached`; by default the smallest v5e block that fits.",
        of_text=True,
        python=as_slice_name,
        shown="--slice NAME",
        help="v5e:2x4, v5p-16, 2*v5e:2x4, cpu:8, attached.",
        default="smallest v5e that fits",
    )
    args: Any = option(
        says="One entry per positional argument: a notation (`bf16[8@X,2048@Y]`), a pytree of notations, "
        "ShapeDtypeStructs or arrays, or a callable that returns one of these.",
        python=as_arguments,
        shown="--arg TYPE",
        help="One argument, as jax.typeof prints it: 'bf16[8@X,2048@Y]' or name=TYPE. Repeats.",
        repeats=True,
        read=as_positional,
        fits=is_list_of(is_array),
        example='["bf16[512@data,2048]"]',
    )
    kwargs: Mapping[str, Any] = option(
        says="Keyword arguments, written like `args`.",
        python=as_mapping("kwargs", '{"w": "bf16[2048,8192@X]"}'),
        given_as="args",
        read=as_keywords,
        fits=is_table_of(is_array),
        example='{ w = "bf16[2048,8192@model]" }',
    )
    out: Any = option(
        says="Output shardings in pytree-leaf order; None leaves an output to the compiler.",
        python=as_outputs,
        shown="--out SPEC",
        help="An output's sharding: \"P('X', None)\". Repeats, in pytree-leaf order; None leaves an output open.",
        repeats=True,
        read=lambda given: as_outputs(list(given)),
        fits=is_list_of(is_text),
        example='["P(\'data\', None)", "P()"]  # one for each output array, in pytree-leaf order',
    )
    static: Mapping[str, Any] = option(
        says="Static arguments: Python values passed by keyword that are not traced.",
        python=as_mapping("static", '{"shift": 5}'),
        shown="--static NAME=VALUE",
        help="A Python value passed by keyword. Repeats.",
        repeats=True,
        read=lambda given: dict(map(parse_static, given)),
        fits=is_table,
        example="{ shift = 5 }",
    )
    donate: tuple[int, ...] | None = option(
        says="Positions of the donated arguments.",
        python=as_positions,
        shown="--donate 0,1",
        read=lambda text: parse_indices(text) if text else None,
        fits=is_list_of(is_count),
        example="[0, 1]",
    )
    dims: Mapping[str, int] = option(
        says='Sizes of the letters in argument types, such as `{"S": 2048}`.',
        python=as_dims("dims"),
        shown="--dim S=2048,D=4096",
        help="Sizes of letters in argument types. Repeats.",
        repeats=True,
        read=as_letters,
        fits=is_table_of(is_count),
        example="{ S = 2048 }",
    )
    axis_types: str | None = option(
        says="`auto` (the default), `explicit`, or `X=explicit,Y=auto`.",
        python=as_axis_types,
        shown="--axis-types MODE",
        help="auto, explicit, or X=explicit,Y=auto.",
        default="auto",
        example='"auto"',
    )
    dcn: Mapping[str, int] | None = option(
        says='For several slices, the mesh axis that crosses DCN, mapped to the number of slices it spans: `{"X": 2}`.',
        of_text=True,
        python=as_sizes("dcn"),
        shown="--dcn X=2",
        help="For several slices: the axis that crosses DCN.",
        default="the first axis that divides",
        fits=is_mesh,
        example="{ data = 2 }",
    )
    platform: str | None = option(
        says="Platform that the devices report while the program is imported and traced: `tpu`, the default for a "
        "TPU slice, or `cpu`.",
        python=as_platform,
        shown="--platform tpu|cpu",
        help="The platform that the program sees.",
        default="tpu",
        example='"cpu"',
    )
    processes: int | None = option(
        says="Number of processes that share the slice, of which the program is the first; by default 1.",
        python=as_processes,
        shown="--processes N",
        help="The number of processes that the program sees.",
        default="1",
        read=as_processes,
        fits=is_count,
        example="2",
    )
    compiler_options: Mapping[str, str] = option(
        says="XLA compiler options by name.",
        python=as_compiler_options,
        shown="--compiler-option NAME=VALUE",
        help="An XLA option, such as xla_tpu_…=true. Repeats.",
        repeats=True,
        read=as_settings,
        fits=is_table,
        example="{ xla_tpu_enable_async_collective_fusion = false }",
    )
    chip_overrides: tuple[str, ...] | None = option(
        says="Overrides of the chip's figures in the built-in table, as `name=value` such as "
        "`hbm_bytes_per_s=750e9`, or as TOML files.",
        of_text=True,
        python=lambda value: as_texts("chip_overrides", '"hbm_bytes_per_s=750e9"')(value) or None,
        shown="--chip-override --chip-file NAME=VALUE|FILE",
        help="For times: a figure of the chip, such as hbm_bytes_per_s=750e9, or a TOML file of figures. Repeats.",
        repeats=True,
    )
    timeout_s: float | None = option(
        says="Time limit of a compile, in seconds; 0 means no limit. By default `HLOSCOPE_TIMEOUT`, otherwise no limit "
        "if stderr is a terminal and 30 minutes if not.",
        python=as_time_limit,
        shown="--timeout SECONDS",
        help="Stop a compile after this long; 0 means no limit.",
        default="HLOSCOPE_TIMEOUT, else none on a terminal and 1800 elsewhere",
        seconds=True,
        key="timeout",
        fits=is_time,
        example="600",
    )
    kernel_costs: Mapping[str, tuple[float, float]] = option(
        says='FLOPs and bytes of Pallas kernels, by name: `{"splash": (7e11, 2e8)}`.',
        of_text=True,
        python=as_kernel_costs,
        shown="--kernel-cost NAME=FLOPS,BYTES",
        help="For times: the cost of a Pallas kernel, such as splash=7e11,2e8. Repeats.",
        default="its cost_estimate",
        repeats=True,
        fits=is_table_of(is_cost),
        example="{ splash = [7e11, 2e8] }",
    )
    allow: tuple[str, ...] = option(
        says="Findings to accept, each with a reason, such as `all-gather@X: weights of FSDP`.",
        of_text=True,
        python=as_texts("allow", '"all-gather@X: weights of FSDP"'),
        fits=is_list_of(is_text),
        example='["all-gather@fsdp: weights of FSDP"]',
    )
    rule_options: Mapping[str, Any] = option(
        says='Values of rule options, by `rule.option`: `{"small-collectives.min_collectives": 8}`.',
        of_text=True,
        python=as_mapping("rule_options", '{"small-collectives.min_collectives": 8}'),
        key="rules",
        fits=is_table_of(is_table_of(is_number)),
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


class _CompileOptions(TypedDict, total=False):
    """The options that say how a program sees its devices, how it is compiled, and what its chip and kernels do."""

    platform: str | None
    processes: int | None
    compiler_options: Mapping[str, str] | None
    chip_overrides: str | Sequence[str]
    kernel_costs: Mapping[str, tuple[float, float]] | str | Sequence[str]


class _JudgedOptions(TypedDict, total=False):
    """The options that say what is accepted, and how long a compile may take."""

    allow: str | Sequence[str]
    rule_options: Mapping[str, Any] | None
    timeout_s: float | None


class ProgramOptions(_CompileOptions, total=False):
    """The target options that every function of the Python API takes."""

    mesh: Any
    kwargs: Mapping[str, Any] | None
    out: Any
    static: Mapping[str, Any] | None
    donate: int | Sequence[int] | str | None
    dims: Mapping[str, int] | str | None
    axis_types: str | None
    dcn: Mapping[str, int] | str | None


class TargetOptions(ProgramOptions, _JudgedOptions, total=False):
    """The options of a target."""

    slice: str | None


class RecordingOptions(_CompileOptions, _JudgedOptions, total=False):
    """The options that apply to all programs of a script."""


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
                f"facts cannot be attached to {format_value(function)}",
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
        f"{format_value(asked)} wraps itself, or others without end",
        why="each __wrapped__ has a __wrapped__ of its own",
        fix="pass the function that does the work",
    )
