"""Reports on XLA dump folders: the list of modules, a row per analyzed module, and a document for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hloscope.analysis.totals import GUESS
from hloscope.base.canvas import Canvas
from hloscope.base.documents import SCHEMA, Schema, make_document
from hloscope.base.errors import Either, Option, say
from hloscope.base.results import Shown, shorten_to_line
from hloscope.base.units import format_bytes, format_time, pluralize
from hloscope.compile.dumps import Dump, DumpedModule, find_dumped_slice
from hloscope.model import Analysis
from hloscope.report.analysis import render_analysis
from hloscope.report.layout import INDENT, column, fold, fold_all, render_table
from hloscope.report.words import GUESSED

if TYPE_CHECKING:
    from hloscope.plain_types import DumpedModuleDict, DumpedModulesDict

_LISTED = 20
_SLOWEST = 5
_WIDEST_NAME = 44
_PLATFORMS = {"tpu": "TPU", "gpu": "GPU", "cpu": "CPU", None: ""}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DumpedResult(Shown):
    """The analysis of one module in a dump, or the error.

    Attributes:
        module: The module.
        analysis: The analysis; None if the module could not be analyzed.
        error: The error as printed; None if it was analyzed.
        problem: The error on one line.
        seconds: Duration of its analysis.
    """

    _subject = "dumped"

    module: DumpedModule
    analysis: Analysis | None = None
    error: str | None = None
    problem: str | None = None
    seconds: float = 0.0

    def __repr__(self) -> str:
        return shorten_to_line(f"<{self.module.file}: {self.problem or repr(self.analysis)}>")

    if TYPE_CHECKING:

        def to_dict(self) -> DumpedModuleDict:
            """The result as plain data."""


class DumpedModules(tuple[DumpedResult, ...], Shown):
    """The analyses or errors of all modules in a dump, largest module first.

    Attributes:
        dump: The dump.
        seconds: Wall-clock time of all of them, in parallel.
    """

    _subject = "dumped_modules"

    dump: Dump
    seconds: float

    def __new__(cls, members: Iterable[DumpedResult], *, dump: Dump, seconds: float) -> DumpedModules:
        """Creates it from the results of the modules."""
        made = super().__new__(cls, members)
        made.dump, made.seconds = dump, seconds
        return made

    @property
    def failed(self) -> tuple[DumpedResult, ...]:
        """The modules that could not be analyzed."""
        return tuple(result for result in self if result.analysis is None)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(DumpedModules, dump=self.dump, seconds=self.seconds), (tuple(self),)

    def __repr__(self) -> str:
        return f"<{pluralize(len(self), 'module')} of {self.dump.folder}, {len(self.failed)} not analyzed>"

    if TYPE_CHECKING:

        def to_dict(self) -> DumpedModulesDict:
            """The result as plain data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedModuleDocument:
    """One module in an XLA dump folder, as plain data.

    Attributes:
        schema: Schema version of the document.
        name: Name of the module, such as `jit_step`.
        number: XLA's number in the file name, such as `0092`; empty if it has none.
        file: The file that was read, relative to the folder.
        platform: `tpu`, `gpu` or `cpu`, according to the file name; None if unknown.
        size_bytes: Size of the file in bytes; None if it cannot be read.
        seconds: Duration of its analysis.
        error: Why it could not be analyzed; None if it was.
        analysis: The analysis; None if the module could not be analyzed.
    """

    schema: Schema = SCHEMA
    name: str
    number: str
    file: str
    platform: str | None
    size_bytes: int | None
    seconds: float
    error: str | None
    analysis: Analysis | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedModulesDocument:
    """All modules in an XLA dump folder: the plain data of `hloscope.analyze_all`.

    Attributes:
        schema: Schema version of the document.
        folder: The folder.
        modules: The analyses or errors of the modules, largest module first.
    """

    schema: Schema = SCHEMA
    folder: str
    modules: tuple[DumpedModuleDocument, ...]


def make_module_document(result: DumpedResult) -> DumpedModuleDocument:
    """The document of one module."""
    own = {"seconds": round(result.seconds, 3), "error": result.error, "analysis": result.analysis}
    return make_document(DumpedModuleDocument, result.module, **own)


def make_dump_document(found: DumpedModules) -> DumpedModulesDocument:
    """All modules as one document."""
    return DumpedModulesDocument(folder=str(found.dump.folder), modules=tuple(map(make_module_document, found)))


def render_module(result: DumpedResult, width: int) -> Iterator[Text]:
    """The report of one module, or its error."""
    if result.analysis is None:
        yield from map(Text, (result.error or "").splitlines())
        return
    yield from render_analysis(result.analysis, Canvas(width=width))


def render_modules(found: DumpedModules, width: int) -> Iterator[Text]:
    """A row for each module, below a headline and above a summary."""
    rows = Rows.of(found.dump, width)
    yield from rows.render_head(found.dump)
    yield from map(rows.render_row, found)
    yield from render_summary(found.dump, found, found.seconds)


def render_dump(dump: Dump, width: int) -> Iterator[Text]:
    """The largest modules, according to file names and sizes."""
    yield from fold(_format_headline(dump), width)
    yield Text()
    shown = dump.modules[:_LISTED]
    cell = partial(column, shown)
    columns = (
        cell("module", _format_name, style="bold"),
        cell("number", lambda module: module.number, right=True, given_up=3),
        cell("text", lambda module: format_bytes(module.size_bytes), right=True),
        cell("compiled for", _format_place, given_up=2),
        cell("file", _format_file, style="dim", given_up=1),
    )
    yield from (Text(" " * INDENT) + line for line in render_table(columns, width - INDENT))
    rest = dump.modules[len(shown) :]
    remarks = [Text(f"+{pluralize(len(rest), 'smaller module')}", style="dim")] if rest else []
    if len(dump.modules) > 1:
        every = Either("--all", "hloscope.analyze_all")
        words = say(Option("only", "NAME"), " shows another one in full, ", every, " analyses every one")
        remarks.append(Text(words, style="dim"))
    remarks += [Text(f"note: {note}", style="dim") for note in dump.notes]
    yield from (Text(" " * INDENT) + line for line in fold_all(remarks, width - INDENT))


