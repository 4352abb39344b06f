"""Kernels: custom calls of a TPU's own language, brought along by the program, or written by XLA."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import add

from hloscope.analysis.executions import Context, count_executions
from hloscope.analysis.model.collective import shapes_of
from hloscope.analysis.model.kernel import Kernel
from hloscope.analysis.provenance import provenance_of
from hloscope.analysis.spellings import CUSTOM_CALLS, PALLAS, has_communication
from hloscope.analysis.vocabulary import Bound
from hloscope.analysis.volume import arrays
from hloscope.hlo import HloInstruction
from hloscope.hlo.call_graph import HloGraph

_COST_ESTIMATE = re.compile(r'"(flops|bytes_accessed)"\s*:\s*"?(\d+)')
_WRITTEN_BY_XLA = re.compile(r'"body"\s*:\s*"bW9kdWxl')
"""A body that is MLIR as text, `module` in base64; JAX writes bytecode."""
_BODY = re.compile(r'"body"\s*:\s*"([^"]+)"')
_NUMBERED = re.compile(r"(?:\.(?:\d+|clone|remat\d*))+$")


def kernels_of(graph: HloGraph) -> tuple[Kernel, ...]:
    """Every kernel that ENTRY reaches, in the order of the text; equal calls together."""
    calls = [call for call in graph.module.with_opcodes(CUSTOM_CALLS) if call.custom_call_target == PALLAS]
    if not calls:
        return ()
    contexts = count_executions(graph, {call.computation.name for call in calls}).contexts
    found: dict[object, Kernel] = {}
    for call in sorted(calls, key=lambda call: call.line):
        reached = contexts.get(call.computation.name, ())
        if not reached:
            continue
        kernel = _kernel(graph, call, reached)
        cost = (kernel.flops, kernel.accessed_bytes)
        key = (
            kernel.name,
            kernel.by_compiler,
            kernel.operand_shapes,
            kernel.result_shapes,
            cost,
            kernel.source[:1],
            kernel.fingerprint,
        )
        known = found.get(key)
        found[key] = kernel if known is None else _together(known, kernel)
    return tuple(found.values())


def _kernel(graph: HloGraph, call: HloInstruction, contexts: tuple[Context, ...]) -> Kernel:
    estimate = cost_estimate(call)
    provenance = provenance_of(graph, [call])
    return Kernel(
        name=kernel_names(call)[0],
        by_compiler=_WRITTEN_BY_XLA.search(call.attributes.get("backend_config", "")) is not None,
        line=call.line,
        calls=1,
        executions=sum(context.executions for context in contexts),
        executions_bound=reduce(add, (context.bound for context in contexts), Bound.EXACT),
        operand_shapes=shapes_of(*arrays(operand.shape for operand in call.operands)),
        result_shapes=shapes_of(*arrays([call.shape])),
        flops=estimate.get("flops") or None,
        accessed_bytes=estimate.get("bytes_accessed") or None,
        remote_dma=has_communication(call),
        fingerprint=_fingerprint(call),
        op_name=provenance.op_name,
        source=provenance.source,
    )


def _fingerprint(call: HloInstruction) -> str | None:
    """What a kernel does that sends by itself, of which nothing else tells whether it sends more than before."""
    body = _BODY.search(call.attributes.get("backend_config", "")) if has_communication(call) else None
    if body is None:
        return None
    from hloscope.compiler.kernel_text import fingerprint  # which needs jaxlib

    return fingerprint(body[1])


def _together(one: Kernel, other: Kernel) -> Kernel:
    said = one.remote_dma, other.remote_dma
    return replace(
        one,
        calls=one.calls + other.calls,
        executions=one.executions + other.executions,
        executions_bound=one.executions_bound + other.executions_bound,
        remote_dma=True if one.remote_dma or other.remote_dma else None if None in said else False,
    )


def cost_estimate(call: HloInstruction) -> Mapping[str, int]:
    """What a kernel's author says that one run takes: `flops` and `bytes_accessed`; empty where he says nothing.

    Source: `pl.CostEstimate`, which JAX writes into the call's `custom_call_config`.
    """
    said = _COST_ESTIMATE.findall(call.attributes.get("backend_config", ""))
    return {name: int(number) for name, number in said}


def kernel_names(call: HloInstruction) -> tuple[str, ...]:
    """What the user may call a custom call, the best name first.

    The instruction bears the name that the kernel was given, or that of the function around it, with a number; the
    parts of its path in the program, and the target, will do as well.
    """
    path = (call.op_name or "").split("/")
    return (_NUMBERED.sub("", call.name), call.name, *path, call.custom_call_target or "")
