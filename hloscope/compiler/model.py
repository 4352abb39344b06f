"""The data exchanged with the compiler's process: a lowered program in, the compiled program out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hloscope.compiler.shardy_model import Identities, ShardyModule
from hloscope.tpu.slices import Slice

Value = tuple[str, tuple[int, ...]]
"""An instruction, and the element of its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBuffer:
    """One buffer in HBM.

    Attributes:
        bytes: What it takes there, with tile padding.
        values: The values that it holds while most of HBM is taken: instructions of the final module, each with the
            element of its result. Of an argument or an output, all that it ever holds.
        parameter: The number of the parameter that it is; None for all others.
        is_output: Whether an output is in it at the end.
        is_temporary: Whether it lies in the heap, and not there for the whole program.
    """

    bytes: int
    values: tuple[Value, ...]
    parameter: int | None = None
    is_output: bool = False
    is_temporary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmPeak:
    """HBM of one device when most of it is taken.

    Attributes:
        at: The instruction that runs then.
        buffers: The largest that are there, largest first.
        other_bytes: All other buffers together.
        live_bytes: All buffers together.
        heap_bytes: What the compiler takes for temporaries; what of it is not taken then is lost to fragmentation.
        temporary_bytes: Buffers of the heap together.
        live_bytes_at: All buffers together while each instruction runs, by its name.
    """

    at: str
    buffers: tuple[LiveBuffer, ...]
    other_bytes: int
    live_bytes: int
    heap_bytes: int
    temporary_bytes: int
    live_bytes_at: Mapping[str, int] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which device each partition runs on, as far as the program decides it; the worker has the devices.

    Attributes:
        device_count: Partitions of the program.
        mesh_shape: Sizes of the mesh's axes, major first; None where the devices are taken in their own order.
        dcn_shape: For several slices: how many of them each axis spans; None on one slice.
        simulated_ids: The position in `jax.devices()` of each partition's device: of a mesh that the program itself
            laid over a slice, and of simulated CPU devices.
        positions: The mesh position of each partition; None where they agree.
    """

    device_count: int
    mesh_shape: tuple[int, ...] | None = None
    dcn_shape: tuple[int, ...] | None = None
    simulated_ids: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One lowered program and what to compile it for: everything that the compiler is given.

    Attributes:
        module: StableHLO with its source places, as MLIR bytecode.
        settings: A serialized `xla::CompileOptions`; its device assignment is replaced on a TPU slice.
        options: XLA compiler options that the user gave.
        slice: A TPU slice, or simulated CPU devices.
        layout: Which device each partition runs on.
    """

    module: bytes
    settings: bytes
    options: Mapping[str, str]
    slice: Slice
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What the compiler made of one program.

    Attributes:
        text: The final scheduled module; empty where the compiler did not get so far.
        memory_bytes: The compiler's figures per device, by the field names of `jax.stages.Compiled.memory_analysis`.
        parameter_shardings: A serialized `OpSharding` for each parameter; None where the compiler gives none.
        output_shardings: The same for outputs.
        diagnostics: What it said that is about the user's program.
        device_ids: The physical device of each partition; empty for simulated and attached devices.
        slice_of_partition: The slice that each partition is in; empty on one slice, and for text that does not say.
        too_large: Its words for why the program does not fit in HBM; None when it fits.
        partitioned: The module right after the partitioner; None when the compiler did not write it down.
        before_propagation: The module that Shardy was about to propagate, in MLIR; None once that was explained.
        shardy: Every value's sharding and what must move; None when Shardy could not be asked.
        shardy_as_written: The same for the program as JAX lowered it, where `shardy` is of the compiler's own module,
            in which some operations are expanded into others; None where `shardy` is that already, or none are.
        notes: Choices made on the way, one sentence each.
        is_whole: Whether the compiler could write down all that it meant to.
        identities: The operations that each instruction of `text` was made from; None where they have no numbers.
        partitioned_identities: The same for `partitioned`.
        seconds: What the compile took, or all its threads together where that is less, as on a machine that has other
            things to do; None where this process compiled.
        hbm_peak: What lies in HBM when most of it is taken; None where the compiler did not write that down.
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
