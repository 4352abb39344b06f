"""A real Jupyter kernel in which JAX was started with one device, as a notebook has it."""

from __future__ import annotations

import os
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

BEGIN = """
import asyncio, contextlib, io, logging, os, pickle, sys, threading, time
import jax, jax.numpy as jnp
import numpy as np
import hloscope
weights = jnp.arange(4.0)  # starts JAX, with one device

def write(path, text):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
"""


@dataclass
class Heard:
    """What a cell says.

    Attributes:
        stdout: What it prints.
        stderr: What it says there.
        shown: Texts of displays, each time that one is shown or changed.
        errors: Tracebacks as the notebook has them, without colours.
        types: MIME types of the last result.
    """

    stdout: str = ""
    stderr: str = ""
    shown: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)

    def hear(self, message: dict) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            setattr(self, content["name"], getattr(self, content["name"]) + content["text"])
        elif kind in ("display_data", "update_display_data"):
            self.shown.append(content["data"]["text/plain"])
        elif kind == "execute_result":
            self.types = sorted(content["data"])
            self.stdout += content["data"]["text/plain"]
        elif kind == "error":
            self.errors.append(re.sub(r"\x1b\[[\d;]*m", "", "\n".join(content["traceback"])))


class Kernel:
    """Runs cells, and gives back what they print."""

    def __init__(self, folder: Path, root: Path) -> None:
        from jupyter_client.manager import start_new_kernel

        kept = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
        environment = {**kept, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        self.folder = folder
        self._manager, self._client = start_new_kernel(cwd=str(folder), env=environment)

    def run(self, code: str) -> str:
        """What a cell prints on its standard output.

        Raises:
            AssertionError: The cell fails.
        """
        heard = self.heard(code)
        assert not heard.errors, heard.errors[0]
        return heard.stdout

    def heard(self, code: str) -> Heard:
        """Everything that a cell says."""
        heard = Heard()
        self._client.execute_interactive(textwrap.dedent(code), output_hook=heard.hear, timeout=120, allow_stdin=False)
        return heard

    def interrupted(self, code: str, when: Callable[[Heard], bool]) -> tuple[Heard, float]:
        """Everything that a cell says which is interrupted in the middle, and the seconds that it takes to end then.

        Args:
            code: The cell.
            when: Whether it is to be interrupted, by what it has said; it is asked after each message.
        """
        heard, asked, since = Heard(), self._client.execute(textwrap.dedent(code)), None
        until = time.monotonic() + 60
        while True:
            assert time.monotonic() < until, f"it does not end: {heard}"
            message = self._client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != asked:
                continue
            heard.hear(message)
            if since is None and when(heard):
                since = time.monotonic()
                self._manager.interrupt_kernel()
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                assert since is not None, f"it ended by itself: {heard}"
                return heard, time.monotonic() - since

    def stop(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    pytest.importorskip("ipykernel")
    started = Kernel(tmp_path_factory.mktemp("notebook"), Path(__file__).parent.parent.parent)
    started.run(BEGIN)
    yield started
    started.stop()
