"""The process that runs two programs: `python -m hloscope.verification.child FOLDER PARENT`.

A collective that not all devices reach hangs XLA's CPU runtime, which then ends the process; so numbers are made in a
process of their own, which ends with the one that started it. It reads `job.pickle` from its folder, keeps `stage.txt`
up to date and leaves `result.pickle`.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from hloscope.compiler.worker import end_with

JOB, STAGE, RESULT = "job.pickle", "stage.txt", "result.pickle"


def main(folder: Path) -> None:
    """Runs the job of a folder."""
    from hloscope.program.devices import prepare_environment

    path, devices, platform = pickle.loads((folder / "start.pickle").read_bytes())
    sys.path[:] = path
    prepare_environment(devices, attached=platform != "cpu")
    job = pickle.loads((folder / JOB).read_bytes())
    from hloscope.verification.job import OtherProgramError
    from hloscope.verification.running import run_job

    def stage(what: str) -> None:
        (folder / STAGE).write_text(what, encoding="utf-8")

    try:
        numerics = run_job(job, stage)
    except OtherProgramError:
        numerics = None
    (folder / RESULT).write_bytes(pickle.dumps(numerics))


if __name__ == "__main__":
    end_with(int(sys.argv[2]))
    main(Path(sys.argv[1]))
