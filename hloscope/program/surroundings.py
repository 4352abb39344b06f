"""One call at a time, and the process left as it was found: its settings, environment, loggers, folder and path."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from hloscope.compiler.client import interruptions

_LOCK = threading.RLock()


class _Begun(threading.local):
    """What had been when this thread's call began."""

    interruptions: int = 0


_begun = _Begun()


@contextmanager
def one_call() -> Iterator[None]:
    """Lets one thread at a time import, trace and compile, and undoes what user code did to the process meanwhile.

    JAX's devices, settings and caches, Python's modules and its path belong to the whole process.
    """
    _begun.interruptions = interruptions()
    with _LOCK:
        stop_where_interrupted()
        before = Surroundings.now()
        try:
            yield
        finally:
            before.restore()


def stop_where_interrupted() -> None:
    """Ends the call of this thread where Ctrl-C was pressed since it began.

    Raises:
        KeyboardInterrupt: It was.
    """
    if interruptions() != _begun.interruptions:
        raise KeyboardInterrupt


@contextmanager
def streams_kept() -> Iterator[None]:
    """Undoes what user code does to the standard streams; for the code alone, since other threads have them too."""
    before = sys.stdin, sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What user code may change of the process that it runs in.

    Attributes:
        path: `sys.path`.
        environment: `os.environ`.
        folder: The current directory; None where there is none any more.
        settings: `jax.config` by name.
        loggers: The level, handlers, propagation and silence of each logger.
        silenced: The level up to which all loggers are, as `logging.disable` says.
    """

    path: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str | None
    settings: Mapping[str, Any]
    loggers: Mapping[logging.Logger, tuple[Any, ...]]
    silenced: int

    @classmethod
    def now(cls) -> Surroundings:
        """As they are."""
        import jax

        folder = None
        with suppress(OSError):
            folder = os.getcwd()
        return cls(
            path=tuple(sys.path),
            environment=dict(os.environ),
            folder=folder,
            settings=dict(jax.config.values),
            loggers={logger: _state(logger) for logger in _loggers()},
            silenced=logging.root.manager.disable,
        )

    def restore(self) -> None:
        """Makes everything as it was."""
        if tuple(sys.path) != self.path:
            sys.path[:] = self.path
        _update_environment(_changes(dict(os.environ), self.environment))
        if self.folder is not None:
            with suppress(OSError):
                os.chdir(self.folder)
        _update_settings(_changes(Surroundings.now().settings, self.settings))
        for logger, state in self.loggers.items():
            if _state(logger) != state:
                level, handlers, logger.propagate, logger.disabled = state
                logger.setLevel(level)
                logger.handlers[:] = handlers
        if logging.root.manager.disable != self.silenced:
            logging.disable(self.silenced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What modules changed when they were imported, to be so again where they are used again.

    Attributes:
        path: What they added to `sys.path`.
        environment: Variables by name; None for one that was removed.
        settings: `jax.config` by name.
    """

    path: tuple[str, ...]
    environment: Mapping[str, str | None]
    settings: Mapping[str, Any]

    @classmethod
    def between(cls, before: Surroundings, after: Surroundings) -> Changes:
        """What is otherwise afterwards."""
        return cls(
            path=tuple(entry for entry in after.path if entry not in before.path),
            environment=_changes(before.environment, after.environment),
            settings=_changes(before.settings, after.settings),
        )

    def apply(self) -> None:
        """Makes the same changes again."""
        sys.path[:0] = [entry for entry in self.path if entry not in sys.path]
        _update_environment(self.environment)
        _update_settings(self.settings)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return changed | {name: None for name in before if name not in after}


def _update_environment(changes: Mapping[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _update_settings(changes: Mapping[str, Any]) -> None:
    import jax

    for name, value in changes.items():
        jax.config.update(name, value)


def _loggers() -> list[logging.Logger]:
    known = list(logging.root.manager.loggerDict.values())
    return [logging.root, *(one for one in known if isinstance(one, logging.Logger))]


def _state(logger: logging.Logger) -> tuple[Any, ...]:
    return logger.level, tuple(logger.handlers), logger.propagate, logger.disabled
