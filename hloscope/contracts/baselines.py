"""Baselines: what a program moves, multiplies and takes, as it was when somebody last accepted it.

Made for review and for merges: one line for each kind, axes, type and line of source, which is named by its text and
not by its number; bytes in full; no sums over lines, and no HLO. What two versions of the compiler make of one program
stands in two sections of one file.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from pathlib import Path, PurePath

from hloscope.analysis.guesses import without_guesses
from hloscope.analysis.model import Analysis, Collective, Matmuls, Memory, SourceFrame, shapes_of
from hloscope.analysis.places import path_of, users_frame
from hloscope.analysis.totals import bytes_bound, grouped
from hloscope.analysis.vocabulary import SUMS, Bound, Kind, Link, Origin
from hloscope.contracts.array_rows import ArrayRow, array_rows
from hloscope.cost.constants import MODEL_VERSION
from hloscope.documents import document
from hloscope.units import known_sum

MIXED = "mixed"
"""In place of an opcode: a reduction by more than one operation."""
_LONGEST_TEXT = 80
"""Characters of a line of source that are kept."""

_HARDLY_ANY = 0.01
"""Of the elements that move: what is left out where the type of all is said."""

_COMPILERS = ("jax", "jaxlib", "libtpu")

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
class Place:
    """A line of the user's code, found again wherever in its function it is.

    Attributes:
        file: The source file, below the project where it is there; None where the source is not known.
        function: The function.
        text: The line without its indentation, or its beginning; None where the file is not the project's.
        line: Its number, which only baselines of the first version keep.
    """

    file: str | None = None
    function: str | None = None
    text: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return "source not known"
        name = PurePath(self.file).name
        return name if self.function is None else f"{name} in {self.function}"


NOWHERE = Place()


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRow:
    """What one line of source moves over one set of axes, per step on one device.

    Attributes:
        kind: The kind of collective.
        axes: Its mesh axes; None where they are not known.
        link: The network.
        dtype: XLA's short name of the type that moves, of several joined by `+`; None where it is not known.
        reduction: The opcode with which a sum combines two elements, or `mixed`; None for what combines none, and where
            the file does not say.
        written: Whether the user's code calls for it by its name, as `jax.lax.psum` does.
        executions: Transfers.
        arrays: Arrays in them, of which a compiler may join several in one transfer; None where that is not known.
        payload_bytes: Bytes of the larger sides; None where some are not known.
        wire_bytes: Bytes sent; None where some are not known.
        bound: How the three relate to the truth.
        place: Where it is written.
    """

    kind: Kind
    axes: tuple[str, ...] | None
    link: Link
    dtype: str | None = None
    reduction: str | None = None
    written: bool = False
    executions: int
    arrays: int | None = None
    payload_bytes: int | None
    wire_bytes: int | None
    bound: Bound
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRow:
    """What one line of source multiplies, per step on one device.

    Attributes:
        dtype: XLA's short name of the type.
        flops: Multiply-adds, two operations each; None where they are not known.
        bound: How that relates to the truth.
        place: Where it is written.
    """

    dtype: str
    flops: int | None
    bound: Bound = Bound.EXACT
    place: Place = NOWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineStep:
    """How long a step was predicted to take.

    Attributes:
        step_us: The prediction.
        least_us: Where its range begins.
        most_us: Where it ends.
        model: The version of the cost model: of another one nothing is compared.
        bound: Whether the prediction is exact, apart from its range, or a bound.
    """

    step_us: float
    least_us: float
    most_us: float
    model: int
    bound: Bound = Bound.EXACT


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a program moves and takes, as some versions of the compiler made it.

    Attributes:
        target: The program.
        slice: The slice; None for HLO text without one.
        mesh: Axis sizes by name; None without a mesh.
        versions: What compiled it.
        rows: What it moves, in order of kind, axes and source.
        matmuls: What it multiplies, in order of source; None where that is not said.
        arrays: Its arguments and outputs, by type; None where that is not said.
        memory: Bytes on one device.
        step: The predicted step; None where it was not priced.
        not_understood: How many things in it were not understood.
        kernels: Kernels that send by themselves, by name and what they do; None where that is not said.
    """

    target: str
    slice: str | None
    mesh: tuple[tuple[str, int], ...] | None
    versions: dict[str, str]
    rows: tuple[BaselineRow, ...]
    matmuls: tuple[MatmulRow, ...] | None = None
    arrays: tuple[ArrayRow, ...] | None = None
    memory: Memory
    step: BaselineStep | None = None
    not_understood: int = 0
    kernels: tuple[tuple[str, str], ...] | None = None

    @property
    def compiler(self) -> tuple[tuple[str, str], ...]:
        """The versions that decide what is compiled, by which sections of one file are told apart."""
        return tuple((name, self.versions[name]) for name in _COMPILERS if name in self.versions)


