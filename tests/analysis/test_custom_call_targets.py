"""Custom calls: known to stay on their device, named after communication, and everything else."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hloscope.analysis.spellings import classify_target
from hloscope.model.vocabulary import Bound, Kind, Link

CORPUS = os.environ.get("HLOSCOPE_CORPUS")
SILENT = """
    AllocateBuffer AssumeGatherIndicesInBound AsyncCollectiveDone AsyncCollectiveStart Cholesky CompactWyHelper
    ConcatBitcast EighTpu Eigh GatherScatterIndicesBitpacked InvertDiagBlocksLowerTriangular LuDecompositionBlock
    PartialReduce PrepareAsyncCallStart PrepareAsyncCallDone Qr QrDecompositionBlock X64Combine X64SplitHigh X64SplitLow
    ApproxTopK TopK MoveToHost MoveToDevice annotate_device_placement Sharding SPMDFullToShardShape
    SPMDShardToFullShape ProductOfElementaryHouseholderReflectors LuDecomposition LayoutConstraint dce_sink
    lapack_sgeqrf_ffi lapack_zheevd_ffi tridiagonal_solve_perturbed_ffi cusolver_getrf_ffi hipsolver_syevd_ffi
    cublas_getrf_batched cusparse_gtsv2_ffi cu_threefry2x32 cu_threefry2x32_ffi __cublas$gemm __cublas$lt$matmul$f8
    __cudnn$convForward __cudnn$fmhaSoftmax __cub$DeviceRadixSort __onednn$matmul __triton __triton_gemm
    __gpu$xla.gpu.triton __gpu$TopK __op$block_scaled_dot
    xla_python_cpu_callback xla_ffi_python_cpu_callback xla_ffi_python_gpu_callback
    xla_ffi_partitioned_python_cpu_callback xla_buffer_python_cpu_callback mhlo.topk chlo.erf xla_builder.math.Acosh
    """.split()
NAMED = """
    ncclAllReduce ncclSend RCCL_send nvshmem_put mpi_allreduce_ffi MPI_Bcast xla.gpu.reduce_scatter Send RECV send_data
    dataRecv my_all_gather AllGatherMatmul all_to_all fast_a2a moe_dispatch DeepEPDispatch haloExchange HALO_2D
    ring_attention RingPermute rdma_write RDMAPut remote_copy p2p_copy multimem_store collective_matmul
    __gpu$xla.gpu.all_reduce
    """.split()
UNKNOWN = """
    foo compile_me stringify shallow_copy sending_nothing mosaic_gpu_v2 xla.gpu.ptx my_kernel SparseDenseMatmul
    __xla_internal_call_marker_before lapacklike
    """.split()
ENTRY = '%p = f32[4] parameter(0)\nROOT %k = f32[4] custom-call(%p), custom_call_target="TARGET"'


@pytest.mark.parametrize("target", SILENT)
def test_known_targets_move_nothing(target):
    assert classify_target(target) is False


@pytest.mark.parametrize("target", NAMED)
def test_names_that_tell_of_communication(target):
    assert classify_target(target) is True


@pytest.mark.parametrize("target", UNKNOWN)
def test_other_targets_are_unknown(target):
    assert classify_target(target) is None


@pytest.mark.parametrize("target", ["Send", "moe_dispatch"])
def test_a_telling_target_is_an_opaque_collective(analyze, target):
    analysis = analyze(ENTRY.replace("TARGET", target))
    assert [c.kind for c in analysis.collectives] == [Kind.OPAQUE]
    [entry] = analysis.unmodelled
    assert {target, "%k"} <= set(entry.what.split())


PAIR = """%p = f32[4] parameter(0)
%s = (f32[4], f32[8]) custom-call(%p), custom_call_target="START"
%e = f32[8] get-tuple-element(%s), index=1
%b = f32[8] bitcast(%e)
ROOT %d = f32[8] custom-call(%b), custom_call_target="DONE"
"""


@pytest.mark.parametrize(
    ("start", "done"),
    [
        ("all-gather-start", "all-gather-done"),
        ("all_reduce_start", "all_reduce_done"),
        ("AllToAllStart", "AllToAllDone"),
        ("my_collective-permute-start", "my_collective-permute-done"),
        ("send", "send-done"),
    ],
)
def test_the_end_of_a_telling_target_is_no_second_collective(analyze, start, done):
    [found] = analyze(PAIR.replace("START", start).replace("DONE", done)).collectives
    assert (found.kind, found.name) == (Kind.OPAQUE, "s")
    alone = analyze(ENTRY.replace("TARGET", done))
    assert [one.name for one in alone.collectives] == ["k"]
    apart = analyze(PAIR.replace("START", f"other-{start}").replace("DONE", done))
    assert [one.name for one in apart.collectives] == ["s", "d"]


def test_a_start_whose_end_follows_is_asynchronous(analyze):
    entry = PAIR.replace("%e = f32[8] get-tuple-element(%s), index=1\n%b = f32[8] bitcast(%e)\n", "")
    entry = entry.replace("(%b)", "(%s)").replace("START", "all-gather-start").replace("DONE", "all-gather-done")
    [found] = analyze(entry).collectives
    assert found.asynchronous


def test_an_unknown_target_is_reported_once_and_makes_totals_a_lower_bound(says, analyze):
    entry = f"{ENTRY.replace('TARGET', 'foo').replace('ROOT ', '')}\nROOT %l = f32[4] custom-call(%k), "
    analysis = analyze(f'{entry}custom_call_target="foo"')
    [reported] = analysis.unmodelled
    assert reported.instruction == "k"
    assert " foo " in reported.what
    says([reported.what, reported.effect])
    assert (analysis.collectives, analysis.totals.bound) == ((), Bound.AT_LEAST)


def test_a_custom_call_without_a_target_is_reported(says, analyze):
    analysis = analyze("%p = f32[4] parameter(0)\nROOT %k = f32[4] custom-call(%p)")
    [entry] = analysis.unmodelled
    assert "%k" in says(entry.what)
    assert analysis.totals.bound is Bound.AT_LEAST


@pytest.mark.parametrize(
    ("config", "communicates"),
    [
        ('{"custom_call_config":{"body":"x","has_communication":true}}', True),
        ('{"custom_call_config":{"body":"x","has_communication":"true"}}', True),
        ('{"custom_call_config":{"body":"x","has_communication":false}}', False),
        ('{"custom_call_config":{"body":"x"}}', False),
        ('"{\\"custom_call_config\\": {\\"body\\": \\"x\\", \\"has_communication\\": true}}"', True),
        ('"broken, \\"has_communication\\": true"', True),
        ('"broken, \\"has_communication\\": false"', False),
        ('"broken"', None),
        ('{"custom_call_config":{"body":"x","has_communication":"maybe"}}', None),
        ("{}", None),
        (None, None),
    ],
    ids=[
        "true",
        "text",
        "false",
        "silent",
        "quoted",
        "broken true",
        "broken false",
        "broken",
        "maybe",
        "empty",
        "none",
    ],
)
def test_what_a_pallas_kernel_says(says, analyze, config, communicates):
    rest = "" if config is None else f", backend_config={config}"
    analysis = analyze(ENTRY.replace("TARGET", "tpu_custom_call") + rest)
    assert [(c.kind, c.link) for c in analysis.collectives] == ([(Kind.OPAQUE, Link.ICI)] if communicates else [])
    whats = [entry.what for entry in analysis.unmodelled]
    assert [re.findall(r"Pallas|%\w+|whether", what) for what in whats] == {
        True: [["Pallas", "%k"]],
        False: [],
        None: [["Pallas", "%k", "whether"]],
    }[communicates]
    if whats:
        says(whats)
    assert analysis.totals.bound is (Bound.EXACT if communicates is False else Bound.AT_LEAST)


@pytest.mark.skipif(CORPUS is None, reason="HLOSCOPE_CORPUS names no corpus")
def test_compiled_programs_call_no_unknown_targets():
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(CORPUS or "").rglob("*.hlo"))]
    targets = {target for text in texts for target in re.findall(r'custom_call_target="([^"]*)"', text)}
    assert {target for target in targets - {"tpu_custom_call"} if classify_target(target) is not False} == set()
