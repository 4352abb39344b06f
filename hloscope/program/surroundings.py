"""One call at a time, and the process left as it was found: its settings, environment, loggers, folder and path."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from hloscope.compiler.client import interruptions

_LOCK = threading.RLock()


_begun = threading.local()
"""What had been when this thread's call began."""


@contextmanager
def one_call() -> Iterator[None]:
    """Lets one thread at a time import, trace and compile, and undoes what user code did to the process meanwhile.

    JAX's devices, settings and caches, Python's modules and its path belong to the whole process.
    """
    _begun.interruptions = interruptions()
    with _LOCK:
        stop_where_interrupted()
        before = surroundings()
        try:
            yield
        finally:
            restore(before)


def stop_where_interrupted() -> None:
    """Ends the call of this thread where Ctrl-C was pressed since it began.

    Raises:
        KeyboardInterrupt: It was.
    """
    if interruptions() != getattr(_begun, "interruptions", 0):
        raise KeyboardInterrupt


@contextmanager
def streams_kept() -> Iterator[None]:
    """Undoes what user code does to the standard streams; for the code alone, since other threads have them too."""
    before = sys.stdin, sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


Surroundings = Mapping[str, Mapping[Any, Any]]
"""What user code may change of the process that it runs in: by the name of a part its values, by their own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of the surroundings.

    Attributes:
        values: Its values as they are now, by name.
        change: Gives one of them another value; None where it had none.
    """

    values: Callable[[], Mapping[Any, Any]]
    change: Callable[[Any, Any], None]


def _change_path(_: str, entries: tuple[str, ...]) -> None:
    sys.path[:] = entries


def _change_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _folder() -> dict[str, str]:
    with suppress(OSError):
        return {"": os.getcwd()}
    return {}  # there is none any more


def _change_folder(_: str, folder: str | None) -> None:
    if folder is not None:
        with suppress(OSError):
            os.chdir(folder)


def _settings() -> dict[str, Any]:
    import jax

    return dict(jax.config.values)


def _change_setting(name: str, value: Any) -> None:
    import jax

    jax.config.update(name, value)


def _loggers() -> dict[logging.Logger, tuple[Any, ...]]:
    known = [logging.root, *logging.root.manager.loggerDict.values()]
    return {
        logger: (logger.level, tuple(logger.handlers), logger.propagate, logger.disabled)
        for logger in known
        if isinstance(logger, logging.Logger)
    }


def _change_logger(logger: logging.Logger, state: tuple[Any, ...] | None) -> None:
    if state is not None:  # what has come since may stay
        level, handlers, logger.propagate, logger.disabled = state
        logger.setLevel(level)
        logger.handlers[:] = handlers


_PARTS = {
    "path": _Part(values=lambda: {"": tuple(sys.path)}, change=_change_path),
    "environment": _Part(values=lambda: dict(os.environ), change=_change_variable),
    "folder": _Part(values=_folder, change=_change_folder),
    "settings": _Part(values=_settings, change=_change_setting),
    "loggers": _Part(values=_loggers, change=_change_logger),
    "silenced": _Part(
        values=lambda: {"": logging.root.manager.disable}, change=lambda _, level: logging.disable(level)
    ),
}


def surroundings() -> Surroundings:
    """As they are."""
    return {name: part.values() for name, part in _PARTS.items()}


def restore(before: Surroundings) -> None:
    """Makes everything as it was."""
    for name, part in _PARTS.items():
        _make(name, _changed(part.values(), before[name]))


def made_since(before: Surroundings) -> Surroundings:
    """What modules changed when they were imported: what they added to the path, variables and settings."""
    now = surroundings()
    added = tuple(entry for entry in now["path"][""] if entry not in before["path"][""])
    return {"path": {"": added}, **{name: _changed(before[name], now[name]) for name in ("environment", "settings")}}


def make_again(made: Surroundings) -> None:
    """Makes the same changes where the modules are used again."""
    sys.path[:0] = [entry for entry in made["path"][""] if entry not in sys.path]
    for name in ("environment", "settings"):
        _make(name, made[name])


def _make(part: str, changes: Mapping[Any, Any]) -> None:
    for name, value in changes.items():
        _PARTS[part].change(name, value)


def _changed(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[Any, Any]:
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return changed | {name: None for name in before if name not in after}
