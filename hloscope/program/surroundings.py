"""One call at a time, and the process left as it was found.

Its settings, environment, loggers, folder and path; signal handlers, warnings, hooks and random numbers as well.
"""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from hloscope.compiler.client import interruptions

_LOCK = threading.RLock()


_begun = threading.local()
"""What had been when this thread's call began."""


@contextmanager
def one_call(*, of_a_block: bool = False) -> Iterator[None]:
    """Lets one thread at a time import, trace and compile, and undoes what user code did to the process meanwhile.

    JAX's devices, settings and caches, Python's modules and its path belong to the whole process.

    Args:
        of_a_block: Whether what runs meanwhile is a block of the user's own script, which goes on after it with its
            random numbers, handlers and hooks.
    """
    _begun.interruptions = interruptions()
    with _LOCK:
        stop_where_interrupted()
        before = surroundings(_OF_BLOCKS if of_a_block else _PARTS)
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


def _handlers() -> dict[int, Any]:
    found = {int(number): signal.getsignal(number) for number in signal.valid_signals()} if _is_main_thread() else {}
    return {number: handler for number, handler in found.items() if handler is not None}  # None is nothing of Python's


def _change_handler(number: int, handler: Any) -> None:
    if handler is None:
        return
    if number == getattr(signal, "SIGALRM", None):
        signal.setitimer(signal.ITIMER_REAL, 0)  # it was for the handler that goes
    with suppress(OSError, ValueError):
        signal.signal(number, handler)


def _is_main_thread() -> bool:
    """Whether this is the thread that handlers and the user's own random numbers belong to; from others they stay."""
    return threading.current_thread() is threading.main_thread()


def _change_warnings(_: str, state: tuple[Any, ...]) -> None:
    filters, warnings.showwarning = state
    in_use: Any = warnings.filters  # a list, which typeshed does not promise
    in_use[:] = filters
    with warnings.catch_warnings():  # whose end says that the filters are others
        pass


def _umask() -> dict[str, int]:
    """What new files are not allowed; asking Python for it would change it for a moment, in all threads."""
    with suppress(OSError):
        with open("/proc/self/status", encoding="utf-8") as status:
            found = _UMASK.search(status.read(_STATUS_BYTES))
        return {"": int(found[1], 8)} if found else {}
    return {}


_UMASK = re.compile(r"^Umask:\s*([0-7]+)$", re.MULTILINE)
_STATUS_BYTES = 256


def _change_umask(_: str, mask: int | None) -> None:
    if mask is not None:
        os.umask(mask)


def _arguments() -> dict[str, tuple[list[str], tuple[str, ...]]]:
    found = getattr(sys, "argv", None)
    return {} if found is None else {"": (found, tuple(found))}


def _change_arguments(_: str, state: tuple[list[str], tuple[str, ...]] | None) -> None:
    if state is not None:
        sys.argv, entries = state
        sys.argv[:] = entries


def _hooks() -> dict[str, Any]:
    return {name: getattr(sys, name) for name in ("excepthook", "displayhook", "unraisablehook")}


def _random_numbers() -> dict[str, Any]:
    if not _is_main_thread():
        return {}
    numpy = sys.modules.get("numpy.random")
    states: dict[str, Any] = {"python": random.getstate()}
    if numpy is not None:
        kind, keys, *others = numpy.get_state()
        states["numpy"] = (kind, tuple(keys.tolist()), *others)
    return states


def _change_random_numbers(whose: str, state: Any) -> None:
    if whose == "python":
        random.setstate(state)
    elif state is not None:
        sys.modules["numpy.random"].set_state(state)


_PARTS = {
    "path": _Part(values=lambda: {"": tuple(sys.path)}, change=_change_path),
    "environment": _Part(values=lambda: dict(os.environ), change=_change_variable),
    "folder": _Part(values=_folder, change=_change_folder),
    "settings": _Part(values=_settings, change=_change_setting),
    "loggers": _Part(values=_loggers, change=_change_logger),
    "silenced": _Part(
        values=lambda: {"": logging.root.manager.disable}, change=lambda _, level: logging.disable(level)
    ),
    "handlers": _Part(values=_handlers, change=_change_handler),
    "warnings": _Part(
        values=lambda: {"": (tuple(warnings.filters), warnings.showwarning)},
        change=_change_warnings,
    ),
    "umask": _Part(values=_umask, change=_change_umask),
    "arguments": _Part(values=_arguments, change=_change_arguments),
    "hooks": _Part(values=_hooks, change=lambda name, hook: setattr(sys, name, hook)),
    "recursion": _Part(
        values=lambda: {"": sys.getrecursionlimit()}, change=lambda _, limit: sys.setrecursionlimit(limit)
    ),
    "random numbers": _Part(values=_random_numbers, change=_change_random_numbers),
}
_OF_BLOCKS = ("path", "environment", "folder", "settings", "loggers", "silenced")
_OF_MODULES = ("path", "environment", "settings", "recursion")
"""What modules change when they are imported, which is changed again where they are used again."""
OF_WORLDS = (*_OF_BLOCKS, "recursion")
"""What is undone when modules are no longer used; the rest holds until the call ends, for what is traced of them."""


def surroundings(parts: Container[str] = _PARTS) -> Surroundings:
    """As they are."""
    return {name: part.values() for name, part in _PARTS.items() if name in parts}


def restore(before: Surroundings) -> None:
    """Makes everything as it was."""
    for name, values in before.items():
        _make(name, _changed(_PARTS[name].values(), values))


def made_since(before: Surroundings) -> Surroundings:
    """What modules changed when they were imported: what they added to the path, variables and settings."""
    now = surroundings(_OF_MODULES)
    added = tuple(entry for entry in now["path"][""] if entry not in before["path"][""])
    return {"path": {"": added}, **{name: _changed(before[name], now[name]) for name in _OF_MODULES[1:]}}


def make_again(made: Surroundings) -> None:
    """Makes the same changes where the modules are used again."""
    sys.path[:0] = [entry for entry in made["path"][""] if entry not in sys.path]
    for name in _OF_MODULES[1:]:
        _make(name, made[name])


def _make(part: str, changes: Mapping[Any, Any]) -> None:
    for name, value in changes.items():
        _PARTS[part].change(name, value)


def _changed(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[Any, Any]:
    changed = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return changed | {name: None for name in before if name not in after}
