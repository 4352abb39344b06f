"""The private parts of JAX that hloscope uses, whether the installed JAX has them, and the tested versions.

JAX has no public way to compile for devices that are not attached, so some private parts are used. They are listed
here, and looked up before the first use: a JAX that lacks one is one message, and not a traceback in the middle.
"""

from __future__ import annotations

import binascii
import hashlib
import os
import re
import sys
from base64 import b64decode
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from importlib import import_module, metadata
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

from hloscope.base.errors import Command, HloscopeError, say

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
        "jax._src.source_info_util": "raw_frame_to_frame",
        "jaxlib.mlir.passmanager": "PassManager.parse",
        "jaxlib.mlir.dialects.sdy": "TensorShardingAttr",
        "jaxlib.mlir.dialects.stablehlo": "ComparisonDirectionAttr ConvDimensionNumbers",
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


# ---- the MLIR of TPU kernels, without source locations

_FORMAT = re.compile(r"stable_mosaic\.version = \d+ : i64")
"""The version of the kernel format, which an upgrade of JAX raises."""
_DIGITS = 16


def fingerprint_kernel(body: str) -> str:
    """A digest of a kernel's content, which does not change when its source moves.

    For a kernel that this jaxlib cannot read, the digest covers everything, including source places.

    Args:
        body: The kernel's `body` in the backend's configuration: MLIR as bytecode or text, in base64.

    Returns:
        16 hexadecimal digits.
    """
    text = body if find_missing_parts(KERNELS) else _read_kernel(body)
    return sha256(_FORMAT.sub("", text).encode()).hexdigest()[:_DIGITS]


def _read_kernel(body: str) -> str:
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _tpu_ext

    context = ir.Context()
    context.allow_unregistered_dialects = True
    try:
        _tpu_ext.register_dialect(context)
        with context:
            found: str = ir.Module.parse(b64decode(body, validate=True)).operation.get_asm(enable_debug_info=False)
    except (binascii.Error, ir.MLIRError, UnicodeDecodeError):
        return body
    return found


# ---- the libtpu of a compile, found without loading it

_BUILD_ID = re.compile(rb"\x04\0\0\0(?P<size>.\0\0\0)\x03\0\0\0GNU\0", re.DOTALL)
"""The header of a note of type 3 by `GNU`."""


def find_package_version(package: str = "libtpu") -> str | None:
    """The version of the installed libtpu; None if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def find_libtpu_build() -> str | None:
    """The version and build of the libtpu that compiles, which `TPU_LIBRARY_PATH` may name; None without one.

    Two files with the same content have the same build, regardless of their location and time.
    """
    chosen = os.environ.get("TPU_LIBRARY_PATH")
    path = Path(chosen) if chosen else find_libtpu_file()
    with suppress(OSError):
        if path is not None:
            status = path.stat()
            return f"{find_package_version()} {_read_build_id(path, status.st_mtime_ns, status.st_size)}"
    return None


def find_own_libtpu_version() -> str | None:
    """The version of the installed libtpu; None without one, and if `TPU_LIBRARY_PATH` names another library."""
    chosen = os.environ.get("TPU_LIBRARY_PATH")
    return find_package_version("libtpu") if not chosen or chosen == str(find_libtpu_file()) else None


def find_libtpu_file() -> Path | None:
    """The library file of the installed package; None without one."""
    spec = find_spec("libtpu")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "libtpu.so"


@lru_cache(maxsize=4)
def _read_build_id(path: Path, _changed_ns: int, _size: int) -> str:
    """The build id that the linker wrote into a library; for one without it, a digest of the whole file."""
    with path.open("rb") as file:
        found = _find_gnu_build_id(file.read(1 << 16))
        file.seek(0)
        return found or hashlib.file_digest(file, "sha256").hexdigest()


def _find_gnu_build_id(head: bytes) -> str | None:
    """The build id in the first bytes of a 64-bit little-endian ELF file; None if it is not among them.

    Source: the ELF specification: a note's header is the sizes of its name and its content, its type, and its name.
    """
    found = _BUILD_ID.search(head) if head.startswith(b"\x7fELF\x02\x01") else None
    if found is None:
        return None
    size = int.from_bytes(found["size"], "little")
    body = head[found.end() : found.end() + size]
    return body.hex() if size and len(body) == size else None
