"""The public functions for asyncio: each call runs in a thread and is awaited, without blocking the event loop.

Within a process, calls take turns until their program is compiled and then analyze it in parallel. A cancelled call
stops waiting at once; a compile that it started continues and is kept in the cache.

Example:
    >>> found = await asyncio.gather(*(hloscope.aio.analyze(step, types, mesh=mesh) for mesh in meshes))
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from hloscope.app import analyses, checking, comparing, diffing, explaining, pricing, verifying
from hloscope.base.calls import front_door

P = ParamSpec("P")
T = TypeVar("T")


def _make_coroutine(call: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """The function as a coroutine, which runs in a thread of asyncio."""

    @front_door
    @wraps(call)
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(call, *args, **kwargs)

    return called


analyze = _make_coroutine(analyses.analyze)
check = _make_coroutine(checking.check)
compare = _make_coroutine(comparing.compare)
diff = _make_coroutine(diffing.diff)
explain = _make_coroutine(explaining.explain)
measure = _make_coroutine(comparing.measure)
price = _make_coroutine(pricing.price)
shardings = _make_coroutine(analyses.shardings)
timeline = _make_coroutine(analyses.timeline)
verify = _make_coroutine(verifying.verify)

__all__ = ["analyze", "check", "compare", "diff", "explain", "measure", "price", "shardings", "timeline", "verify"]
