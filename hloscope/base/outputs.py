"""Output files named by the user: files written by hloscope are overwritten, others are kept."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hloscope.base.errors import HloscopeError, TargetError

_SOURCES = (".py", ".pyi", ".ipynb")
_REPORTS = (
    *("", ".json", ".html", ".htm", ".md", ".txt", ".svg", ".dot", ".gv", ".graphml", ".sarif", ".xml", ".gz"),
    *(".log", ".out", ".report"),
)
"""The endings of the names of files that are, or may be, reports."""
_OVERRIDES_HEAD = b"# Written by hloscope"
"""The first bytes of a file of figures, which is not a report, and which a new one may replace."""
_BASELINE = b"hloscope baseline"
_MODULE = b"HloModule"
_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 4096


def check_hlo_file(path: str | Path) -> None:
    """Checks, before anything is compiled, that compiled HLO may be written to a file.

    Raises:
        TargetError: The file exists, and is not HLO text.
    """
    head = _read_head(Path(path))
    if head and not head.lstrip().startswith(_MODULE):
        raise TargetError(
            f"{path} exists and is not HLO text, and it would be overwritten",
            why="compiled HLO may overwrite only files of HLO text",
            fix="name another file, or delete this one",
        )


def check_report_file(path: str | Path | None, ending: str = "") -> None:
    """Checks, before anything else is done, that a report may be written to a file, or to the target of a link.

    Args:
        path: The file; None and `-` for standard output.
        ending: The ending of the format's files, which a report in that format may replace.

    Raises:
        TargetError: The file exists, and is a source, HLO text, a baseline or not like a report.
    """
    if path is None or path == "-":
        return
    head = _read_head(Path(path))
    kind = _find_kind(Path(path), head, ending) if head else None
    if kind is not None:
        raise TargetError(
            f"{path} is {kind}, which the report would replace", fix="name another file for the report, or delete it"
        )


def _find_kind(path: Path, head: bytes, ending: str) -> str | None:
    """The kind of a file that no report may replace; None for a file that may be replaced."""
    if head.lstrip().startswith(_MODULE):
        return "HLO text"
    if head.startswith(_BASELINE):
        return "a baseline"
    for named in dict.fromkeys((path, path.resolve())):
        suffix = named.suffix.lower()
        if suffix in _SOURCES:
            return "Python source"
        if suffix not in (*_REPORTS, ending) and not head.startswith(_OVERRIDES_HEAD):
            return f"a {suffix} file" if named == path else f"a link to {named.name}"
    return None


def check_is_not_an_input(path: str | None, given: Iterable[object]) -> None:
    """Checks, before anything else is done, that a report does not replace a file that the command reads.

    Args:
        path: The file; None and `-` for standard output.
        given: Values of the command's arguments and options, some of which name files.

    Raises:
        TargetError: It is one of these files.
    """
    if path is None or path == "-":
        return
    texts = (text for value in given for text in (value if isinstance(value, tuple) else (value,)))
    for text in texts:
        with suppress(OSError, ValueError):
            if isinstance(text, str) and Path(path).samefile(text.partition("#")[0]):
                raise TargetError(
                    f"{path} is read by this command, and the report would replace it",
                    fix="name another file for the report",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFiles:
    """A report in a form other than text.

    Attributes:
        contents: Bytes by their paths below the user's folder; by the empty path, those of a single file.
        opened_by: The program that shows it.
        stale: Patterns for the names of other files that were derived from earlier contents.
        notes: Notes for the user, one sentence each.
    """

    contents: Mapping[str, bytes]
    opened_by: str
    stale: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_output(path: str | Path | None, kind: str, ending: str = "") -> None:
    """Checks, before anything else is done, that a report may be written to the user's path.

    Args:
        path: The file or folder; None and `-` for standard output.
        kind: The required kind: `file` or `folder`.
        ending: The ending of the format's files.

    Raises:
        TargetError: It is the other kind, or a source or HLO text.
    """
    if kind == "file":
        check_report_file(path, ending)
    elif path is None or path == "-":
        raise TargetError("this format writes a folder, and none is named", fix="name one: -o LOGDIR")
    elif os.path.exists(path) and not os.path.isdir(path):
        raise TargetError(f"{path} is a file, and this format writes a folder", fix="name another place")


def write_text(text: str, path: str | Path, what: str = "the report") -> None:
    """Writes a report, or another named thing, to a file.

    Raises:
        HloscopeError: It cannot be written.
    """
    _write(Path(path), (text if text.endswith("\n") else text + "\n").encode("utf-8"), what)


def replace_file(path: Path, content: bytes, what: str) -> None:
    """Writes a file whole or not at all, in a folder that is made for it; an existing file keeps its access rights.

    Raises:
        HloscopeError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        if path.exists():
            temporary.chmod(path.stat().st_mode)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # its name is too long
            temporary.unlink(missing_ok=True)
        raise HloscopeError(f"{what} cannot be written", why=error.strerror or str(error)) from None


def write_files(files: OutputFiles, path: str | Path) -> tuple[str, ...]:
    """Writes a report in files or a folder; a compressed one is decompressed if its name ends with `.json`.

    Returns:
        The messages about it: how to open it, and its notes.

    Raises:
        HloscopeError: It cannot be written.
    """
    for below, content in files.contents.items():
        file = Path(path, below)
        if below:
            _clear(file.parent, files.stale)
        is_plain = file.suffix == ".json" and content.startswith(_GZIP)
        _write(file, gzip.decompress(content) if is_plain else content)
    return (f"{path} is written: {files.opened_by} opens it", *files.notes)


def _clear(folder: Path, stale: tuple[str, ...]) -> None:
    """Makes a folder, and removes files that were derived from its earlier contents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in stale:
            for file in folder.glob(pattern):
                file.unlink()
    except OSError as error:
        raise HloscopeError(f"the report cannot be written to {folder}", why=error.strerror) from error


def _write(path: Path, content: bytes, what: str = "the report") -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        fix = "name another file"
        if not os.path.isdir(path.parent):
            fix = f"create the folder {path.parent} first, or {fix}"
        raise HloscopeError(f"{what} cannot be written to {path}", why=error.strerror, fix=fix) from error
    except ValueError as error:  # a name with a null byte
        raise HloscopeError(
            f"{what} cannot be written to {str(path)!r}", why=str(error), fix="name another file"
        ) from error


def _read_head(path: Path) -> bytes:
    """The first bytes of a file; empty if it does not exist, is not a file or cannot be read."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(_HEAD_BYTES)
    return b""
