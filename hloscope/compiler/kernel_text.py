"""The MLIR of TPU kernels, without source locations."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from hashlib import sha256

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
    from hloscope.compiler.jax_support import KERNELS, find_missing_parts

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
