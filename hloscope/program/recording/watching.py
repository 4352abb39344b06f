"""The watch on what JAX compiles and calls: each program is lowered for the slice, and only small ones are run.

One function of JAX's lies on the way of all of them, those that a user lowers and compiles himself included. What it
returns is a computation whose executable is hloscope's: it counts its calls, and executes the program on simulated
devices or makes up its results. JAX's own shortcut past Python does not take such executables.
"""

from __future__ import annotations

import copy
import hashlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import jax

from hloscope.compiler import jax_internals, jax_watching
from hloscope.errors import HloscopeError
from hloscope.program.compiling import start_compile
from hloscope.program.jaxprs import differs_by_platform, matmul_flops, mesh_in, opened
from hloscope.program.lowering import Lowered, lowering_for_a_slice
from hloscope.program.nnx_names import nnx_paths_as_names
from hloscope.program.own_meshes import users_mesh
from hloscope.program.plan import Plan
from hloscope.program.recording.fakes import COUNTED_BYTES, Fakes, Held
from hloscope.program.recording.programs import Program, bytes_of, place_of, sub_slice, type_of
from hloscope.program.recording.writes import WriteLog, writes_guarded
from hloscope.program.target import TargetFacts
from hloscope.store import Store
from hloscope.tpu.devices import SliceDevice
from hloscope.tpu.slices import Slice

RUN_BELOW_BYTES = 64_000_000
_MOST_HELD = 8
"""How many times as many bytes the results of executed programs may take together before no more are executed."""
RUN_BELOW_FLOPS = 2e11
"""What a simulated device computes in some seconds."""
STOP_AFTER = 3
_MANY = 16
"""How many times as often a program that is not the dearest must be called before the script is ended."""
_MOST_VERSIONS = 8
"""So many programs of one function are compiled for where their results lie; those of later ones lie as the first's."""
_EAGER = 100
"""How many times as often an operation of JAX's own must be called: scripts make arrays one by one."""


