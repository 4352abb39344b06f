"""The data exchanged with the compiler's process: the request with a lowered program, and the compiled program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hloscope.compiler.shardy_model import Identities, ShardyModule
from hloscope.tpu.slices import Slice

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
