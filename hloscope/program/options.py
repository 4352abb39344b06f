"""What a user can say of a target, each thing once: in Python, on the command line, in the targets file.

Everything that has such options is made from `OPTIONS`: `make_facts` and through it the decorator, the Python functions
and the pytest marker; the command line's options and their help; the targets file's keys. A new option is an entry
here, and in `hloscope.program.target` a field of `TargetFacts` and a line of `TargetOptions`. Imports no JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hloscope.errors import NotationError


def _itself(value: Any) -> Any:
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_array(value: Any) -> bool:
    """A notation, or a pytree of notations."""
    if isinstance(value, list):
        return all(map(_is_array, value))
    return _is_text(value) or (isinstance(value, dict) and all(map(_is_array, value.values())))


def _is_mesh(value: Any) -> bool:
    return _is_text(value) or (maps_to(_is_count)(value) and all(value.values()))


def are(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value of the targets file is a list of such values."""
    return lambda value: isinstance(value, list) and all(map(check, value))


def maps_to(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value of the targets file is a table of such values."""
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_cost(value: Any) -> bool:
    return are(_is_number)(value) and len(value) == 2


def _is_time(value: Any) -> bool:
    return _is_number(value) and not isinstance(value, bool) and 0 <= value < math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing that a user can say of a target.

    Attributes:
        name: Its name in Python, and the field of `TargetFacts` that holds it.
        says: What it is, for docstrings.
        of_text: Whether it goes with HLO text as well, which is compiled already.
        python: From what a user writes in Python, or a targets file holds, to what `TargetFacts` holds.
        flags: On the command line; empty where that has another way to say it.
        metavar: How the command line's help shows its value.
        help: What the command line's help says of it.
        default: What holds where it is not given there, for the help; empty where that says itself.
        repeats: Whether it may be given several times on the command line.
        seconds: Whether its value there is a number of seconds.
        read: From its text on the command line, or all of them, to fields of `TargetFacts`.
        key: In the targets file; empty where that has no such key.
        fits: Whether a value there is what the key takes.
        example: Such a value, for messages.
    """

    name: str
    says: str
    of_text: bool = False
    python: Callable[[Any], Any] = _itself
    flags: tuple[str, ...] = ()
    metavar: str = ""
    help: str = ""
    default: str = ""
    repeats: bool = False
    seconds: bool = False
    read: Callable[[Any], Mapping[str, Any]] | None = None
    key: str = ""
    fits: Callable[[Any], bool] = _is_text
    example: str = ""

    def of_command_line(self, given: Any) -> Mapping[str, Any]:
        """The fields of `TargetFacts` that its value on the command line says; none where it was not given.

        Raises:
            NotationError: It is not written as it must be.
        """
        if given is None or given == ():
            return {}
        return {self.name: self.python(given)} if self.read is None else self.read(given)


def _sizes(what: str) -> Callable[[Any], Mapping[str, int] | None]:
    def checked(value: Any) -> Mapping[str, int] | None:
        if value is None or hasattr(value, "axis_names"):
            return value  # type: ignore[no-any-return]  # nothing, or a mesh of JAX's
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

    return checked


def _slice_name(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise NotationError(f"slice must be a name, not {value!r}", fix="write slice='v5e:2x4', or 'v5e-8'")
    return value


def _axis_types(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = ",".join(f"{axis}={kind}" for axis, kind in value.items())
    if value is not None and not isinstance(value, str):
        raise NotationError(f"axis_types must be text, not {value!r}", fix="write 'auto', 'explicit' or 'X=explicit'")
    return value


def _mapping(value: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(value or {})


def _outputs(value: Any) -> Any:
    return [None if spec == "None" else spec for spec in value] if isinstance(value, list) else value


def _texts(value: str | Iterable[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _positions(value: Any) -> tuple[int, ...] | None:
    return (value,) if isinstance(value, int) else None if value is None else tuple(value)


def _compiler_options(value: Mapping[str, Any] | None) -> dict[str, str]:
    return {
        name: str(setting).lower() if isinstance(setting, bool) else str(setting)
        for name, setting in (value or {}).items()
    }


def _time(value: Any) -> float | None:
    if value is not None and not _is_time(value):
        raise NotationError(
            f"a time limit must be a number of seconds, not {value!r}", fix="write 600 for ten minutes; 0 is no limit"
        )
    return None if value is None else float(value)


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
        if not name or not math.isfinite(flops + moved_bytes) or min(flops, moved_bytes) < 0 or not flops + moved_bytes:
            raise NotationError(
                f"{name}={cost} is no cost of a kernel",
                why="it takes the kernel's name, its FLOPs and the bytes that it reads and writes in HBM",
                fix="write NAME=FLOPS,BYTES, such as splash=7e11,2e8",
            )
        found[str(name)] = (flops, moved_bytes)
    return found


def _read_arguments(texts: Sequence[str]) -> Mapping[str, Any]:
    from hloscope.program.notation import split_keyword

    named = [split_keyword(text) for text in texts]
    return {
        "args": tuple(_argument(text) for name, text in named if name is None),
        "kwargs": {name: _argument(text) for name, text in named if name is not None},
    }


def _argument(text: str) -> Any:
    """One argument: a notation, or a pytree of notations in Python's words."""
    import ast

    if not text.lstrip().startswith(("{", "[", "(")):
        return text
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise NotationError(
            f"{text} is no pytree of array types",
            why=str(error),
            fix="""quote the types inside: --arg "{'w': 'bf16[8@X,2048]', 'b': 'f32[2048]'}\"""",
        ) from error


def _read_outputs(texts: Sequence[str]) -> Mapping[str, Any]:
    return {"out": [None if text.strip() == "None" else text for text in texts]}


def _read_statics(texts: Sequence[str]) -> Mapping[str, Any]:
    from hloscope.program.notation import parse_static

    return {"static": dict(map(parse_static, texts))}


def _read_positions(text: str) -> Mapping[str, Any]:
    from hloscope.program.notation import parse_indices

    return {"donate": parse_indices(text)} if text else {}


def _read_dims(texts: Sequence[str]) -> Mapping[str, Any]:
    from hloscope.program.notation import parse_dims

    return {"dims": {letter: size for text in texts for letter, size in parse_dims(text).items()}}


def _read_compiler_options(texts: Sequence[str]) -> Mapping[str, Any]:
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, _) in zip(texts, pairs, strict=True):
        if not equals or not name.strip().isidentifier():
            raise NotationError(
                f"{text!r} is no compiler option",
                fix="write --compiler-option NAME=VALUE, such as xla_tpu_enable_x=true",
            )
    return {"compiler_options": {name.strip(): value.strip() for name, _, value in pairs}}


OPTIONS = (
    Option(
        name="mesh",
        says='Axis name to size, major first: `{"X": 4, "Y": 2}`; or a `jax.sharding.Mesh` or `AbstractMesh`.',
        of_text=True,
        python=_sizes("mesh"),
        flags=("--mesh",),
        metavar="X=4,Y=2",
        help="Mesh axes and sizes, major first.",
        key="mesh",
        fits=_is_mesh,
        example="{ data = 4, model = 2 }",
    ),
    Option(
        name="slice",
        says="Such as `v5e:2x4`, `2*v5e:2x4`, `cpu:8` or `attached`; by default the smallest v5e block that fits.",
        of_text=True,
        python=_slice_name,
        flags=("--slice",),
        metavar="NAME",
        help="v5e:2x4, v5p-16, 2*v5e:2x4, cpu:8, attached.",
        default="smallest v5e that fits",
    ),
    Option(
        name="args",
        says="One entry per positional argument: a notation (`bf16[8@X,2048@Y]`), a pytree of notations, "
        "ShapeDtypeStructs or arrays, or a callable that returns one of these.",
        python=lambda value: tuple(value) if isinstance(value, list) else value,
        flags=("--arg",),
        metavar="TYPE",
        help="One argument, as jax.typeof prints it: 'bf16[8@X,2048@Y]' or name=TYPE. Repeats.",
        repeats=True,
        read=_read_arguments,
        key="args",
        fits=are(_is_array),
        example='["bf16[512@data,2048]"]',
    ),
    Option(
        name="kwargs",
        says="Like `args`, by keyword.",
        python=_mapping,
        key="kwargs",
        fits=maps_to(_is_array),
        example='{ w = "bf16[2048,8192@model]" }',
    ),
    Option(
        name="out",
        says="Output shardings in pytree-leaf order; None entries are the compiler's choice.",
        python=_outputs,
        flags=("--out",),
        metavar="SPEC",
        help="An output's sharding: \"P('X', None)\". Repeats, in pytree-leaf order; None leaves one open.",
        repeats=True,
        read=_read_outputs,
        key="out",
        fits=are(_is_text),
        example="[\"P('data', None)\"]",
    ),
    Option(
        name="static",
        says="Python values passed by keyword that stay Python values while tracing.",
        python=_mapping,
        flags=("--static",),
        metavar="NAME=VALUE",
        help="A Python value passed by keyword. Repeats.",
        repeats=True,
        read=_read_statics,
        key="static",
        fits=_is_table,
        example="{ shift = 5 }",
    ),
    Option(
        name="donate",
        says="Positions of donated arguments.",
        python=_positions,
        flags=("--donate",),
        metavar="0,1",
        help="Positions of donated arguments.",
        read=_read_positions,
        key="donate",
        fits=are(_is_count),
        example="[0, 1]",
    ),
    Option(
        name="dims",
        says="Sizes of the letters used in notations.",
        python=_mapping,
        flags=("--dim",),
        metavar="S=2048,D=4096",
        help="Sizes of letters in argument types. Repeats.",
        repeats=True,
        read=_read_dims,
        key="dims",
        fits=maps_to(_is_count),
        example="{ S = 2048 }",
    ),
    Option(
        name="axis_types",
        says="`auto` (the default), `explicit`, or `X=explicit,Y=auto`.",
        python=_axis_types,
        flags=("--axis-types",),
        metavar="MODE",
        help="auto, explicit, or X=explicit,Y=auto.",
        default="auto",
        key="axis-types",
        example='"auto"',
    ),
    Option(
        name="dcn",
        says="For several slices: the mesh axis that crosses DCN and how many slices it spans.",
        of_text=True,
        python=_sizes("dcn"),
        flags=("--dcn",),
        metavar="X=2",
        help="For several slices: the axis that crosses DCN.",
        default="the first that divides",
        key="dcn",
        fits=_is_mesh,
        example="{ data = 2 }",
    ),
    Option(
        name="compiler_options",
        says="XLA compiler options by name.",
        python=_compiler_options,
        flags=("--compiler-option",),
        metavar="NAME=VALUE",
        help="An XLA option, such as xla_tpu_…=true. Repeats.",
        repeats=True,
        read=_read_compiler_options,
        key="compiler-options",
        fits=_is_table,
        example="{ xla_tpu_enable_async_collective_fusion = false }",
    ),
    Option(
        name="chip_overrides",
        says="Figures of the slice's chip that you know better than the table, as `name=value` such as "
        "`hbm_bytes_per_s=750e9`, or as TOML files.",
        of_text=True,
        python=lambda value: _texts(value) or None,
        flags=("--chip-override", "--chip-file"),
        metavar="NAME=VALUE|FILE",
        help="For times: a figure of the chip, such as hbm_bytes_per_s=750e9, or a TOML file of them. Repeats.",
        repeats=True,
    ),
    Option(
        name="timeout_s",
        says="Seconds that the compile may take; by default `HLOSCOPE_TIMEOUT`, else none where stderr is a terminal "
        "and 30 minutes elsewhere; 0 is no limit.",
        python=_time,
        flags=("--timeout",),
        metavar="SECONDS",
        help="End a compile after so long; 0 is no limit.",
        default="HLOSCOPE_TIMEOUT; else none on a terminal, 1800 elsewhere",
        seconds=True,
        key="timeout",
        fits=_is_time,
        example="600",
    ),
    Option(
        name="kernel_costs",
        says='FLOPs and bytes of Pallas kernels by name: `{"splash": (7e11, 2e8)}`.',
        of_text=True,
        python=read_kernel_costs,
        flags=("--kernel-cost",),
        metavar="NAME=FLOPS,BYTES",
        help="For times: what a Pallas kernel costs, such as splash=7e11,2e8. Repeats.",
        default="its cost_estimate",
        repeats=True,
        key="kernel-costs",
        fits=maps_to(_is_cost),
        example="{ splash = [7e11, 2e8] }",
    ),
    Option(
        name="allow",
        says="What of the rules' findings is accepted and why, such as `all-gather@X: weights of FSDP`.",
        of_text=True,
        python=_texts,
        key="allow",
        fits=are(_is_text),
        example='["all-gather@fsdp: weights of FSDP"]',
    ),
    Option(
        name="rule_options",
        says='Values of rules\' options by `rule.option`: `{"small-collectives.min_collectives": 8}`.',
        of_text=True,
        python=_mapping,
        key="rules",
        fits=maps_to(maps_to(_is_number)),
        example="{ small-collectives = { min-collectives = 8 } }",
    ),
)
"""In the order in which the command line's help shows them."""

BY_NAME = {option.name: option for option in OPTIONS}
