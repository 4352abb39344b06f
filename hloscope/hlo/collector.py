"""Python's garbage collector, out of the way while large models are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Nothing that is made inside is cyclic and lost, and looking for cycles would take a third of the time.

    What was made shortly before grows old first: the collection after the pause then does not go through the long lists
    that are only filled inside.
    """
    was_enabled = gc.isenabled()
    if was_enabled:
        gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
