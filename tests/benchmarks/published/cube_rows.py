"""Rows of single matmuls, timed from the host."""

from __future__ import annotations

from published import programs
from published.row import Row


def _cube(generation: str, narrow: bool, size: int, measured_us: float) -> Row:
    """One row of the cubes: s8 to s32, or bf16 to f32."""
    doubt_us = {"v5e": 2.0, "v6e": 15.0}[generation]
    uncertainty = round(max(doubt_us / measured_us, 0.005), 3)
    return Row(
        name=f"{generation}-{'int8' if narrow else 'bf16'}-{size}",
        program=programs.matmul_s32_out if narrow else programs.matmul_f32_out,
        slice=f"{generation}:1x1",
        args=(f"{'s8' if narrow else 'bf16'}[{size},{size}]",) * 2,
        measured_us=measured_us,
        uncertainty=uncertainty,
        source=f"cubes-{generation}",
        extra=uncertainty > 0.25,
    )


CUBE_ROWS: tuple[Row, ...] = (
    *(
        _cube("v5e", False, size, measured_us)
        for size, measured_us in (
            (2048, 95.0), (3072, 308.7), (4096, 724.7), (6144, 2420.2), (8192, 6035.3), (12288, 19973.8),
            (16384, 46910.6),
        )
    ),
    *(
        _cube("v5e", True, size, measured_us)
        for size, measured_us in (
            (2048, 54.5), (3072, 157.5), (4096, 364.1), (6144, 1214.7), (8192, 2873.9), (12288, 10275.9),
        )
    ),
    *(
        _cube("v6e", False, size, measured_us)
        for size, measured_us in (
            (2048, 38.4), (4096, 189.8), (6144, 581.0), (8192, 1602.7), (12288, 4998.0), (16384, 12479.0),
        )
    ),
    *(_cube("v6e", True, size, measured_us) for size, measured_us in ((2048, 29.6), (4096, 118.8), (6144, 289.4))),
    *(
        Row(
            name=f"v5e-thin-{rows}",
            program=programs.matmul,
            slice="v5e:1x1",
            args=(f"bf16[{rows},16384]", "bf16[16384,16384]"),
            measured_us=723.05,  # 721.6 to 724.5 for 1 to 64 rows
            uncertainty=0.005,
            source="cubes-v5e",
        )
        for rows in (1, 8, 64)
    ),
    Row(
        name="7x-matmul-8192-no-flags",
        program=programs.matmul_f32_out,
        slice="tpu7x:1x1x1",
        args=("bf16[8192,8192]",) * 2,
        measured_us=1_248.6,
        uncertainty=0.1,  # the clock is not one number: 1,016.9 us on an idle chip in its fastest state
        source="dvfs",
    ),
)  # fmt: skip
