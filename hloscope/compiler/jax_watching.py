"""Every private part of JAX that recording a script needs: where programs pass by, and executables of our own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src import dispatch, pjit
from jax._src.interpreters import pxla

from hloscope.compiler.jax_internals import replaced_in_this_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a compiled program says of itself where a script asks; each raises `NotImplementedError` for "unknown".

    Attributes:
        text: Its HLO.
        memory: What it takes of a device's memory.
        cost: What it costs, by name.
    """

    text: Callable[[], str]
    memory: Callable[[], Any]
    cost: Callable[[], dict[str, float]]


@contextmanager
def resolving_as(stand_in: Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], Any]) -> Iterator[None]:
    """Lets every program that is lowered for the devices at hand be what `stand_in` makes of it, in every thread.

    Args:
        stand_in: Is given JAX's function, the types of the arguments, and what else it is called with.
    """
    original = pjit._resolve_and_lower

    def resolved(args: Sequence[Any], **params: Any) -> Any:
        args = tuple(args)
        if params.get("lowering_platforms") is not None:
            return original(args, **params)
        return stand_in(original, args, params)

    with replaced_in_this_thread(pjit, "_resolve_and_lower", resolved, in_all=True):
        yield


@contextmanager
def putting_as(stand_in: Callable[[Sequence[Any], Any, Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Lets arrays that are brought to devices be what `stand_in` returns, in every thread.

    Args:
        stand_in: Is given the arrays or shards, the type of the whole where JAX has it, where it is to lie, and what
            brings it there.
    """
    original, of_shards = dispatch._device_put_impl, pxla.batched_device_put

    def put(array: Any, *, device: Any, **how: Any) -> Any:
        return stand_in([array], None, device, lambda: original(array, device=device, **how))

    def put_shards(aval: Any, sharding: Any, shards: Sequence[Any], *rest: Any, **how: Any) -> Any:
        return stand_in(shards, aval, sharding, lambda: of_shards(aval, sharding, shards, *rest, **how))

    with (
        replaced_in_this_thread(dispatch, "_device_put_impl", put, in_all=True),
        replaced_in_this_thread(pxla, "batched_device_put", put_shards, in_all=True),
    ):
        yield


def devices_of(computation: Any) -> tuple[Any, ...]:
    """The devices of a `MeshComputation`, in partition order."""
    return tuple(computation._device_list or ())


def is_decided(sharding: Any) -> bool:
    """Whether an output's sharding says how each dimension lies."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.PartitionSpec.UNCONSTRAINED not in tuple(sharding.spec)
    return isinstance(sharding, jax.sharding.Sharding)


def replicated_over(devices: Sequence[Any]) -> jax.sharding.Sharding:
    """A sharding of copies, over devices without a mesh."""
    mesh = jax.sharding.Mesh(np.array(devices, dtype=object), ("devices",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def give_host_value(array: Any, value: np.ndarray[Any, Any]) -> None:
    """Says what `numpy.asarray` returns of an array, which would be gathered from its devices."""
    value.flags.writeable = False
    array._npy_value = value


def first_address(array: Any) -> int | None:
    """Where an array's part on its first device begins in memory; None where it has none."""
    try:
        return int(array.addressable_data(0).unsafe_buffer_pointer())
    except Exception:  # it was deleted, or is of a type without a buffer of its own
        return None


def lowered_of(
    computation: Any, avals: Sequence[Any], donated: Sequence[bool], result_count: int
) -> jax.stages.Lowered:
    """A computation as `jax.jit(...).lower` hands it out, with flat arguments and results."""
    info = tuple(jax.stages.ArgInfo(aval, gone) for aval, gone in zip(avals, donated, strict=True))
    return jax.stages.Lowered(computation, (info, {}), jax.tree.structure([0] * result_count))


class _Watched(pxla.MeshExecutable):  # type: ignore[misc]
    """An executable that says of itself what the TPU's compiler does."""

    __slots__ = ("_said",)

    def as_text(self) -> str:
        return str(self._said.text())

    def memory_analysis(self) -> Any:
        return self._said.memory()

    def cost_analysis(self) -> Any:
        return self._said.cost()


class _Faked(_Watched):
    """An executable that computes nothing."""

    __slots__ = ()

    def runtime_executable(self) -> None:
        return None

    def shard_const_args(self, const_args: Sequence[Any]) -> list[Any]:
        return list(const_args)

    def call(self, *args: Any) -> Any:
        info = self._all_args_info
        if info is not None:
            pxla.check_arg_avals_for_call(info.in_avals, [jax.typeof(arg) for arg in args], info.debug_info)
        return self.unsafe_call(*args)


def watched_executable(real: Any, call: Callable[..., Any], said: Said) -> Any:
    """An executable of JAX's that passes by a function when it is called.

    Args:
        real: JAX's.
        call: Is given what JAX gives the executable, and returns what it returns.
        said: What it says of itself.
    """
    made = object.__new__(_Watched)
    for name in pxla.MeshExecutable.__slots__:
        setattr(made, name, getattr(real, name))
    made._unsafe_call = call
    made._said = said
    return made


def donated_to_results(computation: Any, args: Sequence[Any], shardings: Sequence[Any]) -> list[jax.Array]:
    """The arguments that a call takes away: those donated whose memory a result of their type and parts can take.

    Args:
        computation: What is called.
        args: What it is called with, also what it does not use.
        shardings: Of its results.
    """
    details, donated = computation.compile_args, computation._donated_invars
    kept = _used(computation, args)
    if not any(donated) or len(kept) != len(donated):
        return []
    rooms = Counter(map(_memory_of, details["global_out_avals"], shardings))
    gone = []
    for array, is_donated, home in zip(kept, donated, details["in_shardings"], strict=True):
        if not is_donated or not isinstance(array, jax.Array):
            continue
        is_there = not isinstance(home, jax.sharding.Sharding) or home.is_equivalent_to(array.sharding, array.ndim)
        room = _memory_of(array, array.sharding)
        if is_there and rooms[room]:  # of one that lies elsewhere a copy is given away
            rooms[room] -= 1
            gone.append(array)
    return gone


def _used(computation: Any, args: Sequence[Any]) -> list[Any]:
    return [args[at] for at in sorted(computation.compile_args["kept_var_idx"]) if at < len(args)]


def _memory_of(array: Any, sharding: jax.sharding.Sharding) -> tuple[Any, ...]:
    """What decides whether two arrays, or their types, can take the same memory."""
    return array.dtype, array.shape, sharding.shard_shape(array.shape), sharding.memory_kind


def faked_executable(
    computation: Any,
    shardings: Sequence[Any],
    call: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    said: Said,
) -> Any:
    """An executable that computes nothing.

    Args:
        computation: What it is of.
        shardings: Of its results.
        call: Makes them, of these shardings, for these arguments.
        said: What it says of itself.
    """
    details = computation.compile_args
    count = len(details["global_in_avals"])

    def called(*args: Any) -> list[Any]:
        gone = next((arg for arg in _used(computation, args) if isinstance(arg, jax.Array) and arg.is_deleted()), None)
        if gone is not None:
            raise RuntimeError(f"Array has been deleted with shape={gone.aval.str_short()}.")  # JAX's own words
        return call(shardings, args)

    made = _Faked(
        None,
        lambda: called,
        details["global_in_avals"],
        details["global_out_avals"],
        list(details["in_shardings"]),
        list(shardings),
        details["kept_var_idx"],
        [None] * count,
        [None] * count,
        [None] * len(shardings),
        None,
        details["all_args_info"],
    )
    made._said = said
    return made
