"""Arrays of Flax NNX modules, named by their path in the module.

`flax.nnx.jit` hands JAX the arrays of a module as one flat list, so that JAX calls them `model.states[0][6]`. The graph
that comes with the list gives their paths: `model.blocks[0].up.kernel`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from hloscope.compiler.jax_internals import rename_arguments


@contextmanager
def name_arguments_by_nnx_path(*, in_all: bool = False) -> Iterator[None]:
    """Makes JAX name traced arguments that are arrays of NNX modules by their paths.

    If Flax splits a module in a way that is unknown here, the names are JAX's.

    Args:
        in_all: In every thread, not only in the calling one.
    """
    with rename_arguments(_replace_lists_by_modules, in_all=in_all):
        yield


def _replace_lists_by_modules(tree: Any) -> Any | None:
    """The tree with modules in place of Flax's flat lists; None without such a list."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return None
    is_split = partial(_is_a, nnx.NodeStates)
    nodes, structure = jax.tree.flatten(tree, is_leaf=is_split)
    if not any(map(is_split, nodes)):
        return None
    return jax.tree.unflatten(structure, _rename_nodes(nnx, nodes))


def _is_a(kind: type, value: object) -> bool:
    return isinstance(value, kind)


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
    modules = nnx.from_tree(tuple(split), merge_fn=_merge_node)
    found: dict[_LeafMarker, str] = {}
    for module in modules:
        for path, value in nnx.iter_graph(module):
            held = value.get_raw_value() if isinstance(value, nnx.Variable) else value
            if isinstance(held, _LeafMarker):
                found.setdefault(held, "".join(map(_format_step, path)))
    return found


def _merge_node(context: Any, _path: object, _prefix: object, node: Any) -> Any:
    return context.unflatten(node.graphdef, *node.states)


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
