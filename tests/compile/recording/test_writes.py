# ruff: noqa: SIM115
"""Scripts that write in every way they know, while outputs are faked: the user's folder stays byte-equal."""

from __future__ import annotations

import bz2
import contextlib
import csv
import glob
import gzip
import io
import json
import logging
import lzma
import os
import pathlib
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from concurrent import futures
from io import open as open_of_io

import numpy as np
import pytest

from hloscope.base.errors import HloscopeError
from hloscope.compile.recording.guard import Guard
from hloscope.compile.recording.writes import FakedWriteError, writes_guarded


def open_as_default(path, mode, opened=open):
    return opened(path, mode)


def open_as_keyword(path, mode, *, opened=open):
    return opened(path, mode)


remove_bound_before = os.remove


class Faking:
    """What a recording says of itself."""

    def __init__(self):
        self.faked = set()

    @contextlib.contextmanager
    def guarded(self, **kwargs):
        with writes_guarded(lambda array: id(array) in self.faked, blank=np.zeros, **kwargs) as self.log:
            yield self.log

    def begin(self):
        self.log.faking_begins()


@pytest.fixture
def faking():
    return Faking()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's folder, with a checkpoint and data, and the script running in it."""
    folder = tmp_path / "home"
    (folder / "ckpt" / "step_1").mkdir(parents=True)
    (folder / "ckpt" / "step_1" / "params.bin").write_bytes(b"\x01" * 1000)
    (folder / "ckpt" / "latest").symlink_to("step_1")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    with sqlite3.connect(folder / "runs.db") as database:
        database.execute("create table run(id)")
    database.close()
    monkeypatch.chdir(folder)
    return folder


