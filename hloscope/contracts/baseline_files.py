"""Baseline files: read, to the baseline or to an error at the damaged line; and written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from hloscope.analysis.model import Memory
from hloscope.analysis.vocabulary import Bound, Kind, Link
from hloscope.contracts.baselines import MEMORY_PARTS, TITLE, Baseline, BaselineRow, format_baseline, total_line
from hloscope.errors import HloscopeError, caret_excerpt

_BEGINNING = TITLE.rpartition(" ")[0].encode()
_COUNT = r"(?:unknown|\d[\d,]*)"
_AXIS = r'(?:"(?:[^"\\]|\\.)*"|[^\s,="]+)'
_MESH_AXIS = re.compile(rf"(?P<name>{_AXIS})=(?P<size>\d+)(?:,|$)")
_AMOUNTS = (
    r"(?:(?P<bound>at most|at least|unknown) )?(?P<executions>\d[\d,]*) times?",
    rf"(?P<payload>{_COUNT}) B payload",
    rf"(?P<wire>{_COUNT}) B wire",
)
_ROW = re.compile(
    rf"(?P<kind>[\w-]+)@(?P<axes>(?:{_AXIS},)*{_AXIS}|)(?: over (?P<link>[\w+]+))? +{' +'.join(_AMOUNTS)}"
    r"(?: +(?P<file>\S.*?):(?P<line>\d+)(?: in (?P<function>.+))?)?"
)
_TOTAL = re.compile(
    rf"total: (?P<executions>\d[\d,]*) times?, (?P<payload>{_COUNT}) B payload, (?P<wire>{_COUNT}) B wire"
)
_HEAD_LINES = ("target", "slice", "mesh", "versions", "memory", "not understood")
_HEAD = re.compile(rf"(?P<name>{'|'.join(_HEAD_LINES)}|kernels): (?P<value>.*)")
_FIX = "run hloscope accept to write it anew, after checking the program"
_SIGNS = {"arguments": 1, "outputs": 1, "temporaries": 1, "code": 1, "aliased": -1}


def is_baseline(path: Path) -> bool:
    """Whether a file begins as baselines do, of this version or another."""
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:
        return False


def read_baseline(path: Path) -> Baseline | None:
    """The baseline in a file; None where there is no file.

    Raises:
        BaselineError: The file is damaged.
        HloscopeError: It cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise HloscopeError(f"the baseline {path} cannot be read", why=str(error), fix=_FIX) from None
    return parse_baseline(text, name=str(path))


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Writes a baseline file, whole or not at all.

    Raises:
        HloscopeError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(format_baseline(baseline), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise HloscopeError(f"the baseline {path} cannot be written", why=str(error)) from None


T = TypeVar("T")


class BaselineError(HloscopeError):
    """A baseline file that is damaged, half-written or of another version.

    Attributes:
        line: 1-based line in the file.
    """

    def __init__(self, what: str, *, name: str, line: int, column: int, excerpt: str, why: str | None = None) -> None:
        self.line = line
        super().__init__(what, where=f"{name}:{line}:{column}", excerpt=excerpt, why=why, fix=_FIX)


def parse_baseline(text: str, *, name: str) -> Baseline:
    """Reads a baseline file.

    Args:
        text: What `format_baseline` wrote.
        name: The file's name, for messages.

    Raises:
        BaselineError: A line cannot be read, or the parts do not add up to the totals: the file was damaged, cut off
            or edited.
    """
    return _Reader(text, name).baseline()


class _Reader:
    """Reads the lines of one file, and knows which one it is at."""

    def __init__(self, text: str, name: str) -> None:
        self._lines = text.split("\n")
        self._name = name
        self._at = 0
        self._head: dict[str, str] = {}
        self._rows: list[BaselineRow] = []

    def baseline(self) -> Baseline:
        if self._lines[0] != TITLE:
            self._refuse(
                "this is no baseline that this version of hloscope reads", f"the first line should be: {TITLE}"
            )
        for at, line in enumerate(self._lines):
            self._at = at
            if _TOTAL.fullmatch(line):
                break
            if at and line.strip() and not line.startswith("#"):
                self._read(line)
        else:
            self._refuse("the baseline is cut off", "it does not end with its total")
        made = self._made()
        after = self._lines[self._at + 1 :]
        if not after or any(after) or total_line(made) != line:
            self._refuse("the baseline does not add up", f"its lines sum up to: {total_line(made)}")
        return made

    def _read(self, line: str) -> None:
        head, row = _HEAD.fullmatch(line), _ROW.fullmatch(line)
        if head is not None and head["name"] not in self._head:
            self._head[head["name"]] = head["value"]
            return
        with suppress(ValueError):
            if row is not None:
                self._rows.append(_row(row))
                return
        self._refuse("this line of the baseline cannot be read", None, column=_readable(line) + 1)

    def _made(self) -> Baseline:
        head = self._head
        for name in _HEAD_LINES:
            if name not in head:
                self._refuse(f"the baseline has no {name}", "a line is missing")
        return Baseline(
            target=head["target"],
            slice=None if head["slice"] == "none" else head["slice"],
            mesh=None if head["mesh"] == "none" else self._value("mesh", _mesh),
            versions=self._value("versions", _versions),
            rows=tuple(self._rows),
            memory=self._value("memory", _memory),
            not_understood=self._value("not understood", int),
            kernels=self._value("kernels", _kernels) if "kernels" in self._head else None,
        )

    def _value(self, name: str, read: Callable[[str], T]) -> T:
        try:
            return read(self._head[name])
        except (ValueError, KeyError, TypeError):
            self._at = next(index for index, line in enumerate(self._lines) if line.startswith(f"{name}: "))
            self._refuse(f"the {name} of the baseline cannot be read", None, column=len(name) + 3)

    def _refuse(self, what: str, why: str | None, *, column: int = 1) -> NoReturn:
        line = self._lines[self._at]
        raise BaselineError(
            what, name=self._name, line=self._at + 1, column=column, excerpt=caret_excerpt(line, column), why=why
        )


def _readable(line: str) -> int:
    """How many characters of a row can be read."""
    parts = re.split(r"( {2,})", line)
    kind = parts[0].partition("@")
    if kind[0] not in set(Kind) or not kind[1]:
        return 0
    position = 0
    for index, pattern in enumerate((r"\S+(?: over [\w+]+)?", *_AMOUNTS)):
        if 2 * index >= len(parts) or not re.fullmatch(pattern, parts[2 * index]):
            return min(position, len(line))
        position += sum(map(len, parts[2 * index : 2 * index + 2]))
    return min(position, len(line))


def _row(found: re.Match[str]) -> BaselineRow:
    """The row; a ValueError for what names no kind, no link, or no quoted axis."""
    return BaselineRow(
        kind=Kind(found["kind"]),
        axes=None if found["axes"] == "?" else tuple(map(_axis, re.findall(_AXIS, found["axes"]))),
        link=Link(found["link"] or Link.ICI),
        executions=_count(found["executions"]) or 0,
        payload_bytes=_count(found["payload"]),
        wire_bytes=_count(found["wire"]),
        bound=Bound(found["bound"] or Bound.EXACT),
        file=found["file"],
        line=None if found["line"] is None else int(found["line"]),
        function=found["function"],
    )


def _count(text: str) -> int | None:
    return None if text == "unknown" else int(text.replace(",", ""))


def _mesh(text: str) -> tuple[tuple[str, int], ...]:
    found = list(_MESH_AXIS.finditer(text))
    if "".join(axis[0] for axis in found) != text:
        raise ValueError(text)
    return tuple((_axis(axis["name"]), int(axis["size"])) for axis in found)


def _axis(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


def _versions(text: str) -> dict[str, str]:
    pairs = (entry.split(" ") for entry in _entries(text))
    return {name: version for name, version in pairs}  # noqa: C416  # so that anything but a pair is an error


def _kernels(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, does) for name, does in (entry.rsplit(" ", 1) for entry in _entries(text)))


def _entries(text: str) -> list[str]:
    return [] if text == "none" else text.split(", ")


def _memory(text: str) -> Memory:
    """The memory; a ValueError where its parts do not make its peak."""
    counts: dict[str, int] = {}
    for entry in _entries(text):
        count, unit, name = entry.split(" ")
        counts[name] = int(count.replace(",", ""))
        if unit != "B" or name not in MEMORY_PARTS:
            raise ValueError(entry)
    all_known = MEMORY_PARTS.keys() <= counts.keys()
    if all_known and counts["peak"] != sum(sign * counts[name] for name, sign in _SIGNS.items()):
        raise ValueError("the parts do not make the peak")
    fields: dict[str, Any] = {field: counts.get(name) for name, field in MEMORY_PARTS.items()}
    return Memory(**fields)
