"""The run of a program under JAX's profiler, in a separate process, on attached or simulated devices."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from concurrent.futures import wait
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hloscope.compiler.pool import WorkerDied, WorkerPool
from hloscope.errors import ProfileError, TargetError, TimeLimitError
from hloscope.program.capture import Mesh
from hloscope.program.target import TargetFacts
from hloscope.verification.machine import find_jax_platform

if TYPE_CHECKING:
    from hloscope.verification.executing import Prepared

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
    try:
        pickled = pickle.dumps(run)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TargetError(
            "the arguments cannot be passed to the process that runs the program",
            why=str(error),
            fix="pass them as notations such as 'bf16[8@X,2048]', or in @hloscope.target",
        ) from error
    path = [os.getcwd() if entry == "" else entry for entry in sys.path]
    environment = {**os.environ, "JAX_PLATFORMS": find_jax_platform(run.platform)}
    with closing(_Worker()) as worker:
        found = worker.pool.submit_in(environment, None, _run, path, run.devices, run.platform, pickled)
        if not wait([found], min(timeout_s, threading.TIMEOUT_MAX)).done:
            worker.pool.kill(found)
            raise TimeLimitError(f"running {run.target}", timeout_s)
        try:
            ran: tuple[str, Mesh | None] = found.result()
            return ran
        except WorkerDied as died:
            last = "\n".join(died.words.strip().splitlines()[-_SAID_LINES:])
            raise ProfileError(f"{run.target} terminated the process that ran it", why=last or None) from None


class _Worker:
    """One process, which is ended when it is closed."""

    def __init__(self) -> None:
        self.pool = WorkerPool(1, counted=False)

    def close(self) -> None:
        self.pool.shutdown()


def _run(path: list[str], devices: int, platform: str, pickled: bytes) -> tuple[str, Mesh | None]:
    sys.path[:] = path
    from hloscope.program.environment import prepare_environment

    prepare_environment(devices, attached=platform != "cpu")
    return _profile(pickle.loads(pickled))


def _profile(run: ProfiledRun) -> tuple[str, Mesh | None]:
    import jax

    from hloscope.program.compiling import make_plain_mesh
    from hloscope.program.loading import find_target_name, load_target
    from hloscope.program.target import find_attached_facts
    from hloscope.verification.executing import prepare_program

    function = load_target(run.target, run.facts)
    program = prepare_program(function, run.facts.over(find_attached_facts(function)), find_target_name(run.target))
    jax.block_until_ready(_run_once(program, run.seed))
    with jax.profiler.trace(run.folder):
        for _ in range(run.runs):
            jax.block_until_ready(_run_once(program, run.seed))
    return str(program.compiled.as_text()), make_plain_mesh(program.lowered.mesh, program.seen)


def _run_once(program: Prepared, seed: int) -> Any:
    """One run on values of its own, because a run may take its arguments' memory."""
    import jax

    from hloscope.verification.executing import find_sharding
    from hloscope.verification.pairs import draw_value
    from hloscope.verification.values import Draw

    values = [draw_value(aval, Draw(), seed, position) for position, aval in enumerate(program.seen.argument_avals)]
    shardings = [find_sharding(program, position) for position in range(len(values))]
    placed = [
        value if sharding is None else jax.device_put(value, sharding)
        for value, sharding in zip(values, shardings, strict=True)
    ]
    args, kwargs = jax.tree.unflatten(jax.tree.structure(program.lowered.module.args_info), placed)
    return program.compiled(*args, **kwargs)
