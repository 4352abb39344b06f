"""The facts about one compiled program: the `Analysis` and everything in it.

Field names are the names of the JSON document. A byte count, a time or an axis that is not known is None, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from hloscope.analysis.vocabulary import Bound, Kind, Link, Origin
from hloscope.findings import Finding
from hloscope.units import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The user's logical mesh.

    Attributes:
        axis_names: Axis names, major to minor.
        axis_sizes: Devices along each axis.
        axis_types: `auto`, `explicit` or `manual` for each axis; None when unknown (HLO text).
        partition_ids: The partition id at each mesh position in row-major order; None means 0, 1, 2, …
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[str, ...] | None = None
    partition_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.axis_names) != len(self.axis_sizes):
            raise ValueError("a mesh needs one size for each axis name")
        if len(set(self.axis_names)) != len(self.axis_names):
            raise ValueError(f"mesh axis names repeat: {self.axis_names}")

    @property
    def device_count(self) -> int:
        """Devices in the mesh."""
        return prod(self.axis_sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFrame:
    """One frame of the user's Python stack: where an operation was written."""

    file: str
    line: int
    function: str | None = None
    column: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One logical collective: a place in the program that starts a transfer.

    Attributes:
        kind: What it does.
        name: The HLO instruction that starts it, without `%`.
        computation: The HLO computation that holds it.
        line: 1-based line in the HLO text.
        axes: The mesh axes it runs over, major first, sub-axes as `X:(1)2`; None when the groups match no axes or
            there is no mesh.
        groups: The groups of partition ids (for a permute its source-target pairs), as the text has them: in one
            slice's program those of the slice. Between slices, partition ids of the whole program, or device ids where
            nothing tells the partitions.
        group_size: Devices in a group; the largest one where groups differ; None for a permute.
        link: The network it crosses.
        operand_shapes: Per-device operand shapes, such as `bf16[2,1024]`.
        result_shapes: Per-device result shapes.
        payload_bytes: The larger side on one device per execution (all-gather: result; others: operand), without
            tile padding.
        wire_bytes: Bytes that one device must send per execution on an ideal ring. All-gather (n-1)/n of the result;
            reduce-scatter and all-to-all (n-1)/n of the operand; all-reduce 2(n-1)/n of the operand; permute
            the operand for each target of one source; broadcast the operand.
        executions: Times it runs per step.
        executions_bound: How `executions` relates to the truth.
        loops: Names of the `while` instructions around it, outermost first.
        origin: Who put it there.
        asynchronous: Whether it is printed as a start and a done.
        time_us: Predicted microseconds per execution; None when not priced.
        exposed_us: The part of it that nothing hides; None when not priced.
        op_name: XLA's `op_name`, such as `jit(f)/dot_general`.
        source: Source frames, innermost first; empty when not known.
        source_of: None when `source` is the collective's own, else the name of the instruction it was taken from.
        why: Why it is there, in the user's terms; None when not known.
    """

    kind: Kind
    name: str
    computation: str
    line: int
    axes: tuple[str, ...] | None
    groups: tuple[tuple[int, ...], ...]
    group_size: int | None
    link: Link
    operand_shapes: tuple[str, ...]
    result_shapes: tuple[str, ...]
    payload_bytes: int | None
    wire_bytes: int | None
    executions: int
    executions_bound: Bound
    loops: tuple[str, ...] = ()
    origin: Origin = Origin.UNKNOWN
    asynchronous: bool = False
    time_us: float | None = None
    exposed_us: float | None = None
    op_name: str | None = None
    source: tuple[SourceFrame, ...] = ()
    source_of: str | None = None
    why: str | None = None

    @property
    def wire_bytes_per_step(self) -> int | None:
        """Bytes one device sends per step: `wire_bytes` x `executions`."""
        return None if self.wire_bytes is None else self.wire_bytes * self.executions

    @property
    def payload_bytes_per_step(self) -> int | None:
        """`payload_bytes` x `executions`."""
        return None if self.payload_bytes is None else self.payload_bytes * self.executions


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(Total):
    """The sum over all collectives, per step on one device, and its parts.

    Attributes:
        by_axis: By axis names joined by `,`; `?` where they are not known, empty where no axis is crossed.
        by_kind: By kind of collective.
        by_link: By network.
    """

    by_axis: dict[str, Total]
    by_kind: dict[str, Total]
    by_link: dict[str, Total]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFact:
    """One argument or output array of the program.

    Attributes:
        name: The user's name, a pytree path such as `params['w']`, or `result[0]`.
        dtype: XLA's short type name, such as `bf16`.
        global_shape: Dimensions of the whole array; None when the text does not tell.
        local_shape: Dimensions on one device.
        sharding: The sharding in the user's mesh axes, such as `P('X', None)`; None when not known.
        chosen_by: `user` when the sharding was asked for, `compiler` when it was left open, None when not known.
        bytes_per_device: Logical bytes on one device; None when the type is not known.
        donated: Whether its buffer is given to the program (arguments) or reuses a donated one (outputs).
        used: False for an argument that the program does not read, which JAX drops.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on one device, as the compiler's buffer assignment has them; None when not known.

    Attributes:
        argument_bytes: Live arguments, with tile padding.
        output_bytes: Outputs, with tile padding.
        temp_bytes: Scratch space in HBM.
        alias_bytes: Outputs that live in donated arguments, counted in both of the above.
        generated_code_bytes: The program itself.
        peak_bytes: The most that is live at once: arguments + outputs - aliased + temporaries + code.
        hbm_bytes: What one device of the chip has.
    """

    argument_bytes: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    generated_code_bytes: int | None = None
    peak_bytes: int | None = None
    hbm_bytes: int | None = None


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
        chosen_by: `user` or `default`.
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
class Analysis:
    """Everything hloscope knows about one compiled program.

    Attributes:
        target: What the user named: `model.py:step`, `step.hlo`, `-`.
        module: The HLO module's name.
        slice: The slice; None for HLO text without `--slice`.
        mesh: The user's mesh; None when there is none.
        num_partitions: Partitions of the SPMD program, as the text says (of one slice, for multi-slice text).
        collectives: By wire bytes per step, largest first; unknown bytes before all others.
        totals: Sums per step on one device.
        arguments: The program's arguments, in order.
        outputs: The program's outputs, in order.
        memory: Bytes on one device.
        findings: What rules found.
        unmodelled: What was not understood.
        notes: Choices made for the user and compiler diagnostics, one sentence each.
        versions: `hloscope`, and `jax`, `jaxlib`, `libtpu` when they compiled the program.
    """

    target: str
    module: str
    slice: SliceFact | None
    mesh: Mesh | None
    num_partitions: int
    collectives: tuple[Collective, ...]
    totals: Totals
    arguments: tuple[ArrayFact, ...]
    outputs: tuple[ArrayFact, ...]
    memory: Memory
    findings: tuple[Finding, ...] = ()
    unmodelled: tuple[Unmodelled, ...] = ()
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        place = f" on {self.slice.name}" if self.slice is not None else ""
        return (
            f"<Analysis of {self.target}{place}: {plural(self.totals.collectives, 'collective')}, "
            f"{self.totals.wire_bytes} wire bytes per step ({self.totals.bound})>"
        )

    def to_dict(self) -> dict[str, object]:
        """The analysis as plain data, as `--format json` prints it (see `hloscope/analysis/schema.json`)."""
        from hloscope.analysis.document import to_document

        return to_document(self)
