"""The programs that JAX compiled during a recording."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import jax

from hloscope.compiler.jax_internals import option_texts
from hloscope.compiler.model import Layout
from hloscope.program.capture import Capture
from hloscope.program.compiling import Pending
from hloscope.program.importing import is_library, shown_path
from hloscope.program.lowering import Lowered
from hloscope.program.notation import short_dtype
from hloscope.tpu.devices import Place, SliceDevice, list_devices
from hloscope.tpu.slices import Slice, find_smallest_slice, list_shapes

_SOURCE = re.compile(r"^(?P<function>.*) at (?P<file>.*):(?P<line>\d+)$")
"""What JAX says of where a function that it traced stands."""


@dataclass(slots=True, kw_only=True, eq=False)
class Program:
    """One program, compiled for one set of argument types.

    Attributes:
        name: Name of the function.
        place: Where it is defined, such as `file.py:12`, or first called if it is part of JAX; None if unknown.
        is_jaxs: Whether it is part of JAX, such as `jnp.add` outside `jax.jit`.
        lowered: The program lowered for the slice that its devices form.
        arguments: Type and sharding of each argument leaf, by name.
        flops: FLOPs of its matmuls and convolutions, over all devices.
        boundary_bytes: Global bytes of its arguments and results.
        digest: Digest of its text without source locations.
        calls: Number of calls.
        faked: Why it was not executed; None if it was.
        took_cpu_branch: Whether it was executed and would take another branch of `platform_dependent` on TPU.
        is_compiled: Whether the script compiled it, rather than only lowering it.
        pending: Its compile, if started.
        captured: The compiled program.
        error: Why there is no compiled program.
    """

    name: str
    place: str | None
    is_jaxs: bool
    lowered: Lowered
    arguments: Mapping[str, str]
    flops: float
    boundary_bytes: int
    digest: str
    calls: int = 0
    faked: str | None = None
    took_cpu_branch: bool = False
    is_compiled: bool = False
    pending: Pending | None = None
    captured: Capture | None = None
    error: Exception | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def function(self) -> tuple[str, str | None]:
        """What it shares with the programs that the same function was compiled into."""
        return self.name, self.place

    def add_options(self, options: Mapping[str, Any]) -> None:
        """Takes compiler options that the script gives when it compiles the program itself; only those of the first."""
        given, facts = option_texts(options), self.lowered.facts
        if self.is_compiled and any(facts.compiler_options.get(name) != text for name, text in given.items()):
            note = (
                f"{self.name} was compiled again with different compiler options: its figures are those of the first "
                "compile"
            )
            self.notes.extend({note} - set(self.notes))
        elif given and not self.is_compiled:
            joined = {**given, **facts.compiler_options}
            self.lowered = replace(self.lowered, facts=replace(facts, compiler_options=joined))

    def capture(self) -> Capture:
        """What its compile yields, which is waited for and explained once.

        Raises:
            HloscopeError: The compiler refuses the program, dies over it or takes too long.
        """
        if self.captured is None:
            assert self.pending is not None
            self.captured = self.pending.capture()
        return self.captured

    @property
    def rough_seconds(self) -> float:
        """What one call takes by arithmetic: matmuls at the chip's peak, arguments and results read once.

        Good for ranking alone: a call may read a part of an argument only, and communication is not in it.
        """
        chip = self.lowered.slice.chip
        count = self.lowered.seen.device_count
        if chip is None:
            return 0.0
        per_chip = count / chip.devices_per_chip
        return max(self.flops / chip.bf16_flops_per_s, self.boundary_bytes / chip.hbm_bytes_per_s) / per_chip


_JAX = str(Path(jax.__file__).parent)


def place_of(source: str | None) -> tuple[str | None, bool]:
    """Where a function is written, of JAX's `func_src_info`, or called where that is JAX itself; and whether it is."""
    found = _SOURCE.match(source or "")
    if found is None or found["file"].startswith(_JAX):
        return _calling_line(), True
    return f"{shown_path(found['file'])}:{found['line']}", False


