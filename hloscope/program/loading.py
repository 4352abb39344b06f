"""From `package.module:fn` or `path/to/file.py:fn` to the function; the user's own errors, and time limits on them."""

from __future__ import annotations

import linecache
import re
import signal
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from hloscope.errors import (
    DeviceCountError,
    HloscopeError,
    ImportedTwiceError,
    TargetError,
    TimeLimitError,
    TraceError,
    did_you_mean,
)
from hloscope.messages import Either, Option, say
from hloscope.program.importing import (
    World,
    imported,
    is_library,
    shown_path,
    was_imported_by_user,
    was_imported_here,
)
from hloscope.program.surroundings import streams_kept
from hloscope.program.target import ATTRIBUTE, TargetFacts


def loaded(
    target: Callable[..., Any] | str, facts: TargetFacts, beside: Callable[..., Any] | str | None = None
) -> Callable[..., Any]:
    """A function itself, or what a target's name imports while the mesh that was asked for is current.

    Args:
        target: The function, or its name.
        facts: What was said of it.
        beside: Another target that it is used with: both see the same modules.

    Raises:
        TargetError: As for `load`.
    """
    from hloscope.program.devices import current_for_import, seen_by_modules

    if not isinstance(target, str):
        return target
    with current_for_import(facts):
        places = frozenset(_place(named) for named in (target, beside) if isinstance(named, str))
        return load(target, seen_by_modules(facts), together=places)


def name_of(target: Any) -> str:
    """What reports call a target: as the user wrote it, or by the name of what it is made from; never by an address.

    A partial is called as its function, a jitted method as its method, an object by its type, and what JAX hands out by
    the function that it traced.
    """
    if isinstance(target, str):
        return target
    if isinstance(target, partial):
        return name_of(target.func)
    lowering = getattr(target, "_lowering", None)
    for said in (getattr(target, "__qualname__", None), getattr(target, "fun_name", None)):
        if isinstance(said, str) and said:
            return said
    jitted = _JITTED.fullmatch(str(getattr(lowering, "_name", "")))
    return jitted["name"] if jitted else type(target).__qualname__


_JITTED = re.compile(r"\w+\((?P<name>.+)\)")
"""What JAX calls a function that it lowered: `jit(step)`."""


def _place(target: str) -> str:
    return target.rpartition(":")[0] if ":" in target else target


def load(target: str, conditions: Hashable = None, together: Hashable = None) -> Callable[..., Any]:
    """Imports a target's module and returns the function it names.

    The current directory is importable. The module is hloscope's own: the user's, if he has imported it, is neither
    used nor changed. It is imported again when one of the files it was made from is edited.

    Args:
        target: `package.module:fn`, `path/to/file.py:fn`; `fn` may be dotted (`Model.step`).
        conditions: What the module may look at when it is imported; it is imported again where that is different.
        together: What it shares its modules with; by default other functions of the same place.

    Raises:
        TargetError: The module or function does not exist, is not callable, or fails on import.
    """
    place, _, attribute = target.rpartition(":") if ":" in target else (target, "", "")
    if not place.strip(". "):
        raise TargetError(f"{target!r} is not a target", fix="write module:function, or path/to/file.py:function")
    module, world = _import(place, target, together or frozenset({place}), conditions)
    if not attribute:
        known = ", ".join(_function_names(module)[:8])
        choices = f", where FUNCTION is one of {known}" if known else ""
        raise TargetError(
            f"the target {target!r} does not name a function", fix=f"write {place}:FUNCTION{choices}", where=place
        )
    found: Any = module
    for part in attribute.split("."):
        if not _has(found, part):
            names = _function_names(found)
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
        raise import_error(error, f"{name} cannot be read from {holder!r}") from error


def _import(place: str, target: str, together: Hashable, conditions: Hashable) -> tuple[ModuleType, World]:
    file = Path(place).resolve() if place.endswith(".py") else None  # the module may change the current directory
    if place.endswith(".py") or "/" in place:
        name, root = _module_of_file(Path(place), target)
    else:
        name, root = place, Path.cwd()
    try:
        module, world = imported(name, (str(root), str(Path.cwd())), together, conditions)
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
        raise _refused_twice(error, target) or import_error(error, f"{place} cannot be imported") from error
    return (module if file is None else _same_file(module, file)), world


def _same_file(module: ModuleType, file: Path) -> ModuleType:
    """Guards against another module of the same name (`test.py`, `types.py`) standing in for the user's file."""
    loaded = getattr(module, "__file__", None)
    if loaded is None or Path(loaded).resolve() != file:
        raise TargetError(
            f"{file.name} is shadowed by another module named {module.__name__!r}",
            where=loaded or "a module built into Python",
            fix="rename the file",
        )
    return module


