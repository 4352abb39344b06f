"""The stage `Target -> Lowered`: traces a program in the surroundings that it needs, and lowers it to StableHLO.

The surroundings are the requested mesh, the program's own mesh, or that of its arguments.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, NamedTuple

import jax

from hloscope.compiler import client, jax_internals
from hloscope.compiler.edits import ModuleTexts, edit_constraints
from hloscope.compiler.jax_internals import LoweredFacts, replace_in_this_thread
from hloscope.compiler.model import DeviceLayout
from hloscope.errors import HloscopeError, TargetError, TraceError
from hloscope.messages import Option, say
from hloscope.program.arguments import Call, build_call, build_out_shardings, explain_none_arguments
from hloscope.program.change import LeafChange, Resharding
from hloscope.program.devices import bypass_trace_caches, make_mesh
from hloscope.program.handed_out import (
    find_device_chip,
    find_device_layout,
    find_device_slice,
    is_traced_already,
    lower_traced,
)
from hloscope.program.importing import enter_modules_of, format_path, is_library
from hloscope.program.loading import translate_user_errors
from hloscope.program.nnx_names import name_arguments_by_nnx_path
from hloscope.program.own_meshes import (
    check_argument_meshes,
    check_array_meshes,
    find_call_mesh,
    find_reported_mesh,
    list_named_shardings,
    place_call_on_mesh,
)
from hloscope.program.plan import MeshPlan, choose_slice, make_mesh_plan
from hloscope.program.retracing import DoesNotApplyError, build_changed_call, build_resharding_call, replace_sizes
from hloscope.program.several_slices import simulate_hybrid_meshes
from hloscope.program.stand_ins import find_posed_slice, list_pose_notes
from hloscope.program.target import TargetFacts
from hloscope.store import Store
from hloscope.tpu.slices import Slice, find_smallest_slice

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A function that was traced and lowered for a slice, but not compiled yet.

    Attributes:
        name: Its name in messages.
        facts: The options of its call and placement.
        plan: The mesh it was traced under, and the notes made so far.
        module: JAX's lowered program.
        traced: JAX's trace, as `jax.jit(...).trace` or a library's wrapper of it returns it.
        argument_shardings: The sharding that each argument leaf was given.
        seen: The flat facts of the module.
        mesh: The mesh to report.
        slice: The slice to compile it for.
        slice_chosen_by: `user` or `default`.
        strategy: The surroundings in which the trace succeeded.
        edited: The module with other sharding constraints, to compile in place of `module`; None to compile `module`.
        layout: The device of each partition; None to decide it when compiling.
    """

    name: str
    facts: TargetFacts
    plan: MeshPlan
    module: jax.stages.Lowered
    traced: Any
    argument_shardings: Sequence[Any]
    seen: LoweredFacts
    mesh: jax.sharding.Mesh | None
    slice: Slice
    slice_chosen_by: str
    strategy: _Strategy | None = None
    edited: ModuleTexts | None = None
    layout: DeviceLayout | None = None

    @property
    def texts(self) -> ModuleTexts:
        """The module that is compiled."""
        if self.edited is not None:
            return self.edited
        module = self.module
        return ModuleTexts(jax_internals.write_bytecode(module), module.as_text(), module.as_text(debug_info=True))

    @property
    def bytecode(self) -> bytes:
        """The same module as bytecode; no text is made for it."""
        return jax_internals.write_bytecode(self.module) if self.edited is None else self.edited.bytecode


