"""The result of one compile, as plain data: the layers above this package never see a JAX object."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hloscope.base.errors import HloscopeError
from hloscope.model.vocabulary import CompileStage
from hloscope.tpu.slices import Slice

if TYPE_CHECKING:
    from hloscope.hlo import HloModule
    from hloscope.model.trial import Trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The user's logical mesh.

    Attributes:
        axis_names: Axis names, major to minor.
        axis_sizes: Number of devices along each axis.
        axis_types: `auto`, `explicit` or `manual` for each axis; None if unknown (HLO text).
        partition_ids: Partition id at each mesh position, in row-major order; None means 0, 1, 2, …
        made_up: Whether the names are generated (`axis_0` and so on) because the HLO text does not name its axes.
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[str, ...] | None = None
    partition_ids: tuple[int, ...] | None = None
    made_up: bool = False

    def __post_init__(self) -> None:
        if len(self.axis_names) != len(self.axis_sizes):
            raise ValueError("a mesh needs one size for each axis name")
        if len(set(self.axis_names)) != len(self.axis_names):
            raise ValueError(f"mesh axis names repeat: {self.axis_names}")

    @property
    def device_count(self) -> int:
        """Devices in the mesh."""
        return prod(self.axis_sizes)

    @property
    def ids(self) -> Sequence[int]:
        """The partition id at each mesh position in row-major order."""
        return range(self.device_count) if self.partition_ids is None else self.partition_ids


def format_spec(dimensions: Iterable[Sequence[str]], **reductions: Sequence[str]) -> str:
    """A sharding as the user would write it: `P('X', None, ('Y', 'Z'), unreduced={'V'})`.

    Args:
        dimensions: The mesh axes of each dimension, major first; empty where it is not sharded.
        reductions: `unreduced` and `reduced` axes, in order; left out if empty.
    """
    named = [tuple(map(repr, axes)) for axes in dimensions]
    entries = [f"({', '.join(names)})" if len(names) > 1 else "".join(names) or "None" for names in named]
    entries += [f"{name}={{{', '.join(map(repr, axes))}}}" for name, axes in reductions.items() if axes]
    return f"P({', '.join(entries)})"


class Spec(NamedTuple):
    """A sharding as `format_spec` writes it.

    Attributes:
        dimensions: The mesh axes of each dimension, major first; dimensions behind the last are not sharded.
        unreduced: Axes whose devices hold addends.
        reduced: Axes over which the cotangent is to be reduced.
    """

    dimensions: tuple[tuple[str, ...], ...]
    unreduced: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()


def parse_spec(text: str) -> Spec:
    """Parses the output of `format_spec`.

    Raises:
        ValueError: The text is not such a spec.
    """
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError(text)
        reductions = {word.arg or "": tuple(sorted(_parse_spec_entry(word.value))) for word in call.keywords}
        return Spec(tuple(map(_parse_spec_entry, call.args)), **reductions)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(text) from error


def _parse_spec_entry(entry: ast.expr) -> tuple[str, ...]:
    """The mesh axes in one entry of a spec."""
    read = ast.literal_eval(entry)
    axes = () if read is None else (read,) if isinstance(read, str) else tuple(read)
    if not all(isinstance(axis, str) for axis in axes):
        raise ValueError(ast.unparse(entry))
    return axes


def render_spec(sharding: ValueSharding | None, unreduced: Axes = ()) -> str | None:
    """Renders a sharding as the user would write it; None if unknown."""
    return None if sharding is None else format_spec(sharding, unreduced=unreduced)


def axes_in(sharding: Iterable[Iterable[str]] | None) -> frozenset[str]:
    """All axes of a sharding."""
    return frozenset(axis for axes in sharding or () for axis in axes)


def find_dropped_axes(had: Sequence[str], gets: Sequence[str]) -> tuple[str, ...]:
    """The axes after the prefix that two shardings of a dimension share: only these are given up."""
    kept = 0
    while kept < min(len(had), len(gets)) and had[kept] == gets[kept]:
        kept += 1
    return tuple(had[kept:])


def whole_axis(axis: str) -> str:
    """The mesh axis of an axis or part: `X` of `X:(1)2`."""
    return axis.partition(":")[0]


def find_whole_axes(axes: Iterable[str]) -> set[str]:
    """The mesh axes that these axes are, or are parts of."""
    return set(map(whole_axis, axes))


def find_cut_dimensions(sharding: ValueSharding | None, axes: Axes) -> tuple[int, ...]:
    """The dimensions that any of these axes shards, in part or as a whole."""
    own = find_whole_axes(axes)
    return tuple(number for number, here in enumerate(sharding or ()) if own & find_whole_axes(here))


def remove_axes(sharding: ValueSharding, axes: Axes) -> ValueSharding:
    """A sharding without some axes, as a gather over them leaves it."""
    return tuple(tuple(axis for axis in here if axis not in axes) for here in sharding)


def multiply_axis_sizes(axes: Iterable[str], mesh: Mapping[str, int]) -> int:
    """Number of devices along some axes together; `X:(1)2` counts with its own size."""
    own = ((mesh.get(axis), axis.rpartition(")")[2] if ":" in axis else 1) for axis in axes)
    return prod(int(part) if size is None else size for size, part in own)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedArray:
    """One argument or output leaf as JAX and the compiler see it.

    Attributes:
        name: Pytree path, such as `params['w']` or `result[0]`.
        dtype: XLA's short type name, or JAX's own for extended types (`key<fry>`).
        global_shape: Dimensions of the whole array.
        local_shape: Dimensions on one device; None when the sharding is not known.
        sharding: `P('X', None)` in the user's axes; None if unknown.
        asked: Whether the user asked for this sharding; False when the compiler chose it.
        itemsize_bytes: Bytes per element as JAX counts them, for types that XLA has no name for.
        donated: Whether the buffer is donated.
        used: False for an argument that the program does not read.
        letters: The letter that the user's notation gives each dimension, None for a number; None without a notation.
    """

    name: str
    dtype: str
    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...] | None
    sharding: str | None
    asked: bool
    itemsize_bytes: int
    donated: bool = False
    used: bool = True
    letters: tuple[str | None, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One compiled program: a function with the facts that JAX and the compiler report, or HLO text alone.

    Attributes:
        compiled: The compiler's output: the final scheduled module, with the compiler's own facts; for HLO text, the
            text alone.
        slice: The slice it was compiled for; None for text without a stated slice.
        slice_chosen_by: As `SliceFact.chosen_by`.
        used_devices: Devices that the program uses.
        mesh: The user's mesh; None for a program without one.
        devices_per_slice: The number of devices of each slice, if the program runs on several slices.
        arguments: Flattened arguments, in order, dropped ones included; None for HLO text.
        outputs: Flattened outputs, in order; None for HLO text.
        notes: Choices made for the user, one sentence each.
        versions: Versions of jax, jaxlib and libtpu.
        allow: The findings of rules that the target accepts.
        rule_options: Values of rule options that the target sets, by `rule.option`.
        kernel_costs: FLOPs and bytes of kernels by name, as the target states them.
        digest: As `Analysis.digest`.
    """

    compiled: CompiledProgram
    slice: Slice | None
    slice_chosen_by: str
    used_devices: int
    mesh: Mesh | None
    devices_per_slice: int | None = None
    arguments: tuple[CapturedArray, ...] | None = None
    outputs: tuple[CapturedArray, ...] | None = None
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    rule_options: Mapping[str, Any] = field(default_factory=dict)
    kernel_costs: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    digest: str | None = None

    @property
    def is_text(self) -> bool:
        """True if only the text is known."""
        return self.arguments is None


