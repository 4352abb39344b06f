"""Runs that do not end well, in their own process and in words: a finding each, and never the caller's end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from verify_helpers import findings, job

import hloscope
from hloscope.verification.judging import judge_numerics
from hloscope.verification.model import NumericsStatus
from hloscope.verification.run_location import run_in_child
from hloscope.verification.running import run_verification

GIB = 2**30


TIMEOUTS_S = {"hangs": 8, "sleeps": 8, "aborts": 120, "not_on_cpu": 120, "missing": 120, "plain": 120}


@pytest.fixture(scope="module")
def ended():
    """How each program's run ended in a process of its own, started side by side by this one, which survives them."""
    with ThreadPoolExecutor(2) as pool:
        runs = {
            name: pool.submit(run_in_child, job("troubles", name, "plain"), timeout_s=timeout_s)
            for name, timeout_s in TIMEOUTS_S.items()
        }
    return {name: run.result() for name, run in runs.items()}


def test_a_good_program_in_a_child_process(says, ended):
    found = ended["plain"]
    assert found.status is NumericsStatus.RAN
    assert re.findall(r"\d+|CPU", says(found.ran_on)) == ["8", "CPU"]
    assert found.inputs == ("x: normal",)
    assert found.agree


@pytest.mark.parametrize("target", ["hangs", "sleeps"])
def test_a_program_that_hangs(says, ended, target):
    found = ended[target]
    assert found.status is NumericsStatus.HUNG
    own_words = found.message.partition(": ")[0]  # what the process said last may follow
    assert re.findall(r"\d+ s|running the target", own_words) == [f"{TIMEOUTS_S[target]} s", "running the target"]
    (finding,) = judge_numerics(found)
    assert (finding.rule, finding.why) == ("numerics-hung", found.message)
    says([own_words, finding.message])


def test_a_program_that_aborts(says, ended):
    found = ended["aborts"]
    assert found.status is NumericsStatus.ABORTED
    own_words = found.message.partition(": ")[0]
    assert re.findall("SIG[A-Z]+|running the target", own_words) == ["SIGABRT", "running the target"]
    says(own_words)


def test_a_program_that_aborts_beside_a_process_that_it_forked():
    begun = time.monotonic()
    found = run_in_child(job("troubles", "forks_and_aborts", "plain"), timeout_s=100)
    assert found.status is NumericsStatus.ABORTED
    assert time.monotonic() - begun < 25


def test_an_operation_that_the_backend_lacks(ended):
    found = ended["not_on_cpu"]
    assert found.status is NumericsStatus.NOT_IMPLEMENTED
    assert "ragged-all-to-all" in found.message
    (finding,) = judge_numerics(found)
    assert finding.rule == "numerics-not-implemented"


def test_a_program_that_is_too_large_is_not_started(says):
    found = run_verification(job("troubles", "huge", "huge", memory_bytes=16 * GIB))
    assert found.status is NumericsStatus.TOO_LARGE
    assert found.estimated_bytes > 32 * GIB
    (finding,) = judge_numerics(found)
    assert finding.rule == "numerics-too-large"
    assert "--scale B=64,F=256" in says(finding.fix)
    assert run_verification(job("troubles", "huge", "huge", memory_bytes=16 * GIB, scale={"B": 64, "D": 16})).agree


def test_a_program_that_cannot_be_imported_there(says, ended):
    found = ended["missing"]
    assert found.status is NumericsStatus.FAILED
    assert re.findall(r"troubles\.py|'\w+'", says(found.message))[:2] == ["troubles.py", "'missing'"]


def test_arguments_of_other_types(says):
    found = run_verification(replace(job("troubles", "integers", "plain")))
    assert found.status is NumericsStatus.REFUSED
    assert re.findall(r"\w+\[\d+\]", says(found.message)) == ["int32[64]", "float32[64]"]


@pytest.mark.parametrize("target", ["nothing", "not_a_number"])
def test_an_output_that_tells_nothing_is_no_pass(target):
    found = run_verification(job("troubles", target, target))
    assert found.status is NumericsStatus.RAN
    assert not found.agree
    assert [one.rule for one in judge_numerics(found)] == ["nothing-compared"]


def test_outputs_of_other_shapes_are_no_pass(says):
    found = run_verification(job("troubles", "longer", "plain"))
    assert (found.comparisons, found.agree) == ((), False)
    (finding,) = judge_numerics(found)
    assert finding.rule == "nothing-compared"
    assert "shape" in says(finding.message)


