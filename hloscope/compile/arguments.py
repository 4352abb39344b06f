"""Abstract, sharded JAX values made from notations, and the call made of them: nothing is ever materialised."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from hloscope.base.calls import refuse
from hloscope.base.errors import (
    HloscopeError,
    MeshError,
    NotationError,
    Option,
    TargetError,
    TraceError,
    did_you_mean,
    placeholder,
    say,
)
from hloscope.base.units import pluralize
from hloscope.compile.devices import find_axis_sizes
from hloscope.compile.loading import make_user_code_error, translate_user_errors
from hloscope.compile.notation import ArraySpec, parse_array, parse_partition_spec
from hloscope.compile.target import TargetFacts, find_attached_facts

KEY_IMPLEMENTATIONS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}


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
    """Combines a function and its arguments into a call; a factory is called for both.

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
    if facts.args is None and not facts.kwargs and not find_required_parameters(function):
        made = _call_factory(function, facts, name)
        if made is not None:
            function, args = made
            facts = facts.over(find_attached_facts(function))
            facts = TargetFacts(args=args, out=facts.out, donate=facts.donate, dims=facts.dims)
    abstract = partial(make_abstract_tree, mesh=mesh, dims=facts.dims, open_arguments=open_arguments)
    args = abstract(() if facts.args is None else facts.args, what="args")
    call = Call(
        function=function,
        name=name,
        args=tuple(args) if isinstance(args, tuple | list) else (args,),
        kwargs={key: abstract(value, what=f"kwargs[{key!r}]") for key, value in facts.kwargs.items()},
        static=facts.static,
        donate=facts.donate,
        out=facts.out,
    )
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise TargetError(
            f"{name} is an async function, which JAX cannot trace", fix="name the function that it awaits"
        )
    for key in call.static.keys() & call.kwargs.keys():
        raise TargetError(
            f"{key} is given twice",
            why=say("both ", Option("arg"), " and ", Option("static"), " set it"),
            fix="keep one of them",
        )
    _check_call(call.function, call.args, {**call.kwargs, **call.static}, name)
    check_donated(call.donate, call.args)
    return call


def check_donated(donate: Sequence[int] | None, args: Sequence[Any]) -> None:
    """Refuses donated positions that have no argument.

    Raises:
        TargetError: A position has no argument.
    """
    beyond = next((position for position in donate or () if position >= len(args)), None)
    if beyond is not None:
        count = f"{'is' if len(args) == 1 else 'are'} {pluralize(len(args), 'positional argument')}"
        raise TargetError(
            f"donate names position {beyond}, but there {count}",
            why="positions are counted from 0",
            fix=f"use {' or '.join(map(str, range(len(args))))}" if args else "leave it out",
        )


def _call_factory(function: Callable[..., Any], facts: TargetFacts, name: str) -> tuple[Callable[..., Any], Any] | None:
    if hasattr(function, "trace"):
        return None
    with translate_user_errors(f"{name} fails when it is called as a factory"):
        made = function(**facts.static)
    return made if isinstance(made, tuple) and len(made) == 2 and callable(made[0]) else None


def make_abstract_tree(
    value: Any,
    mesh: jax.sharding.Mesh | None,
    dims: Mapping[str, int],
    *,
    open_arguments: bool = False,
    what: str = "args",
) -> Any:
    """Turns a pytree of notations into one of `jax.ShapeDtypeStruct`s sharded over `mesh`.

    Args:
        value: A notation such as `bf16[8@X,2048@Y]`, a nest of dict, list and tuple of notations, a ShapeDtypeStruct or
            array (kept as it is), or a callable without arguments that returns one of these.
        mesh: The mesh whose axes the notations name; None allows unsharded notations only.
        dims: Sizes of letters.
        open_arguments: Leave notations without axes unsharded, for the function to decide, instead of replicated.
        what: What the user calls the value, for messages.

    Raises:
        NotationError: A notation is written wrongly.
        MeshError: A notation names an axis that is not in the mesh, or a dimension does not divide.
    """

    def abstract(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, _NOT_ARRAYS):
            refuse(f"{what}{jax.tree_util.keystr(path)}", "an array or its type", leaf, '"bf16[8@X,2048]"')
        if callable(leaf):
            try:
                made = leaf()
            except HloscopeError:
                raise
            except Exception as error:
                raise make_user_code_error(error, "the function that makes the arguments fails") from error
            return make_abstract_tree(made, mesh, dims, open_arguments=open_arguments, what=what)
        if not isinstance(leaf, str):
            return leaf
        spec = parse_array(leaf, dims)
        dtype = _find_dtype(spec, leaf)
        sharding = None if open_arguments and not any(spec.spec) else _make_sharding(spec, leaf, mesh)
        return jax.ShapeDtypeStruct(spec.dimensions, dtype, sharding=sharding, weak_type=spec.weak_type)

    return abstract((), value) if callable(value) else jax.tree_util.tree_map_with_path(abstract, value)


