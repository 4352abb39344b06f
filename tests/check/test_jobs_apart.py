"""Targets that must not be taken for one another: of one name, of one process, of two revisions."""

from __future__ import annotations

import re
import signal
import time
from concurrent.futures import Future
from itertools import groupby
from pathlib import Path

import pytest
from check_examples import Repository

from hloscope.app import jobs as jobs_apart
from hloscope.app.config import ConfigError, read_project
from hloscope.app.jobs import Outcome, list_jobs, run_jobs
from hloscope.base import store
from hloscope.compile.pool import WorkerPool

DEFAULTS = '[defaults]\nmesh = { X = 8 }\nslice = "v5e:2x4"\nargs = ["f32[8@X,128]"]\nout = ["P(None, None)"]\n'


def project(folder, targets):
    path = folder / "hloscope.toml"
    path.write_text(DEFAULTS + targets)
    return path


@pytest.mark.parametrize(
    ("targets", "named"),
    [
        ('[targets."a b"]\nfunction = "m.py:f"\n[targets.a-b]\nfunction = "m.py:f"\n', "a-b.txt"),
        (
            '[targets.a]\nfunction = "m.py:f"\nslices = ["v5e:2x4", "v6e:2x4"]\n'
            '[targets."a@v5e:2x4"]\nfunction = "m.py:g"\nbaseline = false\n',
            "a@v5e:2x4",
        ),
    ],
    ids=["baseline", "name"],
)
def test_targets_of_one_name_or_one_baseline_are_refused(says, tmp_path, targets, named):
    with pytest.raises(ConfigError) as caught:
        list_jobs(read_project(project(tmp_path, targets)), ())
    assert named in caught.value.what
    assert caught.value.fix
    says(caught)


def test_one_slice_of_several_can_be_named(says, tmp_path):
    two = '[targets.a]\nfunction = "m.py:f"\nslices = ["v5e:2x4", "v6e:2x4"]\n[targets.b]\nfunction = "m.py:f"\n'
    config = read_project(project(tmp_path, two))

    def named(*names):
        return [job.name for job in list_jobs(config, names)]

    assert named("a@v6e:2x4", "b") == ["a@v6e:2x4", "b"]
    assert named("a") == named("a", "a@v6e:2x4") == ["a@v5e:2x4", "a@v6e:2x4"]
    with pytest.raises(ConfigError) as caught:
        named("b", "a@v5p:2x2x2")
    assert "'v5p:2x2x2'" in caught.value.what
    assert caught.value.fix == "it has v5e:2x4, v6e:2x4"
    says(caught)


def test_the_only_slice_of_a_target_can_be_named(says, tmp_path):
    one = '[targets.a]\nfunction = "m.py:f"\nslice = "v5e:2x4"\n[targets.b]\nfunction = "m.py:f"\n'
    config = read_project(project(tmp_path, one))
    assert [job.name for job in list_jobs(config, ["a@v5e:2x4"])] == ["a"]
    for wrong, fix in (("a@v5p:2x2x2", "it has v5e:2x4"), ("nope", "the targets are a, b")):
        with pytest.raises(ConfigError) as caught:
            list_jobs(config, [wrong])
        assert caught.value.fix == fix
        says(caught, wrong)


@pytest.mark.tpu_compiler
def test_settings_of_one_target_do_not_reach_the_next(tmp_path):
    project(
        tmp_path,
        '[targets.wide]\nfunction = "wide.py:f"\ncontract = "all-gather@X"\nbaseline = false\n'
        '[targets.plain]\nfunction = "plain.py:f"\ncontract = "all-gather@X <= 4096B"\nbaseline = false\n',
    )
    plain = "import jax.numpy as jnp\n\ndef f(x):\n    return x * 2 + jnp.asarray(1.5, 'float64').astype(x.dtype)\n"
    (tmp_path / "wide.py").write_text("import jax\njax.config.update('jax_enable_x64', True)\n" + plain)
    (tmp_path / "plain.py").write_text(
        "import jax\nimport jax.numpy as jnp\n\ndef f(x):\n    assert not jax.config.jax_enable_x64\n    return x * 2\n"
    )
    done = Repository(tmp_path, tmp_path / "cache").run("check", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("2 passed\n")


@pytest.mark.tpu_compiler
def test_what_can_be_registered_once_is_no_hindrance_to_the_next_target(tmp_path):
    table = '[targets.{0}]\nfunction = "{0}.py:f"\ncontract = "all-gather@X"\nbaseline = false\n'
    project(tmp_path, "".join(table.format(name) for name in ("one", "two")))
    (tmp_path / "shared.py").write_text(
        "import argparse, jax\njax.tree_util.register_pytree_node(argparse.Namespace, vars, lambda _, c: c)\n"
    )
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("import shared\n\ndef f(x):\n    return x * 2\n")
    done = Repository(tmp_path, tmp_path / "cache").run("check", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("2 passed\n")


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGKILL])
def test_a_target_that_hangs_ends_with_its_check(tmp_path, told):
    project(tmp_path, '[targets.hangs]\nfunction = "m.py:f"\ncontract = "none"\n')
    (tmp_path / "m.py").write_text("import pathlib, time\npathlib.Path('imported').touch()\ntime.sleep(3600)\n")
    process = Repository(tmp_path, tmp_path / "cache").start("check")
    end = time.monotonic() + 60
    while not (tmp_path / "imported").exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(told)
    output, _ = process.communicate(timeout=30)  # which ends when no process of it is left
    assert process.returncode == (130 if told == signal.SIGINT else -signal.SIGKILL), output


