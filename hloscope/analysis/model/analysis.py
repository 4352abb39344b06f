"""The analysis of one compiled program, which is the document that reports in JSON hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING

from hloscope.analysis.model.collective import ArrayShape
from hloscope.analysis.model.collectives import Collectives
from hloscope.analysis.model.evidence import Evident
from hloscope.analysis.model.kernel import Kernel
from hloscope.analysis.model.matmuls import Matmuls
from hloscope.analysis.model.reason import Rematerialization, Stack
from hloscope.analysis.model.step_time import StepTime
from hloscope.analysis.vocabulary import Bound
from hloscope.documents import SCHEMA, Schema, read
from hloscope.errors import Helpful
from hloscope.findings import Finding, severe
from hloscope.program.capture import Mesh
from hloscope.python_words import front_door
from hloscope.shown import Brief, Shown, fix_tables, one_line
from hloscope.units import format_bytes, plural

if TYPE_CHECKING:
    from pandas import DataFrame

    from hloscope.analysis.model.picture import Picture
    from hloscope.analysis.model.program_graph import ProgramGraph
    from hloscope.analysis.model.timeline import Timeline
    from hloscope.plain_types import AnalysisDict


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Analysis(Shown, Evident):
    """Everything hloscope knows about one compiled program.

    Example:
        >>> found["all-gather@fsdp"]                      # as contracts write it
        >>> found.collectives[0]                          # number 1 in the report, which moves most
        >>> found.collectives.where(kind="all-*", source="moe.py")
        >>> print(found)                                  # the command line's report

    Attributes:
        schema: Version of the document's shape.
        target: What the user named: `model.py:step`, `step.hlo`, `-`.
        module: The HLO module's name.
        slice: The slice; None for HLO text of which nobody said it.
        mesh: The user's mesh; None when there is none.
        num_partitions: Partitions of the SPMD program, as the text says (of one slice, for multi-slice text).
        collectives: By wire bytes per step, largest first; unknown bytes before all others.
        totals: Sums per step on one device.
        arguments: The program's arguments, in order.
        outputs: The program's outputs, in order.
        intermediates: The largest intermediate arrays, largest first.
        matmuls: What is multiplied on each line of source, most operations first.
        kernels: Pallas kernels and others for TPUs that the program brings along, in the order of the text.
        memory: Bytes on one device.
        memory_peak: What lies in HBM when most of it is taken; None where the compiler does not say.
        time: Where the step's time goes; None when it was not priced.
        rematerializations: Arrays that the partitioner replicates because it knows no other way between two shardings.
        findings: What rules found.
        unmodelled: What was not understood.
        notes: Choices made for the user and compiler diagnostics, one sentence each.
        versions: `hloscope`, and `jax`, `jaxlib`, `libtpu` when they compiled the program.
    """

    schema: Schema = SCHEMA
    target: str
    module: str
    slice: SliceFact | None
    mesh: Mesh | None
    num_partitions: int
    collectives: Collectives
    totals: Totals
    arguments: tuple[ArrayFact, ...]
    outputs: tuple[ArrayFact, ...]
    intermediates: tuple[IntermediateFact, ...] = ()
    matmuls: tuple[Matmuls, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    memory: Memory
    memory_peak: MemoryPeak | None = None
    time: StepTime | None = None
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

    @front_door
    def __getitem__(self, selector: str) -> Collectives:
        """The collectives that a contract's selector speaks of: `all-gather@fsdp`, `all-*@(X,Y) in "moe.py" over dcn`.

        One that nobody can tell of, such as one without known axes, is among them.

        Raises:
            NotationError: It cannot be read, or names a kind or an axis that there is not.
        """
        return self.collectives.selected(selector)

    def __repr__(self) -> str:
        place = f" on {self.slice.name}" if self.slice is not None else ""
        moves = f"{self.totals.bound.marked(format_bytes(self.totals.wire_bytes))} on the wire per step"
        return one_line(f"<Analysis of {self.target}{place}: {plural(self.totals.collectives, 'collective')}, {moves}>")

    def _subject(self) -> str:
        return "analysis"

    if TYPE_CHECKING:

        def to_dict(self) -> AnalysisDict:
            """The result as plain data."""

    @classmethod
    @front_door
    def from_dict(cls, document: Mapping[str, object]) -> Analysis:
        """The analysis that `to_dict` made plain data of.

        Raises:
            HloscopeError: It is no such document, or one of another schema.
        """
        return read(cls, document, name="the document", key="collectives")

    @front_door
    def fails(self, fail_on: str = "warning") -> bool:
        """Whether rules found something at least as severe that is not accepted.

        Example:
            >>> assert not found.fails("warning"), found

        Args:
            fail_on: The least severity: `note`, `warning` or `error`.

        Raises:
            NotationError: There is no such severity.
        """
        return bool(severe(self.findings, fail_on))

    @front_door
    def timeline(self) -> Timeline:
        """What runs when in one step, on which part of the device, and what it waits for.

        Raises:
            HloscopeError: The analysis was read from a document or made in another process, or nothing prices it.
        """
        found: Timeline = import_module("hloscope.api.timelines").timeline_of_analysis(self)
        return found

    @front_door
    def graph(
        self, *, computation: str | None = None, around: str | None = None, hops: int | None = None
    ) -> ProgramGraph:
        """The compiled program, or a part of it, as a graph: what needs what, and what is on the critical path.

        Example:
            >>> found.graph(around="all-gather.8", hops=2).to_networkx()

        Args:
            computation: One HLO computation; by default all that run in a step, but not what stays inside fusions.
            around: An instruction's name: only what is near it.
            hops: How many edges away from there; 3 by default.

        Raises:
            HloscopeError: The analysis was read from a document or made in another process, or there is no such
                computation or instruction.
        """
        found: ProgramGraph = import_module("hloscope.api.graphs").graph_of_analysis(
            self, computation=computation, around=around, hops=hops
        )
        return found

    @front_door
    def mesh_picture(self) -> Picture:
        """The mesh on its slice: chips, hosts and links, what crosses them in a step, and what each axis connects.

        Raises:
            HloscopeError: There is no TPU slice.
        """
        picture: Picture = import_module("hloscope.report.pictures.drawn").mesh_picture(self)
        return picture

    @front_door
    def array(self, name: str) -> Picture:
        """An argument, an output or a large intermediate as the axes of the mesh cut it, with who holds what.

        Example:
            >>> found.array("params['w']")

        Args:
            name: The array's name, as the report has it.

        Raises:
            HloscopeError: There is no such array.
        """
        picture: Picture = import_module("hloscope.report.pictures.drawn").array_picture(self, name)
        return picture

    def to_dataframe(self) -> DataFrame:
        """A row for each collective: `collectives.to_dataframe()`."""
        return self.collectives.to_dataframe()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ArrayFact(Helpful):
    """One argument or output array of the program.

    Attributes:
        name: The user's name, a pytree path such as `params['w']`, or `result[0]`.
        dtype: XLA's short type name, such as `bf16`.
        global_shape: Dimensions of the whole array; None when the text does not say.
        local_shape: Dimensions on one device.
        sharding: The sharding in the user's mesh axes, such as `P('X', None)`; None when not known.
        chosen_by: `user` when the sharding was asked for, `compiler` when it was left open, None when not known.
        bytes_per_device: Logical bytes on one device; None when the type is not known.
        donated: Whether its buffer is given to the program (arguments) or reuses a donated one (outputs).
        used: False for an argument that the program does not read, which JAX drops.
        reused: For a donated argument: whether an output takes its memory; None where that is not known, and of all
            others.
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
        name: The HLO instruction that makes it, without `%`; with `[1]` where it is an element of that one's result.
        computation: The HLO computation that holds the instruction: ENTRY or the body of a loop.
        line: 1-based line in the HLO text.
        dtype: XLA's short type name.
        global_shape: Dimensions of the whole array; None when not known.
        local_shape: Dimensions on one device.
        bytes_per_device: Logical bytes on one device.
        padded_bytes_per_device: What it takes in memory with its tiles; None where the text gives no layout.
        memory_space: XLA's number of the memory it lies in: 0 for the device's main memory; on TPU 1 for the vector
            memory on the chip and 5 for the host's.
        loops: Names of the `while` instructions around it, outermost first.
        op_name: XLA's `op_name`; its own, or that of the instruction `source_of`.
        source: Source frames, innermost first; empty when not known.
        source_of: None when `source` is the instruction's own, else the name of the one it was taken from.
        sharding: `P('X', None)` as Shardy propagates it; None when that is not known.
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
    """Bytes on one device, as the compiler's buffer assignment has them; None when not known.

    Attributes:
        argument_bytes: Live arguments, with tile padding.
        output_bytes: Outputs, with tile padding.
        temp_bytes: Scratch space in HBM.
        alias_bytes: Outputs that live in donated arguments, counted in both of the above.
        generated_code_bytes: The program itself.
        peak_bytes: The most that is live at once: arguments + outputs - aliased + temporaries + code.
        hbm_bytes: What one device of the chip has.
        fits: Whether the compiler found room for it; None when no compiler was asked.
    """

    argument_bytes: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    generated_code_bytes: int | None = None
    peak_bytes: int | None = None
    hbm_bytes: int | None = None
    fits: bool | None = None


