"""Orbax, Flax and TensorStore: what is saved of faked outputs is restored, and real checkpoints stay as they are."""

from __future__ import annotations

import contextlib
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hloscope.compile.recording.writes import writes_guarded

ocp = pytest.importorskip("orbax.checkpoint")
pytestmark = pytest.mark.filterwarnings("ignore")


def zeros(shape, dtype, sharding):
    array = np.zeros(shape, dtype)
    return array if sharding is None else jax.device_put(array, sharding)


@pytest.fixture(scope="module")
def real_checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with ocp.CheckpointManager(folder / "ckpt") as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(4, step), "n": step}))
    return folder


class Run:
    """A script's state, as the recorder fakes it."""

    def __init__(self):
        self.faked = jnp.ones(4)
        self.state = {"w": self.faked, "n": 3}

    @contextlib.contextmanager
    def guarded(self):
        with writes_guarded(lambda array: array is self.faked, blank=zeros) as self.log:
            yield self.log

    def begin(self):
        self.log.faking_begins()


@pytest.fixture
def run():
    return Run()


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def is_blank(tree):
    return tree["n"] == 3 and isinstance(tree["w"], jax.Array) and not tree["w"].any()


def test_a_manager_goes_on_and_keeps_nothing(real_checkpoints, run):
    before, folder = content(real_checkpoints), real_checkpoints / "ckpt"
    with run.guarded() as log:
        manager = ocp.CheckpointManager(
            folder, options=ocp.CheckpointManagerOptions(max_to_keep=1, save_interval_steps=5)
        )
        run.begin()
        saved = [manager.save(step, args=ocp.args.StandardSave(run.state)) for step in (4, 5, 10)]
        manager.wait_until_finished()
        assert saved == [False, True, True]
        assert (manager.latest_step(), manager.all_steps()) == (10, [1, 2, 5, 10])
        assert is_blank(manager.restore(None, args=ocp.args.StandardRestore(run.state)))
        assert is_blank(manager.restore(5))
        assert manager.item_metadata(10)["w"].shape == (4,)
        assert manager.restore(2, args=ocp.args.StandardRestore(run.state))["w"].tolist() == [2.0] * 4
        manager.delete(1)
        manager.wait_until_finished()
        manager.reload()
        assert manager.all_steps() == [2, 5, 10]
        manager.close()
        with ocp.CheckpointManager(folder) as another:
            assert is_blank(another.restore(another.latest_step()))
    assert content(real_checkpoints) == before
    assert ("CheckpointManager.save", str(folder / "10"), "skipped") in {
        (entry.what, entry.destination, entry.outcome) for entry in log.entries
    }
    with ocp.CheckpointManager(folder) as afterwards:
        assert afterwards.all_steps() == [1, 2]


def test_several_items(tmp_path, run):
    with run.guarded():
        run.begin()
        with ocp.CheckpointManager(tmp_path / "new", item_names=("state", "meta")) as manager:
            args = ocp.args.Composite(state=ocp.args.StandardSave(run.state), meta=ocp.args.JsonSave({"a": 1}))
            assert manager.save(0, args=args)
            wanted = ocp.args.Composite(state=ocp.args.StandardRestore(run.state), meta=ocp.args.JsonRestore())
            restored = manager.restore(0, args=wanted)
            assert is_blank(restored["state"])
            assert restored.meta == {"a": 1}
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["StandardCheckpointer", "PyTreeCheckpointer"])
def test_checkpointers(kind, tmp_path, real_checkpoints, run):
    with run.guarded(), getattr(ocp, kind)() as checkpointer:
        run.begin()
        checkpointer.save(tmp_path / "a", run.state)
        getattr(checkpointer, "wait_until_finished", lambda: None)()
        assert is_blank(checkpointer.restore(tmp_path / "a", run.state))
        with pytest.raises(ValueError, match="already exists"):
            checkpointer.save(tmp_path / "a", run.state)
        checkpointer.save(tmp_path / "a", run.state, force=True)
        real = checkpointer.restore(real_checkpoints / "ckpt" / "1" / "default", run.state)
        assert np.asarray(real["w"]).tolist() == [1.0] * 4
    assert os.listdir(tmp_path) == []


