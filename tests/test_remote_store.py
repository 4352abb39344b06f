"""The shared cache: what another machine made is used where it is what it says it is, and nothing else is."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.base import store as store_module
from hloscope.base.errors import HloscopeError
from hloscope.base.store import RemoteStore, Store, compile_sources, open_default_store

KEY = b"k" * 32


@pytest.fixture(autouse=True)
def no_memories():
    store_module._states.clear()
    compile_sources.clear()


@pytest.fixture
def shared(tmp_path):
    return RemoteStore(f"file://{tmp_path}/shared", KEY)


def machine(tmp_path, name, remote):
    return Store(tmp_path / name, remote=remote)


def only_file(tmp_path):
    (path,) = (tmp_path / "shared").iterdir()
    return path


def test_one_machine_warms_another(tmp_path, shared):
    assert machine(tmp_path, "first", shared).put("compile", "key", b"body")
    second = machine(tmp_path, "second", shared)
    assert second.get("compile", "key") == b"body"
    only_file(tmp_path).unlink()
    assert second.get("compile", "key") == b"body"
    assert dict(compile_sources) == {"shared cache": 1, "cache": 1}


def test_what_is_about_one_machine_stays_there(tmp_path, shared):
    machine(tmp_path, "first", shared).put("target", "key", b"body")
    assert not (tmp_path / "shared").exists()
    assert machine(tmp_path, "second", shared).get("target", "key") is None


def test_who_reads_writes_nothing(tmp_path, shared):
    reading = RemoteStore(shared.url, KEY, writes=False)
    machine(tmp_path, "first", reading).put("compile", "key", b"body")
    assert not (tmp_path / "shared").exists()


@given(st.data())
def test_a_damaged_entry_is_not_there(tmp_path_factory, data):
    tmp_path = tmp_path_factory.mktemp("damaged")
    shared = RemoteStore(f"file://{tmp_path}/shared", KEY)
    shared.put("compile", "key", b"some body")
    whole = only_file(tmp_path).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    only_file(tmp_path).write_bytes(data.draw(st.sampled_from([whole[:place], changed, whole + b"x", whole * 2])))
    assert shared.get("compile", "key") in (None, b"some body")


@pytest.mark.parametrize(
    "forge",
    [
        lambda whole: whole.replace(b"body", b"fake"),
        lambda whole: whole[:-4],
        lambda whole: whole[:17] + bytes(32) + whole[49:],
        lambda whole: whole[:17] + whole[49:],
        lambda whole: whole.replace(b"cache 1", b"cache 2"),
        lambda whole: store_module._seal("compile", "key", b"body"),
        lambda whole: b'{"format":1,"kind":"compile","seal":"sha256:0","body":"Zm9yZ2Vk"}',
        lambda whole: b"",
    ],
    ids=["body", "no body", "seal", "no seal", "head", "checksum", "json", "nothing"],
)
def test_a_forged_entry_is_not_there(tmp_path, shared, forge):
    shared.put("compile", "key", b"body")
    assert shared.get("compile", "key") == b"body"
    file = only_file(tmp_path)
    file.write_bytes(forge(file.read_bytes()))
    assert shared.get("compile", "key") is None


def test_who_has_no_key_makes_no_entry_for_those_who_have(tmp_path, shared):
    RemoteStore(shared.url).put("compile", "key", b"forged")
    RemoteStore(shared.url, b"x" * 32).put("compile", "other", b"forged")
    assert shared.get("compile", "key") is None
    assert shared.get("compile", "other") is None
    shared.put("compile", "mine", b"body")
    assert RemoteStore(shared.url).get("compile", "mine") is None


def test_entries_that_were_exchanged_are_not_there(tmp_path, shared):
    for key in ("key", "other"):
        shared.put("compile", key, key.encode())
    first, second = sorted((tmp_path / "shared").iterdir())
    first.rename(tmp_path / "kept")
    second.rename(first)
    (tmp_path / "kept").rename(second)
    assert shared.get("compile", "key") is shared.get("compile", "other") is None


def test_an_entry_of_another_kind_is_not_there(tmp_path, shared):
    shared.put("tried", "key", b"body")
    only_file(tmp_path).rename(tmp_path / "shared" / store_module._make_entry_name("compile", "key"))
    assert shared.get("compile", "key") is None


def test_a_cache_that_is_away_is_mentioned_once_and_left_alone(tmp_path, caplog):
    away = machine(tmp_path, "first", RemoteStore("http://user:secret@127.0.0.1:9/cache", KEY))
    with caplog.at_level(logging.WARNING, "hloscope"):
        assert away.put("compile", "key", b"body")
        assert away.get("compile", "other") is None
        assert away.get("compile", "key") == b"body"
    (said,) = caplog.messages
    assert "without the shared cache http://127.0.0.1:9/cache" in said or "nothing can be written" in said
    assert "secret" not in said


def test_a_cache_that_does_not_answer_is_not_waited_for(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(store_module, "_LONGEST_S", 0.1)
    monkeypatch.setattr(store_module, "_open_address", lambda _: __import__("time").sleep(3600))
    store = machine(tmp_path, "first", RemoteStore("s3://bucket/cache"))
    assert store.get("compile", "key") is None
    assert store.get("compile", "key") is None
    assert len(caplog.messages) == 1


def test_what_one_process_of_a_check_finds_the_others_need_not(tmp_path, monkeypatch, caplog):
    (tmp_path / "notes").mkdir()
    monkeypatch.setenv(store_module.NOTES, str(tmp_path / "notes"))
    asked = []
    monkeypatch.setattr(store_module, "_open_address", lambda url: asked.append(url) or 1 / 0)
    for _ in range(3):
        store_module._states.clear()  # as in another process
        assert RemoteStore("s3://bucket/cache").get("compile", "key") is None
    assert (len(asked), len(caplog.messages)) == (1, 1)
    assert RemoteStore("s3://other/cache").get("compile", "key") is None
    assert (len(asked), len(caplog.messages)) == (2, 2)


def test_notes_that_cannot_be_left_are_no_error(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(store_module.NOTES, str(tmp_path / "gone"))
    monkeypatch.setattr(store_module, "_open_address", lambda _: 1 / 0)
    assert RemoteStore("s3://bucket/cache").get("compile", "key") is None
    assert len(caplog.messages) == 1


def test_time_that_brings_nothing_is_counted(shared, monkeypatch, caplog):
    monkeypatch.setattr(store_module, "_MOST_LOST_S", 100.0)
    clock = iter(range(0, 10_000, 30))  # each answer takes half a minute
    monkeypatch.setattr(store_module.time, "monotonic", lambda: next(clock))
    shared.put("compile", "key", b"body")
    for _ in range(5):
        assert shared.get("compile", "key") == b"body"
    assert [shared.get("compile", "other") for _ in range(3)] == [None] * 3
    assert caplog.messages == []
    assert shared.get("compile", "other") is None
    assert shared.get("compile", "key") is None
    (said,) = caplog.messages
    assert "it is slow: 120 s" in said


def test_a_password_is_not_repeated(tmp_path, monkeypatch, caplog):
    def refuse(_):
        raise OSError("no route to https://me:secret@host:443/cache/compile-1.json")

    monkeypatch.setattr(store_module, "_open_address", refuse)
    assert RemoteStore("https://me:secret@host/cache").get("compile", "key") is None
    (said,) = caplog.messages
    assert said.endswith("no route to https://host:443/cache/compile-1.json")
    assert "secret" not in said


def test_what_cannot_be_written_can_still_be_read(tmp_path, shared, monkeypatch, caplog):
    shared.put("compile", "key", b"body")
    files, folder = store_module._open_address(shared.url)

    def refuse(*_args, **_kwargs):
        raise PermissionError("read only")

    store_module._states.clear()
    monkeypatch.setattr(files, "pipe_file", refuse)
    monkeypatch.setattr(store_module, "_open_address", lambda _: (files, folder))
    shared.put("compile", "other", b"body")
    shared.put("compile", "third", b"body")
    assert shared.get("compile", "key") == b"body"
    assert len(caplog.messages) == 1


def test_the_environment_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HLOSCOPE_CACHE", "1")
    monkeypatch.setenv("HLOSCOPE_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("HLOSCOPE_REMOTE_CACHE", f"file://{tmp_path}/shared/")
    monkeypatch.setenv("HLOSCOPE_REMOTE_CACHE_KEY", "0123456789abcdef\n")
    monkeypatch.setenv("HLOSCOPE_REMOTE_CACHE_MODE", "read")
    found = open_default_store().remote
    assert (found.url, found.key, found.writes) == (f"file://{tmp_path}/shared", b"0123456789abcdef", False)
    assert "0123456789abcdef" not in repr(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HLOSCOPE_REMOTE_CACHE", "s4://user:secret@bucket/cache"),
        ("HLOSCOPE_REMOTE_CACHE_MODE", "write"),
        ("HLOSCOPE_REMOTE_CACHE_KEY", "short"),
        ("HLOSCOPE_CACHE_SIZE", "much"),
    ],
)
def test_settings_that_cannot_be_read_are_refused(tmp_path, monkeypatch, says, name, value):
    monkeypatch.setenv("HLOSCOPE_CACHE", "1")
    monkeypatch.setenv("HLOSCOPE_REMOTE_CACHE", "file:///shared")
    monkeypatch.setenv(name, value)
    with pytest.raises(HloscopeError) as refused:
        open_default_store()
    assert "secret" not in str(refused.value)
    says(refused)


@pytest.mark.parametrize(("text", "size"), [("2GiB", 2 << 30), ("500MB", 500_000_000), ("1048576", 1 << 20)])
def test_how_large_the_cache_may_grow_is_a_setting(monkeypatch, text, size):
    monkeypatch.setenv("HLOSCOPE_CACHE", "1")
    monkeypatch.setenv("HLOSCOPE_CACHE_SIZE", text)
    assert open_default_store().most_bytes == size
