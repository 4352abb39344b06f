"""The stage `Target -> Lowered`: a program is traced in the surroundings that it needs, and lowered to StableHLO.

The surroundings are the mesh that was asked for, the program's own, or that of its arguments.
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
from hloscope.compiler.edits import ModuleTexts, edited
from hloscope.compiler.jax_internals import LoweredFacts, replaced_in_this_thread
from hloscope.compiler.model import Layout
from hloscope.errors import HloscopeError, TargetError, TraceError
from hloscope.messages import Option, say
from hloscope.program.arguments import Call, build_call, out_shardings, told_of_nothing
from hloscope.program.change import LeafChange, Resharding
from hloscope.program.devices import make_mesh, traced_afresh
from hloscope.program.handed_out import (
    chip_of_devices,
    is_traced_already,
    layout_of_devices,
    lowered_already,
    slice_of_devices,
)
from hloscope.program.importing import is_library, modules_of, shown_path
from hloscope.program.loading import user_code
from hloscope.program.nnx_names import nnx_paths_as_names
from hloscope.program.own_meshes import check_call, check_own_meshes, laid_on, mesh_of_call, named_shardings, users_mesh
from hloscope.program.plan import Plan, choose_slice, make_plan
from hloscope.program.retracing import DoesNotApplyError, changed_call, moving_call, with_sizes
from hloscope.program.several_slices import simulated_hybrid_meshes
from hloscope.program.stand_ins import posed_slice, taken_notes
from hloscope.program.target import TargetFacts
from hloscope.store import Store
from hloscope.tpu.slices import Slice, find_smallest_slice

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A function that is traced and lowered for a slice, and not compiled yet.

    Attributes:
        name: Its name in messages.
        facts: How it is called and placed.
        plan: The mesh it was traced under, and the notes made so far.
        module: What JAX made of it.
        traced: What JAX traced, as `jax.jit(...).trace` or a library's wrapper of it returns it.
        argument_shardings: The sharding that each argument leaf was given.
        seen: The flat facts of the module.
        mesh: The mesh to report.
        slice: What it is to be compiled for.
        slice_chosen_by: `user` or `default`.
        strategy: The surroundings in which it traced.
        edited: The module with other sharding constraints, which is compiled in place of `module`; None for that.
        layout: Which device each partition runs on; None leaves it to the compile.
    """

    name: str
    facts: TargetFacts
    plan: Plan
    module: jax.stages.Lowered
    traced: Any
    argument_shardings: Sequence[Any]
    seen: LoweredFacts
    mesh: jax.sharding.Mesh | None
    slice: Slice
    slice_chosen_by: str
    strategy: _Strategy | None = None
    edited: ModuleTexts | None = None
    layout: Layout | None = None

    @property
    def texts(self) -> ModuleTexts:
        """What is compiled."""
        if self.edited is not None:
            return self.edited
        module = self.module
        return ModuleTexts(jax_internals.bytecode(module), module.as_text(), module.as_text(debug_info=True))

    @property
    def bytecode(self) -> bytes:
        """The same as bytecode, for which no text is made."""
        return jax_internals.bytecode(self.module) if self.edited is None else self.edited.bytecode


def lower(
    function: Function,
    facts: TargetFacts,
    *,
    name: str,
    plan: Plan | None = None,
    stage: Callable[[str], None] = lambda _: None,
    store: Store | None = None,
) -> Lowered:
    """Traces a function on simulated devices and lowers it for the slice that its facts name, or the one that fits.

    Args:
        function: The user's function, plain, jitted, shard_mapped or a factory.
        facts: How to call and place it.
        name: Its name in messages.
        plan: The mesh and the slice, where they are made already.
        stage: Called with what is happening, for a progress display.
        store: Where the compiler's version is kept, which Pallas kernels ask for.

    Raises:
        TraceError: JAX refuses the program, in JAX's words with the user's line.
        HloscopeError: The input is invalid.
    """
    plan = make_plan(facts) if plan is None else plan
    stage("tracing")
    strategy: _Strategy | None
    with _watched_backend(plan), modules_of(function), simulated_hybrid_meshes():
        made, strategy = _handed_out(function, facts, plan, store) or _first_that_works(
            _Attempt(function, facts, plan, name, store)
        )
    plan.notes.extend(note for note in taken_notes() if note not in plan.notes)
    if facts.processes is not None and posed_slice() is None:
        plan.notes.append("only a TPU slice can be shared by several processes: on these devices the program sees one")
    seen = jax_internals.lowered_facts(made.module)
    mesh = users_mesh(plan, seen)
    plan.notes.extend(check_own_meshes(mesh, named_shardings(seen, made.argument_shardings)))
    chosen, chosen_by = choose_slice(plan, mesh, seen.device_count)
    options = {**jax_internals.own_options(made.module), **facts.compiler_options}
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
        layout=None if plan.is_real else layout_of_devices(seen.devices),
    )


