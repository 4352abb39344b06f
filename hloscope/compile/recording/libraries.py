"""The doors of libraries: trackers, which are replaced from the start, and writers in other languages."""

from __future__ import annotations

import builtins
import glob
import importlib.abc
import importlib.machinery
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce
from types import ModuleType
from typing import Any

from hloscope.compile.recording.guard import Guard, opens_for_writing

Door = tuple[str, Callable[[ModuleType], None]]
"""The name of a module, and a function that replaces functions in it."""
_LARGE_BYTES = 1 << 28
"""Faked arrays that are larger are not written to the scratch folder either."""


def install_when_imported(guard: Guard, doors: Sequence[Door]) -> None:
    """Installs doors right after their modules are imported, or now if they already are."""
    by_module: dict[str, list[Callable[[ModuleType], None]]] = {}
    for name, install in doors:
        by_module.setdefault(name, []).append(install)
    finder = _Finder(guard, by_module)
    guard.at_end.append(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)
    sys.meta_path.insert(0, finder)
    for name in by_module:
        module = sys.modules.get(name)
        if module is not None:
            finder.install(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as the other finders do, and installs the doors of those that have any once they are loaded."""

    def __init__(self, guard: Guard, doors: Mapping[str, Sequence[Callable[[ModuleType], None]]]) -> None:
        self._guard, self._doors = guard, doors

    def install(self, module: ModuleType) -> None:
        """Installs a module's doors, except those that replace what this version of it does not have."""
        if self._guard.is_on:
            for install in self._doors[module.__name__]:
                with suppress(AttributeError):
                    self._guard.apart(install, module)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a module that has doors."""
        if name not in self._doors:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module with its own loader, and installs its doors."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder
        self.create_module = loader.create_module  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.install(module)


class StandIn:
    """Accepts every call and keeps nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Accepts a call of what it returned."""
        return StandIn()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getitem__(self, _: Any) -> Any:
        return StandIn()

    def __setitem__(self, _: Any, __: Any) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return ""


# The tables have a row per function: its name in the module, and what its kind of door needs to know.

_Table = dict[str, tuple[tuple[Any, ...], ...]]


def _list(names: str, prefix: str = "") -> tuple[tuple[str], ...]:
    return tuple((f"{prefix}{name}",) for name in names.split())


_TRACKERS_SWITCHED: _Table = {
    "wandb": (("init", {"mode": "disabled"}),),
    "neptune": tuple((name, {"mode": "debug"}) for name in ("init_run", "init_model", "init_project")),
}
"""Trackers that can be turned off: the keywords that do it."""
_TRACKERS_STOOD_IN = {
    "wandb": "login",
    "comet_ml": "start init login Experiment ExistingExperiment OfflineExperiment ExistingOfflineExperiment "
    "APIExperiment",
    "aim": "Run Session",
    "clearml": "Task",
    "swanlab": "init login log finish",
}
"""Trackers that cannot, or that use the network for it: something that accepts everything takes their place."""
_TRACKERS_SENDING: _Table = {
    "wandb.sdk.wandb_run": _list("log log_artifact save log_model define_metric", "Run."),
}
"""Functions of runs that are open already: they do nothing from the first fake on."""
_WRITERS_SWITCHED: _Table = {"tensorboardX.writer": (("SummaryWriter.__init__", {"write_to_disk": False}),)}
_LOGGERS: _Table = {
    "torch.utils.tensorboard.writer": (("SummaryWriter.__init__", "log_dir"),),
    "flax.metrics.tensorboard": (("SummaryWriter.__init__", "log_dir"),),
    "tensorflow.python.ops.summary_ops_v2": (("create_file_writer_v2", "logdir"), ("create_file_writer", "logdir")),
    "tensorflow._api.v2.summary": (("create_file_writer", "logdir"),),
    "jax.profiler": (("start_trace", "log_dir"),),
    "clu.metric_writers.summary_writer": (("SummaryWriter.__init__", "logdir"),),
    "clu.metric_writers.torch_tensorboard_writer": (("TorchTensorboardWriter.__init__", "logdir"),),
}
"""Writers of TensorBoard's files: the argument that names the folder, which becomes one in the scratch folder."""
_SENDING: _Table = {
    "google.cloud.storage.blob": _list(
        "upload_from_filename upload_from_file upload_from_string delete rewrite", "Blob."
    ),
    "google.cloud.storage.bucket": _list("delete_blob rename_blob copy_blob", "Bucket."),
    "huggingface_hub.hf_api": _list(
        "upload_file upload_folder create_commit create_repo delete_file delete_folder delete_repo", "HfApi."
    ),
    "fsspec.spec": _list("rm rm_file put put_file pipe pipe_file touch mv copy delete", "AbstractFileSystem."),
}
"""Functions that change something on another machine: they do nothing from the first fake on."""
_BY_PATH: _Table = {
    "sqlite3": (("connect", 0, "database", "a"),),
    "h5py._hl.files": (("File.__init__", 1, "name", None),),
    "torch.serialization": (("save", 1, "f", "w"), ("load", 0, "f", "r")),
    "safetensors": (("serialize_file", 1, "filename", "w"), ("safe_open", 0, "filename", "r")),
    "safetensors.numpy": (("save_file", 1, "filename", "w"),),
    "safetensors.torch": (("save_file", 1, "filename", "w"),),
    "safetensors.flax": (("save_file", 1, "filename", "w"),),
    "tensorflow.python.lib.io.file_io": (("FileIO.__init__", 1, "name", None),),
}
"""Functions in other languages that open a path: its position and name, and the mode; None if the next argument is."""
_NO_FILES = ("", ":memory:", b"", b":memory:")
_VARIABLES = {
    "WANDB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "file://{scratch}/trackers/mlflow",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "NEPTUNE_MODE": "debug",
    "NEPTUNE_DATA_DIRECTORY": "{scratch}/trackers/neptune",
}
"""Settings that turn trackers off in processes that the script starts, too."""
_READS_OF_TENSORFLOW = ("file_exists_v2", "is_directory_v2", "list_directory_v2", "get_matching_files_v2")


def turn_off_trackers(guard: Guard) -> None:
    """Sets the environment variables that turn trackers off, until the recording ends."""
    for variable, value in _VARIABLES.items():
        guard.replace(os.environ, variable, value.format(scratch=guard.log.scratch))


def tracker_doors(guard: Guard) -> list[Door]:
    """The doors of trackers that send what they are told to a server."""
    return [
        *_make_doors(guard, _switch, _TRACKERS_SWITCHED),
        *((module, partial(_stand_in, guard, names.split())) for module, names in _TRACKERS_STOOD_IN.items()),
        *_make_doors(guard, _stop_sending, _TRACKERS_SENDING),
        ("mlflow", partial(_keep_runs_of_mlflow, guard)),
    ]


def writer_doors(guard: Guard) -> list[Door]:
    """The doors of libraries that write files, here or elsewhere."""
    return [
        *_make_doors(guard, _switch, _WRITERS_SWITCHED),
        *_make_doors(guard, _log_elsewhere, _LOGGERS),
        *_make_doors(guard, _stop_sending, _SENDING),
        *_make_doors(guard, _redirect_path, _BY_PATH),
        *_make_doors(
            guard,
            _use_python,
            {"tensorflow.python.lib.io.file_io": tuple((name,) for name in _find_python_functions())},
        ),
        ("fsspec.spec", partial(_redirect_remote_files, guard)),
        ("numpy.lib._format_impl", partial(_write_no_zeros, guard)),
        ("multiprocessing.process", partial(_list_processes, guard)),
    ]


def _make_doors(guard: Guard, handle: Callable[..., Any], table: _Table) -> Iterator[Door]:
    """The doors of one kind for each function of a table that this version of its module has.

    Args:
        guard: The guard.
        handle: Called with the guard, the function's name, its details in the table, the function and its arguments.
        table: The functions.
    """

    def install(rows: tuple[tuple[Any, ...], ...], module: ModuleType) -> None:
        for name, *details in rows:
            *path, last = name.split(".")
            with suppress(AttributeError):
                holder = reduce(getattr, path, module)
                handler = partial(handle, guard, f"{module.__name__}.{name}", *details)
                guard.wrap(holder, last, handler, everywhere=True)

    return ((module, partial(install, rows)) for module, rows in table.items())


def _switch(guard: Guard, what: str, keywords: dict[str, Any], real: Any, /, *args: Any, **kwargs: Any) -> Any:
    guard.note(what, "", "stood in for")
    return real(*args, **kwargs | keywords)


def _stand_in(guard: Guard, names: Sequence[str], module: ModuleType) -> None:
    for name in names:
        with suppress(AttributeError):
            _replace_by_stand_in(guard, module, name, getattr(module, name))


def _replace_by_stand_in(guard: Guard, module: ModuleType, name: str, real: Any) -> None:
    def call(*_: Any, **__: Any) -> Any:
        guard.note(f"{module.__name__}.{name}", "", "stood in for")
        return True if name == "login" else StandIn()

    if not isinstance(real, type):
        guard.wrap(module, name, call, everywhere=True)
        return
    body = {"__init__": lambda *_, **__: call() and None, "__module__": real.__module__}
    kind = type(real.__name__, (StandIn,), body)
    guard.replace(module, name, kind)
    guard.replace_imported(module, name, real, kind)


def _log_elsewhere(guard: Guard, what: str, argument: str, real: Any, /, *args: Any, **kwargs: Any) -> Any:
    position = 1 if what.endswith("__init__") else 0
    folder = kwargs.pop(argument, args[position] if len(args) > position else "runs")
    elsewhere = folder
    if not str(folder).startswith(guard.log.scratch):  # else another door has replaced it
        elsewhere = os.path.join(guard.log.scratch, "trackers", str(folder or "runs").lstrip("/"))
        guard.note(what.removesuffix(".__init__"), folder, "redirected", elsewhere)
    return real(*args[:position], elsewhere, *args[position + 1 :], **kwargs)


def _stop_sending(guard: Guard, what: str, real: Any, /, *args: Any, **kwargs: Any) -> Any:
    if not guard.takes_over() or _is_local(args[0] if args else None):
        return real(*args, **kwargs)
    where = next((arg for arg in (*args[1:], *args[:1]) if isinstance(arg, str)), "")
    guard.note(what, where, "skipped")
    return StandIn()


def _use_python(guard: Guard, what: str, real: Any, /, *args: Any, **kwargs: Any) -> Any:
    name = what.rpartition(".")[2]
    if not guard.takes_over():
        return real(*args, **kwargs)
    if any("://" in os.fsdecode(arg) for arg in args if isinstance(arg, str | bytes | os.PathLike)):
        if name in _READS_OF_TENSORFLOW:
            return real(*args, **kwargs)
        return guard.note(what, args[0], "skipped")
    return _find_python_functions()[name](*args, **kwargs)


def _find_python_functions() -> dict[str, Callable[..., Any]]:
    """Python's functions for each of TensorFlow's for files, as they are now: with their doors."""
    return {
        "delete_file_v2": os.remove,
        "delete_recursively_v2": shutil.rmtree,
        "copy_v2": lambda src, dst, overwrite=False: shutil.copyfile(src, dst),
        "rename_v2": lambda src, dst, overwrite=False: os.replace(src, dst),
        "create_dir_v2": lambda path: os.makedirs(path, exist_ok=True),
        "recursive_create_dir_v2": lambda path: os.makedirs(path, exist_ok=True),
        "file_exists_v2": os.path.exists,
        "is_directory_v2": os.path.isdir,
        "list_directory_v2": os.listdir,
        "get_matching_files_v2": glob.glob,
    }


def _redirect_path(
    guard: Guard,
    what: str,
    position: int,
    argument: str,
    fixed_mode: str | None,
    real: Any,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    path: Any = kwargs.get(argument, args[position] if len(args) > position else None)
    place: Any
    is_path = isinstance(path, str | bytes | os.PathLike) and path not in _NO_FILES and "://" not in str(path)
    if not is_path or kwargs.get("uri"):
        return real(*args, **kwargs)
    shown = what.removesuffix(".__init__")
    mode = fixed_mode or str(kwargs.get("mode", args[position + 1] if len(args) > position + 1 else None))
    if not opens_for_writing(mode):
        place = guard.find_readable(path)
    elif what.endswith(".save_file") and _is_large(guard, args[0] if args else kwargs.get("tensors")):
        return guard.note(shown, guard.find_guarded(path) or path, "skipped")
    else:
        place = guard.redirect(shown, path, copied=mode[0] in "ar") or path
    if argument in kwargs:
        return real(*args, **kwargs | {argument: place})
    return real(*args[:position], place, *args[position + 1 :], **kwargs)


def _is_large(guard: Guard, tensors: Any) -> bool:
    if not guard.was_live or not isinstance(tensors, dict):
        return False
    return sum(getattr(each, "nbytes", 0) for each in tensors.values() if guard.is_faked(each)) > _LARGE_BYTES


def _keep_runs_of_mlflow(guard: Guard, module: ModuleType) -> None:
    """Keeps MLflow's runs in the scratch folder, whatever server the script names."""
    elsewhere = f"file://{guard.log.scratch}/trackers/mlflow"
    before, choose = os.environ.get("MLFLOW_TRACKING_URI"), module.set_tracking_uri

    def set_uri(_: Any, uri: Any = None) -> None:
        guard.note("mlflow.set_tracking_uri", uri, "redirected", elsewhere)

    def start_run(real: Any, *args: Any, **kwargs: Any) -> Any:
        guard.note("mlflow.start_run", "", "redirected", elsewhere)
        return real(*args, **kwargs)

    def make_client(real: Any, client: Any, tracking_uri: Any = None, *_: Any, **__: Any) -> None:
        if tracking_uri not in (None, elsewhere):
            guard.note("mlflow.MlflowClient", tracking_uri, "redirected", elsewhere)
        real(client, elsewhere)

    choose(elsewhere)
    guard.at_end.append(lambda: choose(before))
    guard.wrap(module, "set_tracking_uri", set_uri, everywhere=True)
    guard.wrap(module, "start_run", start_run, everywhere=True)
    guard.wrap(module.MlflowClient, "__init__", make_client)


def _redirect_remote_files(guard: Guard, module: ModuleType) -> None:
    """Writes files of other machines to the scratch folder; fsspec opens local files with Python's `open`."""

    def call(real: Any, system: Any, path: Any, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        if not opens_for_writing(mode) or _is_local(system) or not guard.takes_over():
            return real(system, path, mode, *args, **kwargs)
        protocol = system.protocol if isinstance(system.protocol, str) else system.protocol[0]
        place = os.path.join(guard.log.scratch, "remote", protocol, str(path).replace("://", "/").lstrip("/"))
        guard.note("fsspec.open", f"{protocol}://{path}", "redirected", place)
        return guard.apart(_open_new, place, mode)

    guard.wrap(module.AbstractFileSystem, "open", call)


def _is_local(system: Any) -> bool:
    """Whether a file system of fsspec's is in memory, or uses Python's functions for files."""
    protocol = getattr(system, "protocol", None)
    names = (protocol,) if isinstance(protocol, str) else tuple(protocol or ())
    return bool({"file", "local", "memory"} & set(names))


def _open_new(place: str, mode: str) -> Any:
    os.makedirs(os.path.dirname(place), exist_ok=True)
    return builtins.open(place, mode)


def _write_no_zeros(guard: Guard, module: ModuleType) -> None:
    """Lets a faked array take no room in a file of NumPy's."""

    def call(real: Any, fp: Any, array: Any, *args: Any, **kwargs: Any) -> Any:
        is_file = isinstance(fp, io.BufferedWriter | io.BufferedRandom | io.FileIO)
        if not is_file or array.nbytes < 1 << 20 or not guard.is_faked(array) or array.dtype.hasobject:
            return real(fp, array, *args, **kwargs)
        header = module.header_data_from_array_1_0(array)
        module._write_array_header(fp, header, args[0] if args else kwargs.get("version"))
        fp.flush()
        os.ftruncate(fp.fileno(), fp.tell() + array.nbytes)
        return fp.seek(0, os.SEEK_END) and None

    guard.wrap(module, "write_array", call, everywhere=True)


def _list_processes(guard: Guard, module: ModuleType) -> None:
    """Lists the processes that are started from the first fake on."""

    def call(real: Any, process: Any) -> None:
        if guard.takes_over():
            guard.note("multiprocessing.Process", process.name, "ran unseen")
        real(process)

    guard.wrap(module.BaseProcess, "start", call)
