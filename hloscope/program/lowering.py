"""Traces and lowers a program in the surroundings it needs: the mesh asked for, its own, or that of its arguments."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from hloscope.compiler import client, jax_internals
from hloscope.compiler.jax_internals import replaced_in_this_thread
from hloscope.errors import HloscopeError, TargetError, TraceError
from hloscope.hardware.slices import Slice, default_slice
from hloscope.program import arguments, devices
from hloscope.program.importing import is_library, modules_of
from hloscope.program.loading import describe, devices_wanted, shown_path, user_frame
from hloscope.program.own_backend import traced_afresh
from hloscope.program.plan import Plan
from hloscope.program.several_slices import simulated_hybrid_meshes
from hloscope.program.surroundings import streams_kept
from hloscope.program.target import TargetFacts, attached_facts
from hloscope.store import Store

Function = Callable[..., Any]

_OF_SURROUNDINGS = re.compile(
    r"context mesh .* should match|requires? a non-empty mesh|mesh context or metadata is required"
    r"|sharding passed to jit does not match|incompatible devices",
    re.IGNORECASE | re.DOTALL,
)
"""What JAX says of the mesh that was made current, or was not, and of arguments that were replicated: not the program's
own mistakes."""


def lower(
    function: Function, facts: TargetFacts, plan: Plan, name: str, store: Store | None = None
) -> jax.stages.Lowered:
    """Traces a function on simulated devices and lowers it for the plan's slice.

    A jitted function with its own shardings refuses arguments that are sharded otherwise, and a program that brings
    its own mesh refuses to see another one; so where the first attempt fails, these are tried before giving up.

    Raises:
        TraceError: JAX refuses the program: the error of the first attempt that got as far as the program's own
            mistake, with the way out if there is one.
    """
    plan.store = store
    with modules_of(function), simulated_hybrid_meshes():
        try:
            return _attempt(function, facts, plan, name, plan.mesh)
        except TraceError as error:
            errors = [error]
            lowered = _other_attempts(function, facts, plan, name, errors)
            if lowered is not None:
                return lowered
            chosen = next((one for one in errors if not _OF_SURROUNDINGS.search(one.why or "")), error)
            raise _with_way_out(chosen, function, facts, plan, name) from chosen


def _attempt(
    function: Function,
    facts: TargetFacts,
    plan: Plan,
    name: str,
    current: jax.sharding.Mesh | None,
    *,
    open_arguments: bool = False,
) -> jax.stages.Lowered:
    with _current(current):
        call = build_call(function, facts, plan.mesh, name, open_arguments=open_arguments)
        return _lower_call(call, plan)


def _lower_call(call: _Call, plan: Plan) -> jax.stages.Lowered:
    leaves = jax.tree.leaves((call.args, dict(call.kwargs)))
    plan.argument_shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
    if plan.is_real:
        plan.traced, lowered = _trace_and_lower(call, plan.mesh, None)
        return lowered
    with jax_internals.lowering_for(_StandInClient(plan.slice or default_slice(8), plan.store)):
        return _trace_and_lower(call, plan.mesh, "tpu")[1]


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


@contextlib.contextmanager
def _current(mesh: jax.sharding.Mesh | None) -> Iterator[None]:
    with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        yield


def _other_attempts(
    function: Function, facts: TargetFacts, plan: Plan, name: str, errors: list[TraceError]
) -> jax.stages.Lowered | None:
    """The program, lowered in other surroundings; None where it fails in each, whose `errors` are added."""
    if plan.mesh is None:
        return _under_the_arguments_mesh(function, facts, plan, name, errors)
    for current, open_arguments in ((plan.mesh, True), (None, False), (None, True)):
        with _failures_kept(errors):
            lowered = _attempt(function, facts, plan, name, current, open_arguments=open_arguments)
            if open_arguments:
                plan.notes.append(
                    "arguments written without axes are left to the function's shardings: it refuses them replicated"
                )
            if current is None:
                plan.notes.append("traced without the mesh being current, because the program brings its own")
            return lowered
    return None


@contextlib.contextmanager
def _failures_kept(errors: list[TraceError]) -> Iterator[None]:
    try:
        yield
    except TraceError as error:
        errors.append(error)
    except HloscopeError:
        return  # the first attempt will say what is wrong


def _under_the_arguments_mesh(
    function: Function, facts: TargetFacts, plan: Plan, name: str, errors: list[TraceError]
) -> jax.stages.Lowered | None:
    with _failures_kept(errors):
        call = build_call(function, facts, None, name)
        leaves = jax.tree.leaves((call.args, dict(call.kwargs)))
        meshes = (getattr(getattr(leaf, "sharding", None), "mesh", None) for leaf in leaves)
        mesh = next((mesh for mesh in meshes if isinstance(mesh, jax.sharding.Mesh) and mesh.size > 1), None)
        if mesh is not None:
            with _current(mesh):
                lowered = _lower_call(call, plan)
            plan.notes.append("traced with the mesh of its arguments current, as jax.set_mesh would make it")
            return lowered
    return None


def _with_way_out(error: TraceError, function: Function, facts: TargetFacts, plan: Plan, name: str) -> TraceError:
    fix = error.fix
    mode = _working_mode(function, facts, plan, name)
    if mode is not None:
        used = "auto" if mode == "explicit" else "explicit"
        fix = f"this program traces with --axis-types {mode}, and not with {used} mesh axes"
    elif plan.mesh is None and "mesh" in str(error.why) and "Mesh('" not in str(error.why):  # that one has axes
        fix = "give the mesh that the program runs under, for example --mesh X=4,Y=2"
    return TraceError(error.what, where=error.where, excerpt=error.excerpt, why=error.why, fix=fix)


def _working_mode(function: Function, facts: TargetFacts, plan: Plan, name: str) -> str | None:
    """The other axis-types mode, if the program that failed in the one asked for traces in it."""
    for mode in _other_axis_types(plan.axis_types) if plan.axis_types else []:
        mesh = devices.make_mesh(facts.mesh, dict.fromkeys(facts.mesh, mode))
        with contextlib.suppress(HloscopeError):
            _attempt(function, facts, Plan(slice=plan.slice, mesh=mesh, axis_types=None), name, mesh)
            return mode
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A function with everything it is called with.

    Attributes:
        function: What the user wrote; it may be jitted already.
        name: Its name in messages.
        args: Positional arguments as pytrees of abstract or real arrays.
        kwargs: Array arguments by keyword.
        static: Python values by keyword.
        donate: Donated positions; None leaves it to the function.
        out: Output shardings as the user wrote them; None leaves all of them open.
    """

    function: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    static: Mapping[str, Any]
    donate: tuple[int, ...] | None
    out: Any


