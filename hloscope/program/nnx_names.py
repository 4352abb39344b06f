"""Arrays of Flax NNX modules, named by where they are in the module.

`flax.nnx.jit` hands JAX the arrays of a module as one flat list, so that JAX calls them `model.states[0][6]`. The graph
that stands beside the list says which is which: `model.blocks[0].up.kernel`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from hloscope.compiler.jax_internals import naming_arguments_as


@contextmanager
def nnx_paths_as_names(*, in_all: bool = False) -> Iterator[None]:
    """Lets JAX name arguments of what it traces meanwhile, where they are arrays of NNX modules, by their paths.

    Where Flax splits a module otherwise than is known here, the names are JAX's.

    Args:
        in_all: In every thread, and not in the one that asks for it alone.
    """
    with naming_arguments_as(_with_paths, in_all=in_all):
        yield


def _with_paths(tree: Any) -> Any | None:
    """The tree with modules in place of Flax's flat lists; None where it has no such list."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return None
    is_split = partial(_is_a, nnx.NodeStates)
    nodes, structure = jax.tree.flatten(tree, is_leaf=is_split)
    if not any(map(is_split, nodes)):
        return None
    return jax.tree.unflatten(structure, _renamed(nnx, nodes))


def _is_a(kind: type, value: object) -> bool:
    return isinstance(value, kind)


class _Leaf:
    """Stands in for an array."""


def _renamed(nnx: Any, nodes: Sequence[Any]) -> list[Any]:
    """The nodes, of which the split ones are modules with their leaves in the same order."""
    split = {at: jax.tree.flatten(node) for at, node in enumerate(nodes) if isinstance(node, nnx.NodeStates)}
    stand_ins = {at: [_Leaf() for _ in leaves] for at, (leaves, _) in split.items()}
    paths = _paths(nnx, [structure.unflatten(stand_ins[at]) for at, (_, structure) in split.items()])
    return [
        _Module([paths[leaf] for leaf in stand_ins[at]], split[at][0]) if at in split else node
        for at, node in enumerate(nodes)
    ]


def _paths(nnx: Any, split: Sequence[Any]) -> dict[_Leaf, str]:
    """Where each stand-in is in its module: the first place of several."""
    modules = nnx.from_tree(tuple(split), merge_fn=_merged)
    found: dict[_Leaf, str] = {}
    for module in modules:
        for path, value in nnx.iter_graph(module):
            held = value.get_raw_value() if isinstance(value, nnx.Variable) else value
            if isinstance(held, _Leaf):
                found.setdefault(held, "".join(map(_step, path)))
    return found


def _merged(context: Any, _path: object, _prefix: object, node: Any) -> Any:
    return context.unflatten(node.graphdef, *node.states)


def _step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


@dataclass(frozen=True, slots=True)
class _Key:
    """A step in the path of a leaf that JAX prints as it is."""

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
