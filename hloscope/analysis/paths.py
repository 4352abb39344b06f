"""Paths to places in a model: pytree paths of arguments, and the name stacks that JAX gives operations.

Source: JAX's `jax.tree_util.keystr`, which names arguments, and its name stacks, in which a transformation is written
around the first name that it found, as in `jit(step)/transpose(jvp(Model))/layers_0/mlp/dot_general`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from hloscope.analysis.model import Analysis, Collective, Collectives, ModelPart, Phase
from hloscope.analysis.places import find_own_frame, find_shared_helpers

ModelPath = tuple[str, ...]

_STEP = re.compile(r"""\[(?:'([^']*)'|"([^"]*)"|<flat index (\d+)>|(\d+))\]|\.(\w+)|([^.\[\]]+)""")
_HOLDER = re.compile(r"\.(?:raw_)?value$|\.get_value\(\)$")
_LEAVES = frozenset({"bias", "embedding", "kernel", "scale", "weight"})
"""The names that frameworks give the arrays of a module."""
_ALL_OF_THEM = frozenset({"parameters", "params"})
_ROOTS = _ALL_OF_THEM | {"model", "weights"}
"""The names of the parameters within a state that also holds the optimizer's."""


@lru_cache(maxsize=8192)
def parse_argument_path(name: str) -> ModelPath:
    """Parses `params['layers'][0]['mlp'].value` into `params`, `layers`, `0`, `mlp`, without NNX's array holders."""
    held = _HOLDER.sub("", name)
    return tuple(next(filter(None, groups), "") for groups in _STEP.findall(held))


_TRANSFORMED = re.compile(r"(?:\w+\()+(?P<inside>[^()]*)\)+")
_CALLS = re.compile(r"\b(?:p?jit|shard_map|core_call|remat2?|checkpoint|custom_[jv][jv]p_call)\(")
_CONTROL = re.compile(
    r"while|body|cond|scan|closed_call|checkpoint|rematted_computation|remat2?|shard_map|custom_[jv][jv]p_call\w*"
    r"|p?jit|branch_\d+_fun|core_call|#\d+|"
)


_NO_NAME = re.compile(r"\(|->")
"""Characters that no module name contains: an open transformation, or the equation of an einsum."""


@lru_cache(maxsize=8192)
def parse_scopes(op_name: str | None) -> ModelPath:
    """The names from modules and `jax.named_scope`: `Model`, `layers_0`, `mlp`; empty if there are none.

    Recomputed operations have the outer names twice; one copy is dropped.
    """
    scopes: list[str] = []
    for step in (op_name or "").split("/")[:-1]:
        transformed = None if _CALLS.search(step) else _TRANSFORMED.fullmatch(step)
        name = step if transformed is None else transformed["inside"]
        if not _CONTROL.fullmatch(name) and not _NO_NAME.search(name) and name not in scopes[-1:]:
            scopes.append(name)
    return tuple(scopes)


@lru_cache(maxsize=8192)
def find_phase(op_name: str | None) -> Phase | None:
    """The pass according to a name stack; None for operations that were not differentiated."""
    name = op_name or ""
    if "transpose(" in name or "rematted_computation" in name:
        return Phase.BACKWARD
    return Phase.FORWARD if "jvp(" in name else None


def find_model_paths(arguments: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, ModelPath]:
    """The path of each argument within the model; optimizer state has the path of its parameter.

    Args:
        arguments: Names and dimensions of the arguments.

    Returns:
        Paths by name; empty for an argument that is one array.
    """
    paths = {name: parse_argument_path(name) for name, _ in arguments}
    shapes = dict(arguments)
    owners: dict[object, ModelPath] = {}
    for name, path in paths.items():
        for start in (1, 2):
            suffix = path[start:]
            if suffix and (start == 1 or path[1] in _ROOTS):
                known = owners.setdefault((suffix, shapes[name]), path)
                owners[suffix, shapes[name]] = min(known, path, key=len)
    return {name: _drop_own_name(_find_owner(path, shapes[name], owners)) for name, path in paths.items()}


