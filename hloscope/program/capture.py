"""The result of one compile, as plain data: the layers above this package never see a JAX object."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hloscope.compiler.model import CompiledProgram
    from hloscope.tpu.slices import Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The user's logical mesh.

    Attributes:
        axis_names: Axis names, major to minor.
        axis_sizes: Number of devices along each axis.
        axis_types: `auto`, `explicit` or `manual` for each axis; None if unknown (HLO text).
        partition_ids: Partition id at each mesh position, in row-major order; None means 0, 1, 2, …
        made_up: Whether the names are generated (`axis_0` and so on) because the HLO text does not name its axes.
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[str, ...] | None = None
    partition_ids: tuple[int, ...] | None = None
    made_up: bool = False

    def __post_init__(self) -> None:
        if len(self.axis_names) != len(self.axis_sizes):
            raise ValueError("a mesh needs one size for each axis name")
        if len(set(self.axis_names)) != len(self.axis_names):
            raise ValueError(f"mesh axis names repeat: {self.axis_names}")

    @property
    def device_count(self) -> int:
        """Devices in the mesh."""
        return prod(self.axis_sizes)

    @property
    def ids(self) -> Sequence[int]:
        """The partition id at each mesh position in row-major order."""
        return range(self.device_count) if self.partition_ids is None else self.partition_ids


def format_spec(dimensions: Iterable[Sequence[str]], **reductions: Sequence[str]) -> str:
    """A sharding as the user would write it: `P('X', None, ('Y', 'Z'), unreduced={'V'})`.

    Args:
        dimensions: The mesh axes of each dimension, major first; empty where it is not sharded.
        reductions: `unreduced` and `reduced` axes, in order; left out if empty.
    """
    named = [tuple(map(repr, axes)) for axes in dimensions]
    entries = [f"({', '.join(names)})" if len(names) > 1 else "".join(names) or "None" for names in named]
    entries += [f"{name}={{{', '.join(map(repr, axes))}}}" for name, axes in reductions.items() if axes]
    return f"P({', '.join(entries)})"


class Spec(NamedTuple):
    """A sharding as `format_spec` writes it.

    Attributes:
        dimensions: The mesh axes of each dimension, major first; dimensions behind the last are not sharded.
        unreduced: Axes whose devices hold addends.
        reduced: Axes over which the cotangent is to be reduced.
    """

    dimensions: tuple[tuple[str, ...], ...]
    unreduced: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()


def parse_spec(text: str) -> Spec:
    """Parses the output of `format_spec`.

    Raises:
        ValueError: The text is not such a spec.
    """
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError(text)
        reductions = {word.arg or "": tuple(sorted(_parse_spec_entry(word.value))) for word in call.keywords}
        return Spec(tuple(map(_parse_spec_entry, call.args)), **reductions)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(text) from error


def _parse_spec_entry(entry: ast.expr) -> tuple[str, ...]:
    """The mesh axes in one entry of a spec."""
    read = ast.literal_eval(entry)
    axes = () if read is None else (read,) if isinstance(read, str) else tuple(read)
    if not all(isinstance(axis, str) for axis in axes):
        raise ValueError(ast.unparse(entry))
    return axes


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedArray:
    """One argument or output leaf as JAX and the compiler see it.

    Attributes:
        name: Pytree path, such as `params['w']` or `result[0]`.
        dtype: XLA's short type name, or JAX's own for extended types (`key<fry>`).
        global_shape: Dimensions of the whole array.
        local_shape: Dimensions on one device; None when the sharding is not known.
        sharding: `P('X', None)` in the user's axes; None if unknown.
        asked: Whether the user asked for this sharding; False when the compiler chose it.
        itemsize_bytes: Bytes per element as JAX counts them, for types that XLA has no name for.
        donated: Whether the buffer is donated.
        used: False for an argument that the program does not read.
        letters: The letter that the user's notation gives each dimension, None for a number; None without a notation.
    """

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...] | None
    sharding: str | None
    asked: bool
    itemsize_bytes: int
    donated: bool = False
    used: bool = True
    letters: tuple[str | None, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One compiled program: a function with the facts that JAX and the compiler report, or HLO text alone.

    Attributes:
        compiled: The compiler's output: the final scheduled module, with the compiler's own facts; for HLO text, the
            text alone.
        slice: The slice it was compiled for; None for text without a stated slice.
        slice_chosen_by: As `SliceFact.chosen_by`.
        used_devices: Devices that the program uses.
        mesh: The user's mesh; None for a program without one.
        devices_per_slice: The number of devices of each slice, if the program runs on several slices.
        arguments: Flattened arguments, in order, dropped ones included; None for HLO text.
        outputs: Flattened outputs, in order; None for HLO text.
        notes: Choices made for the user, one sentence each.
        versions: Versions of jax, jaxlib and libtpu.
        allow: The findings of rules that the target accepts.
        rule_options: Values of rule options that the target sets, by `rule.option`.
        kernel_costs: FLOPs and bytes of kernels by name, as the target states them.
    """

    compiled: CompiledProgram
    slice: Slice | None
    slice_chosen_by: str
    used_devices: int
    mesh: Mesh | None
    devices_per_slice: int | None = None
    arguments: tuple[CapturedArray, ...] | None = None
    outputs: tuple[CapturedArray, ...] | None = None
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    rule_options: Mapping[str, Any] = field(default_factory=dict)
    kernel_costs: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def is_text(self) -> bool:
        """True if only the text is known."""
        return self.arguments is None
