"""What a baseline becomes when changes are accepted: no figure moves that has not changed, and files merge."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from contract_examples import GATHER, REDUCE, program

from hloscope.judge.baseline_files import format_baselines, read_baselines, write_baselines
from hloscope.judge.baselines import find_section, make_baseline
from hloscope.judge.changes import AllowedGrowth, Judgement
from hloscope.judge.judging import judge, replace_section
from hloscope.model import Memory, SourceFrame


@pytest.fixture
def accepted_program(tmp_path):
    """A program of two collectives, its baseline file, and the folder of its source."""
    (tmp_path / "model.py").write_text("x = 1\nh = gather(w)\ny = reduce(h)\n" * 10)

    def at(line):
        return (SourceFrame(file=str(tmp_path / "model.py"), line=line, function="block"),)

    memory = Memory(
        argument_bytes=150_000, output_bytes=50_000, temp_bytes=100_000, alias_bytes=0, generated_code_bytes=0,
        peak_bytes=300_000,
    )  # fmt: skip
    found = program(
        replace(GATHER, source=at(2)),
        replace(REDUCE, source=at(3)),
        memory=memory,
        versions={"hloscope": "0.2.0", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42"},
    )
    path = tmp_path / "hloscope_baselines" / "block.txt"
    write_baselines(path, [make_baseline(found, root=tmp_path)])
    return found, path, tmp_path


def test_what_has_not_changed_stays_as_it_is(accepted_program):
    accepted, path, root = accepted_program
    (before,) = read_baselines(path)
    memory = replace(accepted.memory, temp_bytes=110_000, peak_bytes=310_000)
    moved = tuple(
        replace(each, source=tuple(replace(frame, line=frame.line + 6) for frame in each.source))
        for each in accepted.collectives
    )
    later = replace(accepted, memory=memory, collectives=moved)
    compared = judge(before, later, root=root)
    assert compared.judged.judgement is Judgement.SAME
    assert format_baselines(compared.accept()) == path.read_text()


def test_how_far_figures_may_grow_is_a_setting(accepted_program):
    accepted, path, root = accepted_program
    (before,) = read_baselines(path)
    larger = replace(accepted, memory=replace(accepted.memory, temp_bytes=400_000, peak_bytes=600_000))
    assert judge(before, larger, root=root).judged.judgement is Judgement.WORSE
    lenient = AllowedGrowth(memory={"peak": 2.0})
    assert judge(before, larger, root=root, tolerance=lenient).judged.judgement is Judgement.SAME
    by_part = AllowedGrowth(memory={"peak": 2.0, "temporaries": 0.1})
    (cause,) = judge(before, larger, root=root, tolerance=by_part).judged.causes
    assert "the memory for temporaries grew by 300.0%" in cause.message


def test_each_compiler_has_a_section(accepted_program):
    accepted, path, root = accepted_program
    newer = replace(accepted, versions={**accepted.versions, "jax": "0.12.0"})
    sections = replace_section(read_baselines(path), make_baseline(newer, root=root), beside=True)
    write_baselines(path, sections)
    assert [dict(each.compiler)["jax"] for each in read_baselines(path)] == ["0.10.2", "0.12.0"]
    assert find_section(read_baselines(path), make_baseline(newer)).versions["jax"] == "0.12.0"
    newest = make_baseline(replace(accepted, versions={**accepted.versions, "jax": "0.13.0"}), root=root)
    assert len(replace_section(read_baselines(path), newest)) == 1
    assert judge(find_section(read_baselines(path), newest), accepted, root=root).judged.versions is None


@pytest.mark.process
def test_two_branches_merge_and_one_change_is_one_line(accepted_program, tmp_path):
    accepted, path, root = accepted_program
    mine, theirs = tmp_path / "mine.txt", tmp_path / "theirs.txt"
    gather, reduce = accepted.collectives
    apart = replace(REDUCE, source=(replace(gather.source[0], line=1, function="middle"),))
    added = replace(REDUCE, source=(replace(gather.source[0], line=1, function="tail"),))
    grown = replace(reduce, payload_bytes=65_536, wire_bytes=65_536)
    write_baselines(path, [make_baseline(replace(accepted, collectives=(gather, reduce, apart)), root=root)])
    one_more, other = (
        replace(accepted, collectives=(gather, reduce, apart, added)),
        replace(accepted, collectives=(gather, grown, apart)),
    )
    for file, changed in ((mine, one_more), (theirs, other)):
        write_baselines(file, [make_baseline(changed, root=root)])
        was, now = set(path.read_text().splitlines()), set(file.read_text().splitlines())
        assert (len(was - now), len(now - was)) == ((0, 1) if changed is one_more else (1, 1))
    subprocess.run(["git", "merge-file", str(mine), str(path), str(theirs)], check=True)
    both = replace(accepted, collectives=(gather, grown, apart, added))
    assert judge(read_baselines(mine)[0], both, root=root).judged.judgement is Judgement.SAME


def test_the_text_of_lines_is_read_in_the_project_alone(accepted_program, tmp_path_factory):
    accepted, path, root = accepted_program
    assert "model.py in block: h = gather(w)" in path.read_text()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copy(root / "model.py", elsewhere)
    other = tuple(
        replace(each, source=(replace(each.source[0], file=str(Path(elsewhere) / "model.py")),))
        for each in accepted.collectives
    )
    assert "gather(w)" not in format_baselines(make_baseline(replace(accepted, collectives=other), root=root))
