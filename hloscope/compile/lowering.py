"""The stage `Target -> Lowered`: traces a program in the surroundings that it needs, and lowers it to StableHLO.

The surroundings are the requested mesh, the program's own mesh, or that of its arguments.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import update_wrapper
from types import FunctionType
from typing import Any, NamedTuple

import jax

from hloscope.base.environment import is_library
from hloscope.base.errors import HloscopeError, Message, Option, TargetError, TraceError, say
from hloscope.base.store import Store
from hloscope.compile import client, jax_private
from hloscope.compile.arguments import Call, build_call, build_out_shardings, explain_none_arguments
from hloscope.compile.devices import bypass_trace_caches, make_mesh
from hloscope.compile.edits import edit_constraints
from hloscope.compile.importing import enter_modules_of, format_path
from hloscope.compile.jax_private import LoweredFacts, rename_arguments, replace_in_this_thread
from hloscope.compile.jax_targets import (
    find_device_chip,
    find_device_layout,
    find_device_slice,
    is_traced_already,
    lower_traced,
)
from hloscope.compile.jaxprs import find_jaxpr
from hloscope.compile.loading import translate_user_errors
from hloscope.compile.meshes import (
    MeshPlan,
    check_argument_meshes,
    check_array_meshes,
    choose_slice,
    find_call_mesh,
    find_reported_mesh,
    list_named_shardings,
    make_mesh_plan,
    place_call_on_mesh,
)
from hloscope.compile.multislice import simulate_hybrid_meshes
from hloscope.compile.sharding_change import DoesNotApplyError, LeafChange, Resharding, SizeChange
from hloscope.compile.simulated_slice import find_posed_slice, list_pose_notes
from hloscope.compile.target import TargetFacts
from hloscope.model.capture import DeviceLayout, ValueSharding
from hloscope.tpu.slices import Slice, find_smallest_slice

# ---- A second trace of a program with other shardings of its arguments and results, by their flat positions

_NUMBER = re.compile(r"(?<![\w*@(])\d+(?![\w*])")
"""A size written as a number, outside of products and names."""


def build_changed_call(call: Call, original: Lowered, change: Resharding) -> tuple[Any, list[Any]]:
    """Builds the function to jit for a changed call, with its leaves.

    The function is unwrapped from its own `jax.jit`, whose shardings would contradict the new ones; donated arguments
    stay donated, and results keep the requested shardings.

    Args:
        call: The call.
        original: The program without the change.
        change: The change; its constraints are not applied here.

    Returns:
        A jitted function of flat arguments, and these.

    Raises:
        DoesNotApplyError: The program's leaves are not those of the change.
    """
    leaves, structure = jax.tree.flatten((call.args, dict(call.kwargs)))
    seen, mesh = original.seen, original.mesh
    if not len(leaves) == len(seen.argument_avals) == len(original.argument_shardings):
        raise DoesNotApplyError("the program's arguments do not match the leaves of its pytrees")
    into = _apply_changes(_find_shardings(original), change.arguments, mesh)
    out_of = _apply_changes(seen.out_shardings, change.results, mesh)
    function, static = _unwrap_jit(call.function), dict(call.static)

    def flat(*flat_leaves: Any) -> Any:
        args, kwargs = jax.tree.unflatten(structure, flat_leaves)
        return function(*args, **kwargs, **static)

    flat.__name__ = flat.__qualname__ = getattr(function, "__name__", "flat")
    donated = tuple(index for index, gone in enumerate(seen.donated) if gone)
    jitted = jax.jit(flat, donate_argnums=donated, out_shardings=jax.tree.unflatten(original.module.out_tree, out_of))
    return jitted, [_make_abstract(leaf, sharding) for leaf, sharding in zip(leaves, into, strict=True)]


def _reshard(array: Any, sharding: Any) -> Any:
    """Reshards an array whose type includes its sharding; any other array is returned unchanged."""
    kinds = set(sharding.mesh.axis_types) if isinstance(sharding, jax.sharding.NamedSharding) else set()
    return jax.sharding.reshard(array, sharding) if jax.sharding.AxisType.Explicit in kinds else array


def _find_shardings(program: Lowered) -> list[Any]:
    """The sharding of each argument leaf: the program's own, or otherwise the given one."""
    seen = program.seen
    own = {at: sharding for at, sharding in zip(seen.kept, seen.in_shardings, strict=True) if _is_sharding(sharding)}
    return [own.get(index, sharding) for index, sharding in enumerate(program.argument_shardings)]


