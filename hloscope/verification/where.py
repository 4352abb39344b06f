"""Where two programs run: in a child process on what is attached or simulated, or, where they must, in this one."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from hloscope.errors import HloscopeError
from hloscope.verification.job import Job, Side
from hloscope.verification.model import Numerics, NumericsStatus
from hloscope.verification.numerics import ChildRun, run_in_child
from hloscope.verification.platforms import attached_platform
from hloscope.verification.settings import Settings


def started_ahead(job: Job, settings: Settings) -> ChildRun | None:
    """The run in its process where it is sure to be wanted there, so that it goes on beside the compiles; else None."""
    if not isinstance(job.target.target, str) or not isinstance(job.reference.target, str):
        return None
    platform = attached_platform() if settings.on == "auto" else settings.on
    return ChildRun(replace(job, platform="cpu")) if platform in (None, "cpu") else None


def run_somewhere(job: Job, settings: Settings, *, decided_by_devices: bool) -> Numerics:
    """Runs a job where the settings say, in a child process if its functions can be imported there.

    Args:
        job: What to run.
        settings: Where, and for how long.
        decided_by_devices: Whether a collective may stand under a branch or a loop that each device decides, which can
            end the process that runs it.
    """
    named = replace(job, target=_by_name(job.target), reference=_by_name(job.reference))
    why = "a function cannot be imported in another"
    fix = "put it into a module"
    if isinstance(named.target.target, str) and isinstance(named.reference.target, str):
        found = _in_a_child(replace(named, programs=_programs(job)), settings)
        if found is not None:
            return found
        why = (
            "what the names of the functions import in another is another program: since they were imported here a "
            "file was edited, or values or settings that they use were changed"
        )
        fix = "import it again, or name it 'module:function' to have it as its file is now"
    if decided_by_devices:
        return Numerics(
            status=NumericsStatus.NOT_RUN,
            seed=job.seed,
            dims=dict(job.dims),
            message="a collective stands under a branch or a loop that the devices decide, which may end this process, "
            f"and {why}; {fix}",
        )
    return _here(job, why)


def _programs(job: Job) -> tuple[str | None, str | None]:
    """What those programs are known by that were given as functions."""
    from hloscope.program.devices import devices_to_run_on
    from hloscope.verification.running import programs_of

    given = [callable(side.target) for side in (job.target, job.reference)]
    if not any(given):
        return None, None
    try:
        with devices_to_run_on(job.devices, "cpu"):
            target, reference = programs_of(job)
    except HloscopeError:  # which the run will tell
        return None, None
    return target if given[0] else None, reference if given[1] else None


def _in_a_child(job: Job, settings: Settings) -> Numerics | None:
    platform = attached_platform() if settings.on == "auto" else settings.on
    if platform is None or platform == "cpu":
        return run_in_child(replace(job, platform="cpu"), timeout_s=settings.timeout_s)
    found = run_in_child(replace(job, platform=platform, memory_bytes=None), timeout_s=settings.timeout_s)
    if found is None or found.status is not NumericsStatus.NOT_RUN or settings.on != "auto":
        return found
    simulated = run_in_child(replace(job, platform="cpu"), timeout_s=settings.timeout_s)
    if simulated is None:
        return None
    return replace(simulated, notes=(*simulated.notes, f"run on simulated devices: {found.message}"))


def _here(job: Job, why: str) -> Numerics:
    import jax

    from hloscope.verification.running import run_job

    platform = {"cpu": "cpu", "tpu": "tpu"}.get(jax.default_backend(), "gpu")
    found = run_job(replace(job, platform=platform))
    return replace(found, notes=(*found.notes, f"run in this process, because {why}"))


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
