"""Which custom-call targets talk to other devices: those known not to, those whose names say so, and all others."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import cache


class Talk(Enum):
    """What a custom call's target says about communication."""

    NONE = auto()
    NAMED = auto()
    UNKNOWN = auto()


_COMPILER = """
    AllocateBuffer AssumeGatherIndicesInBound ConcatBitcast CompactWyHelper GatherScatterIndicesBitpacked
    InvertDiagBlocksLowerTriangular InvertDiagBlocksUpperTriangular LayoutConstraint PadToStatic SliceToDynamic
    PartialReduce PrepareAsyncCallStart PrepareAsyncCallDone SliceId X64Combine X64SplitHigh X64SplitLow MemsetFromValue
    ZeroCrop
    Sharding SPMDFullToShardShape SPMDShardToFullShape InspectSharding MoveToHost MoveToDevice
    annotate_device_placement HostExecute GetRngSeed Pin Unpin
    """
"""What XLA and its TPU back end put in by themselves.

Source: text that libtpu prints for cholesky, qr, eigh, lu, triangular solves, fft, random bits and 64-bit integers on
v5e; xla/hlo/ir/hlo_instruction.h and the passes of xla/service for the partitioner's and the host offloader's marks.
The partitioner's marks stand only in text that is not partitioned yet, which is reported by itself.
"""

_LIBRARY = """
    ApproxTopK Cholesky Eigh EighTpu LuDecomposition LuDecompositionBlock ProductOfElementaryHouseholderReflectors Qr
    QrDecompositionBlock TopK ResizeBicubic ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeNearest
    ResizeNearestGrad dce_sink shape_assertion stablehlo.dynamic_approx_top_k stablehlo.dynamic_reduce_window
    stablehlo.dynamic_rng_bit_generator stablehlo.dynamic_top_k tridiagonal_solve_perturbed_ffi
    xla.gpu.ext.cub_sort_unassigned_scratch_size xla.gpu.ext.cub_scan_unassigned_scratch_size
    cu_threefry2x32 cu_threefry2x32_ffi hip_threefry2x32 hip_threefry2x32_ffi cu_lu_pivots_to_permutation
    __op$block_scaled_dot __op$quantize __op$dequantize
    hip_lu_pivots_to_permutation cu_cholesky_update_ffi hip_cholesky_update_ffi triton_kernel_call
    """
"""Computations on one device's arrays.

Source: the targets that JAX guarantees to be stable (`jax/_src/export/_export.py`) and those that jaxlib registers
for CPUs and GPUs; libtpu's own names for the same.
"""

_FAMILIES = re.compile(
    r"lapack_\w+|(cu|hip|roc)(blas|solver|sparse|fft|dnn|rand)\w*|__(cublas|cudnn|hipblas\w*|cub|cusolver|onednn)\$.+"
    r"|__triton\w*(\$.+)?|__gpu\$(TopK|xla\.gpu\.triton)|(mhlo|chlo|xla_builder\.math)\.\w+"
    r"|(cpu|cu|hip)_csr_sparse_dense\w*|xla_(ffi_|buffer_)?(partitioned_)?python_(cpu|gpu|tpu)_callback"
)
"""Libraries that know one device, and callbacks into Python on the host.

Source: `kGemmCallTarget`, `kCudnnConvForwardCallTarget` and their neighbours in xla/service/gpu; JAX's
`jax/_src/callback.py`, `jax/_src/lax/linalg.py` and `jaxlib/*_kernels`.
"""

_ASYNCHRONOUS = frozenset({"AsyncCollectiveStart", "AsyncCollectiveDone"})
"""Marks around a collective that is printed beside them, and counted itself."""

_LOCAL = frozenset((*_COMPILER.split(), *_LIBRARY.split()))
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_TELLING = frozenset(
    {"dispatch", "exchange", "halo", "mpi", "peer", "permute", "receive", "recv", "remote", "ring", "send"}
)
_TELLING_PARTS = re.compile(
    r"nccl|rccl|nvshmem|rocshmem|megascale|multicast|multimem|rdma|p2p|a2a|collective|ppermute|sendrecv"
    r"|all.?reduce|all.?gather|reduce.?scatter|all.?to.?all",
    re.IGNORECASE,
)


@cache
def talk_of(target: str) -> Talk:
    """Says whether the name of a custom call's target is known, and what it tells.

    Args:
        target: `custom_call_target`; not the one of Pallas kernels, whose configuration says it instead.
    """
    if target in _LOCAL or target in _ASYNCHRONOUS:
        return Talk.NONE
    words = {word.lower() for word in _WORDS.findall(target)}
    if _TELLING_PARTS.search(target) or words & _TELLING:
        return Talk.NAMED
    return Talk.NONE if _FAMILIES.fullmatch(target) else Talk.UNKNOWN
