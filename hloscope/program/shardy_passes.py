"""Asks Shardy, offline and in milliseconds, which values of a program must move and who asked for it.

jaxlib registers all of Shardy's passes, so that the propagation which the compiler runs can be run again on a copy of
the module, with the origins of shardings kept and a `sdy.reshard` or `sdy.all_reduce` wherever data must move.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from hloscope.program import jax_internals
from hloscope.program.shardy_reading import constraints_of, read_module

if TYPE_CHECKING:
    import jax

    from hloscope.program.shardy_model import ShardyModule

_SAID = 200
_PROPAGATION = "builtin.module(sdy-propagation-pipeline)"
_EXPLICIT_RESHARDS = "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))"


def shardy_of_lowered(lowered: jax.stages.Lowered, notes: list[str]) -> ShardyModule | None:
    """What Shardy makes of a program as JAX lowered it; needs no compile.

    Args:
        lowered: From `jax.stages.Traced.lower`; it is not changed.
        notes: Receives a sentence when Shardy fails, which is never an error here.
    """
    return _asked(lambda: lowered.as_text(debug_info=True), "jax", notes)


def shardy_of_text(text: str, notes: list[str]) -> ShardyModule | None:
    """What Shardy makes of the module that the compiler was about to propagate, from its dump.

    Args:
        text: MLIR, with locations.
        notes: As for `shardy_of_lowered`.
    """
    return _asked(lambda: text, "compiler", notes)


def _asked(text: Callable[[], str], seen_by: str, notes: list[str]) -> ShardyModule | None:
    try:
        return _propagated(text(), seen_by)
    except Exception as error:  # passes of another jaxlib may have other names, or refuse a program: a reason less
        said = str(error).strip().partition("\n")[0][:_SAID]
        notes.append(
            f"Shardy's propagation could not be run again ({type(error).__name__}: {said}): reasons are less exact"
        )
        return None


def _propagated(text: str, seen_by: str) -> ShardyModule:
    from jaxlib.mlir import ir, passmanager

    with jax_internals.mlir_context() as context:
        module = ir.Module.parse(text, context)
        propagation = _with_origins(str(passmanager.PassManager.parse(_PROPAGATION, context)))
        passmanager.PassManager.parse(propagation, context).run(module.operation)
        asked = constraints_of(module)
        passmanager.PassManager.parse(_EXPLICIT_RESHARDS, context).run(module.operation)
        return read_module(module, seen_by, asked)


def _with_origins(pipeline: str) -> str:
    """The propagation pipeline without its end, which would hide reasons, and with origins of shardings kept.

    The printed pipeline names `sdy-save-module`, which is not registered by itself.
    """
    pipeline = re.sub(r",func\.func\(sdy-verify-unreduced-axes\)", "", pipeline)
    pipeline = re.sub(r",func\.func\(sdy-insert-explicit-reshards.*$", ")", pipeline)
    return pipeline.replace(",sdy-save-module", "").replace("sharding-origins=false", "sharding-origins=true")
