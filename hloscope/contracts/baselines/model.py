"""A baseline: what a program moved when somebody last looked, one line for each kind, axes and source.

Made for review: bytes in full, versions on one line of their own, no HLO. Rows of one source are summed, so that a
compiler that combines or splits transfers changes nothing but their number.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path, PurePath

from hloscope.analysis.model import Analysis, Collective, Memory, SourceFrame
from hloscope.analysis.places import path_of, users_frame
from hloscope.analysis.totals import bytes_bound, known_sum
from hloscope.analysis.vocabulary import Bound, Kind, Link


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
    """

    target: str
    slice: str | None
    mesh: tuple[tuple[str, int], ...] | None
    versions: dict[str, str]
    rows: tuple[BaselineRow, ...]
    memory: Memory
    not_understood: int = 0

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The rows as collectives that run once per step, to be matched with others."""
        return tuple(map(_as_collective, self.rows))


def baseline_of(analysis: Analysis, *, target: str | None = None, root: Path | None = None) -> Baseline:
    """The baseline of a program.

    Args:
        analysis: The program.
        target: Its name in the baseline; the analysis' own when None.
        root: The project's folder: files below it are named relative to it, others by their last two parts.
    """
    groups: dict[Hashable, list[Collective]] = {}
    for one in analysis.collectives:
        groups.setdefault((one.kind, one.axes, one.link, _place(one, root)), []).append(one)
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
    )


def _place(one: Collective, root: Path | None) -> tuple[str | None, int | None, str | None]:
    frame = users_frame(one.source)
    if frame is None:
        return None, None, None
    path = path_of(frame)
    below = root is not None and path.is_relative_to(root)
    shown = (
        path.relative_to(root) if below and root is not None else PurePath(*path.parts[1 if path.anchor else 0 :][-2:])
    )
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
        executions=sum(one.executions for one in group),
        payload_bytes=known_sum(one.payload_bytes_per_step for one in group),
        wire_bytes=known_sum(one.wire_bytes_per_step for one in group),
        bound=reduce(lambda bound, one: bound + bytes_bound(one), group, Bound.EXACT),
        file=file,
        line=line,
        function=function,
    )


def _order(row: BaselineRow) -> tuple[object, ...]:
    return str(row.kind), row.axes or (), str(row.link), row.file or "", row.line or 0, row.function or ""


def _as_collective(row: BaselineRow) -> Collective:
    source: tuple[SourceFrame, ...] = ()
    if row.file is not None:
        source = (SourceFrame(file=row.file, line=row.line or 0, function=row.function),)
    return Collective(
        kind=row.kind,
        name="",
        computation="",
        line=0,
        axes=row.axes,
        groups=(),
        group_size=None,
        link=row.link,
        operand_shapes=(),
        result_shapes=(),
        payload_bytes=row.payload_bytes,
        wire_bytes=row.wire_bytes,
        executions=1,
        executions_bound=row.bound,
        source=source,
    )


def memory_parts(memory: Memory) -> dict[str, int]:
    """The figures of a memory that are known, by their names in a baseline."""
    known = {
        "arguments": memory.argument_bytes,
        "outputs": memory.output_bytes,
        "temporaries": memory.temp_bytes,
        "aliased": memory.alias_bytes,
        "code": memory.generated_code_bytes,
        "peak": memory.peak_bytes,
    }
    return {name: count for name, count in known.items() if count is not None}
