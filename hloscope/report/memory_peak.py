"""What lies in a device's HBM at the peak, where the program does not fit or hardly does."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hloscope.analysis.model import Analysis, BufferRole, Memory, MemoryPeak, PeakBuffer
from hloscope.analysis.places import short_source
from hloscope.report.layout import Breaks, column, fold, section, table_lines
from hloscope.rules.hbm_near_limit import HbmNearLimit
from hloscope.units import format_bytes

_SHOWN = 8
_WORDS = {
    BufferRole.ARGUMENT: "argument",
    BufferRole.OUTPUT: "output, not in a donated buffer",
    BufferRole.SAVED: "saved for the backward pass",
    BufferRole.GATHERED: "gathered",
    BufferRole.COPY: "copy",
    BufferRole.TEMPORARY: "temporary",
    BufferRole.CONSTANT: "constant",
}
_FREED_BY = {
    BufferRole.SAVED: "jax.checkpoint around the layer",
    BufferRole.GATHERED: "gather less at a time",
}
"""Changes that do without a buffer of a role, none of which was tried."""
_DONATED = "donate it to an output of its size"


def memory_peak_section(analysis: Analysis, width: int) -> Iterator[Text]:
    """The largest buffers with their lines and what would free them; nothing where there is room, or nobody knows."""
    peak = analysis.memory_peak
    if peak is not None and _is_tight(analysis.memory):
        yield from section("HBM of one device at its peak", _lines(peak, width), width)


def _is_tight(memory: Memory) -> bool:
    """Whether a program does not fit, or only so that `hbm-near-limit` reports it unless it is told another share."""
    if memory.fits is False or memory.peak_bytes is None or not memory.hbm_bytes:
        return memory.fits is False
    return memory.peak_bytes > HbmNearLimit().share * memory.hbm_bytes


def _lines(peak: MemoryPeak, width: int) -> Iterator[Text]:
    shown, rest = peak.buffers[:_SHOWN], peak.buffers[_SHOWN:]
    columns = [
        column(shown, "Bytes", _bytes, right=True),
        column(shown, "What", lambda buffer: _WORDS[buffer.role]),
        column(shown, "Array", _array, breaks=Breaks.AFTER_PUNCTUATION),
        column(shown, "Made at", lambda buffer: short_source(buffer.source) or "", given_up=2),
        column(shown, "Would free it (not tried)", freed_by, below=_freed_by_words, given_up=1),
    ]
    yield from table_lines(columns, width)
    others = sum(buffer.bytes * buffer.count for buffer in rest) + peak.other_bytes
    place = short_source(peak.source)
    when = f"while %{peak.at} runs" + (f" ({place})" if place else "")
    words = f"{format_bytes(peak.live_bytes)} {when}; {format_bytes(others)} of it in other buffers"
    yield from fold(Text(words, style="dim"), width)
    if peak.fragmentation_bytes:
        lost = f"{format_bytes(peak.fragmentation_bytes)} more is reserved for temporaries and unused then"
        yield from fold(Text(lost, style="dim"), width)


def _bytes(buffer: PeakBuffer) -> str:
    whole = format_bytes(buffer.bytes * buffer.count)
    return whole if buffer.count == 1 else f"{whole} ({buffer.count} x {format_bytes(buffer.bytes)})"


def _array(buffer: PeakBuffer) -> str:
    """The argument, or what makes the buffer, with its shape."""
    name = buffer.name if buffer.role is BufferRole.ARGUMENT else f"%{buffer.name}"
    return f"{name} {buffer.shape}" if buffer.shape is not None else name


def freed_by(buffer: PeakBuffer) -> str:
    """What would free a buffer, of what the facts show; empty where they show nothing."""
    return _DONATED if buffer.donation_frees else _FREED_BY.get(buffer.role, "")


def _freed_by_words(buffer: PeakBuffer) -> str:
    by = freed_by(buffer)
    return by and f"would free it (not tried): {by}"