class SeenEnoughError(BaseException):
    """Ends a script whose programs are all known; not an `Exception`, which a script may catch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What to execute, and when to end a recording.

    Attributes:
        run_below_bytes: Execute programs with fewer bytes of arguments and results than this.
        run_all: Execute every program that can run on simulated devices.
        stop_after: Number of calls of the most expensive program, without a new compile in between, after which the
            script ends; 0 for no limit. None means 3, once a program has not been executed.
        allow_writes: Whether the script may write and remove files even though values are not real.
    """

    run_below_bytes: int = RUN_BELOW_BYTES
    run_all: bool = False
    stop_after: int | None = None
    allow_writes: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Watch:
    """A recording in progress.

    Attributes:
        whole: The whole slice.
        devices: The slice's device that each simulated device stands for, in the order of `jax.devices()`.
        facts: The options that apply to all programs.
        limits: What to execute, and when to end the recording.
        store: The compile cache.
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
    programs: list[Program] = field(default_factory=list)
    fakes: Fakes = field(init=False)
    held: Held = field(default_factory=Held)
    stopped_by: Program | None = None
    missed: list[str] = field(default_factory=list)
    writes: WriteLog | None = None
    _known: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _since_new: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """The first fake is told to the guard of what is written."""
        self.fakes = Fakes(self._begin_faking)

    def _begin_faking(self) -> None:
        if self.writes is not None:
            self.writes.faking_begins()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notices what is compiled meanwhile; JAX is afterwards as before."""
        with ExitStack() as stack:
            guard = writes_guarded(
                lambda: self.fakes.is_any,
                self.fakes.__contains__,
                blank=self.fakes.zeros,
                allow_writes=self.limits.allow_writes,
            )
            self.writes = stack.enter_context(guard)
            stack.enter_context(jax_internals.no_persistent_cache())
            stack.enter_context(jax_internals.kept_apart(None))
            stack.enter_context(nnx_paths_as_names(in_all=True))
            stack.enter_context(jax_watching.resolving_as(self._resolved))
            stack.enter_context(jax_watching.putting_as(self._put))
            yield

    # ---- what JAX asks for

    def _resolved(self, original: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]) -> Any:
        """In place of the computation that JAX has lowered for the simulated devices, ours."""
        for_tpu = {**params, "lowering_platforms": ("tpu",)}
        try:
            with lowering_for_a_slice(self.whole, self.store):
                computation = original(args, **for_tpu)
        except Exception as error:
            elsewhere = self._elsewhere(original, args, params)
            if elsewhere is None:
                raise error from None
            return elsewhere
        if not self._is_ours(computation):
            return original(args, **params)  # of the host's own CPU
        found = self._known.get(id(computation))
        if found is None:
            try:
                program = self._noted(computation, args, params)
            except Exception as error:  # it is ours, and not for the script to fail over
                self.missed.append(f"{params.get('name')} could not be recorded: {type(error).__name__}: {error}")
                return original(args, **params)
            ours = copy.copy(computation)
            executable = None

            for_cpu = {**params, "compiler_options_kvs": ()}  # they are the TPU compiler's

            def compile(compiler_options: Mapping[str, Any] | None = None, **_: Any) -> Any:
                nonlocal executable
                program.add_options(compiler_options or {})
                program.is_compiled = True
                if executable is None:
                    executable = self._executable(program, computation, lambda: original(args, **for_cpu))
                return executable

            ours.compile = compile
            found = self._known[id(computation)] = (ours, computation)
        return found[0]

    def _elsewhere(self, original: Callable[..., Any], args: Sequence[Any], params: dict[str, Any]) -> Any:
        """A program that has no lowering for TPU, where it runs on the host's own CPU; None where it does not."""
        try:
            computation = original(args, **params)
        except Exception:  # neither has it one for CPU: JAX's words on the first attempt are the ones to show
            return None
        return None if self._is_ours(computation) else computation

    def _is_ours(self, computation: Any) -> bool:
        devices = jax_watching.devices_of(computation)
        return bool(devices) and all(device in self.devices for device in devices)

    def _put(self, arrays: Sequence[Any], aval: Any, home: Any, really: Callable[[], Any]) -> Any:
        """Arrays elsewhere; of faked ones, and of large ones where too many are real already, nothing is copied."""
        if isinstance(home, jax.Device):
            home = jax.sharding.SingleDeviceSharding(home)
        if self.fakes.are_made_here() or not isinstance(home, jax.sharding.Sharding):
            return really()
        if not all(device in self.devices for device in home.device_set):
            return really()
        too_many = self._holds_too_much() and sum(getattr(x, "nbytes", 0) for x in arrays) > COUNTED_BYTES
        if too_many or any(map(self.fakes.__contains__, arrays)):
            return self.fakes.array(jax.typeof(arrays[0]) if aval is None else aval, home, committed=True)
        found = really()
        self.held.add(found)
        return found

    def _holds_too_much(self) -> bool:
        most = max(self.limits.run_below_bytes, RUN_BELOW_BYTES) * _MOST_HELD
        return not self.limits.run_all and self.held.total_bytes > most

    # ---- what is noted of a program

    def _noted(self, computation: Any, args: Sequence[Any], params: dict[str, Any]) -> Program:
        jaxpr = opened(params["jaxpr"])
        in_avals, out_avals = params["jaxpr"].in_avals, params["jaxpr"].out_avals
        module = jax_watching.lowered_of(computation, in_avals, params["donated_invars"], len(out_avals))
        place, is_jaxs = place_of(jaxpr.debug_info.func_src_info)
        program = Program(
            name=params["name"],
            place=place,
            is_jaxs=is_jaxs,
            lowered=self._lowered(module, jaxpr, params["name"], [arg.sharding for arg in args]),
            arguments=_arguments(module, args, in_avals),
            flops=matmul_flops(jaxpr),
            boundary_bytes=bytes_of((*in_avals, *out_avals)),
            digest=hashlib.sha256(module.as_text().encode()).hexdigest(),
        )
        program.faked = self._why_not(program)
        program.took_cpu_branch = program.faked is None and differs_by_platform(jaxpr, "cpu")
        self.programs.append(program)
        if not program.is_jaxs or program.boundary_bytes > self.limits.run_below_bytes:
            self._since_new.clear()
        return program

    def _lowered(self, module: jax.stages.Lowered, jaxpr: Any, name: str, shardings: list[Any]) -> Lowered:
        seen = jax_internals.lowered_facts(module)
        chosen, layout = sub_slice(seen.devices, self.devices, self.whole)
        plan = Plan(slice=chosen, mesh=None, axis_types=None)
        return Lowered(
            name=name,
            facts=replace(
                self.facts,
                slice=chosen.name,
                compiler_options={**jax_internals.own_options(module), **self.facts.compiler_options},
            ),
            plan=plan,
            module=module,
            traced=None,
            argument_shardings=shardings,
            seen=seen,
            mesh=users_mesh(plan, seen) or mesh_in(jaxpr, seen.devices),
            slice=chosen,
            slice_chosen_by="user",
            layout=layout,
        )

    def _why_not(self, program: Program) -> str | None:
        if self.limits.run_all:
            return None
        if program.boundary_bytes > self.limits.run_below_bytes:
            return "large"
        return "long" if program.flops > RUN_BELOW_FLOPS else None

    # ---- what is done when it is called

    def _executable(self, program: Program, computation: Any, for_cpu: Callable[[], Any]) -> Any:
        """What JAX calls in place of the compiled program."""
        real = None
        if program.faked is None:
            try:
                real = for_cpu().compile()
            except Exception as error:  # of whatever type; a kernel for TPUs has no lowering for anything else
                program.faked = "kernel"
                program.notes.append(" ".join(str(error).split())[:200])
        if real is None:
            return self._faked_executable(program, computation)
        run = real.unsafe_call

        faked = None

        def called(*args: Any) -> Any:
            nonlocal faked
            if self._holds_too_much() and program.boundary_bytes > COUNTED_BYTES:
                program.faked = "memory"
                faked = faked or self._faked_executable(program, computation)
                return faked.unsafe_call(*args)
            self._count(program)
            results = run(*args)
            is_fake = self.fakes.is_any and any(map(self.fakes.__contains__, args))
            for result in results:
                self.fakes.mark(result) if is_fake else self.held.add(result)
            return results

        return jax_watching.watched_executable(real, called, self._said(program))

    def _faked_executable(self, program: Program, computation: Any) -> Any:
        """What JAX calls in place of a program that is not executed."""
        shardings = self._output_shardings(program, computation)
        call, said = self._faked_call(program, computation), self._said(program)
        return jax_watching.faked_executable(computation, shardings, call, said)

    def _faked_call(self, program: Program, computation: Any) -> Callable[..., list[Any]]:
        committed = bool(computation.compile_args.get("committed", True))

        def called(shardings: Sequence[Any], args: Sequence[Any]) -> list[Any]:
            self._count(program)
            avals = computation.compile_args["global_out_avals"]
            results = [
                self.fakes.array(aval, sharding, committed=committed or len(sharding.device_set) > 1)
                for aval, sharding in zip(avals, shardings, strict=True)
            ]
            for array in jax_watching.donated_to_results(computation, args, shardings):
                array.delete()
            return results

        return called

    def _count(self, program: Program) -> None:
        """Notes a call, or ends the script where enough is known."""
        limit = self.limits.stop_after
        if limit is None:
            limit = STOP_AFTER if self.fakes.is_any else 0
        seen = self._since_new.get(id(program), -1)
        dearest = max(self.programs, key=lambda each: (not each.is_jaxs, each.rough_seconds))
        enough = limit * (_MANY * _EAGER if program.is_jaxs else 1 if program is dearest else _MANY)
        if limit and seen >= enough:
            self.stopped_by = program
            if threading.current_thread() is not threading.main_thread():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                raise SystemExit  # which ends a thread without a word
            raise SeenEnoughError
        self._since_new[id(program)] = seen + 1
        program.calls += 1

    def begin_compile(self, program: Program) -> None:
        """Has a program's compile begun, once."""
        if program.pending is None and program.error is None:
            try:
                program.pending = start_compile(program.lowered, store=self.store)
            except HloscopeError as error:
                program.error = error

    def _output_shardings(self, program: Program, computation: Any) -> list[Any]:
        """How the results of a program that is not executed lie; where JAX leaves that open, as the compiler says."""
        asked = list(computation.compile_args["out_shardings"])
        first = self._first_of_many(program)
        if first is None:
            self.begin_compile(program)
        if all(map(jax_watching.is_decided, asked)):
            return asked
        devices = program.lowered.seen.devices
        if len(devices) == 1:
            return [jax.sharding.SingleDeviceSharding(devices[0])] * len(asked)
        chosen: Sequence[bytes | None] = self._compiled_shardings(first or program, len(asked)) or [None] * len(asked)
        return [
            one if jax_watching.is_decided(one) else self._as_compiled(program, serialized)
            for one, serialized in zip(asked, chosen, strict=True)
        ]

    def _as_compiled(self, program: Program, serialized: bytes | None) -> jax.sharding.Sharding:
        """The sharding that the compiler chose for a result, in axes of the program's mesh; else copies."""
        mesh, spec = program.lowered.mesh, None
        if serialized is not None and mesh is not None:
            spec = jax_internals.partition_spec(jax_internals.op_sharding(serialized), mesh)
        if spec is None:
            note = f"results of {program.name} are replicated here: the sharding that the compiler chose is unknown"
            program.notes.extend({note} - set(program.notes))
        if mesh is None:
            return jax_watching.replicated_over(program.lowered.seen.devices)
        return jax.sharding.NamedSharding(mesh, spec or jax.sharding.PartitionSpec())

    def _first_of_many(self, program: Program) -> Program | None:
        """The first program of a function that is compiled again and again; None where it is not."""
        versions = [other for other in self.programs if other.function == program.function and other is not program]
        return versions[0] if len(versions) >= _MOST_VERSIONS else None

    def _compiled_shardings(self, program: Program, count: int) -> Sequence[bytes] | None:
        """The compiler's for so many results, serialized; None where it gives none."""
        if program.pending is None or len(program.lowered.seen.result_avals) != count:
            return None
        try:
            found = program.capture().compiled.output_shardings
        except HloscopeError as error:
            program.error = error
            return None
        return None if found is None or len(found) < count or not count else found[-count:]

    def _cost(self, program: Program) -> dict[str, float]:
        """XLA's count for one device of what the program does as it was lowered; loops count once there."""
        count = max(program.lowered.seen.device_count, 1)
        found = program.lowered.module.cost_analysis() or {}
        return {name: value / count for name, value in found.items()}

    def _said(self, program: Program) -> jax_watching.Said:
        """What a compiled program says of itself when a script asks: what it would on the slice."""

        def compiled() -> Any:
            self.begin_compile(program)
            if program.pending is None:
                raise NotImplementedError
            return program.capture().compiled

        return jax_watching.Said(
            text=lambda: compiled().text,
            memory=lambda: SimpleNamespace(**compiled().memory_bytes),
            cost=lambda: self._cost(program),
        )


def _arguments(module: jax.stages.Lowered, args: Sequence[Any], avals: Sequence[Any]) -> dict[str, str]:
    names = jax_internals.lowered_facts(module).argument_names[-len(avals) :] if avals else ()
    rows = zip(names, args, avals, strict=False)
    return {name: type_of(aval, arg.sharding) for name, arg, aval in rows if hasattr(aval, "shape")}