def lower_changed(function: Function, original: Lowered, change: Resharding, *, store: Store | None = None) -> Lowered:
    """Traces a function once more, in the surroundings of the first time, and lowers it with a change.

    Args:
        function: The user's function, as for `lower`.
        original: What was lowered of it.
        change: What is to be otherwise.
        store: As for `lower`.

    Raises:
        HloscopeError: The change cannot be made, or JAX refuses the program that comes of it.
    """
    facts = with_sizes(original.facts, change.sizes)
    plan = replace(original.plan, notes=list(original.plan.notes))
    attempt = _Attempt(function, facts, plan, original.name, store, (original, change))
    with (
        _watched_backend(plan),
        modules_of(function),
        simulated_hybrid_meshes(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # what JAX says of changes is no news of the user's program
        made = attempt.made(original.strategy or _STRATEGIES[0])
    if made is None:
        raise DoesNotApplyError("the program's arguments no longer have a mesh")
    seen = jax_internals.lowered_facts(made.module)
    if not change.sizes and _types(seen) != _types(original.seen):
        raise DoesNotApplyError("the program has different arguments or results when traced again")
    named = replace(seen, argument_names=original.seen.argument_names, result_names=original.seen.result_names)
    name = f"{original.name}, changed"
    try:
        edits = edited(jax_internals.bytecode(made.module), change.edits) if change.edits else None
    except Exception as error:  # of whatever type jaxlib chooses
        raise DoesNotApplyError("the change does not fit the program", why=str(error)) from error
    return replace(original, name=name, facts=facts, plan=plan, **made._asdict(), seen=named, edited=edits)


def lower_moving(original: Lowered, changes: Sequence[LeafChange], *, store: Store | None = None) -> Lowered:
    """Lowers the program that brings arguments from where they lie to where changes have them.

    Args:
        original: The program that they are arguments of.
        changes: Of these arguments.
        store: As for `lower`.

    Raises:
        HloscopeError: The changes cannot be made, or JAX refuses the program.
    """
    jitted, leaves = moving_call(original.argument_shardings, original.seen, original.mesh, changes)
    facts = replace(original.facts, args=tuple(leaves), kwargs={}, static={}, out=None, donate=None)
    plan = replace(original.plan, slice=original.slice, notes=[])
    return lower(jitted, facts, name=f"{original.name}, moving arguments", plan=plan, store=store)


def _types(seen: LoweredFacts) -> list[tuple[Any, ...]]:
    return [(aval.shape, aval.dtype) for aval in (*seen.argument_avals, *seen.result_avals)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strategy:
    """Surroundings in which a program may trace.

    Attributes:
        for_mesh: Whether it is for programs with a mesh from outside, or for those without; None for both.
        without_mesh: Make no mesh current, though there is one.
        arguments_mesh: Make the mesh of the arguments current.
        open_arguments: Leave the sharding of notations without axes to the function, instead of replicating them.
        notes: What to say to the user where it works.
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

_OF_SURROUNDINGS = re.compile(
    r"context mesh .* should match|requires? a non-empty mesh|mesh context or metadata is required"
    r"|sharding passed to jit does not match|incompatible devices|when only AbstractMesh exists",
    re.IGNORECASE | re.DOTALL,
)
"""What JAX says of the mesh that was made current, or was not, and of arguments that were replicated: not the program's
own mistakes."""


class _Made(NamedTuple):
    module: jax.stages.Lowered
    traced: Any
    argument_shardings: list[Any]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Lowering one function in one strategy or another."""

    function: Function
    facts: TargetFacts
    plan: Plan
    name: str
    store: Store | None
    changed: tuple[Lowered, Resharding] | None = None

    def made(self, strategy: _Strategy) -> _Made | None:
        """What JAX makes of the function; None where the strategy finds no mesh among the arguments.

        Raises:
            HloscopeError: It fails so.
        """
        if strategy.arguments_mesh:
            call = self._call(strategy)
            mesh = mesh_of_call(_shardings(call))
            if mesh is None:
                return None
            with jax.set_mesh(mesh):
                return self._lowered(laid_on(mesh, call))
        current = None if strategy.without_mesh else self.plan.mesh
        with nullcontext() if current is None else jax.set_mesh(current):
            call = self._call(strategy)
            check_call(call, current)
            return self._lowered(call)

    def _call(self, strategy: _Strategy) -> Call:
        return build_call(self.function, self.facts, self.plan.mesh, self.name, open_arguments=strategy.open_arguments)

    def _lowered(self, call: Call) -> _Made:
        plan = self.plan
        if plan.is_real:
            return _trace_and_lower(call, plan.mesh, None, self.changed)
        with lowering_for_a_slice(plan.slice or find_smallest_slice(8), self.store):
            return _trace_and_lower(call, plan.mesh, "tpu", self.changed)

    def working_mode(self) -> str | None:
        """The other axis-types mode, if the program that failed in the one asked for traces in it."""
        modes = set((self.plan.axis_types or {}).values())
        for mode in ("auto", "explicit") if modes else ():
            if modes == {mode}:
                continue
            mesh = make_mesh(self.facts.mesh, dict.fromkeys(self.facts.mesh, mode))
            with suppress(HloscopeError):
                replace(self, plan=Plan(slice=self.plan.slice, mesh=mesh, axis_types=None)).made(_STRATEGIES[0])
                return mode
        return None


def _handed_out(function: Function, facts: TargetFacts, plan: Plan, store: Store | None) -> tuple[_Made, None] | None:
    """A program that JAX has traced or lowered already; None where it is a function."""
    if not is_traced_already(function):
        return None
    with lowering_for_a_slice(plan.slice or find_smallest_slice(8), store):
        module, traced = lowered_already(function, facts, is_for_tpu=not plan.is_real)
    platforms = jax_internals.lowered_platforms(module)
    if platforms and not plan.is_real and "tpu" not in platforms:
        plan.notes.append(
            f"the program was lowered for {' and '.join(platforms)}: where it depends on the platform, it has that "
            "one's "
            "branch; for the TPU's, use jit(f).trace(...).lower(lowering_platforms=('tpu',)), or the function itself"
        )
    seen = jax_internals.lowered_facts(module)
    if plan.slice is None:
        plan.slice, chip = slice_of_devices(seen.devices), chip_of_devices(seen.devices)
        if plan.slice is None and chip is not None:
            plan.slice = find_smallest_slice(len(seen.devices), chip.name)
            plan.notes.append(f"its devices do not form a known slice: compiled for {plan.slice.name}")
    return _Made(module, traced, []), None


def _first_that_works(attempt: _Attempt) -> tuple[_Made, _Strategy]:
    """The program, lowered by the first strategy that it traces in, and that strategy.

    Raises:
        TraceError: JAX refuses the program in each: the error of the first attempt that got as far as the program's own
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
    chosen = next((error for error in errors if not _OF_SURROUNDINGS.search(error.why or "")), errors[0])
    mode, why = attempt.working_mode(), str(chosen.why)
    if mode is not None:
        used = "auto" if mode == "explicit" else "explicit"
        chosen.fix = say("this program traces with ", Option("axis-types", mode), f", but not with {used} mesh axes")
    elif attempt.plan.mesh is None and "mesh" in why and "Mesh('" not in why:  # that one has axes
        chosen.fix = say("add the mesh that the program runs under, for example ", Option("mesh", {"X": 4, "Y": 2}))
    raise chosen


def _shardings(call: Call) -> list[Any]:
    """The sharding of each argument leaf; None for what has none."""
    return [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves((call.args, dict(call.kwargs)))]


def lowering_for_a_slice(chosen: Slice, store: Store | None) -> AbstractContextManager[None]:
    """Lets what asks for the backend while it is lowered have a stand-in for that of a TPU slice."""
    return jax_internals.lowering_for(_StandInClient(chosen, store))


class _StandInClient:
    """Stands in for the TPU's client while a program is lowered, so that libtpu need not be loaded here.

    Host callbacks want a handle to the function, which is never called; Pallas kernels ask how old libtpu is.
    """

    platform = "tpu"
    runtime_type = "tpu"

    def __init__(self, chosen: Slice, store: Store | None) -> None:
        self._slice = chosen
        self._store = store

    @property
    def platform_version(self) -> str:
        return client.platform_version(self._slice, self._store)

    def make_python_callback_from_host_send_and_recv(self, *_args: object) -> None:
        """What a host callback is compiled into; nothing that is only compiled needs it."""


def _trace_and_lower(
    call: Call, mesh: jax.sharding.Mesh | None, platform: str | None, changed: tuple[Lowered, Resharding] | None
) -> _Made:
    """Traces a call afresh and lowers it to StableHLO.

    A trace that JAX kept may be older than what the function calls: in a notebook a cell was changed since.

    Args:
        call: What to trace.
        mesh: The mesh that its output shardings name.
        platform: `tpu` to lower for TPU whatever devices are simulated; None for the devices at hand.
        changed: What was lowered before, and what is to be otherwise now.

    Raises:
        TraceError: JAX refuses the program, in JAX's words with the user's line.
    """
    with told_of_nothing(call), user_code(f"JAX cannot trace {call.name}"), traced_afresh(), nnx_paths_as_names():
        if changed is None:
            traced = _jitted(call, mesh).trace(*call.args, **call.kwargs, **call.static)
        else:
            before, change = changed
            given, results = before.argument_shardings, before.module.out_tree
            jitted, leaves = changed_call(call, given, before.seen, results, before.mesh, change)
            traced = jitted.trace(*leaves)
        lowered = traced.lower(lowering_platforms=(platform,)) if platform else traced.lower()
        return _Made(_of_jaxs_own(lowered, call.name), traced, _shardings(call))


def _of_jaxs_own(lowered: Any, name: str) -> jax.stages.Lowered:
    """What JAX lowered, of which `flax.nnx.jit` gives a wrapper.

    Raises:
        TargetError: It is something else, as of an object that has methods of every name.
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


def _jitted(call: Call, mesh: jax.sharding.Mesh | None) -> Any:
    """The function under `jax.jit`; one that is jitted already keeps its own shardings and donation."""
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
        options["out_shardings"] = out_shardings(call.out, result, mesh)
    return jax.jit(_copied(call.function), **options)


def _copied(function: Function) -> Function:
    """A function that is another object than the user's, for JAX's caches: what they keep of it goes when it does.

    Every trace is afresh, so none of that is ever used again, and the user's own function lives on.
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
def _watched_backend(plan: Plan) -> Iterator[None]:
    """Adds a note for each place of the user's code that calls `jax.default_backend()` meanwhile.

    Where the devices pose as those of a slice, there is nothing to note. Calls through a name that was imported before
    (`from jax import default_backend`) are not seen.
    """
    if plan.is_real or posed_slice() is not None:
        yield
        return
    original = jax.default_backend

    def watching() -> str:
        caller = sys._getframe(2)  # beyond the stand-in that calls this
        filename = caller.f_code.co_filename
        backend: str = original()
        note = (
            f"{shown_path(filename)}:{caller.f_lineno} calls jax.default_backend() and gets {backend!r}, because the "
            "program is traced on simulated devices: what it does on a TPU may differ"
        )
        if not is_library(filename) and note not in plan.notes:
            plan.notes.append(note)
        return backend

    with replaced_in_this_thread(jax, "default_backend", watching):
        yield
