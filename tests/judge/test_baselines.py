"""Baseline files: made for review, stable, and never believed when they are damaged."""

from __future__ import annotations

import base64
import errno
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from contract_examples import GATHER, PRICED, REDUCE, program
from hypothesis import given
from hypothesis import strategies as st

from hloscope.app.analyzing import analyze_hlo
from hloscope.base.errors import Command, HloscopeError
from hloscope.judge.baseline_files import (
    BaselineError,
    format_baselines,
    parse_baselines,
    read_baselines,
    write_baselines,
)
from hloscope.judge.baselines import make_baseline
from hloscope.judge.changes import Judgement
from hloscope.judge.checks import check_analysis, make_findings
from hloscope.judge.judging import judge
from hloscope.model import Matmuls, Memory, Mesh, SourceFrame, Unmodelled
from hloscope.model.analysis import Kernel
from hloscope.model.finding import Finding, Severity
from hloscope.model.vocabulary import Bound, Kind, Link
from hloscope.report.checks import CheckReport, format_figure

MEMORY = Memory(
    argument_bytes=239_000_000,
    output_bytes=14_700_000,
    temp_bytes=942_000_000,
    alias_bytes=700_000,
    generated_code_bytes=468_000,
    peak_bytes=1_195_468_000,
    hbm_bytes=16 * 2**30,
)
VERSIONS = {"hloscope": "0.2.0", "jax": "0.10.2", "libtpu": "0.0.42.1"}
BOTH = program(REDUCE, GATHER, replace(GATHER, name="all-gather.9"), memory=MEMORY, versions=VERSIONS)
ROOT = Path("/home/me")
TEXT = """\
hloscope baseline 2
# What one step moves on one device. `hloscope accept` rewrites this file; read the difference before you commit.
target: model.py:step
slice: none
mesh: X=4,Y=2

versions: hloscope 0.2.0, jax 0.10.2, libtpu 0.0.42.1
all-gather@X      bf16      12 times      25,165,824 B payload         18,874,368 B wire  model/moe.py in expert
all-reduce@Y      bf16 add    1 time  32,768 B payload     32,768 B wire  model/mlp.py in block
argument  f32[8] P('X') as f32[1]    1 array
output    f32[8] P('X') as f32[1]    1 array
memory: 239,000,000 B arguments, 14,700,000 B outputs, 942,000,000 B temporaries, 700,000 B aliased, 468,000 B code, \
1,195,468,000 B peak
not understood: 0
end
"""
FIRST = """\
hloscope baseline 1
# What one step moves on one device. `hloscope accept` rewrites this file; read the difference before you commit.
target: model.py:step
slice: none
mesh: X=4,Y=2
versions: hloscope 0.2.0, jax 0.10.2, libtpu 0.0.42.1

all-gather@X  12 times  25,165,824 B payload  18,874,368 B wire  model/moe.py:91 in expert
all-reduce@Y    1 time      32,768 B payload      32,768 B wire  model/mlp.py:7 in block

memory: 239,000,000 B arguments, 14,700,000 B outputs, 942,000,000 B temporaries, 700,000 B aliased, 468,000 B code, \
1,195,468,000 B peak
not understood: 0
total: 13 times, 25,198,592 B payload, 18,907,136 B wire
"""


MATMULS = Matmuls(dtype="bf16", executions=1, flops=2_147_483_648)
RING = Kernel(
    name="ring",
    by_compiler=False,
    line=12,
    calls=1,
    executions=1,
    executions_bound=Bound.EXACT,
    operand_shapes=(),
    result_shapes=(),
    flops=None,
    accessed_bytes=None,
    remote_dma=True,
    op_name=None,
    source=(),
)


def changes(then, now):
    return [cause.message for cause in judged(then, now).causes]


def judged(then, now):
    return judge(make_baseline(then, root=ROOT), now, root=ROOT).judged


def test_the_file():
    assert format_baselines(make_baseline(BOTH, root=ROOT)) == TEXT
    assert parse_baselines(TEXT, name="b.txt") == (make_baseline(BOTH, root=ROOT),)


def test_a_file_of_the_first_version_is_read():
    (baseline,) = parse_baselines(FIRST, name="b.txt")
    assert [row.place.line for row in baseline.rows] == [91, 7]
    assert judge(baseline, BOTH, root=ROOT).judged.judgement is Judgement.SAME
    found = judge(baseline, program(replace(REDUCE, payload_bytes=65_536, wire_bytes=65_536), memory=MEMORY), root=ROOT)
    assert [cause.judgement for cause in found.judged.causes] == ["worse", "better"]


