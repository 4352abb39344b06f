"""Compiles on other machines: through any `concurrent.futures.Executor`, such as that of a Dask cluster.

What is sent is a step of `hloscope.compiler.step` with its arguments; the other machine runs it in a worker process of
its own, as it would here, so that a compiler that dies ends nothing else. No cache is read or written there, and no
environment is sent along.
"""

from __future__ import annotations

import os
import pickle
import platform
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, TypeVar

from hloscope.compiler import client, libtpu
from hloscope.compiler.cache import flags_of_compiles
from hloscope.compiler.pool import WorkerPool
from hloscope.errors import HloscopeError, NotationError
from hloscope.version import __version__

T = TypeVar("T")
Traits = Mapping[str, str]
"""What decides what a compile yields, by name."""

_DASK = "dask://"
_PACKAGES = ("jax", "jaxlib", "libtpu")
_CONNECT_S = 20
_RETRIES = 3


class ExecutorError(HloscopeError):
    """Compiles cannot run on the requested executor."""


@contextmanager
def compiling_on(executor: Executor | str | None = None, jobs: int | None = None) -> Iterator[None]:
    """Has this thread's compiles run elsewhere meanwhile, or so many of them at once.

    Args:
        executor: An executor, or `dask://HOST:PORT`; None for processes of this machine.
        jobs: How many at once, where they are of this machine; None for as many as cores and memory allow.

    Raises:
        ExecutorError: There is no such cluster, or its workers are not equipped as this process is.
        NotationError: The executor is none.
    """
    with ExitStack() as stack:
        if isinstance(executor, str):
            executor = stack.enter_context(_dask(executor))
        if executor is None:
            if jobs is not None:
                pool = WorkerPool(client.workers_here(jobs), client.environment)
                stack.callback(pool.shutdown, cancel_futures=True)
                stack.enter_context(client.running_in(pool))
        elif callable(getattr(executor, "submit", None)):
            stack.enter_context(client.running_in(_Elsewhere(executor)))
        else:
            raise NotationError(
                f"{executor!r} is not an executor",
                fix='pass a concurrent.futures.Executor, or "dask://HOST:PORT"',
            )
        yield


class _Elsewhere:
    """A pool whose tasks an executor runs."""

    def __init__(self, executor: Any) -> None:
        self._executor, self._here = executor, traits()

    def submit_in(
        self, environment: Mapping[str, str], limit_s: float | None, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> Future[T]:
        """Schedules a call; of the environment only the number of simulated devices counts."""
        request = pickle.dumps((fn, args, kwargs), pickle.HIGHEST_PROTOCOL)
        devices = int(environment.get("JAX_NUM_CPU_DEVICES", "1"))
        found: Future[T] = self._executor.submit(run_here, self._here, devices, limit_s, request)
        return found

    def waited_s(self, _future: Future[Any]) -> float:
        """How long a task waited for its turn, which nobody knows here."""
        return 0.0

    def kill(self, future: Future[Any]) -> None:
        """Forgets a task; what runs already runs to its end, or its limit."""
        future.cancel()


def run_here(wanted: Traits, devices: int, limit_s: float | None, request: bytes) -> Any:
    """Runs a step in a worker process of this machine, for another one.

    Args:
        wanted: What decides what a compile yields, where it was asked for.
        devices: Simulated devices that the process needs.
        limit_s: Seconds that it may take; None for any number.
        request: The pickled function with its arguments.

    Raises:
        ExecutorError: This machine is equipped otherwise.
        Exception: What the step raises, `WorkerDied` and TimeoutError among it.
    """
    _require_equal({platform.node(): traits()}, wanted)
    function, args, kwargs = pickle.loads(request)
    environment = client.environment(devices)
    return client.pool().submit_in(environment, limit_s, function, *args, **kwargs).result()


def traits() -> Traits:
    """What decides what a compile yields here: versions, and the flags of XLA and libtpu."""
    versions = {package: libtpu.version(package) or "none" for package in _PACKAGES}
    flags = {
        "XLA_FLAGS": " ".join(sorted(flags_of_compiles().split())),
        "LIBTPU_INIT_ARGS": " ".join(sorted(os.environ.get("LIBTPU_INIT_ARGS", "").split())),
    }
    return {"hloscope": __version__, **versions, **flags}


def _require_equal(found: Mapping[str, Traits], wanted: Traits) -> None:
    """Refuses machines that would compile otherwise, by their names."""
    wrong = [
        f"{name} has {trait} {others.get(trait) or 'none'}, not {own or 'none'}"
        for name, others in found.items()
        for trait, own in wanted.items()
        if others.get(trait) != own
    ]
    if wrong:
        raise ExecutorError(
            "a worker is set up differently from this machine",
            why="\n".join(wrong),
            fix="install the same versions there and set the same flags, or leave the worker out",
        )


@contextmanager
def _dask(url: str) -> Iterator[Executor]:
    """The executor of a Dask cluster, while its connection is open."""
    if not url.startswith(_DASK):
        raise NotationError(
            f"{url!r} does not name an executor", fix="write dask://HOST:PORT, the address of a Dask scheduler"
        )
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise ExecutorError(
            "Dask is not installed", where=url, fix="install it: pip install 'hloscope[dask]'"
        ) from None
    address = f"tcp://{url.removeprefix(_DASK)}"
    try:
        connected = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ExecutorError(
            f"there is no Dask scheduler at {address}", why=str(error), fix="start one: dask scheduler"
        ) from None
    with connected:
        workers = connected.scheduler_info(n_workers=-1).get("workers", {})
        if not workers:
            raise ExecutorError(
                f"the Dask scheduler at {address} has no workers", fix=f"start some: dask worker {address}"
            )
        try:
            equipped = connected.run(traits, on_error="return")
        except Exception as error:
            raise ExecutorError(f"the workers of {address} do not respond", why=str(error)) from None
        broken = {name: repr(found) for name, found in equipped.items() if isinstance(found, BaseException)}
        if broken:
            raise ExecutorError(
                "some workers cannot run hloscope",
                why="\n".join(f"{name}: {said}" for name, said in broken.items()),
                fix="install hloscope there: pip install 'hloscope[dask]'",
            )
        _require_equal(equipped, traits())
        yield connected.get_executor(pure=False, retries=_RETRIES)