def state_of(folder):
    """Everything in a folder: bytes, times, links and modes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = content, facts.st_mode, facts.st_mtime_ns
    return found


def atomically(folder):
    with tempfile.NamedTemporaryFile("w", dir=folder / "ckpt", delete=False) as file:
        file.write("new")
    os.replace(file.name, folder / "ckpt" / "state.json")
    return (folder / "ckpt" / "state.json").read_text() == "new"


def through_a_descriptor(folder):
    descriptor = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(descriptor, b"raw")
    os.close(descriptor)
    with os.fdopen(os.open(folder / "raw", os.O_RDWR), "r+") as file:
        file.seek(0, os.SEEK_END)
        file.write("er")
    return pathlib.Path("raw").read_text() == "rawer"


def mapped(folder):
    array = np.memmap(folder / "mapped", mode="w+", shape=(4,), dtype="u1")
    array[:] = 7
    array.flush()
    changed = np.memmap(folder / "ckpt" / "step_1" / "params.bin", mode="r+", dtype="u1")
    changed[0] = 9
    return bytes(np.fromfile("mapped", "u1")) == b"\7" * 4


def appended(folder):
    with open("metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 2}) + "\n")
    return len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def compressed(folder):
    for module in (gzip, bz2, lzma):
        with module.open(folder / module.__name__, "wb") as file:
            file.write(b"x")
        with module.open(folder / module.__name__) as file:
            assert file.read() == b"x"
    with zipfile.ZipFile("a.zip", "w") as file:
        file.writestr("name", "text")
    with tarfile.open("a.tar.gz", "w:gz") as file:
        file.add("a.zip")
    with tarfile.open("a.tar.gz") as file:
        return file.getnames() == ["a.zip"]


def of_numpy(folder):
    np.save("a.npy", np.arange(3))
    np.savez(folder / "b.npz", a=np.arange(3))
    np.savetxt("c.txt", np.arange(3))
    np.arange(3.0).tofile("d.bin")
    return len(np.load("a.npy")) == len(np.load("b.npz")["a"]) == len(np.loadtxt("c.txt")) == len(np.fromfile("d.bin"))


def into_a_database(folder):
    with contextlib.closing(sqlite3.connect(folder / "runs.db")) as database:
        database.execute("insert into run values (1)")
        database.commit()
    with contextlib.closing(sqlite3.connect("runs.db")) as database:
        return database.execute("select count(*) from run").fetchone() == (1,)


def pickled(folder):
    with (folder / "state.pkl").open("wb") as file:
        pickle.Pickler(file).dump({"a": 1})
    with open("table.csv", "w", newline="") as file:
        csv.writer(file).writerow([1])
    return pickle.loads(pathlib.Path("state.pkl").read_bytes()) == {"a": 1}


def pruned(folder):
    shutil.rmtree(folder / "ckpt" / "step_1")
    os.remove("metrics.jsonl")
    os.unlink("ckpt/latest")
    gone = not os.path.exists("metrics.jsonl") and os.listdir("ckpt") == [] and not glob.glob("ckpt/*")
    os.rmdir("ckpt")
    return gone and "ckpt" not in [entry.name for entry in os.scandir()]


def renamed(folder):
    os.rename("ckpt", "ckpt_old")
    shutil.move(folder / "ckpt_old" / "step_1", folder / "ckpt_old" / "step_2")
    pathlib.Path("metrics.jsonl").rename("moved.jsonl")
    held = sorted(os.path.join(at, name) for at, _, names in os.walk("ckpt_old") for name in names)
    return held == ["ckpt_old/latest", "ckpt_old/step_2/params.bin"] and not os.path.exists("ckpt")


def copied(folder):
    shutil.copytree("ckpt", "backup", symlinks=True)
    shutil.copy2("metrics.jsonl", folder / "backup")
    shutil.copyfile("metrics.jsonl", "ckpt/step_1/params.bin")
    return sorted(os.listdir("backup")) == ["latest", "metrics.jsonl", "step_1"]


def linked(folder):
    os.unlink("ckpt/latest")
    os.makedirs("ckpt/step_2/inner")
    os.symlink("step_2", "ckpt/latest")
    os.link("metrics.jsonl", "ckpt/latest/inner/hard")
    with open("ckpt/latest/inner/hard", "a") as file:
        file.write("more\n")
    seen = pathlib.Path("ckpt/step_2/inner/hard").read_text(), pathlib.Path("metrics.jsonl").read_text()
    return seen == ('{"step": 1}\nmore\n', '{"step": 1}\n') and os.path.realpath("ckpt/latest") == str(
        folder / "ckpt" / "step_2"
    )


def attributes_changed(folder):
    os.chmod("metrics.jsonl", 0o600)
    os.utime("metrics.jsonl", (0, 0))
    pathlib.Path("ckpt").touch()
    os.truncate("ckpt/step_1/params.bin", 10)
    return os.path.getsize("ckpt/latest/params.bin") == 10


def in_a_folder_of_its_own(folder):
    os.makedirs("out/logs")
    os.chdir("out/logs")
    pathlib.Path("a").write_text("a")
    held = os.getcwd() == str(folder / "out" / "logs") and os.path.exists("../../metrics.jsonl")
    held = held and os.listdir("..") == ["logs"] and list(pathlib.Path().glob("*")) == [pathlib.Path("a")]
    os.chdir(folder)
    return held and list(pathlib.Path("out").rglob("a")) == [pathlib.Path("out/logs/a")]


def bound_before(folder):
    with open_of_io("a", "w") as file, open_as_keyword("c", "w"):  # noqa: UP020
        file.write("a")
    with pytest.raises(FakedWriteError):
        open_as_default("b", "w")
    return os.path.exists("a") and not os.path.exists("b")


def with_an_opener(folder):
    parent = os.open("ckpt", os.O_RDONLY)
    with open("ckpt/b", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write("b")
    os.mkdir("inner", dir_fd=parent)
    with open(os.open("inner/c", os.O_WRONLY | os.O_CREAT, dir_fd=parent), "w") as file:
        file.write("c")
    os.rename("inner/c", "d", src_dir_fd=parent, dst_dir_fd=parent)
    os.unlink("latest", dir_fd=parent)
    os.close(parent)
    return sorted(os.listdir(b"ckpt")) == [b"b", b"d", b"inner", b"step_1"] and {
        entry.path for entry in os.scandir(b"ckpt")
    } == {b"ckpt/b", b"ckpt/d", b"ckpt/inner", b"ckpt/step_1"}


def through_libraries(folder):
    fsspec, epath = pytest.importorskip("fsspec"), pytest.importorskip("etils.epath")
    with fsspec.open(f"file://{folder}/by_fsspec", "w") as file:
        file.write("x")
    epath.Path("by_etils").write_text("y")
    epath.Path("ckpt").rmtree()
    return epath.Path("by_etils").read_text() == "y" and fsspec.open(str(folder / "by_fsspec")).open().read() == b"x"


def logged(folder):
    handler = logging.FileHandler(folder / "train.log")
    handler.emit(logging.LogRecord("a", 10, "f", 1, "loss 0", (), None))
    handler.close()
    return pathlib.Path("train.log").read_text() == "loss 0\n"


WAYS = [
    *(atomically, through_a_descriptor, mapped, appended, compressed, of_numpy, into_a_database, pickled, pruned),
    *(
        renamed,
        copied,
        linked,
        attributes_changed,
        in_a_folder_of_its_own,
        bound_before,
        with_an_opener,
        through_libraries,
    ),
    logged,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_below_changes_and_the_script_sees_what_it_did(way, home, faking):
    before = state_of(home)
    with faking.guarded() as log:
        faking.begin()
        assert way(home)
    assert state_of(home) == before
    assert log.entries
    assert {entry.place.rpartition(":")[0].rpartition("/")[2] for entry in log.entries} == {"test_writes.py"}
    assert not os.path.exists(log.scratch)


def test_before_anything_is_faked_files_are_the_scripts_own(home, faking):
    with faking.guarded() as log:
        assert all(way(home) for way in (atomically, appended, into_a_database, in_a_folder_of_its_own))
    assert log.entries == ()
    assert (home / "ckpt" / "state.json").read_text() == "new"
    assert len((home / "metrics.jsonl").read_text().splitlines()) == 2


def test_entries_say_what_where_and_how_often(home, faking):
    with faking.guarded() as log:
        faking.begin()
        for _ in range(3):
            appended(home)
        os.remove("runs.db")
    first, second = log.entries
    assert (first.what, first.destination, first.outcome, first.times) == (
        "open",
        str(home / "metrics.jsonl"),
        "redirected",
        3,
    )
    assert first.went_to == f"{log.scratch}/files{home}/metrics.jsonl"
    assert (second.what, second.outcome, second.went_to, second.times) == ("os.remove", "skipped", None, 1)


def test_files_that_are_open_go_on_in_copies(home, faking):
    metrics = open("metrics.jsonl", "a")
    with faking.guarded() as log:
        script_log, descriptor = open("train.log", "w"), os.open("raw", os.O_WRONLY | os.O_CREAT)
        script_log.write("real\n")
        faking.begin()
        script_log.write("faked\n")
        os.write(descriptor, b"faked")
        script_log.flush()
        assert pathlib.Path("train.log").read_text() == "real\nfaked\n"
    script_log.write("real again\n")
    os.write(descriptor, b"real")
    script_log.close()
    os.close(descriptor)
    metrics.close()
    assert (home / "train.log").read_text() == "real\nreal again\n"
    assert (home / "raw").read_bytes() == b"real"
    assert [entry.what for entry in log.entries[:2]] == ["a file that was open"] * 2
    assert "test_writes.py:" in log.entries[0].place


def test_what_no_door_sees_is_refused(home, faking):
    before = state_of(home)
    with faking.guarded() as log:
        faking.begin()
        with pytest.raises(FakedWriteError, match=r"metrics\.jsonl was not written"):
            io.FileIO("metrics.jsonl", "w")
        with pytest.raises(PermissionError):
            remove_bound_before("metrics.jsonl")
    assert state_of(home) == before
    assert {entry.outcome for entry in log.entries} == {"refused"}


def test_errors_are_those_of_the_real_functions(home, faking):
    calls = [
        (FileNotFoundError, lambda: open("none/a", "w")),
        (FileNotFoundError, lambda: open("none")),
        (FileNotFoundError, lambda: os.remove("none")),
        (FileNotFoundError, lambda: os.rename("none", "b")),
        (FileNotFoundError, lambda: os.mkdir("none/a")),
        (FileNotFoundError, lambda: shutil.rmtree("none")),
        (FileExistsError, lambda: open("metrics.jsonl", "x")),
        (FileExistsError, lambda: os.mkdir("ckpt")),
        (FileExistsError, lambda: os.open("metrics.jsonl", os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
        (FileExistsError, lambda: os.symlink("a", "ckpt")),
        (IsADirectoryError, lambda: open("ckpt", "w")),
        (IsADirectoryError, lambda: os.remove("ckpt")),
        (OSError, lambda: os.rmdir("ckpt")),
        (OSError, lambda: os.rename("metrics.jsonl", "ckpt")),
        (NotADirectoryError, lambda: shutil.rmtree("metrics.jsonl")),
    ]
    for is_faked in (False, True):
        with faking.guarded():
            if is_faked:
                faking.begin()
            for kind, call in calls:
                with pytest.raises(kind) as raised:
                    call()
                assert "hloscope-" not in str(raised.value)


def test_other_processes_are_listed(home, faking):
    with faking.guarded() as log:
        subprocess.run(["true"], check=True)
        assert log.entries == ()
        faking.begin()
        subprocess.run(["true", "a"], check=True)
        assert os.system("true b") == 0
    found = {(entry.what, entry.destination, entry.outcome) for entry in log.entries}
    assert found == {("subprocess.Popen", "true a", "ran unseen"), ("os.system", "true b", "ran unseen")}


def test_threads_are_guarded_and_so_are_those_that_outlive_the_recording(home, faking):
    before, go_on, caught = state_of(home), threading.Event(), []

    def work():
        (home / "by_thread").write_text("a")
        go_on.wait(20)
        try:
            (home / "late").write_text("faked")
        except FakedWriteError as error:
            caught.append(error)

    with faking.guarded() as log:
        faking.begin()
        thread = threading.Thread(target=work)
        thread.start()
        while not log.entries:
            pass
    go_on.set()
    thread.join()
    assert state_of(home) == before
    assert len(caught) == 1


def test_jaxs_compilation_cache_is_written(home, faking):
    import jax

    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(home / "cache"))
    try:
        with faking.guarded() as log:
            faking.begin()
            os.makedirs(home / "cache" / "inner")
            (home / "cache" / "entry").write_text("compiled")
        assert log.entries == ()
        assert (home / "cache" / "entry").read_text() == "compiled"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_threads_of_a_pool_are_free_for_other_work_afterwards(home, faking):
    with futures.ThreadPoolExecutor(1) as pool:
        with faking.guarded() as log:
            faking.begin()
            pool.submit((home / "faked").write_text, "faked").result()
        pool.submit((home / "real").write_text, "real").result()
    assert [entry.destination for entry in log.entries] == [str(home / "faked")]
    assert (home / "real").read_text() == "real"
    assert not (home / "faked").exists()


def test_what_tempfile_makes_in_the_temporary_folder_is_real(faking):
    with faking.guarded() as log:
        faking.begin()
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "a.py").write_text("print(5)")
            done = subprocess.run([sys.executable, f"{folder}/a.py"], capture_output=True, check=True)
        with tempfile.NamedTemporaryFile("w") as file, tempfile.TemporaryFile():
            file.write("a")
    assert done.stdout == b"5\n"
    assert {entry.outcome for entry in log.entries} == {"ran unseen"}
    assert not os.path.exists(folder)


def test_hloscopes_own_cache_is_written(home, faking, monkeypatch, tmp_path):
    from hloscope.base.store import open_default_store

    monkeypatch.delenv("HLOSCOPE_CACHE", raising=False)
    monkeypatch.setenv("HLOSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    with faking.guarded() as log:
        faking.begin()
        store = open_default_store()
        assert store.put("kind", "key", b"body")
        pathlib.Path("/dev/null").write_text("a")
    assert store.get("kind", "key") == b"body"
    assert log.entries == ()


NAMES = [(os, name) for name in dir(os)] + [(shutil, "rmtree"), (io, "open"), (sqlite3, "connect"), (np, "save")]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_everything_is_undone(error, home, faking):
    import builtins

    before = {(holder, name): getattr(holder, name) for holder, name in NAMES}
    opened, able, finders, folder = builtins.open, set(os.supports_dir_fd), list(sys.meta_path), os.getcwd()
    environment = dict(os.environ)
    with contextlib.suppress(ValueError, KeyboardInterrupt), faking.guarded():
        assert builtins.open is not opened
        faking.begin()
        os.makedirs("new/folder")
        os.chdir("new/folder")
        kept = open
        if error is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
        elif error is not None:
            raise error
    assert {(holder, name): getattr(holder, name) for holder, name in NAMES} == before
    assert builtins.open is opened is open_of_io
    assert (set(os.supports_dir_fd), list(sys.meta_path), os.getcwd()) == (able, finders, folder)
    assert dict(os.environ) == environment
    with kept("real", "w") as file:
        file.write("real")
    assert (home / "real").read_text() == "real"


def test_ctrl_c_waits_until_everything_is_in_its_place(tmp_path):
    class Held:
        first, last = "before", "before"

    presses = [KeyboardInterrupt, KeyboardInterrupt]

    def pressed():
        if presses:
            raise presses.pop()

    guard = Guard(lambda _: False, str(tmp_path))
    guard.replace(Held, "first", "replaced")
    guard.at_end.append(pressed)
    guard.replace(Held, "last", "replaced")
    with pytest.raises(KeyboardInterrupt):
        guard.undo()
    assert (Held.first, Held.last) == ("before", "before")


def test_many_threads(home, faking):
    def work(number):
        folder = pathlib.Path(f"folder{number % 5}")
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.tmp").write_text(str(number))
        os.replace(folder / f"{number}.tmp", folder / f"{number}")
        if number % 3 == 0:
            os.remove(folder / f"{number}")
            return None
        assert os.listdir(folder)
        return int((folder / f"{number}").read_text())

    before = state_of(home)
    with faking.guarded():
        faking.begin()
        with futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(work, range(150)))
    assert found == [None if number % 3 == 0 else number for number in range(150)]
    assert state_of(home) == before


def test_what_the_user_put_over_a_door_stays(home, faking, monkeypatch):
    monkeypatch.setattr(os, "getcwd", os.getcwd)  # which is put back last
    with faking.guarded():
        monkeypatch.setattr(os, "getcwd", lambda: "mine")
    assert os.getcwd() == "mine"


def test_one_recording_at_a_time(faking):
    with faking.guarded(), pytest.raises(HloscopeError, match="another recording"), faking.guarded():
        pass
    with faking.guarded():
        pass


def test_faked_arrays_take_no_room(home, faking):
    large = np.zeros(1 << 22, np.uint8)
    faking.faked.add(id(large))
    with faking.guarded():
        faking.begin()
        np.save("large.npy", large)
        assert np.load("large.npy").shape == large.shape
        assert os.stat("large.npy").st_blocks * 512 < large.nbytes // 4


def test_doors_are_no_methods_where_a_class_holds_them(home, faking):
    with faking.guarded():

        class Reader:
            opened = open

        with Reader().opened("metrics.jsonl") as file:
            assert file.read()


def test_nothing_is_done_at_exit_once_outputs_were_faked(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, pathlib\n"
        "from hloscope.compile.recording.writes import writes_guarded\n"
        "def save(name): pathlib.Path(name).write_text('saved')\n"
        "def unwanted(): save('unwanted')\n"
        "with writes_guarded(lambda _: False, blank=list) as log:\n"
        "    atexit.register(unwanted)\n"
        "    atexit.unregister(unwanted)\n"
        "    assert atexit.register(save, 'faked') is save\n"
        "    log.faking_begins()\n"
        "with writes_guarded(lambda _: False, blank=list):\n"
        "    atexit.register(save, 'real')\n"
    )
    root = pathlib.Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": str(root)}
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=environment, check=True)
    assert sorted(os.listdir(tmp_path)) == ["real", "script.py"]


def test_forked_processes_are_guarded(home, faking):
    before = state_of(home)
    with faking.guarded() as log:
        faking.begin()
        child = os.fork()
        if not child:
            try:
                (home / "metrics.jsonl").write_text("faked")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert os.path.exists(log.scratch)
    assert state_of(home) == before
