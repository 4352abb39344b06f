"""Checkpoint libraries that write in C++: what they would save is kept in memory, as shapes, and restored from there.

A folder in the scratch folder stands for each checkpoint, so that listings, `latest_step()` and new managers find it.
Checkpoints that are really there are restored by the libraries themselves.
"""

from __future__ import annotations

import copy
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hloscope.program.recording.guard import Guard
from hloscope.program.recording.library_doors import LateDoor

Blank = Callable[[tuple[int, ...], Any, Any], Any]
"""(shape, dtype, sharding or None) -> an array with nothing in it."""
_MOST_KEPT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """An array that was saved: its value where that is small and real."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: Any
    value: Any


def checkpoint_doors(guard: Guard, blank: Blank | None) -> list[LateDoor]:
    """The doors of Orbax, Flax and TensorStore."""
    kept = _Kept(guard, blank or _zeros)
    home = "orbax.checkpoint._src.checkpointers"
    saved = [(f"{home}.{name}", kept.checkpointer_doors) for name in _CHECKPOINTERS]
    loads = "orbax.checkpoint.experimental.v1._src"
    doors = [
        *saved,
        ("orbax.checkpoint.checkpoint_manager", kept.manager_doors),
        (f"{loads}.saving.execution", kept.new_saving_doors),
        (f"{loads}.loading.loading", kept.new_loading_doors),
        ("flax.training.checkpoints", kept.flax_doors),
        ("tensorstore", lambda module: _tensorstore_doors(guard, module)),
    ]
    return [LateDoor(module=module, put_up=put_up) for module, put_up in doors]


_CHECKPOINTERS = {
    "checkpointer": "Checkpointer",
    "async_checkpointer": "AsyncCheckpointer",
    "standard_checkpointer": "StandardCheckpointer",
    "pytree_checkpointer": "PyTreeCheckpointer",
}


def _zeros(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    import jax
    import numpy as np

    if sharding is None:
        return np.zeros(shape, dtype)
    return jax.make_array_from_callback(shape, sharding, lambda index: np.zeros(shape, dtype)[index])


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

    def _takes_over(self) -> bool:
        return self._guard.live() and not self._guard.is_ours()

    def _name(self, directory: Any) -> str:
        text = os.fspath(directory)
        return text if "://" in text else self._guard.overlay.name(text)

    def _keep(self, what: str, directory: Any, tree: Any) -> None:
        name = self._name(directory)
        self._trees[name] = self._with_leaves(tree, self._kept_leaf)
        if "://" not in name:
            self._guard.apart(self._stand_for, name)
        self._guard.note(what, name, "skipped")

    def _stand_for(self, name: str) -> None:
        if self._guard.overlay.is_folder(name):
            self._guard.overlay.rmtree(name)
        folder, now = self._guard.overlay.above(name), time.time_ns()
        self._guard.overlay.holds_tree(name)
        os.makedirs(folder, exist_ok=True)
        stamps = {"init_timestamp_nsecs": now, "commit_timestamp_nsecs": now}
        with open(os.path.join(folder, "_CHECKPOINT_METADATA"), "w") as file:
            json.dump({"item_handlers": None, "metrics": {}, "performance_metrics": {}, "custom": {}, **stamps}, file)

    def _find(self, directory: Any) -> str | None:
        """The name of a checkpoint that was saved here and is still there; None for all others."""
        if not self._trees:
            return None
        name = self._name(directory)
        if name not in self._trees:
            return None
        return name if "://" in name or self._guard.overlay.exists(name) else None

    def _kept_leaf(self, leaf: Any) -> Any:
        import jax
        import numpy as np

        if isinstance(leaf, jax.Array):
            if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return leaf
            is_small = leaf.nbytes <= _MOST_KEPT_BYTES and leaf.is_fully_addressable and not leaf.is_deleted()
            value = np.array(leaf) if is_small and not self._guard.is_faked(leaf) else None
            return _Leaf(shape=leaf.shape, dtype=leaf.dtype, sharding=leaf.sharding, value=value)
        if isinstance(leaf, np.ndarray):
            is_real = leaf.nbytes <= _MOST_KEPT_BYTES and not self._guard.is_faked(leaf)
            return _Leaf(
                shape=leaf.shape, dtype=leaf.dtype, sharding=None, value=np.array(leaf, copy=True) if is_real else None
            )
        return copy.copy(leaf)

    @staticmethod
    def _with_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
        import jax

        if _is_composite(tree):
            return type(tree)(**{key: _Kept._with_leaves(each, change) for key, each in tree.items()})
        return jax.tree.map(change, tree)

    def _restored(self, name: str, wanted: Any, restore_args: Any = None) -> Any:
        """What was saved, with the structure and the placement that are asked for."""
        self._guard.note("restore", name, "stood in for")
        return self._made(self._trees[name], wanted, restore_args)

    def _made(self, saved: Any, wanted: Any, restore_args: Any) -> Any:
        import jax

        leaves, structure = jax.tree.flatten(saved)
        asked: list[Any] = [None] * len(leaves)
        for tree in (restore_args, wanted):
            listed, other = jax.tree.flatten(tree, is_leaf=lambda leaf: hasattr(leaf, "restore_type"))
            if tree is not None and len(listed) == len(leaves):
                asked = [new if hasattr(new, "dtype") else old for new, old in zip(listed, asked, strict=True)]
                structure = other if tree is wanted else structure
        return jax.tree.unflatten(structure, [self._leaf(*pair) for pair in zip(leaves, asked, strict=True)])

    def _leaf(self, leaf: Any, asked: Any) -> Any:
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

    # Orbax

    def manager_doors(self, module: ModuleType) -> None:
        """Has `CheckpointManager` keep what it saves; it deletes through doors of files."""
        manager = module.CheckpointManager
        self._guard.wrap(manager, "save", self._manager_save)
        self._guard.wrap(manager, "restore", self._manager_restore)
        self._guard.wrap(manager, "item_metadata", self._manager_item_metadata)

    def _manager_save(self, real: Any, manager: Any, step: int, *args: Any, **kwargs: Any) -> Any:
        if not self._takes_over():
            self._under_way[manager] = threading.get_ident()
            return real(manager, step, *args, **kwargs)
        given = dict(zip(("items", "save_kwargs", "metrics", "force", "args"), args, strict=False)) | kwargs
        if not given.get("force") and not manager.should_save(step):
            return False
        if step in manager.all_steps():
            return real(manager, step, *args, **kwargs)  # says that it is there
        wanted = given.get("args")
        self._keep(
            "CheckpointManager.save",
            _step_folder(manager, step),
            _item(wanted) if wanted is not None else given.get("items"),
        )
        if hasattr(manager, "_add_checkpoint_info"):
            manager._add_checkpoint_info(step, given.get("metrics"))
        else:
            manager.reload()
        return True

    def _manager_restore(self, real: Any, manager: Any, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(("items", "restore_kwargs", "directory", "args"), args, strict=False)) | kwargs
        chosen = manager.latest_step() if step is None and given.get("directory") is None else step
        name = None if chosen is None else self._find(_step_folder(manager, chosen, given.get("directory")))
        if name is None:
            return real(manager, step, *args, **kwargs)
        return self._composite(name, given.get("args"), given.get("items"))

    def _composite(self, name: str, wanted: Any, items: Any) -> Any:
        saved = self._trees[name]
        if not _is_composite(saved):
            item = items if wanted is None else _item(wanted)
            return self._restored(name, item, getattr(wanted, "restore_args", None))
        self._guard.note("restore", name, "stood in for")
        asked = dict(wanted.items()) if _is_composite(wanted) else dict.fromkeys(saved.keys())
        made = {
            key: self._made(saved[key], _item(each), getattr(each, "restore_args", None))
            for key, each in asked.items()
            if key in saved
        }
        return type(saved)(**made)

    def _manager_item_metadata(self, real: Any, manager: Any, step: int) -> Any:
        name = None if step is None else self._find(_step_folder(manager, step))
        return real(manager, step) if name is None else self._with_leaves(self._trees[name], _abstract)

    def checkpointer_doors(self, module: ModuleType) -> None:
        """Has a `Checkpointer` keep what it saves."""
        last = module.__name__.rpartition(".")[2]
        kind = getattr(module, _CHECKPOINTERS[last])
        for name, handle in (("save", self._save), ("restore", self._restore)):
            if name in vars(kind):
                self._guard.wrap(kind, name, handle)

    def _check_new(self, directory: Any) -> None:
        """Says, as Orbax does, that a checkpoint is there."""
        if "://" not in os.fspath(directory) and self._guard.overlay.exists(self._name(directory)):
            raise ValueError(f"Destination {os.fspath(directory)} already exists.")

    def _save(self, real: Any, checkpointer: Any, directory: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._takes_over():
            self._under_way[checkpointer] = threading.get_ident()
            return real(checkpointer, directory, *args, **kwargs)
        if not kwargs.get("force"):
            self._check_new(directory)
        given = next((kwargs[key] for key in ("args", "state", "item") if key in kwargs), args[0] if args else None)
        return self._keep(f"{type(checkpointer).__name__}.save", directory, _item(given))

    def _restore(self, real: Any, checkpointer: Any, directory: Any, *args: Any, **kwargs: Any) -> Any:
        name = self._find(directory)
        if name is None:
            return real(checkpointer, directory, *args, **kwargs)
        given = next((kwargs[key] for key in ("args", "target", "item") if key in kwargs), args[0] if args else None)
        if _is_composite(self._trees[name]):
            return self._composite(name, given, None)
        restore_args = kwargs.get("restore_args", getattr(given, "restore_args", None))
        return self._restored(name, _item(given), restore_args)

    def new_saving_doors(self, module: ModuleType) -> None:
        """Has the functions of Orbax's newer interface keep what they save."""
        if hasattr(module, "save_checkpointables_impl"):
            self._guard.wrap(module, "save_checkpointables_impl", self._new_save, everywhere=True)

    def _new_save(self, real: Any, path: Any, checkpointables: Any, **kwargs: Any) -> Any:
        if not self._takes_over():
            return real(path, checkpointables, **kwargs)
        if not kwargs.get("overwrite"):
            self._check_new(path)
        self._keep("orbax.checkpoint.save", path, dict(checkpointables))
        return _Done()

    def new_loading_doors(self, module: ModuleType) -> None:
        """Has them load it again."""
        for name, handle in (("load", self._new_load), ("load_checkpointables", self._new_load_several)):
            if hasattr(module, name):
                self._guard.wrap(module, name, handle, everywhere=True)

    def _new_load(self, real: Any, path: Any, abstract_state: Any = None, **kwargs: Any) -> Any:
        name = None if path is None else self._find(path)
        if name is None:
            return real(path, abstract_state, **kwargs)
        saved = self._trees[name]
        key = kwargs.get("checkpointable_name")
        key = key if isinstance(key, str) and key in saved else next(iter(saved.keys()))
        self._guard.note("restore", name, "stood in for")
        return self._made(saved[key], getattr(abstract_state, "metadata", abstract_state), None)

    def _new_load_several(self, real: Any, path: Any, abstract: Any = None, **kwargs: Any) -> Any:
        name = None if path is None else self._find(path)
        if name is None:
            return real(path, abstract, **kwargs)
        self._guard.note("restore", name, "stood in for")
        saved, wanted = self._trees[name], abstract if isinstance(abstract, Mapping) else {}
        return {key: self._made(saved[key], wanted.get(key), None) for key in (wanted or saved.keys()) if key in saved}

    # Flax

    def flax_doors(self, module: ModuleType) -> None:
        """Has Flax's older functions keep what they save."""
        for name in ("save_checkpoint", "save_checkpoint_multiprocess"):
            self._guard.wrap(module, name, self._flax_save, everywhere=True)
        self._guard.wrap(module, "restore_checkpoint", self._flax_restore, everywhere=True)

    def _flax_save(
        self, real: Any, ckpt_dir: Any, target: Any, step: Any, prefix: str = "checkpoint_", *args: Any, **kwargs: Any
    ) -> Any:
        if not self._takes_over():
            return real(ckpt_dir, target, step, prefix, *args, **kwargs)
        path = os.path.join(os.fspath(ckpt_dir), f"{prefix}{step}")
        self._keep("flax.training.checkpoints.save_checkpoint", path, target)
        return path

    def _flax_restore(
        self,
        real: Any,
        ckpt_dir: Any,
        target: Any,
        step: Any = None,
        prefix: str = "checkpoint_",
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not self._trees:
            return real(ckpt_dir, target, step, prefix, *args, **kwargs)
        from flax import serialization
        from flax.training.checkpoints import latest_checkpoint

        folder = os.fspath(ckpt_dir)
        path = os.path.join(folder, f"{prefix}{step}") if step is not None else latest_checkpoint(ckpt_dir, prefix)
        name = self._find(folder) or (None if path is None else self._find(path))
        if name is None:
            return real(ckpt_dir, target, step, prefix, *args, **kwargs)
        if target is not None:
            return self._restored(name, target)
        return serialization.to_state_dict(self._restored(name, None))


def _item(args: Any) -> Any:
    """What Orbax's arguments for saving or restoring hold."""
    if _is_composite(args):
        return type(args)(**{key: _item(each) for key, each in args.items()})
    if not type(args).__module__.startswith("orbax."):
        return args
    return getattr(args, "item", getattr(args, "checkpointable", args))


def _is_composite(args: Any) -> bool:
    return type(args).__name__ in ("Composite", "CompositeArgs") and type(args).__module__.startswith("orbax.")


def _step_folder(manager: Any, step: int, directory: Any = None) -> Any:
    root = manager.directory if directory is None else type(manager.directory)(directory)
    named = getattr(manager, "_get_write_step_directory", None)
    return root / str(step) if named is None else named(step, root)


def _abstract(leaf: Any) -> Any:
    import jax

    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) if isinstance(leaf, _Leaf) else leaf


