"""Where a step's time goes: one bar, the figures beside it, and how far they can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from hloscope.analysis.model import StepTime
from hloscope.report.folding import fold
from hloscope.report.words import marked, short_note
from hloscope.units import format_bytes, format_share, format_time, plural

BAR_COLUMNS = 16
_MOST_UNKNOWN = 3
_MARKS = (("█", "green"), ("▓", "cyan"), ("░", "red"))
"""Computing alone, computing with communication hidden behind it, waiting for communication."""

_BASES = {
    "cycles": "from the compiler's own cycles",
    "roofline": "a roofline of FLOPs and bytes, at least this",
    "memory": "from the bytes that are moved",
    "none": "nothing is computed",
}


def time_lines(time: StepTime, width: int) -> list[Text]:
    """The lines of the report about a step's time, at most `width` columns wide."""
    return [part for line in _lines(time, width) for part in fold(line, width)]


def time_bar(time: StepTime, columns: int = BAR_COLUMNS) -> Text:
    """The split of a step: computing `█`, computing with communication hidden behind it `▓`, waiting `░`."""
    hidden = min(time.hidden_us, time.compute_us)
    bar = Text()
    for (mark, style), cells in zip(
        _MARKS, _cells((time.compute_us - hidden, hidden, time.exposed_us), columns), strict=True
    ):
        bar.append(mark * cells, style=style)
    return bar


def _cells(parts: Sequence[float], columns: int) -> list[int]:
    """Whole cells for each part, in proportion; a part that is there has at least one."""
    total = sum(parts)
    if total <= 0:
        return [0] * len(parts)
    cells = [max(int(columns * part / total), 1 if part > 0 else 0) for part in parts]
    largest = max(range(len(parts)), key=lambda index: parts[index])
    cells[largest] += columns - sum(cells)
    return cells


def _lines(time: StepTime, width: int) -> Iterator[Text]:
    yield time_line(time, width)
    yield Text(" · ".join(_remarks(time)), style="dim")
    yield Text(_trust(time), style="dim")
    if time.unknown_operations:
        style = "yellow" if time.rests_on_unknown else "dim"
        yield Text(f"priced without knowing what they do: {_unknown(time)}", style=style)
    for note in time.notes:
        yield Text(short_note(note), style="dim")


def time_line(time: StepTime, width: int) -> Text:
    """The step's time, its bar, and the split in figures, on one line where it fits."""
    share = f" ({100 * time.exposed_us / time.step_us:.0f}%)" if time.step_us > 0 and time.exposed_us > 0 else ""
    waiting = f"{format_time(time.exposed_us)} exposed{share}"
    figures = (
        f"compute {format_time(time.compute_us)}",
        f"communication {waiting}, {format_time(time.hidden_us)} hidden",
    )
    line = Text.assemble((marked(format_time(time.step_us), time.bound), "bold"), "  ")
    if width >= 3 * BAR_COLUMNS:
        line.append_text(time_bar(time)).append("  ")
    return line.append(" · ".join(figures))


def _remarks(time: StepTime) -> Iterator[str]:
    if time.peak_flops_share is not None:
        yield f"{format_share(time.peak_flops_share)} of peak FLOP/s"
    yield f"memory-bound {format_time(time.hbm_us)}"
    if time.first_step_us > 1.01 * time.step_us:
        yield f"first step {format_time(time.first_step_us)}"


def _trust(time: StepTime) -> str:
    basis = _BASES.get(time.basis, time.basis)
    if time.unpriced_kernels:
        return (
            f"{basis}; at least this, with no claim to accuracy: nothing says what the kernel"
            f"{'s' if len(time.unpriced_kernels) > 1 else ''} {' and '.join(time.unpriced_kernels)} cost"
            f"{'' if len(time.unpriced_kernels) > 1 else 's'}; give --kernel-cost "
            f"{time.unpriced_kernels[0]}=FLOPS,BYTES, or a cost_estimate to its pallas_call"
        )
    if time.spread is None:
        return f"{basis}; no measurement of this generation to compare with"
    spread = time.spread
    known = (
        f"{basis}; on {plural(spread.rows, 'published timing')} of this generation off by a factor of "
        f"{spread.median:.2f} (median) to {spread.worst:.2f} (worst)"
    )
    untested = ", ".join(time.uncalibrated)
    return f"{known}; priced by rules that none of them tests: {untested}" if untested else known


def _unknown(time: StepTime) -> str:
    shown = [
        f"{one.what} ({plural(one.count, 'time')}, {format_bytes(one.bytes)}, {format_time(one.time_us)})"
        for one in time.unknown_operations[:_MOST_UNKNOWN]
    ]
    more = len(time.unknown_operations) - len(shown)
    return ", ".join(shown) + (f" and {plural(more, 'more kind')}" if more > 0 else "")