def test_memory_that_the_first_version_counted_otherwise_is_not_judged():
    (baseline,) = parse_baselines(FIRST, name="b.txt")
    grown = replace(MEMORY, temp_bytes=2 * MEMORY.temp_bytes, peak_bytes=2 * MEMORY.peak_bytes)
    found = judge(baseline, replace(BOTH, memory=grown), root=ROOT).judged
    figures = {figure.name: figure.comparable for figure in found.figures}
    assert (found.judgement, figures["memory: peak"], figures["memory: code"]) == (Judgement.SAME, False, True)
    assert any("the peak memory are not judged" in caveat for caveat in found.caveats)
    assert [cause.key for cause in judged(BOTH, replace(BOTH, memory=grown)).causes] == ["memory"]


def test_an_unchanged_program():
    assert changes(BOTH, BOTH) == []


def test_versions_lines_names_and_spelling_are_no_change():
    other = program(
        replace(GATHER, name="all-gather.3", executions=12, asynchronous=True),
        replace(REDUCE, payload_bytes=16_384, wire_bytes=16_384),
        replace(REDUCE, name="r", payload_bytes=16_384, wire_bytes=16_384, source=(SourceFrame(
            file="/ci/model/mlp.py", line=17, function="block"),)),
        memory=MEMORY,
        versions={"jax": "0.12.0"},
    )  # fmt: skip
    assert changes(BOTH, other) == []


def test_what_changed(says):
    twice = replace(GATHER, payload_bytes=4_194_304, wire_bytes=3_145_728)
    grown = judged(BOTH, program(REDUCE, twice, replace(twice, name="g"), memory=MEMORY))
    gone = judged(BOTH, program(REDUCE, memory=MEMORY))
    added = judged(program(REDUCE), program(REDUCE, GATHER))
    lost = judged(BOTH, program(GATHER, replace(GATHER, name="g"), memory=MEMORY))
    assert [each.judgement for each in (grown, gone, added, lost)] == ["worse", "better", "worse", "different"]
    assert added.causes[0].source == "/home/me/model/moe.py:91"
    (finding,) = make_findings(added, accept=Command("accept", ("step",)))
    assert (finding.rule, finding.severity) == ("baseline-changed", "error")
    better, looser, versions = make_findings(gone, accept=Command("accept", ("step",)))
    assert (better.severity, looser.severity, looser.rule) == ("note", "note", "baseline-looser")
    assert "jax 0.10.2, libtpu 0.0.42.1 in the baseline, none here" in versions.message
    assert make_findings(gone, accept=Command("accept", ("step",)), changes="any")[0].severity == "error"
    says([each.causes[0].message for each in (grown, gone, added, lost)] + [finding.fix, looser.message])


def test_memory_may_move_a_little(says):
    def with_peak(peak):
        return replace(BOTH, memory=replace(MEMORY, peak_bytes=peak))

    assert changes(BOTH, with_peak(1_250_000_000)) == []
    assert judged(BOTH, with_peak(900_000_000)).judgement is Judgement.BETTER
    assert changes(with_peak(604_160), with_peak(636_416)) == []  # one tiny program, by two versions of libtpu
    (grown,) = changes(BOTH, with_peak(1_300_000_000))
    (tiny,) = changes(with_peak(600_000), with_peak(732_000))
    (unknown,) = changes(BOTH, with_peak(None))
    assert ("8.7%" in grown, "22.0%" in tiny) == (True, True)
    says([grown, tiny, unknown])


def test_another_mesh_slice_or_less_understood(says):
    (other,) = changes(BOTH, program(*BOTH.collectives, mesh=("X=2", "Y=4"), memory=MEMORY))
    unread = replace(BOTH, unmodelled=(Unmodelled(what="a", effect="b"),))
    (less,) = changes(BOTH, unread)
    assert [cause.judgement for cause in judged(unread, BOTH).causes] == ["better"]  # as an edited baseline would be
    assert changes(unread, replace(BOTH, versions={**VERSIONS, "hloscope": "0.3.0"})) == []  # which understands more
    assert changes(replace(unread, versions={**VERSIONS, "hloscope": "0.0.9"}), BOTH) != []  # which there never was
    says([other, less])


def test_inexact_facts_are_kept():
    inexact = program(
        replace(GATHER, executions_bound=Bound.AT_MOST),
        replace(REDUCE, axes=None, link=Link.DCN, source=(), wire_bytes=None, kind=Kind.OPAQUE, payload_bytes=None),
    )
    text = format_baselines(make_baseline(inexact))
    assert "at most 6 times" in text
    assert re.search(r"opaque@\? over dcn +bf16 +at least 1 time +unknown B payload +unknown B wire\n", text)
    assert parse_baselines(text, name="b") == (make_baseline(inexact),)
    assert changes(inexact, inexact) == []


