"""Compiles on other machines: any executor, and a Dask cluster of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from shardable import small_ffn

import hloscope
from hloscope.compile import executors
from hloscope.compile.executors import compile_on

LITTLE = {"candidates": 4, "fix_mesh": True, "keep": ("x", "W2")}


class Counting(ThreadPoolExecutor):
    """Counts what it is given."""

    def __init__(self) -> None:
        super().__init__(2)
        self.given = 0

    def submit(self, *args: object, **kwargs: object) -> Future:
        self.given += 1
        return super().submit(*args, **kwargs)


def figures(found):
    return [(row.recipe, row.figures.step_us, row.figures.hbm_bytes) for row in (found.own, *found.front)]


@pytest.mark.tpu_compiler
def test_an_executor_of_pythons_compiles_and_gives_what_this_machine_does():
    here = hloscope.suggest(small_ffn, **LITTLE)
    with Counting() as executor:
        there = hloscope.suggest(small_ffn, **LITTLE, executor=executor)
    assert executor.given > LITTLE["candidates"]
    assert figures(there) == figures(here)


@pytest.mark.tpu_compiler
def test_prices_and_checks_of_functions_compile_there_too():
    slices = ("v5e:2x4", "v6e:2x4")
    here = hloscope.price(small_ffn, slices=slices)
    with Counting() as executor:
        there = hloscope.price(small_ffn, slices=slices, executor=executor)
        assert executor.given >= len(slices)
        given = executor.given
        assert hloscope.check(small_ffn, fail_on="error", executor=executor).passed
        assert executor.given > given
    assert [found.time for found in there] == [found.time for found in here]


@pytest.mark.parametrize("wrong", ["dusk://here:1", 17])
def test_what_is_no_executor_is_refused(says, wrong):
    with pytest.raises(hloscope.NotationError) as caught, compile_on(wrong):
        pass
    says(str(caught.value))


def test_names_of_the_targets_file_are_checked_elsewhere_by_an_address_alone():
    with ThreadPoolExecutor() as executor, pytest.raises(hloscope.NotationError, match="executor"):
        hloscope.check(executor=executor)


def test_a_machine_with_other_versions_or_flags_is_refused_by_name(monkeypatch):
    wanted = {**executors.find_compile_traits(), "jax": "0.0.1", "LIBTPU_INIT_ARGS": "--xla_tpu_a=true"}
    monkeypatch.setattr(executors.platform, "node", lambda: "tpu-builder-7")
    with pytest.raises(hloscope.ExecutorError) as caught:
        executors.run_for_executor(wanted, 1, None, b"")
    assert "tpu-builder-7 has jax" in caught.value.why
    assert "tpu-builder-7 has LIBTPU_INIT_ARGS none" in caught.value.why


def test_of_the_environment_nothing_is_sent(monkeypatch):
    monkeypatch.setenv("A_SECRET_OF_MINE", "hush")
    sent = []

    class Kept:
        def submit(self, function, *args):
            sent.append(args)
            return Future()

    executors._ExecutorPool(Kept()).submit_in({"A_SECRET_OF_MINE": "hush"}, None, len, "request")
    assert "hush" not in repr(sent)


@pytest.mark.long
@pytest.mark.tpu_compiler
def test_a_cluster_of_two_gives_what_this_machine_does_though_one_is_killed(tmp_path):
    pytest.importorskip("distributed")
    here = hloscope.suggest(small_ffn, candidates=12, fix_mesh=True)
    with ExitStack() as stack:
        url, workers = cluster(tmp_path, stack)
        assert figures(hloscope.suggest(small_ffn, candidates=12, fix_mesh=True, executor=url)) == figures(here)

        def kill_one(_frame_or_signal=None, _frame=None):
            os.killpg(workers[0].pid, signal.SIGKILL)

        before = signal.signal(signal.SIGALRM, kill_one)
        signal.alarm(8)
        try:
            found = hloscope.suggest(small_ffn, candidates=12, fix_mesh=True, executor=url)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
    assert figures(found) == figures(here)
    assert workers[0].poll() is not None


@pytest.mark.long
def test_a_cluster_whose_workers_have_other_flags_or_that_is_not_there_is_refused(tmp_path):
    pytest.importorskip("distributed")
    with ExitStack() as stack:
        url, _ = cluster(tmp_path, stack, LIBTPU_INIT_ARGS="--xla_tpu_enable_x=true")
        with pytest.raises(hloscope.ExecutorError) as caught:
            hloscope.suggest(small_ffn, **LITTLE, executor=url)
    assert caught.value.why.count("has LIBTPU_INIT_ARGS --xla_tpu_enable_x=true, not none") == 2
    with pytest.raises(hloscope.ExecutorError) as caught:
        hloscope.suggest(small_ffn, **LITTLE, executor=url)
    assert "there is no Dask scheduler at tcp://127.0.0.1" in caught.value.what


def cluster(folder, stack, **changes):
    """The address of a scheduler with two workers, and these; they end with the stack."""
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    file = folder / "scheduler.json"
    common = ["--no-dashboard", "--scheduler-file", str(file)]

    def start(command, **environment):
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        stack.callback(end, process)
        return process

    def end(process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    start([*dask, "--host", "127.0.0.1", "--port", "0", *common])
    while not file.exists() or not file.read_text():
        time.sleep(0.1)
    import distributed

    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1", *common]
    workers = [start(worker, **changes) for _ in range(2)]
    with distributed.Client(scheduler_file=str(file), set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        address = client.scheduler.address
    return address.replace("tcp://", "dask://"), workers