def _find_owner(path: ModelPath, shape: tuple[int, ...], owners: Mapping[object, ModelPath]) -> ModelPath:
    """The parameter that an argument belongs to, or the argument itself if there is none."""
    for start in range(1, len(path)):
        owner = owners.get((path[start:], shape), path)
        if len(owner) < len(path) and (owner[0] != path[0] or (owner[1] in _ROOTS and owner[1] != path[1])):
            return owner
    return path


def find_common_path(paths: Iterable[ModelPath]) -> ModelPath:
    """The common prefix of all paths."""
    found = list(dict.fromkeys(paths))
    if not found:
        return ()
    first, last = min(found), max(found)
    shared = next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), min(map(len, found))
    )
    return first[:shared]


def _drop_own_name(path: ModelPath) -> ModelPath:
    """A path without the argument's own name, and without framework names for all parameters or a module's arrays.

    The argument's own name is kept before a number, which would be meaningless alone: `params[0]`.
    """
    while len(path) > 1 and not path[1].isdigit() and path[1] in _ALL_OF_THEM:
        path = path[1:]
    path = path if len(path) > 1 and path[1].isdigit() else path[1:]
    while len(path) > 1 and path[-1] in _LEAVES:
        path = path[:-1]
    return path


class FoldedPath(NamedTuple):
    """A path with `*` for its numbers.

    Attributes:
        module: `layers.*.mlp.gate`, or `layers_*.mlp.gate`.
        layer: The number that the first `*` stands for; None without one.
    """

    module: str
    layer: int | None


_NUMBERED = re.compile(r"(?P<stem>(?:.*\D)?)(?P<number>\d{1,9})", re.DOTALL)
_FEWEST = 3
"""Minimum number of numbered parts holding nothing but arrays that are considered layers."""


def fold_paths(paths: Iterable[ModelPath]) -> dict[ModelPath, FoldedPath]:
    """The paths with `*` for the numbers of parts that differ only in their number, as layers do.

    A number is folded if the path continues after it, as from `layers_0` to `mlp`, so that `Dense_0` and `Dense_1` of
    one block stay separate; otherwise if it is the first in a path and there are several. A number inside a name, as in
    `layer0` or `linear2`, must meet both conditions.
    """
    every = list(dict.fromkeys(paths))
    numbers: dict[tuple[ModelPath, str], set[int]] = defaultdict(set)
    goes_on: set[tuple[ModelPath, str]] = set()
    for path in every:
        for at, (stem, number) in _find_numbers(path):
            key = (_drop_numbers(path[:at]), stem)
            numbers[key].add(number)
            if at + 1 < len(path):
                goes_on.add(key)
    return {path: _fold_path(path, numbers, goes_on) for path in every}


def _find_numbers(path: ModelPath) -> list[tuple[int, tuple[str, int]]]:
    found = ((at, _NUMBERED.fullmatch(step)) for at, step in enumerate(path))
    return [(at, (match["stem"], int(match["number"]))) for at, match in found if match]


def _drop_numbers(path: ModelPath) -> ModelPath:
    return tuple(re.sub(r"\d+$", "", step) for step in path)


def _fold_path(
    path: ModelPath, numbers: Mapping[tuple[ModelPath, str], set[int]], goes_on: set[tuple[ModelPath, str]]
) -> FoldedPath:
    steps, layer = list(path), None
    for at, (stem, number) in _find_numbers(path):
        key = (_drop_numbers(path[:at]), stem)
        several, is_own_step = len(numbers[key]) >= _FEWEST, not stem or stem.endswith("_")
        goes_deeper = key in goes_on and at + 1 < len(path) and (several or is_own_step)
        if goes_deeper or (layer is None and several and (is_own_step or key in goes_on)):
            steps[at] = f"{stem}*"
            layer = number if layer is None else layer
    return FoldedPath(".".join(steps), layer)


