"""The resources of this machine for a run: free memory and attached accelerators, found without starting JAX."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hloscope.compiler.slots import system_bytes

SHARE = 0.8
"""Of the free memory, what a run may take; the rest is for copies that the runtime makes."""

_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_bytes() -> int | None:
    """Memory that is free for a process, within the limits of a container; None when the system does not say."""
    found = [count for count in (_of_the_machine(), *map(_of_a_container, _CGROUP_LIMITS)) if count is not None]
    return min(found, default=None)


def _of_the_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return system_bytes("SC_PHYS_PAGES")
    kibibytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kibibytes[0]) * 1024 if kibibytes else None


def _of_a_container(files: tuple[str, str]) -> int | None:
    try:
        limit, used = (Path(file).read_text(encoding="ascii").strip() for file in files)
    except OSError:
        return None
    return int(limit) - int(used) if limit.isdigit() and int(limit) < 2**60 else None


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

    def any_of(patterns: tuple[str, ...]) -> bool:
        return any(next(devices.glob(pattern), None) is not None for pattern in patterns)

    if any_of(_TPU_DEVICES) and find_spec("libtpu") is not None:
        return "tpu"
    if any_of(_GPU_DEVICES) and any(find_spec(name) is not None for name in _GPU_PLUGINS):
        return "gpu"
    return None


def jax_platform(platform: str) -> str:
    """What `JAX_PLATFORMS` is to be for `cpu`, `tpu` or `gpu`: JAX fails when it is given one without a plugin."""
    if platform != "gpu":
        return platform
    return next((backend for name, backend in _GPU_PLUGINS.items() if find_spec(name) is not None), "cuda")
