"""Baseline files: their text, read to baselines or to an error at the damaged line, and written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from hloscope.base.errors import Command, HloscopeError, format_excerpt, say
from hloscope.base.outputs import replace_file
from hloscope.base.units import sum_known
from hloscope.judge.baselines import (
    ARGUMENT,
    MEMORY_PARTS,
    MIXED,
    NOWHERE,
    OUTPUT,
    ArrayRow,
    Baseline,
    BaselineRow,
    BaselineStep,
    MatmulRow,
    SourceLine,
)
from hloscope.model import Memory
from hloscope.model.vocabulary import REDUCING, REDUCTION_OPCODES, Bound, Kind, Link

TITLE = "hloscope baseline 2"
FIRST_TITLE = "hloscope baseline 1"
END = "end"
WRITTEN = "written"
_PLAIN = re.compile(r"[^\s,=\"?]+")
_PLAIN_NAME = re.compile(r"[^\s\"]*[^\s\":]")
_REMARK = (
    "# What one step moves on one device. `hloscope accept` rewrites this file; read the difference before you commit."
)
_CELL = 8
"""Characters, by multiples of which cells are wide."""
_BEGINNING = TITLE.rpartition(" ")[0].encode()
_COUNT = r"(?:unknown|\d[\d,]*)"
_AXIS = r'(?:"(?:[^"\\]|\\.)*"|[^\s,="]+)'
_NAME = r'(?:"(?:[^"\\]|\\.)*"|[^\s"]*[^\s":])'
_MESH_AXIS = re.compile(rf"(?P<name>{_AXIS})=(?P<size>\d+)(?:,|$)")
_BOUND = r"(?:(?P<bound>at most|at least|unknown) )?"
_AMOUNTS = (
    rf"{_BOUND}(?P<executions>\d[\d,]*) times?",
    rf"(?P<payload>{_COUNT}) B payload",
    rf"(?P<wire>{_COUNT}) B wire",
)
_WHAT = rf"(?P<kind>[\w-]+)@(?P<axes>(?:{_AXIS},)*{_AXIS}|)(?: over (?P<link>[\w+]+))?"
_PLACE = rf"(?: +(?P<file>{_NAME})(?: in (?P<function>{_NAME}))?(?:: (?P<text>\S.*))?)?"
_ARRAYS = r"(?: of (?P<arrays>\d[\d,]*) arrays)?"
_AMOUNTS_NOW = (_AMOUNTS[0] + _ARRAYS, *_AMOUNTS[1:])
_REDUCTION = rf"(?: (?P<reduction>{'|'.join((*REDUCTION_OPCODES, MIXED))}))?"
_ROW = re.compile(
    rf"{_WHAT} +(?P<dtype>[\w+]+|\?){_REDUCTION}(?P<written> {WRITTEN})? +{' +'.join(_AMOUNTS_NOW)}{_PLACE}"
)
_MATMULS = re.compile(rf"matmuls +(?P<dtype>\w+|\?) +{_BOUND}(?P<flops>{_COUNT}) FLOP{_PLACE}")
_ARRAYS_OF_TYPE = re.compile(rf"(?P<kind>{ARGUMENT}|{OUTPUT}) +(?P<type>\S.*?)  +(?P<count>[1-9][\d,]*) arrays?")
_FIRST_ROW = re.compile(rf"{_WHAT} +{' +'.join(_AMOUNTS)}(?: +(?P<file>\S.*?):(?P<line>\d+)(?: in (?P<function>.+))?)?")
_STEP = re.compile(rf"{_BOUND}([\d,.]+) us, ([\d,.]+) to ([\d,.]+) us, cost model (\d+)")
_SEALED = ("step", "memory")
_DIGEST = re.compile(r"([0-9a-f]{16}) ([0-9a-f]{8})")
_TOTAL = re.compile(
    rf"total: (?P<executions>\d[\d,]*) times?, (?P<payload>{_COUNT}) B payload, (?P<wire>{_COUNT}) B wire"
)
_SHARED = ("target", "slice", "mesh")
_NEEDED = ("versions", "memory", "not understood")
_HEAD = re.compile(rf"(?P<name>{'|'.join((*_SHARED, *_NEEDED))}|kernels|step|program): (?P<value>.*)")
_FIX = say("run ", Command("accept"), " to write it anew, after checking the program")
_SIGNS = {"arguments": 1, "outputs": 1, "temporaries": 1, "code": 1, "aliased": -1}


def is_baseline(path: Path) -> bool:
    """True for a file that begins as baselines do, of this version or another."""
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:
        return False


def read_baselines(path: Path) -> tuple[Baseline, ...]:
    """The baselines in a file, one for each version of the compiler; empty where there is no file.

    Raises:
        BaselineError: The file is damaged.
        HloscopeError: It cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise HloscopeError(f"the baseline {path} cannot be read", why=str(error), fix=_FIX) from None
    return parse_baselines(text, name=str(path))