def baseline_of(analysis: Analysis, *, target: str | None = None, root: Path | None = None) -> Baseline:
    """The baseline of a program, without what was guessed of it.

    Args:
        analysis: The program.
        target: Its name in the baseline; the analysis' own when None.
        root: The project's folder: files below it are named relative to it, others by their last two parts.
    """
    analysis = without_guesses(analysis)
    mesh, time = analysis.mesh, analysis.time
    return Baseline(
        target=target or analysis.target,
        slice=None if analysis.slice is None else analysis.slice.name,
        mesh=None if mesh is None else tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True)),
        versions=dict(analysis.versions),
        rows=tuple(row for row, _ in rows_of(analysis, root)),
        matmuls=tuple(row for row, _ in matmul_rows_of(analysis, root)),
        arrays=array_rows(analysis.arguments, analysis.outputs) or None,
        memory=replace(analysis.memory, hbm_bytes=None, fits=None),
        step=None
        if time is None
        else BaselineStep(
            step_us=round(time.step_us, 3),
            least_us=round(time.least_us, 3),
            most_us=round(time.most_us, 3),
            model=MODEL_VERSION,
            bound=time.bound,
        ),
        not_understood=len(analysis.unmodelled),
        kernels=_sending(analysis) or None,
    )


def _sending(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    """The kernels that send by themselves, of which no row tells how much: each by its name, with what it does."""
    known = ((seen(kernel.name), kernel.fingerprint or "unknown") for kernel in analysis.kernels if kernel.remote_dma)
    return tuple(sorted(known))


def rows_of(analysis: Analysis, root: Path | None = None) -> tuple[tuple[BaselineRow, tuple[Collective, ...]], ...]:
    """The rows of a program in the order of a file, each with the collectives that it stands for."""
    place_of = _places(analysis, root)

    def key(moved: Collective) -> Hashable:
        written = moved.origin is Origin.AUTHORED
        what = moved.kind, moved.axes, moved.link, _dtype_of(moved), _reduction_of(moved)
        return what, written, place_of(moved.source)

    groups = grouped(key, analysis.collectives).values()
    rows = ((_row(group, place_of(group[0].source)), tuple(group)) for group in groups)
    return tuple(sorted(rows, key=lambda pair: row_order(pair[0])))


def matmul_rows_of(analysis: Analysis, root: Path | None = None) -> tuple[tuple[MatmulRow, tuple[Matmuls, ...]], ...]:
    """The same of what a program multiplies."""
    place_of = _places(analysis, root)
    groups = grouped(lambda each: (each.dtype, place_of(each.source)), analysis.matmuls)
    rows = ((_matmul_row(dtype, group, place), tuple(group)) for (dtype, place), group in groups.items())
    return tuple(sorted(rows, key=lambda pair: row_order(pair[0])))


def _matmul_row(dtype: str, group: Sequence[Matmuls], place: Place) -> MatmulRow:
    bound = reduce(lambda bound, each: bound + each.bound, group, Bound.EXACT)
    return MatmulRow(dtype=dtype, flops=known_sum(each.flops for each in group), bound=bound, place=place)


def _places(analysis: Analysis, root: Path | None) -> Callable[[Sequence[SourceFrame]], Place]:
    """Where a stack is written; the text of lines only of the project's own files, of programs that were traced."""
    known: dict[tuple[str, int, str | None], Place] = {}
    reads = root is not None and "jax" in analysis.versions

    def place_of(source: Sequence[SourceFrame]) -> Place:
        frame = users_frame(source)
        if frame is None:
            return NOWHERE
        key = (frame.file, frame.line, frame.function)
        if key not in known:
            known[key] = _place(frame, root, reads=reads)
        return known[key]

    return place_of


def _place(frame: SourceFrame, root: Path | None, *, reads: bool) -> Place:
    path = path_of(frame)
    is_own = root is not None and path.is_relative_to(root)
    if root is not None and is_own:
        shown: PurePath = path.relative_to(root)
    else:
        shown = PurePath(*path.parts[1 if path.anchor else 0 :][-2:])
    return Place(
        file=seen(shown.as_posix().lstrip("/")),
        function=seen(" ".join((frame.function or "").split())) or None,
        text=_text_of(frame) if reads and is_own else None,
    )


def _text_of(frame: SourceFrame) -> str | None:
    linecache.checkcache(frame.file)
    text = seen(" ".join(linecache.getline(frame.file, frame.line).split()))
    return (text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1].rstrip()}…") or None