def build_call(
    function: Callable[..., Any],
    facts: TargetFacts,
    mesh: jax.sharding.Mesh | None,
    name: str,
    *,
    open_arguments: bool = False,
) -> _Call:
    """Puts a function and its arguments together; a factory is called for both.

    A factory takes no required arguments and returns `(callable, args)`; facts attached to that callable count too.

    Args:
        function: The user's function or factory.
        facts: How to call it.
        mesh: The mesh that notations name.
        name: The function's name in messages.
        open_arguments: Leave the sharding of notations without axes to the function, instead of replicating them.

    Raises:
        HloscopeError: An argument is missing, surplus or written wrongly, or the factory fails.
    """
    if facts.args is None and not facts.kwargs and not arguments.required_parameters(function):
        made = _from_factory(function, facts, name)
        if made is not None:
            function, args = made
            facts = facts.over(attached_facts(function))
            facts = TargetFacts(args=args, out=facts.out, donate=facts.donate, dims=facts.dims)
    abstract = partial(arguments.abstract_tree, mesh=mesh, dims=facts.dims, open_arguments=open_arguments)
    args = abstract(() if facts.args is None else facts.args)
    call = _Call(
        function=function,
        name=name,
        args=tuple(args) if isinstance(args, tuple | list) else (args,),
        kwargs={key: abstract(value) for key, value in facts.kwargs.items()},
        static=facts.static,
        donate=facts.donate,
        out=facts.out,
    )
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise TargetError(
            f"{name} is an async function, which JAX cannot trace", fix="name the function that it awaits"
        )
    for key in call.static.keys() & call.kwargs.keys():
        raise TargetError(f"{key} is given twice", why="both --arg and --static name it", fix="keep one of them")
    arguments.check_call(call.function, call.args, {**call.kwargs, **call.static}, name)
    return call