# ---- A program after Shardy's propagation, as plain data: every value with its sharding, every operation with its rule

EXPANDED_OPERATIONS = re.compile(r"\bstablehlo\.(fft|reduce_window)\b")
"""Operations that the TPU compiler expands into others before it partitions: Shardy is asked of both modules then."""

Axes = tuple[str, ...]
"""Mesh axes that cut one dimension, major first; part of an axis as `X:(1)2`."""

ValueSharding = tuple[Axes, ...]
"""The axes of every dimension of a value."""

Identity = tuple[int, ...]
"""The number of an operation, after those of the calls that lead to it."""

Identities = Mapping[str, tuple[Identity, ...]]
"""The operations that each instruction was made from, by the instruction's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePlace:
    """One frame of the user's Python stack, as MLIR locations keep it: lines count from 1, columns from 0."""

    file: str
    line: int
    column: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRule:
    """The relation of an operation's dimensions: `([i, k], [k, j])->([i, j])`.

    Attributes:
        operands: For each operand and dimension, the factors that make it, major first.
        results: The same for results.
        sizes: Size of each factor.
        reduction: Factors that the operation sums over.
        need_replication: Factors that must not be sharded.
        permutation: Factors along which neighbors are needed when they are sharded.
    """

    operands: tuple[tuple[tuple[int, ...], ...], ...]
    results: tuple[tuple[tuple[int, ...], ...], ...]
    sizes: tuple[int, ...]
    reduction: frozenset[int] = frozenset()
    need_replication: frozenset[int] = frozenset()
    permutation: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardyValue:
    """One value of the module.

    Attributes:
        index: Its position in `ShardyModule.values`.
        shape: Dimensions, of the whole array outside manual computations.
        element_type: MLIR's name, such as `bf16`.
        sharding: Axes by dimension; None if unknown.
        origins: The origin of each axis of the sharding in Shardy's words: `input: 0`, `output: 0`,
            `constraint_0`, `self`.
        owner: The operation that makes it, or that contains the block of this argument.
        number: Its index among the results or block arguments.
        is_argument: Whether it is a block argument.
        region: The owner's region, for a block argument.
        name: The user's name, for an argument of the program.
        whole_number: The number of a scalar integer constant.
        unreduced: Axes over which the devices hold parts of a sum that is not taken yet.
    """

    index: int
    shape: tuple[int, ...]
    element_type: str
    sharding: ValueSharding | None
    origins: Mapping[str, str]
    owner: int
    number: int
    is_argument: bool = False
    region: int = 0
    name: str | None = None
    whole_number: int | None = None
    unreduced: Axes = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardyOp:
    """One operation of the module.

    Attributes:
        index: Its position in `ShardyModule.ops`; operations come in text order, callers of regions before these.
        kind: MLIR's name, such as `stablehlo.dot_general` or `sdy.reshard`.
        operands: Indices of values.
        results: Indices of values.
        op_name: JAX's name, as XLA's `op_name` has it; relative to the caller in a private function.
        identity: Its number, after those of the calls that lead to it; empty without a number.
        source: The user's frames, innermost first.
        rule: Its sharding rule; None if Shardy has none.
        parent: The operation whose region contains it; None at the top.
        region: The index of that region.
        symbol: The name of a function, of the function called, or of the target of a custom call; the direction of a
            comparison, such as `LT`.
        origin_name: The name by which `ShardyValue.origins` refers to it, such as `constraint_0`.
        asked: The requested sharding of a constraint, which an explicit reshard before or after it may carry out.
        leaves_open: Whether a constraint leaves a dimension to the compiler: `asked` has what it chose there.
        axes: The axes that `sdy.all_reduce` sums over, or that a manual computation makes manual.
        groups: The replica groups, or source-target pairs, of a collective that the user wrote.
        flops: FLOPs of one execution of a matmul or convolution, for the shapes of its values; None if unknown, and for
            everything else.
    """

    index: int
    kind: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    op_name: str | None = None
    identity: Identity = ()
    source: tuple[CodePlace, ...] = ()
    rule: ShardingRule | None = None
    parent: int | None = None
    region: int = 0
    symbol: str | None = None
    origin_name: str | None = None
    asked: ValueSharding | None = None
    leaves_open: bool = False
    axes: Axes = ()
    groups: tuple[tuple[int, ...], ...] | None = None
    flops: int | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its own number, in the form used for the origins of compiled instructions; empty without a number."""
        return self.identity[-1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardyModule:
    """A module after Shardy's propagation, with explicit operations wherever data must move.

    Attributes:
        mesh: Size of each axis by name, major first; that of the largest mesh when there are several.
        ops: All operations.
        values: All values.
        main: The operation that is the program's main function; None for an empty module.
        seen_by: The module's stage: `compiler` for the one that the compiler partitioned, `jax` for the lowered one.
    """

    mesh: Mapping[str, int]
    ops: tuple[ShardyOp, ...]
    values: tuple[ShardyValue, ...]
    main: int | None
    seen_by: str = "jax"
    users: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """For each value, the operations that use it, with the operand's number."""


