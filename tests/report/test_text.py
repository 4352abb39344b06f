"""The text report against goldens; `pytest tests/report --update-goldens` rewrites them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hloscope.analysis.model import Analysis, ArrayFact, Collective, Memory, Mesh, SliceFact, SourceFrame, Total, Totals
from hloscope.analysis.vocabulary import Bound, Kind, Link
from hloscope.findings import Finding, Severity
from hloscope.report import FORMATS, Canvas

GOLDENS = Path(__file__).parent / "goldens"


def total(wire_bytes, collectives=1, executions=1, bound=Bound.EXACT):
    return Total(
        wire_bytes=wire_bytes, payload_bytes=wire_bytes, collectives=collectives, executions=executions, bound=bound
    )


def totals(whole, by_axis=None):
    return Totals(**asdict(whole), by_axis=by_axis or {}, by_kind={}, by_link={})


NOTHING = Analysis(
    target="model.py:step",
    module="jit_step",
    slice=None,
    mesh=None,
    num_partitions=1,
    collectives=(),
    totals=totals(total(0, 0, 0)),
    arguments=(),
    outputs=(),
    memory=Memory(),
    versions={"hloscope": "0.1.0"},
)

GATHER = Collective(
    kind=Kind.ALL_GATHER,
    name="all-gather.8",
    computation="body",
    line=97,
    axes=("X",),
    groups=((0, 1, 2, 3), (4, 5, 6, 7)),
    group_size=4,
    link=Link.ICI,
    operand_shapes=("bf16[1,4096,14336]",),
    result_shapes=("bf16[4,4096,14336]",),
    payload_bytes=469_762_048,
    wire_bytes=352_321_536,
    executions=8,
    executions_bound=Bound.EXACT,
    source=(SourceFrame(file="/home/me/moe.py", line=14, function="layer.<locals>.expert"),),
    source_of="fusion.16",
)
BOUNDED = replace(
    GATHER,
    kind=Kind.ALL_REDUCE,
    name="all-reduce.2",
    operand_shapes=("f32[16]", "f32[8,8]", "s32[4]"),
    result_shapes=("f32[16]", "f32[8,8]", "s32[4]"),
    payload_bytes=336,
    wire_bytes=504,
    executions=1,
    executions_bound=Bound.AT_LEAST,
    axes=None,
    source=(),
    source_of=None,
)
OPAQUE = replace(
    GATHER,
    kind=Kind.OPAQUE,
    name="kernel",
    axes=None,
    groups=(),
    group_size=None,
    payload_bytes=None,
    wire_bytes=None,
    executions=1,
    source=(SourceFrame(file="/home/me/kernel.py", line=3, function="<lambda>"),),
    source_of=None,
)

FULL = replace(
    NOTHING,
    slice=SliceFact(name="v5e:2x4", chip="v5e", chips=8, devices=8, slices=1, used_devices=8, chosen_by="user"),
    mesh=Mesh(axis_names=("X", "Y"), axis_sizes=(4, 2), axis_types=("auto", "explicit")),
    num_partitions=8,
    collectives=(OPAQUE, GATHER, replace(GATHER, name="all-gather.9", line=98), BOUNDED),
    totals=totals(
        total(5_637_145_080, 4, 18, Bound.AT_LEAST),
        by_axis={"X": total(5_637_144_576, 2, 16), "?": total(504, 2, 2, Bound.AT_LEAST)},
    ),
    arguments=(
        ArrayFact(
            name="params['layers'][0]['kernel']",
            dtype="bf16",
            global_shape=(4, 4096, 14336),
            local_shape=(1, 4096, 14336),
            sharding="P('X', None, None)",
            chosen_by="user",
            bytes_per_device=117_440_512,
            donated=True,
        ),
        ArrayFact(
            name="unread",
            dtype="f32",
            global_shape=(64,),
            local_shape=(64,),
            sharding=None,
            chosen_by=None,
            bytes_per_device=256,
            used=False,
        ),
    ),
    outputs=(
        ArrayFact(
            name="result",
            dtype="f32",
            global_shape=None,
            local_shape=(16,),
            sharding=None,
            chosen_by="compiler",
            bytes_per_device=64,
        ),
    ),
    memory=Memory(
        argument_bytes=117_440_512,
        output_bytes=512,
        temp_bytes=16_000_000_000,
        alias_bytes=512,
        generated_code_bytes=4096,
        peak_bytes=16_117_444_608,
        hbm_bytes=16 * 2**30,
    ),
    findings=(
        Finding(
            rule="opaque-communication",
            severity=Severity.WARNING,
            message="%kernel communicates in a way the text does not tell: totals are lower bounds",
            line=97,
            fix="account for its bytes by hand",
        ),
    ),
    notes=("no v5e block has 7 chips: compiled on 7 of the 8 chips of v5e:2x4",),
)

CASES = {"nothing": (NOTHING, 100), "full": (FULL, 100), "narrow": (FULL, 72), "wide": (FULL, 160)}


@pytest.mark.parametrize("name", CASES)
def test_golden(name, request):
    analysis, width = CASES[name]
    text = FORMATS["text"](analysis, Canvas(width=width))
    path = GOLDENS / f"{name}.txt"
    if request.config.getoption("--update-goldens"):
        path.write_text(text)
    assert text == path.read_text()
    assert max(map(len, text.splitlines())) <= width


def test_every_golden_is_used():
    assert {path.stem for path in GOLDENS.iterdir()} == set(CASES)


def test_colour_only_when_asked_for():
    assert "\x1b[" not in FORMATS["text"](FULL, Canvas(width=100))
    assert "\x1b[" in FORMATS["text"](FULL, Canvas(width=100, colour=True))


def test_alike_collectives_share_a_row_and_their_bytes_are_summed():
    text = FORMATS["text"](FULL, Canvas(width=160))
    (row,) = [line for line in text.splitlines() if line.strip().startswith("all-gather")]
    words = " ".join(row.split())
    assert words == "all-gather X bf16[4,4096,14336] 2 8 5.64 GB moe.py:14 in expert (of %fusion.16)"


def test_many_rows_are_cut_and_said_so():
    many = tuple(replace(GATHER, name=f"g{i}", result_shapes=(f"bf16[{i}]",)) for i in range(50))
    text = FORMATS["text"](replace(FULL, collectives=many), Canvas(width=100))
    assert "… and 10 smaller rows (all of them with --format json)" in text
