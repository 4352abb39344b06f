"""The import of the function named by `package.module:fn` or `file.py:fn`; the user's errors, with time limits."""

from __future__ import annotations

import linecache
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from hloscope.base.environment import is_library
from hloscope.base.errors import (
    DeviceCountError,
    Either,
    HloscopeError,
    ImportedTwiceError,
    Option,
    TargetError,
    TimeLimitError,
    TraceError,
    describe_exception,
    did_you_mean,
    find_exception_words,
    make_missing_file_error,
    say,
)
from hloscope.compile.importing import (
    IsolatedModules,
    format_path,
    import_isolated,
    keep_streams,
    refuse_exit,
    was_imported_by_user,
    was_imported_here,
)
from hloscope.compile.target import FACTS_ATTRIBUTE, TargetFacts


def load_target(
    target: Callable[..., Any] | str, facts: TargetFacts, beside: Callable[..., Any] | str | None = None
) -> Callable[..., Any]:
    """The target if it is a function, or the function that its name imports while the requested mesh is current.

    Args:
        target: The function, or its name.
        facts: Its options.
        beside: Another target that is used with it: both see the same modules.

    Raises:
        TargetError: As for `import_target`.
    """
    from hloscope.compile.devices import find_import_conditions, set_mesh_for_import

    if not isinstance(target, str):
        return target
    with set_mesh_for_import(facts):
        named = (name for name in (target, beside) if isinstance(name, str))
        places = frozenset(name.rpartition(":")[0] or name for name in named)
        return import_target(target, find_import_conditions(facts), together=places)


def import_target(target: str, conditions: Hashable = None, together: Hashable = None) -> Callable[..., Any]:
    """Imports a target's module and returns the function it names.

    The current directory is importable. The module is hloscope's own: one that the user has already imported is neither
    used nor changed. It is imported again when one of the files it was made from is edited.

    Args:
        target: `package.module:fn`, `path/to/file.py:fn`; `fn` may be dotted (`Model.step`).
        conditions: The conditions that the import may depend on; the module is imported again if they differ.
        together: The key of the functions that share its modules; by default those of the same place.

    Raises:
        TargetError: The module or function does not exist, is not callable, or fails on import.
    """
    place, _, attribute = target.rpartition(":") if ":" in target else (target, "", "")
    if not place.strip(". "):
        raise TargetError(f"{target!r} is not a target", fix="write module:function, or path/to/file.py:function")
    module, world = _import_place(place, target, together or frozenset({place}), conditions)
    if not attribute:
        known = ", ".join(_list_function_names(module)[:8])
        choices = f", where FUNCTION is one of {known}" if known else ""
        raise TargetError(
            f"the target {target!r} does not name a function", fix=f"write {place}:FUNCTION{choices}", where=place
        )
    found: Any = module
    for part in attribute.split("."):
        if not _has(found, part):
            names = _list_function_names(found)
            fix = did_you_mean(
                part, names, f"it has {', '.join(names[:8])}" if names else "it defines no functions", most=3
            )
            where = getattr(module, "__file__", None)
            raise TargetError(f"{place} has no function {attribute!r}", where=where, fix=fix)
        found = getattr(found, part)
    if not callable(found):
        raise TargetError(
            f"{target} is not a function but {type(found).__name__}",
            fix="name a function, or a factory that returns one",
        )
    world.functions[id(found)] = found
    return found  # type: ignore[no-any-return]


def _has(holder: object, name: str) -> bool:
    try:
        return hasattr(holder, name)
    except Exception as error:
        raise make_user_code_error(error, f"{name} cannot be read from {holder!r}") from error


