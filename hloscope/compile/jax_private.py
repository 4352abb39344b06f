"""Every private JAX call that hloscope needs, in one file with a test per JAX version.

JAX has no public way to compile, for devices that are not attached, a program that was traced on other devices. The
functions here do what `jax.stages.Lowered.compile` itself does, with other devices.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hloscope.compile.jax_support import check_supported

check_supported()  # what JAX lacks is one message, rather than an ImportError from here

from jax._src import (  # noqa: E402
    api_util,
    compilation_cache,
    config,
    core,
    dispatch,
    pjit,
    sharding_impls,
    source_info_util,
    xla_bridge,
)
from jax._src.interpreters import mlir, pxla  # noqa: E402
from jax._src.lib import _jax, xla_client  # noqa: E402
from jaxlib.mlir import ir  # noqa: E402

_TRUTH = {"true": True, "false": False}
"""Booleans: options of XLA and of libtpu spell them differently as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredFacts:
    """The facts of a `jax.stages.Lowered` about its leaves, flat and in order.

    Attributes:
        argument_names: Pytree path of every argument leaf, dropped ones included.
        argument_avals: The abstract value of every argument leaf, including dropped ones.
        kept: Indices of the arguments that the program reads.
        donated: Whether each argument leaf is donated.
        in_shardings: One per kept argument; not a `jax.sharding.Sharding` if the choice was left open.
        result_names: Pytree path of every output leaf.
        result_avals: The abstract value of every output leaf.
        out_shardings: One per output; not a `jax.sharding.Sharding` if the choice was left open.
        device_count: Devices that the program runs on.
        devices: The devices it was traced on, in partition order.
    """

    argument_names: tuple[str, ...]
    argument_avals: tuple[Any, ...]
    kept: tuple[int, ...]
    donated: tuple[bool, ...]
    in_shardings: tuple[Any, ...]
    result_names: tuple[str, ...]
    result_avals: tuple[Any, ...]
    out_shardings: tuple[Any, ...]
    device_count: int
    devices: tuple[Any, ...]


def read_lowered_facts(lowered: jax.stages.Lowered) -> LoweredFacts:
    """Reads the flat facts of a lowered program."""
    lowering = lowered._lowering
    details = lowering.compile_args
    info = details["all_args_info"]
    donated = [leaf.donated for leaf in jax.tree.leaves(lowered.args_info)]
    names = tuple(info.debug_info.arg_names or [None] * len(info.in_avals))  # of eager operations there are none
    results = tuple(details["global_out_avals"])
    paths = info.debug_info.result_paths
    return LoweredFacts(
        argument_names=tuple(name or f"args[{i}]" for i, name in enumerate(names)),
        argument_avals=tuple(info.in_avals),
        kept=tuple(sorted(details["kept_var_idx"])),
        donated=tuple(donated) if len(donated) == len(names) else (False,) * len(names),
        in_shardings=tuple(details["in_shardings"]),
        result_names=tuple(paths) if paths else tuple(f"result[{i}]" for i in range(len(results))),
        result_avals=results,
        out_shardings=tuple(details["out_shardings"]),
        device_count=int(details["num_devices"]),
        devices=tuple(lowering._device_list or ()),
    )


def make_compile_options(lowered: jax.stages.Lowered, options: Mapping[str, str]) -> bytes:
    """The options with which XLA compiles a lowered program, serialized: debug options and all that JAX adds.

    Their devices are simulated ones, and are replaced by those of the compile.
    """
    lowering = lowered._lowering
    details = lowering.compile_args
    propagate = pxla.get_prop_to_input_output(
        details["in_shardings"], details["out_shardings"], len(details["ordered_effects"])
    )
    stand_ins = jax.devices("cpu")
    assignment = np.empty(int(details["num_devices"]), dtype=object)
    assignment[:] = stand_ins[: assignment.size]
    made = pxla.create_compile_options(
        lowering._hlo, details["tuple_args"], *propagate, stand_ins[0].client, assignment, dict(options)
    )
    return bytes(made.SerializeAsString())


def read_own_options(lowered: jax.stages.Lowered) -> dict[str, str]:
    """The compiler options of the program itself: those of `jax.jit(..., compiler_options=...)`, as text."""
    return format_options(dict(getattr(lowered._lowering, "_compiler_options_kvs", ())))


