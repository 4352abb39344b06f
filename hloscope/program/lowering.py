"""Lowers a program in the surroundings it needs: the mesh asked for, the program's own, or that of its arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from hloscope.errors import HloscopeError, TraceError
from hloscope.hardware.slices import default_slice
from hloscope.program import devices, jax_internals
from hloscope.program.plan import Plan
from hloscope.program.quiet import captured_stderr
from hloscope.program.several_slices import simulated_hybrid_meshes
from hloscope.program.target import TargetFacts
from hloscope.program.tracing import Call, build_call, other_axis_types, trace_and_lower

Function = Callable[..., Any]


def lower(function: Function, facts: TargetFacts, plan: Plan, name: str) -> jax.stages.Lowered:
    """Traces a function on simulated devices and lowers it for the plan's slice.

    A jitted function with its own shardings refuses arguments that are sharded otherwise, and a program that brings
    its own mesh refuses to see another one; so where the first attempt fails, these are tried before giving up.

    Raises:
        TraceError: JAX refuses the program; the error of the first attempt, with the way out if there is one.
    """
    with simulated_hybrid_meshes():
        try:
            return _attempt(function, facts, plan, name, plan.mesh)
        except TraceError as error:
            lowered = _other_attempts(function, facts, plan, name)
            if lowered is not None:
                return lowered
            raise _with_way_out(error, function, facts, plan, name) from error


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
    client = devices.compile_only_devices(plan.slice or default_slice(8))[0].client
    with jax_internals.lowering_for(client):
        return trace_and_lower(call, plan.mesh, "tpu")[1]


@contextlib.contextmanager
def _current(mesh: jax.sharding.Mesh | None) -> Iterator[None]:
    with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        yield


def _other_attempts(function: Function, facts: TargetFacts, plan: Plan, name: str) -> jax.stages.Lowered | None:
    if plan.mesh is None:
        return _under_the_arguments_mesh(function, facts, plan, name)
    for current, open_arguments in ((plan.mesh, True), (None, False), (None, True)):
        with contextlib.suppress(HloscopeError), captured_stderr():
            lowered = _attempt(function, facts, plan, name, current, open_arguments=open_arguments)
            if open_arguments:
                plan.notes.append(
                    "arguments written without axes are left to the function's shardings: it refuses them replicated"
                )
            if current is None:
                plan.notes.append("traced without the mesh being current, because the program brings its own")
            return lowered
    return None


def _under_the_arguments_mesh(
    function: Function, facts: TargetFacts, plan: Plan, name: str
) -> jax.stages.Lowered | None:
    with contextlib.suppress(HloscopeError), captured_stderr():
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
    elif plan.mesh is None and "mesh" in str(error.why):
        fix = "give the mesh that the program runs under, for example --mesh X=4,Y=2"
    return TraceError(error.what, where=error.where, excerpt=error.excerpt, why=error.why, fix=fix)


def _working_mode(function: Function, facts: TargetFacts, plan: Plan, name: str) -> str | None:
    """The other axis-types mode, if the program that failed in the one asked for traces in it."""
    for mode in other_axis_types(plan.axis_types) if plan.axis_types else []:
        mesh = devices.make_mesh(facts.mesh, dict.fromkeys(facts.mesh, mode))
        with contextlib.suppress(HloscopeError), captured_stderr():
            _attempt(function, facts, Plan(slice=plan.slice, mesh=mesh, axis_types=None), name, mesh)
            return mode
    return None
