"""The text of a baseline file: what all sections share, and a line for each row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from hloscope.analysis.vocabulary import Bound, Link
from hloscope.contracts.array_rows import ArrayRow
from hloscope.contracts.baselines import MEMORY_PARTS, Baseline, BaselineRow, MatmulRow, Place

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


def format_baselines(baselines: Sequence[Baseline]) -> str:
    """The text of a baseline file: what all sections share, and each of them."""
    first = baselines[0]
    mesh = "none" if first.mesh is None else ",".join(f"{word(name)}={size}" for name, size in first.mesh)
    lines = [TITLE, _REMARK, f"target: {first.target}", f"slice: {first.slice or 'none'}", f"mesh: {mesh}"]
    for baseline in baselines:
        lines += ["", *_section(baseline)]
    return "\n".join(line.rstrip() for line in (*lines, ""))


def format_baseline(baseline: Baseline) -> str:
    """The text of a file with one section."""
    return format_baselines((baseline,))


def _section(baseline: Baseline) -> list[str]:
    parts = ((name, getattr(baseline.memory, field)) for name, field in MEMORY_PARTS.items())
    lines = [
        f"versions: {_list(f'{name} {version}' for name, version in baseline.versions.items())}",
        *_aligned(map(_cells, baseline.rows), left=(0, 1, 5)),
        *_aligned(map(_matmul_cells, baseline.matmuls or ()), left=(0, 1, 3)),
        *_aligned(map(_array_cells, baseline.arrays or ()), left=(0, 1)),
        f"memory: {_list(f'{count:,} B {name}' for name, count in parts if count is not None)}",
    ]
    step = baseline.step
    if step is not None:
        span = f"{step.least_us:,.3f} to {step.most_us:,.3f} us"
        lines.append(f"step: {_bound_words(step.bound)}{step.step_us:,.3f} us, {span}, cost model {step.model}")
    if baseline.kernels:
        lines.append(f"kernels: {_list(' '.join(kernel) for kernel in baseline.kernels)}")
    return [*lines, f"not understood: {baseline.not_understood}", END]


def word(name: str) -> str:
    """A mesh axis as it is, or quoted as in JSON where a line of the file could not be read, or seen, with it."""
    return name if _PLAIN.fullmatch(name) and name.isprintable() else _quoted(name)


def _quoted(name: str) -> str:
    return json.dumps(name).replace("\x7f", "\\u007f")


def _list(entries: Iterable[str]) -> str:
    return ", ".join(entries) or "none"


def _cells(row: BaselineRow) -> tuple[str, ...]:
    return (
        f"{row.kind}@{'?' if row.axes is None else ','.join(map(word, row.axes))}"
        + ("" if row.link is Link.ICI else f" over {row.link}"),
        " ".join(filter(None, (row.dtype or "?", row.reduction, WRITTEN if row.written else None))),
        _count_words(row),
        f"{_number(row.payload_bytes)} B payload",
        f"{_number(row.wire_bytes)} B wire",
        _place_words(row.place),
    )


def _matmul_cells(row: MatmulRow) -> tuple[str, ...]:
    return "matmuls", row.dtype, f"{_bound_words(row.bound)}{_number(row.flops)} FLOP", _place_words(row.place)


def _array_cells(row: ArrayRow) -> tuple[str, ...]:
    return row.kind, row.type, f"{row.count:,} {'array' if row.count == 1 else 'arrays'}"


def _aligned(rows: Iterable[tuple[str, ...]], left: Sequence[int]) -> list[str]:
    """Rows in columns, each of its own line so that a longer one among them moves no other: padded to fixed steps."""
    found = []
    for row in rows:
        cells = (
            cell.ljust(_wide(cell)) if index in left else cell.rjust(_wide(cell)) for index, cell in enumerate(row)
        )
        found.append("  ".join(cells).rstrip())
    return found


def _wide(cell: str) -> int:
    """The width of a cell: a multiple of a few characters, whatever stands in other rows."""
    return -(-len(cell) // _CELL) * _CELL


def _place_words(place: Place) -> str:
    if place.file is None:
        return ""
    named = _name(place.file) if place.line is None else _name(f"{place.file}:{place.line}")
    function = "" if place.function is None else f" in {_name(place.function)}"
    return f"{named}{function}{'' if place.text is None else f': {place.text}'}"


def _name(text: str) -> str:
    return text if _PLAIN_NAME.fullmatch(text) and text != "in" else _quoted(text)


def row_text(row: BaselineRow | MatmulRow) -> str:
    """The line of a file that holds a row, without its padding."""
    return "  ".join(filter(None, _cells(row) if isinstance(row, BaselineRow) else _matmul_cells(row)))


def _number(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _count_words(row: BaselineRow) -> str:
    arrays = "" if row.arrays in (None, row.executions) else f" of {row.arrays:,} arrays"
    return f"{_bound_words(row.bound)}{_times(row.executions)}{arrays}"


def _bound_words(bound: Bound) -> str:
    return "" if bound is Bound.EXACT else f"{bound} "


def _times(count: int) -> str:
    return f"{count:,} time" if count == 1 else f"{count:,} times"
