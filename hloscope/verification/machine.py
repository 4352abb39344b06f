"""The resources of this machine for a run: the share of memory, and attached accelerators without starting JAX."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

MEMORY_SHARE = 0.8
"""The share of the free memory that a run may take; the runtime makes copies in the rest."""

_TPU_DEVICES = ("accel[0-9]*", "vfio/[0-9]*")
_GPU_PLUGINS = {
    "jax_cuda12_plugin": "cuda",
    "jax_cuda13_plugin": "cuda",
    "jax_rocm60_plugin": "rocm",
    "jax_rocm7_plugin": "rocm",
}
_GPU_DEVICES = ("nvidia[0-9]*", "kfd")


def find_attached_platform(devices: Path = Path("/dev")) -> str | None:
    """`tpu` or `gpu` if the system shows one and JAX has the parts to use it; otherwise None.

    Args:
        devices: The folder of device files.

    Source: `jax/_src/cloud_tpu_init.py` and `hardware_utils.py`, which look for the same files.
    """

    def any_of(patterns: tuple[str, ...]) -> bool:
        return any(next(devices.glob(pattern), None) is not None for pattern in patterns)

    if any_of(_TPU_DEVICES) and find_spec("libtpu") is not None:
        return "tpu"
    if any_of(_GPU_DEVICES) and any(find_spec(name) is not None for name in _GPU_PLUGINS):
        return "gpu"
    return None


def find_jax_platform(platform: str) -> str:
    """The value of `JAX_PLATFORMS` for `cpu`, `tpu` or `gpu`: JAX fails if the value has no plugin."""
    if platform != "gpu":
        return platform
    return next((backend for name, backend in _GPU_PLUGINS.items() if find_spec(name) is not None), "cuda")