def find_lowered_platforms(lowered: jax.stages.Lowered) -> tuple[str, ...]:
    """The platforms that a program was lowered for; empty if unknown."""
    return tuple(getattr(lowered._lowering, "_platforms", None) or ())


def format_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Compiler options as the command line writes them."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def make_plain_options() -> bytes:
    """The serialized options of a compile for one device without any request."""
    return bytes(xla_client.CompileOptions().SerializeAsString())


def write_bytecode(lowered: jax.stages.Lowered) -> bytes:
    """A lowered program as MLIR bytecode, with its source places."""
    return write_module_bytecode(lowered._lowering._hlo)


def write_module_bytecode(module: Any) -> bytes:
    """An MLIR module as bytecode, with its source places."""
    return bytes(mlir.module_to_bytecode(module))


def read_module_bytecode(module: bytes) -> Any:
    """An MLIR module, in a context of its own, from the output of `write_bytecode`."""
    with open_mlir_context() as context:
        return ir.Module.parse(module, context)


def has_host_callbacks(lowered: jax.stages.Lowered) -> bool:
    """Returns whether a program lowered for CPU calls Python functions, which exist only in this process."""
    return bool(lowered._lowering.compile_args.get("host_callbacks"))


def compile_for(
    module: Any, devices: Sequence[Any], settings: bytes, options: Mapping[str, Any], *, on_tpu: bool
) -> Any:
    """Compiles a lowered program for devices, independently of the devices it was traced on.

    Args:
        module: From `read_module_bytecode`; for compile-only devices lowered with `lowering_platforms=("tpu",)`.
        devices: One for each partition: compile-only TPU devices, or simulated CPU devices.
        settings: From `make_compile_options`.
        options: XLA compiler options.
        on_tpu: Whether the devices are compile-only TPU devices, whose executables cannot run.

    Returns:
        An XLA executable with `hlo_modules()`, `get_compiled_memory_stats()`, `get_parameter_shardings()` and
        `get_output_shardings()`.

    Raises:
        jax.errors.JaxRuntimeError: The compiler refuses the program or an option.
    """
    made = xla_client.CompileOptions.ParseFromString(settings)
    made.env_option_overrides = [(name, _TRUTH.get(text, text)) for name, text in options.items()]
    made.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id for device in devices]]))
    client, chosen = devices[0].client, pxla._create_device_list(tuple(devices))
    return client.compile(module, chosen, made) if on_tpu else client.compile_and_load(module, chosen, made)


def parse_op_sharding(serialized: bytes) -> Any:
    """Parses an `OpSharding` from its protobuf."""
    made = xla_client.OpSharding()
    made.ParseFromString(serialized)
    return made


@contextmanager
def disable_persistent_cache() -> Iterator[None]:
    """Disables JAX's compilation cache within the block: a program from that cache is not dumped.

    JAX decides once in a process whether it uses its cache, so it is made to decide again before and after.
    """
    compilation_cache.reset_cache()
    try:
        with config.enable_compilation_cache(False):
            yield
    finally:
        compilation_cache.reset_cache()


_caches: dict[Hashable, Any] = {}
"""The places for compiled functions while the devices differ from the process's own, by those devices."""


def separate_caches(devices: Hashable) -> AbstractContextManager[None]:
    """JAX's own context for the place of compiled functions, which is part of the key of every cache.

    One made with `jax.make_user_context` would do, but making it changes the keys of all that the user has compiled.

    Args:
        devices: The visible devices; None for a context with empty caches.
    """
    cache = None if devices is None else _caches.get(devices)
    if cache is None:
        cache = _jax.PjitFunctionCache(capacity=4096)
        if devices is not None:
            _caches[devices] = cache
    context: AbstractContextManager[None] = config.jax_jit_cpp_cache_obj(cache)
    return context


@contextmanager
def replace_in_this_thread(
    holder: Any, name: str, replacement: Callable[..., Any], *, in_all: bool = False
) -> Iterator[None]:
    """Replaces a function in the calling thread; all others keep the original, unless `in_all`.

    The stand-in is harmless if it was imported by name and is called afterwards.
    """
    original, is_own = getattr(holder, name), name in vars(holder)
    owner: int | None = threading.get_ident()

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        mine = owner is not None and (in_all or threading.get_ident() == owner)
        chosen = replacement if mine else original
        return chosen(*args, **kwargs)

    stand_in.__name__ = name
    for attribute in ("cache_clear", "cache_info", "__doc__"):
        if hasattr(original, attribute):
            setattr(stand_in, attribute, getattr(original, attribute))
    setattr(holder, name, stand_in)
    try:
        yield
    finally:
        owner = None
        if is_own:
            setattr(holder, name, original)
        else:
            delattr(holder, name)