def write_baselines(path: Path, baselines: Sequence[Baseline]) -> None:
    """Writes a baseline file, whole or not at all.

    Raises:
        HloscopeError: It cannot be written.
    """
    replace_file(path, format_baselines(*baselines).encode("utf-8"), f"the baseline {path}")


T = TypeVar("T")


class BaselineError(HloscopeError):
    """A baseline file is damaged, incomplete or of another version.

    Attributes:
        line: 1-based line in the file.
    """

    def __init__(self, what: str, *, name: str, line: int, column: int, excerpt: str, why: str | None = None) -> None:
        self.line = line
        super().__init__(what, where=f"{name}:{line}:{column}", excerpt=excerpt, why=why, fix=_FIX)


def parse_baselines(text: str, *, name: str) -> tuple[Baseline, ...]:
    """Reads a baseline file of this version or the first.

    Args:
        text: What `format_baselines` wrote.
        name: The file's name, for messages.

    Raises:
        BaselineError: A line cannot be read, or the file is cut off.
    """
    return _BaselineReader(text, name).read()


@dataclass(kw_only=True)
class _Section:
    """The lines of one section, from the versions of its compiler to its end."""

    head: dict[str, tuple[int, str]] = field(default_factory=dict)
    rows: list[BaselineRow] = field(default_factory=list)
    matmuls: list[MatmulRow] = field(default_factory=list)
    arrays: list[ArrayRow] = field(default_factory=list)


