"""Element types: MLIR's names and XLA's."""

from __future__ import annotations

_SIGNED = {f"i{bits}": f"s{bits}" for bits in (2, 4, 8, 16, 32, 64)}
_UNSIGNED = {f"ui{bits}": f"u{bits}" for bits in (2, 4, 8, 16, 32, 64)}
_OTHERS = {"i1": "pred", "complex<f32>": "c64", "complex<f64>": "c128"}
_HLO = {**_SIGNED, **_UNSIGNED, **_OTHERS}
_FLOATS = ("f", "bf", "c")


def hlo_type(mlir_type: str) -> str:
    """XLA's short name, such as `s32` for `i32` and `f8e4m3fn` for `f8E4M3FN`."""
    return _HLO.get(mlir_type, mlir_type.lower())


def is_float(name: str) -> bool:
    """Whether an element type, under either name, is a floating-point or complex one."""
    return name.startswith(_FLOATS)
