"""Asks Shardy, offline and in milliseconds, which values of a program must move and who asked for it.

jaxlib registers all of Shardy's passes, so that the propagation which the compiler runs can be run again on a copy of
the module, with the origins of shardings kept and a `sdy.reshard` or `sdy.all_reduce` wherever data must move.
"""

from __future__ import annotations

import re

from hloscope.compiler import jax_internals
from hloscope.compiler.shardy_model import ShardyModule
from hloscope.compiler.shardy_reading import constraints_of, read_module

_PROPAGATION = "builtin.module(sdy-propagation-pipeline)"
_EXPLICIT_RESHARDS = "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))"


def propagated(module: bytes | str, seen_by: str, *, origins: bool = True) -> ShardyModule:
    """What Shardy makes of a module.

    Args:
        module: MLIR with locations, as text or as bytecode.
        seen_by: As `ShardyModule.seen_by`.
        origins: Whether to keep who asked for each sharding. That ends the process on some large programs that use
            `shard_map` (jaxlib 0.10: `SourceShardingHandler` reads a string attribute that is not there).

    Raises:
        Exception: Of whatever type jaxlib chooses: passes of another version may have other names, or refuse a program.
    """
    from jaxlib.mlir import ir, passmanager

    with jax_internals.mlir_context() as context:
        parsed = ir.Module.parse(module, context)
        pipeline = _whole(str(passmanager.PassManager.parse(_PROPAGATION, context)))
        if origins:
            pipeline = pipeline.replace("sharding-origins=false", "sharding-origins=true")
        passmanager.PassManager.parse(pipeline, context).run(parsed.operation)
        asked = constraints_of(parsed)
        passmanager.PassManager.parse(_EXPLICIT_RESHARDS, context).run(parsed.operation)
        return read_module(parsed, seen_by, asked)


def _whole(pipeline: str) -> str:
    """The propagation pipeline without its end, which would hide reasons.

    The printed pipeline names `sdy-save-module`, which is not registered by itself.
    """
    pipeline = re.sub(r",func\.func\(sdy-verify-unreduced-axes\)", "", pipeline)
    pipeline = re.sub(r",func\.func\(sdy-insert-explicit-reshards.*$", ")", pipeline)
    return pipeline.replace(",sdy-save-module", "")
