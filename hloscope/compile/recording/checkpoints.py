"""The doors of checkpoint libraries that write in C++: they keep in memory what they save, and restore it from there.

An empty folder in the scratch folder represents each checkpoint, so that listings, `latest_step()` and new managers
find it. The libraries themselves restore the checkpoints that really exist.
"""

from __future__ import annotations

import copy
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from hloscope.compile.recording.guard import Guard
from hloscope.compile.recording.libraries import Door

Blank = Callable[[tuple[int, ...], Any, Any], Any]
"""(shape, dtype, sharding or None) -> an array without content."""
_MAX_KEPT_BYTES = 1 << 20
_CHECKPOINTERS = {
    "checkpointer": "Checkpointer",
    "async_checkpointer": "AsyncCheckpointer",
    "standard_checkpointer": "StandardCheckpointer",
    "pytree_checkpointer": "PyTreeCheckpointer",
}
"""The classes of Orbax by their modules."""
_UNWRITTEN = "hloscope-unwritten"
_KV_WRITES = ("write", "delete_range", "__setitem__", "__delitem__", "experimental_copy_range_to")


def checkpoint_doors(guard: Guard, blank: Blank) -> list[Door]:
    """The doors of Orbax, Flax and TensorStore."""
    kept = _Kept(guard, blank)
    new = "orbax.checkpoint.experimental.v1._src"
    doors: list[tuple[str, str | None, dict[str, Callable[..., Any]]]] = [
        *(
            (f"orbax.checkpoint._src.checkpointers.{module}", kind, {"save": kept.save, "restore": kept.load})
            for module, kind in _CHECKPOINTERS.items()
        ),
        (
            "orbax.checkpoint.checkpoint_manager",
            "CheckpointManager",
            {"save": kept.save_step, "restore": kept.restore_step, "item_metadata": kept.describe_step},
        ),
        (f"{new}.saving.execution", None, {"save_checkpointables_impl": kept.save_new}),
        (f"{new}.loading.loading", None, {"load": kept.load_new, "load_checkpointables": kept.load_several}),
        (
            "flax.training.checkpoints",
            None,
            {
                **dict.fromkeys(("save_checkpoint", "save_checkpoint_multiprocess"), kept.save_flax),
                "restore_checkpoint": kept.restore_flax,
            },
        ),
    ]
    installed = [(module, partial(_wrap_all, guard, kind, handlers)) for module, kind, handlers in doors]
    return [*installed, ("tensorstore", partial(_wrap_tensorstore, guard))]