def test_a_figure_that_is_only_a_bound_is_marked_as_one(says):
    then = program(replace(GATHER, executions_bound=Bound.AT_MOST), REDUCE, time=PRICED)
    now = program(GATHER, REDUCE, time=replace(PRICED, step_us=1400.0, bound=Bound.AT_LEAST))
    text = format_baselines(make_baseline(now, root=ROOT))
    assert "step: at least 1,400.000 us" in text
    assert parse_baselines(text, name="b") == (make_baseline(now, root=ROOT),)
    figures = {figure.name: figure for figure in judged(then, now).figures}
    bounds = {name: (figure.before_bound, figure.after_bound, figure.change_bound) for name, figure in figures.items()}
    assert bounds["sent over X"] == (Bound.AT_MOST, Bound.EXACT, Bound.AT_LEAST)
    assert bounds["sent over Y"] == (Bound.EXACT, Bound.EXACT, Bound.EXACT)
    assert bounds["predicted step"] == (Bound.EXACT, Bound.AT_LEAST, Bound.AT_LEAST)
    says([format_figure(figure) for figure in figures.values()])


def test_what_may_not_run_bounds_what_is_multiplied():
    rows = [MATMULS, replace(MATMULS, flops=2 * MATMULS.flops, bound=Bound.AT_MOST)]
    exact, less, bound = (program(REDUCE, matmuls=(row,)) for row in (MATMULS, replace(MATMULS, flops=10**6), rows[1]))
    text = format_baselines(make_baseline(bound, root=ROOT))
    assert re.search(r"matmuls +bf16 +at most [\d,]+ FLOP", text)
    assert parse_baselines(text, name="b") == (make_baseline(bound, root=ROOT),)
    for then, now, judgement in (
        (exact, less, "better"),
        (less, exact, "worse"),
        (bound, less, "different"),  # what was in the branch may not have run
        (less, bound, "different"),
        (exact, bound, "different"),
    ):
        (cause,) = judged(then, now).causes
        assert (cause.key, cause.judgement) == ("matmuls", judgement), (then, now)


def test_a_program_that_is_not_all_understood_has_figures_that_are_lower_bounds():
    unread = replace(BOTH, unmodelled=(Unmodelled(what="%k is not read", effect="bytes may be missing"),))
    figures = {figure.name: figure for figure in judged(unread, unread).figures}
    assert {figures[name].after_bound for name in ("sent per step", "sent over X")} == {Bound.AT_LEAST}
    assert {figure.after_bound for figure in judged(BOTH, BOTH).figures} == {Bound.EXACT}


def test_a_kernel_whose_code_the_text_does_not_have_is_written_so_that_it_is_read():
    text = format_baselines(make_baseline(program(REDUCE, kernels=(RING,)), root=ROOT))
    assert "kernels: ring unknown\n" in text
    assert parse_baselines(text, name="b")[0].kernels == (("ring", "unknown"),)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((Bound.EXACT, Bound.AT_MOST), "move at most as much as before, 9.44 MB -> ≤9.44 MB sent per step"),
        ((Bound.AT_MOST, Bound.EXACT), "move at least as much as before, ≤9.44 MB -> 9.44 MB sent per step"),
        ((Bound.AT_LEAST, Bound.AT_MOST), "move at most as much as before"),
        ((Bound.AT_MOST, Bound.UNKNOWN), "move an unknown amount"),
    ],
)
def test_a_change_of_bounds_alone_is_not_said_to_be_more(bounds, words):
    then, now = (program(replace(GATHER, executions_bound=bound)) for bound in bounds)
    (message,) = changes(then, now)
    assert words in message


COUNTS = st.integers(0, 10**13)
HIDDEN = "/home/me/\x1b[31m\nall-gather@X.py"
COLLECTIVES = st.builds(
    lambda kind, axes, link, size, executions, file, line, function: replace(
        GATHER,
        kind=kind,
        axes=axes,
        link=link,
        payload_bytes=size,
        wire_bytes=size,
        executions=executions,
        source=() if file is None else (SourceFrame(file=file, line=line, function=function),),
    ),
    st.sampled_from(Kind),
    st.sampled_from([("X",), ("X", "Y"), ("X:(1)2",), ("a b:(1)2", "y"), ('q"x', "it's"), ("a,b=2",), ("?",), (), None])
    | st.lists(st.text(min_size=1), min_size=1, max_size=3).map(tuple),
    st.sampled_from(Link),
    st.none() | COUNTS,
    st.integers(1, 10**6),
    st.sampled_from(
        [None, "/home/me/a.py", "/home/me/model/b c.py", "/usr/lib/x/y.py", "<stdin>", "a:b.py", "C:\\b c.py", HIDDEN]
    ),
    st.integers(0, 10**5),
    st.sampled_from([None, "f", "Model.__call__.<locals>.step", "<lambda>"]),
)


