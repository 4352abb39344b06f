"""Runs a job in a child process with a time limit; its end, whatever it is, becomes a result."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from hloscope.errors import TargetError
from hloscope.units import format_time, plural
from hloscope.verification.child import JOB, RESULT, STAGE
from hloscope.verification.job import Job
from hloscope.verification.model import Numerics, NumericsStatus
from hloscope.verification.platforms import jax_platform

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
