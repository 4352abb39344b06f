"""The doors of libraries: trackers, which are stood in for from the beginning, and writers in other languages."""

from __future__ import annotations

import builtins
import glob
import importlib.abc
import importlib.machinery
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from hloscope.program.recording.file_doors import FileDoors, writes
from hloscope.program.recording.guard import Guard

_LARGE_BYTES = 1 << 28
"""What is faked and larger is not written to the scratch folder either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateDoor:
    """Doors of a module, which are put up when it is imported, or at once where it was.

    Attributes:
        module: Its name.
        put_up: Does it.
    """

    module: str
    put_up: Callable[[ModuleType], None]


class LateDoors(importlib.abc.MetaPathFinder):
    """Puts doors up right after their modules were imported."""

    def __init__(self, doors: Sequence[LateDoor]) -> None:
        self._doors: dict[str, list[LateDoor]] = {}
        for door in doors:
            self._doors.setdefault(door.module, []).append(door)
        self._guard: Guard | None = None

    def install(self, guard: Guard) -> None:
        """Begins, until the guard's recording ends."""
        self._guard = guard
        guard.at_end.append(lambda: sys.meta_path.remove(self) if self in sys.meta_path else None)
        sys.meta_path.insert(0, self)
        for variable, value in _VARIABLES.items():
            _set(guard, variable, value.format(scratch=guard.log.scratch))
        for name in self._doors:
            module = sys.modules.get(name)
            if module is not None:
                self.put_up(module)

    def put_up(self, module: ModuleType) -> None:
        """Puts a module's doors up; an unknown version of it, which lacks what they replace, has none."""
        if self._guard is not None and self._guard.is_on:
            for door in self._doors[module.__name__]:
                with suppress(AttributeError):
                    self._guard.apart(door.put_up, module)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a module as the other finders do, and has its doors put up."""
        if name not in self._doors:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Afterwards(spec.loader, self)
        return spec


class _Afterwards(importlib.abc.Loader):
    """Loads a module as its own loader does, and puts its doors up."""

    def __init__(self, loader: Any, doors: LateDoors) -> None:
        self._loader, self._doors = loader, doors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._doors.put_up(module)


class StandIn:
    """Accepts everything and keeps nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Is accepted, too."""
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


_SWITCHED: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "wandb": (("init", {"mode": "disabled"}),),
    "neptune": tuple((name, {"mode": "debug"}) for name in ("init_run", "init_model", "init_project")),
}
"""What has a switch of its own: the keywords that turn it off."""
_UNWRITTEN = {"tensorboardX.writer": (("SummaryWriter.__init__", {"write_to_disk": False}),)}
_STOOD_IN: dict[str, tuple[str, ...]] = {
    "wandb": ("login",),
    "comet_ml": (
        *("start", "init", "login", "Experiment", "ExistingExperiment", "OfflineExperiment"),
        *("ExistingOfflineExperiment", "APIExperiment"),
    ),
    "aim": ("Run", "Session"),
    "clearml": ("Task",),
    "swanlab": ("init", "login", "log", "finish"),
}
"""What has none, or a networked one: something that accepts everything takes its place."""
_LOGGED_ELSEWHERE: dict[str, tuple[tuple[str, str], ...]] = {
    "torch.utils.tensorboard.writer": (("SummaryWriter.__init__", "log_dir"),),
    "flax.metrics.tensorboard": (("SummaryWriter.__init__", "log_dir"),),
    "tensorflow.python.ops.summary_ops_v2": (("create_file_writer_v2", "logdir"), ("create_file_writer", "logdir")),
    "tensorflow._api.v2.summary": (("create_file_writer", "logdir"),),
    "jax.profiler": (("start_trace", "log_dir"),),
    "clu.metric_writers.summary_writer": (("SummaryWriter.__init__", "logdir"),),
    "clu.metric_writers.torch_tensorboard_writer": (("TorchTensorboardWriter.__init__", "logdir"),),
}
"""Writers of TensorBoard's files, with their folder's argument, which becomes one in the scratch folder."""
_SENT: dict[str, tuple[str, ...]] = {
    "wandb.sdk.wandb_run": ("Run.log", "Run.log_artifact", "Run.save", "Run.log_model", "Run.define_metric"),
    "google.cloud.storage.blob": tuple(
        f"Blob.{name}" for name in "upload_from_filename upload_from_file upload_from_string delete rewrite".split()
    ),
    "google.cloud.storage.bucket": tuple(f"Bucket.{name}_blob" for name in ("delete", "rename", "copy")),
    "huggingface_hub.hf_api": tuple(
        f"HfApi.{name}"
        for name in "upload_file upload_folder create_commit create_repo delete_file delete_folder delete_repo".split()
    ),
    "fsspec.spec": tuple(
        f"AbstractFileSystem.{name}" for name in "rm rm_file put put_file pipe pipe_file touch mv copy delete".split()
    ),
}
"""What changes something on another machine: from the first fake on it does nothing."""
_READS = frozenset({"file_exists_v2", "is_directory_v2", "list_directory_v2", "get_matching_files_v2"})
_BY_PATH: dict[str, tuple[tuple[str, int, str], ...]] = {
    "h5py._hl.files": (("File.__init__", 1, "name"),),
    "torch.serialization": (("save", 1, "f"), ("load", 0, "f")),
    "safetensors": (("serialize_file", 1, "filename"), ("safe_open", 0, "filename")),
    "safetensors.numpy": (("save_file", 1, "filename"),),
    "safetensors.torch": (("save_file", 1, "filename"),),
    "safetensors.flax": (("save_file", 1, "filename"),),
    "tensorflow.python.lib.io.file_io": (("FileIO.__init__", 1, "name"),),
}
"""Functions in other languages that are given a path: its position and its name."""
_READING = ("load", "safe_open")


_VARIABLES = {
    "WANDB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "file://{scratch}/trackers/mlflow",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "NEPTUNE_MODE": "debug",
    "NEPTUNE_DATA_DIRECTORY": "{scratch}/trackers/neptune",
}
"""What turns trackers off in processes that the script starts, too."""


def _set(guard: Guard, variable: str, value: str) -> None:
    before = os.environ.get(variable)
    os.environ[variable] = value

    def put_back() -> None:
        if os.environ.get(variable) == value:
            del os.environ[variable]
            if before is not None:
                os.environ[variable] = before

    guard.at_end.append(put_back)


def tracker_doors(guard: Guard, files: FileDoors) -> list[LateDoor]:
    """The doors of trackers that send what they are told to a server."""
    doors = _Doors(guard, files)
    logged = {"wandb.sdk.wandb_run": _SENT["wandb.sdk.wandb_run"]}
    tables = ((_SWITCHED, doors.switched), (_STOOD_IN, doors.stood_in), (logged, doors.sent))
    return [*_late(tables), LateDoor(module="mlflow", put_up=doors.mlflow)]


def writer_doors(guard: Guard, files: FileDoors) -> list[LateDoor]:
    """The doors of what writes files, here or elsewhere."""
    doors = _Doors(guard, files)
    sent = {name: listed for name, listed in _SENT.items() if not name.startswith("wandb")}
    in_cpp = {"tensorflow.python.lib.io.file_io": tuple(_like_tensorflow())}
    tables = (
        (_UNWRITTEN, doors.switched),
        (_LOGGED_ELSEWHERE, doors.logged_elsewhere),
        (sent, doors.sent),
        (_BY_PATH, doors.by_path),
        (in_cpp, doors.as_python),
    )
    return [
        *_late(tables),
        LateDoor(module="fsspec.spec", put_up=doors.fsspec),
        LateDoor(module="numpy.lib._format_impl", put_up=doors.numpy_format),
        LateDoor(module="multiprocessing.process", put_up=doors.processes),
    ]


def _late(tables: Iterable[tuple[Mapping[str, Any], Callable[[ModuleType, Any], None]]]) -> Iterator[LateDoor]:
    for table, put_up in tables:
        for name, listed in table.items():
            yield LateDoor(module=name, put_up=partial(_each, put_up, listed))


def _each(put_up: Callable[[ModuleType, Any], None], listed: Any, module: ModuleType) -> None:
    for one in listed:
        with suppress(AttributeError):  # of another version
            put_up(module, one)


def _held(module: ModuleType, name: str) -> tuple[Any, str]:
    """What holds a function, and the function's own name."""
    *folders, last = name.split(".")
    holder: Any = module
    for folder in folders:
        holder = getattr(holder, folder)
    getattr(holder, last)
    return holder, last