class BufferRole(StrEnum):
    """What a buffer in HBM is there for."""

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
    """One buffer in HBM of one device, or several that differ only in the layer they belong to.

    Attributes:
        role: What it is there for.
        bytes: What one takes, with tile padding.
        count: How many there are.
        name: The argument's name, with `*` for the numbers in which several differ; of all others the HLO instruction
            that makes the first of them.
        shape: On one device; None for a buffer without one array as its content.
        op_name: XLA's `op_name` of what makes it; None when not known, and for arguments.
        source: Where that was written, innermost frame first; empty when not known, and for arguments.
        donation_frees: For an argument that lends its memory to no output: whether an output of its size has memory of
            its own, which donating it would free; False for all others.
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
    """What is in HBM of one device at its peak, from the compiler's buffer assignment.

    The program's code is not among it. Without a limit, where the program does not fit.

    Attributes:
        at: The HLO instruction that runs then.
        op_name: Its `op_name`; None when not known.
        source: Where it was written, innermost frame first; empty when not known.
        live_bytes: Bytes of all that is there.
        fragmentation_bytes: Bytes that the compiler keeps for temporaries, and that are not taken then.
        buffers: What is there, most bytes first.
        other_bytes: Bytes of what is there besides: buffers too small to be told.
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
    """The slice that the program was compiled for, or is priced on.

    Attributes:
        name: `v5e:2x4`, `2*v5e:2x4`, `cpu:8` or `attached`.
        chip: The chip's generation, such as `v5e`; `cpu` for simulated host devices.
        chips: Chips in all slices together.
        devices: JAX devices in all slices together.
        slices: Slices joined over DCN.
        used_devices: Devices that the program uses; fewer than `devices` when compiled on a subset.
        chosen_by: `user` or `default`; of HLO text also `dump`, where the dump that it is in says so, `compiled`, where
            JAX's compiled program does, `profile`, and `guess`, from the text itself.
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
    """Something in the text that was not understood and that a total may therefore miss.

    Attributes:
        what: What it is, one sentence: `trip count of %while.3 cannot be read`.
        effect: What that does to the totals: `executions inside it are a lower bound`.
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
    """A sum over collectives, per device and step.

    Attributes:
        wire_bytes: Sum of wire bytes x executions over the collectives whose bytes are known.
        payload_bytes: Sum of payload bytes x executions over the collectives whose bytes are known.
        collectives: Places in the program that start such a transfer.
        executions: Transfers started per step.
        bound: How the sums relate to the truth.
    """

    wire_bytes: int
    payload_bytes: int
    collectives: int
    executions: int
    bound: Bound

    def __repr__(self) -> str:
        wire, payload = (self.bound.marked(format_bytes(sum_)) for sum_ in (self.wire_bytes, self.payload_bytes))
        times = plural(self.executions, "transfer")
        return f"<{plural(self.collectives, 'collective')}, {times}: {wire} on the wire, {payload} of payload per step>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Totals(Total):
    """The sum over all collectives, per step on one device, and its parts.

    Attributes:
        by_axis: By axis names joined by `,`; `?` where they are not known, empty where no axis is crossed.
        by_kind: By kind of collective.
        by_link: By network; a collective that crosses both counts there by its parts, each a transfer of its own.
    """

    by_axis: dict[str, Total] = field(hash=False)
    by_kind: dict[str, Total] = field(hash=False)
    by_link: dict[str, Total] = field(hash=False)

    def __post_init__(self) -> None:
        fix_tables(self, "by_axis", "by_kind", "by_link")