class _BaselineReader:
    """Reads the lines of one file, and knows which one it is at."""

    def __init__(self, text: str, name: str) -> None:
        self._lines = text.split("\n")
        self._name = name
        self._at = 0
        self._shared: dict[str, tuple[int, str]] = {}

    def read(self) -> tuple[Baseline, ...]:
        if self._lines[0] == FIRST_TITLE:
            return (self._read_first_version(),)
        if self._lines[0] != TITLE:
            what = "this is not a baseline that this version of hloscope reads"
            self._refuse(what if any(self._lines) else "the baseline is empty", f"the first line should be: {TITLE}")
        found: list[Baseline] = []
        section = _Section()
        for at, line in enumerate(self._lines[1:], 1):
            self._at = at
            if line == END:
                found.append(self._make_baseline(section, matmuls=tuple(section.matmuls)))
                if found[-1].compiler in [other.compiler for other in found[:-1]]:
                    self._refuse("the baseline has two sections of the same versions", None)
                section = _Section()
            elif line.strip() and not line.startswith("#"):
                self._read_line(line, section, _ROW)
        if section != _Section() or not found or self._lines[-1]:
            self._refuse("the baseline is cut off", f"it does not end with its last line: {END}")
        return tuple(found)

    def _read_first_version(self) -> Baseline:
        """The baseline in a file of the first version, whose rows have line numbers, and add up to its last line."""
        section = _Section()
        for at, line in enumerate(self._lines[1:], 1):
            self._at = at
            if _TOTAL.fullmatch(line):
                break
            if line.strip() and not line.startswith("#"):
                self._read_line(line, section, _FIRST_ROW)
        else:
            self._refuse("the baseline is cut off", "it does not end with its total")
        made, total = self._make_baseline(section, matmuls=None), _format_total(section.rows)
        after = self._lines[self._at + 1 :]
        if not after or any(after) or total != line:
            self._refuse("the baseline does not add up", f"its lines sum up to: {total}")
        return made

    def _read_line(self, line: str, section: _Section, row_words: re.Pattern[str]) -> None:
        head = _HEAD.fullmatch(line)
        if head is not None:
            known = self._shared if head["name"] in _SHARED else section.head
            if head["name"] not in known:
                known[head["name"]] = (self._at, head["value"])
                return
        with suppress(ValueError):
            if (row := row_words.fullmatch(line)) is not None:
                section.rows.append(_parse_row(row.groupdict()))
                return
            if row_words is _ROW and (found := _MATMULS.fullmatch(line)) is not None:
                flops, place = _parse_count(found["flops"]), _parse_place(found.groupdict())
                bound = Bound(found["bound"] or Bound.EXACT)
                section.matmuls.append(MatmulRow(dtype=found["dtype"], flops=flops, bound=bound, place=place))
                return
            if row_words is _ROW and (array := _ARRAYS_OF_TYPE.fullmatch(line)) is not None:
                count = _parse_count(array["count"]) or 0
                section.arrays.append(ArrayRow(kind=array["kind"], type=array["type"], count=count))
                return
        self._refuse("this line of the baseline cannot be read", None, column=_count_readable(line, row_words) + 1)

    def _make_baseline(self, section: _Section, *, matmuls: tuple[MatmulRow, ...] | None) -> Baseline:
        for known, names in ((self._shared, _SHARED), (section.head, _NEEDED)):
            for name in names:
                if name not in known:
                    self._refuse(f"the baseline has no line that begins with {name}:", None)
        head = self._shared | section.head

        def value(name: str, read: Callable[[str], T]) -> T:
            return self._read_value(head, name, read)

        return Baseline(
            target=head["target"][1],
            slice=None if head["slice"][1] == "none" else head["slice"][1],
            mesh=None if head["mesh"][1] == "none" else value("mesh", _parse_mesh),
            versions=value("versions", _parse_versions),
            rows=tuple(section.rows),
            matmuls=matmuls,
            arrays=tuple(section.arrays) or None,
            memory=value("memory", _parse_memory),
            step=value("step", _parse_step) if "step" in head else None,
            not_understood=value("not understood", int),
            kernels=value("kernels", _parse_kernels) if "kernels" in head else None,
            digest=self._read_digest(head) if "program" in head else None,
        )

    def _read_digest(self, head: dict[str, tuple[int, str]]) -> str | None:
        """The digest of the program; None if its step or its memory is not what was written with it."""
        digest, seal = self._read_value(head, "program", _parse_digest)
        said = (head[name][1] for name in _SEALED if name in head)
        return digest if seal == _seal_digest(digest, *said) else None

    def _read_value(self, head: dict[str, tuple[int, str]], name: str, read: Callable[[str], T]) -> T:
        at, text = head[name]
        try:
            return read(text)
        except (ValueError, KeyError, TypeError):
            self._at = at
            self._refuse(f"the {name} of the baseline cannot be read", None, column=len(name) + 3)

    def _refuse(self, what: str, why: str | None, *, column: int = 1) -> NoReturn:
        line = self._lines[self._at]
        raise BaselineError(
            what, name=self._name, line=self._at + 1, column=column, excerpt=format_excerpt(line, column), why=why
        )


def _count_readable(line: str, row_words: re.Pattern[str]) -> int:
    """The number of characters of a row that can be read."""
    parts = re.split(r"( {2,})", line)
    kind = parts[0].partition("@")
    if kind[0] not in set(Kind) or not kind[1]:
        return 0
    types = (rf"(?:[\w+]+|\?){_REDUCTION}(?: {WRITTEN})?",) if row_words is _ROW else ()
    position = 0
    for index, pattern in enumerate((r"\S+(?: over [\w+]+)?", *types, *_AMOUNTS_NOW)):
        if 2 * index >= len(parts) or not re.fullmatch(pattern, parts[2 * index]):
            return min(position, len(line))
        position += sum(map(len, parts[2 * index : 2 * index + 2]))
    return min(position, len(line))


def _parse_row(found: dict[str, str | None]) -> BaselineRow:
    """The row; a ValueError for what names no kind, no link, or no quoted axis, or combines what only moves."""
    axes, dtype = found["axes"] or "", found.get("dtype")
    kind, reduction = Kind(found["kind"] or ""), found.get("reduction")
    if reduction is not None and kind not in REDUCING:
        raise ValueError(reduction)
    return BaselineRow(
        kind=kind,
        axes=None if axes == "?" else tuple(map(_unquote, re.findall(_AXIS, axes))),
        link=Link(found["link"] or Link.ICI),
        dtype=None if dtype == "?" else dtype,
        reduction=reduction,
        written=found.get("written") is not None,
        executions=_parse_count(found["executions"] or "") or 0,
        arrays=_parse_count(found["arrays"] or found["executions"] or "") if "arrays" in found else None,
        payload_bytes=_parse_count(found["payload"] or ""),
        wire_bytes=_parse_count(found["wire"] or ""),
        bound=Bound(found["bound"] or Bound.EXACT),
        place=_parse_place(found),
    )


