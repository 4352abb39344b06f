"""The choice of the process for two programs: a child with attached or simulated devices, or this process.

A collective that not all devices reach hangs XLA's CPU runtime, which then ends the process; so the programs run in a
worker that does nothing else. It writes each next step to its standard error, which is kept in memory and read
when it dies: whatever ends this process, there is nothing on disk to remove.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hloscope.base.errors import HloscopeError, ProfileError, TargetError, TimeLimitError
from hloscope.base.units import format_time, pluralize
from hloscope.compile.environment import find_attached_platform, find_jax_platform
from hloscope.compile.pool import WorkerDied, WorkerPool
from hloscope.compile.target import TargetFacts
from hloscope.model.capture import Mesh
from hloscope.verification.job import Function, OtherProgramError, VerificationJob
from hloscope.verification.model import Numerics, NumericsStatus

if TYPE_CHECKING:
    from hloscope.verification.executing import Prepared


def start_run_ahead(job: VerificationJob) -> ChildRun | None:
    """The run in its process, started now if it will certainly be needed, in parallel with the compiles; else None."""
    by_name = isinstance(job.target, str) and isinstance(job.reference, str)
    return ChildRun(job) if by_name and _choose_platform(job) == "cpu" else None


def run_in_chosen_process(job: VerificationJob, *, decided_by_devices: bool) -> Numerics:
    """Runs a job as its settings say, in a child process if its functions can be imported there.

    Args:
        job: The job.
        decided_by_devices: Whether a collective may be in a branch or a loop that each device decides, which can
            end the process that runs it.
    """
    named = replace(job, target=name_if_importable(job.target), reference=name_if_importable(job.reference))
    why = "another process cannot import one of the functions"
    fix = "put it in a module"
    if isinstance(named.target, str) and isinstance(named.reference, str):
        found = _try_child(replace(named, programs=_fingerprint_functions(job)))
        if found is not None:
            return found
        why = (
            "another process would import a different program by the functions' names: since they were imported here, "
            "a "
            "file was edited, or values or settings that they use changed"
        )
        fix = "import it again, or name it 'module:function' to use its file as it is now"
    if decided_by_devices:
        message = (
            "a collective is under a branch or loop that each device decides on its own, which may end this process, "
            "and "
            f"{why}; {fix}"
        )
        return job.came_to(NumericsStatus.NOT_RUN, message)
    return _run_here(job, why)


def _choose_platform(job: VerificationJob) -> str:
    chosen = job.settings.on
    return (find_attached_platform() or "cpu") if chosen == "auto" else chosen


def _fingerprint_functions(job: VerificationJob) -> tuple[str | None, str | None]:
    """The fingerprints of the programs that were given as functions."""
    from hloscope.compile.devices import provide_devices
    from hloscope.verification.running import fingerprint_programs

    if not callable(job.target) and not callable(job.reference):
        return None, None
    try:
        with provide_devices(job.devices, "cpu"):
            target, reference = fingerprint_programs(job)
    except HloscopeError:  # which the run will report
        return None, None
    return target if callable(job.target) else None, reference if callable(job.reference) else None


def _try_child(job: VerificationJob) -> Numerics | None:
    platform, timeout_s = _choose_platform(job), job.settings.timeout_s
    if platform == "cpu":
        return run_in_child(job, timeout_s=timeout_s)
    found = run_in_child(replace(job, platform=platform, memory_bytes=None), timeout_s=timeout_s)
    if found is None or found.status is not NumericsStatus.NOT_RUN or job.settings.on != "auto":
        return found
    simulated = run_in_child(job, timeout_s=timeout_s)
    if simulated is None:
        return None
    return replace(simulated, notes=(*simulated.notes, f"run on simulated devices: {found.message}"))


def _run_here(job: VerificationJob, why: str) -> Numerics:
    import jax

    from hloscope.verification.running import run_verification

    platform = {"cpu": "cpu", "tpu": "tpu"}.get(jax.default_backend(), "gpu")
    found = run_verification(replace(job, platform=platform))
    return replace(found, notes=(*found.notes, f"run in this process, because {why}"))


def name_if_importable(target: str | Function) -> str | Function:
    """The function's name instead of the function, if the name leads to it in another process."""
    if isinstance(target, str):
        return target
    module, qualified = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    if module in (None, "__main__") or "<" in qualified or not qualified:
        return target
    found: Any = sys.modules.get(str(module))
    if getattr(found, "__spec__", None) is None:
        return target
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return f"{module}:{qualified}" if found is target else target


