"""One program on the available devices, real or simulated: compiled, run on values, and its shards read back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hloscope.base.errors import HloscopeError, TargetError
from hloscope.base.store import open_default_store
from hloscope.base.units import sum_known
from hloscope.compile import devices, jax_private
from hloscope.compile.arguments import KEY_IMPLEMENTATIONS, build_call
from hloscope.compile.jaxprs import differs_by_platform, find_jaxpr
from hloscope.compile.lowering import Lowered, lower
from hloscope.compile.meshes import MeshPlan, find_axis_types, make_mesh_plan
from hloscope.compile.target import TargetFacts
from hloscope.tpu.slices import parse_slice
from hloscope.verification.differences import OutputShard, Rounding, is_manual, read_rounding
from hloscope.verification.job import Function
from hloscope.verification.noise import make_exact, make_noisy

UNEVALUABLE = (
    HloscopeError,
    NotImplementedError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    AssertionError,
    jax.errors.JaxRuntimeError,
)
"""The exceptions for a traced program that cannot be evaluated step by step, or differentiated."""

_ADDING = ("all-reduce", "reduce-scatter", "collective-permute")
"""Opcodes that add up over devices; a ring of permutes does so step by step."""

MEMORY_SHARE = 0.8
"""The share of the free memory that a run may take; the runtime makes copies in the rest."""

_MEMORY_PARTS = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A program that is ready to run.

    Attributes:
        function: The function that it was compiled from.
        lowered: The program lowered by JAX, with its name and call.
        compiled: JAX's compiled program.
        seen: Its leaves.
        rounding: The properties that determine its rounding errors.
        memory_bytes: Its memory on all devices together; None if the compiler does not report it.
        is_manual: Whether a part of it is written for each device, with `shard_map`.
        adds_across: Whether it may add up over devices, each of which then rounds its partial sum.
        traced: JAX's trace, flat; None if a library does not provide it.
        differs_by_platform: Whether `jax.lax.platform_dependent` chose another branch than on a TPU.
        moved: Its evaluations with moved values that were already requested, by the parts of sums.
    """

    function: Function
    lowered: Lowered
    compiled: jax.stages.Compiled
    seen: jax_private.LoweredFacts
    rounding: Rounding
    memory_bytes: int | None
    is_manual: bool
    adds_across: bool
    traced: ClosedJaxpr | None
    differs_by_platform: bool = False
    moved: dict[int, Function] = field(default_factory=dict)

    @property
    def decides_shardings(self) -> bool:
        """True if its shardings are fixed in it, or part of its types, so that others cannot be tried."""
        meshes = (mesh for mesh in (self.lowered.plan.mesh, self.lowered.mesh) if mesh is not None)
        return self.is_manual or any(kind != AxisType.Auto for mesh in meshes for kind in mesh.axis_types)

    def on_its_mesh(self) -> AbstractContextManager[object]:
        """The context in which it is traced again."""
        current = self.lowered.plan.mesh
        return nullcontext() if current is None else jax.set_mesh(current)

    def trace(self, purpose: str) -> ClosedJaxpr:
        """JAX's trace of the program.

        Raises:
            TargetError: A library does not provide it, so that its purpose is not possible.
        """
        if self.traced is None:
            raise TargetError(f"the program cannot be {purpose}", why="its library does not expose its trace")
        return self.traced


def prepare_program(function: Function, facts: TargetFacts, name: str) -> Prepared:
    """Compiles a function for the available devices.

    Raises:
        HloscopeError: JAX refuses it.
    """
    program = lower(function, facts, name=name, plan=_make_plan(facts))
    seen = program.seen
    compiled = program.module.compile()
    text, hlo = program.module.as_text(), compiled.as_text()
    traced = find_jaxpr(program.traced)
    memory_bytes = _find_memory_of_one_device(compiled)
    return Prepared(
        function=function,
        lowered=program,
        compiled=compiled,
        seen=seen,
        rounding=read_rounding(text, seen.device_count),
        memory_bytes=None if memory_bytes is None else memory_bytes * seen.device_count,
        is_manual=is_manual(text),
        adds_across=hlo is None or any(opcode in hlo for opcode in _ADDING),
        traced=traced,
        differs_by_platform=traced is not None and differs_by_platform(traced.jaxpr, jax.default_backend()),
    )


def fingerprint_program(function: Function, facts: TargetFacts, name: str) -> str:
    """A digest of JAX's lowering of a program for TPU, which identifies it in every process.

    Raises:
        HloscopeError: JAX refuses it.
    """
    program = lower(function, facts, name=name, plan=replace(_make_plan(facts), slice=None), store=open_default_store())
    text = program.module.as_text()
    return hashlib.sha256(text.encode()).hexdigest()