def _unwrap_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside `jax.jit`; `jax.shard_map` and decorators that compute something are kept."""
    while hasattr(function, "trace") and hasattr(function, "lower") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _apply_changes(before: Iterable[Any], changes: Sequence[LeafChange], mesh: jax.sharding.Mesh | None) -> list[Any]:
    after = {change.index: change.after for change in changes}
    found = [sharding if _is_sharding(sharding) else None for sharding in before]
    for index, spec in after.items():
        if index >= len(found):
            raise DoesNotApplyError("the program has fewer leaves than the change")
        found[index] = None if spec is None else _make_sharding(found[index], spec, mesh)
    return found


def _is_sharding(sharding: Any) -> bool:
    return isinstance(sharding, jax.sharding.Sharding)


def _make_sharding(before: Any, spec: ValueSharding, mesh: jax.sharding.Mesh | None) -> jax.sharding.NamedSharding:
    if isinstance(before, jax.sharding.NamedSharding):
        if before.spec.unreduced or before.spec.reduced:
            raise DoesNotApplyError("the change would lose which axes a value is unreduced or reduced over")
        mesh = before.mesh
    if mesh is None:
        raise DoesNotApplyError("there is no mesh to shard over")
    memory_kind = getattr(before, "memory_kind", None)
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec), memory_kind=memory_kind)


def _make_abstract(leaf: Any, sharding: Any) -> Any:
    """A leaf with its sharding; Python numbers are kept."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return leaf
    options = {"weak_type": True} if getattr(leaf, "weak_type", False) else {}
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, **options)


def replace_sizes(facts: TargetFacts, sizes: Sequence[SizeChange]) -> TargetFacts:
    """The facts with other sizes for letters or numbers of the notation.

    Raises:
        DoesNotApplyError: The arguments are defined by code alone.
    """
    if not sizes:
        return facts
    if (facts.args is None and not facts.kwargs) or callable(facts.args):
        raise DoesNotApplyError("the arguments are made by code, not written in the notation")
    letters = {change.name: change.after for change in sizes if change.name in facts.dims}
    numbers = {change.name: str(change.after) for change in sizes if change.name not in letters}

    def resized(leaf: Any) -> Any:
        if not isinstance(leaf, str):
            return leaf
        kind, bracket, rest = leaf.partition("[")
        return kind + bracket + _NUMBER.sub(lambda match: numbers.get(match[0], match[0]), rest)

    args, kwargs = jax.tree.map(resized, (facts.args, dict(facts.kwargs)))
    return replace(facts, dims={**facts.dims, **letters}, args=args, kwargs=kwargs)


# ---- arrays of Flax NNX modules, named by their path in the module
#
# `flax.nnx.jit` hands JAX the arrays of a module as one flat list, so that JAX calls them `model.states[0][6]`. The
# graph that comes with the list gives their paths: `model.blocks[0].up.kernel`.


def name_arguments_by_nnx_path(*, in_all: bool = False) -> AbstractContextManager[None]:
    """Makes JAX name traced arguments that are arrays of NNX modules by their paths.

    If Flax splits a module in a way that is unknown here, the names are JAX's.

    Args:
        in_all: In every thread, not only in the calling one.
    """
    return rename_arguments(_replace_lists_by_modules, in_all=in_all)


