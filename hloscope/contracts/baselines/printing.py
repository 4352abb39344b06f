"""The text of a baseline file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from hloscope.analysis.totals import known_sum
from hloscope.analysis.vocabulary import Bound, Link
from hloscope.contracts.baselines.model import Baseline, BaselineRow, memory_parts

TITLE = "hloscope baseline 1"
_PLAIN_AXIS = re.compile(r"[^\s,=\"?]+")
_REMARK = (
    "# What one step moves on one device. `hloscope accept` rewrites this file; read the difference before you commit."
)


def format_baseline(baseline: Baseline) -> str:
    """The text of a baseline file."""
    mesh = "none" if baseline.mesh is None else ",".join(f"{_axis(name)}={size}" for name, size in baseline.mesh)
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
        f"memory: {_list(f'{_number(count)} B {name}' for name, count in memory_parts(baseline.memory).items())}",
        f"not understood: {baseline.not_understood}",
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
    """The last line: what the rows add up to, by which a reader tells that all of them are there."""
    executions, payload, wire = _sums(baseline.rows)
    return f"total: {_times(executions)}, {_number(payload)} B payload, {_number(wire)} B wire"


def _sums(rows: tuple[BaselineRow, ...]) -> tuple[int, int | None, int | None]:
    return (
        sum(row.executions for row in rows),
        known_sum(row.payload_bytes for row in rows),
        known_sum(row.wire_bytes for row in rows),
    )
