"""The shared cache in real servers on this machine: whatever they do, no verdict is wrong and no check fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import remote_servers
from remote_servers import Proxy, answering, read_only_web, sftp, sshd, webdav

from hloscope.base import store
from hloscope.base.store import RemoteStore, Store, compile_sources

pytestmark = pytest.mark.long
KEY, OTHER = b"k" * 32, b"o" * 32
NEEDED = {
    "s3": ("moto", "flask", "s3fs"),
    "web": ("wsgidav", "cheroot", "aiohttp"),
    "webdav": ("wsgidav", "cheroot", "webdav4"),
    "sftp": ("paramiko",),
}
SERVERS = {
    "s3": remote_servers.s3,
    "web": lambda folder: webdav(folder, as_http=True),
    "webdav": webdav,
    "sftp": sftp,
}


@pytest.fixture(autouse=True)
def no_memories(monkeypatch):
    monkeypatch.setattr(store, "_states", {})
    monkeypatch.delenv(store.NOTES, raising=False)
    compile_sources.clear()
    if find_spec("fsspec") is not None:
        import fsspec

        for kind in fsspec.registry.values():
            kind.clear_instance_cache()


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Starts servers, each once."""
    running = {}
    with ExitStack() as until_the_end:

        def start(name):
            missing = [module for module in NEEDED[name] if find_spec(module) is None]
            if missing or (name == "sftp" and sshd() is None):
                pytest.skip(f"a server of {name} needs {', '.join(missing) or 'sshd'}")
            if name not in running:
                running[name] = until_the_end.enter_context(SERVERS[name](tmp_path_factory.mktemp(name)))
            return running[name]

        yield start


@pytest.fixture(params=SERVERS)
def server(request, started, monkeypatch, tmp_path):
    """A server that holds nothing, as its users see it from their environment."""
    found = started(request.param)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    configured(monkeypatch)
    for name in found.entries():
        found.write(name, b"")
    return replace(found)


def configured(monkeypatch):
    """Has fsspec read its settings from the environment anew, which it does only once."""
    import fsspec

    settings = {}
    fsspec.config.set_conf_env(settings)
    monkeypatch.setattr(fsspec.config, "conf", settings)


def shared(server, key=KEY, **known):
    return RemoteStore(server.url, key, **known)


def entries(server):
    """What is there beside what earlier tests left."""
    return {name: data for name, data in server.entries().items() if data}


def said(caplog):
    """What hloscope says."""
    return [record.getMessage() for record in caplog.records if record.name == "hloscope"]


def test_one_user_warms_another(tmp_path, server, caplog):
    first, second = (Store(tmp_path / name, remote=shared(server)) for name in ("first", "second"))
    body = bytes(range(256)) * 2048
    assert first.get("compile", "a key") is None
    assert first.put("compile", "a key", body)
    assert second.get("compile", "a key") == body
    assert dict(compile_sources) == {"compiler": 1, "shared cache": 1}
    assert len(entries(server)) == 1
    assert said(caplog) == []


def test_who_reads_writes_nothing(tmp_path, server):
    reading = Store(tmp_path / "first", remote=shared(server, writes=False))
    reading.put("compile", "key of a reader", b"body")
    assert reading.get("compile", "key of another") is None
    assert entries(server) == {}


def test_damaged_and_foreign_entries_are_not_there(server, caplog):
    remote = shared(server)
    remote.put("compile", "damaged", b"a body of some length")
    ((name, whole),) = entries(server).items()
    middle = len(whole) // 2
    for damaged in (
        b"",
        whole[:middle],
        whole[:-1],
        whole + whole,
        whole[:middle] + b"\0" + whole[middle + 1 :],
        b"\xff\xfe\0\0",
        b"<html>log in</html>",
        b"[" * 100_000,
        b"null",
        os.urandom(5000),
    ):
        server.write(name, damaged)
        assert remote.get("compile", "damaged") is None
    server.write(name, whole)
    assert remote.get("compile", "damaged") == b"a body of some length"
    assert said(caplog) == []


def test_entries_that_were_exchanged_are_not_there(server):
    for key in (KEY, None):
        remote = shared(server, key)
        for name in ("one", "two"):
            remote.put("compile", name, name.encode())
        names = [store._make_entry_name("compile", name) for name in ("one", "two")]
        found = entries(server)
        for name, other in (names, names[::-1]):
            server.write(name, found[other])
        assert remote.get("compile", "one") is remote.get("compile", "two") is None