def replace_lowering_backend(client: Any) -> AbstractContextManager[None]:
    """Makes `client` the backend that code sees during lowering, although the program is traced on CPU devices.

    Host callbacks and Pallas kernels ask.
    """
    return replace_in_this_thread(mlir.ModuleContext, "get_backend", lambda *_args, **_kwargs: client)


def rename_arguments(rewritten: Callable[[Any], Any | None], *, in_all: bool = False) -> AbstractContextManager[None]:
    """Makes JAX name the arguments of traced programs like those of another tree with the same leaves.

    Args:
        rewritten: Takes the positional and the keyword arguments, a list and a dict, and returns them as they should
            be named, or None to leave them. If it fails, the names are JAX's.
        in_all: As for `replace_in_this_thread`.
    """
    original = api_util._non_static_arg_names

    def names(signature: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *static: Any) -> tuple[str, ...]:
        usual: tuple[str, ...] = original(signature, args, kwargs, *static)
        try:
            arguments = rewritten((list(args), dict(kwargs)))
            found = usual if arguments is None else original(signature, *arguments, *static)
        except Exception:  # of whatever type the library that made the tree chooses
            return usual
        return found if len(found) == len(usual) else usual

    return replace_in_this_thread(api_util, "_non_static_arg_names", names, in_all=in_all)


def convert_op_sharding(op_sharding: Any, mesh: jax.sharding.Mesh) -> jax.sharding.PartitionSpec | None:
    """A compiler-chosen `OpSharding` in the axes of a mesh; None if it does not follow them."""
    sharding = xla_client.HloSharding.from_proto(op_sharding)
    try:
        return sharding_impls.parse_flatten_op_sharding(sharding, mesh)[0]
    except (ValueError, AssertionError, KeyError, IndexError, NotImplementedError):
        return None


def is_tracing() -> bool:
    """True if JAX is tracing a function in this thread, for `jax.jit`, `jax.grad`, `jax.shard_map` or another."""
    return not core.trace_state_clean()


def backends_are_initialised() -> bool:
    """Returns whether JAX has already chosen its devices, so that their number can no longer change."""
    return bool(xla_bridge.backends_are_initialized())


@contextmanager
def open_mlir_context() -> Iterator[Any]:
    """Opens a separate MLIR context that knows the dialects of JAX's lowering, and accepts others."""
    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    with context:
        yield context


def count_scan_values(params: Mapping[str, Any]) -> tuple[int, int]:
    """The numbers of constants and of carried values of a `scan`, which JAX 0.12 and 0.10 record differently."""
    if "num_consts" in params:
        return int(params["num_consts"]), int(params["num_carry"])
    consts, carried, _ = params["ft_in"].unpack()
    return len(list(consts)), len(list(carried))


def find_code_positions(eqn: Any, file: str) -> Iterator[tuple[int, int, int, int]]:
    """The expressions of a file that were being evaluated when JAX recorded an operation, innermost first.

    Yields:
        The first line and column and the last ones, as in Python's `ast`.
    """
    traceback = eqn.source_info.traceback
    for code, at in zip(*traceback.raw_frames(), strict=True) if traceback else ():
        if code.co_filename == file:
            frame = source_info_util.raw_frame_to_frame(code, at)
            yield frame.start_line, frame.start_column, frame.end_line, frame.end_column


def find_mapped_name(shard_map: Any) -> str:
    """The name of the function under a `shard_map`; empty if JAX does not say it."""
    of_function = getattr(getattr(shard_map.params.get("jaxpr"), "debug_info", None), "func_src_info", None)
    return str(of_function or "").partition(" at ")[0]


# ---- the private parts of JAX that recording a script needs: the path of programs, and executables of our own


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


def replace_lowered_programs(
    stand_in: Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], Any],
) -> AbstractContextManager[None]:
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

    return replace_in_this_thread(pjit, "_resolve_and_lower", resolved, in_all=True)


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
