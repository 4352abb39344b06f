"""Trackers and writers in other languages, as modules of the same names that would do harm."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap

import pytest

from hloscope.compile.recording.writes import writes_guarded

HARM = """
    sent = []
    def harm(*args, **kwargs):
        sent.append((args, kwargs))
        return sent
"""
MODULES = {
    "wandb/__init__.py": HARM + """
    def init(project=None, mode="online"):
        return None if mode == "disabled" else harm(project)
    login = harm
    """,
    "wandb/sdk/__init__.py": "",
    "wandb/sdk/wandb_run.py": HARM + """
    class Run:
        def log(self, values): harm(values)
    """,
    "comet_ml/__init__.py": HARM + """
    class Experiment:
        def __init__(self, **kwargs): harm()
        def log_metric(self, *_): harm()
    start = harm
    """,
    "aim/__init__.py": HARM + """
    class Run:
        def __init__(self, **kwargs): harm()
        def track(self, *_, **__): harm()
        def __setitem__(self, *_): harm()
    """,
    "neptune/__init__.py": HARM + """
    def init_run(project=None, mode="async"):
        return {} if mode == "debug" else harm()
    """,
    "tensorboardX/__init__.py": "from .writer import SummaryWriter",
    "tensorboardX/writer.py": HARM + """
    class SummaryWriter:
        def __init__(self, logdir=None, write_to_disk=True):
            if write_to_disk: harm()
    """,
    "torch/__init__.py": "",
    "torch/serialization.py": """
    import os
    def save(obj, f): os_open(f, "w").write(obj)
    def load(f): return os_open(f).read()
    from codecs import open as os_open
    """,
    "torch/utils/__init__.py": "",
    "torch/utils/tensorboard/__init__.py": "from .writer import SummaryWriter",
    "torch/utils/tensorboard/writer.py": """
    class SummaryWriter:
        def __init__(self, log_dir=None, comment=""):
            self.log_dir = log_dir
    """,
    "mlflow/__init__.py": HARM + """
    import os
    uri = None
    def set_tracking_uri(new):
        global uri
        uri = new
    def start_run():
        return uri if uri and uri.startswith("file:") else harm()
    class MlflowClient:
        def __init__(self, tracking_uri=None, registry_uri=None): self.uri = tracking_uri
    """,
    "google/cloud/storage/blob.py": HARM + """
    class Blob:
        upload_from_filename = upload_from_string = delete = harm
    """,
    "tensorflow/python/lib/io/file_io.py": """
    class FileIO:
        def __init__(self, name, mode="r"): self.name = name
    def _cxx(*_): raise AssertionError("C++ ran")
    delete_file_v2 = delete_recursively_v2 = rename_v2 = recursive_create_dir_v2 = file_exists_v2 = _cxx
    """,
}  # fmt: skip
TOPS = {name.partition("/")[0] for name in MODULES}


@pytest.fixture
def site(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        path = tmp_path / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    aside = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in TOPS}
    for name in aside:
        del sys.modules[name]
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    yield tmp_path / "home"
    for name in [name for name in sys.modules if name.partition(".")[0] in TOPS]:
        del sys.modules[name]
    sys.modules.update(aside)


def guarded():
    return writes_guarded(lambda _: False, blank=list)


def use_wandb():
    import wandb

    assert wandb.init(project="p") is None
    assert wandb.login() is True
    return wandb.sent


def use_comet():
    import comet_ml

    comet_ml.Experiment(api_key="a").log_metric("loss", 1)
    with comet_ml.start() as run:
        run.log_metrics({"a": 1})

    class Mine(comet_ml.Experiment):
        pass

    Mine().log_metric("a", 1)
    return comet_ml.sent


def use_aim():
    import aim

    run = aim.Run(repo=".")
    run.track(1, name="loss")
    run["hparams"] = {}
    return aim.sent


def use_neptune():
    import neptune

    assert neptune.init_run(project="a/b") == {}
    return neptune.sent


def use_tensorboardx():
    import tensorboardX

    tensorboardX.SummaryWriter("logs")
    return tensorboardX.writer.sent


def use_mlflow():
    import mlflow

    mlflow.set_tracking_uri("http://company")
    assert mlflow.start_run().startswith("file:")
    assert mlflow.MlflowClient("http://company").uri.startswith("file:")
    return mlflow.sent


@pytest.mark.parametrize("use", [use_wandb, use_comet, use_aim, use_neptune, use_tensorboardx, use_mlflow])
@pytest.mark.parametrize("was_imported", [False, True], ids=["imported later", "imported before"])
def test_trackers_are_stood_in_for_from_the_beginning(use, was_imported, site):
    names = {"use_comet": "comet_ml", "use_tensorboardx": "tensorboardX"}
    name = names.get(use.__name__, use.__name__.removeprefix("use_"))
    if was_imported:
        importlib.import_module(name)
    with guarded() as log:
        assert use() == []
    module = importlib.import_module(name)
    assert log.entries
    assert {entry.outcome for entry in log.entries} <= {"stood in for", "redirected"}
    assert type(module.__spec__.loader).__module__.startswith(("importlib", "_frozen_importlib"))
    assert not any("hloscope" in getattr(value, "__module__", "") for value in vars(module).values())


def test_event_files_are_written_elsewhere(site):
    with guarded() as log:
        from torch.utils.tensorboard import SummaryWriter

        assert SummaryWriter("logs", comment="a").log_dir == f"{log.scratch}/trackers/logs"
        assert SummaryWriter(log_dir="logs").log_dir == f"{log.scratch}/trackers/logs"
    assert SummaryWriter("logs").log_dir == "logs"


def test_runs_and_stores_that_are_open_get_nothing_faked(site):
    from google.cloud.storage.blob import Blob
    from wandb.sdk import wandb_run

    with guarded() as log:
        wandb_run.Run().log({"loss": 1.0})
        log.faking_begins()
        wandb_run.Run().log({"loss": 0.0})
        Blob().upload_from_filename("model.bin")
    assert [args for args, _ in wandb_run.sent] == [({"loss": 1.0},)]
    assert sys.modules["google.cloud.storage.blob"].sent == []
    assert [(entry.what, entry.outcome) for entry in log.entries] == [
        ("wandb.sdk.wandb_run.Run.log", "skipped"),
        ("google.cloud.storage.blob.Blob.upload_from_filename", "skipped"),
    ]


def test_writers_that_are_given_a_path_are_given_another(site):
    from torch import serialization

    with guarded() as log:
        log.faking_begins()
        serialization.save("weights", "model.pt")
        assert serialization.load("model.pt") == "weights"
    assert os.listdir(site) == []


def test_tensorflows_functions_for_files_take_the_doors_of_python(site):
    from tensorflow.python.lib.io import file_io

    (site / "old").write_text("old")
    with guarded() as log:
        log.faking_begins()
        file_io.recursive_create_dir_v2("a/b")
        assert file_io.file_exists_v2("a/b")
        assert file_io.FileIO("a/b/c", "w").name == f"{log.scratch}/files{site}/a/b/c"
        file_io.delete_file_v2("old")
        file_io.delete_recursively_v2("gs://bucket/old")
    assert os.listdir(site) == ["old"]
    assert [entry.destination for entry in log.entries][-1] == "gs://bucket/old"


def test_writes_may_be_allowed_and_runs_are_still_not_registered(site):
    with writes_guarded(lambda _: False, blank=list, allow_writes=True) as log:
        log.faking_begins()
        assert use_wandb() == use_comet() == use_mlflow() == []
        (site / "file").write_text("faked")
    assert (site / "file").read_text() == "faked"
    assert {entry.outcome for entry in log.entries} == {"stood in for", "redirected"}


def test_processes_that_the_script_starts_find_trackers_turned_off(site):
    with guarded():
        done = subprocess.run(["sh", "-c", "echo $WANDB_MODE"], capture_output=True, text=True, check=True)
    assert done.stdout == "disabled\n"


def test_remote_files_are_written_to_the_scratch_folder():
    fsspec = pytest.importorskip("fsspec")

    class Remote(fsspec.AbstractFileSystem):
        protocol = "remote"
        removed = ()

        def _open(self, path, mode="rb", **kwargs):
            raise AssertionError("written")

        def rm(self, path, recursive=False, maxdepth=None):
            type(self).removed = (path,)

    with guarded() as log:
        log.faking_begins()
        with Remote().open("bucket/model.bin", "wb") as file:
            file.write(b"a")
        assert (entry := log.entries[0]).destination == "remote://bucket/model.bin"
        assert entry.went_to == f"{log.scratch}/remote/remote/bucket/model.bin"