def test_what_is_small_and_real_keeps_its_value_and_placement(tmp_path, run):
    state = {"w": run.faked, "seed": np.arange(3), "count": jnp.asarray(7), "key": jax.random.key(1)}
    with run.guarded(), ocp.StandardCheckpointer() as checkpointer:
        run.begin()
        checkpointer.save(tmp_path / "a", state)
        state["seed"][:] = 0
        restored = checkpointer.restore(tmp_path / "a")
    assert restored["seed"].tolist() == [0, 1, 2]
    assert int(restored["count"]) == 7
    assert restored["count"].sharding == state["count"].sharding
    assert jnp.array_equal(jax.random.key_data(restored["key"]), jax.random.key_data(state["key"]))


def test_a_save_that_began_before_the_first_fake_is_finished(tmp_path, run):
    with run.guarded():
        manager = ocp.CheckpointManager(tmp_path / "ckpt")
        manager.save(0, args=ocp.args.StandardSave({"w": jnp.ones(1000)}))
        run.begin()
        manager.close()
    with ocp.CheckpointManager(tmp_path / "ckpt") as afterwards:
        assert afterwards.restore(0)["w"].sum() == 1000


def test_the_newer_interface(tmp_path, run):
    v1 = pytest.importorskip("orbax.checkpoint.experimental.v1")
    with run.guarded():
        run.begin()
        v1.save(tmp_path / "a", run.state)
        assert is_blank(v1.load(tmp_path / "a", run.state))
        v1.save_async(tmp_path / "b", run.state).result()
        assert all(is_blank(tree) for tree in v1.load_checkpointables(tmp_path / "b").values())
        with v1.training.Checkpointer(tmp_path / "c") as checkpointer:
            assert checkpointer.save(0, run.state)
            assert checkpointer.latest.step == 0
            assert is_blank(checkpointer.load(0, run.state))
    assert os.listdir(tmp_path) == []


def test_flax(tmp_path, run):
    checkpoints = pytest.importorskip("flax.training.checkpoints")
    checkpoints.save_checkpoint(tmp_path, {"w": jnp.ones(4), "n": 1}, 1)
    before = content(tmp_path)
    with run.guarded():
        run.begin()
        assert checkpoints.save_checkpoint(tmp_path, run.state, 7) == str(tmp_path / "checkpoint_7")
        assert checkpoints.latest_checkpoint(tmp_path) == str(tmp_path / "checkpoint_7")
        assert is_blank(checkpoints.restore_checkpoint(tmp_path, run.state))
        assert is_blank(checkpoints.restore_checkpoint(str(tmp_path), None, step=7))
        assert checkpoints.restore_checkpoint(tmp_path, run.state, step=1)["w"].tolist() == [1.0] * 4
    assert content(tmp_path) == before


def test_tensorstore(tmp_path, run):
    ts = pytest.importorskip("tensorstore")
    there = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(tmp_path / "there")}}
    new = {"metadata": {"shape": [4], "dtype": "<f4"}}
    ts.open(there | new, create=True).result().write(np.ones(4, np.float32)).result()
    before = content(tmp_path)
    with run.guarded() as log:
        run.begin()
        old = ts.open(there).result()
        old.write(np.zeros(4, np.float32)).result()
        old[...] = 0
        assert old.read().result().tolist() == [1.0] * 4
        made = ts.open({**there, **new, "kvstore": f"file://{tmp_path}/new/"}, create=True).result()
        made.write(np.ones(4, np.float32)).commit.result()
        assert made.read().result().tolist() == [0.0] * 4
    assert content(tmp_path) == before
    assert {entry.outcome for entry in log.entries} == {"skipped", "stood in for"}