class ChildProcess:
    """A process that runs one function of a request, from now until it is closed.

    Args:
        function: Called with the import path, the number of devices, the platform and the pickled request.
        request: The request; its programs by name.

    Raises:
        TargetError: The request contains something that cannot be passed to another process.
    """

    def __init__(self, function: Callable[..., Any], request: VerificationJob | ProfiledRun) -> None:
        try:
            pickled = pickle.dumps(request)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            programs = "program" if isinstance(request, ProfiledRun) else "programs"
            raise TargetError(
                f"the arguments cannot be passed to the process that runs the {programs}",
                why=str(error),
                fix="pass them as notations such as 'bf16[8@X,2048]', or in @hloscope.target",
            ) from error
        path = [os.getcwd() if entry == "" else entry for entry in sys.path]
        environment = {**os.environ, "JAX_PLATFORMS": find_jax_platform(request.platform)}
        self._workers = WorkerPool(1, counted=False)
        self.found = self._workers.submit_in(
            environment, None, function, path, request.devices, request.platform, pickled
        )

    def is_late(self, timeout_s: float) -> bool:
        """Waits for the result, and ends the process if it takes longer than so many seconds."""
        if wait([self.found], min(timeout_s, threading.TIMEOUT_MAX)).done:
            return False
        self._workers.kill(self.found)
        return True

    def close(self) -> None:
        """Ends the process if it still runs."""
        self._workers.kill(self.found)
        self._workers.shutdown()


class ChildRun(ChildProcess):
    """A job that runs in a separate process, from now until its result is taken or it is closed."""

    def __init__(self, job: VerificationJob) -> None:
        self._job = job
        super().__init__(_run, job)

    def numerics(self, timeout_s: float) -> Numerics | None:
        """Waits for the outcome of the process, or its end; None if its names lead to other programs.

        Args:
            timeout_s: Seconds from now after which the process is ended.
        """
        is_late = self.is_late(timeout_s)
        try:
            found: Numerics | None = self.found.result()
            return found
        except WorkerDied as died:
            return _explain_end(self._job, None if is_late else died.returncode, died.words, timeout_s)
        except CancelledError:  # before it could begin
            return _explain_end(self._job, None, "", timeout_s)


def run_in_child(job: VerificationJob, *, timeout_s: float) -> Numerics | None:
    """Runs a job in a separate process, with a time limit; see `ChildRun`."""
    with closing(ChildRun(job)) as child:
        return child.numerics(timeout_s)


_STAGE = "hloscope is now "
_STAGE_LINE = re.compile(rf"\n{_STAGE}(.*)\n")


def _run(path: list[str], devices: int, platform: str, pickled: bytes) -> Numerics | None:
    """Runs a job in the worker, which ends on any exception that is not a result."""

    def stage(what: str) -> None:
        with suppress(OSError):  # the program may have closed it
            os.write(2, f"\n{_STAGE}{what}\n".encode())

    try:
        stage("starting")
        sys.path[:] = path
        from hloscope.compile.environment import prepare_environment

        prepare_environment(devices, attached=platform != "cpu")
        job = pickle.loads(pickled)
        from hloscope.verification.running import run_verification

        return run_verification(job, stage)
    except OtherProgramError:
        return None
    except BaseException:
        traceback.print_exc()
        with suppress(AttributeError, OSError, ValueError):
            sys.stdout.flush()
        os._exit(1)


