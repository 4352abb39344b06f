"""The definition of a target option, and how its values are read from Python, the command line and the targets file.

The options themselves are the fields of `hloscope.program.target.TargetFacts`. Does not import JAX.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hloscope import given, messages
from hloscope.errors import NotationError
from hloscope.program.notation import parse_dims, parse_indices, parse_mesh, split_keyword


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
        return given.counts(what, value, least=1, what="axis names to sizes", example=example)

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
        return given.counts(name, value, least=0, what="letters to sizes", example=example)

    return read


def as_slice_name(value: Any) -> str | None:
    """Reads the name of a slice."""
    if value is None or isinstance(value, str):
        return value
    raise NotationError(f"slice must be a name, not {given.shown(value)}", fix="write slice='v5e:2x4', or 'v5e-8'")


def as_axis_types(value: Any) -> str | None:
    """Reads axis types: text, one of JAX's types, or a table of either by axis."""
    if isinstance(value, Mapping):
        return ",".join(f"{axis}={_read_axis_type(kind)}" for axis, kind in value.items())
    return None if value is None else _read_axis_type(value)


def _read_axis_type(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name.lower()
    example = "'auto', 'explicit' or 'X=explicit'"
    return given.text("axis_types", value, example=example)


def as_platform(value: Any) -> str | None:
    """Reads the platform that devices should report."""
    if value is None or (isinstance(value, str) and value in ("tpu", "cpu")):
        return value
    raise NotationError(
        f"{given.shown(value)} is not a platform that devices can claim to be", fix="write 'tpu' or 'cpu'"
    )


def as_processes(value: Any) -> int | None:
    """Reads the number of processes that share a slice."""
    if value is None:
        return None
    found = int(value) if isinstance(value, str) and value.isdecimal() else given.integer(value)
    if not found or found < 0:
        shown = given.shown(value)
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
    return lambda value: given.mapping(name, value, example=f"{name}={example}")


def as_outputs(value: Any) -> Any:
    """Reads output shardings; None leaves an output to the compiler."""
    if isinstance(value, bool | int | float | bytes):
        given.refuse("out", "an output's sharding or a list of them", value, """out="P('X', None)\"""")
    return [None if str(spec).strip() == "None" else spec for spec in value] if isinstance(value, list) else value


def as_arguments(value: Any) -> Any:
    """Reads arguments: a tuple or list with one entry for each, or a function that returns it, or a single array."""
    if isinstance(value, list):
        return tuple(value)
    if value is None or isinstance(value, tuple) or callable(value):
        return value
    if isinstance(value, str) or (hasattr(value, "shape") and hasattr(value, "dtype")):
        return (value,)
    return given.refuse("args", "a tuple with one entry for each argument", value, 'args=("bf16[8@X,2048]",)')


def as_texts(name: str, example: str) -> Callable[[Any], tuple[str, ...]]:
    """Reads one text or several.

    Args:
        name: The option's name, for messages.
        example: What to write.
    """
    return lambda value: given.texts(name, value, example=f"{name}={example}")


def as_positions(value: Any) -> tuple[int, ...] | None:
    """Reads one position or several."""
    if value is None:
        return None
    if isinstance(value, str):
        return parse_indices(value)
    many = isinstance(value, Iterable) and not isinstance(value, bytes | Mapping)
    found = [given.integer(each) for each in (value if many else (value,))]
    if any(each is None or each < 0 for each in found):
        given.refuse("donate", "positions of arguments, counted from 0", value, "donate=0, or donate=(0, 1)")
    return tuple(each for each in found if each is not None)


def as_compiler_options(value: Any) -> dict[str, str]:
    """Reads XLA options by name, with booleans in XLA's spelling."""
    table = given.mapping("compiler_options", value, example='compiler_options={"xla_tpu_enable_x": True}')
    return {name: str(set_to).lower() if isinstance(set_to, bool) else str(set_to) for name, set_to in table.items()}


def as_time_limit(value: Any) -> float | None:
    """Reads a number of seconds or a duration such as `5m`."""
    if value is None:
        return None
    found = None if isinstance(value, str) and not value.strip() else value
    try:
        return given.seconds("a time limit", found, example="")
    except NotationError as error:
        raise NotationError(error.what, fix="write 600 for ten minutes; 0 means no limit") from None


def as_kernel_costs(value: Any) -> dict[str, tuple[float, float]]:
    """Reads FLOPs and bytes of kernels by name, from `{"splash": (7e11, 2e8)}` or texts such as `splash=7e11,2e8`.

    Raises:
        NotationError: One of them is not valid, or empty.
    """
    example = 'kernel_costs={"splash": (7e11, 2e8)}'
    texts = () if isinstance(value, Mapping) else given.texts("kernel_costs", value, example=example)
    pairs = value.items() if isinstance(value, Mapping) else [text.partition("=")[::2] for text in texts]
    found = {}
    for name, cost in pairs:
        try:
            flops, moved_bytes = (float(part) for part in (cost.split(",") if isinstance(cost, str) else cost))
        except (TypeError, ValueError):
            flops = moved_bytes = 0.0
        if not name or not math.isfinite(flops + moved_bytes) or min(flops, moved_bytes) < 0 or not flops + moved_bytes:
            raise NotationError(
                f"{name}={cost if isinstance(cost, str) else given.shown(cost)} is not the cost of a kernel",
                why="it takes the kernel's name, its FLOPs and the bytes that it reads and writes in HBM",
                fix="write NAME=FLOPS,BYTES, such as splash=7e11,2e8",
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
            fix=messages.say(
                "quote the types inside: ", messages.Option("arg", ({"w": "bf16[8@X,2048]", "b": "f32[2048]"},))
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
                fix=messages.say(
                    "write ",
                    messages.Option("compiler-option", {"NAME": messages.placeholder("VALUE")}),
                    ", such as xla_tpu_enable_x=true",
                ),
            )
        found[name] = value
    return found
