"""A check in parts, on several machines: the parts together are the whole, and what is lost is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from check_examples import Repository
from hypothesis import given
from hypothesis import strategies as st

from hloscope.app.config import TargetConfig
from hloscope.app.jobs import Job, Shard
from hloscope.base.errors import NotationError

MODULE = """\
import jax
def f(x): return x @ x.T
def g(x): return (x * 2).sum(0)
"""
TARGET = """\
[targets.{name}]
function = "{module}.py:{function}"
mesh = {{ X = 4 }}
args = ["f32[8@X,16]"]
contract = {contract}
"""
PERMUTES = '"collective-permute@X"'
CONTRACTS = {"a-f": PERMUTES, "a-g": '"all-reduce@X"', "b-f": PERMUTES, "b-g": '"nothing else"'}


def jobs_named(*modules):
    return tuple(
        Job(
            name=f"{module}{number}",
            target=TargetConfig(name=f"{module}{number}", function=f"{module}.py:f"),
            slice=None,
            root=Path(),
            baseline=None,
        )
        for number, module in enumerate(modules)
    )


@given(st.lists(st.sampled_from("abcdef"), max_size=40), st.integers(1, 12))
def test_shards_are_a_partition_of_even_parts(modules, count):
    jobs = jobs_named(*modules)
    shards = [Shard(number, count).of(jobs) for number in range(1, count + 1)]
    assert sorted(job.name for shard in shards for job in shard) == sorted(job.name for job in jobs)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    of_modules = [{job.target.function for job in shard} for shard in shards]
    assert sum(map(len, of_modules)) <= len(set(modules)) + count - 1


@pytest.mark.parametrize("text", ["5/4", "0/4", "1", "1/0", "a/b", "", "-1/4", "1/4/4"])
def test_what_is_no_shard_is_refused(text, says):
    with pytest.raises(NotationError) as refused:
        Shard.read(text)
    says(refused)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A project of four targets, some of which fail, with an orphan baseline and an allowance that one shard uses."""
    folder = tmp_path_factory.mktemp("sharded")
    for module in "ab":
        (folder / f"{module}.py").write_text(MODULE)
    (folder / "hloscope.toml").write_text(
        '[defaults]\nfail-on = "warning"\nallow = ["all-reduce@X: wanted"]\n'
        + "".join(
            TARGET.format(name=name, module=name[0], function=name[2], contract=contract)
            for name, contract in CONTRACTS.items()
        )
    )
    repository = Repository(folder, folder / "cache")
    assert repository.run("accept", "--jobs", 1).returncode == 0
    (folder / "hloscope_baselines" / "b-f.txt").rename(folder / "hloscope_baselines" / "gone.txt")
    for number in (1, 2, 3):
        repository.run("check", "--shard", f"{number}/3", "--jobs", 1, "--format", "json", "-o", f"shard-{number}.json")
    repository.whole = repository.run("check", "--jobs", 1, "--write", "json=whole.json")
    return repository


def without_times(path):
    document = json.loads(path.read_text())
    del document["seal"]
    for check in document["checks"]:
        del check["seconds"], check["compile_from"]
    return document


@pytest.mark.tpu_compiler
def test_the_shards_together_are_the_whole(sharded):
    files = [f"shard-{number}.json" for number in (1, 2, 3)]
    merged = sharded.run("merge-reports", *files, "--format", "json", "-o", "merged.json")
    assert merged.returncode == sharded.whole.returncode == 1
    whole = without_times(sharded.folder / "whole.json")
    assert without_times(sharded.folder / "merged.json") == whole
    assert [check["name"] for check in whole["checks"]] == [*CONTRACTS, "hloscope_baselines/"]
    assert sharded.run("merge-reports", *files).stdout == sharded.whole.stdout
    assert [json.loads((sharded.folder / file).read_text())["shard"] for file in files] == ["1/3", "2/3", "3/3"]


@pytest.mark.tpu_compiler
def test_what_is_in_no_report_has_not_passed(sharded, says):
    done = sharded.run("merge-reports", "shard-1.json", "shard-3.json", "--format", "junit")
    assert done.returncode == 2
    says(sharded.run("merge-reports", "shard-1.json", "shard-3.json").stdout.partition("ok ")[0])


@pytest.mark.tpu_compiler
def test_a_report_that_is_named_twice_is_refused(sharded, says):
    done = sharded.run("merge-reports", "shard-1.json", "./shard-1.json", "shard-2.json", "shard-3.json")
    assert done.returncode == 2
    says(done.stderr)
