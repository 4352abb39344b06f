"""The simulated devices that a session needs, arranged before JAX starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from math import prod

import pytest

from hloscope.base.errors import HloscopeError

_LEAST_DEVICES = 8


def arrange_devices(items: Iterable[pytest.Item], config: pytest.Config) -> None:
    """Sets the number of CPU devices that JAX is started with, and keeps libtpu quiet and shareable.

    JAX that was started already, by a conftest.py for example, keeps what it has.
    """
    from hloscope.compile.environment import find_largest_device_count, prepare_environment

    prepare_environment(0, attached=True)
    largest = find_largest_device_count()
    marked = [count for count in map(_count_marked, items) if count <= largest]  # a test refuses a larger mesh itself
    count = _read_count(config) or max([_LEAST_DEVICES, *marked])
    if "jax" not in sys.modules:
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(count))
        return
    import jax

    from hloscope.compile.jax_private import backends_are_initialised

    if not backends_are_initialised():
        jax.config.update("jax_num_cpu_devices", max(count, jax.config.jax_num_cpu_devices))


def _read_count(config: pytest.Config) -> int:
    text = str(config.getini("hloscope_devices")).strip()
    if text and not text.isdigit():
        raise pytest.UsageError(f"hloscope_devices is {text!r} and should be a number")
    return int(text or 0)


def _count_marked(item: pytest.Item) -> int:
    """The devices in the mesh of a test's marker; 0 if it names none, or an invalid one that the test will refuse."""
    for marker in item.iter_markers("hloscope"):
        mesh = marker.kwargs.get("mesh")
        try:
            if isinstance(mesh, str):
                from hloscope.compile.notation import parse_mesh

                mesh = parse_mesh(mesh)
            if isinstance(mesh, Mapping):
                return prod(mesh.values())
            if mesh is not None:
                return int(mesh.size)
        except (HloscopeError, AttributeError, TypeError, ValueError):
            return 0  # the test itself will say what is wrong
    return 0
