"""What a page that is handed on may say of the machine that made it: no home folder, no user's name, no hidden letter.

Source files are named from the project's folder, those of libraries from the library on, and all others from the
folder that they have in common.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hloscope.analysis.paths import common_path
from hloscope.analysis.places import split_place
from hloscope.cells import cell_of
from hloscope.report.escaping import plain_lines

_LIBRARY = re.compile(r".*[/\\](?=(?:site|dist)-packages[/\\])", re.DOTALL)
_SEPARATOR = re.compile(r"[/\\]")
_START = r"(?<![\w.~)\]-])(?:[A-Za-z]:)?"
"""Where a path begins that is named from the root on; a name stack, as in `jit(f)/home/dense`, is none."""
_FOLDER = r"[/\\]{1,2}[^/\\\s:'\"]+"
_PEOPLE = r"(?:home|users|export[/\\]home)"
"""A folder that has one for each person, on machines of any kind."""
_HOME = re.compile(rf"{_START}(?:[/\\]{{1,2}}{_PEOPLE}{_FOLDER}|/root(?![^/\s:'\"]))", re.IGNORECASE)
"""What people's files are in."""
_BELOW = re.compile(rf"({_START}(?:{_FOLDER}){{1,24}}?[/\\]{{1,2}}){_PEOPLE}{_FOLDER}", re.IGNORECASE)
"""The same below other folders: `/usr/local/google/home/NAME/model.bin`, `/mnt/c/Users/NAME/model.bin`."""
_RELATIVE = re.compile(
    rf"(?:(?<=[/\\])|(?<![^\s'\"])){_PEOPLE}{_FOLDER}(?=[/\\][^\s:'\"]{{0,300}}\.(?:py|ipynb|pyi)\b)", re.IGNORECASE
)
"""The same of a Python file that is not named from the root on; other names may be those of a part of a model."""


def _folder(path: str) -> str:
    return path.rstrip("/\\") + os.sep


@dataclass(frozen=True, slots=True)
class Privacy:
    """How the strings of one page are written.

    Attributes:
        files: The name that each source file gets.
        whole: Those that are named from the root on, with their names, the longest first.
    """

    files: dict[str, str]
    whole: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, files: Iterable[str]) -> Privacy:
        """Names for the source files of a program, each its own."""
        known = sorted(set(filter(None, files)))
        short = {file: _short(file) for file in known}
        far = [file for file, name in short.items() if _is_absolute(name)]
        start = _common_folder(far)
        names = {**short, **{file: _without_own_name(without_people(file[start:])) for file in far}}
        whole = sorted((file for file in names if _is_absolute(file)), key=len, reverse=True)
        return cls(names, tuple((file, names[file]) for file in whole))

    def data(self, value: Any, key: str = "") -> Any:
        """Plain data with all its strings so written; `file` and `source` of a document hold a place."""
        if isinstance(value, str):
            return self.place(value) if key in ("file", "source") else self.text(value)
        if isinstance(value, dict):
            return {self.text(name): self.data(inner, name) for name, inner in value.items()}
        return [self.data(inner, key) for inner in value] if isinstance(value, list) else value

    def place(self, text: str) -> str:
        """A file, or a file and a line in it."""
        if text in self.files:
            return plain_lines(self.files[text])
        file, line = split_place(text)
        return self.text(text) if line is None else f"{plain_lines(self.files.get(file) or self.text(file))}:{line}"

    def text(self, text: str) -> str:
        """Any other string, in which files may be named."""
        if "/" in text or "\\" in text:
            for file, name in self.whole:
                text = text.replace(file, name) if file in text else text
            text = without_people(text)
        return plain_lines(text)


def files_of(value: Any, key: str = "") -> Iterator[str]:
    """The source files that a document names."""
    if isinstance(value, str):
        yield from (value,) if key == "file" else (split_place(value)[0],) if key == "source" else ()
    for name, inner in (
        value.items() if isinstance(value, dict) else [(key, item) for item in value] if isinstance(value, list) else ()
    ):
        yield from files_of(inner, name)


def without_people(text: str) -> str:
    """A string without the current folder, home folders and folders with the name of whoever runs this."""
    for start, instead in _own_folders():
        text = text.replace(start, instead) if start in text else text
    text = _RELATIVE.sub("~", _BELOW.sub(r"\1~", _HOME.sub("~", text)))
    name = _own_name()
    return text if name is None else _below(name).sub("~", text)


@lru_cache(maxsize=4)
def _below(name: str) -> re.Pattern[str]:
    """The beginning of a path from the root on, up to a folder of a name."""
    return re.compile(rf"{_START}(?:{_FOLDER}){{0,24}}?[/\\]{{1,2}}{re.escape(name)}(?![^/\\\s:'\"])")


def _without_own_name(file: str) -> str:
    """The name of a file, in which no folder is called as whoever runs this."""
    own = _own_name()
    return "".join("~" if part == own else part for part in re.split(r"([/\\])", file))


def _own_folders() -> list[tuple[str, str]]:
    """The current folder and the home folder with what stands in their place, the one inside the other first."""
    known = [(os.getcwd(), ("", ".")), (str(Path.home()), ("~/", "~"))]
    folders = sorted((pair for pair in known if len(pair[0]) > 1), key=lambda pair: -len(pair[0]))
    return [step for folder, (begin, alone) in folders for step in ((_folder(folder), begin), (folder, alone))]


@lru_cache(maxsize=1)
def _own_name() -> str | None:
    try:
        return getpass.getuser() or None
    except (OSError, KeyError):  # nobody of that number
        return None


def _short(file: str) -> str:
    cell = cell_of(file)
    if cell is not None:
        return cell
    inside = _LIBRARY.sub("", file)
    if inside != file:
        return inside
    start, instead = next((step for step in _own_folders() if file.startswith(step[0])), ("", ""))
    return file if instead else file.removeprefix(start)


def _is_absolute(file: str) -> bool:
    return file.startswith(("/", "\\")) or file[1:3] in (":\\", ":/")


def _common_folder(files: list[str]) -> int:
    """How many letters of the files' names are the folder that all are in."""
    shared = common_path(tuple(_SEPARATOR.split(file)[:-1]) for file in files)
    return sum(len(folder) + 1 for folder in shared)