def _replace_lists_by_modules(tree: Any) -> Any | None:
    """The tree with modules in place of Flax's flat lists; None without such a list."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return None

    def is_split(node: object) -> bool:
        return isinstance(node, nnx.NodeStates)

    nodes, structure = jax.tree.flatten(tree, is_leaf=is_split)
    if not any(map(is_split, nodes)):
        return None
    return jax.tree.unflatten(structure, _rename_nodes(nnx, nodes))


class _LeafMarker:
    """A stand-in for an array."""


def _rename_nodes(nnx: Any, nodes: Sequence[Any]) -> list[Any]:
    """The nodes, with modules in place of the split ones and their leaves in the same order."""
    split = {at: jax.tree.flatten(node) for at, node in enumerate(nodes) if isinstance(node, nnx.NodeStates)}
    stand_ins = {at: [_LeafMarker() for _ in leaves] for at, (leaves, _) in split.items()}
    paths = _find_paths(nnx, [structure.unflatten(stand_ins[at]) for at, (_, structure) in split.items()])
    return [
        _Module([paths[leaf] for leaf in stand_ins[at]], split[at][0]) if at in split else node
        for at, node in enumerate(nodes)
    ]


def _find_paths(nnx: Any, split: Sequence[Any]) -> dict[_LeafMarker, str]:
    """The path of each stand-in in its module: the first one of several."""
    modules = nnx.from_tree(
        tuple(split), merge_fn=lambda context, _, __, node: context.unflatten(node.graphdef, *node.states)
    )
    found: dict[_LeafMarker, str] = {}
    for module in modules:
        for path, value in nnx.iter_graph(module):
            held = value.get_raw_value() if isinstance(value, nnx.Variable) else value
            if isinstance(held, _LeafMarker):
                found.setdefault(held, "".join(map(_format_step, path)))
    return found


def _format_step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


@dataclass(frozen=True, slots=True)
class _Key:
    """A step in the path of a leaf, which JAX prints unchanged."""

    path: str

    def __str__(self) -> str:
        return self.path


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, slots=True)
class _Module:
    """The arrays of a module under their paths."""

    paths: list[str]
    leaves: list[Any]

    def tree_flatten_with_keys(self) -> tuple[list[tuple[_Key, Any]], None]:
        return [(_Key(path), leaf) for path, leaf in zip(self.paths, self.leaves, strict=True)], None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: list[Any]) -> _Module:
        raise NotImplementedError("it is only asked for names")


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
        edited: The bytecode of the module with other sharding constraints, to compile in place of `module`; None to
            compile `module`.
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
    edited: bytes | None = None
    layout: DeviceLayout | None = None

    @property
    def bytecode(self) -> bytes:
        """The module that is compiled, with its source places."""
        return jax_private.write_bytecode(self.module) if self.edited is None else self.edited

    @property
    def text(self) -> str:
        """The same module as text without source places."""
        return str(jax_private.read_module_bytecode(self.bytecode).operation.get_asm())


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
    seen = jax_private.read_lowered_facts(made.module)
    mesh = find_reported_mesh(plan, seen, find_jaxpr(made.traced))
    plan.notes.extend(check_array_meshes(mesh, list_named_shardings(seen, made.argument_shardings)))
    chosen, chosen_by = choose_slice(plan, mesh, seen.device_count)
    options = {**jax_private.read_own_options(made.module), **facts.compiler_options}
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


def lower_changed(
    function: Function, original: Lowered, change: Resharding | None, *, store: Store | None = None
) -> Lowered:
    """Traces a function again in the surroundings of the first trace, and lowers it with a change.

    Args:
        function: The user's function, as for `lower`.
        original: Its original lowering.
        change: The change; None to call the function as for the first trace, when its own code has changed.
        store: As for `lower`.

    Raises:
        HloscopeError: The change cannot be made, or JAX refuses the changed program.
    """
    changed = None if change is None else (original, change)
    change = change or Resharding()
    facts = replace_sizes(original.facts, change.sizes)
    plan = replace(original.plan, notes=list(original.plan.notes))
    attempt = _Attempt(function, facts, plan, original.name, store, changed)
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
    seen = jax_private.read_lowered_facts(made.module)
    if not change.sizes and _list_types(seen) != _list_types(original.seen):
        raise DoesNotApplyError("the program has different arguments or results when traced again")
    named = replace(seen, argument_names=original.seen.argument_names, result_names=original.seen.result_names)
    name = f"{original.name}, changed"
    try:
        edits = edit_constraints(jax_private.write_bytecode(made.module), change.edits) if change.edits else None
    except Exception as error:  # of whatever type jaxlib chooses
        raise DoesNotApplyError("the change does not fit the program", why=str(error)) from error
    return replace(original, name=name, facts=facts, plan=plan, **made._asdict(), seen=named, edited=edits)


def lower_under_mesh(function: Function, original: Lowered, *, store: Store | None = None) -> Lowered:
    """Traces a function again with the mesh of its arguments as the current one; arguments as for `lower_changed`.

    Raises:
        HloscopeError: The arguments have no mesh, or JAX refuses the program under it.
    """
    under = next(strategy for strategy in _STRATEGIES if strategy.arguments_mesh)
    return lower_changed(function, replace(original, strategy=under), None, store=store)


def lower_resharding(original: Lowered, changes: Sequence[LeafChange], *, store: Store | None = None) -> Lowered:
    """Lowers the program that reshards arguments from their present shardings to those of some changes.

    Args:
        original: The program that the arguments belong to.
        changes: The changes of these arguments.
        store: As for `lower`.

    Raises:
        HloscopeError: The changes cannot be made, or JAX refuses the program.
    """
    before = _find_shardings(original)
    after = _apply_changes(before, changes, original.mesh)
    places = [change.index for change in changes]

    def moving(*arrays: Any) -> Any:
        return tuple(map(_reshard, arrays, (after[place] for place in places)))

    jitted = jax.jit(moving, out_shardings=tuple(after[place] for place in places))
    leaves = [_make_abstract(original.seen.argument_avals[place], before[place]) for place in places]
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
            mesh = find_call_mesh(_read_shardings_of_leaves(call))
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
    platforms = jax_private.find_lowered_platforms(module)
    if platforms and not plan.is_real and "tpu" not in platforms:
        plan.notes.append(
            f"the program was lowered for {' and '.join(platforms)}: where it depends on the platform, it has that "
            "one's branch; for the TPU's, use jit(f).trace(...).lower(lowering_platforms=('tpu',)), or the function "
            "itself"
        )
    seen = jax_private.read_lowered_facts(module)
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
    chosen.fix = _find_way_out(attempt, str(chosen.why)) or chosen.fix
    raise chosen


def _find_way_out(attempt: _Attempt, why: str) -> Message | str | None:
    """The change after which a program that JAX refuses for a reason may be traced; None if it is the program's own."""
    mode = attempt.working_mode()
    if mode is not None:
        used = "auto" if mode == "explicit" else "explicit"
        return say("this program traces with ", Option("axis-types", mode), f", but not with {used} mesh axes")
    if "physical mesh" in why:
        return "JAX refuses this mesh on the slice's own devices too: let each axis follow physical axes of the slice"
    if attempt.plan.mesh is None and "mesh" in why and "Mesh('" not in why:  # that one has axes
        return say("add the mesh that the program runs under, for example ", Option("mesh", {"X": 4, "Y": 2}))
    return None