def _parse_place(found: dict[str, str | None]) -> SourceLine:
    file, function, line = (found.get(name) for name in ("file", "function", "line"))
    if file is None:
        return NOWHERE
    if line is not None:  # of the first version, which quotes nothing
        return SourceLine(file=file, function=function, line=int(line))
    return SourceLine(
        file=_unquote(file), function=None if function is None else _unquote(function), text=found.get("text")
    )


def _parse_count(text: str) -> int | None:
    return None if text == "unknown" else int(text.replace(",", ""))


def _parse_mesh(text: str) -> tuple[tuple[str, int], ...]:
    found = list(_MESH_AXIS.finditer(text))
    if "".join(axis[0] for axis in found) != text:
        raise ValueError(text)
    return tuple((_unquote(axis["name"]), int(axis["size"])) for axis in found)


def _unquote(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


def _parse_versions(text: str) -> dict[str, str]:
    pairs = (entry.split(" ") for entry in _split_entries(text))
    return {name: version for name, version in pairs}  # noqa: C416  # so that anything but a pair is an error


def _parse_kernels(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, does) for name, does in (entry.rsplit(" ", 1) for entry in _split_entries(text)))


def _parse_digest(text: str) -> tuple[str, str]:
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return found[1], found[2]


def _seal_digest(digest: str, *said: str) -> str:
    """Ties a program to the figures in its file: of another step or memory, as after a merge, it says nothing."""
    return hashlib.sha256("\n".join((digest, *said)).encode()).hexdigest()[:8]


def _parse_step(text: str) -> BaselineStep:
    found = _STEP.fullmatch(text)
    if found is None:
        raise ValueError(text)
    step_us, least_us, most_us = (float(found[number].replace(",", "")) for number in (2, 3, 4))
    bound = Bound(found["bound"] or Bound.EXACT)
    return BaselineStep(step_us=step_us, least_us=least_us, most_us=most_us, model=int(found[5]), bound=bound)


def _split_entries(text: str) -> list[str]:
    return [] if text == "none" else text.split(", ")


def _parse_memory(text: str) -> Memory:
    """The memory; a ValueError where its parts do not make its peak."""
    counts: dict[str, int] = {}
    for entry in _split_entries(text):
        count, unit, name = entry.split(" ")
        counts[name] = int(count.replace(",", ""))
        if unit != "B" or name not in MEMORY_PARTS:
            raise ValueError(entry)
    all_known = MEMORY_PARTS.keys() <= counts.keys()
    if all_known and counts["peak"] != sum(sign * counts[name] for name, sign in _SIGNS.items()):
        raise ValueError("the parts do not make the peak")
    fields: dict[str, Any] = {field: counts.get(name) for name, field in MEMORY_PARTS.items()}
    return Memory(**fields)


def _format_total(rows: Sequence[BaselineRow]) -> str:
    """The last line of a file of the first version: what the rows add up to."""
    executions = sum(row.executions for row in rows)
    payload, wire = sum_known(row.payload_bytes for row in rows), sum_known(row.wire_bytes for row in rows)
    shown = ("unknown" if count is None else f"{count:,}" for count in (payload, wire))
    return "total: {}, {} B payload, {} B wire".format(f"{executions:,} time{'s' * (executions != 1)}", *shown)


# ---- the text of a file: what all sections share, and a line for each row


def format_baselines(*baselines: Baseline) -> str:
    """The text of a baseline file: what all sections share, and each of them."""
    first = baselines[0]
    mesh = "none" if first.mesh is None else ",".join(f"{quote_axis(name)}={size}" for name, size in first.mesh)
    lines = [TITLE, _REMARK, f"target: {first.target}", f"slice: {first.slice or 'none'}", f"mesh: {mesh}"]
    for baseline in baselines:
        lines += ["", *_format_section(baseline)]
    return "\n".join(line.rstrip() for line in (*lines, ""))


