"""The watch on what JAX compiles and calls: each program is lowered for the slice, and only small ones are run.

Every program passes one function of JAX's, including those that a user lowers and compiles explicitly. That function
now returns a computation whose executable is hloscope's: it counts its calls, and either executes the program on
simulated devices or makes up its results. JAX's own shortcut past Python does not accept such executables.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import mmap
import re
import signal
import sys
import threading
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from operator import sub
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from hloscope.base.environment import is_library
from hloscope.base.errors import HloscopeError
from hloscope.base.store import Store
from hloscope.compile import jax_private
from hloscope.compile.arguments import KEY_IMPLEMENTATIONS
from hloscope.compile.compiling import PendingCompile, start_compile
from hloscope.compile.importing import format_path
from hloscope.compile.jaxprs import count_matmul_flops, differs_by_platform, open_jaxpr
from hloscope.compile.lowering import Lowered, name_arguments_by_nnx_path, use_slice_backend
from hloscope.compile.meshes import MeshPlan, find_reported_mesh
from hloscope.compile.notation import find_short_dtype
from hloscope.compile.recording.scripts import RUN_BELOW_BYTES, Limits, SeenEnoughError
from hloscope.compile.recording.writes import WriteLog, writes_guarded
from hloscope.compile.target import TargetFacts
from hloscope.model.capture import Capture, DeviceLayout
from hloscope.model.vocabulary import CompileStage
from hloscope.tpu.slices import Slice, SliceDevice, find_smallest_slice, list_devices, list_shapes

_MAX_HELD = 8
"""The results of executed programs may take this many times the limit of one program before no more are executed."""
_RUN_BELOW_FLOPS = 2e11
"""The work that a simulated device does in some seconds."""
_STOP_AFTER = 3
_MANY = 16
"""Programs other than the most expensive must be called this many times as often before the script is ended."""
_MANY_OF_JAX = 100
"""Operations of JAX itself must be called this many times as often again: scripts make arrays one by one."""
_MAX_VERSIONS = 8
"""Programs of one function that are compiled to learn the sharding of their results; later ones take the first's."""
_COUNTED_BYTES = 1_000_000
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Lets a region be larger than the machine's memory; Python names it from 3.13 on. (Linux: mman-common.h.)"""
_SOURCE = re.compile(r"^(?P<function>.*) at (?P<file>.*):(?P<line>\d+)$")
"""JAX's description of the place of a function that it traced."""
_JAX = str(Path(jax.__file__).parent)


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
    pending: PendingCompile | None = None
    captured: Capture | None = None
    error: Exception | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def function(self) -> tuple[str, str | None]:
        """The identity that the programs of one function share."""
        return self.name, self.place

    def add_options(self, options: Mapping[str, Any]) -> None:
        """Adds the compiler options with which the script compiles the program itself; only those of the first time."""
        given, facts = jax_private.format_options(options), self.lowered.facts
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
        """The result of its compile, which is awaited and explained once.

        Raises:
            HloscopeError: The compiler refuses the program, dies over it or takes too long.
        """
        if self.captured is None:
            assert self.pending is not None
            self.captured = self.pending.capture()
        return self.captured

    @property
    def rough_seconds(self) -> float:
        """Rough seconds of one call: matmuls at the chip's peak, arguments and results read once.

        Good for ranking alone: a call may read a part of an argument only, and communication is not in it.
        """
        chip = self.lowered.slice.chip
        count = self.lowered.seen.device_count
        if chip is None:
            return 0.0
        per_chip = count / chip.devices_per_chip
        return max(self.flops / chip.bf16_flops_per_s, self.boundary_bytes / chip.hbm_bytes_per_s) / per_chip


class Held:
    """The bytes of the real arrays that are alive."""

    def __init__(self) -> None:
        """Starts with none."""
        self._arrays: dict[int, weakref.ref[Any]] = {}
        self.total_bytes = 0

    def add(self, array: Any) -> None:
        """Counts an array of JAX's once, if it is large enough to matter."""
        count = getattr(array, "nbytes", 0)
        if count < _COUNTED_BYTES or id(array) in self._arrays or not isinstance(array, jax.Array):
            return
        local = prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        held = local * len(array.sharding.addressable_devices)
        key = id(array)
        self.total_bytes += held
        self._arrays[key] = weakref.ref(array, lambda _: self._remove(key, held))

    def _remove(self, key: int, held: int) -> None:
        self._arrays.pop(key, None)
        self.total_bytes -= held