@given(st.lists(COLLECTIVES, max_size=6))
def test_baselines_print_and_read_back(collectives):
    """Also where axes and files are named as no line of a file can hold them."""
    analysis = program(*collectives)
    baseline = make_baseline(analysis, root=ROOT)
    text = format_baselines(baseline)
    assert all(line.isprintable() for line in text.splitlines())
    assert parse_baselines(text, name="b") == (baseline,)
    assert judge(baseline, analysis, root=ROOT).judged.causes == ()


def test_a_mesh_whose_axes_need_quotes_is_kept():
    mesh = Mesh(axis_names=("a b", "y=3,", "\x1b[31m"), axis_sizes=(2, 2, 2))
    baseline = make_baseline(replace(program(replace(GATHER, axes=("a b",))), mesh=mesh))
    assert parse_baselines(format_baselines(baseline), name="b") == (baseline,)


@given(st.integers(0, len(FIRST) - 1), st.sampled_from((TEXT, FIRST)))
def test_a_half_written_baseline_is_refused(length, text):
    if length >= len(text):
        return
    with pytest.raises(HloscopeError):
        parse_baselines(text[:length], name="b")


@given(st.integers(FIRST.index("all-gather"), len(FIRST) - 2), st.sampled_from("0123456789"))
def test_a_changed_digit_in_a_file_of_the_first_version_is_refused(position, digit):
    if not FIRST[position].isdigit() or FIRST[position] == digit:
        return
    damaged = FIRST[:position] + digit + FIRST[position + 1 :]
    try:
        (read,) = parse_baselines(damaged, name="b")
    except HloscopeError:
        return
    assert [(row.executions, row.payload_bytes, row.wire_bytes, row.kind, row.axes) for row in read.rows] == [
        (12, 25_165_824, 18_874_368, "all-gather", ("X",)),
        (1, 32_768, 32_768, "all-reduce", ("Y",)),
    ]
    assert read.memory.peak_bytes == MEMORY.peak_bytes


@pytest.mark.parametrize(
    ("old", "new", "line", "column"),
    [
        ("hloscope baseline 2", "hloscope baseline 3", 1, 1),
        ("25,165,824 B payload", "25,165,82x B payload", 8, 43),
        ("all-gather@X ", "all-gahter@X ", 8, 1),
        ("mesh: X=4,Y=2", "mesh: X=4,Y=two", 5, 7),
        ("468,000 B code", "468,001 B code", 12, 9),
        ("not understood: 0\n", "", 13, 1),
        ("end\n", f"end\n\n{TEXT[TEXT.index('versions') :]}", 23, 1),
    ],
)
def test_a_damaged_baseline(says, old, new, line, column):
    assert old in TEXT
    with pytest.raises(BaselineError) as caught:
        parse_baselines(TEXT.replace(old, new), name="b.txt")
    assert (caught.value.line, caught.value.where) == (line, f"b.txt:{line}:{column}")
    says(caught)


def test_files(says, tmp_path):
    path = tmp_path / "baselines" / "step.txt"
    assert read_baselines(path) == ()
    write_baselines(path, [make_baseline(BOTH, root=ROOT)])
    assert path.read_text() == TEXT
    assert read_baselines(path)[0].rows == make_baseline(BOTH, root=ROOT).rows
    assert [file.name for file in path.parent.iterdir()] == ["step.txt"]
    path.write_bytes(TEXT.replace("\n", "\r\n").encode())  # as git on Windows makes them
    assert read_baselines(path)[0] == make_baseline(BOTH, root=ROOT)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(HloscopeError) as caught:
        read_baselines(path)
    says(caught)


def test_a_full_disk_is_named_and_costs_no_baseline(says, tmp_path, monkeypatch):
    path = tmp_path / "step.txt"
    path.write_text(TEXT)

    def full(file, *_args, **_kwargs):
        file.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(HloscopeError) as caught:
        write_baselines(path, [make_baseline(BOTH)])
    says(caught)
    assert path.read_text() == TEXT
    assert [file.name for file in tmp_path.iterdir()] == ["step.txt"]