# ---- the data exchanged with the compiler's process: the request with a lowered program, and the compiled program

BufferValue = tuple[str, tuple[int, ...]]
"""An instruction, with the index of an element of its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBuffer:
    """One buffer in HBM.

    Attributes:
        bytes: Its size there, with tile padding.
        values: The values that it holds at the peak of HBM: instructions of the final module, each with the
            element of its result. For an argument or an output, all values that it ever holds.
        parameter: The number of its parameter; None for all other buffers.
        is_output: Whether it holds an output at the end.
        is_temporary: Whether it lies in the heap, for a part of the program only.
    """

    bytes: int
    values: tuple[BufferValue, ...]
    parameter: int | None = None
    is_output: bool = False
    is_temporary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmPeak:
    """The contents of one device's HBM at its peak.

    Attributes:
        at: The instruction that runs at the peak.
        buffers: The largest live buffers, largest first.
        other_bytes: The total size of all other buffers.
        live_bytes: The total size of all buffers.
        heap_bytes: The compiler's allocation for temporaries; its unused part at the peak is lost to fragmentation.
        temporary_bytes: The total size of the buffers in the heap.
        live_bytes_at: The total size of all buffers during each instruction, by its name.
    """

    at: str
    buffers: tuple[LiveBuffer, ...]
    other_bytes: int
    live_bytes: int
    heap_bytes: int
    temporary_bytes: int
    live_bytes_at: Mapping[str, int] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLayout:
    """The device of each partition, as far as the program decides it; the worker has the devices.

    Attributes:
        device_count: Partitions of the program.
        mesh_shape: Sizes of the mesh's axes, major first; None if the devices are taken in their own order.
        dcn_shape: The number of slices that each axis spans; None on one slice.
        simulated_ids: The position in `jax.devices()` of each partition's device, for a mesh that the program itself
            laid over a slice and for simulated CPU devices.
        positions: The mesh position of each partition; None if they agree.
    """

    device_count: int
    mesh_shape: tuple[int, ...] | None = None
    dcn_shape: tuple[int, ...] | None = None
    simulated_ids: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """One lowered program and its compile settings: everything that the compiler is given.

    Attributes:
        module: StableHLO with its source places, as MLIR bytecode.
        settings: A serialized `xla::CompileOptions`; its device assignment is replaced on a TPU slice.
        options: XLA compiler options given by the user.
        slice: A TPU slice, or simulated CPU devices.
        layout: The device of each partition.
    """

    module: bytes
    settings: bytes
    options: Mapping[str, str]
    slice: Slice
    layout: DeviceLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """The compiler's output for one program.

    Attributes:
        text: The final scheduled module; empty if the compiler did not get that far.
        memory_bytes: The compiler's figures per device, by the field names of `jax.stages.Compiled.memory_analysis`.
        parameter_shardings: A serialized `OpSharding` for each parameter; None if the compiler gives none.
        output_shardings: The same for outputs.
        diagnostics: The compiler's messages about the user's program.
        device_ids: The physical device of each partition; empty for simulated and attached devices.
        slice_of_partition: The slice of each partition; empty on one slice, and for text that does not record it.
        too_large: The compiler's reason why the program does not fit in HBM; None if it fits.
        partitioned: The module right after the partitioner; None if the compiler did not dump it.
        before_propagation: The module before Shardy's propagation, in MLIR; None once Shardy was asked about it.
        shardy: Every value's sharding and the necessary moves; None if Shardy could not be asked.
        shardy_as_written: The same for the program as JAX lowered it, if `shardy` describes the compiler's own module,
            in which some operations are expanded into others; None if `shardy` already is that, or none are expanded.
        notes: Choices made during the compile, one sentence each.
        is_whole: Whether the compiler could write all of its dumps.
        identities: The operations that each instruction of `text` was made from; None if they have no numbers.
        partitioned_identities: The same for `partitioned`.
        seconds: The duration of the compile, or its processor time if that is less, as on a busy machine;
            None if this process compiled.
        hbm_peak: The contents of HBM at its peak; None if the compiler did not dump that.
        stage: The stage of the compile at which it was read.
    """

    text: str
    memory_bytes: Mapping[str, int]
    parameter_shardings: tuple[bytes, ...] | None = None
    output_shardings: tuple[bytes, ...] | None = None
    diagnostics: tuple[str, ...] = ()
    device_ids: tuple[int, ...] = ()
    slice_of_partition: tuple[int, ...] = ()
    too_large: str | None = None
    partitioned: str | None = None
    before_propagation: str | None = None
    shardy: ShardyModule | None = None
    shardy_as_written: ShardyModule | None = None
    notes: tuple[str, ...] = ()
    is_whole: bool = True
    identities: Identities | None = None
    partitioned_identities: Identities = field(default_factory=dict)
    seconds: float | None = field(default=None, compare=False)
    hbm_peak: HbmPeak | None = None
    stage: CompileStage = CompileStage.COMPILED


# ---- the compiled program behind a result, kept with it in the process that made it but not in documents

_Result = TypeVar("_Result", bound="Evident")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A compiled program, from which more can be derived than its analysis contains.

    Attributes:
        program: The program.
        name: The target as the user named it.
        source_root: For HLO text, the folder below which source files that it names may be read; None to read none.
        trials: Known results of changes tried against collectives, by computation and name.
    """

    program: Capture
    name: str
    source_root: Path | None = None
    trials: Mapping[tuple[str, str], Trials] = field(default_factory=dict)

    def module(self) -> HloModule:
        """The parsed text; parsed on each call, because it takes many times the memory of the text."""
        from hloscope.hlo import parse_module  # reading an analysis needs no parser

        return parse_module(self.program.compiled.text, name=f"{self.name} (compiled)")


class Evident:
    """A result that keeps its evidence, unless it is copied, pickled or read from a document."""

    __slots__ = ("_evidence",)

    if TYPE_CHECKING:
        _evidence: Evidence

    @property
    def evidence(self) -> Evidence:
        """The evidence for this result.

        Raises:
            HloscopeError: The evidence is not available in this process.
        """
        found: Evidence | None = getattr(self, "_evidence", None)
        if found is None:
            raise HloscopeError(
                "the compiled program of this analysis is not available here",
                why="it was read from a document, or made in another process",
                fix="analyze the target again in this process",
            )
        return found

    def _remembered_by(self, other: _Result) -> _Result:
        """Copies the evidence of this result to another result of the same program."""
        return attach_evidence(other, self._evidence) if hasattr(self, "_evidence") else other


def find_evidence(found: Evident) -> Evidence | None:
    """Returns the evidence for a result; None if it is not available in this process."""
    return getattr(found, "_evidence", None)


def attach_evidence(result: _Result, evidence: Evidence) -> _Result:
    """Returns the result with its evidence attached."""
    object.__setattr__(result, "_evidence", evidence)
    return result
