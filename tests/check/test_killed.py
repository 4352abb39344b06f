"""A check, or an accept, that is killed at any moment: no file is damaged, and the next run says what it would have."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time

import pytest
from check_examples import ROOT, Repository

pytestmark = [pytest.mark.long, pytest.mark.tpu_compiler]
CAPTURED = ROOT / "fixtures" / "captured"
TARGETS = """\
[defaults]
mesh = { X = 4, Y = 2 }

[targets.layer]
hlo = "layer.hlo"

[targets.product]
hlo = "product.hlo"
contract = "none"

[targets.first]
function = "model.py:first"
args = ["f32[64@X,128]"]

[targets.second]
function = "model.py:second"
args = ["f32[64@X,128]"]
"""
MODEL = """\
import jax.numpy as jnp


def first(x):
    return jnp.sum(x * {0})


def second(x):
    return x @ x.T * {0}
"""
LAYERS = ("two_matmuls.two_matmuls_shard_map", "mixture_of_experts.mixture_of_experts")
"""The text of a target, as accepted and as changed."""


def write_programs(repository, number):
    """The programs as accepted, or as changed."""
    captured = {"layer": LAYERS[number], "product": "matmul.matmul_shard_map"}
    for name, seed in captured.items():
        shutil.copy(CAPTURED / f"{seed}.jax-0.10.hlo", repository.folder / f"{name}.hlo")
    (repository.folder / "model.py").write_text(MODEL.format(number + 1) + "\n" * number)


def verdict(repository):
    """All that a check finds, but for times and where compiles are from."""
    found = json.loads(repository.run("check", "--jobs", 2, "--format", "json").stdout)
    for check in found["checks"]:
        del check["seconds"], check["compile_from"]
    return {name: part for name, part in found.items() if name != "seal"}


def baselines(repository):
    """The baseline files; beside them may lie what a killed process had written of one and not yet put in its place."""
    return {path.name: path.read_bytes() for path in (repository.folder / "hloscope_baselines").glob("*.txt")}


class Known:
    """What runs that nobody kills find and write, and how long they take."""

    def __init__(self, folder):
        self.repository = repository = Repository(folder / "repository", folder / "cache")
        repository.folder.mkdir()
        (repository.folder / "hloscope.toml").write_text(TARGETS)
        write_programs(repository, 0)
        assert repository.run("accept").returncode == 0
        self.before = baselines(repository)
        write_programs(repository, 1)
        self.seconds = {}
        for cache in ("cold", "warm"):
            if cache == "cold":
                shutil.rmtree(repository.cache)
            begun = time.monotonic()
            self.verdict = verdict(repository)
            self.seconds[cache] = time.monotonic() - begun
        assert not self.verdict["passed"]
        shutil.copytree(repository.folder, folder / "accepted")
        accepting = Repository(folder / "accepted", repository.cache)
        begun = time.monotonic()
        assert accepting.run("accept").returncode == 0
        self.seconds["accept"] = time.monotonic() - begun
        self.accepted = baselines(accepting)
        assert len([name for name, text in self.accepted.items() if self.before[name] != text]) == 3


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return Known(tmp_path_factory.mktemp("killed"))


def kill(repository, seconds, number, *command):
    """Kills a command after so long: with all its processes, or every other time alone."""
    process = repository.start(*command)
    time.sleep(seconds)
    if number % 2:
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("number", range(30))
def test_a_check_that_is_killed(known, number):
    cache = "cold" if number % 3 == 0 else "warm"
    if cache == "cold":
        shutil.rmtree(known.repository.cache)
    moment = random.Random(number).uniform(0.02, 1) * known.seconds[cache]
    kill(known.repository, moment, number, "check", "--jobs", 2)
    assert baselines(known.repository) == known.before
    assert verdict(known.repository) == known.verdict


@pytest.mark.parametrize("number", range(10))
def test_an_accept_that_is_killed(known, tmp_path, number):
    shutil.copytree(known.repository.folder, tmp_path / "repository")
    repository = Repository(tmp_path / "repository", known.repository.cache)
    moment = random.Random(number).uniform(0.5, 1) * known.seconds["accept"]  # baselines are written at its end
    kill(repository, moment, number, "accept")
    left = baselines(repository)
    for name, text in known.before.items():
        assert left[name] in (text, known.accepted[name])
    assert repository.run("accept").returncode == 0
    assert baselines(repository) == known.accepted
