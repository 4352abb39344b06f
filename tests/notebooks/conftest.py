"""A real Jupyter kernel in which JAX was started with one device, as a notebook has it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
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
        said = {"stdout": "", "stderr": ""}
        errors = []

        def hear(message: dict) -> None:
            if message["msg_type"] == "stream":
                said[message["content"]["name"]] += message["content"]["text"]
            elif message["msg_type"] == "error":
                errors.append("\n".join(message["content"]["traceback"]))

        self._client.execute_interactive(textwrap.dedent(code), output_hook=hear, timeout=120, allow_stdin=False)
        assert not errors, errors[0]
        return said["stdout"]

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