def test_what_a_baseline_does_not_say_is_named(says):
    """As somebody would leave it out who wants to be judged by less."""
    then = make_baseline(BOTH)
    compared = judge(
        replace(then, memory=replace(then.memory, peak_bytes=None, generated_code_bytes=None)), BOTH
    ).judged
    assert compared.judgement is Judgement.BETTER
    says([cause.message for cause in compared.causes])


def test_a_baseline_of_what_cannot_move_is_told(says, tmp_path):
    alone = replace(program(mesh=("X=1",)), num_partitions=1)
    path = tmp_path / "alone.txt"
    write_baselines(path, [make_baseline(alone, root=tmp_path)])
    checked = check_analysis("alone", alone, contract=None, baseline=path, root=tmp_path)
    (finding,) = checked.findings
    assert (finding.rule, finding.severity) == ("contract-vacuous", "warning")
    says(finding.message)
    assert checked.passed


def test_a_program_that_no_device_has_the_memory_for_fails_its_baseline(tmp_path):
    large = Finding(rule="hbm-exceeded", severity=Severity.ERROR, message="does not fit")
    program_now = replace(BOTH, findings=(large,))
    path = tmp_path / "step.txt"
    write_baselines(path, [make_baseline(program_now, root=tmp_path)])
    found = check_analysis("step", program_now, contract=None, baseline=path, root=tmp_path)
    assert (found.findings, found.passed) == ((large,), False)
    twice = check_analysis("step", program_now, contract=None, baseline=path, root=tmp_path, fail_on=Severity.NOTE)
    assert twice.findings == (large,)
    accepted = replace(BOTH, findings=(replace(large, allowed="a larger chip is ordered"),))
    assert check_analysis("step", accepted, contract=None, baseline=path, root=tmp_path).passed


SENDING = (
    Path(__file__).parent.parent.parent / "fixtures" / "spellings" / "elsewhere.kernel_with_remote_copy.jax-0.10.hlo"
)


def rewritten(text, edit):
    """HLO text whose kernel's MLIR, without its source's places, went through an edit."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _tpu_ext

    (body,) = re.findall(r'"body"\s*:\s*"([^"]+)"', text)
    context = ir.Context()
    context.allow_unregistered_dialects = True
    _tpu_ext.register_dialect(context)
    with context, io.BytesIO() as file:
        module = ir.Module.parse(base64.b64decode(body))
        before = module.operation.get_asm(enable_debug_info=False)
        ir.Module.parse(edit(before)).operation.write_bytecode(file)
        changed = base64.b64encode(file.getvalue()).decode()
    assert changed != body
    return text.replace(body, changed)


def test_a_kernel_that_sends_by_itself_is_held_to_what_it_does(says):
    text = SENDING.read_text()
    accepted = analyze_hlo(text)
    moved = analyze_hlo(rewritten(text, lambda mlir: mlir))
    other = analyze_hlo(
        rewritten(
            text,
            lambda mlir: mlir.replace("value = 1 : i32", "value = 3 : i32"),
        )
    )
    then = make_baseline(accepted)
    assert parse_baselines(format_baselines(then), name="b.txt")[0].kernels == then.kernels is not None
    assert judge(then, moved).judged.causes == ()
    (changed,) = judge(then, other).judged.causes
    assert changed.judgement is Judgement.DIFFERENT
    says(changed.message)
    older = judge(replace(then, kernels=None, matmuls=None), accepted).judged
    (note,) = make_findings(older, accept=Command("accept", ("step",)))
    assert (older.judgement, note.severity) == (Judgement.SAME, Severity.NOTE)
    both = judge(replace(then, kernels=(("ring", "0123"),)), accepted).judged.causes
    assert (
        sorted(cause.message.rpartition(", ")[2] for cause in both) == ["but is not in the baseline", "is gone"] or both
    )


def test_what_is_accepted_and_not_known_is_named_where_it_passes(tmp_path):
    found = analyze_hlo(SENDING.read_text())
    path = tmp_path / "b.txt"
    write_baselines(path, [make_baseline(found)])
    checked = check_analysis("step", found, contract=None, baseline=path, root=tmp_path)
    assert checked.passed
    assert "1 thing unknown: the Pallas kernel" in str(CheckReport(checks=(checked,), root=tmp_path))
    assert "1 thing unknown: the Pallas kernel" in CheckReport(checks=(checked,), root=tmp_path).report(
        format="markdown"
    )
