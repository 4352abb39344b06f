"""Lowers a program in the surroundings it needs: the mesh asked for, the program's own, or that of its arguments."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

from hloscope.compiler import client, jax_internals
from hloscope.errors import HloscopeError, TraceError
from hloscope.hardware.slices import Slice, default_slice
from hloscope.program import devices
from hloscope.program.importing import modules_of
from hloscope.program.plan import Plan
from hloscope.program.several_slices import simulated_hybrid_meshes
from hloscope.program.target import TargetFacts
from hloscope.program.tracing import Call, build_call, other_axis_types, trace_and_lower
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


def _lower_call(call: Call, plan: Plan) -> jax.stages.Lowered:
    leaves = jax.tree.leaves((call.args, dict(call.kwargs)))
    plan.argument_shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
    if plan.is_real:
        plan.traced, lowered = trace_and_lower(call, plan.mesh, None)
        return lowered
    with jax_internals.lowering_for(_StandInClient(plan.slice or default_slice(8), plan.store)):
        return trace_and_lower(call, plan.mesh, "tpu")[1]


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
    for mode in other_axis_types(plan.axis_types) if plan.axis_types else []:
        mesh = devices.make_mesh(facts.mesh, dict.fromkeys(facts.mesh, mode))
        with contextlib.suppress(HloscopeError):
            _attempt(function, facts, Plan(slice=plan.slice, mesh=mesh, axis_types=None), name, mesh)
            return mode
    return None
