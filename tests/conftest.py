"""What every test shares: the environment that JAX reads when it loads, and paths of the checkout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from hloscope.base.store import Store

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "16")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("HLOSCOPE_CACHE", "0")
os.environ.pop("CI", None)  # what is strict there is tried by tests that set it
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a thousand processes would each compile hloscope: 40 % of all time
sys.dont_write_bytecode = False  # each worker of pytest would rewrite the assertions of all tests again

# A shell without job control starts what runs in its background with Ctrl-C ignored, and processes hand that on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines differ, and so do their loads: no deadlines. The same examples in every run, unless somebody looks for more.
hypothesis.settings.register_profile("hloscope", deadline=None, derandomize="HLOSCOPE_RANDOM" not in os.environ)
hypothesis.settings.load_profile("hloscope")

pytest_plugins = ["pytester", "message_goldens"]

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if schema.get("type") == "object" and "properties" in schema else {}
    return {**closed, **{key: _strict(value) for key, value in schema.items()}}


@pytest.fixture(scope="session")
def schema_of() -> Callable[[str], Any]:
    """A published schema made strict: later versions may add fields, this one has no others."""

    def published(name: str) -> Any:
        text = files("hloscope").joinpath(f"schemas/{name}.json").read_text(encoding="utf-8")
        return _strict(json.loads(text))

    return published


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of seed programs."""
    return ROOT / "fixtures" / "programs"


@pytest.fixture(scope="session")
def kept_compiles(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """What programs compile to, for the rooms that read the same ones: one folder for all workers of a session.

    Tests of the cache itself, and those that count compiles, have stores of their own.
    """
    own = tmp_path_factory.getbasetemp()
    return Store((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "kept-compiles", most_bytes=1 << 30)


@pytest.fixture
def cached(kept_compiles: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `hloscope.analyze` and the command line take from that folder what was compiled before."""
    monkeypatch.setenv("HLOSCOPE_CACHE", "1")
    monkeypatch.setenv("HLOSCOPE_CACHE_DIR", str(kept_compiles.folder))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite goldens: reports, messages")
    parser.addoption("--no-processes", action="store_true", help="let a test fail that starts a process")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Holds `nox -s quick` to what it promises; the controller of parallel tests, which starts them, collects none."""
    if session.config.getoption("no_processes"):
        subprocess.Popen._execute_child = _refuse_process  # type: ignore[attr-defined]


def _refuse_process(_self: object, args: object, *_others: object) -> None:
    raise AssertionError(f"a quick test starts no process, such as {args}: mark it with `process`")