def _calling_line() -> str | None:
    """The innermost line of the script's own on the stack."""
    frame = inspect.currentframe()
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else f"{shown_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def bytes_of(avals: Iterable[Any]) -> int:
    """Bytes of whole arrays."""
    return sum(prod(aval.shape) * getattr(aval.dtype, "itemsize", 4) for aval in avals if hasattr(aval, "shape"))


def type_of(aval: Any, sharding: Any) -> str:
    """An argument's type with its sharding, as `jax.typeof` writes it: `bf16[8@data,2048]`; said where it is weak."""
    spec = list(sharding.spec) if isinstance(sharding, jax.sharding.NamedSharding) else []
    spec += [None] * (len(aval.shape) - len(spec))
    axes = ["+".join(map(str, entry if isinstance(entry, tuple) else (entry,))) if entry else "" for entry in spec]
    parts = (f"{size}@{axis}" if axis else str(size) for size, axis in zip(aval.shape, axes, strict=True))
    weak = "weakly typed " if getattr(aval, "weak_type", False) else ""
    return f"{weak}{short_dtype(str(aval.dtype)) or aval.dtype}[{','.join(parts)}]"


def what_changed(before: Program, after: Program) -> str:
    """In words, why the same function was compiled another time."""
    old, new = before.arguments, after.arguments
    changed = [f"{name} was {old[name]} and became {kind}" for name, kind in new.items() if old.get(name, kind) != kind]
    others = [name for name in {**old, **new} if (name in old) != (name in new)]
    if changed:
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        return changed[0] + more
    if others:
        return f"it no longer has {others[0]}" if others[0] in old else f"it now has {others[0]}"
    if before.lowered.slice.name != after.lowered.slice.name or _devices(before) != _devices(after):
        return "it runs on different devices"
    if before.digest == after.digest:
        return (
            "nothing: jax.jit was called again on a new function object, or with a static argument (such as "
            "self) that does not equal the one before"
        )
    return (
        "the types are the same: a static argument, a captured value, a JAX setting, or a "
        "transformation (such as jax.grad) differs"
    )


def _devices(program: Program) -> tuple[int, ...]:
    return tuple(device.id for device in program.lowered.seen.devices)


def sub_slice(devices: Iterable[Any], known: Mapping[Any, SliceDevice], whole: Slice) -> tuple[Slice, Layout]:
    """The slice that some devices of a slice are, and where on it each partition runs.

    Args:
        devices: In partition order.
        known: What each device of the whole slice says of itself, in the order of `jax.devices()`.
        whole: The slice that they pose as.

    Returns:
        The whole slice where all are used; else the block that they form where there is such a slice, in their own
        order; else the smallest that has as many, in JAX's order.
    """
    chosen = [known[device] for device in devices]
    position = {device.id: at for at, device in enumerate(known.values())}
    if len(chosen) == whole.device_count:
        return whole, Layout(device_count=len(chosen), simulated_ids=tuple(position[each.id] for each in chosen))
    assert whole.chip is not None
    low = [min(each.coords[axis] for each in chosen) for axis in range(3)]
    edges = tuple(max(each.coords[axis] for each in chosen) - low[axis] + 1 for axis in range(3))
    shape = next((shape for shape in list_shapes(whole.chip) if (*shape, 1, 1)[:3] == edges), None)
    block = None if shape is None else Slice(chip=whole.chip, shape=shape)
    if block is not None and block.device_count == len(chosen):
        there = {(each.coords, each.core_on_chip): at for at, each in enumerate(list_devices(block))}
        ids = [there.get((_less(each.coords, low), each.core_on_chip)) for each in chosen]
        if None not in ids:
            return block, Layout(device_count=len(chosen), simulated_ids=tuple(at for at in ids if at is not None))
    return find_smallest_slice(len(chosen), whole.chip.name), Layout(device_count=len(chosen))


def _less(place: Place, corner: Sequence[int]) -> Place:
    x, y, z = (at - least for at, least in zip(place, corner, strict=True))
    return x, y, z
