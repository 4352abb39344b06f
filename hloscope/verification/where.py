"""Where two programs run: in a child process on what is attached or simulated, or, where they must, in this one."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from hloscope.verification.job import Job, Side
from hloscope.verification.model import Numerics, NumericsStatus
from hloscope.verification.numerics import run_in_child
from hloscope.verification.platforms import attached_platform
from hloscope.verification.settings import Settings


def run_somewhere(job: Job, settings: Settings, *, decided_by_devices: bool) -> Numerics:
    """Runs a job where the settings say, in a child process if its functions can be imported there.

    Args:
        job: What to run.
        settings: Where, and for how long.
        decided_by_devices: Whether a collective may stand under a branch or a loop that each device decides, which can
            end the process that runs it.
    """
    named = replace(job, target=_by_name(job.target), reference=_by_name(job.reference))
    if isinstance(named.target.target, str) and isinstance(named.reference.target, str):
        return _in_a_child(named, settings)
    if decided_by_devices:
        return Numerics(
            status=NumericsStatus.NOT_RUN,
            seed=job.seed,
            dims=dict(job.dims),
            message="a collective stands under a branch or a loop that the devices decide, which may end this process, "
            "and a function that cannot be imported again cannot be run in another: put it into a module",
        )
    return _here(job)


def _in_a_child(job: Job, settings: Settings) -> Numerics:
    platform = attached_platform() if settings.on == "auto" else settings.on
    if platform is None or platform == "cpu":
        return run_in_child(replace(job, platform="cpu"), timeout_s=settings.timeout_s)
    found = run_in_child(replace(job, platform=platform, memory_bytes=None), timeout_s=settings.timeout_s)
    if found.status is not NumericsStatus.NOT_RUN or settings.on != "auto":
        return found
    simulated = run_in_child(replace(job, platform="cpu"), timeout_s=settings.timeout_s)
    return replace(simulated, notes=(*simulated.notes, f"run on simulated devices: {found.message}"))


def _here(job: Job) -> Numerics:
    import jax

    from hloscope.verification.running import run_job

    platform = {"cpu": "cpu", "tpu": "tpu"}.get(jax.default_backend(), "gpu")
    found = run_job(replace(job, platform=platform))
    return replace(found, notes=(*found.notes, "run in this process, because a function cannot be imported in another"))


def _by_name(side: Side) -> Side:
    """The side with its function's name in place of the function, if the name leads to it again in another process."""
    if isinstance(side.target, str):
        return side
    module, qualified = getattr(side.target, "__module__", None), getattr(side.target, "__qualname__", "")
    if module in (None, "__main__") or "<" in qualified or not qualified:
        return side
    found: Any = sys.modules.get(str(module))
    if getattr(found, "__spec__", None) is None:
        return side
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return replace(side, target=f"{module}:{qualified}") if found is side.target else side