def _from_factory(function: Callable[..., Any], facts: TargetFacts, name: str) -> tuple[Callable[..., Any], Any] | None:
    if hasattr(function, "trace"):
        return None
    with _user_code(f"{name} fails when it is called as a factory"):
        made = function(**facts.static)
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        return made
    return None


@contextlib.contextmanager
def _user_code(what: str) -> Iterator[None]:
    """Runs the user's code: its exceptions become one clear message with its line.

    Raises:
        TraceError: In place of whatever the code raised.
    """
    try:
        with streams_kept():
            yield
    except HloscopeError:
        raise
    except (Exception, SystemExit) as error:
        if miscounted := devices_wanted(error):
            raise miscounted from error
        where, excerpt = user_frame(error.__traceback__)
        raise TraceError(what, where=where, excerpt=excerpt, why=describe(error)) from error


def _trace_and_lower(
    call: _Call, mesh: jax.sharding.Mesh | None, platform: str | None
) -> tuple[Any, jax.stages.Lowered]:
    """Traces a call afresh and lowers it to StableHLO.

    A trace that JAX kept may be older than what the function calls: in a notebook a cell was changed since.

    Args:
        call: What to trace.
        mesh: The mesh that its output shardings name.
        platform: `tpu` to lower for TPU whatever devices are simulated; None for the devices at hand.

    Returns:
        The traced program, which `jax.stages.Traced` or a library's wrapper of it is, and the lowered one.

    Raises:
        TraceError: JAX refuses the program, in JAX's words with the user's line.
    """
    with _user_code(f"JAX cannot trace {call.name}"), traced_afresh():
        jitted = _jitted(call, mesh)
        traced = jitted.trace(*call.args, **call.kwargs, **call.static)
        lowered = traced.lower(lowering_platforms=(platform,)) if platform else traced.lower()
        while not isinstance(lowered, jax.stages.Lowered):  # flax.nnx.jit wraps JAX's own
            lowered = lowered.lowered
        return traced, lowered


def _jitted(call: _Call, mesh: jax.sharding.Mesh | None) -> Any:
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
        options["out_shardings"] = arguments.out_shardings(call.out, result, mesh)
    return jax.jit(call.function, **options)


def _other_axis_types(axis_types: Mapping[str, str]) -> list[str]:
    """The modes that a program was not traced in, as `--axis-types` would name them."""
    used = set(axis_types.values())
    return [mode for mode in ("auto", "explicit") if used != {mode}]


@contextmanager
def watched_backend(notes: list[str]) -> Iterator[None]:
    """Adds a note for each place of the user's code that calls `jax.default_backend()` meanwhile.

    Calls through a name that was imported before (`from jax import default_backend`) are not seen.
    """
    original = jax.default_backend

    def watching() -> str:
        caller = sys._getframe(2)  # beyond the stand-in that calls this
        filename = caller.f_code.co_filename
        backend: str = original()
        note = (
            f"{shown_path(filename)}:{caller.f_lineno} asks jax.default_backend() and sees {backend!r}, because the "
            "program is traced on simulated devices: what it does on a TPU may differ"
        )
        if not is_library(filename) and note not in notes:
            notes.append(note)
        return backend

    with replaced_in_this_thread(jax, "default_backend", watching):
        yield
