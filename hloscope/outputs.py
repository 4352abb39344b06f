"""Output files named by the user: files written by hloscope are overwritten, others are kept."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hloscope.errors import HloscopeError, TargetError

_SOURCES = (".py", ".pyi", ".ipynb")
_REPORTS = (
    *("", ".json", ".html", ".htm", ".md", ".txt", ".svg", ".dot", ".gv", ".graphml", ".sarif", ".xml", ".gz"),
    *(".log", ".out", ".report"),
)
"""What the names of files end with that are reports, or may be."""
_OWN = b"# Written by hloscope"
"""What a file of figures begins with, which is no report, and which a new one may replace."""
_BASELINE = b"hloscope baseline"
_MODULE = b"HloModule"
_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 4096


def check_hlo_file(path: str | Path) -> None:
    """Checks, before anything is compiled, that compiled HLO may be written to a file.

    Raises:
        TargetError: The file exists, and is no HLO text.
    """
    head = _head(Path(path))
    if head and not head.lstrip().startswith(_MODULE):
        raise TargetError(
            f"{path} exists and is not HLO text, and it would be overwritten",
            why="compiled HLO may overwrite only files of HLO text",
            fix="name another file, or delete this one",
        )


def check_report_file(path: str | Path | None) -> None:
    """Checks, before anything is done, that a report may be written to a file, and through a link to what that names.

    Args:
        path: The file; None and `-` for standard output.

    Raises:
        TargetError: The file exists, and is a source, HLO text, a baseline or of another kind than reports are.
    """
    if path is None or path == "-":
        return
    head = _head(Path(path))
    kind = _kind_of(Path(path), head) if head else None
    if kind is not None:
        raise TargetError(
            f"{path} is {kind}, which the report would replace", fix="name another file for the report, or delete it"
        )


def _kind_of(path: Path, head: bytes) -> str | None:
    """What a file is that no report may replace; None of what may be one."""
    if head.lstrip().startswith(_MODULE):
        return "HLO text"
    if head.startswith(_BASELINE):
        return "a baseline"
    for named in dict.fromkeys((path, path.resolve())):
        suffix = named.suffix.lower()
        if suffix in _SOURCES:
            return "Python source"
        if suffix not in _REPORTS and not head.startswith(_OWN):
            return f"a {suffix} file" if named == path else f"a link to {named.name}"
    return None


def check_is_no_input(path: str | None, given: Iterable[object]) -> None:
    """Checks, before anything is done, that a report does not replace a file that the command reads.

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
class Files:
    """A report that is no text.

    Attributes:
        contents: Bytes by their paths below the folder that the user names; by the empty path those of the file.
        opened_by: What shows it.
        stale: Names, as patterns, of files beside those that others have derived from what was there before.
        notes: What is to be said of it, one sentence each.
    """

    contents: Mapping[str, bytes]
    opened_by: str
    stale: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_output(path: str | Path | None, kind: str) -> None:
    """Checks, before anything is done, that a report may be written where the user says.

    Args:
        path: The file or folder; None and `-` for standard output.
        kind: Which of the two it has to be: `file` or `folder`.

    Raises:
        TargetError: It is the other one, or a source or HLO text.
    """
    if kind == "file":
        check_report_file(path)
    elif path is None or path == "-":
        raise TargetError("this format writes a folder, and none is named", fix="name one: -o LOGDIR")
    elif Path(path).exists() and not Path(path).is_dir():
        raise TargetError(f"{path} is a file, and this format writes a folder", fix="name another place")


def write_text(text: str, path: str | Path, what: str = "the report") -> None:
    """Writes a report, or whatever is named, to a file.

    Raises:
        HloscopeError: It cannot be written.
    """
    _write(Path(path), (text if text.endswith("\n") else text + "\n").encode("utf-8"), what)


def write_files(files: Files, path: str | Path) -> tuple[str, ...]:
    """Writes what is no text to a file or into a folder; what is compressed is not where its name ends with `.json`.

    Returns:
        What is to be said of it: how it is opened, and its notes.

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
    """Makes a folder, without what was derived from what it held before."""
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
        if not path.parent.is_dir():
            fix = f"create the folder {path.parent} first, or {fix}"
        raise HloscopeError(f"{what} cannot be written to {path}", why=error.strerror, fix=fix) from error
    except ValueError as error:  # a name with a null byte
        raise HloscopeError(
            f"{what} cannot be written to {str(path)!r}", why=str(error), fix="name another file"
        ) from error


def _head(path: Path) -> bytes:
    """What a file begins with; nothing where there is none, or what is there is no file or cannot be read."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(_HEAD_BYTES)
    return b""
