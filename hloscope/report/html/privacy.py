"""Privacy of pages that are shared: no home folder, no user name, no hidden character of the machine that made them.

Source files are named from the project's folder, those of libraries from the library on, and all others from the
folder that they have in common.
"""

from __future__ import annotations

import getpass
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from hloscope.analysis.model_parts import find_common_path
from hloscope.analysis.provenance import split_place
from hloscope.base.environment import find_cell
from hloscope.report.escaping import escape_lines

_LIBRARY = re.compile(r".*[/\\](?=(?:site|dist)-packages[/\\])", re.DOTALL)
_SEPARATOR = re.compile(r"[/\\]")
_FRONT = r"(?:(?<![\w.~)\]-])|(?<=-[IL]))(?<!:/)(?!(?<=:)//)"
"""The start of an absolute path, unlike name stacks such as `jit(f)/home/dense` and addresses."""
_START = _FRONT + r"(?:[A-Za-z]:)?"
_FOLDER = r"[/\\]{1,2}[^/\\\s:'\"]+"
_PEOPLE = r"(?:homes?\d?|users|export[/\\]home|documents and settings)"
"""A folder that has one for each person, on machines of any kind."""
_LETTER = r"[^/\\\s:'\",;()\[\]{}<>]"
_PERSON = rf"[/\\]{{1,2}}(?:{_LETTER}+(?: {_LETTER}+){{1,2}}(?=[/\\])|{_LETTER}+(?:'\w+)?)"
"""The folder of one person; the name may have blanks if more of the path follows."""
_IS_PEOPLE = re.compile(_PEOPLE, re.IGNORECASE)
_HOME = re.compile(rf"{_START}(?:[/\\]{{1,2}}{_PEOPLE}{_PERSON}|/root(?![^/\s:'\"]))", re.IGNORECASE)
"""A home folder."""
_BELOW = re.compile(rf"({_START}(?:{_FOLDER}){{1,24}}?[/\\]{{1,2}}){_PEOPLE}{_PERSON}", re.IGNORECASE)
"""A home folder below others: `/usr/local/google/home/NAME/model.bin`, `/mnt/c/Users/NAME/model.bin`."""
_RELATIVE = re.compile(
    rf"(?:(?<=[/\\])|(?<![^\s'\"])){_PEOPLE}{_FOLDER}(?=[/\\][^\s:'\"]{{0,300}}\.(?:py|ipynb|pyi)\b)", re.IGNORECASE
)
"""A home folder in the relative path of a Python file; other relative paths may be parts of a model."""
_SOMEBODYS = re.compile(r"(?<![\w/\\~.)\]])~[A-Za-z_][\w.-]*(?=[/\\])")
"""`~NAME/model.py`."""