def test_what_others_make_is_believed_without_a_key_alone(server, caplog):
    shared(server, None).put("compile", "of no key", b"forged")
    shared(server, OTHER).put("compile", "of another key", b"forged")
    assert shared(server).get("compile", "of no key") is None
    assert shared(server).get("compile", "of another key") is None
    assert shared(server, None).get("compile", "of another key") is None
    assert shared(server, None).get("compile", "of no key") == b"forged"
    store.warn_without_key(shared(server, None))
    store.warn_without_key(shared(server))
    (line,) = said(caplog)
    assert "is believed; with a key" in line
    assert "secret" not in line


@pytest.fixture
def proxy(server, monkeypatch):
    """Something between a user and a server; the server's address is its own."""
    made = Proxy(server.port)
    old, new = (f"127.0.0.1:{port}" for port in (server.port, made.port))
    server.url = server.url.replace(old, new)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value.replace(old, new))
    configured(monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("mode", ["refuse", "hang", "cut"])
@pytest.mark.parametrize("from_the_start", [True, False], ids=["from the start", "in the middle"])
def test_a_server_that_stops_answering_costs_little(server, proxy, monkeypatch, caplog, mode, from_the_start):
    remote = shared(server)
    if not from_the_start:
        remote.put("compile", "key", b"body")
        assert remote.get("compile", "key") == b"body"
    proxy.mode = mode
    monkeypatch.setattr(store, "_LONGEST_S", 2.0)
    begun = time.monotonic()
    for key in ("key", "other", "third"):
        assert remote.get("compile", key) is None
        remote.put("compile", key, b"body")
    assert time.monotonic() - begun < 6
    (line,) = said(caplog)
    assert re.match("hloscope: (goes on without|nothing can be written to) the shared cache", line)
    assert "secret" not in line


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
@pytest.mark.parametrize("kind", ["web", "s3"])
def test_a_server_that_refuses_is_mentioned_once(monkeypatch, caplog, kind, status):
    for module in NEEDED[kind]:
        pytest.importorskip(module)
    monkeypatch.setattr(store, "_LONGEST_S", 3.0)
    with answering(status) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "secret")
        remote = RemoteStore("s3://bucket/hloscope" if kind == "s3" else f"{address}/hloscope", KEY)
        begun = time.monotonic()
        for key in ("key", "other", "third"):
            assert remote.get("compile", key) is None
            remote.put("compile", key, b"body")
        assert time.monotonic() - begun < 10
    assert len(said(caplog)) == 1


def test_a_page_in_place_of_every_entry_is_none(caplog):
    pytest.importorskip("aiohttp")
    with answering(200) as address:
        remote = RemoteStore(f"{address}/hloscope", KEY)
        for key in ("key", "other"):
            remote.put("compile", key, b"body")
            assert remote.get("compile", key) is None
    assert said(caplog) == []


def test_a_slow_server_is_left_alone_after_a_while(monkeypatch, caplog):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(store, "_MOST_LOST_S", 1.0)
    with answering(404, after_s=0.4) as address:
        remote = RemoteStore(f"{address}/hloscope", KEY, writes=False)
        begun = time.monotonic()
        for key in range(20):
            assert remote.get("compile", str(key)) is None
        assert time.monotonic() - begun < 4
    (line,) = said(caplog)
    assert "it is slow" in line


def test_what_can_only_be_read_is_read(tmp_path, caplog):
    pytest.importorskip("aiohttp")
    with read_only_web(tmp_path) as server:
        RemoteStore(f"file://{tmp_path}/files/hloscope", KEY).put("compile", "key", b"body")
        remote = shared(server)
        for key in ("other", "third"):
            remote.put("compile", key, b"body")
        assert remote.get("compile", "key") == b"body"
        assert len(entries(server)) == 1
    (line,) = said(caplog)
    assert "nothing can be written" in line


@pytest.mark.parametrize("kind", ["web", "sftp"])
def test_who_may_not_enter_goes_on_without(started, tmp_path, monkeypatch, caplog, kind):
    server = started(kind)
    monkeypatch.setenv("HOME", str(tmp_path))
    remote = RemoteStore(server.url.replace(":secret@", ":a-wrong-secret@"), KEY)
    assert remote.reached()
    assert remote.get("compile", "key") is None
    (line,) = said(caplog)
    assert "goes on without" in line
    assert "secret" not in line