def _format_section(baseline: Baseline) -> list[str]:
    parts = ((name, getattr(baseline.memory, field)) for name, field in MEMORY_PARTS.items())
    lines = [
        f"versions: {_join(f'{name} {version}' for name, version in baseline.versions.items())}",
        *_align(map(_format_cells, baseline.rows), left=(0, 1, 5)),
        *_align(map(_format_matmul_cells, baseline.matmuls or ()), left=(0, 1, 3)),
        *_align(map(_format_array_cells, baseline.arrays or ()), left=(0, 1)),
        f"memory: {_join(f'{count:,} B {name}' for name, count in parts if count is not None)}",
    ]
    step = baseline.step
    if step is not None:
        span = f"{step.least_us:,.3f} to {step.most_us:,.3f} us"
        lines.append(f"step: {_format_bound(step.bound)}{step.step_us:,.3f} us, {span}, cost model {step.model}")
    if baseline.kernels:
        lines.append(f"kernels: {_join(' '.join(kernel) for kernel in baseline.kernels)}")
    if baseline.digest is not None:
        told = dict(line.split(": ", 1) for line in lines if ": " in line)
        said = [told[name] for name in _SEALED if name in told]
        lines.append(f"program: {baseline.digest} {_seal_digest(baseline.digest, *said)}")
    return [*lines, f"not understood: {baseline.not_understood}", END]


def quote_axis(name: str) -> str:
    """A mesh axis as it is, or quoted as in JSON where a line of the file could not be read, or seen, with it."""
    return name if _PLAIN.fullmatch(name) and name.isprintable() else _quote(name)


def _quote(name: str) -> str:
    return json.dumps(name).replace("\x7f", "\\u007f")


def _join(entries: Iterable[str]) -> str:
    return ", ".join(entries) or "none"


def _format_cells(row: BaselineRow) -> tuple[str, ...]:
    return (
        f"{row.kind}@{'?' if row.axes is None else ','.join(map(quote_axis, row.axes))}"
        + ("" if row.link is Link.ICI else f" over {row.link}"),
        " ".join(filter(None, (row.dtype or "?", row.reduction, WRITTEN if row.written else None))),
        _format_count(row),
        f"{_format_number(row.payload_bytes)} B payload",
        f"{_format_number(row.wire_bytes)} B wire",
        _format_place(row.place),
    )


def _format_matmul_cells(row: MatmulRow) -> tuple[str, ...]:
    return "matmuls", row.dtype, f"{_format_bound(row.bound)}{_format_number(row.flops)} FLOP", _format_place(row.place)


def _format_array_cells(row: ArrayRow) -> tuple[str, ...]:
    return row.kind, row.type, f"{row.count:,} {'array' if row.count == 1 else 'arrays'}"


def _align(rows: Iterable[tuple[str, ...]], left: Sequence[int]) -> list[str]:
    """Rows in columns, each of its own line so that a longer one among them moves no other: padded to fixed steps."""
    found = []
    for row in rows:
        widths = [-(-len(cell) // _CELL) * _CELL for cell in row]
        cells = (
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        found.append("  ".join(cells).rstrip())
    return found


def _format_place(place: SourceLine) -> str:
    if place.file is None:
        return ""
    named = _quote_name(place.file) if place.line is None else _quote_name(f"{place.file}:{place.line}")
    function = "" if place.function is None else f" in {_quote_name(place.function)}"
    return f"{named}{function}{'' if place.text is None else f': {place.text}'}"


def _quote_name(text: str) -> str:
    return text if _PLAIN_NAME.fullmatch(text) and text != "in" else _quote(text)


def format_row(row: BaselineRow | MatmulRow) -> str:
    """The line of a file that holds a row, without its padding."""
    return "  ".join(filter(None, _format_cells(row) if isinstance(row, BaselineRow) else _format_matmul_cells(row)))


def _format_number(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _format_count(row: BaselineRow) -> str:
    arrays = "" if row.arrays in (None, row.executions) else f" of {row.arrays:,} arrays"
    return f"{_format_bound(row.bound)}{row.executions:,} {'time' if row.executions == 1 else 'times'}{arrays}"


def _format_bound(bound: Bound) -> str:
    return "" if bound is Bound.EXACT else f"{bound} "
