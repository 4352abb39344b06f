"""Rows of profiles: single operations on v5p and v6e."""

from __future__ import annotations

from published import programs
from published.row import COLLECTIVE, Row

_FSDP = {"slice": "v5p:2x2x1", "mesh": {"fsdp": 4}, "source": "xprof"}
_CORE = {"slice": "v5p:1x1x1", "source": "xprof"}


def _sum_over_fsdp(name: str, args: tuple[str, ...], measured_us: float) -> Row:
    return Row(
        name=f"v5p-all-reduce-{name}",
        program=programs.sum_over_fsdp,
        args=args,
        timed=COLLECTIVE,
        measured_us=measured_us,
        uncertainty=0.05,  # one value of a profile, in which chips also wait for each other
        **_FSDP,
    )


_V5P: tuple[Row, ...] = (
    Row(
        name="v5p-reduce-scatter-f32",
        program=programs.scatter_rows,
        args=("f32[2048,32000]",),
        timed=COLLECTIVE,
        measured_us=1_969.45,
        uncertainty=0.01,
        **_FSDP,
    ),
    Row(
        name="v5p-reduce-scatter-bf16",
        program=programs.scatter_rows,
        args=("bf16[2048,7168]",),
        timed=COLLECTIVE,
        measured_us=219.02,
        uncertainty=0.01,
        **_FSDP,
    ),
    Row(
        name="v5p-reduce-scatter-one-core",
        program=programs.scatter_rows,
        args=("bf16[2048,2048]",),
        timed=COLLECTIVE,
        measured_us=65.85,  # 64.5 to 67.2, while the chip's other core computes
        uncertainty=0.02,
        **_FSDP,
    ),
    Row(
        name="v5p-all-gather",
        program=programs.gather_over_fsdp(1),
        args=("bf16[1,2048@fsdp,16,128]",),
        timed=COLLECTIVE,
        measured_us=69.2,  # 69.5 and 68.9
        uncertainty=0.01,
        **_FSDP,
    ),
    Row(
        name="v5p-all-gather-small",
        program=programs.gather_over_fsdp(0),
        args=("s32[4@fsdp,1,2048]",),
        timed=COLLECTIVE,
        measured_us=7.79,
        uncertainty=0.05,
        **_FSDP,
    ),
    _sum_over_fsdp("s32", ("s32[]",), 6.95),
    _sum_over_fsdp("bf16", ("bf16[2048]",), 6.61),
    _sum_over_fsdp("9xf32", ("f32[]",) * 9, 6.72),
    _sum_over_fsdp("19xf32", ("f32[]",) * 19, 8.97),
    _sum_over_fsdp("2xbf16", ("bf16[1,2048]",) * 2, 8.39),
    Row(
        name="v5p-matmul",
        program=programs.matmul,
        args=("bf16[2048,2048]", "bf16[2048,7168]"),
        measured_us=143.65,
        uncertainty=0.02,  # a step of an asynchronous gather is in it
        **_CORE,
    ),
    Row(
        name="v5p-adamw",
        program=programs.adamw,
        args=("f32[512,16,16,128]",) * 4,
        measured_us=197.6,
        uncertainty=0.01,
        **_CORE,
    ),
    Row(
        name="v5p-reduce",
        program=programs.sum_all,
        args=("f32[2048,32000]",),
        measured_us=103.6,
        uncertainty=0.02,
        **_CORE,
    ),
    Row(
        name="v5p-permute-1MiB",
        program=programs.pass_on,
        slice="v5p:2x2x1",
        mesh={"fsdp": 4},
        args=("u8[4194304@fsdp]",),
        timed=COLLECTIVE,
        measured_us=16.94,
        uncertainty=0.02,
        source="permutes",
    ),
    Row(
        name="v5p-permute-64MiB",
        program=programs.pass_on,
        slice="v5p:2x2x1",
        mesh={"fsdp": 4},
        args=("u8[268435456@fsdp]",),
        timed=COLLECTIVE,
        measured_us=781.98,
        uncertainty=0.01,
        source="permutes",
    ),
)

_V6E: tuple[Row, ...] = (
    Row(
        name="v6e-all-reduce-pairs",
        program=programs.sum_over_pairs,
        slice="v6e:2x4",
        mesh={"half": 2, "rest": 4},
        args=("f32[1342177280]",),
        timed=COLLECTIVE,
        measured_us=121_690.0,
        uncertainty=0.02,
        source="transfers",
    ),
    Row(
        name="v6e-fill",
        program=programs.fill,
        slice="v6e:1x1",
        args=("f32[]",),
        measured_us=4_444.0,
        uncertainty=0.01,
        source="transfers",
    ),
)

PROFILE_ROWS: tuple[Row, ...] = (*_V5P, *_V6E)