def render_layers(module: str, layers: Sequence[int]) -> str:
    """Renders `layers[0-35].mlp.gate`, or `layers_3`: a folded path with the numbers that its first `*` stands for."""
    if not layers:
        return module
    ranges = f"[{render_number_ranges(layers)}]"
    if ".*" in module:
        return module.replace(".*", ranges, 1)
    return module.replace("*", str(layers[0]) if len(layers) == 1 else ranges, 1)


def render_number_ranges(numbers: Iterable[int]) -> str:
    """Renders `0-2, 4`: numbers in ascending order, with consecutive ones joined."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def attach_modules(
    collectives: Sequence[Collective],
    parts: Sequence[ModelPart],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[Collective, ...]:
    """Completes the parts of collectives with module, layers and line.

    Args:
        collectives: All of one program.
        parts: The known part of each place: pass, role and arguments.
        shapes: Dimensions of the program's arguments, by name.
    """
    bodies = find_model_paths(shapes.items())
    paths = _find_collective_paths(collectives, parts, bodies)
    names = fold_paths(path for found in paths for path in found)
    helping = find_shared_helpers(collective.source for collective in collectives)
    known: dict[ModelPart, ModelPart] = {}
    named = []
    for collective, part, own in zip(collectives, parts, paths, strict=True):
        layers = {layer for path in own if (layer := names[path].layer) is not None}
        whole = replace(
            part,
            module=_join_modules([names[path].module for path in own]),
            layers=tuple(sorted(layers)),
            line=find_own_frame(collective.source, helping),
        )
        named.append(replace(collective, part=known.setdefault(whole, whole)))
    return tuple(named)


def skip_helpers(analysis: Analysis, helpers: Collection[str]) -> Analysis:
    """The analysis with lines of its collectives outside the files and functions that the user declares as helpers."""
    if not helpers:
        return analysis
    helping = find_shared_helpers((collective.source for collective in analysis.collectives), helpers)
    lines = (find_own_frame(collective.source, helping) for collective in analysis.collectives)
    moved = (
        collective if collective.part is None else replace(collective, part=replace(collective.part, line=line))
        for collective, line in zip(analysis.collectives, lines, strict=True)
    )
    return analysis._remembered_by(replace(analysis, collectives=Collectives(moved)))


def _join_modules(modules: Sequence[str]) -> str | None:
    """The common part of several modules that the arguments of one collective name."""
    if len(set(modules)) < 2:
        return modules[0] if modules else None
    return ".".join(find_common_path(tuple(module.split(".")) for module in modules)) or None


def _find_collective_paths(
    collectives: Sequence[Collective], parts: Sequence[ModelPart], bodies: Mapping[str, ModelPath]
) -> list[tuple[ModelPath, ...]]:
    """The modules of each collective, from its scopes or its arguments, whichever say more; scopes if both do.

    A collective that the compiler combined has the name of one of its parts alone, so that its arguments say more; they
    are called as the scopes are in which they are used, where that is known.
    """
    scoped = [parse_scopes(collective.op_name) for collective in collectives]
    shared = len(find_common_path(filter(None, scoped)))
    alone = (len(collective.operand_shapes) < 2 for collective in collectives)
    own = [scopes[shared:] if single else () for scopes, single in zip(scoped, alone, strict=True)]
    named = [tuple(dict.fromkeys(bodies[name] for name in part.arguments if bodies.get(name))) for part in parts]
    scope_of = {
        body[0]: scopes
        for scopes, body in zip(own, named, strict=True)
        if len(body) == 1 and scopes[-1:] == body[0][-1:] and len(scopes) >= len(body[0])
    }
    found: list[tuple[ModelPath, ...]] = []
    for scopes, body in zip(own, named, strict=True):
        told = tuple(scope_of.get(path, path) for path in body)
        longest = max(map(len, told), default=0)
        found.append((scopes,) if scopes and len(scopes) >= longest else told or ((scopes,) if scopes else ()))
    return found
