"""Baselines: what a program moved when somebody last looked, one line for each kind, axes and source.

Made for review: bytes in full, versions on one line of their own, no HLO. Rows of one source are summed, so that a
compiler that combines or splits transfers changes nothing but their number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from pathlib import Path, PurePath

from hloscope.analysis.guesses import without_guesses
from hloscope.analysis.model import Analysis, Collective, Memory, SourceFrame
from hloscope.analysis.places import path_of, users_frame, users_line
from hloscope.analysis.totals import bytes_bound, grouped
from hloscope.analysis.vocabulary import Bound, Kind, Link
from hloscope.documents import document
from hloscope.findings import Finding, Severity
from hloscope.matching import Change, match
from hloscope.matching.model import amount, change_line
from hloscope.units import format_bytes, known_sum, plural

TITLE = "hloscope baseline 1"
_PLAIN_AXIS = re.compile(r"[^\s,=\"?]+")
_REMARK = (
    "# What one step moves on one device. `hloscope accept` rewrites this file; read the difference before you commit."
)
CHANGED = "baseline-changed"
_MEMORY_GROWTH = 0.05
"""Upgrades of the compiler move temporaries about; growth of the peak beyond this share is a change."""

_COMPILERS_OWN_BYTES = 128 << 10
"""No growth at all: code and scratch of the compiler's own, which are most of what a tiny program takes.

Source: the mean of 512 x 2048 squares took 604,160 bytes as libtpu 0.0.42 compiled it, and 636,416 as 0.0.50 did.
"""

_FIX = "if this is meant: hloscope accept"

MEMORY_PARTS = {
    "arguments": "argument_bytes",
    "outputs": "output_bytes",
    "temporaries": "temp_bytes",
    "aliased": "alias_bytes",
    "code": "generated_code_bytes",
    "peak": "peak_bytes",
}
"""The figures of a `Memory` by their names in a baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRow:
    """What one line of source moves over one set of axes, per step on one device.

    Attributes:
        kind: The kind of collective.
        axes: Its mesh axes; None where they are not known.
        link: The network.
        executions: Transfers.
        payload_bytes: Bytes of the larger sides; None where some are not known.
        wire_bytes: Bytes sent; None where some are not known.
        bound: How the three relate to the truth.
        file: The source file, below the project where it is there; None where the source is not known.
        line: The line in it.
        function: The function.
    """

    kind: Kind
    axes: tuple[str, ...] | None
    link: Link
    executions: int
    payload_bytes: int | None
    wire_bytes: int | None
    bound: Bound
    file: str | None = None
    line: int | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a program moves and takes.

    Attributes:
        target: The program.
        slice: The slice; None for HLO text without one.
        mesh: Axis sizes by name; None without a mesh.
        versions: What compiled it.
        rows: What it moves, in order of kind, axes and source.
        memory: Bytes on one device.
        not_understood: How many things in it were not understood.
        kernels: Kernels that send by themselves, by name and what they do; None where there is none, or it is not said.
    """

    target: str
    slice: str | None
    mesh: tuple[tuple[str, int], ...] | None
    versions: dict[str, str]
    rows: tuple[BaselineRow, ...]
    memory: Memory
    not_understood: int = 0
    kernels: tuple[tuple[str, str], ...] | None = None

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The rows as collectives that run once per step, to be matched with others."""
        return tuple(map(_as_collective, self.rows))


def baseline_of(analysis: Analysis, *, target: str | None = None, root: Path | None = None) -> Baseline:
    """The baseline of a program, without what was guessed of it.

    Args:
        analysis: The program.
        target: Its name in the baseline; the analysis' own when None.
        root: The project's folder: files below it are named relative to it, others by their last two parts.
    """
    analysis = without_guesses(analysis)

    def key(moved: Collective) -> Hashable:
        return moved.kind, moved.axes, moved.link, _place(moved, root)

    groups = grouped(key, analysis.collectives)
    rows = (_row(group, *_place(group[0], root)) for group in groups.values())
    mesh = analysis.mesh
    return Baseline(
        target=target or analysis.target,
        slice=None if analysis.slice is None else analysis.slice.name,
        mesh=None if mesh is None else tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True)),
        versions=dict(analysis.versions),
        rows=tuple(sorted(rows, key=_order)),
        memory=analysis.memory,
        not_understood=len(analysis.unmodelled),
        kernels=_sending(analysis) or None,
    )


