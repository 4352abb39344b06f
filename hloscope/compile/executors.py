"""Compiles on other machines, through any `concurrent.futures.Executor`, such as that of a Dask cluster.

A step of `hloscope.compile.step` is sent with its arguments; the other machine runs it in a worker process of
its own, as this one would, so that a compiler that dies ends nothing else. No cache is read or written there, and no
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

from hloscope.base.errors import HloscopeError, NotationError
from hloscope.compile import client, jax_support
from hloscope.compile.cache import read_compile_flags
from hloscope.compile.pool import WorkerPool
from hloscope.version import __version__

T = TypeVar("T")
Traits = Mapping[str, str]
"""The facts that determine the result of a compile, by name."""

_DASK = "dask://"
_PACKAGES = ("jax", "jaxlib", "libtpu")
_CONNECT_S = 20
_RETRIES = 3


class ExecutorError(HloscopeError):
    """Compiles cannot run on the requested executor."""


@contextmanager
def compile_on(executor: Executor | str | None = None, jobs: int | None = None) -> Iterator[None]:
    """Makes this thread's compiles run on an executor within the block, or limits their number.

    Args:
        executor: An executor, or `dask://HOST:PORT`; None for processes of this machine.
        jobs: The number of parallel compiles on this machine; None for as many as cores and memory allow.

    Raises:
        ExecutorError: There is no such cluster, or its workers' software differs from this process's.
        NotationError: The value is not an executor.
    """
    with ExitStack() as stack:
        if isinstance(executor, str):
            executor = stack.enter_context(_connect_dask(executor))
        if executor is None:
            if jobs is not None:
                pool = WorkerPool(client.count_useful_workers(jobs), client.make_worker_environment)
                stack.callback(pool.shutdown, cancel_futures=True)
                stack.enter_context(client.use_workers(pool))
        elif callable(getattr(executor, "submit", None)):
            stack.enter_context(client.use_workers(_ExecutorPool(executor)))
        else:
            raise NotationError(
                f"{executor!r} is not an executor",
                fix='pass a concurrent.futures.Executor, or "dask://HOST:PORT"',
            )
        yield


class _ExecutorPool:
    """A pool whose tasks run on an executor."""

    def __init__(self, executor: Any) -> None:
        self._executor, self._here = executor, find_compile_traits()

    def submit_in(
        self, environment: Mapping[str, str], limit_s: float | None, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> Future[T]:
        """Schedules a call; only the number of simulated devices is taken from the environment."""
        request = pickle.dumps((fn, args, kwargs), pickle.HIGHEST_PROTOCOL)
        devices = int(environment.get("JAX_NUM_CPU_DEVICES", "1"))
        found: Future[T] = self._executor.submit(run_for_executor, self._here, devices, limit_s, request)
        return found

    def waited_s(self, _future: Future[Any]) -> float:
        """The time that a task waited for its turn, which is unknown here."""
        return 0.0

    def kill(self, future: Future[Any]) -> None:
        """Forgets a task; one that already runs continues to its end, or its limit."""
        future.cancel()


def run_for_executor(wanted: Traits, devices: int, limit_s: float | None, request: bytes) -> Any:
    """Runs a step in a worker process of this machine, on behalf of another machine.

    Args:
        wanted: The compile traits of the machine that asked.
        devices: The number of simulated devices that the process needs.
        limit_s: Time limit in seconds; None for no limit.
        request: The pickled function with its arguments.

    Raises:
        ExecutorError: This machine's software differs.
        Exception: Any exception of the step, including `WorkerDied` and TimeoutError.
    """
    _check_equal_traits({platform.node(): find_compile_traits()}, wanted)
    function, args, kwargs = pickle.loads(request)
    environment = client.make_worker_environment(devices)
    return client.get_pool().submit_in(environment, limit_s, function, *args, **kwargs).result()


def find_compile_traits() -> Traits:
    """The facts that determine the result of a compile here: versions, and the flags of XLA and libtpu."""
    versions = {package: jax_support.find_package_version(package) or "none" for package in _PACKAGES}
    flags = {
        "XLA_FLAGS": " ".join(sorted(read_compile_flags().split())),
        "LIBTPU_INIT_ARGS": " ".join(sorted(os.environ.get("LIBTPU_INIT_ARGS", "").split())),
    }
    return {"hloscope": __version__, **versions, **flags}


def _check_equal_traits(found: Mapping[str, Traits], wanted: Traits) -> None:
    """Refuses machines whose compiles would differ, by name."""
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
def _connect_dask(url: str) -> Iterator[Executor]:
    """Connects to a Dask cluster and yields its executor while the connection is open."""
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
            equipped = connected.run(find_compile_traits, on_error="return")
        except Exception as error:
            raise ExecutorError(f"the workers of {address} do not respond", why=str(error)) from None
        broken = {name: repr(found) for name, found in equipped.items() if isinstance(found, BaseException)}
        if broken:
            raise ExecutorError(
                "some workers cannot run hloscope",
                why="\n".join(f"{name}: {said}" for name, said in broken.items()),
                fix="install hloscope there: pip install 'hloscope[dask]'",
            )
        _check_equal_traits(equipped, find_compile_traits())
        yield connected.get_executor(pure=False, retries=_RETRIES)
