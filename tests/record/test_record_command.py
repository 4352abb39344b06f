"""`hloscope record` with scripts that end in every way, and command lines that name none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from command_line import environment
from command_line import hloscope_process as run

from hloscope.compile.recording.scripts import run_to_its_end

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.usefixtures("cached")]
STEP = """\
import jax, jax.numpy as jnp, sys, os
@jax.jit
def step(x):
    return jnp.tanh(x) * 2
"""


def script(folder, text, name="train.py"):
    """A script with a step, and what it does with it."""
    path = folder / name
    path.write_text(STEP + text)
    return path


def document(done):
    """The recording, of a command that made one."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def record(*words, options=(), **how):
    """The command, as JSON."""
    return run("record", "--format", "json", *options, "--", *words, **how)


ENDINGS = {
    "step(jnp.ones(8)); print('done')": ("ended", 0, "ran to completion"),
    "step(jnp.ones(8)); sys.exit(3)": ("ended", 3, "exit status 3"),
    "step(jnp.ones(8)); sys.exit('no data')": ("ended", 1, "exit status 1"),
    "step(jnp.ones(8)); os._exit(4)": ("ended", 4, "exit status 4"),
    "step(jnp.ones(8)); open('/nowhere/data')": ("raised", 1, "FileNotFoundError"),
    "step(jnp.ones(8)); raise KeyboardInterrupt": ("interrupted", 130, "Ctrl-C"),
}


def in_turn(cases, quick):
    """Cases of a test, those after the first few only where time does not matter."""
    marks = [() if number < quick else pytest.mark.long for number in range(len(cases))]
    return [pytest.param(case, marks=mark) for case, mark in zip(cases, marks, strict=True)]


@pytest.mark.parametrize("text", in_turn(ENDINGS, quick=3))
def test_every_way_to_end_leaves_a_report(text, tmp_path):
    kind, status, words = ENDINGS[text]
    found = document(record(script(tmp_path, text)))
    assert (found["ended"], found["exit_status"]) == (kind, status)
    assert words in found["said"]
    assert [each["name"] for each in found["programs"]] == ["step"]


def test_what_a_script_prints_is_marked_and_never_in_the_report(tmp_path):
    text = "step(jnp.ones(8)); print('one\\ntwo'); os.system('echo three'); print('no end', end='')"
    done = record(script(tmp_path, text))
    assert document(done)["programs"]
    assert [line for line in done.stderr.splitlines() if line.startswith("script| ")] == [
        "script| one",
        "script| two",
        "script| three",
        "script| no end",
    ] or set(done.stderr.splitlines()) >= {"script| one", "script| two", "script| three", "script| no end"}


