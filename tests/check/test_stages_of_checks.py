"""A check compiles a target as far as what is expected of it needs, and no further."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hloscope
from hloscope.app.checking import check_project
from hloscope.app.config import read_project
from hloscope.app.jobs import list_jobs, run_job
from hloscope.compile import client, compiling
from hloscope.judge.baseline_files import parse_baselines, read_baselines, write_baselines
from hloscope.judge.baselines import make_baseline
from hloscope.judge.checks import can_be_scheduled
from hloscope.judge.judging import judge
from hloscope.judge.notation import read_contract
from hloscope.model.analysis import count_constant_bytes
from hloscope.model.vocabulary import CompileStage
from hloscope.report.checks import _format_facts as format_target

PROGRAM = """
import jax, jax.numpy as jnp

def step(w, x):
    return jnp.tanh(x @ w)
"""
KERNEL = """
import jax
from jax.experimental import pallas as pl

def add_one(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1

@jax.shard_map(mesh=jax.sharding.get_abstract_mesh(), in_specs=jax.P("X"), out_specs=jax.P("X"), check_vma=False)
def kernel(x):
    return pl.pallas_call(add_one, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

def step(w, x):
    return jax.lax.with_sharding_constraint(kernel(x) @ w, jax.P())
"""
TOO_MUCH_VMEM = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def kernel(x_ref, o_ref, big):
    big[0:8, 0:512] = x_ref[0:8, :]
    o_ref[0:8, :] = big[0:8, 0:512]

@jax.shard_map(mesh=jax.sharding.get_abstract_mesh(), in_specs=jax.P("X"), out_specs=jax.P("X"), check_vma=False)
def copied(x):
    scratch = [pltpu.VMEM((131072, 1024), jnp.bfloat16)]
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), scratch_shapes=scratch)(x)

def step(w, x):
    return jax.lax.with_sharding_constraint(copied(w), jax.P())
"""
TARGET = """
[targets.step]
function = "m.py:step"
mesh = {{ X = 8 }}
slice = "v5e:2x4"
args = ["bf16[1024@X,512]", "bf16[256,1024@X]"]
{more}
"""
CONTRACT = 'contract = "all-reduce@X"\n'
pytestmark = [pytest.mark.tpu_compiler]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes the program and its target, whose machine code seems to take long; returns the project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client.Question, "is_answered", False)
    monkeypatch.setattr(compiling, "SOON_COMPILED_CHARS", 0)

    def write_project(more, program=PROGRAM):
        (tmp_path / "m.py").write_text(program)
        (tmp_path / "hloscope.toml").write_text(TARGET.format(more=more))
        return read_project(tmp_path / "hloscope.toml")

    return write_project


def checked(project, monkeypatch):
    """The only target, checked in this process."""
    found = []

    def run_here(jobs, on_done, **_):
        for job in jobs:
            outcome = run_job(job, cached=False)
            found.append(outcome)
            on_done(outcome)

    monkeypatch.setattr("hloscope.app.checking.run_jobs", run_here)
    (one,) = check_project(project)
    assert one.error is None, one.error
    return one


def accept(project):
    """Writes the baseline of the only target as it is; returns its file."""
    (job,) = list_jobs(project, ())
    outcome = run_job(job, cached=False)
    assert outcome.analysis is not None, outcome.error
    assert outcome.analysis.stage is CompileStage.COMPILED
    job.baseline.parent.mkdir(exist_ok=True)
    write_baselines(job.baseline, [make_baseline(outcome.analysis, root=job.root)])
    return job.baseline


def test_a_contract_on_collectives_is_decided_before_there_is_machine_code(write, monkeypatch):
    one = checked(write(CONTRACT), monkeypatch)
    assert (one.analysis.stage, one.passed) == (CompileStage.SCHEDULED, True)
    assert "  scheduled  against its contract alone" in format_target(one)
    broken = checked(write('contract = "none"\n'), monkeypatch)
    assert (broken.analysis.stage, broken.passed) == (CompileStage.SCHEDULED, False)


@pytest.mark.parametrize(("limit", "holds"), [("1GiB", True), ("300kB", False)])
def test_a_limit_of_memory_is_decided_where_no_code_could_make_a_difference(write, monkeypatch, limit, holds):
    one = checked(write(f'contract = ["all-reduce@X", "hbm <= {limit}"]\n'), monkeypatch)
    assert (one.analysis.stage, one.passed) == (CompileStage.SCHEDULED, holds)
    whole = checked(write(f'contract = ["all-reduce@X", "time <= 1s", "hbm <= {limit}"]\n'), monkeypatch)
    assert (whole.analysis.stage, whole.passed) == (CompileStage.COMPILED, holds)
    memory, compiled = one.analysis.memory, whole.analysis.memory
    assert memory.data_bytes == compiled.data_bytes
    assert compiled.generated_code_bytes < memory.most_code_bytes


@pytest.mark.parametrize(
    ("more", "program"),
    [
        ('contract = ["all-reduce@X", "time <= 1s"]\n', None),
        ('contract = ["all-reduce@X", "hbm <= 600kB"]\n', None),
        (CONTRACT + 'fail-on = "error"\n', None),
        ('contract = "all-reduce@X"\n', KERNEL),
    ],
    ids=["a time", "a limit of memory that code may exceed", "rules", "a kernel"],
)
def test_what_needs_machine_code_is_compiled(write, monkeypatch, more, program):
    project = write(more) if program is None else write(more, program)
    assert checked(project, monkeypatch).analysis.stage is CompileStage.COMPILED


def test_a_kernel_that_overflows_vmem_fails_its_check(write, monkeypatch):
    one = checked(write('contract = "all-gather@X"\n', TOO_MUCH_VMEM), monkeypatch)
    assert (one.analysis.stage, one.passed) == (CompileStage.COMPILED, False)
    assert any("vmem" in note for note in one.analysis.notes)


def test_an_unchanged_program_is_known_by_its_baseline_and_another_one_is_compiled(write, monkeypatch):
    project = write("")
    accept(project)
    same = checked(project, monkeypatch)
    assert same.judged.causes == ()
    assert (same.analysis.stage, same.passed, same.judged.causes) == (CompileStage.SCHEDULED, True, ())
    moved = checked(write("", "\n\n" + PROGRAM.replace("(w, x)", "(w,\n         x)")), monkeypatch)
    assert moved.analysis.stage is CompileStage.SCHEDULED  # lines are not the program
    other = checked(write("", PROGRAM.replace("tanh", "exp")), monkeypatch)
    assert other.analysis.stage is CompileStage.COMPILED
    assert other.analysis.digest != same.analysis.digest


def test_a_baseline_that_does_not_name_its_program_asks_for_machine_code(write, monkeypatch):
    project = write("")
    path = accept(project)
    write_baselines(path, [replace(each, digest=None) for each in read_baselines(path)])
    assert checked(project, monkeypatch).analysis.stage is CompileStage.COMPILED


def test_what_the_baseline_says_of_a_known_program_is_still_compared(write, monkeypatch):
    project = write("")
    path = accept(project)
    (kept,) = read_baselines(path)
    less = replace(kept.rows[0], wire_bytes=kept.rows[0].wire_bytes // 2)
    write_baselines(path, [replace(kept, rows=(less, *kept.rows[1:]))])
    one = checked(project, monkeypatch)
    assert (one.analysis.stage, one.passed) == (CompileStage.SCHEDULED, False)


def test_a_baseline_file_names_its_program(write):
    text = accept(write("")).read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("program: ")]
    (read,) = parse_baselines(text, name="step.txt")
    assert line.startswith(f"program: {read.digest} ")
    step = next(line for line in text.splitlines() if line.startswith("step: "))
    for changed in (text.replace(f"{step}\n", ""), text.replace("step: ", "step: 9")):
        assert parse_baselines(changed, name="step.txt")[0].digest is None
    with pytest.raises(hloscope.HloscopeError, match="program of the baseline cannot be read"):
        parse_baselines(text.replace(line, "program: none"), name="step.txt")


def test_only_a_program_with_its_own_figures_is_named_after_an_acceptance(write):
    path = accept(write(""))
    (kept,) = read_baselines(path)
    (job,) = list_jobs(read_project(path.parent.parent / "hloscope.toml"), ())
    found = replace(run_job(job, cached=False).analysis, digest="0" * 16)
    assert judge(kept, found, root=job.root, of_target=True).accept().digest == "0" * 16  # the same figures
    slower = replace(kept, step=replace(kept.step, step_us=0.99 * kept.step.step_us))
    hardly = judge(slower, found, root=job.root, of_target=True).accept()
    assert (hardly.step, hardly.digest) == (slower.step, kept.digest)  # growth within the tolerance adds up
    less = replace(kept, rows=(replace(kept.rows[0], wire_bytes=1), *kept.rows[1:]), arrays=kept.arrays[1:])
    changed = judge(less, found, root=job.root, of_target=True)
    assert changed.accept([changed.changes[0].key]).digest is None


def test_large_constants_count_as_code():
    assert count_constant_bytes("  %c = bf16[4096,8192]{1,0:T(8,128)(2,1)} constant({...})\n") == 2 * 4096 * 8192
    assert count_constant_bytes("  %c = s32[2]{0:T(128)} constant({1, 2})\n") == 0
    assert count_constant_bytes("  %c = odd[64]{0} constant({...})\n") is None


def test_a_digest_knows_the_figures_of_the_chip(write):
    write("")
    args, mesh = ("bf16[1024@X,512]", "bf16[256,1024@X]"), {"X": 8}
    digests = [
        hloscope.analyze("m.py:step", args, mesh=mesh, slice="v5e:2x4", chip_overrides=overrides).digest
        for overrides in ((), (), "hbm_bytes_per_s=1e12")
    ]
    assert digests[0] == digests[1] != digests[2]


def test_limits_of_times_need_machine_code():
    assert not can_be_scheduled(read_contract("exposed <= 10%", where="contract"), None, None)
    for decided in ("wire@X <= 1MB", "repeated <= 1.05"):
        assert can_be_scheduled(read_contract(decided, where="contract"), None, None)
