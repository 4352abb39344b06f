"""The cache on disk: whatever happens to it, what comes out is what went in, or nothing."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.base.store import Store, open_default_store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


def only_file(store):
    (path,) = store.folder.iterdir()
    return path


def test_what_goes_in_comes_out(store):
    assert store.get("kind", "key") is None
    assert store.put("kind", "key", b"body")
    assert store.get("kind", "key") == b"body"
    assert store.get("other", "key") is None
    assert store.get("kind", "other") is None
    assert store.put("kind", "key", b"")
    assert store.get("kind", "key") == b""


@given(st.data())
def test_a_damaged_entry_is_not_there(tmp_path_factory, data):
    store = Store(tmp_path_factory.mktemp("cache"))
    store.put("kind", "key", b"some body")
    path = only_file(store)
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from([whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], whole + b"x"])
    )
    path.write_bytes(damaged)
    assert store.get("kind", "key") is None
    assert path.exists() is (not whole.startswith(damaged[:17]))  # without its first bytes it may be anybody's
    assert store.put("kind", "key", b"again")
    assert store.get("kind", "key") == b"again"


def test_an_entry_under_another_name_is_a_damaged_one(store):
    store.put("kind", "key", b"body")
    path = only_file(store)
    path.rename(store._path("kind", "other"))
    assert store.get("kind", "other") is None


def test_a_deleted_folder_is_made_again(store):
    store.put("kind", "key", b"body")
    only_file(store).unlink()
    store.folder.rmdir()
    assert store.get("kind", "key") is None
    assert store.put("kind", "key", b"body")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "cache")
    assert not store.put("kind", "key", b"body")
    assert store.get("kind", "key") is None


def test_the_entries_that_were_used_last_stay(tmp_path):
    store = Store(tmp_path, most_bytes=1000)
    for number in range(3):
        store.put("kind", str(number), bytes(250))
        os.utime(store._path("kind", str(number)), (number, number))
    assert store.get("kind", "0") is not None
    store.put("kind", "3", bytes(250))
    assert [store.get("kind", str(number)) is None for number in range(4)] == [False, True, False, False]
    assert not store.put("kind", "large", bytes(1001))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000


def test_only_files_of_its_own_are_ever_removed(tmp_path):
    store = Store(tmp_path, most_bytes=1000)
    name = store._path("kind", "key").name
    foreign = {
        "video.mp4": bytes(70_000),
        "hloscope-notes": b"mine",
        f"my-{name}.bak": bytes(5000),
        name.replace("kind", "other"): b"not an entry, by a name that looks like one",
        f".{name}.123.{'0' * 16}": b"not an entry either",
        f".{name}.swp": b"hloscope cache 1\n of an editor",
    }
    for file, body in foreign.items():
        (tmp_path / file).write_bytes(body)
        os.utime(tmp_path / file, (1, 1))
    (tmp_path / "folder").mkdir()
    (tmp_path / store._path("kind", "link").name).symlink_to(tmp_path / "video.mp4")
    for number in range(9):
        assert store.put("kind", str(number), bytes(250))
        assert store.get("kind", "link") is None
    assert store.get("kind", "8") is not None
    assert store.get("kind", "0") is None
    assert {file: (tmp_path / file).read_bytes() for file in foreign} == foreign
    assert (tmp_path / store._path("kind", "link").name).is_symlink()


def test_what_killed_writers_left_goes_and_what_others_write_stays(tmp_path):
    store = Store(tmp_path)
    name = store._path("kind", "key").name
    left, empty, fresh = (tmp_path / f".{name}.{pid}.{pid * 16}" for pid in ("1", "2", "3"))
    left.write_bytes(b"hloscope cache 1\nhalf an ent")
    empty.write_bytes(b"")
    fresh.write_bytes(b"hloscope cache 1\n")
    for path in (left, empty):
        os.utime(path, (1, 1))
    store.put("kind", "other", b"body")
    assert [path.exists() for path in (left, empty, fresh)] == [False, False, True]


def test_concurrent_writers(store):
    bodies = [bytes([number]) * 50_000 for number in range(8)]

    def write_and_read(body):
        store.put("kind", "key", body)
        return store.get("kind", "key")

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(write_and_read, bodies * 5))
    assert set(found) <= {*bodies}
    assert len(list(store.folder.iterdir())) == 1


def test_the_environment_chooses(monkeypatch, tmp_path):
    monkeypatch.setenv("HLOSCOPE_CACHE", "0")
    assert open_default_store() is None
    monkeypatch.delenv("HLOSCOPE_CACHE")
    monkeypatch.setenv("HLOSCOPE_CACHE_DIR", str(tmp_path / "mine"))
    assert open_default_store().folder == tmp_path / "mine"
    monkeypatch.delenv("HLOSCOPE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert open_default_store().folder.name == "hloscope"
