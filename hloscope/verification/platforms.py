"""Which accelerator is attached to this machine, told without starting JAX."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_TPU_DEVICES = ("accel[0-9]*", "vfio/[0-9]*")
_GPU_PLUGINS = {
    "jax_cuda12_plugin": "cuda",
    "jax_cuda13_plugin": "cuda",
    "jax_rocm60_plugin": "rocm",
    "jax_rocm7_plugin": "rocm",
}
_GPU_DEVICES = ("nvidia[0-9]*", "kfd")


def attached_platform(devices: Path = Path("/dev")) -> str | None:
    """`tpu` or `gpu` where the system shows one and JAX has what it takes to use it; None elsewhere.

    Args:
        devices: The folder of device files.

    Source: `jax/_src/cloud_tpu_init.py` and `hardware_utils.py`, which look for the same files.
    """
    if _any(devices, _TPU_DEVICES) and find_spec("libtpu") is not None:
        return "tpu"
    if _any(devices, _GPU_DEVICES) and any(find_spec(name) is not None for name in _GPU_PLUGINS):
        return "gpu"
    return None


def jax_platform(platform: str) -> str:
    """What `JAX_PLATFORMS` is to be for `cpu`, `tpu` or `gpu`: JAX fails when it is told of one without a plugin."""
    if platform != "gpu":
        return platform
    return next((backend for name, backend in _GPU_PLUGINS.items() if find_spec(name) is not None), "cuda")


def _any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)
