"""The kernels of a program: what each takes and returns, what it costs, and whether it communicates."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hloscope.analysis.model import Analysis
from hloscope.analysis.model.kernel import Kernel
from hloscope.analysis.places import short_source
from hloscope.messages import Option, placeholder, say
from hloscope.report.layout import Breaks, Column, column, hanging, table_lines
from hloscope.units import format_bytes, format_flops

_DMA = {True: "yes, not counted", False: "none", None: "not stated"}


def kernel_lines(analysis: Analysis, width: int) -> Iterator[Text]:
    """A table of them, and a line for each whose cost nobody says."""
    yield from table_lines(_columns(analysis.kernels), width)
    unpriced = () if analysis.time is None else analysis.time.unpriced_kernels
    for name in unpriced:
        advice = say(cost_option(name), ", or cost_estimate=pl.CostEstimate(...) in its pallas_call")
        yield from hanging(Text(f"{name}: its cost is unknown; give {advice}", style="yellow"), width)


def cost_option(kernel: str) -> Option:
    """The option that says what a kernel costs."""
    return Option("kernel-cost", {kernel: (placeholder("FLOPS"), placeholder("BYTES"))})


def _columns(kernels: tuple[Kernel, ...]) -> list[Column]:
    parts = Breaks.BETWEEN_PARTS
    return [
        column(kernels, "kernel", _name, style="bold", breaks=Breaks.BETWEEN_PARTS),
        column(kernels, "runs", _runs, right=True),
        column(kernels, "estimate per run", _cost, breaks=parts),
        column(kernels, "remote DMA", lambda each: _DMA[each.remote_dma]),
        column(
            kernels,
            "takes",
            lambda each: _shapes(each.operand_shapes),
            breaks=parts,
            below="takes {}",
            given_up=1,
        ),
        column(
            kernels,
            "returns",
            lambda each: _shapes(each.result_shapes),
            breaks=parts,
            below="returns {}",
            given_up=2,
        ),
        column(kernels, "at", lambda each: short_source(each.source) or "", style="dim", below="at {}", given_up=0),
    ]


def _name(kernel: Kernel) -> str:
    return f"{kernel.name}, XLA's own" if kernel.by_compiler else kernel.name


def _runs(kernel: Kernel) -> str:
    return kernel.executions_bound.marked(f"{kernel.executions:,}")


def _cost(kernel: Kernel) -> str:
    parts = []
    if kernel.flops:
        parts.append(format_flops(kernel.flops))
    if kernel.accessed_bytes:
        parts.append(format_bytes(kernel.accessed_bytes))
    return ", ".join(parts) or "unknown"


def _shapes(shapes: tuple[object, ...]) -> str:
    """Each shape once, with how many there are of it."""
    counts: dict[str, int] = {}
    for shape in map(str, shapes):
        counts[shape] = counts.get(shape, 0) + 1
    return ", ".join(shape if count == 1 else f"{count} x {shape}" for shape, count in counts.items())