def _sending(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    """The kernels that send by themselves, of which no row tells how much: each by its name, with what it does."""
    known = ((_seen(kernel.name), kernel.fingerprint or "") for kernel in analysis.kernels if kernel.remote_dma)
    return tuple(sorted(known))


def _place(collective: Collective, root: Path | None) -> tuple[str | None, int | None, str | None]:
    frame = users_frame(collective.source)
    if frame is None:
        return None, None, None
    path = path_of(frame)
    if root is not None and path.is_relative_to(root):
        shown: PurePath = path.relative_to(root)
    else:
        shown = PurePath(*path.parts[1 if path.anchor else 0 :][-2:])
    return _seen(shown.as_posix().lstrip("/")), frame.line, _seen(" ".join((frame.function or "").split())) or None


def _seen(text: str) -> str:
    """The text with a mark in place of what no line of a file holds, and of what nobody sees in one."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _row(group: list[Collective], file: str | None, line: int | None, function: str | None) -> BaselineRow:
    first = group[0]
    return BaselineRow(
        kind=first.kind,
        axes=first.axes,
        link=first.link,
        executions=sum(moved.executions for moved in group),
        payload_bytes=known_sum(moved.payload_bytes_per_step for moved in group),
        wire_bytes=known_sum(moved.wire_bytes_per_step for moved in group),
        bound=reduce(lambda bound, moved: bound + bytes_bound(moved), group, Bound.EXACT),
        file=file,
        line=line,
        function=function,
    )


def _order(row: BaselineRow) -> tuple[object, ...]:
    return str(row.kind), row.axes or (), str(row.link), row.file or "", row.line or 0, row.function or ""


def _as_collective(row: BaselineRow) -> Collective:
    frame = None if row.file is None else SourceFrame(file=row.file, line=row.line or 0, function=row.function)
    return document(
        Collective,
        row,
        name="",
        computation="",
        line=0,
        groups=(),
        group_size=None,
        operand_shapes=(),
        result_shapes=(),
        executions=1,
        executions_bound=row.bound,
        source=() if frame is None else (frame,),
    )


def format_baseline(baseline: Baseline) -> str:
    """The text of a baseline file."""
    mesh = "none" if baseline.mesh is None else ",".join(f"{_axis(name)}={size}" for name, size in baseline.mesh)
    parts = ((name, getattr(baseline.memory, field)) for name, field in MEMORY_PARTS.items())
    lines = [
        TITLE,
        _REMARK,
        f"target: {baseline.target}",
        f"slice: {baseline.slice or 'none'}",
        f"mesh: {mesh}",
        f"versions: {_list(f'{name} {version}' for name, version in baseline.versions.items())}",
        "",
        *_row_lines(baseline.rows),
        "",
        f"memory: {_list(f'{count:,} B {name}' for name, count in parts if count is not None)}",
        f"not understood: {baseline.not_understood}",
        *([f"kernels: {_list(' '.join(kernel) for kernel in baseline.kernels)}"] if baseline.kernels else []),
        total_line(baseline),
        "",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _axis(name: str) -> str:
    """A mesh axis as it is, or quoted as in JSON where a line of the file could not be read, or seen, with it."""
    if _PLAIN_AXIS.fullmatch(name) and name.isprintable():
        return name
    return json.dumps(name).replace("\x7f", "\\u007f")


def _list(entries: Iterable[str]) -> str:
    return ", ".join(entries) or "none"


def _row_lines(rows: tuple[BaselineRow, ...]) -> list[str]:
    cells = [
        (
            f"{row.kind}@{'?' if row.axes is None else ','.join(map(_axis, row.axes))}"
            + ("" if row.link is Link.ICI else f" over {row.link}"),
            f"{'' if row.bound is Bound.EXACT else f'{row.bound} '}{_times(row.executions)}",
            f"{_number(row.payload_bytes)} B payload",
            f"{_number(row.wire_bytes)} B wire",
            _source(row),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index in (0, 4) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]


def _source(row: BaselineRow) -> str:
    if row.file is None:
        return ""
    return f"{row.file}:{row.line}" + ("" if row.function is None else f" in {row.function}")


def _number(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _times(count: int) -> str:
    return f"{count:,} time" if count == 1 else f"{count:,} times"


def total_line(baseline: Baseline) -> str:
    """The last line: what the rows add up to, by which a reader knows that all of them are there."""
    executions = sum(row.executions for row in baseline.rows)
    payload = known_sum(row.payload_bytes for row in baseline.rows)
    wire = known_sum(row.wire_bytes for row in baseline.rows)
    return f"total: {_times(executions)}, {_number(payload)} B payload, {_number(wire)} B wire"


def against_baseline(baseline: Baseline, analysis: Analysis, *, root: Path | None = None) -> tuple[Finding, ...]:
    """Compares a program with its baseline.

    What was not understood then and now is no change, since whoever accepted the baseline accepted it.

    Args:
        baseline: What it was.
        analysis: What it is.
        root: The project's folder.

    Returns:
        A finding for each change; empty when nothing changed but lines of source and the number of transfers.
    """
    now = baseline_of(analysis, root=root)
    before, after = baseline.collectives, now.collectives
    rows = zip((*before, *after), (*baseline.rows, *now.rows), strict=True)
    transfers = {id(collective): row.executions for collective, row in rows}
    changes = (change for change in match(before, after).changes if not change.kind.same_traffic)
    moved = (_moved(change, transfers, analysis) for change in changes)
    unlike = (_other_place, _less_understood, _other_kernels, _larger)
    slices, *others = (tuple(compare(baseline, now)) for compare in unlike)
    return (*slices, *moved, *chain.from_iterable(others))


def _finding(message: str, *, fix: str = _FIX, source: str | None = None) -> Finding:
    return Finding(rule=CHANGED, severity=Severity.ERROR, message=message, source=source, fix=fix)


def _other_place(then: Baseline, now: Baseline) -> Iterator[Finding]:
    for what, before, after in (("slice", then.slice, now.slice), ("mesh", then.mesh, now.mesh)):
        if before != after:
            yield _finding(f"the baseline is of another {what}: {_words(before)}, not {_words(after)}")


def _words(value: str | tuple[tuple[str, int], ...] | None) -> str:
    if isinstance(value, tuple):
        return ",".join(f"{name}={size}" for name, size in value)
    return value or "none"


def _moved(change: Change, transfers: Mapping[int, int], analysis: Analysis) -> Finding:
    """The change of a row, at the place in the program as it is now."""
    row, source = change.any, None
    frame = users_frame(row.source)
    if change.new and frame is not None:
        alike = (moved for moved in analysis.collectives if (moved.kind, moved.axes) == (row.kind, row.axes))
        places = filter(None, (users_frame(moved.source) for moved in alike))
        here = next((place for place in places if place.line == frame.line and place.file.endswith(frame.file)), None)
        source = None if here is None else users_line((here,))
    now = "is not what the baseline has" if change.old else "is not in the baseline"
    verb = now if change.new else "is gone"

    def words(moved: Collective) -> str:
        count = transfers[id(moved)]
        return amount(moved) if count == 1 else f"{amount(moved)} in {count:,} transfers"

    return _finding(f"{change_line(change, words)} ({verb})", source=source)


def _less_understood(then: Baseline, now: Baseline) -> Iterator[Finding]:
    if now.not_understood > then.not_understood:
        things = plural(now.not_understood, "thing")
        yield _finding(f"{things} in the program not understood, {then.not_understood} in the baseline")


def _other_kernels(then: Baseline, now: Baseline) -> Iterator[Finding]:
    """Kernels that send by themselves and are not those that somebody accepted; of an older file nobody can tell."""
    before = then.kernels
    for name, does in now.kernels or ():
        if before is None:
            message = f"the kernel {name} sends by itself, and the baseline does not say what it does"
            yield replace(_finding(message, fix="hloscope accept writes it down"), severity=Severity.NOTE)
        elif name not in dict(before):
            yield _finding(f"the kernel {name} sends by itself, and is not in the baseline")
        elif (name, does) not in before:
            yield _finding(f"the kernel {name} sends by itself, and does something else than the baseline's")
    for name in sorted({name for name, _ in before or ()} - {name for name, _ in now.kernels or ()}):
        yield _finding(f"the kernel {name}, which sent by itself, is gone")


def _larger(then: Baseline, now: Baseline) -> Iterator[Finding]:
    before, after = then.memory.peak_bytes, now.memory.peak_bytes
    if before is None:
        return
    if after is None:
        yield _finding(f"the peak memory is not known, and was {format_bytes(before)}")
    elif after - before > max(_MEMORY_GROWTH * before, _COMPILERS_OWN_BYTES):
        grown = 100 * (after - before) / max(before, 1)
        yield _finding(f"the peak memory grew by {grown:.0f}%: {format_bytes(before)} -> {format_bytes(after)}")