class _Done:
    """The answer of something that goes on in the background, and is done."""

    copy = commit = property(lambda self: self)

    def result(self, timeout: float | None = None) -> None:
        """Nothing."""

    def on_complete(self, callback: Callable[[Any], None]) -> None:
        """Calls back at once."""
        callback(None)

    def done(self) -> bool:
        return True

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def exception(self, timeout: float | None = None) -> None:
        return None

    def __await__(self) -> Any:
        return iter(())


def _tensorstore_doors(guard: Guard, module: ModuleType) -> None:
    """New arrays are made in memory, and nothing is written to any."""

    def skipped(what: str) -> Callable[..., Any]:
        def skip(real: Any, store: Any, *args: Any, **kwargs: Any) -> Any:
            if not guard.live() or guard.is_ours():
                return real(store, *args, **kwargs)
            where = _where(store)
            if where is None or (where.startswith("memory:") and _UNWRITTEN not in where):
                return real(store, *args, **kwargs)
            guard.note(what, where, "skipped")
            return _Done()

        return skip

    for kind, names in (("TensorStore", ("write", "__setitem__")), ("KvStore", _KV_WRITES)):
        for name in names:
            if hasattr(getattr(module, kind), name):
                guard.wrap(getattr(module, kind), name, skipped(f"tensorstore.{kind}.{name}"))

    def opened(real: Any, spec: Any, *args: Any, **kwargs: Any) -> Any:
        is_new = kwargs.get("create") or kwargs.get("delete_existing") or _makes(spec)
        if not is_new or not guard.live() or guard.is_ours():
            return real(spec, *args, **kwargs)
        told = module.Spec(spec).to_json()
        guard.note("tensorstore.open", _in_memory(told), "stood in for")
        return real(told, *args, **{key: value for key, value in kwargs.items() if key != "context"})

    guard.wrap(module, "open", opened)


def _where(store: Any) -> str | None:
    """The address of what a store writes to; None for an array in memory, as TensorStore itself makes to read into."""
    below = getattr(store, "kvstore", store)
    try:
        return None if below is None else str(below.url)
    except ValueError:  # it has none
        return str(below.spec().to_json())


_UNWRITTEN = "hloscope-unwritten"
_KV_WRITES = ("write", "delete_range", "__setitem__", "__delitem__", "experimental_copy_range_to")


def _makes(spec: Any) -> bool:
    return isinstance(spec, dict) and bool(spec.get("create") or spec.get("delete_existing"))


def _in_memory(spec: Any) -> str:
    """Puts a specification's files into memory, in place; answers where they were to be."""
    where = ""
    for key in list(spec):
        if key == "kvstore":
            where, spec[key] = json.dumps(spec[key]), {"driver": "memory", "path": f"{_UNWRITTEN}/"}
        elif isinstance(spec[key], dict):
            where = _in_memory(spec[key]) or where
    return where