def prepare_gradient(forward: Prepared) -> Prepared:
    """Compiles the gradient of a program: from cotangents of its float outputs to those of its float inputs.

    Raises:
        HloscopeError: JAX cannot differentiate it, or it has no floats.
    """
    known, name, seen = forward.lowered.facts, forward.lowered.name, forward.seen
    with forward.on_its_mesh():
        call = build_call(forward.function, known, forward.lowered.plan.mesh, name)
    results = list(zip(seen.result_avals, jax.tree.leaves(forward.compiled.output_shardings), strict=True))
    cotangents = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding) for aval, sharding in results if _is_float(aval)
    ]
    if not cotangents or not any(map(_is_float, jax.tree.leaves((call.args, dict(call.kwargs))))):
        raise TargetError(f"{name} has no gradient", why="it needs a floating-point argument and result")
    facts = replace(known, args=(cotangents, *call.args), kwargs=call.kwargs, out=None, static={})
    found = prepare_program(_make_pullback(partial(call.function, **call.static)), facts, name)
    arguments = zip(seen.argument_names, seen.argument_avals, strict=True)
    names = tuple(f"gradient of {name}" for name, aval in arguments if _is_float(aval))
    return replace(found, seen=replace(found.seen, result_names=names))


def _make_pullback(function: Function) -> Function:
    def pullback(cotangents: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = [index for index, leaf in enumerate(leaves) if _is_float(leaf)]

        def of_floats(floats: Sequence[Any]) -> list[Any]:
            again, keywords = jax.tree.unflatten(structure, _replace_values(leaves, places, floats))
            return [leaf for leaf in jax.tree.leaves(function(*again, **keywords)) if _is_float(leaf)]

        return jax.vjp(of_floats, [leaves[place] for place in places])[1](list(cotangents))[0]

    return pullback


def _replace_values(values: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """The values, with others at some positions."""
    other = dict(zip(places, others, strict=True))
    return [other.get(place, value) for place, value in enumerate(values)]


def run_program(program: Prepared, values: Sequence[Any]) -> list[tuple[OutputShard, ...]]:
    """Runs a program and reads back the shard of every device for each output."""
    leaves = jax.tree.leaves(call_program(program, values))
    return [_read_shards(jax.block_until_ready(leaf), program.lowered.mesh) for leaf in leaves]


def call_program(program: Prepared, values: Sequence[Any]) -> Any:
    """Calls a compiled program with its flat arguments."""
    args, kwargs = jax.tree.unflatten(jax.tree.structure(program.lowered.module.args_info), list(values))
    return program.compiled(*args, **kwargs)


def run_noisy(
    program: Prepared, values: Sequence[Any], *, parts: int, platform: str, runs: Iterable[int]
) -> list[list[Any]]:
    """Runs a program several times with all stored values moved by rounding; each run's outputs as whole arrays.

    A program that the compiler shards is run on one device, so that these runs also differ in their shardings.

    Args:
        program: The program, traced.
        values: Its arguments.
        parts: The number of devices that a sum may be spread over.
        platform: `cpu`, `tpu` or `gpu`.
        runs: The number of each run, from 1; another number moves the values differently.
    """
    closed = program.trace("evaluated step by step")
    alone = platform == "cpu" and not program.decides_shardings
    if parts not in program.moved:
        program.moved[parts] = make_noisy(closed, parts=parts, platform=platform, alone=alone)
    moved, placed = program.moved[parts], values if alone else place_values(program, values)
    with nullcontext() if alone else program.on_its_mesh():
        return [
            [copy_to_host(output) for output in moved(np.uint32(0x2545F491 * run % 2**32), *placed)] for run in runs
        ]


def run_split(program: Prepared, values: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
    """Runs a program that the compiler shards with another split of its arguments; its outputs as whole arrays."""
    closed = program.trace("sharded differently")
    if program.decides_shardings:
        raise TargetError("the program cannot be sharded differently", why="its shardings are written into it")
    evaluated = jax.jit(make_exact(closed, alone=program.lowered.plan.mesh is None), in_shardings=list(shardings))
    with program.on_its_mesh():
        return [copy_to_host(output) for output in evaluated(*values)]


def find_other_splits(program: Prepared, beside: Prepared) -> Iterator[tuple[str, list[Any]]]:
    """Other ways to split a program that the compiler shards, in words and as shardings of its arguments.

    Args:
        program: The program.
        beside: Another program with the same arguments, whose split comes first.
    """
    mesh = program.lowered.mesh or beside.lowered.mesh
    if mesh is None or mesh.size == 1:
        return
    own, theirs = (
        [find_sharding(each, at) for at in range(len(each.seen.argument_avals))] for each in (program, beside)
    )
    if own != theirs and all(split is None or split.device_set == set(mesh.devices.flat) for split in theirs):
        yield "sharded like the target's", [split or NamedSharding(mesh, PartitionSpec()) for split in theirs]
    for dim in range(2):
        specs = [
            PartitionSpec(*[None] * dim, mesh.axis_names)
            if len(aval.shape) > dim and not aval.shape[dim] % mesh.size
            else PartitionSpec()
            for aval in program.seen.argument_avals
        ]
        if any(specs):
            yield f"sharded along dimension {dim} over all devices", [NamedSharding(mesh, spec) for spec in specs]


def compute_gradients(program: Prepared, values: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """The derivative of a random sum of a program's outputs by the arguments at some positions: one reverse pass."""
    alone = not program.decides_shardings
    evaluated = make_exact(program.trace("differentiated"), alone=alone)
    generator = np.random.default_rng(0)

    def total(chosen: Sequence[Any], given: Sequence[Any]) -> Any:
        every = evaluated(*_replace_values(given, positions, chosen))
        outputs = [output for output in every if jnp.issubdtype(output.dtype, jnp.floating)]
        weights = [generator.uniform(0.5, 1.5, each.shape) * generator.choice((-1, 1), each.shape) for each in outputs]
        return sum(jnp.vdot(each.astype(jnp.float32), weight) for each, weight in zip(outputs, weights, strict=True))

    placed = values if alone else place_values(program, values)
    with nullcontext() if alone else program.on_its_mesh():
        found = jax.jit(jax.grad(total))([placed[position] for position in positions], list(placed))
    return [np.asarray(gradient) for gradient in found]


def place_values(program: Prepared, values: Sequence[Any]) -> list[Any]:
    """The arguments of a program, each with the sharding that it has for it."""
    shardings = (find_sharding(program, position) for position in range(len(values)))
    return [
        value if sharding is None else jax.device_put(value, sharding)
        for value, sharding in zip(values, shardings, strict=True)
    ]


def find_sharding(program: Prepared, position: int) -> jax.sharding.Sharding | None:
    """The sharding of the argument at a position; None if the program does not read it or leaves it open."""
    kept = program.seen.kept
    sharding = program.seen.in_shardings[kept.index(position)] if position in kept else None
    return sharding if isinstance(sharding, jax.sharding.Sharding) else None


def make_key(aval: Any, seed: int, position: int) -> Any:
    """Random keys as an argument, for a type such as `key<fry>[8]`; no two arguments get the same ones."""
    name = str(aval.dtype)
    named = KEY_IMPLEMENTATIONS.get(name, name.removeprefix("key<").removesuffix(">"))
    key = jax.random.key(int(np.random.default_rng([seed, position]).integers(2**31)), impl=named)
    return jax.random.split(key, aval.shape) if aval.shape else key


def is_key(aval: Any) -> bool:
    """Returns whether a value is a random key, for which NumPy has no type."""
    return bool(jnp.issubdtype(aval.dtype, jax.dtypes.prng_key))


def _make_plan(facts: TargetFacts) -> MeshPlan:
    attached = parse_slice("attached")
    if not isinstance(facts.mesh, Mapping):
        return make_mesh_plan(replace(facts, slice=attached.name, dcn=None))
    mesh = devices.make_requested_mesh(facts, jax.devices())
    return MeshPlan(slice=attached, mesh=mesh, axis_types=dict(zip(facts.mesh, find_axis_types(mesh), strict=True)))


def _find_memory_of_one_device(compiled: jax.stages.Compiled) -> int | None:
    try:
        stats = compiled.memory_analysis()
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return None
    return sum_known(getattr(stats, part, None) for part in _MEMORY_PARTS)


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def copy_to_host(array: Any) -> Any:
    """The whole array for NumPy, which has no type for random keys."""
    return np.asarray(jax.random.key_data(array) if is_key(array) else array)


def _read_shards(array: Any, mesh: jax.sharding.Mesh | None) -> tuple[OutputShard, ...]:
    if is_key(array):
        array = jax.random.key_data(array)
    mesh = getattr(array.sharding, "mesh", None) or mesh
    return tuple(
        OutputShard(
            place=format_mesh_position(shard.device, mesh),
            start=tuple(index.start or 0 for index in shard.index),
            values=np.asarray(shard.data),
        )
        for shard in sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    )


def format_mesh_position(device: Any, mesh: Any) -> str:
    """The position of a device in the mesh: `X=1, Y=0`; `device 3` without a mesh."""
    ids = [member.id for member in mesh.devices.flat] if isinstance(mesh, jax.sharding.Mesh) else []
    if device.id not in ids:
        return f"device {device.id}"
    positions = np.unravel_index(ids.index(device.id), mesh.devices.shape)
    return ", ".join(f"{axis}={position}" for axis, position in zip(mesh.axis_names, positions, strict=True))
