"""Where two programs run: in a child process on what is attached or simulated, or, where they must, in this one."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from hloscope.errors import HloscopeError, TargetError
from hloscope.units import format_time, plural
from hloscope.verification.child import JOB, RESULT, STAGE
from hloscope.verification.job import Job, Settings, Side
from hloscope.verification.machine import attached_platform, jax_platform
from hloscope.verification.model import Numerics, NumericsStatus


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


_CHATTER = re.compile(r"[IW]\d{4} ")
_STUCK = re.compile(r"(Termination timeout for .{0,200}|.{0,80}stuck.{0,160})")


class ChildRun:
    """A job that runs in a process of its own, from now on until it is asked for or closed.

    Args:
        job: What to run; both programs by name.

    Raises:
        TargetError: The job holds something that cannot be handed to another process.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._place = tempfile.TemporaryDirectory(prefix="hloscope-verify-")
        folder = Path(self._place.name)
        try:
            _write(job, folder)
            with (folder / "output.txt").open("wb") as output:
                self._process = _started(folder, output.fileno(), job)
        except BaseException:
            self._place.cleanup()
            raise

    def numerics(self, timeout_s: float) -> Numerics | None:
        """Waits for what the process found, or how it ended; None where its names lead to other programs.

        Args:
            timeout_s: Seconds from now after which the process is ended.
        """
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            self._end()
        if code == -signal.SIGINT:  # Ctrl-C, which Python tells the main thread alone
            raise KeyboardInterrupt
        folder = Path(self._place.name)
        if code == 0 and (folder / RESULT).exists():
            found: Numerics | None = pickle.loads((folder / RESULT).read_bytes())
            return found
        said = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
        stage = (folder / STAGE).read_text(encoding="utf-8") if (folder / STAGE).exists() else "starting"
        return _ended(self._job, code, stage, said, timeout_s)

    def close(self) -> None:
        """Ends the process, if it still runs, and removes what it wrote."""
        self._end()
        self._place.cleanup()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


def run_in_child(job: Job, *, timeout_s: float) -> Numerics | None:
    """Runs a job in a process of its own, which is ended after a time; see `ChildRun`."""
    with closing(ChildRun(job)) as child:
        return child.numerics(timeout_s)


def _write(job: Job, folder: Path) -> None:
    try:
        (folder / JOB).write_bytes(pickle.dumps(job))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TargetError(
            "the arguments cannot be handed to the process that runs the programs",
            why=str(error),
            fix="give them as notations such as 'bf16[8@X,2048]', or in @hloscope.target",
        ) from error
    path = [os.getcwd() if entry == "" else entry for entry in sys.path]
    (folder / "start.pickle").write_bytes(pickle.dumps((path, job.devices, job.platform)))


def _started(folder: Path, output: int, job: Job) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parent.parent.parent)
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH")) if part)
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": jax_platform(job.platform)}
    command = [sys.executable, "-m", "hloscope.verification.child", str(folder), str(os.getpid())]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def _ended(job: Job, code: int | None, stage: str, said: str, timeout_s: float) -> Numerics:
    if code is None:
        status, message = NumericsStatus.HUNG, f"no end after {format_time(timeout_s * 1e6)} of {stage}"
    elif code < 0:
        status, message = NumericsStatus.ABORTED, f"the process was ended by {_signal(-code)} while {stage}"
    else:
        status, message = NumericsStatus.FAILED, f"the process ended with status {code} while {stage}"
    stuck = _STUCK.search(said)
    own = [line for line in said.strip().splitlines() if not _CHATTER.match(line)]
    last = stuck.group(1) if stuck else "\n".join(own[-3:])
    words = f"{message}: {last.strip()}" if last.strip() else message
    where = plural(job.devices, "simulated CPU device" if job.platform == "cpu" else f"{job.platform.upper()} device")
    return Numerics(status=status, ran_on=where, message=words[:800], seed=job.seed, dims=dict(job.dims))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
