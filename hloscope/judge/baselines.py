"""Baselines: what a program moved, multiplied and took when it was last accepted.

Made for review and for merges: one line for each kind, axes, type and line of source, which is named by its text and
not by its number; bytes in full; no sums over lines, and no HLO. The same program as two versions of the compiler make
it has two sections in one file.
"""

from __future__ import annotations

import hashlib
import linecache
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from math import prod
from operator import add
from pathlib import Path, PurePath
from typing import NamedTuple

from hloscope.analysis.provenance import find_users_frame, frame_path
from hloscope.analysis.totals import remove_guesses
from hloscope.base.documents import make_document
from hloscope.base.results import group_by
from hloscope.base.units import pluralize, sum_known
from hloscope.model import (
    Analysis,
    ArrayFact,
    Collective,
    Matmuls,
    Memory,
    SourceFrame,
    StepTime,
    bytes_bound,
    make_shapes,
)
from hloscope.model.analysis import Kernel
from hloscope.model.capture import Capture
from hloscope.model.vocabulary import REDUCING, Bound, CompileStage, Kind, Link, Origin
from hloscope.version import MODEL_VERSION

MIXED = "mixed"
"""In place of an opcode: a reduction by more than one operation."""
_LONGEST_TEXT = 80
"""Characters of a line of source that are kept."""

_HARDLY_ANY = 0.01
"""Of the elements that move: what is left out where the type of all is said."""

KERNEL = "kernel"
"""In place of a type: what kernels compute by the estimate of their author, who says nothing of types."""

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
class SourceLine:
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