def _read_shardings_of_leaves(call: Call) -> list[Any]:
    """The sharding of each argument leaf; None for a leaf without one."""
    return [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves((call.args, dict(call.kwargs)))]


def use_slice_backend(chosen: Slice, store: Store | None) -> AbstractContextManager[None]:
    """Replaces the backend that code sees during lowering by a stand-in for that of a TPU slice."""
    return jax_private.replace_lowering_backend(_StandInClient(chosen, store))


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
            jitted, leaves = build_changed_call(call, *changed)
            traced = jitted.trace(*leaves)
        lowered = traced.lower(lowering_platforms=(platform,)) if platform else traced.lower()
        return _LoweredCall(_unwrap_lowered(lowered, call.name), traced, _read_shardings_of_leaves(call))


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
    code, defaults = function.__code__, function.__defaults__
    made = FunctionType(code, function.__globals__, function.__name__, defaults, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return update_wrapper(made, function)


def _watch_default_backend(plan: MeshPlan) -> AbstractContextManager[None]:
    """Adds a note for each place in the user's code that calls `jax.default_backend()` within the block.

    If the devices pose as those of a slice, there is nothing to note. Calls through a name that was imported before
    (`from jax import default_backend`) are not seen.
    """
    if plan.is_real or find_posed_slice() is not None:
        return nullcontext()
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

    return replace_in_this_thread(jax, "default_backend", watching)