_NOT_ARRAYS = (bytes, bytearray, jax.sharding.PartitionSpec, jax.sharding.Sharding, jax.sharding.Mesh)
"""Types that are neither arrays nor values that a function could be traced with."""


def _find_dtype(spec: ArraySpec, text: str) -> Any:
    if spec.dtype in KEY_IMPLEMENTATIONS:
        return jax.eval_shape(lambda: jax.random.key(0, impl=KEY_IMPLEMENTATIONS[spec.dtype])).dtype
    if spec.dtype.startswith("key<"):
        raise NotationError(
            f"{text} names a type of random keys that JAX does not have", fix=f"use {' or '.join(KEY_IMPLEMENTATIONS)}"
        )
    dtype = jnp.dtype(spec.dtype)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise NotationError(
            f"{text} needs JAX's 64-bit mode",
            why=f"without it JAX turns {dtype.name} into {jax.dtypes.canonicalize_dtype(dtype).name}",
            fix="set JAX_ENABLE_X64=1, or use a narrower type",
        )
    return dtype


def _make_sharding(spec: ArraySpec, text: str, mesh: jax.sharding.Mesh | None) -> jax.sharding.Sharding | None:
    if mesh is None:
        if any(spec.spec):
            named = dict.fromkeys(axis for entry in spec.spec for axis in entry or ())
            example = {axis: 2 if turn else 4 for turn, axis in enumerate(named)}
            fix = say("add a mesh, for example ", Option("mesh", example))
            raise MeshError(f"{text} names mesh axes, but there is no mesh", fix=fix)
        return None
    sizes = find_axis_sizes(mesh)
    for position, (size, axes) in enumerate(zip(spec.dimensions, spec.spec, strict=True)):
        for axis in axes or ():
            _check_axis_in_mesh(axis, sizes, text)
        _check_even(size, axes or (), sizes, f"dimension {position} of {text}", "arguments", "")
    if spec.unreduced_kind is not None:
        raise NotationError(f"{text} cannot be an argument", why="in an argument's type only sums can be unreduced")
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    for axis in (*spec.unreduced, *spec.reduced):
        _check_axis_in_mesh(axis, sizes, text)
        if kinds[axis] is not jax.sharding.AxisType.Explicit:
            state = "unreduced" if axis in spec.unreduced else "reduced"
            raise MeshError(
                f"{text} is {state} over the axis {axis!r}, which is not explicit",
                why="JAX tracks this in types for explicit axes only",
                fix=say("make the axis explicit: ", Option("axis-types", f"{axis}=explicit")),
            )
    reductions = {"unreduced": set(spec.unreduced), "reduced": set(spec.reduced)}
    partition = jax.sharding.PartitionSpec(*spec.spec, **reductions)
    memory_kind = "pinned_host" if spec.memory_space == "host" else None
    return jax.sharding.NamedSharding(mesh, partition, memory_kind=memory_kind)


def _check_even(size: int, axes: Sequence[str], sizes: Mapping[str, int], what: str, of: str, other: str) -> None:
    """Checks that a dimension can be divided over mesh axes."""
    ways = prod(sizes[axis] for axis in axes)
    if size % ways:
        over = axes[0] if len(axes) == 1 else f"({','.join(axes)})"
        raise MeshError(
            f"{what} cannot be sharded over {over}",
            why=f"{size} is not a multiple of {ways}: JAX refuses uneven shardings of {of}",
            fix=f"use a multiple of {ways}, or shard another dimension{other}",
        )


def _check_axis_in_mesh(axis: str, sizes: Mapping[str, int], text: str) -> None:
    if axis not in sizes:
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise MeshError(
            f"{text} names the axis {axis!r}, which is not in the mesh",
            why=f"the mesh has {shown}",
            fix=say("use one of its axes, or change ", Option("mesh")),
        )