NOWHERE = SourceLine()


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRow:
    """The transfers of one line of source over one set of axes, per step on one device.

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
    place: SourceLine = NOWHERE

    @property
    def reduction_is_known(self) -> bool:
        """True if it says how elements are combined, or none are; older files do not say it."""
        return self.reduction is not None or self.kind not in REDUCING

    @property
    def selector(self) -> str:
        """`all-gather@fsdp`: what moves, as contracts write it."""
        return f"{self.kind}@{'?' if self.axes is None else ','.join(self.axes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRow:
    """The matrix multiplications of one line of source, per step on one device.

    Attributes:
        dtype: XLA's short name of the type; `kernel` for kernels.
        flops: Multiply-adds, two operations each; None where they are not known.
        bound: How that relates to the truth.
        place: Where it is written.
    """

    dtype: str
    flops: int | None
    bound: Bound = Bound.EXACT
    place: SourceLine = NOWHERE


ARGUMENT, OUTPUT = "argument", "output"
ARRAY_KEYS = {ARGUMENT: "arguments", OUTPUT: "outputs"}
"""The keys by which changes of arguments and of outputs can be accepted."""

OTHERS = "others"
_MOST_LINES = 32
"""Of one kind: all types beyond that are one line."""

_ON_EACH = " on each device"
_ARRAYS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRow:
    """Arguments, or outputs, of one type.

    Attributes:
        kind: `argument` or `output`.
        type: The whole array with its sharding and its shape on one device, `bf16[512,2048] P('X', None) as
            bf16[64,2048]`; where only the latter is known `bf16[64,2048] on each device`; or `others` and a digest, for
            those of all types that have no line of their own.
        count: How many there are.
    """

    kind: str
    type: str
    count: int

    @property
    def is_whole(self) -> bool:
        """True if it names the whole array, and not only the part on one device, as some HLO text does."""
        return not self.type.endswith(_ON_EACH)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineStep:
    """The predicted time of a step.

    Attributes:
        step_us: The prediction.
        least_us: Where its range begins.
        most_us: Where it ends.
        model: The version of the cost model: of another one nothing is compared.
        bound: Whether the prediction is exact, apart from its range, or a bound; unknown where too much of it is of
            operations that are not understood.
        is_estimated: Whether it was predicted before machine code was made; never so in a file.
    """

    step_us: float
    least_us: float
    most_us: float
    model: int
    bound: Bound = Bound.EXACT
    is_estimated: bool = False

    def has_basis_of(self, other: BaselineStep) -> bool:
        """True if both were predicted in the same way, so that they can be compared."""
        return (self.model, self.is_estimated) == (other.model, other.is_estimated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The transfers, multiplications and memory of a program, as some versions of the compiler made it.

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
        digest: As `Analysis.digest`; None where it is not said.
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
    digest: str | None = None

    @property
    def is_first_version(self) -> bool:
        """True for a baseline from a file of the first version, which holds fewer figures."""
        return self.matmuls is None

    @property
    def compiler(self) -> tuple[tuple[str, str], ...]:
        """The versions that decide what is compiled, by which sections of one file are told apart."""
        return _find_compiler(self.versions)


def _find_compiler(versions: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, versions[name]) for name in _COMPILERS if name in versions)


def make_baseline(analysis: Analysis, *, root: Path | None = None, keep_estimates: bool = False) -> Baseline:
    """The baseline of a program, without what was guessed of it.

    Args:
        analysis: The program.
        root: The project's folder: files below it are named relative to it, others by their last two parts.
        keep_estimates: Whether to take the step of a program that is only scheduled, to compare it with another one.
    """
    analysis = remove_guesses(analysis, keep_estimates=keep_estimates)
    mesh, time = analysis.mesh, analysis.time
    sending = [(mark_unseen(each.name), each.fingerprint or "unknown") for each in analysis.kernels if each.remote_dma]
    return Baseline(
        target=analysis.target,
        slice=None if analysis.slice is None else analysis.slice.name,
        mesh=None if mesh is None else tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True)),
        versions=dict(analysis.versions),
        rows=tuple(row for row, _ in make_rows(analysis, root)),
        matmuls=tuple(row for row, _ in make_matmul_rows(analysis, root)),
        arrays=(*make_array_rows(ARGUMENT, analysis.arguments), *make_array_rows(OUTPUT, analysis.outputs)) or None,
        memory=replace(analysis.memory, hbm_bytes=None, fits=None),
        step=None
        if time is None
        else BaselineStep(
            step_us=round(time.step_us, 3),
            least_us=round(time.least_us, 3),
            most_us=round(time.most_us, 3),
            model=MODEL_VERSION,
            bound=_find_step_bound(time),
            is_estimated=analysis.stage is CompileStage.SCHEDULED,
        ),
        not_understood=len(analysis.unmodelled),
        kernels=tuple(sorted(sending)) or None,
        digest=analysis.digest,
    )


def names_program(section: Baseline, digest: str | None) -> bool:
    """Returns whether a program of this digest is a baseline's, whose step and code are known as they are now."""
    is_known = section.step is not None and section.step.model == MODEL_VERSION
    return None is not digest == section.digest and is_known and section.memory.generated_code_bytes is not None


def has_same_memory(one: Baseline, other: Baseline) -> bool:
    """Returns whether two baselines have the same figures of memory."""
    return all(getattr(one.memory, part) == getattr(other.memory, part) for part in MEMORY_PARTS.values())


def add_machine_code(before: Baseline, scheduled: Baseline) -> Baseline:
    """A scheduled program with the step and the size of the code of its baseline, which is the same program."""
    code_bytes = before.memory.generated_code_bytes
    peak_bytes = sum_known((scheduled.memory.data_bytes, code_bytes))
    memory = replace(scheduled.memory, generated_code_bytes=code_bytes, peak_bytes=peak_bytes)
    return replace(scheduled, memory=memory, step=before.step)


def _find_step_bound(time: StepTime) -> Bound:
    """The bound of a step, unknown where too much of it was priced without knowing what it does.

    A kernel without a cost takes at least its time, which the bound of the step says already.
    """
    kernels = {f"kernel {name}" for name in time.unpriced_kernels}
    others = tuple(each for each in time.unknown_operations if each.what not in kernels)
    is_known = not replace(time, unknown_operations=others).rests_on_unknown
    return time.bound if is_known else time.bound + Bound.UNKNOWN


