"""The words that are no names of instructions where they stand without `%`."""

from __future__ import annotations

RESERVED = frozenset(
    """
    true false inf nan HloModule ENTRY ROOT FileNames FunctionNames FileLocations StackFrames maximal replicated manual
    unreduced unknown last_tile_dim_replicate shard_as shard_like
    pred s1 s2 s4 s8 s16 s32 s64 u1 u2 u4 u8 u16 u32 u64 f16 bf16 f32 f64 c64 c128 f8e5m2 f8e4m3 f8e4m3fn f8e4m3b11fnuz
    f8e3m4 f8e5m2fnuz f8e4m3fnuz f8e8m0fnu f4e2m1fn f6e3m2fn f6e2m3fn opaque token
    """.split()
)
"""Keywords and types, which XLA's lexer takes for what they are. With `%` they are names: XLA asks to rename a few of
those too, but texts of older versions have them.

Source: xla/hlo/parser/hlo_lexer.cc.
"""