def lower(
    function: Function,
    facts: TargetFacts,
    *,
    name: str,
    plan: MeshPlan | None = None,
    stage: Callable[[str], None] = lambda _: None,
    store: Store | None = None,
) -> Lowered:
    """Traces a function on simulated devices and lowers it for the slice that its options name, or the one that fits.

    Args:
        function: The user's function, plain, jitted, shard_mapped or a factory.
        facts: The options of its call and placement.
        name: Its name in messages.
        plan: The mesh and the slice, if they were already made.
        stage: Called with the name of each step, for a progress display.
        store: The cache that holds the compiler's version, which Pallas kernels ask for.

    Raises:
        TraceError: JAX refuses the program, in JAX's words with the user's line.
        HloscopeError: The input is invalid.
    """
    plan = make_mesh_plan(facts) if plan is None else plan
    stage("tracing")
    strategy: _Strategy | None
    with _watch_default_backend(plan), enter_modules_of(function), simulate_hybrid_meshes():
        made, strategy = _take_traced(function, facts, plan, store) or _try_strategies(
            _Attempt(function, facts, plan, name, store)
        )
    plan.notes.extend(note for note in list_pose_notes() if note not in plan.notes)
    if facts.processes is not None and find_posed_slice() is None:
        plan.notes.append("only a TPU slice can be shared by several processes: on these devices the program sees one")
    seen = jax_internals.read_lowered_facts(made.module)
    mesh = find_reported_mesh(plan, seen)
    plan.notes.extend(check_array_meshes(mesh, list_named_shardings(seen, made.argument_shardings)))
    chosen, chosen_by = choose_slice(plan, mesh, seen.device_count)
    options = {**jax_internals.read_own_options(made.module), **facts.compiler_options}
    return Lowered(
        name=name,
        facts=replace(facts, compiler_options=options),
        plan=plan,
        **made._asdict(),
        seen=seen,
        mesh=mesh,
        slice=chosen,
        slice_chosen_by=chosen_by,
        strategy=strategy,
        layout=None if plan.is_real else find_device_layout(seen.devices),
    )