def make_rows(analysis: Analysis, root: Path | None = None) -> tuple[tuple[BaselineRow, tuple[Collective, ...]], ...]:
    """The rows of a program in the order of a file, each with its collectives."""
    place_of = _make_place_finder(analysis, root)

    def key(moved: Collective) -> Hashable:
        written = moved.origin is Origin.AUTHORED
        what = moved.kind, moved.axes, moved.link, _find_dtype(moved), _find_reduction(moved)
        return what, written, place_of(moved.source)

    groups = group_by(analysis.collectives, key).values()
    rows = ((_make_row(group, place_of(group[0].source)), tuple(group)) for group in groups)
    return tuple(sorted(rows, key=lambda pair: find_row_order(pair[0])))


def make_matmul_rows(
    analysis: Analysis, root: Path | None = None
) -> tuple[tuple[MatmulRow, tuple[Matmuls | Kernel, ...]], ...]:
    """The same of what a program multiplies, by kernels too; what is unknown is told apart from what is known."""
    place_of = _make_place_finder(analysis, root)
    multiplied: tuple[Matmuls | Kernel, ...] = (*analysis.matmuls, *analysis.kernels)
    groups = group_by(
        multiplied,
        lambda each: (KERNEL if isinstance(each, Kernel) else each.dtype, place_of(each.source), each.flops is None),
    )
    rows = []
    for (dtype, place, _), group in groups.items():
        bound = reduce(add, map(_find_flops_bound, group), Bound.EXACT)
        flops = sum_known(map(_count_flops, group))
        rows.append((MatmulRow(dtype=dtype, flops=flops, bound=bound, place=place), tuple(group)))
    return tuple(sorted(rows, key=lambda pair: find_row_order(pair[0])))


def _find_flops_bound(multiplied: Matmuls | Kernel) -> Bound:
    return multiplied.executions_bound if isinstance(multiplied, Kernel) else multiplied.bound


def _count_flops(multiplied: Matmuls | Kernel) -> int | None:
    """FLOPs per step, of which a kernel says those of one execution."""
    if multiplied.flops is None or not isinstance(multiplied, Kernel):
        return multiplied.flops
    return multiplied.flops * multiplied.executions


def _make_place_finder(analysis: Analysis, root: Path | None) -> Callable[[Sequence[SourceFrame]], SourceLine]:
    """Finds the line of a stack; with its text only in the project's own files, for programs that were traced."""
    reads = root is not None and "jax" in analysis.versions

    @cache
    def place_of(frame: SourceFrame | None) -> SourceLine:
        return NOWHERE if frame is None else _find_place(frame, root, reads=reads)

    return lambda source: place_of(find_users_frame(source))


def _find_place(frame: SourceFrame, root: Path | None, *, reads: bool) -> SourceLine:
    path = frame_path(frame)
    is_own = root is not None and path.is_relative_to(root)
    if root is not None and is_own:
        shown: PurePath = path.relative_to(root)
    else:
        shown = PurePath(*path.parts[1 if path.anchor else 0 :][-2:])
    return SourceLine(
        file=mark_unseen(shown.as_posix().lstrip("/")),
        function=mark_unseen(" ".join((frame.function or "").split())) or None,
        text=_read_text(frame) if reads and is_own else None,
    )


def _read_text(frame: SourceFrame) -> str | None:
    linecache.checkcache(frame.file)
    text = mark_unseen(" ".join(linecache.getline(frame.file, frame.line).split()))
    return (text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1].rstrip()}…") or None