def _module_of_file(path: Path, target: str) -> tuple[str, Path]:
    """The dotted name of a Python file and the folder to import it from; packages are climbed to their root."""
    if not path.is_file():
        if path.is_dir():
            raise TargetError(f"{path} is a folder", fix="name a file: path/to/file.py:fn, or one of HLO")
        files = [file.name for file in path.parent.glob("*.py")]
        fix = did_you_mean(path.name, files, most=3, cutoff=0.8)
        place = f"the current folder, {Path.cwd()}" if fix is None and not path.is_absolute() else None
        raise TargetError(f"there is no file {path}", where=place, fix=fix)
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


def _function_names(holder: object) -> list[str]:
    """Public callables defined in the module itself, decorated targets first."""
    home = getattr(holder, "__name__", None)
    found = [
        name
        for name, value in vars(holder).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", home) == home
    ]
    return sorted(found, key=lambda name: not hasattr(getattr(holder, name), ATTRIBUTE))


_MESH_DOES_NOT_FIT = re.compile(r"Number of devices (\d+) must (?:be >=|equal) the product of mesh_shape \(([\d, ]+)\)")
_RESHAPE_DOES_NOT_FIT = re.compile(r"cannot reshape array of size (\d+) into shape \(([\d, ]+)\)")


def devices_wanted(error: BaseException) -> DeviceCountError | None:
    """What the user's code needs when it fails to make a mesh because too few or too many devices are simulated."""
    words = _words(error)
    found = _MESH_DOES_NOT_FIT.search(words) or _RESHAPE_DOES_NOT_FIT.search(words)
    if found is None:
        return None
    from hloscope.program.devices import simulated_device_count

    available, needed = int(found.group(1)), prod(int(n) for n in found.group(2).split(",") if n.strip())
    return DeviceCountError(needed, available) if available == simulated_device_count() != needed else None


def import_error(error: BaseException, what: str, kind: type[HloscopeError] = TargetError) -> HloscopeError:
    """An exception in the user's own code, in its words with the user's line."""
    if miscounted := devices_wanted(error):
        return miscounted
    where, excerpt = _user_place(traceback.extract_tb(error.__traceback__))
    return kind(what, where=where, excerpt=excerpt, why=describe(error))


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Runs the user's code: its exceptions become one clear message with its line.

    Raises:
        TraceError: In place of whatever the code raised.
    """
    try:
        with streams_kept():
            yield
    except HloscopeError:
        raise
    except (Exception, SystemExit) as error:
        raise import_error(error, what, TraceError) from error


def _words(error: BaseException) -> str:
    """What an exception says; nothing where its own class cannot say it."""
    try:
        return str(error).strip()
    except Exception:
        return ""


def describe(error: BaseException) -> str:
    """An exception's own words, led by its type where the words alone would not say enough."""
    text, name = _words(error), type(error).__name__
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{name}: {error.msg} ({error.filename}:{error.lineno})"
    return f"{name}: {text}" if text else name


_REFUSED_TWICE = re.compile(r"duplicate|already|twice", re.IGNORECASE)


def _refused_twice(error: BaseException, target: str) -> ImportedTwiceError | None:
    """What helps where a library does not let a module register a second time what it registers; else None."""
    refused = import_error(error, f"{target} cannot be imported again")
    trace = traceback.extract_tb(error.__traceback__)
    files = [frame.filename for frame in reversed(trace) if frame.name == "<module>"]
    users = next(filter(was_imported_by_user, files), None)
    file = users or next(filter(was_imported_here, files), None)
    if file is None or refused.why is None or not _REFUSED_TWICE.search(refused.why):
        return None
    why = (
        f"{refused.why.rstrip('.')}: this process has already imported {shown_path(file)}, which cannot be registered "
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


def _user_place(frames: traceback.StackSummary) -> tuple[str | None, str | None]:
    """The innermost frame that is neither hloscope's nor a library's: `file.py:12 in f` and its source line."""
    chosen = next((frame for frame in reversed(frames) if not is_library(frame.filename)), None)
    if chosen is None:
        return None, None
    source = linecache.getline(chosen.filename, chosen.lineno or 0).strip()
    return f"{shown_path(chosen.filename)}:{chosen.lineno} in {chosen.name}", source or None


_AGAIN_S = 1.0
"""An exception raised in a callback of the garbage collector, of which JAX has some, is lost: the alarm rings again."""


@contextmanager
def ended_after(limit_s: float | None, doing: str) -> Iterator[None]:
    """Ends what runs meanwhile after so long: in the main thread, where nobody else uses the system's alarm.

    Args:
        limit_s: The limit in seconds; None for none.
        doing: What is being done, for the message.

    Raises:
        TimeLimitError: It took too long; `where` is the line of the user's that ran, if any did.
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
        error.where, error.excerpt = _user_place(traceback.StackSummary.extract(iter(reversed(inside))))
        raise error

    signal.signal(alarm, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(alarm, signal.SIG_DFL)