def _import_place(
    place: str, target: str, together: Hashable, conditions: Hashable
) -> tuple[ModuleType, IsolatedModules]:
    file = Path(place).resolve() if place.endswith(".py") else None  # the module may change the current directory
    if place.endswith(".py") or "/" in place:
        name, root = _find_module_of_file(Path(place), target)
    else:
        name, root = place, Path.cwd()
    try:
        module, world = import_isolated(name, (str(root), str(Path.cwd())), together, conditions)
    except (HloscopeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise TargetError(
                f"there is no module {error.name!r}",
                why=f"it is neither installed nor in the current directory {Path.cwd()}",
                fix=say(
                    Either(
                        "name a module as Python imports it, or a file: path/to/file.py:fn",
                        'pass the function itself, or name it as "module:fn" or "path/to/file.py:fn"',
                    )
                ),
            ) from error
        raise _explain_import_twice(error, target) or make_user_code_error(
            error, f"{place} cannot be imported"
        ) from error
    return (module if file is None else _check_same_file(module, file)), world


def _check_same_file(module: ModuleType, file: Path) -> ModuleType:
    """Checks that another module of the same name (`test.py`, `types.py`) does not replace the user's file."""
    loaded = getattr(module, "__file__", None)
    if loaded is None or Path(loaded).resolve() != file:
        raise TargetError(
            f"{file.name} is shadowed by another module named {module.__name__!r}",
            where=loaded or "a module built into Python",
            fix="rename the file",
        )
    return module


def _find_module_of_file(path: Path, target: str) -> tuple[str, Path]:
    """The dotted name of a Python file and the folder to import it from: the root of its package."""
    if not os.path.isfile(path):
        if os.path.isdir(path):
            raise TargetError(f"{path} is a folder", fix="name a file: path/to/file.py:fn, or one of HLO")
        raise make_missing_file_error(str(path), lambda name: name.endswith(".py"))
    if path.suffix != ".py":
        raise TargetError(
            f"{target} is neither a Python file nor HLO text",
            fix="name module:fn, file.py:fn, a .hlo or .txt file, or - for standard input",
        )
    path = path.resolve()
    parts, root = [path.stem], path.parent
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    return ".".join(parts), root


def _list_function_names(holder: object) -> list[str]:
    """The public callables defined in the module itself, decorated targets first."""
    home = getattr(holder, "__name__", None)
    found = [
        name
        for name, value in vars(holder).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", home) == home
    ]
    return sorted(found, key=lambda name: not hasattr(getattr(holder, name), FACTS_ATTRIBUTE))


_MESH_DOES_NOT_FIT = re.compile(r"Number of devices (\d+) must (?:be >=|equal) the product of mesh_shape \(([\d, ]+)\)")
_RESHAPE_DOES_NOT_FIT = re.compile(r"cannot reshape array of size (\d+) into shape \(([\d, ]+)\)")


def recognize_device_count_error(error: BaseException) -> DeviceCountError | None:
    """The device count that user code needs, if it failed to make a mesh with too few or too many simulated devices."""
    words = find_exception_words(error)
    found = _MESH_DOES_NOT_FIT.search(words) or _RESHAPE_DOES_NOT_FIT.search(words)
    if found is None:
        return None
    from hloscope.compile.devices import count_simulated_devices

    available, needed = int(found.group(1)), prod(int(n) for n in found.group(2).split(",") if n.strip())
    return DeviceCountError(needed, available) if available == count_simulated_devices() != needed else None


def make_user_code_error(error: BaseException, what: str, kind: type[HloscopeError] = TargetError) -> HloscopeError:
    """The error for an exception in the user's code, in its own words with the user's line."""
    if miscounted := recognize_device_count_error(error):
        return miscounted
    where, excerpt = _find_user_place(traceback.extract_tb(error.__traceback__))
    return kind(what, where=where, excerpt=excerpt, why=describe_exception(error))


@contextmanager
def translate_user_errors(what: str) -> Iterator[None]:
    """Runs the user's code and turns its exceptions into one clear message with its line.

    Raises:
        TraceError: In place of any exception of the code.
    """
    try:
        with keep_streams(), refuse_exit():
            yield
    except HloscopeError:
        raise
    except (Exception, SystemExit) as error:
        raise make_user_code_error(error, what, TraceError) from error


_REFUSED_TWICE = re.compile(r"duplicate|already|twice", re.IGNORECASE)


def _explain_import_twice(error: BaseException, target: str) -> ImportedTwiceError | None:
    """The error that helps if a library refuses a second registration by an imported module; otherwise None."""
    refused = make_user_code_error(error, f"{target} cannot be imported again")
    trace = traceback.extract_tb(error.__traceback__)
    files = [frame.filename for frame in reversed(trace) if frame.name == "<module>"]
    users = next(filter(was_imported_by_user, files), None)
    file = users or next(filter(was_imported_here, files), None)
    if file is None or refused.why is None or not _REFUSED_TWICE.search(refused.why):
        return None
    why = (
        f"{refused.why.rstrip('.')}: this process has already imported {format_path(file)}, which cannot be registered "
        "twice"
    )
    fix = "pass the function itself instead of its name, or use the hloscope command, which has its own process"
    if users is None:
        fix = say(
            "name the slice or mesh (",
            Option("slice"),
            ", ",
            Option("mesh"),
            "), so that one import suffices; after an edit, start a new process",
        )
    return ImportedTwiceError(refused.what, where=refused.where, excerpt=refused.excerpt, why=why, fix=fix)


def _find_user_place(frames: traceback.StackSummary) -> tuple[str | None, str | None]:
    """The innermost frame outside hloscope and libraries: `file.py:12 in f` and its source line."""
    chosen = next((frame for frame in reversed(frames) if not is_library(frame.filename)), None)
    if chosen is None:
        return None, None
    source = linecache.getline(chosen.filename, chosen.lineno or 0).strip()
    return f"{format_path(chosen.filename)}:{chosen.lineno} in {chosen.name}", source or None


_AGAIN_S = 1.0
"""The alarm's repeat interval: an exception raised in a callback of JAX's for the garbage collector is lost."""


@contextmanager
def limit_time(limit_s: float | None, doing: str) -> Iterator[None]:
    """Ends the block after a time limit: only in the main thread, and only if the system's alarm is not in use.

    Args:
        limit_s: The limit in seconds; None for none.
        doing: The action in progress, for the message.

    Raises:
        TimeLimitError: It took too long; `where` is the user's line that was running, if any.
    """
    alarm = getattr(signal, "SIGALRM", None)
    in_main = threading.current_thread() is threading.main_thread()
    if limit_s is None or alarm is None or not in_main or signal.getsignal(alarm) is not signal.SIG_DFL:
        yield
        return
    outside = {frame for frame, _ in traceback.walk_stack(None)}

    def ring(_number: int, frame: FrameType | None) -> None:
        error = TimeLimitError(doing, limit_s)
        inside = [place for place in traceback.walk_stack(frame) if place[0] not in outside]
        error.where, error.excerpt = _find_user_place(traceback.StackSummary.extract(iter(reversed(inside))))
        raise error

    signal.signal(alarm, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(alarm, signal.SIG_DFL)
