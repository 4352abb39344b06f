"""CPU devices of hloscope's own, beside those that JAX gave the user's process: no array and no compile of his is lost.

JAX fixes the number of its CPU devices when it is first used. A CPU client of another size costs milliseconds, and in
the thread that analyses a program JAX is made to see that one. A context that is part of JAX's cache keys holds apart
what is traced and compiled for either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax

from hloscope.compiler.jax_internals import replaced_in_this_thread

_clients: dict[int, Any] = {}
_caches: dict[int, Any] = {}


class _Seen(threading.local):
    """What a thread sees instead of the process's own backend; None for that."""

    client: Any = None


_seen = _Seen()


@contextmanager
def own_devices(count: int) -> Iterator[None]:
    """Lets this thread see `count` simulated CPU devices and no others, whatever JAX was started with."""
    if count not in _clients:
        _clients[count] = _new_client(count)
    client, before = _clients[count], _seen.client
    with ExitStack() as stack:
        for holder, name, replacement in _replacements():
            stack.enter_context(replaced_in_this_thread(holder, name, replacement))
        stack.enter_context(_keyed_apart(_caches.setdefault(count, _new_cache())))
        if jax.config.jax_default_device is not None:
            stack.enter_context(jax.default_device(None))
        _seen.client = client
        stack.callback(setattr, _seen, "client", before)
        yield


@contextmanager
def traced_afresh() -> Iterator[None]:
    """Lets nothing be taken from JAX's caches of traces meanwhile, which do not notice that a global was changed."""
    with _keyed_apart(_new_cache()):
        yield


def own_device_count() -> int | None:
    """How many devices `own_devices` shows to this thread; None outside of it."""
    return None if _seen.client is None else int(_seen.client.device_count())


def _new_cache() -> Any:
    from jax._src.lib import _jax

    return _jax.PjitFunctionCache(capacity=4096)


def _keyed_apart(cache: Any) -> Any:
    """JAX's own context that says where compiled functions are kept, and is part of the key of every cache.

    One made with `jax.make_user_context` would do, but making it changes the keys of all that the user has compiled.
    """
    from jax._src import config

    return config.jax_jit_cpp_cache_obj(cache)


def _new_client(count: int) -> Any:
    from jax._src.lib import xla_client

    return xla_client.make_cpu_client(asynchronous=True, num_devices=count)


def _replacements() -> list[tuple[Any, str, Callable[..., Any]]]:
    """JAX's functions that say which devices there are; those without a cache go through `get_backend`."""
    from jax._src import xla_bridge

    return [
        (xla_bridge, "get_backend", _backend),
        (xla_bridge, "backends", lambda: {"cpu": _seen.client}),
        (xla_bridge, "backends_are_initialized", lambda: True),
        *((home, "local_devices", _local_devices) for home in (xla_bridge, jax)),
        *((home, "process_count", lambda _backend=None: 1) for home in (xla_bridge, jax)),
    ]


def _backend(platform: Any = None) -> Any:
    if platform is None or platform == "cpu":
        return _seen.client
    if not isinstance(platform, str):
        return platform
    raise RuntimeError(f"Unknown backend {platform}. Available backends are ['cpu']")


def _local_devices(process_index: int | None = None, backend: Any = None, host_id: int | None = None) -> list[Any]:
    if (process_index or host_id or 0) != 0:
        raise ValueError(f"Unknown process_index {process_index or host_id}")
    return list(_backend(backend).local_devices())