def _wrap_all(guard: Guard, kind: str | None, handlers: Mapping[str, Callable[..., Any]], module: ModuleType) -> None:
    """Wraps those functions that a module or a class in it has itself."""
    holder = module if kind is None else getattr(module, kind)
    for name, handle in handlers.items():
        if name in vars(holder):
            guard.wrap(holder, name, handle, everywhere=kind is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """An array that was saved, with its value if that is small and real."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: Any
    value: Any


class _Kept:
    """The checkpoints that were saved in this recording, by the names of their folders."""

    def __init__(self, guard: Guard, blank: Blank) -> None:
        self._guard, self._blank = guard, blank
        self._trees: dict[str, Any] = {}
        self._under_way: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        guard.at_first_fake.append(self._finish)

    def _finish(self) -> None:
        """Waits for what this thread saved before anything was faked."""
        for saving, thread in list(self._under_way.items()):
            if thread == threading.get_ident():
                getattr(saving, "wait_until_finished", lambda: None)()

    def _resolve(self, directory: Any) -> str:
        text = os.fspath(directory)
        return text if "://" in text else self._guard.overlay.resolve(text)

    def _keep(self, what: str, directory: Any, tree: Any) -> None:
        name = self._resolve(directory)
        self._trees[name] = _map_leaves(self._keep_leaf, tree)
        if "://" not in name:
            self._guard.apart(self._make_folder, name)
        self._guard.note(what, name, "skipped")

    def _make_folder(self, name: str) -> None:
        """Makes the folder that represents a checkpoint, with the metadata that Orbax looks for."""
        self._guard.overlay.make_folders(name)
        now = time.time_ns()
        stamps = {"init_timestamp_nsecs": now, "commit_timestamp_nsecs": now}
        with open(os.path.join(self._guard.overlay.above(name), "_CHECKPOINT_METADATA"), "w") as file:
            json.dump({"item_handlers": None, "metrics": {}, "performance_metrics": {}, "custom": {}, **stamps}, file)

    def _find(self, directory: Any) -> str | None:
        """The name of a checkpoint that was saved here and still exists; None for all others."""
        if directory is None or not self._trees:
            return None
        name = self._resolve(directory)
        if name not in self._trees:
            return None
        return name if "://" in name or self._guard.overlay.exists(name) else None

    def _keep_leaf(self, leaf: Any) -> Any:
        import jax
        import numpy as np

        if isinstance(leaf, jax.Array):
            if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return leaf
            can_be_read = leaf.is_fully_addressable and not leaf.is_deleted()
        elif isinstance(leaf, np.ndarray):
            can_be_read = True
        else:
            return copy.copy(leaf)
        is_kept = can_be_read and leaf.nbytes <= _MAX_KEPT_BYTES and not self._guard.is_faked(leaf)
        value = np.array(leaf, copy=True) if is_kept else None
        return _Leaf(shape=leaf.shape, dtype=leaf.dtype, sharding=getattr(leaf, "sharding", None), value=value)

    def _restore(self, name: str, wanted: Any, restore_args: Any = None) -> Any:
        """What was saved, with the structure and the placement that the caller wants."""
        self._guard.note("restore", name, "stood in for")
        saved = self._trees[name]
        if not _is_composite(saved):
            if restore_args is None:
                restore_args = getattr(wanted, "restore_args", None)
            return self._make(saved, _get_item(wanted), restore_args)
        return type(saved)(**self._make_items(saved, dict(wanted.items()) if _is_composite(wanted) else {}))

    def _make_items(self, saved: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The items that the caller wants; all if it names none."""
        asked = wanted or dict.fromkeys(saved.keys())
        return {
            key: self._make(saved[key], _get_item(each), getattr(each, "restore_args", None))
            for key, each in asked.items()
            if key in saved
        }

    def _make(self, saved: Any, wanted: Any, restore_args: Any) -> Any:
        import jax

        leaves, structure = jax.tree.flatten(saved)
        asked: list[Any] = [None] * len(leaves)
        for tree in (restore_args, wanted):
            listed, other = jax.tree.flatten(tree, is_leaf=lambda leaf: hasattr(leaf, "restore_type"))
            if tree is not None and len(listed) == len(leaves):
                asked = [new if hasattr(new, "dtype") else old for new, old in zip(listed, asked, strict=True)]
                structure = other if tree is wanted else structure
        return jax.tree.unflatten(structure, [self._make_leaf(*pair) for pair in zip(leaves, asked, strict=True)])

    def _make_leaf(self, leaf: Any, asked: Any) -> Any:
        import jax

        if not isinstance(leaf, _Leaf):
            return leaf
        sharding, dtype = (
            getattr(leaf, name) if getattr(asked, name, None) is None else getattr(asked, name)
            for name in ("sharding", "dtype")
        )
        shape = tuple(getattr(asked, "shape", None) or leaf.shape)
        if leaf.value is None or shape != leaf.shape:
            return self._blank(shape, dtype, sharding)
        value = leaf.value.astype(dtype)
        return value if sharding is None else jax.device_put(value, sharding)

    # Orbax's managers. They delete steps through the doors of files.

    def save_step(self, real: Any, manager: Any, step: int, *args: Any, **kwargs: Any) -> Any:
        """Keeps a step in memory."""
        if not self._guard.takes_over():
            self._under_way[manager] = threading.get_ident()
            return real(manager, step, *args, **kwargs)
        given = dict(zip(("items", "save_kwargs", "metrics", "force", "args"), args, strict=False)) | kwargs
        if not given.get("force") and not manager.should_save(step):
            return False
        if step in manager.all_steps():
            return real(manager, step, *args, **kwargs)  # it reports that the step exists
        saved = _get_item(given["args"]) if given.get("args") is not None else given.get("items")
        self._keep("CheckpointManager.save", _find_step_folder(manager, step), saved)
        if hasattr(manager, "_add_checkpoint_info"):
            manager._add_checkpoint_info(step, given.get("metrics"))
        else:
            manager.reload()
        return True

    def restore_step(self, real: Any, manager: Any, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """Restores a step that was kept."""
        given = dict(zip(("items", "restore_kwargs", "directory", "args"), args, strict=False)) | kwargs
        chosen = manager.latest_step() if step is None and given.get("directory") is None else step
        name = None if chosen is None else self._find(_find_step_folder(manager, chosen, given.get("directory")))
        if name is None:
            return real(manager, step, *args, **kwargs)
        wanted = given.get("args")
        if wanted is None and not _is_composite(self._trees[name]):
            wanted = given.get("items")
        return self._restore(name, wanted)

    def describe_step(self, real: Any, manager: Any, step: int) -> Any:
        """The metadata of a step that was kept."""
        name = None if step is None else self._find(_find_step_folder(manager, step))
        return real(manager, step) if name is None else _map_leaves(_make_abstract, self._trees[name])

    # Orbax's checkpointers.

    def _check_new(self, directory: Any) -> None:
        """Raises Orbax's own error if a checkpoint exists."""
        if "://" not in os.fspath(directory) and self._guard.overlay.exists(self._resolve(directory)):
            raise ValueError(f"Destination {os.fspath(directory)} already exists.")

    def save(self, real: Any, checkpointer: Any, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Keeps a checkpoint in memory."""
        if not self._guard.takes_over():
            self._under_way[checkpointer] = threading.get_ident()
            return real(checkpointer, directory, *args, **kwargs)
        if not kwargs.get("force"):
            self._check_new(directory)
        given = next((kwargs[key] for key in ("args", "state", "item") if key in kwargs), args[0] if args else None)
        return self._keep(f"{type(checkpointer).__name__}.save", directory, _get_item(given))

    def load(self, real: Any, checkpointer: Any, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Restores a checkpoint that was kept."""
        name = self._find(directory)
        if name is None:
            return real(checkpointer, directory, *args, **kwargs)
        given = next((kwargs[key] for key in ("args", "target", "item") if key in kwargs), args[0] if args else None)
        return self._restore(name, given, kwargs.get("restore_args"))

    # The functions of Orbax's newer interface.

    def save_new(self, real: Any, path: Any, checkpointables: Any, **kwargs: Any) -> Any:
        """Keeps a checkpoint in memory."""
        if not self._guard.takes_over():
            return real(path, checkpointables, **kwargs)
        if not kwargs.get("overwrite"):
            self._check_new(path)
        self._keep("orbax.checkpoint.save", path, dict(checkpointables))
        return _Done()

    def load_new(self, real: Any, path: Any, abstract_state: Any = None, **kwargs: Any) -> Any:
        """Restores one item of a checkpoint that was kept."""
        name = self._find(path)
        if name is None:
            return real(path, abstract_state, **kwargs)
        saved = self._trees[name]
        key = kwargs.get("checkpointable_name")
        key = key if isinstance(key, str) and key in saved else next(iter(saved.keys()))
        self._guard.note("restore", name, "stood in for")
        return self._make(saved[key], getattr(abstract_state, "metadata", abstract_state), None)

    def load_several(self, real: Any, path: Any, abstract: Any = None, **kwargs: Any) -> Any:
        """Restores items of a checkpoint that was kept."""
        name = self._find(path)
        if name is None:
            return real(path, abstract, **kwargs)
        self._guard.note("restore", name, "stood in for")
        return self._make_items(self._trees[name], abstract if isinstance(abstract, Mapping) else {})

    # Flax's older functions.

    def save_flax(
        self, real: Any, ckpt_dir: Any, target: Any, step: Any, prefix: str = "checkpoint_", *args: Any, **kwargs: Any
    ) -> Any:
        """Keeps a checkpoint in memory."""
        if not self._guard.takes_over():
            return real(ckpt_dir, target, step, prefix, *args, **kwargs)
        path = os.path.join(os.fspath(ckpt_dir), f"{prefix}{step}")
        self._keep("flax.training.checkpoints.save_checkpoint", path, target)
        return path

    def restore_flax(
        self,
        real: Any,
        ckpt_dir: Any,
        target: Any,
        step: Any = None,
        prefix: str = "checkpoint_",
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Restores a checkpoint that was kept."""
        name = self._find_flax(ckpt_dir, step, prefix) if self._trees else None
        if name is None:
            return real(ckpt_dir, target, step, prefix, *args, **kwargs)
        if target is not None:
            return self._restore(name, target)
        from flax import serialization

        return serialization.to_state_dict(self._restore(name, None))

    def _find_flax(self, ckpt_dir: Any, step: Any, prefix: str) -> str | None:
        from flax.training.checkpoints import latest_checkpoint

        folder = os.fspath(ckpt_dir)
        path = os.path.join(folder, f"{prefix}{step}") if step is not None else latest_checkpoint(ckpt_dir, prefix)
        return self._find(folder) or self._find(path)


def _map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    import jax

    if _is_composite(tree):
        return type(tree)(**{key: _map_leaves(change, each) for key, each in tree.items()})
    return jax.tree.map(change, tree)


def _get_item(args: Any) -> Any:
    """The content of Orbax's arguments for saving or restoring."""
    if _is_composite(args):
        return type(args)(**{key: _get_item(each) for key, each in args.items()})
    if not type(args).__module__.startswith("orbax."):
        return args
    return getattr(args, "item", getattr(args, "checkpointable", args))


def _is_composite(args: Any) -> bool:
    return type(args).__name__ in ("Composite", "CompositeArgs") and type(args).__module__.startswith("orbax.")


def _find_step_folder(manager: Any, step: int, directory: Any = None) -> Any:
    root = manager.directory if directory is None else type(manager.directory)(directory)
    named = getattr(manager, "_get_write_step_directory", None)
    return root / str(step) if named is None else named(step, root)


def _make_abstract(leaf: Any) -> Any:
    import jax

    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) if isinstance(leaf, _Leaf) else leaf


class _Done(Future[None]):
    """The answer of an operation in the background that is done, as Orbax and TensorStore give it."""

    copy = commit = property(lambda self: self)

    def __init__(self) -> None:
        super().__init__()
        self.set_result(None)

    def on_complete(self, callback: Callable[[Any], None]) -> None:
        """Calls back at once."""
        callback(None)

    def __await__(self) -> Any:
        return iter(())


def _wrap_tensorstore(guard: Guard, module: ModuleType) -> None:
    """Makes new arrays in memory, and writes nothing to any other."""

    def skip(what: str, real: Any, store: Any, *args: Any, **kwargs: Any) -> Any:
        where = _find_address(store) if guard.takes_over() else None
        if where is None or (where.startswith("memory:") and _UNWRITTEN not in where):
            return real(store, *args, **kwargs)
        guard.note(what, where, "skipped")
        return _Done()

    for kind, names in (("TensorStore", ("write", "__setitem__")), ("KvStore", _KV_WRITES)):
        for name in names:
            if hasattr(getattr(module, kind), name):
                guard.wrap(getattr(module, kind), name, partial(skip, f"tensorstore.{kind}.{name}"))

    def open_store(real: Any, spec: Any, *args: Any, **kwargs: Any) -> Any:
        asked = (kwargs, spec) if isinstance(spec, dict) else (kwargs,)
        is_new = any(each.get("create") or each.get("delete_existing") for each in asked)
        if not is_new or not guard.takes_over():
            return real(spec, *args, **kwargs)
        told = module.Spec(spec).to_json()
        guard.note("tensorstore.open", _move_to_memory(told), "stood in for")
        return real(told, *args, **{key: value for key, value in kwargs.items() if key != "context"})

    guard.wrap(module, "open", open_store)


def _find_address(store: Any) -> str | None:
    """The address that a store writes to; None for an array in memory, as TensorStore itself makes to read into."""
    below = getattr(store, "kvstore", store)
    try:
        return None if below is None else str(below.url)
    except ValueError:  # it has none
        return str(below.spec().to_json())


def _move_to_memory(spec: Any) -> str:
    """Changes a specification's files to memory, in place, and returns where they were to be."""
    where = ""
    for key in list(spec):
        if key == "kvstore":
            where, spec[key] = json.dumps(spec[key]), {"driver": "memory", "path": f"{_UNWRITTEN}/"}
        elif isinstance(spec[key], dict):
            where = _move_to_memory(spec[key]) or where
    return where
