"""Names of element types: NumPy's long ones, HLO's and JAX's short ones."""

from __future__ import annotations

import difflib

_SHORT_NAMES: dict[str, tuple[str, ...]] = {
    "bool": ("pred",),
    **{f"int{bits}": (f"s{bits}", f"i{bits}") for bits in (1, 2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": (f"u{bits}", f"ui{bits}") for bits in (1, 2, 4, 8, 16, 32, 64)},
    "bfloat16": ("bf16",),
    **{f"float{bits}": (f"f{bits}",) for bits in (16, 32, 64)},
    **{
        f"float{bits}_{format}": (f"f{bits}{format.replace('_', '')}", f"f{bits}_{format}")
        for bits, formats in (
            (8, ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")),
            (6, ("e2m3fn", "e3m2fn")),
            (4, ("e2m1fn",)),
        )
        for format in formats
    },
    "complex64": ("c64",),
    "complex128": ("c128",),
}
"""Long name -> short names. Source: `xla/primitive_util.h`, `ml_dtypes`, `jax._src.dtypes.short_dtype_name`.

`c64` is HLO's and JAX's name for the type whose real and imaginary part have 32 bits each.
"""

_LONG_NAME = {short: long for long, shorts in _SHORT_NAMES.items() for short in (long, *shorts)}

LONG_NAMES: tuple[str, ...] = tuple(_SHORT_NAMES)
"""Every element type by its canonical name, random keys aside."""


def canonical_dtype(name: str) -> str | None:
    """The long NumPy or ml_dtypes name of an element type; None when there is no such type.

    Args:
        name: A long name (`bfloat16`), HLO's short one (`bf16`, `s32`, `pred`, `f8e4m3fn`), JAX's (`i32`, `f8_e4m3fn`)
            or a random key's (`key<fry>`, which has no other spelling).
    """
    return name if name.startswith("key<") else _LONG_NAME.get(name.lower())


def short_dtype(name: str) -> str:
    """HLO's short name of an element type, such as `bf16` for `bfloat16`; `name` itself where HLO has none (keys).

    Args:
        name: Any spelling that `canonical_dtype` knows.
    """
    shorts = _SHORT_NAMES.get(canonical_dtype(name) or "")
    return shorts[0] if shorts else name


def nearest_dtypes(name: str) -> tuple[str, ...]:
    """At most three long names of element types whose spelling is near `name`, the nearest first."""
    close = difflib.get_close_matches(name.lower(), _LONG_NAME, n=6, cutoff=0.5)
    return tuple(dict.fromkeys(_LONG_NAME[spelling] for spelling in close))[:3]