def build_out_shardings(out: Any, result: Any, mesh: jax.sharding.Mesh | None) -> Any:
    """Output shardings for `jax.jit`, in the structure of the result.

    Args:
        out: Specs in the order of the result's leaves, as `P(…)` texts or PartitionSpecs or shardings; None entries are
            the compiler's choice.
        result: The pytree of abstract results.
        mesh: The mesh whose axes they name.

    Raises:
        NotationError: There are more or fewer specs than output leaves.
        MeshError: There is no mesh, a spec names an axis that the mesh lacks, or an output cannot be split that way.
    """
    leaves, structure = jax.tree.flatten(result)
    names = [f"result{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(result)]
    asked = jax.tree.leaves(out, is_leaf=lambda x: x is None or isinstance(x, jax.sharding.PartitionSpec))
    if len(asked) != len(leaves):
        shown = ", ".join(f"{name} {jax.typeof(leaf)}" for name, leaf in zip(names[:6], leaves, strict=False))
        raise NotationError(
            f"{pluralize(len(asked), 'output sharding')} given for {pluralize(len(leaves), 'output array')}",
            why=f"the program returns {shown}{', …' * (len(leaves) > 6)}",
            fix="write one for each output array, in this order, or None where the compiler may choose",
        )
    rows = zip(asked, leaves, names, strict=True)
    return jax.tree.unflatten(structure, [_build_out_sharding(*row, mesh) for row in rows])


def _build_out_sharding(asked: Any, leaf: Any, name: str, mesh: jax.sharding.Mesh | None) -> Any:
    if asked is None or isinstance(asked, jax.sharding.Sharding):
        return asked
    spec = jax.sharding.PartitionSpec(*parse_partition_spec(asked)) if isinstance(asked, str) else asked
    if not isinstance(spec, jax.sharding.PartitionSpec | tuple):
        refuse("out", "an output's sharding or a list of them", asked, """out="P('X', None)\"""")
    if mesh is None:
        raise MeshError(
            f"the output sharding {asked} needs a mesh",
            fix=say("add one, for example ", Option("mesh", {"X": 4, "Y": 2})),
        )
    sizes = find_axis_sizes(mesh)
    axes = [[str(axis) for axis in ((entry,) if isinstance(entry, str) else entry or ())] for entry in spec]
    for axis in chain.from_iterable(axes):
        _check_axis_in_mesh(axis, sizes, str(asked))
    if len(axes) > leaf.ndim:
        raise MeshError(
            f"the output sharding {asked} has {len(axes)} entries, but {name} has {pluralize(leaf.ndim, 'dimension')}",
            why=f"{name} is {jax.typeof(leaf)}",
            fix="write one entry for each dimension, or fewer: dimensions left out are not sharded",
        )
    for position, (size, over) in enumerate(zip(leaf.shape, axes, strict=False)):
        what = f"dimension {position} of {name}, {jax.typeof(leaf)},"
        _check_even(size, over, sizes, what, "outputs", f" than {asked} does")
    return jax.sharding.NamedSharding(mesh, spec)


def _check_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> None:
    """Checks argument counts and names before JAX does, in the terms of hloscope's options.

    Raises:
        TargetError: The function cannot be called with these arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    parameters = signature.parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = next((key for key in kwargs if key not in parameters and not takes_any), None)
    if unknown is not None:
        has = f"it has {', '.join(parameters)}" if parameters else "it has no parameters"
        fix = did_you_mean(unknown, parameters, has, most=2)
        raise TargetError(f"{name}{signature} has no parameter {unknown!r}", fix=fix)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join([f"{len(args)} positional", *kwargs])
        raise TargetError(
            f"{name}{signature} cannot be called with these arguments ({given})",
            why=str(error),
            fix=say(
                "pass each array as ",
                Option("arg", ("bf16[8@X,2048]",)),
                " or ",
                Option("arg", {"name": "f32[16]"}),
                ", in order, and each Python value as ",
                Option("static", {"name": placeholder("value")}),
                "; or put them in @hloscope.target(args=(…))",
            ),
        ) from error


def find_required_parameters(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that every call must pass."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variadic]


def find_argument_letters(facts: TargetFacts, count: int) -> tuple[tuple[str | None, ...] | None, ...]:
    """The letter of each dimension of each argument leaf, None for a dimension that is a number.

    Args:
        facts: How the function is called.
        count: Argument leaves of the program.

    Returns:
        One entry per leaf, None for a leaf without a notation; all None if only calling the user's code once more
        would show which leaf is which.
    """
    leaves = jax.tree.leaves((() if facts.args is None or callable(facts.args) else facts.args, dict(facts.kwargs)))
    if len(leaves) != count:
        return (None,) * count
    return tuple(parse_array(leaf, facts.dims).letters or None if isinstance(leaf, str) else None for leaf in leaves)


@contextmanager
def explain_none_arguments(call: Call) -> Iterator[None]:
    """Adds the names of the arguments that are None to the error of a program that cannot be traced.

    Raises:
        TraceError: The original error, with these names.
    """
    try:
        yield
    except TraceError as error:
        empty = [f"args[{place}]" for place, value in enumerate(call.args) if value is None]
        if empty and error.fix is None:
            be = "is" if len(empty) == 1 else "are"
            error.fix = f"{' and '.join(empty)} {be} None: pass an array or its type there, if {call.name} needs one"
        raise