def lower_changed(function: Function, original: Lowered, change: Resharding, *, store: Store | None = None) -> Lowered:
    """Traces a function again in the surroundings of the first trace, and lowers it with a change.

    Args:
        function: The user's function, as for `lower`.
        original: Its original lowering.
        change: The change.
        store: As for `lower`.

    Raises:
        HloscopeError: The change cannot be made, or JAX refuses the changed program.
    """
    facts = replace_sizes(original.facts, change.sizes)
    plan = replace(original.plan, notes=list(original.plan.notes))
    attempt = _Attempt(function, facts, plan, original.name, store, (original, change))
    with (
        _watch_default_backend(plan),
        enter_modules_of(function),
        simulate_hybrid_meshes(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # what JAX says of changes is no news of the user's program
        made = attempt.made(original.strategy or _STRATEGIES[0])
    if made is None:
        raise DoesNotApplyError("the program's arguments no longer have a mesh")
    seen = jax_internals.read_lowered_facts(made.module)
    if not change.sizes and _list_types(seen) != _list_types(original.seen):
        raise DoesNotApplyError("the program has different arguments or results when traced again")
    named = replace(seen, argument_names=original.seen.argument_names, result_names=original.seen.result_names)
    name = f"{original.name}, changed"
    try:
        edits = edit_constraints(jax_internals.write_bytecode(made.module), change.edits) if change.edits else None
    except Exception as error:  # of whatever type jaxlib chooses
        raise DoesNotApplyError("the change does not fit the program", why=str(error)) from error
    return replace(original, name=name, facts=facts, plan=plan, **made._asdict(), seen=named, edited=edits)


def lower_resharding(original: Lowered, changes: Sequence[LeafChange], *, store: Store | None = None) -> Lowered:
    """Lowers the program that reshards arguments from their present shardings to those of some changes.

    Args:
        original: The program that the arguments belong to.
        changes: The changes of these arguments.
        store: As for `lower`.

    Raises:
        HloscopeError: The changes cannot be made, or JAX refuses the program.
    """
    jitted, leaves = build_resharding_call(original.argument_shardings, original.seen, original.mesh, changes)
    facts = replace(original.facts, args=tuple(leaves), kwargs={}, static={}, out=None, donate=None)
    plan = replace(original.plan, slice=original.slice, notes=[])
    return lower(jitted, facts, name=f"{original.name}, moving arguments", plan=plan, store=store)


def _list_types(seen: LoweredFacts) -> list[tuple[Any, ...]]:
    return [(aval.shape, aval.dtype) for aval in (*seen.argument_avals, *seen.result_avals)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strategy:
    """Surroundings in which a program may be traced.

    Attributes:
        for_mesh: Whether it is for programs with a given mesh, or for those without; None for both.
        without_mesh: Make no mesh current, even if one was given.
        arguments_mesh: Make the mesh of the arguments current.
        open_arguments: Leave the sharding of notations without axes to the function, instead of replicating them.
        notes: The notes for the user if it works.
    """

    for_mesh: bool | None = None
    without_mesh: bool = False
    arguments_mesh: bool = False
    open_arguments: bool = False
    notes: tuple[str, ...] = ()


_OPEN_NOTE = "arguments written without axes get the function's own shardings: it rejects them when replicated"
_OWN_MESH_NOTE = "traced without a current mesh, because the program has its own"
_ARGUMENTS_NOTE = "traced with the mesh of its arguments as the current mesh, as under jax.set_mesh"

_STRATEGIES = (
    _Strategy(),
    _Strategy(for_mesh=True, open_arguments=True, notes=(_OPEN_NOTE,)),
    _Strategy(for_mesh=True, without_mesh=True, notes=(_OWN_MESH_NOTE,)),
    _Strategy(for_mesh=True, without_mesh=True, open_arguments=True, notes=(_OPEN_NOTE, _OWN_MESH_NOTE)),
    _Strategy(for_mesh=False, arguments_mesh=True, notes=(_ARGUMENTS_NOTE,)),
)
"""Tried in this order. A jitted function with its own shardings refuses arguments that are sharded otherwise, a program
that brings its own mesh refuses to see another one, and one written for `jax.set_mesh` wants to see its arguments'."""

_MOST_WRAPPERS = 8

_MESH_CONTEXT_ERROR = re.compile(
    r"context mesh .* should match|requires? a non-empty mesh|mesh context or metadata is required"
    r"|sharding passed to jit does not match|incompatible devices|when only AbstractMesh exists",
    re.IGNORECASE | re.DOTALL,
)
"""JAX's words about the mesh that is or is not current, and about replicated arguments: these are not the program's
own mistakes."""


class _LoweredCall(NamedTuple):
    module: jax.stages.Lowered
    traced: Any
    argument_shardings: list[Any]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Attempts to lower one function in different strategies."""

    function: Function
    facts: TargetFacts
    plan: MeshPlan
    name: str
    store: Store | None
    changed: tuple[Lowered, Resharding] | None = None

    def made(self, strategy: _Strategy) -> _LoweredCall | None:
        """The lowered call of the function; None if the strategy finds no mesh among the arguments.

        Raises:
            HloscopeError: The strategy fails.
        """
        if strategy.arguments_mesh:
            call = self._call(strategy)
            mesh = find_call_mesh(_find_shardings(call))
            if mesh is None:
                return None
            with jax.set_mesh(mesh):
                return self._lowered(place_call_on_mesh(mesh, call))
        current = None if strategy.without_mesh else self.plan.mesh
        with nullcontext() if current is None else jax.set_mesh(current):
            call = self._call(strategy)
            check_argument_meshes(call, current)
            return self._lowered(call)

    def _call(self, strategy: _Strategy) -> Call:
        return build_call(self.function, self.facts, self.plan.mesh, self.name, open_arguments=strategy.open_arguments)

    def _lowered(self, call: Call) -> _LoweredCall:
        plan = self.plan
        if plan.is_real:
            return _trace_and_lower(call, plan.mesh, None, self.changed)
        with use_slice_backend(plan.slice or find_smallest_slice(8), self.store):
            return _trace_and_lower(call, plan.mesh, "tpu", self.changed)

    def working_mode(self) -> str | None:
        """The other axis-types mode, if the program failed in the requested mode but traces in that one."""
        modes = set((self.plan.axis_types or {}).values())
        for mode in ("auto", "explicit") if modes else ():
            if modes == {mode}:
                continue
            mesh = make_mesh(self.facts.mesh, dict.fromkeys(self.facts.mesh, mode))
            with suppress(HloscopeError):
                replace(self, plan=MeshPlan(slice=self.plan.slice, mesh=mesh, axis_types=None)).made(_STRATEGIES[0])
                return mode
        return None


def _take_traced(
    function: Function, facts: TargetFacts, plan: MeshPlan, store: Store | None
) -> tuple[_LoweredCall, None] | None:
    """Takes a program that JAX has already traced or lowered; None for a function."""
    if not is_traced_already(function):
        return None
    with use_slice_backend(plan.slice or find_smallest_slice(8), store):
        module, traced = lower_traced(function, facts, is_for_tpu=not plan.is_real)
    platforms = jax_internals.find_lowered_platforms(module)
    if platforms and not plan.is_real and "tpu" not in platforms:
        plan.notes.append(
            f"the program was lowered for {' and '.join(platforms)}: where it depends on the platform, it has that "
            "one's "
            "branch; for the TPU's, use jit(f).trace(...).lower(lowering_platforms=('tpu',)), or the function itself"
        )
    seen = jax_internals.read_lowered_facts(module)
    if plan.slice is None:
        plan.slice, chip = find_device_slice(seen.devices), find_device_chip(seen.devices)
        if plan.slice is None and chip is not None:
            plan.slice = find_smallest_slice(len(seen.devices), chip.name)
            plan.notes.append(f"its devices do not form a known slice: compiled for {plan.slice.name}")
    return _LoweredCall(module, traced, []), None


def _try_strategies(attempt: _Attempt) -> tuple[_LoweredCall, _Strategy]:
    """The lowered program and the first strategy in which it traces.

    Raises:
        TraceError: JAX refuses the program in each: the error of the first attempt that reached the program's own
            mistake, with the way out if there is one.
    """
    errors: list[TraceError] = []
    for strategy in _STRATEGIES:
        if strategy.for_mesh not in (None, attempt.plan.mesh is not None):
            continue
        try:
            made = attempt.made(strategy)
        except TraceError as error:
            errors.append(error)
        except HloscopeError:
            if not errors:  # what the first attempt did not object to is of the surroundings
                raise
        else:
            if made is not None:
                attempt.plan.notes.extend(strategy.notes)
                return made, strategy
    chosen = next((error for error in errors if not _MESH_CONTEXT_ERROR.search(error.why or "")), errors[0])
    mode, why = attempt.working_mode(), str(chosen.why)
    if mode is not None:
        used = "auto" if mode == "explicit" else "explicit"
        chosen.fix = say("this program traces with ", Option("axis-types", mode), f", but not with {used} mesh axes")
    elif attempt.plan.mesh is None and "mesh" in why and "Mesh('" not in why:  # that one has axes
        chosen.fix = say("add the mesh that the program runs under, for example ", Option("mesh", {"X": 4, "Y": 2}))
    raise chosen


def _find_shardings(call: Call) -> list[Any]:
    """The sharding of each argument leaf; None for a leaf without one."""
    return [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves((call.args, dict(call.kwargs)))]


def use_slice_backend(chosen: Slice, store: Store | None) -> AbstractContextManager[None]:
    """Replaces the backend that code sees during lowering by a stand-in for that of a TPU slice."""
    return jax_internals.replace_lowering_backend(_StandInClient(chosen, store))


class _StandInClient:
    """Stands in for the TPU's client during lowering, so that libtpu need not be loaded here.

    Host callbacks need a handle to the function, which is never called; Pallas kernels ask for libtpu's age.
    """

    platform = "tpu"
    runtime_type = "tpu"

    def __init__(self, chosen: Slice, store: Store | None) -> None:
        self._slice = chosen
        self._store = store

    @property
    def platform_version(self) -> str:
        return client.ask_platform_version(self._slice, self._store)

    def make_python_callback_from_host_send_and_recv(self, *_args: object) -> None:
        """The target of a compiled host callback; a program that is only compiled does not need it."""


def _trace_and_lower(
    call: Call, mesh: jax.sharding.Mesh | None, platform: str | None, changed: tuple[Lowered, Resharding] | None
) -> _LoweredCall:
    """Traces a call without JAX's caches and lowers it to StableHLO.

    A cached trace may be older than the functions that it calls: in a notebook, a cell may have changed since.

    Args:
        call: The call to trace.
        mesh: The mesh that its output shardings name.
        platform: `tpu` to lower for TPU regardless of the simulated devices; None for the process's devices.
        changed: The original lowering, and the change to apply.

    Raises:
        TraceError: JAX refuses the program, in JAX's words with the user's line.
    """
    with (
        explain_none_arguments(call),
        translate_user_errors(f"JAX cannot trace {call.name}"),
        bypass_trace_caches(),
        name_arguments_by_nnx_path(),
    ):
        if changed is None:
            traced = _jit(call, mesh).trace(*call.args, **call.kwargs, **call.static)
        else:
            before, change = changed
            given, results = before.argument_shardings, before.module.out_tree
            jitted, leaves = build_changed_call(call, given, before.seen, results, before.mesh, change)
            traced = jitted.trace(*leaves)
        lowered = traced.lower(lowering_platforms=(platform,)) if platform else traced.lower()
        return _LoweredCall(_unwrap_lowered(lowered, call.name), traced, _find_shardings(call))


def _unwrap_lowered(lowered: Any, name: str) -> jax.stages.Lowered:
    """The `jax.stages.Lowered` behind the wrapper that `flax.nnx.jit` returns.

    Raises:
        TargetError: It is something else, such as an object that has methods of every name.
    """
    inner = lowered
    for _ in range(_MOST_WRAPPERS):
        if isinstance(inner, jax.stages.Lowered):
            return inner
        inner = getattr(inner, "lowered", None)
    raise TargetError(
        f"{name} has methods trace and lower, but is not a jitted function",
        why=f"they return an object of type {type(lowered).__qualname__}",
        fix="pass the function that does the work",
    )


def _jit(call: Call, mesh: jax.sharding.Mesh | None) -> Any:
    """The function under `jax.jit`; one that is already jitted keeps its own shardings and donation."""
    own = hasattr(call.function, "trace")
    if own and call.out is None and call.donate is None:
        return call.function
    options: dict[str, Any] = {"static_argnames": tuple(call.static)} if call.static else {}
    donate = call.donate
    if own and donate is None:
        traced = call.function.trace(*call.args, **call.kwargs, **call.static)  # type: ignore[attr-defined]
        donate = getattr(traced, "donate_argnums", None)
    if donate:
        options["donate_argnums"] = tuple(donate)
    if call.out is not None:
        result = jax.eval_shape(lambda *a, **k: call.function(*a, **k, **call.static), *call.args, **call.kwargs)
        options["out_shardings"] = build_out_shardings(call.out, result, mesh)
    return jax.jit(_copy_function(call.function), **options)


def _copy_function(function: Function) -> Function:
    """A copy of the function, so that the entries in JAX's caches disappear with the copy.

    Every trace is new, so those entries are never used again, but the user's own function stays alive.
    """
    if not isinstance(function, FunctionType):
        return function
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
    made.__dict__.update(function.__dict__)
    return made


@contextmanager
def _watch_default_backend(plan: MeshPlan) -> Iterator[None]:
    """Adds a note for each place in the user's code that calls `jax.default_backend()` within the block.

    If the devices pose as those of a slice, there is nothing to note. Calls through a name that was imported before
    (`from jax import default_backend`) are not seen.
    """
    if plan.is_real or find_posed_slice() is not None:
        yield
        return
    original = jax.default_backend

    def watching() -> str:
        caller = sys._getframe(2)  # beyond the stand-in that calls this
        filename = caller.f_code.co_filename
        backend: str = original()
        note = (
            f"{format_path(filename)}:{caller.f_lineno} calls jax.default_backend() and gets {backend!r}, because the "
            "program is traced on simulated devices: what it does on a TPU may differ"
        )
        if not is_library(filename) and note not in plan.notes:
            plan.notes.append(note)
        return backend

    with replace_in_this_thread(jax, "default_backend", watching):
        yield
