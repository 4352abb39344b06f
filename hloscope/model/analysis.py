"""The analysis of one compiled program; JSON reports are this document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING

from hloscope.base.calls import front_door
from hloscope.base.documents import SCHEMA, Schema, read_document
from hloscope.base.errors import Helpful
from hloscope.base.presenter import ask
from hloscope.base.results import Brief, Shown, fix_tables, shorten_to_line
from hloscope.base.units import count_array_bytes, format_bytes, pluralize, sum_known
from hloscope.model.capture import Capture, Evident, Mesh
from hloscope.model.collectives import ArrayShape, Collectives
from hloscope.model.decision import Decision
from hloscope.model.finding import Finding, severe
from hloscope.model.reason import Rematerialization, Stack
from hloscope.model.trial import StepTime
from hloscope.model.vocabulary import Bound, CompileStage

if TYPE_CHECKING:
    from pandas import DataFrame

    from hloscope.model.picture import Picture
    from hloscope.model.program_graph import ProgramGraph
    from hloscope.model.timeline import Timeline
    from hloscope.plain_types import AnalysisDict


# ---- TPU kernels in the compiled program, the user's or XLA's


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Kernel(Brief):
    """A Pallas or Mosaic kernel, or several calls of it that differ only in their place in the text.

    Attributes:
        name: The author's name for it, under which its cost can be given.
        by_compiler: Whether XLA generated it, as it does for some attention; the name and the estimate are then XLA's.
        line: 1-based line of the first call in the HLO text.
        calls: Number of places that call it.
        executions: Executions per step over all call sites.
        executions_bound: Whether `executions` is exact or a bound.
        operand_shapes: Operand shapes on one device.
        result_shapes: Result shapes on one device.
        flops: FLOPs per execution from the author's `cost_estimate`; None without one.
        accessed_bytes: Bytes accessed per execution from the same estimate; None without one.
        remote_dma: Whether it communicates with other chips by itself, which no total includes; None if unknown.
        fingerprint: Digest of the kernel, independent of source locations; None for one that does not communicate by
            itself.
        op_name: XLA's `op_name`; None if unknown.
        source: Source frames of the call, innermost first; empty if unknown.
    """

    name: str
    by_compiler: bool
    line: int
    calls: int
    executions: int
    executions_bound: Bound
    operand_shapes: tuple[ArrayShape, ...]
    result_shapes: tuple[ArrayShape, ...]
    flops: int | None
    accessed_bytes: int | None
    remote_dma: bool | None
    fingerprint: str | None = None
    op_name: str | None
    source: Stack


# ---- matmuls and convolutions by line of user code


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Matmuls(Brief):
    """The matmuls and convolutions of one type on one line of user code, per device and per step.

    What multiplies an unknown number of times, such as a factorization, has entries of its own.

    Attributes:
        dtype: XLA's short name of the operand type; the wider one of two.
        executions: Number of executions as compiled, including what the compiler split, merged or recomputed.
        flops: FLOPs, counting a multiply-add as two; None if the text does not determine them.
        bound: Whether `executions` and `flops` are exact or bounds.
        recomputed_flops: The part of `flops` that XLA computes again to save memory, beyond `jax.checkpoint`.
        source: Source frames of the first of them, innermost first; empty if unknown.
    """

    dtype: str
    executions: int
    flops: int | None
    bound: Bound = Bound.EXACT
    recomputed_flops: int = 0
    source: Stack = ()


# ---- work that several devices do alike


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RepeatedLine(Brief):
    """A line of user code whose matmuls and convolutions are done several times.

    Attributes:
        ratio: As `RepeatedWork.ratio`, of this line.
        axes: The mesh axes that shard nothing there, so that all their devices do the same; empty if it is not known
            that these are the reason.
        devices: The number of devices along these axes together.
        module: The innermost module or named scope around all of them, such as `decoder.mlp`; None without one.
        source: Source frames, innermost first.
    """

    ratio: float
    axes: tuple[str, ...]
    devices: int
    module: str | None
    source: Stack


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RepeatedWork(Brief):
    """The FLOPs of matmuls, convolutions and kernels that devices do beyond those of the traced program.

    The traced program is the one that JAX lowers, before it is partitioned. Inside `shard_map`, where the user decides
    what each device does, its FLOPs are those of all devices of the manual axes: nothing repeated there by intention
    counts as repeated. Loops count with their trips, and what `jax.checkpoint` repeats belongs to the traced program.

    Attributes:
        ratio: FLOPs of the compiled program on all devices, divided by those of the traced program with padding; 1.0
            if nothing is repeated, less if the compiler merges or simplifies some; None if less than half of the known
            FLOPs of the compiled program can be compared.
        bound: Whether `ratio` is exact. With kernels of unknown cost, branches or unread loops it is `at least` if it
            is 1.0 or less, and otherwise `unknown`; `at most` if shards may be uneven where shardings are unknown.
        padding: The factor by which uneven shards increase the FLOPs of the traced program: 1.2 for 10 rows on 4
            devices, which hold 3 each.
        recomputed: The share of `compiled_flops` that XLA computes again to save memory, beyond `jax.checkpoint`.
        traced_flops: FLOPs of the traced program per step, without padding.
        compiled_flops: FLOPs of the compiled program per step, on all devices together.
        lines: The lines with the most repeated FLOPs, at most three; only those that do 5% more than necessary.
    """

    ratio: float | None
    bound: Bound
    padding: float
    recomputed: float
    traced_flops: float
    compiled_flops: float
    lines: tuple[RepeatedLine, ...] = ()

    @property
    def is_notable(self) -> bool:
        """True if so much is repeated that a report says so."""
        return self.ratio is not None and self.ratio >= NOTABLE_RATIO


NOTABLE_RATIO = 1.05
"""The least ratio that a report mentions: the compiler's rewriting of a program accounts for a few percent."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Analysis(Shown, Evident):
    """Everything hloscope knows about one compiled program.

    Example:
        >>> found["all-gather@fsdp"]                      # as contracts write it
        >>> found.collectives[0]                          # number 1 in the report: the most bytes
        >>> found.collectives.where(kind="all-*", source="moe.py")
        >>> print(found)                                  # the command line's report

    Attributes:
        schema: Schema version of the document.
        target: What the user named: `model.py:step`, `step.hlo`, `-`.
        module: The HLO module's name.
        slice: The slice; None for HLO text whose slice is unknown.
        mesh: The user's mesh; None if there is none.
        num_partitions: Number of SPMD partitions according to the HLO text (per slice, for multi-slice text).
        stage: `compiled`; `scheduled` if the compiler was stopped before it made machine code, so that it is open
            whether the program compiles and fits; `text` for HLO text, which hloscope did not compile; None in
            documents of versions that do not record it.
        digest: A digest of the scheduled program and of the settings that its machine code is made with: two programs
            with the same one are compiled to the same code. None if hloscope's compiler process did not compile it, and
            for simulated CPU devices.
        collectives: Sorted by wire bytes per step, largest first; those with unknown bytes precede all others.
        totals: Sums per step on one device.
        decisions: Which dimension each axis was given to, and what follows from it: those of the most exposed time
            first; empty for HLO text alone.
        arguments: The program's arguments, in order.
        outputs: The program's outputs, in order.
        intermediates: The largest intermediate arrays, largest first.
        matmuls: Matmuls and convolutions by source line, most FLOPs first.
        kernels: Pallas and other TPU kernels in the program, in text order.
        repeated: The work that is done by several devices alike; None if the traced program is unknown, as for HLO text
            alone, and for programs that are lowered without Shardy.
        memory: Memory use in bytes, per device.
        memory_peak: Contents of HBM at peak usage; None if the compiler does not report it.
        time: Breakdown of the predicted step time; None if not priced.
        rematerializations: Arrays that the partitioner replicates because it has no other way to reshard them.
        findings: Findings of the rules.
        unmodelled: Parts of the HLO text that were not understood.
        notes: Choices made on the user's behalf and compiler diagnostics, one sentence each.
        versions: Versions of `hloscope`, and of `jax`, `jaxlib` and `libtpu` if they compiled the program.
    """

    _subject = "analysis"

    schema: Schema = SCHEMA
    target: str
    module: str
    slice: SliceFact | None
    mesh: Mesh | None
    num_partitions: int
    stage: CompileStage | None = None
    digest: str | None = None
    collectives: Collectives
    totals: Totals
    arguments: tuple[ArrayFact, ...]
    outputs: tuple[ArrayFact, ...]
    intermediates: tuple[IntermediateFact, ...] = ()
    matmuls: tuple[Matmuls, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    repeated: RepeatedWork | None = None
    memory: Memory
    memory_peak: MemoryPeak | None = None
    time: StepTime | None = None
    decisions: tuple[Decision, ...] = ()
    rematerializations: tuple[Rematerialization, ...] = ()
    findings: tuple[Finding, ...] = ()
    unmodelled: tuple[Unmodelled, ...] = ()
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        fix_tables(self, "versions")
        axes = None if self.mesh is None else self.mesh.axis_names
        if not isinstance(self.collectives, Collectives) or self.collectives.mesh_axes != axes:
            object.__setattr__(self, "collectives", Collectives(self.collectives, mesh_axes=axes))

    def find_decisions(self, collective: str) -> Iterator[Decision]:
        """The decisions that a collective follows from, costliest first.

        Args:
            collective: Its name.
        """
        return (decision for decision in self.decisions if collective in decision.collectives)

    @front_door
    def __getitem__(self, selector: str) -> Collectives:
        """The collectives that a contract selector matches: `all-gather@fsdp`, `all-*@(X,Y) in "moe.py" over dcn`.

        A collective that might match, such as one whose axes are unknown, is included.

        Raises:
            NotationError: The selector cannot be parsed, or names an unknown kind or axis.
        """
        return self.collectives.selected(selector)

    def __repr__(self) -> str:
        place = f" on {self.slice.name}" if self.slice is not None else ""
        moves = f"{self.totals.bound.marked(format_bytes(self.totals.wire_bytes))} on the wire per step"
        return shorten_to_line(
            f"<Analysis of {self.target}{place}: {pluralize(self.totals.collectives, 'collective')}, {moves}>"
        )

    if TYPE_CHECKING:

        def to_dict(self) -> AnalysisDict:
            """The result as plain data."""

    @classmethod
    @front_door
    def from_dict(cls, document: Mapping[str, object]) -> Analysis:
        """Creates an analysis from the plain data that `to_dict` returned.

        Raises:
            HloscopeError: The data is not such a document, or has another schema version.
        """
        return read_document(cls, document, name="the document", key="collectives")

    @front_door
    def fails(self, fail_on: str = "warning") -> bool:
        """Returns whether any unaccepted finding is at least as severe as `fail_on`.

        Example:
            >>> assert not found.fails("warning"), found

        Args:
            fail_on: Minimum severity: `note`, `warning` or `error`.

        Raises:
            NotationError: `fail_on` is not a severity.
        """
        return bool(severe(self.findings, fail_on))

    @front_door
    def timeline(self) -> Timeline:
        """Returns the predicted timeline of one step: what runs when, on which unit, and what it waits for.

        Raises:
            HloscopeError: The analysis was read from a document or made in another process, or has no price.
        """
        found: Timeline = ask("timeline", self)
        return found

    @front_door
    def graph(
        self, *, computation: str | None = None, around: str | None = None, hops: int | None = None
    ) -> ProgramGraph:
        """Returns the compiled program, or a part of it, as a dependency graph with its critical path.

        Example:
            >>> found.graph(around="all-gather.8", hops=2).to_networkx()

        Args:
            computation: An HLO computation; by default all that run in a step, without the insides of fusions.
            around: An instruction's name; only its neighborhood is included.
            hops: Size of that neighborhood, in edges; 3 by default.

        Raises:
            HloscopeError: The analysis was read from a document or made in another process, or the computation or
                instruction does not exist.
        """
        found: ProgramGraph = ask("graph", self, computation=computation, around=around, hops=hops)
        return found

    @front_door
    def mesh_picture(self) -> Picture:
        """Draws the mesh on its slice: chips, hosts, links with their traffic per step, and what each axis connects.

        Raises:
            HloscopeError: The program has no TPU slice.
        """
        picture: Picture = ask("mesh picture", self)
        return picture

    @front_door
    def array(self, name: str) -> Picture:
        """Draws how an argument, an output or a large intermediate is sharded, and which devices hold each shard.

        Example:
            >>> found.array("params['w']")

        Args:
            name: The array's name in the report.

        Raises:
            HloscopeError: No array has this name.
        """
        picture: Picture = ask("array picture", self, name)
        return picture

    def to_dataframe(self) -> DataFrame:
        """Returns a pandas DataFrame with one row per collective; the same as `collectives.to_dataframe()`."""
        return self.collectives.to_dataframe()


# Source of the form of names: JAX's `jax.tree_util.keystr`.
_STEP = re.compile(r"""\[(?:'([^']*)'|"([^"]*)"|<flat index (\d+)>|(\d+))\]|\.(\w+)|([^.\[\]]+)""")
_HOLDER = re.compile(r"\.(?:raw_)?value$|\.get_value\(\)$")


def parse_argument_path(name: str) -> tuple[str, ...]:
    """Parses `params['layers'][0]['mlp'].value` into `params`, `layers`, `0`, `mlp`, without NNX's array holders."""
    held = _HOLDER.sub("", name)
    return tuple(next(filter(None, groups), "") for groups in _STEP.findall(held))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ArrayFact(Helpful):
    """One argument or output array of the program.

    Attributes:
        name: Name in the user's program: a pytree path such as `params['w']`, or `result[0]`.
        dtype: XLA's short type name, such as `bf16`.
        global_shape: Global shape; None if the text does not state it.
        local_shape: Shape on one device.
        sharding: Sharding over the user's mesh axes, such as `P('X', None)`; None if unknown.
        chosen_by: `user` if the program requests the sharding, `compiler` if it leaves it open, None if unknown.
        bytes_per_device: Logical bytes on one device; None if the type is unknown.
        donated: Whether its buffer is donated (arguments) or reuses a donated buffer (outputs).
        used: False for an unused argument, which JAX drops.
        reused: Whether an output reuses the memory of this donated argument; None if unknown or not a donated argument.
        wrong: Why an output is not what the program requests and computes, by the compiled text; None if it may be.
    """

    name: str
    dtype: str
    global_shape: tuple[int, ...] | None
    local_shape: tuple[int, ...]
    sharding: str | None
    chosen_by: str | None
    bytes_per_device: int | None
    donated: bool = False
    used: bool = True
    reused: bool | None = None
    wrong: str | None = None

    def __repr__(self) -> str:
        whole = "?" if self.global_shape is None else ",".join(map(str, self.global_shape))
        local = f"{self.dtype}[{','.join(map(str, self.local_shape))}]"
        spec = "unknown sharding" if self.sharding is None else self.sharding
        more = ", donated" * self.donated + ", unused" * (not self.used)
        size = format_bytes(self.bytes_per_device)
        return f"<{self.name}: {self.dtype}[{whole}] {spec}, {local} of {size} on each device{more}>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IntermediateFact(Brief):
    """One large intermediate array of the program: neither an argument nor an output.

    Attributes:
        name: The HLO instruction that produces it, without `%`; with `[1]` if it is an element of a tuple result.
        computation: The HLO computation that contains the instruction: ENTRY or the body of a loop.
        line: 1-based line in the HLO text.
        dtype: XLA's short type name.
        global_shape: Global shape; None if unknown.
        local_shape: Shape on one device.
        bytes_per_device: Logical bytes on one device.
        padded_bytes_per_device: Bytes in memory on one device, with tile padding; None if the text has no layout.
        memory_space: XLA's number of the memory space: 0 for the device's main memory; on TPU, 1 for the on-chip vector
            memory and 5 for host memory.
        loops: Names of the enclosing `while` instructions, outermost first.
        op_name: XLA's `op_name`, its own or that of the instruction `source_of`.
        source: Source frames, innermost first; empty if unknown.
        source_of: The instruction whose source frames these are; None if they are its own.
        sharding: Sharding from Shardy's propagation, such as `P('X', None)`; None if unknown.
    """

    name: str
    computation: str
    line: int
    dtype: str
    global_shape: tuple[int, ...] | None
    local_shape: tuple[int, ...]
    bytes_per_device: int
    padded_bytes_per_device: int | None
    memory_space: int
    loops: tuple[str, ...] = ()
    op_name: str | None = None
    source: Stack = ()
    source_of: str | None = None
    sharding: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Memory(Brief):
    """Bytes on one device, from the compiler's buffer assignment; None if unknown.

    Attributes:
        argument_bytes: Live arguments, with tile padding.
        output_bytes: Outputs, with tile padding.
        temp_bytes: Temporaries in HBM, including fragmentation, from the compiler's buffer assignment. A
            `jax.stages.Compiled` has none: then it is `temp_size_in_bytes` of `memory_analysis()`, with which the peak
            can be a fifth too high or too low.
        alias_bytes: Outputs aliased with donated arguments, counted in both of the above.
        generated_code_bytes: The program itself; None before it is generated, at the stage `scheduled`.
        most_code_bytes: An upper estimate of it at that stage, with large constants; None at others.
        data_bytes: Peak usage without code: arguments + outputs - aliased + temporaries.
        peak_bytes: Peak usage: the same, and the code.
        hbm_bytes: HBM capacity of one device.
        fits: Whether the program fits in memory according to the compiler; None if no compiler ran, or not to its end.
    """

    argument_bytes: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    generated_code_bytes: int | None = None
    most_code_bytes: int | None = None
    data_bytes: int | None = None
    peak_bytes: int | None = None
    hbm_bytes: int | None = None
    fits: bool | None = None


_CODE_BYTES_PER_CHAR = 1.5 * 431
"""One and a half times the most bytes of code for a character of text.

Source: 1,981 compiled texts of 0.7 to 765 kB, none of them with large constants. A program across slices has 431; all
others have at most 154, and 12 in the median. That no longer text has more is an assumption.
"""


_ELIDED = re.compile(r" = (\w+)\[([\d,]*)\]\S* constant\(\{\.\.\.\}\)")


def count_constant_bytes(text: str) -> int | None:
    """Bytes of the constants whose elements HLO text leaves out, which the compiler counts as code; None if unknown."""
    found = _ELIDED.findall(text)
    return sum_known(count_array_bytes(kind, prod(map(int, filter(None, sizes.split(","))))) for kind, sizes in found)


def summarize_memory(program: Capture) -> Memory:
    """The memory use of a program on one device, from the compiler's figures.

    Temporaries come from the buffer assignment where the compiler wrote it down, because that is what libtpu compares
    with the chip's HBM. `temp_size_in_bytes` of `CompiledMemoryStats` is something else: for the training step of
    `fixtures/programs/decoder_step.py` on v4:8x8x8 it is 34.4 GB, which would not fit, although 28.2 GB are assigned
    and libtpu 0.0.42.1 compiles it; for a small program it can be 0 although megabytes are assigned.
    """
    figures = program.compiled.memory_bytes
    if program.compiled.hbm_peak is not None:
        figures = {**figures, "temp_size_in_bytes": program.compiled.hbm_peak.heap_bytes}
    names = ("argument", "output", "temp", "alias", "generated_code")
    parts: dict[str, int | None] = {f"{name}_bytes": figures.get(f"{name}_size_in_bytes") for name in names}
    chip = None if program.slice is None else program.slice.chip
    signed = [-size if size and name == "alias_bytes" else size for name, size in parts.items()]
    data_bytes, stage = sum_known(signed[:-1]), program.compiled.stage
    most_code_bytes = None
    if stage is CompileStage.SCHEDULED:
        text = program.compiled.text
        most_code_bytes = sum_known((count_constant_bytes(text), round(_CODE_BYTES_PER_CHAR * len(text))))
    return Memory(
        **parts,
        most_code_bytes=most_code_bytes,
        data_bytes=data_bytes,
        peak_bytes=sum_known((data_bytes, parts["generated_code_bytes"])),
        hbm_bytes=chip.hbm_bytes_per_device if chip else None,
        fits=program.compiled.too_large is None if chip is not None and stage is CompileStage.COMPILED else None,
    )


class BufferRole(StrEnum):
    """The role of a buffer in HBM."""

    ARGUMENT = "argument"
    OUTPUT = "output"
    """It has memory of its own, and not a donated argument's."""
    SAVED = "saved"
    """The forward pass made it, and the backward pass runs or reads it later."""
    GATHERED = "gathered"
    """An all-gather made it."""
    COPY = "copy"
    """It holds what another buffer holds, in another place or layout."""
    TEMPORARY = "temporary"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PeakBuffer(Brief):
    """One buffer in the HBM of one device, or several that differ only in their layer.

    Attributes:
        role: The role of the buffer.
        bytes: Bytes of one such buffer, with tile padding.
        count: Number of such buffers.
        name: For an argument its name, with `*` for layer numbers that differ; otherwise the HLO instruction that
            produces the first such buffer.
        shape: Shape on one device; None for a buffer that does not hold a single array.
        op_name: XLA's `op_name` of the producer; None if unknown, and for arguments.
        source: Source frames of the producer, innermost first; empty if unknown, and for arguments.
        donation_frees: Whether donating this argument would free the memory of an output of the same size; False for
            all other buffers.
    """

    role: BufferRole
    bytes: int
    count: int
    name: str
    shape: ArrayShape | None
    op_name: str | None = None
    source: Stack = ()
    donation_frees: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemoryPeak(Brief):
    """Contents of one device's HBM at peak usage, from the compiler's buffer assignment.

    The program's code is not included. If the program does not fit, this is the peak without a memory limit.

    Attributes:
        at: The HLO instruction that runs at the peak.
        op_name: Its `op_name`; None if unknown.
        source: Its source frames, innermost first; empty if unknown.
        live_bytes: Bytes of all live buffers.
        fragmentation_bytes: Bytes reserved for temporaries but unused at the peak.
        buffers: The live buffers, most bytes first.
        other_bytes: Bytes of the remaining buffers, which are too small to list.
    """

    at: str
    op_name: str | None
    source: Stack
    live_bytes: int
    fragmentation_bytes: int
    buffers: tuple[PeakBuffer, ...]
    other_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFact:
    """The slice that the program was compiled for or is priced on.

    Attributes:
        name: `v5e:2x4`, `2*v5e:2x4`, `cpu:8` or `attached`.
        chip: Chip generation, such as `v5e`; `cpu` for simulated host devices.
        chips: Number of chips in all slices.
        devices: Number of JAX devices in all slices.
        slices: Number of slices connected over DCN.
        used_devices: Number of devices that the program uses; fewer than `devices` if compiled on a subset.
        chosen_by: Where the slice comes from: `user` or `default`; for HLO text also `dump` (the dump that contains
            it), `compiled` (JAX's compiled program), `profile`, and `guess` (from the text itself).
    """

    name: str
    chip: str
    chips: int
    devices: int
    slices: int
    used_devices: int
    chosen_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmodelled:
    """A part of the text that was not understood, so that totals may be incomplete.

    Attributes:
        what: What was not understood, one sentence: `trip count of %while.3 cannot be read`.
        effect: Effect on the totals: `executions inside it are a lower bound`.
        computation: The HLO computation.
        instruction: The HLO instruction.
        line: 1-based line in the HLO text.
    """

    what: str
    effect: str
    computation: str | None = None
    instruction: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Total(Helpful):
    """A sum over collectives, per device and per step.

    Attributes:
        wire_bytes: Sum of wire bytes x executions, over the collectives whose bytes are known.
        payload_bytes: Sum of payload bytes x executions, over the collectives whose bytes are known.
        collectives: Number of collectives, counted as places in the program that start one.
        executions: Executions per step.
        bound: Whether the sums are exact or bounds.
    """

    wire_bytes: int
    payload_bytes: int
    collectives: int
    executions: int
    bound: Bound

    def __repr__(self) -> str:
        wire, payload = (self.bound.marked(format_bytes(sum_)) for sum_ in (self.wire_bytes, self.payload_bytes))
        times = pluralize(self.executions, "transfer")
        return (
            f"<{pluralize(self.collectives, 'collective')}, {times}: {wire} on the wire, {payload} of payload per step>"
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Totals(Total):
    """Sums over all collectives, per device and per step, in total and by group.

    Attributes:
        by_axis: Sums by axis names joined by `,`; the key is `?` if they are unknown and empty if no axis is crossed.
        by_kind: Sums by kind of collective.
        by_link: Sums by network; a collective that crosses both is counted by its parts, each as its own transfer.
    """

    by_axis: dict[str, Total] = field(hash=False)
    by_kind: dict[str, Total] = field(hash=False)
    by_link: dict[str, Total] = field(hash=False)

    def __post_init__(self) -> None:
        fix_tables(self, "by_axis", "by_kind", "by_link")