def test_arguments_modules_and_an_interpreter(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    script(package, "step(jnp.ones(int(sys.argv[1]))); assert __name__ == '__main__'\nprint(sys.argv)", name="main.py")
    for words in (["package/main.py", "8"], ["python3", "-u", "package/main.py", "8"], ["-m", "package.main", "8"]):
        done = record(*words, cwd=tmp_path)
        assert document(done)["programs"][0]["name"] == "step"
        assert "'8']" in done.stderr


REFUSED = {
    ("missing.py",): "there is no file missing.py",
    ("quiet.py",): "the script compiled no program",
    ("unreadable.py",): "SyntaxError: invalid syntax (unreadable.py, line 1)",
    ("-m", "no.such.module"): "there is no module no.such.module",
    ("-c", "print(1)"): "code on the command line",
    ("no-such-command",): "no-such-command is neither a script nor a command of an installed package",
    ("/bin/sh", "run.sh"): "not written in Python",
    ("-m", "package"): "'package' is a package and cannot be directly executed",
    ("-m", "package.missing"): "No module named package.missing",
}


@pytest.mark.parametrize("words", in_turn(REFUSED, quick=5))
def test_what_runs_no_program_is_refused(words, tmp_path):
    (tmp_path / "quiet.py").write_text("print('nothing')")
    (tmp_path / "unreadable.py").write_text("def step(:")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    done = record(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert REFUSED[words] in done.stderr
    assert "Traceback" not in done.stderr


def test_a_package_is_imported_in_the_recording(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import jax; print(jax.default_backend()); jax.jit(lambda x: x + 1)(1.0)")
    (package / "main.py").write_text("")
    done = record("-m", "package.main", cwd=tmp_path)
    assert [each["name"] for each in document(done)["programs"]] == ["<lambda>"]
    assert "script| tpu" in done.stderr


FORK = """
for end in (None, 4):
    if os.fork() == 0:
        print("forked")
        sys.exit(end)
    print("ended", os.wait()[1] >> 8)
step(jnp.ones(8))
"""


def test_a_forked_process_makes_no_report_of_its_own(tmp_path):
    done = record(script(tmp_path, FORK))
    assert document(done)["programs"][0]["calls"] == 1
    assert {"script| forked", "script| ended 0", "script| ended 4"} <= set(done.stderr.splitlines())


def test_signals_do_afterwards_what_they_did_before():
    def run():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.alarm(100)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert run_to_its_end(run).kind == "ended"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_programs_are_saved_and_named(tmp_path):
    path = script(tmp_path, "step(jnp.ones(8)); step(jnp.ones(16))\njax.jit(lambda x: x + 1)(jnp.ones(3))")
    found = document(record(path, options=["--only", "step", "--save", tmp_path / "kept"]))
    assert [each["name"] for each in found["programs"]] == ["step", "step"]
    assert sorted(os.listdir(tmp_path / "kept")) == ["step.2.hlo", "step.2.json", "step.hlo", "step.json"]
    kept = json.loads((tmp_path / "kept" / "step.json").read_text())
    assert kept["totals"] == found["programs"][0]["analysis"]["totals"]
    assert run("analyze", tmp_path / "kept" / "step.hlo").returncode == 0


def test_a_script_may_change_directory(tmp_path):
    script(tmp_path, "assert os.path.isabs(__file__); os.chdir('/'); step(jnp.ones(8))")
    document(record("train.py", options=["--save", "kept"], cwd=tmp_path))
    assert sorted(os.listdir(tmp_path / "kept")) == ["step.hlo", "step.json"]


def test_what_cannot_be_saved_is_said(tmp_path):
    (tmp_path / "kept" / "step.hlo").mkdir(parents=True)
    done = record(script(tmp_path, "step(jnp.ones(8))"), options=["--save", tmp_path / "kept"])
    assert done.returncode == 2
    assert "step.hlo" in done.stderr


def test_ctrl_c_leaves_a_report(tmp_path):
    path = script(tmp_path, "step(jnp.ones(8)); print('ready', flush=True)\nimport time; time.sleep(100)")
    command = [sys.executable, "-m", "hloscope", "record", "--format", "json", "--", str(path)]
    running = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert "ready" in next(line for line in running.stderr if "script| " in line)
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=120)
    assert running.returncode == 0
    assert json.loads(out)["ended"] == "interrupted"


def test_threads_that_are_left_behind_do_not_keep_the_command(tmp_path):
    text = "import threading, time; threading.Thread(target=time.sleep, args=(500,)).start(); step(jnp.ones(8))"
    begun = time.monotonic()
    assert document(record(script(tmp_path, text)))["programs"]
    assert time.monotonic() - begun < 200


def test_a_program_that_is_only_compiled_ahead_of_time_is_there(tmp_path):
    text = "c = step.lower(jnp.ones(8)).compile(); print(c.memory_analysis())\nstep.lower(jnp.ones(9))"
    done = record(script(tmp_path, text))
    (program,) = document(done)["programs"]
    assert (program["name"], program["calls"]) == ("step", 0)
    assert program["analysis"]["memory"]["argument_bytes"] > 0


def test_a_verdict_over_what_was_not_analyzed_is_none(tmp_path):
    path = script(tmp_path, "step(jnp.ones(8)); step(jnp.ones(16))")
    assert record(path, options=["--fail-on", "note"]).returncode == 0
    done = record(path, options=["--fail-on", "note", "--top", "1"])
    assert done.returncode == 2
    assert "no verdict: step not analyzed" in done.stderr