@dataclass(frozen=True, slots=True)
class Privacy:
    """The private names of one page and their replacements.

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
        short = {file: _shorten(file) for file in known}
        far = [file for file, name in short.items() if _is_absolute(name)]
        hidden = _number_alike({file: _hide(file) for file in far})
        shared = find_common_path(tuple(_SEPARATOR.split(file)[:-1]) for file in hidden.values())
        start = sum(len(folder) + 1 for folder in shared)
        names = {**short, **{file: name[start:] for file, name in hidden.items()}}
        whole = sorted((file for file in names if _is_absolute(file)), key=len, reverse=True)
        return cls(names, tuple((file, names[file]) for file in whole))

    def hide_data(self, value: Any, key: str = "") -> Any:
        """Plain data without private names; `file` and `source` in a document are places."""
        if isinstance(value, str):
            return self.hide_place(value) if key in ("file", "source") else self.hide(value)
        if isinstance(value, dict):
            return {self.hide(name): self.hide_data(inner, name) for name, inner in value.items()}
        return [self.hide_data(inner, key) for inner in value] if isinstance(value, list) else value

    def hide_place(self, text: str) -> str:
        """A file, or a file and a line in it."""
        if text in self.files:
            return escape_lines(self.files[text])
        file, line = split_place(text)
        return self.hide(text) if line is None else f"{escape_lines(self.files.get(file) or self.hide(file))}:{line}"

    def hide(self, text: str) -> str:
        """Any other string, in which files may be named."""
        if "/" in text or "\\" in text:
            for file, name in self.whole:
                text = text.replace(file, name) if file in text else text
            text = hide_people(text)
        return escape_lines(text)


def find_files(value: Any, key: str = "") -> Iterator[str]:
    """The source files that a document names."""
    if isinstance(value, str):
        yield from (value,) if key == "file" else (split_place(value)[0],) if key == "source" else ()
    inside = value.items() if isinstance(value, dict) else ()
    for name, inner in [(key, item) for item in value] if isinstance(value, list) else inside:
        yield from find_files(inner, name)


def hide_people(text: str) -> str:
    """A string without the current folder, home folders and folders named after the user."""
    for own, instead in _find_own_folders():
        text = own.sub(instead, text)
    text = _SOMEBODYS.sub("~", _RELATIVE.sub("~", _BELOW.sub(r"\1~", _HOME.sub("~", text))))
    name = _find_own_name()
    return text if name is None else _compile_below(name).sub("~", text)


@lru_cache(maxsize=4)
def _compile_below(name: str) -> re.Pattern[str]:
    """The start of an absolute path, up to a folder of a name."""
    return re.compile(rf"{_START}(?:{_FOLDER}){{0,24}}?[/\\]{{1,2}}{re.escape(name)}(?![^/\\\s:'\"])")


def _hide(file: str) -> str:
    """An absolute path without home folders and folders named after the user."""
    parts, own = re.split(r"([/\\]+)", file), _find_own_name()
    begins = [number for number, part in enumerate(parts[:-2]) if _IS_PEOPLE.fullmatch(part)]
    if begins:
        first = begins[0]
        parts[first : first + 3] = ["~"]
        if not "".join(parts[:first]).strip("/\\"):
            parts[:first] = []
    return "".join("~" if part == own else part for part in parts)


def _number_alike(names: Mapping[str, str]) -> dict[str, str]:
    """Names of files; equal names from several home folders have numbers: `~/train.py`, `~2/train.py`."""
    counts: Counter[str] = Counter()
    found = {}
    for file, name in names.items():
        counts[name] += 1
        found[file] = name if counts[name] == 1 else name.replace("~", f"~{counts[name]}", 1)
    return found


@lru_cache(maxsize=4)
def _compile_folder(folder: str) -> re.Pattern[str]:
    """The folder alone, or with the separator before the rest of a path."""
    return re.compile(rf"{_FRONT}{re.escape(folder)}(?:(?P<inside>[/\\])|(?=[\s:'\",;)\]}}>]|$))")


def _find_own_folders() -> list[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]:
    """The current folder and the home folder, the inner one first, each with its replacement."""
    known = {os.getcwd(): ("", "."), str(Path.home()): ("~/", "~")}
    folders = sorted((folder.rstrip("/\\") for folder in known), key=len, reverse=True)
    return [
        (_compile_folder(folder), partial(_replace_folder, *known[folder])) for folder in folders if len(folder) > 1
    ]


def _replace_folder(inside: str, alone: str, found: re.Match[str]) -> str:
    return inside if found["inside"] else alone


@lru_cache(maxsize=1)
def _find_own_name() -> str | None:
    """The user's name; None for the superuser, which every machine has."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # nobody of that number
        return None
    return None if name in ("", "root") else name


def _shorten(file: str) -> str:
    cell = find_cell(file)
    if cell is not None:
        return cell
    inside = _LIBRARY.sub("", file)
    if inside != file:
        return inside
    for own, instead in _find_own_folders():
        if (found := own.match(file)) and found["inside"]:
            return instead(found) + file[found.end() :]
    return file if _is_absolute(file) else hide_people(file)


def _is_absolute(file: str) -> bool:
    return file.startswith(("/", "\\")) or file[1:3] in (":\\", ":/")