def test_gradients_that_do_not_exist_are_no_pass(says):
    found = run_verification(job("troubles", "integers", "integers", grad=True))
    (finding,) = judge_numerics(found)
    assert finding.rule == "not-compared"
    assert found.not_compared == {"gradients": finding.why}
    assert "troubles.py:integers" in finding.why
    assert "gradients" in finding.message
    assert not found.agree
    says([finding.message, finding.why])


def test_a_loop_that_cannot_be_differentiated_is_told_in_jaxs_words():
    (finding,) = findings("troubles", "with_a_loop", "with_a_loop", grad=True)
    assert finding.rule == "not-compared"
    assert re.findall(r"troubles\.py:\w+|Reverse-mode differentiation", finding.why) == [
        "troubles.py:with_a_loop",
        "Reverse-mode differentiation",
    ]


def test_too_few_devices_are_told_before_anything_runs(says):
    found = run_verification(replace(job("troubles", "plain", "plain"), devices=4096))
    assert found.status is NumericsStatus.NOT_RUN
    assert re.findall(r"[\d,]*\d|\(\w+\)", says(found.message)) == ["4,096", "16", "(cpu)"]


def test_ranges_by_letters_of_the_target(says):
    found = run_verification(job("troubles", "huge", "huge", scale={"B": 64, "D": 16}, ranges={"x": (0, "D")}))
    assert found.inputs == ("x: 0 to 16",)
    unknown = run_verification(job("troubles", "huge", "huge", scale={"B": 64, "D": 16}, ranges={"x": (0, "Q")}))
    assert unknown.status is NumericsStatus.FAILED
    assert re.findall(r"\b[A-Z]\b", says(unknown.message)) == ["Q", "B", "D"]


def test_memory_that_the_compiler_does_not_tell_is_not_taken_for_none(monkeypatch):
    monkeypatch.setattr("hloscope.verification.executing._find_memory_of_one_device", lambda compiled: None)
    found = run_verification(job("troubles", "plain", "plain", memory_bytes=16 * GIB))
    assert (found.status, found.estimated_bytes) == (NumericsStatus.RAN, None)
    found = run_verification(
        job("troubles", "huge", "huge", memory_bytes=16 * GIB)
    )  # too large even for its inputs alone
    assert found.status is NumericsStatus.TOO_LARGE
    assert found.estimated_bytes > 16 * GIB


def test_ctrl_c_ends_a_run_that_another_thread_waits_for():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(1) as pool:
            others = set(_children())
            run = pool.submit(run_in_child, job("troubles", "hangs", "plain"), timeout_s=120)
            child, deadline = None, time.monotonic() + 30
            time.sleep(1.0)
            while child is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
                begun = set(_children()) - others
                child = next((int(process) for process in begun if not _has_pythons_handler(process)), None)
            os.kill(child, signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                run.result(timeout=5)
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_ends_the_run_and_leaves_nothing_of_its_own(tmp_path):
    (tmp_path / "hloscope-mine").write_text("the user's")
    script = (
        "from verify_helpers import job\n"
        "from hloscope.verification.run_location import run_in_child\n"
        "run_in_child(job('troubles', 'sleeps', 'plain'), timeout_s=120)\n"
    )
    places = [str(Path(__file__).parent), str(Path(hloscope.__file__).parent.parent)]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(places)}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        deadline, begun = time.monotonic() + 60, []
        while not begun:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            begun = [child for child in _children(process.pid) if not _has_pythons_handler(child)]
        process.terminate()
        assert process.wait(timeout=10) == -signal.SIGTERM
    finally:
        process.kill()
    while set(begun) & set(_children(process.pid)):  # an ended one that nobody has waited for has no command line
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [path.name for path in tmp_path.iterdir()] == ["hloscope-mine"]


def _children(parent=None):
    """The processes in which this one, or another, has numbers made."""
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = line.read_bytes().split(b"\0")
            if b"hloscope.compile.worker" in words and str(parent or os.getpid()).encode() in words:
                yield line.parent.name


def _has_pythons_handler(process):
    """Whether a process still has Python's own handler of Ctrl-C, as it does while it begins."""
    fields = dict(line.split(":\t") for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return bool(int(fields["SigCgt"], 16) & 1 << (signal.SIGINT - 1))
