"""Settings that user code makes for its own machine, and that do not hold while it is traced on simulated devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hloscope.errors import HloscopeError

_OURS = ("jax_num_cpu_devices", "jax_platforms", "jax_platform_name")


@contextmanager
def device_settings_ignored() -> Iterator[None]:
    """Lets a module say `jax.config.update("jax_num_cpu_devices", 8)`, which would fail once JAX has its devices."""
    import jax

    from hloscope.compiler.jax_internals import replaced_in_this_thread

    original = jax.config.update

    def update(name: str, value: Any) -> None:
        if name not in _OURS:
            original(name, value)

    with replaced_in_this_thread(jax.config, "update", update):
        yield


def compiling_settings() -> dict[str, str]:
    """What decides of this process how a program is traced and compiled: JAX's settings, XLA's and libtpu's."""
    import jax

    chosen = {name: repr(value) for name, value in jax.config.values.items() if name not in _OURS}
    return chosen | {name: os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}


def check_xla_flags() -> None:
    """Tries the environment's XLA_FLAGS in a process of its own: XLA ends the process over a flag it does not know.

    Raises:
        HloscopeError: XLA refuses them.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if not flags:
        return
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    tried = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        said = [line for line in tried.stderr.splitlines() if "flag" in line.lower()] or tried.stderr.splitlines()[-3:]
        raise HloscopeError(
            "XLA refuses the environment's XLA_FLAGS",
            where=f"XLA_FLAGS={flags}",
            why="\n".join(said)[:600],
            fix="correct or unset XLA_FLAGS; options for the TPU compiler go to --compiler-option",
        )