def mark_unseen(text: str) -> str:
    """The text with a mark in place of each character that cannot be printed."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _find_dtype(moved: Collective) -> str | None:
    """The type that moves; of several those of which there is more than a little, as of a scalar beside gradients."""
    amounts: dict[str, int] = {}
    for shape in moved.operand_shapes:
        count = 1 if shape.dimensions is None else prod(shape.dimensions)
        amounts[shape.dtype] = amounts.get(shape.dtype, 0) + count
    least = _HARDLY_ANY * sum(amounts.values())
    return "+".join(sorted(dtype for dtype, amount in amounts.items() if amount >= least)) or None


def _find_reduction(moved: Collective) -> str | None:
    return (moved.reduction or MIXED) if moved.kind in REDUCING else None


def _make_row(group: list[Collective], place: SourceLine) -> BaselineRow:
    first = group[0]
    return BaselineRow(
        kind=first.kind,
        axes=first.axes,
        link=first.link,
        dtype=_find_dtype(first),
        reduction=_find_reduction(first),
        written=first.origin is Origin.AUTHORED,
        executions=sum(moved.executions for moved in group),
        arrays=sum(moved.executions * max(len(moved.operand_shapes), 1) for moved in group),
        payload_bytes=sum_known(moved.payload_bytes_per_step for moved in group),
        wire_bytes=sum_known(moved.wire_bytes_per_step for moved in group),
        bound=reduce(add, map(bytes_bound, group), Bound.EXACT),
        place=place,
    )


def format_axes(moved: BaselineRow | Collective) -> str:
    """The axes that something moves over, as they are written after `over`."""
    return "unknown axes" if moved.axes is None else ",".join(moved.axes) or "no axis"


def add_bounds(rows: Iterable[BaselineRow | MatmulRow]) -> Bound:
    """The bound of a sum over rows: at least so much where some are unknown."""
    return reduce(add, map(_find_amount_bound, rows), Bound.EXACT)


def _find_amount_bound(row: BaselineRow | MatmulRow) -> Bound:
    amount = row.flops if isinstance(row, MatmulRow) else row.wire_bytes
    return row.bound + (Bound.AT_LEAST if amount is None else Bound.EXACT)


def find_row_order(row: BaselineRow | MatmulRow) -> tuple[object, ...]:
    """The sort key of the rows of a file, which does not depend on line numbers."""
    place = (row.place.file or "", row.place.function or "", row.place.text or "", row.place.line or 0)
    if isinstance(row, MatmulRow):
        return (*place, row.dtype, row.flops is not None)
    axes = ("?",) if row.axes is None else row.axes
    return str(row.kind), axes, str(row.link), *place, row.dtype or "", row.reduction or "", row.written


def to_collectives(
    before: Sequence[BaselineRow], after: Sequence[BaselineRow], sizes: Mapping[str, int]
) -> tuple[tuple[Collective, ...], tuple[Collective, ...]]:
    """The rows of two programs as collectives that run once per step, to be matched.

    One of unknown bytes runs as often as it moves arrays: how often says all that is known of how much it moves. What
    some of them do not record is left out of all, so that it makes no difference. Each text of a line is a column of
    line 0 there.

    Args:
        before: The rows of one program.
        after: The rows of the other.
        sizes: Of the mesh axes, by which it is known how many devices take part.
    """
    rows = (*before, *after)
    if any(row.dtype is None for row in rows):
        rows = tuple(replace(row, dtype=None) for row in rows)
    if not all(row.reduction_is_known for row in rows):
        rows = tuple(replace(row, reduction=None) for row in rows)
    if any(row.arrays is None for row in rows):
        rows = tuple(replace(row, arrays=None) for row in rows)
    numbers: dict[str, int] = {}
    found = tuple(_make_collective(row, numbers, sizes) for row in rows)
    return found[: len(before)], found[len(before) :]


def _make_collective(row: BaselineRow, numbers: dict[str, int], sizes: Mapping[str, int]) -> Collective:
    place = row.place
    column = None if place.text is None else numbers.setdefault(place.text, len(numbers) + 1)
    frame = None
    if place.file is not None:
        frame = SourceFrame(file=place.file, line=place.line or 0, function=place.function, column=column)
    is_group = row.kind is not Kind.COLLECTIVE_PERMUTE and row.axes and set(row.axes) <= sizes.keys()
    is_known = row.payload_bytes is not None and row.wire_bytes is not None
    return make_document(
        Collective,
        row,
        name="",
        computation="",
        line=0,
        groups=(),
        group_size=prod(sizes[axis] for axis in row.axes or ()) if is_group else None,
        operand_shapes=make_shapes(*(f"{dtype}[]" for dtype in (row.dtype or "").split("+") if dtype)),
        result_shapes=(),
        executions=1 if is_known else row.executions if row.arrays is None else row.arrays,
        executions_bound=row.bound,
        source=() if frame is None else (frame,),
    )


def find_section(baselines: Sequence[Baseline], now: Baseline | Analysis | Capture) -> Baseline:
    """The section of a file that a program is held against: its own compiler's, else the first one."""
    compiler = _find_compiler(now.versions)
    return next((each for each in baselines if each.compiler == compiler), baselines[0])