class Fakes:
    """The arrays of a recording whose values are not real: made up, or computed from what is."""

    def __init__(self, before_the_first: Callable[[], None] = lambda: None) -> None:
        """Starts with none; `before_the_first` is called before the first is made."""
        self._before_the_first = before_the_first
        self._arrays: dict[int, weakref.ref[Any]] = {}
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._lock = threading.RLock()
        self._making = threading.local()
        self.is_any = False

    def __contains__(self, value: object) -> bool:
        """Whether the values of an array of JAX's, or of NumPy's over the same memory, are not real."""
        if isinstance(value, np.ndarray):
            return self._is_ours(value.__array_interface__["data"][0])
        known = self._arrays.get(id(value))
        if known is not None and known() is value:
            return True
        is_large = self.is_any and isinstance(value, jax.Array) and value.nbytes >= _COUNTED_BYTES
        return is_large and self._is_ours(jax_private.find_first_address(value))

    def _is_ours(self, address: int | None) -> bool:
        """Whether an address lies in the unwritten memory of a faked array, or of a view of it."""
        if address is None:
            return False
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            return at >= 0 and address < self._ends[self._starts[at]]

    def _forget(self, start: int) -> None:
        with self._lock:
            self._starts.remove(start)
            del self._ends[start]

    def are_made_here(self) -> bool:
        """Whether this thread is making a faked array, for which JAX puts zeros on devices."""
        return getattr(self._making, "depth", 0) > 0

    def _begin(self) -> None:
        if not self.is_any:
            self._before_the_first()
            self.is_any = True

    def make_zeros(self, shape: tuple[int, ...], dtype: Any, sharding: jax.sharding.Sharding | None) -> Any:
        """Makes an array of JAX's, or of NumPy's if it has no sharding, of zeros that take no memory."""
        if sharding is None:
            return self._map_zeros(shape, dtype, 1)[0]
        return self.make_array(jax.ShapeDtypeStruct(shape, dtype), sharding, committed=True)

    def mark(self, array: Any) -> None:
        """Marks an array as computed from faked ones."""
        self._begin()
        key = id(array)
        self._arrays[key] = weakref.ref(array, lambda _: self._arrays.pop(key, None))

    def make_array(self, aval: Any, sharding: jax.sharding.Sharding, *, committed: bool) -> Any:
        """Makes an array of zeros that take no memory.

        Args:
            aval: Its shape and type.
            sharding: Its sharding.
            committed: Whether it must stay on its devices.

        Raises:
            HloscopeError: There is not enough address space for it.
        """
        self._begin()
        self._making.depth = getattr(self._making, "depth", 0) + 1
        try:
            is_key = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)
            made = (self._make_keys if is_key else self._make_plain)(aval, sharding, committed=committed)
        finally:
            self._making.depth -= 1
        self.mark(made)
        return made

    def _make_plain(self, aval: Any, sharding: jax.sharding.Sharding, *, committed: bool) -> Any:
        local, devices = sharding.shard_shape(aval.shape), sharding.addressable_devices
        parts = self._map_zeros(local, aval.dtype, len(devices))
        if not committed and len(devices) == 1:
            made = jax.device_put(parts[0], may_alias=True)
        else:
            kind = sharding.memory_kind
            ordered = list(sharding.addressable_devices_indices_map(aval.shape))
            homes = [jax.sharding.SingleDeviceSharding(device, memory_kind=kind) for device in ordered]
            shards = [jax.device_put(part, home, may_alias=True) for part, home in zip(parts, homes, strict=True)]
            made = jax.make_array_from_single_device_arrays(aval.shape, sharding, shards)
            if len(parts) > 1:
                jax_private.set_host_value(made, self._map_zeros(aval.shape, aval.dtype, 1)[0])
        return made

    def _make_keys(self, aval: Any, sharding: jax.sharding.Sharding, *, committed: bool) -> Any:
        """Makes random keys, whose data has another type than the keys."""
        shape = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
        if isinstance(sharding, jax.sharding.NamedSharding):
            spec = [*sharding.spec, *[None] * (len(shape.shape) - len(sharding.spec))]
            sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*spec))
        data = self.make_array(shape, sharding, committed=committed)
        return jax.random.wrap_key_data(data, impl=KEY_IMPLEMENTATIONS.get(str(aval.dtype)))

    def _map_zeros(self, shape: Sequence[int], dtype: Any, count: int) -> list[np.ndarray[Any, Any]]:
        """Makes `count` arrays of zeros over memory that the system backs only once it is written."""
        dtype = np.dtype(dtype)
        part_bytes = -(-prod(shape) * dtype.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
        if not part_bytes:
            return [np.zeros(shape, dtype) for _ in range(count)]
        try:
            region = mmap.mmap(-1, part_bytes * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        except OSError as error:
            raise HloscopeError(
                f"not enough address space for an output of {part_bytes * count:,} bytes that is not computed",
                why=error.strerror,
                fix="raise the limit of virtual memory (ulimit -v)",
            ) from error
        whole = np.frombuffer(region, np.uint8)
        start = whole.__array_interface__["data"][0]
        with self._lock:
            insort(self._starts, start)
            self._ends[start] = start + len(whole)
        weakref.finalize(whole, self._forget, start)
        used = prod(shape) * dtype.itemsize
        return [whole[at : at + used].view(dtype).reshape(shape) for at in range(0, len(whole), part_bytes)]


@dataclass(slots=True, kw_only=True, eq=False)
class Watch:
    """A recording in progress.

    Attributes:
        whole: The whole slice.
        devices: The slice's device that each simulated device stands for, in the order of `jax.devices()`.
        facts: The options that apply to all programs.
        limits: What to execute, and when to end the recording.
        store: The compile cache.
        wanted: The stage of a compile that is enough.
        programs: The programs, in the order of their first calls.
        fakes: The arrays whose values are not real.
        held: The bytes of the arrays whose values are real.
        stopped_by: The program whose calls ended the script.
        missed: What could not be recorded, one sentence each.
        writes: The script's writes, removals and requests that were redirected or not carried out.
    """

    whole: Slice
    devices: Mapping[Any, SliceDevice]
    facts: TargetFacts
    limits: Limits
    store: Store | None
    wanted: CompileStage = CompileStage.COMPILED
    programs: list[Program] = field(default_factory=list)
    fakes: Fakes = field(init=False)
    held: Held = field(default_factory=Held)
    stopped_by: Program | None = None
    missed: list[str] = field(default_factory=list)
    writes: WriteLog | None = None
    _known: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _since_new: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Connects the first fake with the guard of the user's files."""
        self.fakes = Fakes(self._begin_faking)

    def _begin_faking(self) -> None:
        if self.writes is not None:
            self.writes.faking_begins()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches what is compiled in the block, and restores JAX afterwards."""
        with ExitStack() as stack:
            guard = writes_guarded(
                self.fakes.__contains__,
                blank=self.fakes.make_zeros,
                allow_writes=self.limits.allow_writes,
            )
            self.writes = stack.enter_context(guard)
            stack.enter_context(jax_private.disable_persistent_cache())
            stack.enter_context(jax_private.separate_caches(None))
            stack.enter_context(name_arguments_by_nnx_path(in_all=True))
            stack.enter_context(jax_private.replace_lowered_programs(self._resolve))
            stack.enter_context(jax_private.replace_device_puts(self._put))
            yield

    # ---- calls from JAX

    def _resolve(self, original: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Returns hloscope's computation instead of the one that JAX lowers for the simulated devices."""
        for_tpu = {**params, "lowering_platforms": ("tpu",)}
        try:
            with use_slice_backend(self.whole, self.store):
                computation = original(args, **for_tpu)
        except Exception as error:
            elsewhere = self._lower_for_host(original, args, params)
            if elsewhere is None:
                raise error from None
            return elsewhere
        if not self._is_ours(computation):
            return original(args, **params)  # it runs on the host's own CPU
        found = self._known.get(id(computation))
        if found is None:
            try:
                program = self._record(computation, args, params)
            except Exception as error:  # a fault of hloscope must not end the script
                self.missed.append(f"{params.get('name')} could not be recorded: {type(error).__name__}: {error}")
                return original(args, **params)
            ours = copy.copy(computation)
            executable = None

            for_cpu = {**params, "compiler_options_kvs": ()}  # the options are the TPU compiler's

            def compile(compiler_options: Mapping[str, Any] | None = None, **_: Any) -> Any:
                nonlocal executable
                program.add_options(compiler_options or {})
                program.is_compiled = True
                if executable is None:
                    executable = self._make_executable(program, computation, lambda: original(args, **for_cpu))
                return executable

            ours.compile = compile
            found = self._known[id(computation)] = (ours, computation)
        return found[0]

    def _lower_for_host(self, original: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Lowers a program that has no lowering for TPU, for the host's own CPU; None if it does not run there."""
        try:
            computation = original(args, **params)
        except Exception:  # it has none for CPU either: the error of the first attempt is the one to show
            return None
        return None if self._is_ours(computation) else computation

    def _is_ours(self, computation: Any) -> bool:
        devices = jax_private.find_computation_devices(computation)
        return bool(devices) and all(device in self.devices for device in devices)

    def _put(self, arrays: Sequence[Any], aval: Any, home: Any, really: Callable[[], Any]) -> Any:
        """Puts arrays on devices; copies neither faked ones nor, once many real ones are alive, large ones."""
        if isinstance(home, jax.Device):
            home = jax.sharding.SingleDeviceSharding(home)
        if self.fakes.are_made_here() or not isinstance(home, jax.sharding.Sharding):
            return really()
        if not all(device in self.devices for device in home.device_set):
            return really()
        too_many = self._holds_too_much() and sum(getattr(x, "nbytes", 0) for x in arrays) > _COUNTED_BYTES
        if too_many or any(map(self.fakes.__contains__, arrays)):
            return self.fakes.make_array(jax.typeof(arrays[0]) if aval is None else aval, home, committed=True)
        found = really()
        self.held.add(found)
        return found

    def _holds_too_much(self) -> bool:
        most = max(self.limits.run_below_bytes, RUN_BELOW_BYTES) * _MAX_HELD
        return not self.limits.run_all and self.held.total_bytes > most

    # ---- recording a program

    def _record(self, computation: Any, args: Sequence[Any], params: dict[str, Any]) -> Program:
        jaxpr = open_jaxpr(params["jaxpr"])
        in_avals, out_avals = params["jaxpr"].in_avals, params["jaxpr"].out_avals
        module = jax_private.make_lowered(computation, in_avals, params["donated_invars"], len(out_avals))
        place, is_jaxs = find_place(jaxpr.debug_info.func_src_info)
        program = Program(
            name=params["name"],
            place=place,
            is_jaxs=is_jaxs,
            lowered=self._make_lowered(module, jaxpr, params["name"], [arg.sharding for arg in args]),
            arguments=_render_arguments(module, args, in_avals),
            flops=count_matmul_flops(jaxpr),
            boundary_bytes=count_bytes((*in_avals, *out_avals)),
            digest=hashlib.sha256(module.as_text().encode()).hexdigest(),
        )
        program.faked = self._why_not(program)
        program.took_cpu_branch = program.faked is None and differs_by_platform(jaxpr, "cpu")
        self.programs.append(program)
        if not program.is_jaxs or program.boundary_bytes > self.limits.run_below_bytes:
            self._since_new.clear()
        return program

    def _make_lowered(self, module: jax.stages.Lowered, jaxpr: Any, name: str, shardings: list[Any]) -> Lowered:
        seen = jax_private.read_lowered_facts(module)
        chosen, layout = find_sub_slice(seen.devices, self.devices, self.whole)
        plan = MeshPlan(slice=chosen, mesh=None, axis_types=None)
        return Lowered(
            name=name,
            facts=replace(
                self.facts,
                slice=chosen.name,
                compiler_options={**jax_private.read_own_options(module), **self.facts.compiler_options},
            ),
            plan=plan,
            module=module,
            traced=None,
            argument_shardings=shardings,
            seen=seen,
            mesh=find_reported_mesh(plan, seen, jaxpr),
            slice=chosen,
            slice_chosen_by="user",
            layout=layout,
        )

    def _why_not(self, program: Program) -> str | None:
        if self.limits.run_all:
            return None
        if program.boundary_bytes > self.limits.run_below_bytes:
            return "large"
        return "long" if program.flops > _RUN_BELOW_FLOPS else None

    # ---- calling a program

    def _make_executable(self, program: Program, computation: Any, for_cpu: Callable[[], Any]) -> Any:
        """The executable that JAX calls instead of the compiled program."""
        real = None
        if program.faked is None:
            try:
                real = for_cpu().compile()
            except Exception as error:  # of any type: a kernel for TPUs has no other lowering
                program.faked = "kernel"
                program.notes.append(" ".join(str(error).split())[:200])
        if real is None:
            return self._make_faked_executable(program, computation)
        run = real.unsafe_call

        faked = None

        def called(*args: Any) -> Any:
            nonlocal faked
            if self._holds_too_much() and program.boundary_bytes > _COUNTED_BYTES:
                program.faked = "memory"
                faked = faked or self._make_faked_executable(program, computation)
                return faked.unsafe_call(*args)
            self._count(program)
            results = run(*args)
            is_fake = self.fakes.is_any and any(map(self.fakes.__contains__, args))
            for result in results:
                self.fakes.mark(result) if is_fake else self.held.add(result)
            return results

        return jax_private.make_watched_executable(real, called, self._describe(program))

    def _make_faked_executable(self, program: Program, computation: Any) -> Any:
        """The executable that JAX calls instead of a program that is not executed."""
        shardings = self._choose_shardings(program, computation)
        call, said = self._make_faked_call(program, computation), self._describe(program)
        return jax_private.make_faked_executable(computation, shardings, call, said)

    def _make_faked_call(self, program: Program, computation: Any) -> Callable[..., list[Any]]:
        committed = bool(computation.compile_args.get("committed", True))

        def called(shardings: Sequence[Any], args: Sequence[Any]) -> list[Any]:
            self._count(program)
            avals = computation.compile_args["global_out_avals"]
            results = [
                self.fakes.make_array(aval, sharding, committed=committed or len(sharding.device_set) > 1)
                for aval, sharding in zip(avals, shardings, strict=True)
            ]
            for array in jax_private.find_donated_arguments(computation, args, shardings):
                array.delete()
            return results

        return called

    def _count(self, program: Program) -> None:
        """Counts a call, or ends the script once enough is known."""
        limit = self.limits.stop_after
        if limit is None:
            limit = _STOP_AFTER if self.fakes.is_any else 0
        seen = self._since_new.get(id(program), -1)
        dearest = max(self.programs, key=lambda each: (not each.is_jaxs, each.rough_seconds))
        enough = limit * (_MANY * _MANY_OF_JAX if program.is_jaxs else 1 if program is dearest else _MANY)
        if limit and seen >= enough:
            self.stopped_by = program
            if threading.current_thread() is not threading.main_thread():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                raise SystemExit  # it ends a thread silently
            raise SeenEnoughError
        self._since_new[id(program)] = seen + 1
        program.calls += 1

    def begin_compile(self, program: Program) -> None:
        """Starts a program's compile, once."""
        if program.pending is None and program.error is None:
            try:
                program.pending = start_compile(program.lowered, store=self.store, wanted=self.wanted)
            except HloscopeError as error:
                program.error = error

    def _choose_shardings(self, program: Program, computation: Any) -> list[Any]:
        """The shardings of the results of a program that is not executed; the compiler's if JAX leaves them open."""
        asked = list(computation.compile_args["out_shardings"])
        first = self._find_first_of_many(program)
        if first is None:
            self.begin_compile(program)
        if all(map(jax_private.is_decided, asked)):
            return asked
        devices = program.lowered.seen.devices
        if len(devices) == 1:
            return [jax.sharding.SingleDeviceSharding(devices[0])] * len(asked)
        chosen: Sequence[bytes | None] = self._read_shardings(first or program, len(asked)) or [None] * len(asked)
        return [
            one if jax_private.is_decided(one) else self._read_sharding(program, serialized)
            for one, serialized in zip(asked, chosen, strict=True)
        ]

    def _read_sharding(self, program: Program, serialized: bytes | None) -> jax.sharding.Sharding:
        """The compiler's sharding of a result in axes of the program's mesh; replicated if it is unknown."""
        mesh, spec = program.lowered.mesh, None
        if serialized is not None and mesh is not None:
            spec = jax_private.convert_op_sharding(jax_private.parse_op_sharding(serialized), mesh)
        if spec is None:
            note = f"results of {program.name} are replicated here: the sharding that the compiler chose is unknown"
            program.notes.extend({note} - set(program.notes))
        if mesh is None:
            return jax_private.make_replicated_sharding(program.lowered.seen.devices)
        return jax.sharding.NamedSharding(mesh, spec or jax.sharding.PartitionSpec())

    def _find_first_of_many(self, program: Program) -> Program | None:
        """The first program of a function that was compiled many times; None for other functions."""
        versions = [other for other in self.programs if other.function == program.function and other is not program]
        return versions[0] if len(versions) >= _MAX_VERSIONS else None

    def _read_shardings(self, program: Program, count: int) -> Sequence[bytes] | None:
        """The compiler's shardings of `count` results, serialized; None if it gives none."""
        if program.pending is None or len(program.lowered.seen.result_avals) != count:
            return None
        try:
            found = program.capture().compiled.output_shardings
        except HloscopeError as error:
            program.error = error
            return None
        return None if found is None or len(found) < count or not count else found[-count:]

    def _cost(self, program: Program) -> dict[str, float]:
        """XLA's cost analysis of the lowered program, for one device; it counts loops once."""
        count = max(program.lowered.seen.device_count, 1)
        found = program.lowered.module.cost_analysis() or {}
        return {name: value / count for name, value in found.items()}

    def _describe(self, program: Program) -> jax_private.ExecutableFacts:
        """The answers of a compiled program to a script that asks about it: those that it would give on the slice."""

        def compiled() -> Any:
            self.begin_compile(program)
            if program.pending is None:
                raise NotImplementedError
            return program.capture().compiled

        return jax_private.ExecutableFacts(
            text=lambda: compiled().text,
            memory=lambda: SimpleNamespace(**compiled().memory_bytes),
            cost=lambda: self._cost(program),
        )


def _render_arguments(module: jax.stages.Lowered, args: Sequence[Any], avals: Sequence[Any]) -> dict[str, str]:
    names = jax_private.read_lowered_facts(module).argument_names[-len(avals) :] if avals else ()
    rows = zip(names, args, avals, strict=False)
    return {name: render_type(aval, arg.sharding) for name, arg, aval in rows if hasattr(aval, "shape")}


def find_place(source: str | None) -> tuple[str | None, bool]:
    """The place of a function from JAX's `func_src_info`, or of its call if it is part of JAX; and whether it is."""
    found = _SOURCE.match(source or "")
    if found is None or found["file"].startswith(_JAX):
        return _find_calling_line(), True
    return f"{format_path(found['file'])}:{found['line']}", False


def _find_calling_line() -> str | None:
    """The innermost line of the script on the stack."""
    frame = inspect.currentframe()
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else f"{format_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def count_bytes(avals: Iterable[Any]) -> int:
    """Global bytes of arrays."""
    return sum(prod(aval.shape) * getattr(aval.dtype, "itemsize", 4) for aval in avals if hasattr(aval, "shape"))


def render_type(aval: Any, sharding: Any) -> str:
    """Writes a type with its sharding as `jax.typeof` does: `bf16[8@data,2048]`, with a word if it is weak."""
    spec = list(sharding.spec) if isinstance(sharding, jax.sharding.NamedSharding) else []
    spec += [None] * (len(aval.shape) - len(spec))
    axes = ["+".join(map(str, entry if isinstance(entry, tuple) else (entry,))) if entry else "" for entry in spec]
    parts = (f"{size}@{axis}" if axis else str(size) for size, axis in zip(aval.shape, axes, strict=True))
    weak = "weakly typed " if getattr(aval, "weak_type", False) else ""
    return f"{weak}{find_short_dtype(str(aval.dtype)) or aval.dtype}[{','.join(parts)}]"


def explain_recompile(before: Program, after: Program) -> str:
    """Explains why the same function was compiled again."""
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


def find_sub_slice(
    devices: Iterable[Any], known: Mapping[Any, SliceDevice], whole: Slice
) -> tuple[Slice, DeviceLayout]:
    """Finds the slice that some devices of a slice form, and the place of each partition on it.

    Args:
        devices: In partition order.
        known: The slice's device for each simulated one, in the order of `jax.devices()`.
        whole: The whole slice.

    Returns:
        The whole slice if all are used; otherwise the block that they form, in their own order, if there is such a
        slice; otherwise the smallest slice with as many devices, in JAX's order.
    """
    chosen = [known[device] for device in devices]
    position = {device.id: at for at, device in enumerate(known.values())}
    if len(chosen) == whole.device_count:
        return whole, DeviceLayout(device_count=len(chosen), simulated_ids=tuple(position[each.id] for each in chosen))
    assert whole.chip is not None
    low = [min(each.coords[axis] for each in chosen) for axis in range(3)]
    edges = tuple(max(each.coords[axis] for each in chosen) - low[axis] + 1 for axis in range(3))
    shape = next((shape for shape in list_shapes(whole.chip) if (*shape, 1, 1)[:3] == edges), None)
    block = None if shape is None else Slice(chip=whole.chip, shape=shape)
    if block is not None and block.device_count == len(chosen):
        there = {(*each.coords, each.core_on_chip): at for at, each in enumerate(list_devices(block))}
        ids = [there.get((*map(sub, each.coords, low), each.core_on_chip)) for each in chosen]
        if None not in ids:
            return block, DeviceLayout(
                device_count=len(chosen), simulated_ids=tuple(at for at in ids if at is not None)
            )
    return find_smallest_slice(len(chosen), whole.chip.name), DeviceLayout(device_count=len(chosen))
