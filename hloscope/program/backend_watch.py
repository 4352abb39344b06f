"""Notices user code that asks which backend it runs on: it sees `cpu` while it is traced for a TPU slice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from hloscope.compiler.jax_internals import replaced_in_this_thread
from hloscope.program.importing import is_library
from hloscope.program.loading import shown_path


@contextmanager
def watched_backend(notes: list[str]) -> Iterator[None]:
    """Adds a note for each place of the user's code that calls `jax.default_backend()` meanwhile.

    Calls through a name that was imported before (`from jax import default_backend`) are not seen.
    """
    original = jax.default_backend

    def watching() -> str:
        caller = sys._getframe(2)  # beyond the stand-in that calls this
        filename = caller.f_code.co_filename
        backend: str = original()
        note = (
            f"{shown_path(filename)}:{caller.f_lineno} asks jax.default_backend() and sees {backend!r}, because the "
            "program is traced on simulated devices: what it does on a TPU may differ"
        )
        if not is_library(filename) and note not in notes:
            notes.append(note)
        return backend

    with replaced_in_this_thread(jax, "default_backend", watching):
        yield