_CHATTER = re.compile(r"[IW]\d{4} ")
_STUCK = re.compile(r"(Termination timeout for .{0,200}|.{0,80}stuck.{0,160})")


def _explain_end(job: VerificationJob, code: int | None, said: str, timeout_s: float) -> Numerics:
    stage = (_STAGE_LINE.findall(said) or ["starting or running"])[-1]  # of what prints a lot, the end is kept
    if code is None:
        status, message = NumericsStatus.HUNG, f"not finished after {format_time(timeout_s * 1e6)} of {stage}"
    elif code < 0:
        name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
        status, message = NumericsStatus.ABORTED, f"the process was killed by {name} while {stage}"
    else:
        status, message = NumericsStatus.FAILED, f"the process exited with status {code} while {stage}"
    said = _STAGE_LINE.sub("", said).strip()
    stuck = _STUCK.search(said)
    own = [line for line in said.splitlines() if not _CHATTER.match(line)]
    last = stuck.group(1) if stuck else "\n".join(own[-3:])
    words = f"{message}: {last.strip()}" if last.strip() else message
    where = pluralize(
        job.devices, "simulated CPU device" if job.platform == "cpu" else f"{job.platform.upper()} device"
    )
    return job.came_to(status, words[:800], ran_on=where)


# ---- the run of a program under JAX's profiler, in a separate process, on attached or simulated devices

_SAID_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRun:
    """The run to profile.

    Attributes:
        target: `module:fn` or `file.py:fn`.
        facts: Its options; letters of its types have sizes.
        platform: `cpu` for simulated devices, or `tpu`.
        devices: The number of simulated devices.
        folder: The folder for the profile.
        runs: The number of profiled runs, after one that is not profiled.
        seed: The seed of the random arguments.
    """

    target: str
    facts: TargetFacts
    platform: str
    devices: int
    folder: str
    runs: int
    seed: int = 0


def profile_in_child(run: ProfiledRun, *, timeout_s: float) -> tuple[str, Mesh | None]:
    """Profiles a program in a separate process.

    Returns:
        The HLO text that ran, and the program's mesh.

    Raises:
        HloscopeError: JAX refuses the program, or the process died or took too long.
    """
    with closing(ChildProcess(_run_profiled, run)) as child:
        if child.is_late(timeout_s):
            raise TimeLimitError(f"running {run.target}", timeout_s)
        try:
            ran: tuple[str, Mesh | None] = child.found.result()
            return ran
        except WorkerDied as died:
            last = "\n".join(died.words.strip().splitlines()[-_SAID_LINES:])
            raise ProfileError(f"{run.target} terminated the process that ran it", why=last or None) from None


def _run_profiled(path: list[str], devices: int, platform: str, pickled: bytes) -> tuple[str, Mesh | None]:
    sys.path[:] = path
    from hloscope.compile.environment import prepare_environment

    prepare_environment(devices, attached=platform != "cpu")
    import jax

    from hloscope.compile.compiling import make_plain_mesh
    from hloscope.compile.loading import load_target
    from hloscope.compile.target import find_attached_facts, find_target_name
    from hloscope.verification.executing import prepare_program

    run: ProfiledRun = pickle.loads(pickled)
    function = load_target(run.target, run.facts)
    program = prepare_program(function, run.facts.over(find_attached_facts(function)), find_target_name(run.target))
    jax.block_until_ready(_run_once(program, run.seed))
    with jax.profiler.trace(run.folder):
        for _ in range(run.runs):
            jax.block_until_ready(_run_once(program, run.seed))
    return str(program.compiled.as_text()), make_plain_mesh(program.lowered.mesh, program.seen)


def _run_once(program: Prepared, seed: int) -> Any:
    """One run on values of its own, because a run may take its arguments' memory."""
    from hloscope.verification.executing import call_program, place_values
    from hloscope.verification.job import Draw
    from hloscope.verification.run_comparison import draw_value

    values = [draw_value(aval, Draw(), seed, position) for position, aval in enumerate(program.seen.argument_avals)]
    return call_program(program, place_values(program, values))
