"""The private parts of JAX that hloscope uses, whether the installed JAX has them, and the tested versions.

JAX has no public way to compile for devices that are not attached, so some private parts are used. They are listed
here, and looked up before the first use: a JAX that lacks one is one message, and not a traceback in the middle.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module, metadata
from operator import attrgetter

from hloscope.errors import HloscopeError
from hloscope.messages import Command, say

TESTED_VERSIONS = ("0.10", "0.12")
"""Versions of JAX that the whole suite, or the smoke tests, run with: on Python 3.11, and on 3.13."""

INSTALL_COMMAND = f"pip install 'jax[tpu]=={TESTED_VERSIONS[sys.version_info >= (3, 12)]}.*'"
"""The command for the tested version that this Python gets, with the matching libtpu."""

COMPILING = "compiling functions"
RECORDING = "recording a script"
REASONS = "explaining why a collective is there"
PROTOS = "reading serialized HLO"
KERNELS = "distinguishing kernels by what they do"

_PARTS_USED = {
    COMPILING: {
        "jax.stages": "Lowered._lowering",
        "jax._src.api_util": "_non_static_arg_names",
        "jax._src.compilation_cache": "reset_cache",
        "jax._src.config": "enable_compilation_cache jax_jit_cpp_cache_obj",
        "jax._src.core": "trace_state_clean",
        "jax._src.interpreters.mlir": "ModuleContext.get_backend make_ir_context module_to_bytecode",
        "jax._src.interpreters.pxla": "_create_device_list create_compile_options get_prop_to_input_output",
        "jax._src.lib": "_jax.PjitFunctionCache xla_client.CompileOptions.ParseFromString "
        "xla_client.DeviceAssignment.create xla_client.HloSharding.from_proto xla_client.OpSharding "
        "xla_client.make_cpu_client",
        "jax._src.sharding_impls": "parse_flatten_op_sharding",
        "jax._src.xla_bridge": "backends backends_are_initialized default_backend device_count devices get_backend "
        "local_device_count local_devices process_count process_index",
        "jaxlib.mlir.ir": "Module.parse",
    },
    RECORDING: {
        "jax._src.array": "ArrayImpl._value",
        "jax._src.dispatch": "_device_put_impl",
        "jax._src.interpreters.pxla": "MeshComputation.compile MeshExecutable.unsafe_call batched_device_put "
        "check_arg_avals_for_call",
        "jax._src.pjit": "_resolve_and_lower",
    },
    REASONS: {
        "jaxlib.mlir.passmanager": "PassManager.parse",
        "jaxlib.mlir.dialects.sdy": "TensorShardingAttr",
    },
    PROTOS: {"jaxlib": "_hlo.HloModule.from_serialized_hlo_module_proto _hlo.hlo_module_from_text"},
    KERNELS: {"jaxlib.mlir._mlir_libs._tpu_ext": "register_dialect"},
}
PRIVATE_PARTS = {
    purpose: tuple(f"{module}:{name}" for module, names in modules.items() for name in names.split())
    for purpose, modules in _PARTS_USED.items()
}
"""The private parts by purpose, as `module:name.attribute`."""


class UnsupportedJaxError(HloscopeError):
    """The installed JAX lacks something that hloscope uses."""


@lru_cache(maxsize=8)
def find_missing_parts(purpose: str = COMPILING) -> tuple[str, ...]:
    """The private parts that the installed JAX lacks; imports JAX."""
    return tuple(part for part in PRIVATE_PARTS[purpose] if not _is_available(part))


def _is_available(part: str) -> bool:
    module, _, names = part.partition(":")
    try:
        attrgetter(names)(import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


def describe_untested(version: str) -> str | None:
    """The note about a version of JAX that hloscope's tests do not cover; None for a tested one."""
    if version.startswith(tuple(f"{tested}." for tested in TESTED_VERSIONS)):
        return None
    return f"JAX {version} has not been tested with hloscope, which is tested with JAX {' and '.join(TESTED_VERSIONS)}"


def check_supported(*purposes: str) -> None:
    """Checks that the installed JAX has all necessary parts, before anything is compiled; imports JAX.

    Args:
        purposes: The purposes, in addition to compiling.

    Raises:
        UnsupportedJaxError: It lacks something.
    """
    missing = [part for purpose in (COMPILING, *purposes) for part in find_missing_parts(purpose)]
    if missing:
        raise UnsupportedJaxError(
            f"JAX {metadata.version('jax')} is not supported for compiling",
            why=f"it lacks {', '.join(part.replace(':', '.') for part in missing)}; tested versions are JAX "
            f"{' and '.join(TESTED_VERSIONS)}",
            fix=say(f"{INSTALL_COMMAND}, or read HLO text, which needs no JAX: ", Command("analyze", ("step.hlo",))),
        )