class _Doors:
    def __init__(self, guard: Guard, files: FileDoors) -> None:
        self._guard, self._files = guard, files

    def _wrap(self, module: ModuleType, name: str, handle: Callable[..., Any]) -> None:
        holder, last = _held(module, name)
        self._guard.wrap(holder, last, handle, everywhere=True)

    def switched(self, module: ModuleType, one: tuple[str, dict[str, Any]]) -> None:
        name, keywords = one

        def call(real: Any, *args: Any, **kwargs: Any) -> Any:
            self._guard.note(f"{module.__name__}.{name}", "", "stood in for")
            return real(*args, **kwargs | keywords)

        self._wrap(module, name, call)

    def stood_in(self, module: ModuleType, name: str) -> None:
        def call(*_: Any, **__: Any) -> Any:
            self._guard.note(f"{module.__name__}.{name}", "", "stood in for")
            return True if name == "login" else StandIn()

        real = getattr(module, name)
        if not isinstance(real, type):
            self._wrap(module, name, lambda _, *args, **kwargs: call())
            return
        body = {"__init__": lambda *_, **__: call() and None, "__module__": real.__module__}
        kind = type(real.__name__, (StandIn,), body)
        self._guard.replace(module, name, kind)
        for other in list(sys.modules.values()):
            if isinstance(other, ModuleType) and other is not module and vars(other).get(name) is real:
                self._guard.replace(other, name, kind)

    def logged_elsewhere(self, module: ModuleType, one: tuple[str, str]) -> None:
        name, argument = one

        def call(real: Any, *args: Any, **kwargs: Any) -> Any:
            position = 1 if name.endswith("__init__") else 0
            folder = kwargs.pop(argument, args[position] if len(args) > position else "runs")
            if str(folder).startswith(self._guard.log.scratch):  # another door's
                return real(*args[:position], folder, *args[position + 1 :], **kwargs)
            elsewhere = os.path.join(self._guard.log.scratch, "trackers", str(folder or "runs").lstrip("/"))
            self._guard.note(f"{module.__name__}.{name.removesuffix('.__init__')}", folder, "redirected", elsewhere)
            return real(*args[:position], elsewhere, *args[position + 1 :], **kwargs)

        self._wrap(module, name, call)

    def sent(self, module: ModuleType, name: str) -> None:
        def call(real: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._guard.live() or self._guard.is_ours() or _is_local(args[0] if args else None):
                return real(*args, **kwargs)
            where = next((arg for arg in (*args[1:], *args[:1]) if isinstance(arg, str)), "")
            self._guard.note(f"{module.__name__}.{name}", where, "skipped")
            return StandIn()

        self._wrap(module, name, call)

    def as_python(self, module: ModuleType, name: str) -> None:
        def call(real: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._guard.live() or self._guard.is_ours():
                return real(*args, **kwargs)
            if any("://" in os.fsdecode(arg) for arg in args if isinstance(arg, str | bytes | os.PathLike)):
                if name in _READS:
                    return real(*args, **kwargs)
                return self._guard.note(f"{module.__name__}.{name}", args[0], "skipped")
            return _like_tensorflow()[name](*args, **kwargs)

        self._wrap(module, name, call)

    def by_path(self, module: ModuleType, one: tuple[str, int, str]) -> None:
        name, position, argument = one
        what = f"{module.__name__}.{name.removesuffix('.__init__')}"

        def call(real: Any, *args: Any, **kwargs: Any) -> Any:
            path = kwargs.get(argument, args[position] if len(args) > position else None)
            if not isinstance(path, str | bytes | os.PathLike) or "://" in str(path):
                return real(*args, **kwargs)
            mode = kwargs.get("mode", args[position + 1] if len(args) > position + 1 else None)
            is_read = not writes(str(mode), None) if name.endswith("__init__") else name in _READING
            if is_read:
                return _with_path(real, self._guard.seen(path), position, argument, args, kwargs)
            if name == "save_file" and self._is_large(args[0] if args else kwargs.get("tensors")):
                self._guard.note(what, self._guard.target(path) or path, "skipped")
                return None
            place = self._files.redirected(what, path, copied=str(mode)[:1] in "ar")
            return _with_path(real, place or path, position, argument, args, kwargs)

        self._wrap(module, name, call)

    def _is_large(self, tensors: Any) -> bool:
        if not self._guard.live() or not isinstance(tensors, dict):
            return False
        return sum(getattr(each, "nbytes", 0) for each in tensors.values() if self._guard.is_faked(each)) > _LARGE_BYTES

    def mlflow(self, module: ModuleType) -> None:
        """Has its runs kept in the scratch folder, whatever server it is told of."""
        elsewhere, guard = f"file://{self._guard.log.scratch}/trackers/mlflow", self._guard
        before, chosen = os.environ.get("MLFLOW_TRACKING_URI"), module.set_tracking_uri

        def told(_: Any, uri: Any = None) -> None:
            guard.note("mlflow.set_tracking_uri", uri, "redirected", elsewhere)

        def started(real: Any, *args: Any, **kwargs: Any) -> Any:
            guard.note("mlflow.start_run", "", "redirected", elsewhere)
            return real(*args, **kwargs)

        def made(real: Any, client: Any, tracking_uri: Any = None, *_: Any, **__: Any) -> None:
            if tracking_uri not in (None, elsewhere):
                guard.note("mlflow.MlflowClient", tracking_uri, "redirected", elsewhere)
            real(client, elsewhere)

        chosen(elsewhere)
        guard.at_end.append(lambda: chosen(before))
        guard.wrap(module, "set_tracking_uri", told, everywhere=True)
        guard.wrap(module, "start_run", started, everywhere=True)
        guard.wrap(module.MlflowClient, "__init__", made)

    def fsspec(self, module: ModuleType) -> None:
        """Files of other machines are written to the scratch folder; local ones pass through Python's `open`."""

        def call(real: Any, system: Any, path: Any, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
            writes = bool(set(mode) & set("wax+"))
            if not writes or _is_local(system) or not self._guard.live() or self._guard.is_ours():
                return real(system, path, mode, *args, **kwargs)
            protocol = system.protocol if isinstance(system.protocol, str) else system.protocol[0]
            place = os.path.join(self._guard.log.scratch, "remote", protocol, str(path).replace("://", "/").lstrip("/"))
            self._guard.note("fsspec.open", f"{protocol}://{path}", "redirected", place)
            return self._guard.apart(_opened_new, place, mode)

        self._guard.wrap(module.AbstractFileSystem, "open", call)

    def numpy_format(self, module: ModuleType) -> None:
        """Has a faked array take no room in a file."""

        def call(real: Any, fp: Any, array: Any, *args: Any, **kwargs: Any) -> Any:
            is_file = isinstance(fp, io.BufferedWriter | io.BufferedRandom | io.FileIO)
            if not is_file or array.nbytes < 1 << 20 or not self._guard.is_faked(array) or array.dtype.hasobject:
                return real(fp, array, *args, **kwargs)
            header = module.header_data_from_array_1_0(array)
            module._write_array_header(fp, header, args[0] if args else kwargs.get("version"))
            fp.flush()
            os.ftruncate(fp.fileno(), fp.tell() + array.nbytes)
            return fp.seek(0, os.SEEK_END) and None

        self._guard.wrap(module, "write_array", call, everywhere=True)

    def processes(self, module: ModuleType) -> None:
        """Lists processes that are started from the first fake on."""

        def call(real: Any, process: Any) -> None:
            if self._guard.live() and not self._guard.is_ours():
                self._guard.note("multiprocessing.Process", process.name, "ran unseen")
            real(process)

        self._guard.wrap(module.BaseProcess, "start", call)


def _like_tensorflow() -> dict[str, Callable[..., Any]]:
    """TensorFlow's functions for files, with what does the same through the doors of Python's own."""
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


def _is_local(system: Any) -> bool:
    """Whether a file system of fsspec's is this machine's: in memory, or with Python's functions for files."""
    protocol = getattr(system, "protocol", None)
    names = (protocol,) if isinstance(protocol, str) else tuple(protocol or ())
    return bool({"file", "local", "memory"} & set(names))


def _opened_new(place: str, mode: str) -> Any:
    os.makedirs(os.path.dirname(place), exist_ok=True)
    return builtins.open(place, mode)


def _with_path(real: Any, path: Any, position: int, argument: str, args: Any, kwargs: dict[str, Any]) -> Any:
    if argument in kwargs:
        return real(*args, **kwargs | {argument: path})
    return real(*args[:position], path, *args[position + 1 :], **kwargs)
