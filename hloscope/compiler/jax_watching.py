"""The private parts of JAX that recording a script needs: the path of programs, and executables of our own."""

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

from hloscope.compiler.jax_internals import replace_in_this_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutableFacts:
    """The answers of a compiled program to a script; each raises `NotImplementedError` for "unknown".

    Attributes:
        text: Its HLO.
        memory: Its memory use on a device.
        cost: Its costs, by name.
    """

    text: Callable[[], str]
    memory: Callable[[], Any]
    cost: Callable[[], dict[str, float]]


@contextmanager
def replace_lowered_programs(
    stand_in: Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], Any],
) -> Iterator[None]:
    """Replaces every program that is lowered for the attached devices by the result of `stand_in`, in every thread.

    Args:
        stand_in: Takes JAX's function, the types of the arguments, and the function's other parameters.
    """
    original = pjit._resolve_and_lower

    def resolved(args: Sequence[Any], **params: Any) -> Any:
        args = tuple(args)
        if params.get("lowering_platforms") is not None:
            return original(args, **params)
        return stand_in(original, args, params)

    with replace_in_this_thread(pjit, "_resolve_and_lower", resolved, in_all=True):
        yield


@contextmanager
def replace_device_puts(stand_in: Callable[[Sequence[Any], Any, Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Replaces arrays that are brought to devices by the result of `stand_in`, in every thread.

    Args:
        stand_in: Takes the arrays or shards, the type of the whole if JAX has it, its destination, and the function
            that brings it there.
    """
    original, of_shards = dispatch._device_put_impl, pxla.batched_device_put

    def put(array: Any, *, device: Any, **how: Any) -> Any:
        return stand_in([array], None, device, lambda: original(array, device=device, **how))

    def put_shards(aval: Any, sharding: Any, shards: Sequence[Any], *rest: Any, **how: Any) -> Any:
        return stand_in(shards, aval, sharding, lambda: of_shards(aval, sharding, shards, *rest, **how))

    with (
        replace_in_this_thread(dispatch, "_device_put_impl", put, in_all=True),
        replace_in_this_thread(pxla, "batched_device_put", put_shards, in_all=True),
    ):
        yield


def find_computation_devices(computation: Any) -> tuple[Any, ...]:
    """The devices of a `MeshComputation`, in partition order."""
    return tuple(computation._device_list or ())


def is_decided(sharding: Any) -> bool:
    """Returns whether an output's sharding is known for each dimension."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.PartitionSpec.UNCONSTRAINED not in tuple(sharding.spec)
    return isinstance(sharding, jax.sharding.Sharding)


def make_replicated_sharding(devices: Sequence[Any]) -> jax.sharding.Sharding:
    """Makes a replicated sharding over devices without a mesh."""
    mesh = jax.sharding.Mesh(np.array(devices, dtype=object), ("devices",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def set_host_value(array: Any, value: np.ndarray[Any, Any]) -> None:
    """Sets the value that `numpy.asarray` returns for an array, in place of a gather from its devices."""
    value.flags.writeable = False
    array._npy_value = value


def find_first_address(array: Any) -> int | None:
    """The memory address of an array's part on its first device; None if it has none."""
    try:
        return int(array.addressable_data(0).unsafe_buffer_pointer())
    except Exception:  # it was deleted, or is of a type without a buffer of its own
        return None


def make_lowered(
    computation: Any, avals: Sequence[Any], donated: Sequence[bool], result_count: int
) -> jax.stages.Lowered:
    """A computation in the form of `jax.jit(...).lower`, with flat arguments and results."""
    info = tuple(jax.stages.ArgInfo(aval, gone) for aval, gone in zip(avals, donated, strict=True))
    return jax.stages.Lowered(computation, (info, {}), jax.tree.structure([0] * result_count))


class _WatchedExecutable(pxla.MeshExecutable):  # type: ignore[misc]
    """An executable that reports the facts of the TPU's compiler about itself."""

    __slots__ = ("_said",)

    def as_text(self) -> str:
        return str(self._said.text())

    def memory_analysis(self) -> Any:
        return self._said.memory()

    def cost_analysis(self) -> Any:
        return self._said.cost()


class _FakedExecutable(_WatchedExecutable):
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


def make_watched_executable(real: Any, call: Callable[..., Any], said: ExecutableFacts) -> Any:
    """Wraps a JAX executable so that calls go through a function.

    Args:
        real: JAX's executable.
        call: Takes the arguments of the executable, and returns its results.
        said: The facts that it reports about itself.
    """
    made = object.__new__(_WatchedExecutable)
    for name in pxla.MeshExecutable.__slots__:
        setattr(made, name, getattr(real, name))
    made._unsafe_call = call
    made._said = said
    return made


def find_donated_arguments(computation: Any, args: Sequence[Any], shardings: Sequence[Any]) -> list[jax.Array]:
    """The arguments that a call consumes: donated ones whose memory a result of their type and parts can take.

    Args:
        computation: The called computation.
        args: All arguments, including unused ones.
        shardings: The shardings of its results.
    """
    details, donated = computation.compile_args, computation._donated_invars
    kept = _select_used(computation, args)
    if not any(donated) or len(kept) != len(donated):
        return []
    rooms = Counter(map(_find_memory_traits, details["global_out_avals"], shardings))
    gone = []
    for array, is_donated, home in zip(kept, donated, details["in_shardings"], strict=True):
        if not is_donated or not isinstance(array, jax.Array):
            continue
        is_there = not isinstance(home, jax.sharding.Sharding) or home.is_equivalent_to(array.sharding, array.ndim)
        room = _find_memory_traits(array, array.sharding)
        if is_there and rooms[room]:  # of one that lies elsewhere a copy is given away
            rooms[room] -= 1
            gone.append(array)
    return gone


def _select_used(computation: Any, args: Sequence[Any]) -> list[Any]:
    return [args[at] for at in sorted(computation.compile_args["kept_var_idx"]) if at < len(args)]


def _find_memory_traits(array: Any, sharding: jax.sharding.Sharding) -> tuple[Any, ...]:
    """The properties that decide whether two arrays, or their types, can take the same memory."""
    return array.dtype, array.shape, sharding.shard_shape(array.shape), sharding.memory_kind


def make_faked_executable(
    computation: Any,
    shardings: Sequence[Any],
    call: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    said: ExecutableFacts,
) -> Any:
    """An executable that computes nothing.

    Args:
        computation: The computation that it stands for.
        shardings: The shardings of its results.
        call: Makes the results from the arguments and these shardings.
        said: The facts that it reports about itself.
    """
    details = computation.compile_args
    count = len(details["global_in_avals"])

    def called(*args: Any) -> list[Any]:
        gone = next(
            (arg for arg in _select_used(computation, args) if isinstance(arg, jax.Array) and arg.is_deleted()), None
        )
        if gone is not None:
            raise RuntimeError(f"Array has been deleted with shape={gone.aval.str_short()}.")  # JAX's own words
        return call(shardings, args)

    made = _FakedExecutable(
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