def test_a_bucket_that_is_not_there_is_not_made(started, monkeypatch, caplog):
    server = started("s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    remote = RemoteStore("s3://bukcet/hloscope", KEY)
    remote.put("compile", "key", b"body")
    remote.put("compile", "other", b"body")
    assert remote.get("compile", "key") is None
    (line,) = said(caplog)
    assert "nothing can be written" in line
    assert "bucket does not exist" in line


# ---- whole checks

MODEL = """
def step(x, w):
    return x @ w
"""
TARGETS = """
[defaults]
mesh = { X = 2, Y = 2 }
slice = "v5e:2x2"
baseline = false

[targets.small]
function = "model.py:step"
args = ["bf16[8@X,256@Y]", "bf16[256@Y,64]"]
out = ["P('X', None)"]
contract = "all-reduce@Y; nothing else"

[targets.large]
function = "model.py:step"
args = ["bf16[16@X,256@Y]", "bf16[256@Y,64]"]
out = ["P(None, None)"]
contract = "all-reduce@Y; nothing else"
"""


def checked(folder, user, server, *names, **environment):
    """What a check of a user with a clean home says, where its compiles are from, and what it says of the cache."""
    project, home = folder / "project", folder / user
    project.mkdir(exist_ok=True)
    home.mkdir(exist_ok=True)
    (project / "model.py").write_text(MODEL)
    (project / "hloscope.toml").write_text(TARGETS)
    known = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HLOSCOPE_") and name != "CI"},
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "HLOSCOPE_REMOTE_CACHE": server.url,
        **server.environment,
        **environment,
    }
    command = [sys.executable, "-m", "hloscope", "check", *names, "--format", "json", "--jobs", "2"]
    done = subprocess.run(command, cwd=project, env=known, capture_output=True, text=True, timeout=300, check=False)
    checks = json.loads(done.stdout)["checks"]
    assert "Traceback" not in done.stderr
    return (
        {check["name"]: (check["passed"], check["error"]) for check in checks},
        sorted(check["compile_from"] for check in checks),
        [line for line in done.stderr.splitlines() if "shared cache" in line and " compiles were " not in line],
    )


EXPECTED = {"small": (True, None), "large": (False, None)}


@pytest.mark.tpu_compiler
def test_the_second_user_compiles_nothing(server, tmp_path):
    key, passed = {"HLOSCOPE_REMOTE_CACHE_KEY": KEY.decode()}, {"small": (True, None)}
    assert checked(tmp_path, "first", server, "small", **key) == (passed, ["compiler"], [])
    kept = entries(server)
    reading = {**key, "HLOSCOPE_REMOTE_CACHE_MODE": "read"}
    assert checked(tmp_path, "second", server, "small", **reading) == (passed, ["shared cache"], [])
    assert entries(server) == kept


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_no_entry_makes_a_verdict_wrong(server, tmp_path):
    _, _, said = checked(tmp_path, "first", server)
    assert len(said) == 1
    assert "is believed" in said[0]
    (name, body), (other, another) = entries(server).items()
    server.write(name, another)
    server.write(other, body)
    verdicts, origins, _ = checked(tmp_path, "second", server)
    assert (verdicts, origins) == (EXPECTED, ["compiler", "compiler"])
    server.write(name, body[: len(body) // 2])
    verdicts, origins, said = checked(tmp_path, "third", server, HLOSCOPE_REMOTE_CACHE_KEY=KEY.decode())
    assert (verdicts, origins, said) == (EXPECTED, ["compiler", "compiler"], [])


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("server", ["web", "sftp"], indirect=True)
def test_a_check_goes_on_where_the_server_stops_in_the_middle(server, proxy, tmp_path):
    proxy.requests = 1 if server.url.startswith("http") else 20
    begun = time.monotonic()
    verdicts, origins, said = checked(tmp_path, "first", server, HLOSCOPE_REMOTE_CACHE_KEY=KEY.decode())
    assert (verdicts, origins) == (EXPECTED, ["compiler", "compiler"])
    assert len(said) == 1
    assert "there was no answer for 15 s" in said[0]
    assert time.monotonic() - begun < 100