def _format_headline(dump: Dump) -> Text:
    sizes = [module.size_bytes for module in dump.modules if module.size_bytes is not None]
    counts: dict[str, int] = {}
    for module in dump.modules:
        counts[_PLATFORMS[module.platform]] = counts.get(_PLATFORMS[module.platform], 0) + 1
    kinds = ", ".join(f"{count} for {kind}" for kind, count in counts.items() if kind) if len(counts) > 1 else ""
    only = next(iter(counts)) if len(counts) == 1 else ""
    words = f": {pluralize(len(dump.modules), 'compiled module')}{f' for {only}' if only else ''}"
    words += f" ({kinds})" if kinds else ""
    return Text.assemble((str(dump.folder), "bold"), f"{words}, {format_bytes(sum(sizes))}")


def _format_name(module: DumpedModule) -> str:
    folder, _, _ = module.file.rpartition("/")
    return f"{folder}/{module.name}" if folder else module.name


def _format_file(module: DumpedModule) -> str:
    """The file name of compressed and serialized modules, which module and number do not show."""
    return "" if module.number and module.path.suffix == ".txt" else module.path.name


def _format_place(module: DumpedModule) -> str:
    found = find_dumped_slice(module) if module.platform == "tpu" else None
    return _PLATFORMS[module.platform] if found is None else found.name


# ---- rows that are printed one by one, while others are still analyzed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a table whose columns are fixed before its cells are known.

    Attributes:
        name: Columns of the modules' names.
        width: Columns of the terminal.
    """

    name: int
    width: int

    @staticmethod
    def of(dump: Dump, width: int) -> Rows:
        """Rows for the modules of a dump."""
        widest = max(len(_format_name(module)) for module in dump.modules)
        return Rows(name=max(len("module"), min(widest, _WIDEST_NAME)), width=width)

    def render_head(self, dump: Dump) -> Iterator[Text]:
        """The headline, notes and header above the rows."""
        yield from fold(_format_headline(dump), self.width)
        yield from (line for note in dump.notes for line in fold(Text(f"note: {note}", style="dim"), self.width))
        yield Text()
        header = self._join("module", "number", "text", "compiled for", "step", "moves/step", "transfers", "findings")
        yield Text(header, style="dim")
        yield Text("─" * len(header), style="dim")

    def render_row(self, result: DumpedResult) -> Text:
        """One module."""
        module, found = result.module, result.analysis
        name, size = _format_name(module), format_bytes(module.size_bytes)
        if len(name) > self.name:
            name = f"…{name[1 - self.name :]}"
        if found is None:
            row = self._join(name, module.number, size, _PLATFORMS[module.platform])
            return Text.assemble(row.rstrip(), "  ", (f"not analyzed: {result.problem}", "red"))
        total, time = found.totals, found.time
        counted = sum(finding.allowed is None for finding in found.findings)
        moves = total.bound.marked(format_bytes(total.wire_bytes)) if found.collectives else "nothing"
        step = "" if time is None else time.bound.marked(format_time(time.step_us))
        transfers = str(total.executions) if found.collectives else ""
        place, findings = _format_slice(found, module), str(counted or "")
        return Text(self._join(name, module.number, size, place, step, moves, transfers, findings))

    def _join(self, *cells: str) -> str:
        widths = (-self.name, 6, 8, -15, 10, 11, 9, 8)
        sized = zip(cells, widths, strict=False)
        return "  ".join(f"{cell:<{-wide}}" if wide < 0 else f"{cell:>{wide}}" for cell, wide in sized)


def _format_slice(found: Analysis, module: DumpedModule) -> str:
    """`v5e:2x4`, with a mark if it is a guess; the platform if no slice is known."""
    if found.slice is not None:
        return found.slice.name + (GUESSED if found.slice.chosen_by == GUESS else "")
    platform = _PLATFORMS[module.platform]
    return f"{platform}, {pluralize(found.num_partitions, 'device')}" if found.num_partitions > 1 else platform


def render_summary(dump: Dump, results: Sequence[DumpedResult], seconds: float) -> Iterator[Text]:
    """The summary below the rows: their number, and those that take longest."""
    done = [(result.module, result.analysis) for result in results if result.analysis is not None]
    yield Text()
    count = f"{len(done)} of {pluralize(len(dump.modules), 'module')} analyzed in {format_time(seconds * 1e6)}"
    yield Text(count, style="bold")
    if any(found.slice is not None and found.slice.chosen_by == GUESS for _, found in done):
        words = say(f"{GUESSED} marks slices that are guessed from the text; set them with ", Option("slice"))
        yield Text(words, style="dim")
    if any(found.slice is None and module.platform in ("tpu", None) for module, found in done):
        unknown = "no step: it is unknown what the module was compiled for; name a slice, e.g. "
        yield Text(say(unknown, Option("slice", "v5e:2x4")), style="dim")
    timed = [(found.time.step_us, module) for module, found in done if found.time is not None]
    longest = sorted(timed, key=lambda pair: pair[0], reverse=True)[:_SLOWEST]
    if len(timed) > 1:
        named = ", ".join(f"{_format_name(module)} {format_time(step)}" for step, module in longest)
        yield Text(f"longest steps: {named}")
