"""A user's function, traced and lowered on simulated devices under a concrete mesh."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from hloscope.errors import HloscopeError, TargetError, TraceError
from hloscope.program import arguments
from hloscope.program.loading import describe, devices_wanted, user_frame
from hloscope.program.own_backend import traced_afresh
from hloscope.program.surroundings import streams_kept
from hloscope.program.target import TargetFacts, attached_facts

Lower = Callable[[Any], jax.stages.Lowered]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
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
) -> Call:
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
    call = Call(
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
    with user_code(f"{name} fails when it is called as a factory"):
        made = function(**facts.static)
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        return made
    return None


@contextlib.contextmanager
def user_code(what: str) -> Iterator[None]:
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


def trace_and_lower(call: Call, mesh: jax.sharding.Mesh | None, platform: str | None) -> tuple[Any, jax.stages.Lowered]:
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
    with user_code(f"JAX cannot trace {call.name}"), traced_afresh():
        jitted = _jitted(call, mesh)
        traced = jitted.trace(*call.args, **call.kwargs, **call.static)
        lowered = traced.lower(lowering_platforms=(platform,)) if platform else traced.lower()
        while not isinstance(lowered, jax.stages.Lowered):  # flax.nnx.jit wraps JAX's own
            lowered = lowered.lowered
        return traced, lowered


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
        options["out_shardings"] = arguments.out_shardings(call.out, result, mesh)
    return jax.jit(call.function, **options)


def other_axis_types(axis_types: Mapping[str, str]) -> list[str]:
    """The modes that a program was not traced in, as `--axis-types` would name them."""
    used = set(axis_types.values())
    return [mode for mode in ("auto", "explicit") if used != {mode}]