def seen(text: str) -> str:
    """The text with a mark in place of what no line of a file holds, and of what nobody sees in one."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _dtype_of(moved: Collective) -> str | None:
    """The type that moves; of several those of which there is more than a little, as of a scalar beside gradients."""
    amounts: dict[str, int] = {}
    for shape in moved.operand_shapes:
        count = 1 if shape.dimensions is None else prod(shape.dimensions)
        amounts[shape.dtype] = amounts.get(shape.dtype, 0) + count
    least = _HARDLY_ANY * sum(amounts.values())
    return "+".join(sorted(dtype for dtype, amount in amounts.items() if amount >= least)) or None


def _reduction_of(moved: Collective) -> str | None:
    return (moved.reduction or MIXED) if moved.kind in SUMS else None


def _row(group: list[Collective], place: Place) -> BaselineRow:
    first = group[0]
    return BaselineRow(
        kind=first.kind,
        axes=first.axes,
        link=first.link,
        dtype=_dtype_of(first),
        reduction=_reduction_of(first),
        written=first.origin is Origin.AUTHORED,
        executions=sum(moved.executions for moved in group),
        arrays=sum(moved.executions * max(len(moved.operand_shapes), 1) for moved in group),
        payload_bytes=known_sum(moved.payload_bytes_per_step for moved in group),
        wire_bytes=known_sum(moved.wire_bytes_per_step for moved in group),
        bound=reduce(lambda bound, moved: bound + bytes_bound(moved), group, Bound.EXACT),
        place=place,
    )


def row_order(row: BaselineRow | MatmulRow) -> tuple[object, ...]:
    """By which the rows of a file are in order, wherever their lines are."""
    place = (row.place.file or "", row.place.function or "", row.place.text or "", row.place.line or 0)
    if isinstance(row, MatmulRow):
        return (*place, row.dtype)
    axes = ("?",) if row.axes is None else row.axes
    return str(row.kind), axes, str(row.link), *place, row.dtype or "", row.reduction or "", row.written


def as_collectives(*sides: Sequence[BaselineRow], sizes: Mapping[str, int] | None = None) -> tuple[Collective, ...]:
    """Rows as collectives that run once per step, to be matched: each text of a line is a column of line 0 there.

    Args:
        sides: Rows of one program or of two.
        sizes: Of the mesh axes, by which it is known how many devices take part.
    """
    numbers: dict[str, int] = {}
    known = [row for rows in sides for row in rows]
    if any(row.dtype is None for row in known):
        known = [replace(row, dtype=None) for row in known]
    if not all(map(reduction_is_known, known)):
        known = [replace(row, reduction=None) for row in known]
    return tuple(_as_collective(row, numbers, sizes or {}) for row in known)


def reduction_is_known(row: BaselineRow) -> bool:
    """Whether it is known of a row how it combines elements, if it does: older files do not say."""
    return row.reduction is not None or row.kind not in SUMS


def _as_collective(row: BaselineRow, numbers: dict[str, int], sizes: Mapping[str, int]) -> Collective:
    place = row.place
    column = None if place.text is None else numbers.setdefault(place.text, len(numbers) + 1)
    frame = None
    if place.file is not None:
        frame = SourceFrame(file=place.file, line=place.line or 0, function=place.function, column=column)
    is_group = row.kind is not Kind.COLLECTIVE_PERMUTE and row.axes and set(row.axes) <= sizes.keys()
    return document(
        Collective,
        row,
        name="",
        computation="",
        line=0,
        groups=(),
        group_size=prod(sizes[axis] for axis in row.axes or ()) if is_group else None,
        operand_shapes=shapes_of(*(f"{dtype}[]" for dtype in (row.dtype or "").split("+") if dtype)),
        result_shapes=(),
        executions=1,
        executions_bound=row.bound,
        source=() if frame is None else (frame,),
    )


def section_for(baselines: Sequence[Baseline], now: Baseline) -> Baseline:
    """The section of a file that a program is held against: its own compiler's, else the first one."""
    return next((each for each in baselines if each.compiler == now.compiler), baselines[0])