@pytest.mark.long
@pytest.mark.tpu_compiler
def test_a_revision_does_not_import_the_working_tree(says, tmp_path):
    repository = Repository(tmp_path / "repository", tmp_path / "cache")
    source = repository.folder / "src"
    source.mkdir(parents=True)
    project(repository.folder, '[targets.step]\nfunction = "stepping:step"\n')
    (source / "stepping.py").write_text("def step(x):\n    return x * 2\n")
    repository.git("init", "-q")
    repository.commit("before")
    (source / "stepping.py").write_text(
        "import jax\n\ndef step(x):\n    return jax.lax.with_sharding_constraint(x, jax.P(None, None)) @ x.T @ x * 2\n"
    )
    repository.environment["PYTHONPATH"] += f":{source}"
    done = repository.run_process("diff", "--base", "HEAD", "step", "--fail-on", "any")
    assert done.returncode == 1, done.stdout + done.stderr
    hook, file = tmp_path / "hook", str(source / "stepping.py")
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import sys\nfrom importlib.util import spec_from_file_location\n\n"
        "class Finder:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        return spec_from_file_location(name, {file!r}) if name == 'stepping' else None\n"
        "\nsys.meta_path.append(Finder())\n"
    )
    repository.environment["PYTHONPATH"] = repository.environment["PYTHONPATH"].replace(str(source), str(hook))
    done = repository.run_process("diff", "--base", "HEAD", "step")
    assert done.returncode == 2
    message = says(done.stderr.splitlines()[0])
    assert re.findall("step: |stepping:step|older revision", message) == ["step: ", "stepping:step", "older revision"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, OSError])
def test_whatever_a_process_raises_is_its_own_targets(says, tmp_path, monkeypatch, kind):
    targets = "".join(f'[targets.{name}]\nfunction = "m.py:f"\n' for name in "ab")
    first, second = list_jobs(read_project(project(tmp_path, targets)), ())

    def submitted(_self, _environment, _limit, _run, _start, job, **_kwargs):
        future = Future()
        if job is first:
            future.set_exception(kind("no room"))
        else:
            future.set_result(Outcome(job=job, error="its own"))
        return future

    monkeypatch.setattr(WorkerPool, "submit_in", submitted)
    failed, other = run_jobs((first, second))
    what, place, *_ = failed.error.splitlines()
    assert (what.startswith("error: a "), place.startswith("  --> ")) == (True, True)
    says(what)
    assert f"why: {kind.__name__}: no room" in failed.error
    assert other.error == "its own"


def test_processes_of_a_check_share_what_they_find_of_a_shared_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HLOSCOPE_CACHE", "1")
    monkeypatch.setenv("HLOSCOPE_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("HLOSCOPE_REMOTE_CACHE", f"file://{tmp_path}/shared")
    with jobs_apart._make_environment(cached=True) as environment:
        notes = Path(environment[store.NOTES])
        assert notes.is_dir()
    assert not notes.exists()
    with jobs_apart._make_environment(cached=False) as environment:
        assert store.NOTES not in environment
    monkeypatch.setattr(store, "_states", {})
    monkeypatch.setattr(store, "_open_address", lambda _: 1 / 0)
    with jobs_apart._make_environment(cached=True) as environment:
        assert "HLOSCOPE_REMOTE_CACHE" not in environment


COUNTED = """\
import os, pathlib, time
pathlib.Path("imports").open("a").write(__name__ + "\\n")


def f(x):
    return x * 2


def dies(x):
    os.abort()


def hangs(x):
    time.sleep(3600)
"""


@pytest.mark.long
@pytest.mark.tpu_compiler
def test_a_module_is_imported_once_and_what_dies_or_hangs_costs_only_itself(tmp_path):
    table = '[targets.{0}]\nfunction = "{1}.py:{2}"\ncontract = "all-gather@X"\nbaseline = false\n{3}'
    targets = [(f"{module}{number}", module, "f", "") for number in range(3) for module in ("one", "two")]
    targets[1:1] = [("dies", "one", "dies", ""), ("hangs", "one", "hangs", "timeout = 4\n")]
    project(tmp_path, "".join(table.format(*target) for target in targets))
    for module in ("one", "two"):
        (tmp_path / f"{module}.py").write_text(COUNTED)
    code, found = Repository(tmp_path, tmp_path / "cache").document("check", "--jobs", 1)
    assert code == 2
    assert {name for name, check in found.items() if not check["passed"]} == {"dies", "hangs"}
    imports = (tmp_path / "imports").read_text().split()
    # Again in the process after the one that died; what hung was interrupted, and its process lives on.
    assert {module: imports.count(module) for module in ("one", "two")} == {"one": 2, "two": 1}


def test_targets_of_one_module_share_a_process(tmp_path, monkeypatch):
    modules = ("one", "two", "three")
    table = '[targets.{0}-{1}]\nfunction = "{0}.py:f"\n'
    targets = [table.format(module, number) for number in range(4) for module in modules]
    imported: dict[WorkerPool, list[str]] = {}

    def submitted(pool, _environment, _limit, _run, _start, job, **_kwargs):
        imported.setdefault(pool, []).append(job.target.function)
        future = Future()
        future.set_result(Outcome(job=job, error="its own"))
        return future

    monkeypatch.setattr(WorkerPool, "submit_in", submitted)
    jobs = list_jobs(read_project(project(tmp_path, "".join(targets))), ())
    assert [outcome.job for outcome in run_jobs(jobs, workers=2)] == list(jobs)
    assert len(imported) == 2
    changes = sum(len(list(groupby(functions))) for functions in imported.values())
    assert changes <= 4  # three modules, of which both processes may share the last
    assert max(map(len, imported.values())) <= 8
