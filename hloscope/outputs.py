"""Files that the user names to be written: what hloscope wrote before is written anew, and what it did not is kept."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hloscope.errors import TargetError

_SOURCES = (".py", ".pyi", ".ipynb")
_MODULE = b"HloModule"
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
    """Checks, before anything is done, that a report may be written to a file.

    Args:
        path: The file; None and `-` for standard output.

    Raises:
        TargetError: The file exists, and is a source or HLO text.
    """
    if path is None or path == "-":
        return
    head = _head(Path(path))
    is_hlo = head.lstrip().startswith(_MODULE)
    if head and (is_hlo or Path(path).suffix in _SOURCES):
        kind = "HLO text" if is_hlo else "Python source"
        raise TargetError(
            f"{path} is {kind}, which the report would replace", fix="name another file for the report, or delete it"
        )


def _head(path: Path) -> bytes:
    """What a file begins with; nothing where there is none, or what is there is no file or cannot be read."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(_HEAD_BYTES)
    return b""
