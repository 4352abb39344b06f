"""Whatever is analyzed, and however wide the terminal: nothing is too wide, nothing that a reader counts is broken."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_examples import FULL, GATHER, LONG, NOTHING

from hloscope.analysis.totals import compute_totals, sort_largest_first
from hloscope.base.canvas import Canvas
from hloscope.base.units import format_bytes, format_count
from hloscope.model import ArrayFact, Mesh, SourceFrame, make_shapes
from hloscope.model.vocabulary import Bound, Kind, Link
from hloscope.report.formats import render

AXES = ("X", "data", "model", "D:(2)2", "fsdp_transpose_sequence", "a_rather_long_axis_of_the_mesh")
DIMENSIONS = st.lists(st.sampled_from([1, 8, 512, 4096, 14336, 1_000_000]), max_size=4).map(tuple)
DTYPES = st.sampled_from(["f32", "bf16", "f8e4m3fn", "pred"])
SHAPES = st.lists(
    st.builds(lambda dtype, sizes: f"{dtype}[{','.join(map(str, sizes))}]", DTYPES, DIMENSIONS), min_size=1, max_size=4
).map(lambda texts: make_shapes(*texts))
NAMES = st.text(st.sampled_from("abcxyz019_"), min_size=1, max_size=50)
FRAMES = st.builds(
    SourceFrame, file=NAMES.map(lambda name: f"/home/me/{name}.py"), line=st.integers(1, 9999), function=NAMES
)
ENVIRONMENT = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)

COLLECTIVES = st.builds(
    lambda **changes: replace(GATHER, **changes),
    kind=st.sampled_from(Kind),
    name=NAMES,
    axes=st.none() | st.lists(st.sampled_from(AXES), max_size=2, unique=True).map(tuple),
    link=st.sampled_from(Link),
    operand_shapes=SHAPES,
    result_shapes=SHAPES,
    wire_bytes=st.none() | st.integers(0, 10**13),
    executions=st.integers(1, 10**6),
    executions_bound=st.sampled_from(Bound),
    source=st.lists(FRAMES, max_size=1).map(tuple),
    source_of=st.none() | NAMES,
)
ARRAYS = st.builds(
    ArrayFact,
    name=st.lists(NAMES, min_size=1, max_size=3).map(lambda path: "params" + "".join(f"['{key}']" for key in path)),
    dtype=DTYPES,
    global_shape=st.none() | DIMENSIONS,
    local_shape=DIMENSIONS,
    sharding=st.none()
    | st.lists(st.sampled_from(AXES), max_size=3).map(lambda axes: f"P({', '.join(map(repr, axes))})"),
    chosen_by=st.sampled_from([None, "user", "compiler"]),
    bytes_per_device=st.none() | st.integers(0, 10**12),
    donated=st.booleans(),
    used=st.booleans(),
)


@st.composite
def analyses(draw):
    collectives = sort_largest_first(draw(st.lists(COLLECTIVES, max_size=5)))
    return replace(
        draw(st.sampled_from([NOTHING, FULL, LONG])),
        mesh=draw(st.none() | st.just(Mesh(axis_names=AXES[:3], axis_sizes=(1, 2, 2)))),
        collectives=collectives,
        totals=compute_totals(collectives),
        arguments=tuple(draw(st.lists(ARRAYS, max_size=14))),
        outputs=tuple(draw(st.lists(ARRAYS, max_size=3))),
    )


def report(analysis, width):
    return render("analysis", "text", analysis, Canvas(width=width))


@ENVIRONMENT
@given(analyses(), st.integers(40, 200))
def test_no_line_is_wider_than_the_canvas(analysis, width):
    assert max(map(len, report(analysis, width).splitlines())) <= width


@ENVIRONMENT
@given(analyses(), st.integers(1, 40))
def test_a_terminal_of_no_use_is_no_error(analysis, width):
    assert report(analysis, width)


@ENVIRONMENT
@given(analyses(), st.integers(40, 200))
def test_what_a_reader_counts_is_whole(analysis, width):
    text = report(analysis, width)
    for one in analysis.collectives:
        assert one.kind in text
        assert format_count(one.executions) in text
        assert all(axis in text for axis in one.axes or ())
        gathers = one.kind in (Kind.ALL_GATHER, Kind.OPAQUE)
        assert all(str(shape) in text for shape in (one.result_shapes if gathers else one.operand_shapes)[:2])
        assert not one.source or f":{one.source[0].line}" in text
    for total in analysis.totals.by_axis.values():
        assert format_bytes(total.wire_bytes) in text
        assert format_count(total.executions) in text
    for array in (*analysis.arguments[: 12 if len(analysis.arguments) <= 12 else 0], *analysis.outputs):
        unused = array.local_shape if array.global_shape is None else array.global_shape
        dimensions = array.local_shape if array.used else unused
        assert f"{array.dtype}[{','.join(map(str, dimensions))}]" in text
        assert not array.used or format_bytes(array.bytes_per_device) in text
        assert all(axis in text for axis in AXES if repr(axis) in (array.sharding or ""))