# ---- arguments and outputs: a line for each type is short, and merges; names are not kept, as renaming changes nothing


def array_order(row: ArrayRow) -> tuple[object, ...]:
    """The sort key of the rows of arrays in a file."""
    return row.kind, row.type.startswith(OTHERS), row.type


def make_array_rows(kind: str, arrays: Iterable[ArrayFact]) -> list[ArrayRow]:
    """The rows of the arguments or outputs of a program, in the order of a file."""
    sizes = Counter[str]()
    counts = Counter(map(_format_type, arrays := tuple(arrays)))
    for array in arrays:
        sizes[_format_type(array)] += array.bytes_per_device or 0
    by_size = sorted(counts, key=lambda each: (-sizes[each], each))
    own, others = by_size[: _MOST_LINES - 1], by_size[_MOST_LINES - 1 :]
    if len(others) == 1:
        own, others = by_size, []
    rows = [ArrayRow(kind=kind, type=each, count=counts[each]) for each in own]
    if others:
        text = "\n".join(f"{counts[each]} {each}" for each in sorted(others))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        rows.append(ArrayRow(kind=kind, type=f"{OTHERS} {digest}", count=sum(counts[each] for each in others)))
    return sorted(rows, key=array_order)


def _format_type(array: ArrayFact) -> str:
    local = f"{array.dtype}[{','.join(map(str, array.local_shape))}]"
    if array.global_shape is None:
        return f"{local}{_ON_EACH}"
    whole = f"{array.dtype}[{','.join(map(str, array.global_shape))}]"
    parts = (whole, *(array.sharding or "").split(), *(("as", local) if local != whole else ()))
    return mark_unseen(" ".join(parts))


def _drop_sharding(row: ArrayRow) -> ArrayRow:
    if not row.is_whole:
        return row
    whole, _, local = row.type.rpartition(" as ") if " as " in row.type else (row.type, "", row.type.split(" ")[0])
    return replace(row, type=OTHERS if whole.startswith(OTHERS) else f"{local}{_ON_EACH}")


def _count_types(rows: Iterable[ArrayRow]) -> Counter[str]:
    found = Counter[str]()
    for row in rows:
        found[row.type] += row.count
    return found


class _Other(NamedTuple):
    """Arrays that are of another type than before; None for no type."""

    old: str | None
    new: str | None
    number: int


def describe_changed_arrays(
    kind: str, before: Iterable[ArrayRow], after: Iterable[ArrayRow], arrays: Iterable[ArrayFact]
) -> str | None:
    """`argument x is f32[512,2048] where bf16[512,2048] was`; None where nothing has changed.

    Args:
        kind: Which of them it is about: `argument` or `output`.
        before: The rows of the baseline.
        after: The rows of the program as it is.
        arrays: The program's arrays of that kind, where they are known: their names.
    """
    sides = [[row for row in side if row.kind == kind] for side in (before, after)]
    named = [(ArrayRow(kind=kind, type=_format_type(array), count=1), array.name) for array in arrays]
    if not all(row.is_whole for side in sides for row in side):
        sides = [list(map(_drop_sharding, side)) for side in sides]
        named = [(_drop_sharding(row), name) for row, name in named]
    then, now = map(_count_types, sides)
    others = _pair_types(then - now, now - then)
    if not others:
        return None
    names: dict[str, list[str]] = {}
    for row, name in named:
        names.setdefault(row.type, []).append(name)
    words = [_describe_other(kind, other, names.get(other.new or "", [])) for other in others[:_ARRAYS_SHOWN]]
    more = f", and {pluralize(len(others) - _ARRAYS_SHOWN, 'other change')}" if len(others) > _ARRAYS_SHOWN else ""
    return f"{'; '.join(words)}{more}"


def _pair_types(gone: Counter[str], new: Counter[str]) -> list[_Other]:
    """Types that took the place of others, those most alike first; and what is only gone, or only new."""
    found = []
    pairs = sorted(((old, now) for now in new for old in gone), key=lambda pair: (-_count_alike(*pair), pair))
    for old, now in pairs:
        count = min(gone[old], new[now])
        if count:
            found.append(_Other(old, now, count))
            gone[old] -= count
            new[now] -= count
    found += [_Other(None, now, count) for now, count in sorted(new.items()) if count]
    return found + [_Other(old, None, count) for old, count in sorted(gone.items()) if count]


def _count_alike(old: str, new: str) -> int:
    return sum(one == other for one, other in zip(_split_type(old), _split_type(new), strict=True))


def _split_type(text: str) -> tuple[str, str, str]:
    """Type, dimensions, and how it is sharded."""
    array, _, sharding = text.partition(" as ")[0].partition(" ")
    dtype, _, sizes = array.partition("[")
    return dtype, sizes, sharding


def _describe_other(kind: str, other: _Other, names: Sequence[str]) -> str:
    shown = names if len(names) == other.number <= _ARRAYS_SHOWN else ()
    what = f"{kind}{'s' * (len(shown) > 1)} {', '.join(shown)}" if shown else pluralize(other.number, kind)
    verb = "is" if other.number == 1 else "are"
    old, new = ((text or "").partition(" as ")[0] for text in (other.old, other.new))
    if not old or not new:
        return f"{what} of {new or old} {verb} {'new' if new else 'gone'}"
    if _split_type(old)[2] == _split_type(new)[2]:  # then it is not the sharding
        old, new = old.partition(" ")[0], new.partition(" ")[0]
    return f"{what} {verb} {new} where {old} {'was' if other.number == 1 else 'were'}"


# ---- multiplications whose FLOPs are not known


def count_unknown(rows: Iterable[MatmulRow]) -> int:
    """The number of rows whose FLOPs are not known."""
    return sum(row.flops is None for row in rows)


def find_comparable_matmuls(then: Baseline, now: Baseline, *, older: bool) -> tuple[Baseline, Baseline]:
    """Both, so that what an older release did not record makes no difference: what kernels and factorizations compute.

    It may have been there before: it is unknown in both.

    Args:
        then: The baseline.
        now: The same of the program as it is.
        older: Whether an older release wrote the baseline.
    """
    if not older or then.matmuls is None:
        return then, now
    unrecorded = [row for row in now.matmuls or () if row not in then.matmuls and _is_unrecorded(row, then.matmuls)]
    unknown = tuple(replace(row, flops=None, bound=Bound.EXACT) for row in unrecorded)
    known = tuple(row for row in now.matmuls or () if row not in unrecorded)
    return replace(then, matmuls=(*then.matmuls, *unknown)), replace(now, matmuls=(*known, *unknown))


def _is_unrecorded(row: MatmulRow, before: Iterable[MatmulRow]) -> bool:
    is_like = any((each.dtype, each.place) == (row.dtype, row.place) for each in before)
    return (row.dtype == KERNEL or row.flops is None) and not is_like
