"""Worker processes: each task has one to itself, and whatever ends it ends nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Executor, wait
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from hloscope.base.errors import CompileError, CompilerDiedError, NotationError, SliceError, TimeLimitError
from hloscope.compile import client, pool, slots
from hloscope.compile.importing import isolate_call, raise_if_interrupted
from hloscope.compile.pool import WorkerDied, WorkerPool
from hloscope.compile.step import capture_stderr
from hloscope.tpu.slices import parse_slice

FOREVER = (re.match, r"(a+)+$", "a" * 64 + "b")
"""A call that ends some time after the universe, inside C, with the interpreter's lock held."""


@pytest.fixture
def workers():
    with WorkerPool(2) as made:
        yield made


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone_within(process: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_it_is_an_executor(workers):
    assert isinstance(workers, Executor)
    assert list(workers.map(abs, [-1, 2, -3])) == [1, 2, 3]
    assert workers.submit(int, "ff", base=16).result() == 255


def test_a_process_is_used_again(workers):
    first = workers.submit(os.getpid).result()
    assert first != os.getpid()
    assert workers.submit(os.getpid).result() == first


def test_tasks_run_side_by_side(workers):
    busy = workers.submit(time.sleep, 0.5)
    other = workers.submit(os.getpid).result()
    assert not busy.done()
    assert other


def test_errors_come_back_as_they_are(workers):
    with pytest.raises(ValueError, match="invalid literal"):
        workers.submit(int, "x").result()
    with pytest.raises(SliceError) as caught:
        workers.submit(parse_slice, "v9:2x2").result()
    assert "v9" in caught.value.what
    assert caught.value.fix


def test_what_a_worker_prints_is_no_answer(workers):
    assert workers.submit(os.system, "echo shown; echo noise >&2").result() == 0
    assert workers.submit(os.write, 1, b"\x80\x00junk").result() == 6
    assert workers.submit(os.read, 0, 10).result() == b""


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ((os.abort,), signal.SIGABRT),
        ((ctypes.string_at, 0), signal.SIGSEGV),
        ((signal.raise_signal, signal.SIGKILL), signal.SIGKILL),
    ],
)
def test_a_death_is_one_tasks_own(workers, call, number):
    other = workers.submit(time.sleep, 0.3)
    dying = workers.submit(*call)
    with pytest.raises(WorkerDied) as caught:
        dying.result()
    assert caught.value.returncode == -number
    assert other.result() is None
    assert workers.submit(abs, -1).result() == 1


def test_an_exit_is_a_death_too(workers):
    with pytest.raises(WorkerDied) as caught:
        workers.submit(os._exit, 3).result()
    assert caught.value.returncode == 3


def test_a_task_can_be_killed_inside_native_code(workers):
    doomed, other = workers.submit(*FOREVER), workers.submit(time.sleep, 0.4)
    time.sleep(0.2)
    begun = time.monotonic()
    workers.kill(doomed)
    with pytest.raises(WorkerDied):
        doomed.result()
    assert time.monotonic() - begun < 1
    assert other.result() is None


def test_a_task_that_waits_can_be_killed(workers):
    busy = [workers.submit(time.sleep, 0.3) for _ in range(2)]
    waiting = workers.submit(os.getpid)
    workers.kill(waiting)
    assert waiting.cancelled()
    assert wait(busy).not_done == set()


@pytest.fixture(autouse=True)
def room_of_its_own(tmp_path, monkeypatch):
    """Lets tests in other processes neither wait for this one's workers nor end them."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def ctrl_c():
    """Lets Ctrl-C have its usual effect, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_that_reaches_a_worker_is_no_death(workers):
    with pytest.raises(KeyboardInterrupt):
        workers.submit(signal.raise_signal, signal.SIGINT).result()
    assert workers.interruptions() == 1
    assert workers.submit(abs, -1).result() == 1


def test_ctrl_c_that_ended_an_idle_worker_is_counted_before_the_next_one_starts(workers, monkeypatch):
    ended = SimpleNamespace(is_alive=False, interruptions_before=0, close=lambda: -signal.SIGINT)
    monkeypatch.setattr(workers, "_idle", [ended])
    monkeypatch.setattr(workers, "_submit", lambda *_: None)  # the next one is still to start
    workers.warm(os.environ, "v5e:2x2")
    assert (workers._idle, workers._interrupted) == ([], 1)


def test_a_worker_that_ctrl_c_is_still_ending_is_not_given_the_next_task(workers):
    ending = SimpleNamespace(is_alive=True, interruptions_before=0, close=lambda: -signal.SIGINT)
    workers._idle.append(ending)
    workers.note_interruption()
    assert workers.interruptions() == 1
    assert workers.submit(abs, -1).result() == 1
    workers._close(ending)  # in the thread of the task that was interrupted, later
    assert workers.interruptions() == 1


def test_a_worker_that_was_starting_at_ctrl_c_is_not_kept(workers, monkeypatch):
    start = workers._worker

    def start_and_interrupt(*arguments, **how):
        found = start(*arguments, **how)
        workers.note_interruption()
        return found

    monkeypatch.setattr(workers, "_worker", start_and_interrupt)
    workers._keep_one(os.environ, "")
    assert workers._idle == []
    assert workers.interruptions() == 1


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_waits_for_the_start_of_a_thread(workers, monkeypatch):
    start, started = Thread.start, []

    def start_and_interrupt(thread):
        start(thread)
        signal.raise_signal(signal.SIGINT)
        started.append(thread)

    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", start_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            workers.submit(abs, -1)
    assert len(started) == 1
    assert workers.submit(abs, -1).result() == 1


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_between_two_compiles_ends_the_call_and_not_the_next():
    assert any(ended_by_ctrl_c() for _ in range(3))
    with isolate_call():
        raise_if_interrupted()


def ended_by_ctrl_c():
    """Whether Ctrl-C ends a call; an idle worker may just have given way to one of another process instead."""
    process = client.Question(os.getpid, doing="asking").answer()
    deadline = time.monotonic() + 5
    while not (found := [worker for worker in client.get_pool()._idle if worker.pid == process]):
        if time.monotonic() > deadline:  # it is given back after it has answered, or has given way already
            return False
        time.sleep(0.01)
    with isolate_call():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGINT)
        while found[0].is_alive:  # a process with threads is a zombie before it can be waited for
            assert time.monotonic() < deadline
            time.sleep(0.01)
        try:
            raise_if_interrupted()
        except KeyboardInterrupt:
            return True
    return False


def test_a_limit_ends_what_takes_too_long(workers):
    begun = time.monotonic()
    late = workers.submit_in(os.environ, 0.5, *FOREVER)
    with pytest.raises(TimeoutError) as caught:
        late.result()
    assert caught.value.args == (0.5,)
    assert time.monotonic() - begun < 3
    assert workers.submit_in(os.environ, 5.0, abs, -2).result() == 2


def test_a_worker_belongs_to_its_environment(workers, monkeypatch):
    first = workers.submit(os.getpid).result()
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_a=1")
    second = workers.submit(os.getenv, "LIBTPU_INIT_ARGS")
    assert second.result() == "--xla_a=1"
    assert not is_running(first)
    monkeypatch.setenv("MY_OWN", "value")
    third = workers.submit(os.getpid).result()
    assert third == workers.submit(os.getpid).result()


def test_a_worker_with_devices_to_spare_serves_who_needs_fewer(workers):
    def process(devices):
        return workers.submit_in({**os.environ, "JAX_NUM_CPU_DEVICES": devices}, None, os.getpid).result()

    first = process("16")
    assert process("16") == process("4") == first
    second = process("64")
    assert second != first
    assert process("16") == second
    assert process("none") != second


@pytest.mark.parametrize("needed", [1, 16])
def test_every_worker_has_devices_for_most_programs(needed):
    assert client.make_worker_environment(needed)["JAX_NUM_CPU_DEVICES"] == "16"
    assert client.make_worker_environment(17)["JAX_NUM_CPU_DEVICES"] == "17"


def test_a_worker_that_has_grown_is_replaced(workers, monkeypatch):
    monkeypatch.setattr(pool, "_GROWN_BYTES", 1)
    first = workers.submit(os.getpid).result()
    assert workers.submit(os.getpid).result() != first
    assert gone_within(first, 5)


def test_a_worker_started_ahead_does_the_first_task(workers):
    workers.warm(client.make_worker_environment(), "")
    time.sleep(0.5)
    (ahead,) = workers._idle
    assert workers.submit_in(client.make_worker_environment(), None, os.getpid).result() == ahead.pid


@pytest.fixture
def template(workers):
    """The template of a pool, once it is ready: it starts with the second worker."""
    for _ in range(2):
        with contextlib.suppress(WorkerDied):
            workers.submit(os.abort).result()
    until = time.monotonic() + 60
    while not workers._template.is_ready() and time.monotonic() < until:
        time.sleep(0.05)
    return workers._template


def test_further_workers_are_forked_and_a_crash_touches_no_other(workers, template):
    assert workers.submit(os.getppid).result() == template._process.pid
    busy = workers.submit(time.sleep, 1)
    time.sleep(0.2)
    with pytest.raises(WorkerDied) as died:
        workers.submit(os.abort).result()
    assert died.value.returncode == -signal.SIGABRT
    assert busy.result() is None
    assert workers.submit(os.path.abspath, ".").result() == str(Path.cwd())


def test_a_template_that_dies_takes_its_workers_and_others_follow(workers, template):
    busy = workers.submit(time.sleep, 60)
    time.sleep(0.5)
    template._process.kill()
    with pytest.raises(WorkerDied):
        busy.result()
    assert workers.submit(abs, -1).result() == 1


def test_a_hang_in_a_worker_that_was_idle_did_not_wait_for_others():
    client.Question(abs, -1, doing="compiling step for v5e:2x4").answer()
    with pytest.raises(TimeLimitError) as caught:
        client.Question(*FOREVER, doing="compiling step for v5e:2x4", timeout_s=0.5).answer()
    assert caught.value.why is None


def test_a_program_that_hears_of_no_child_compiles(tmp_path):
    script = tmp_path / "deaf.py"
    script.write_text(
        "import os, signal, socket\n"
        "from hloscope.compile.pool import WorkerDied, WorkerPool\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "    socket.setdefaulttimeout(0.01)\n"
        "    with WorkerPool(1) as pool:\n"
        "        for _ in range(2):\n"
        "            try:\n"
        "                pool.submit(os.abort).result()\n"
        "            except WorkerDied:\n"
        "                pass\n"
        "        while not pool._template.is_ready():\n"
        "            pass\n"
        "        try:\n"
        "            pool.submit(os.abort).result()\n"
        "        except WorkerDied as died:\n"
        "            print(died.returncode, pool.submit(os.getppid).result() == pool._template._process.pid)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (f"{-signal.SIGABRT} True\n", "")


def test_nothing_is_left_behind(workers):
    processes = [workers.submit(os.getpid).result() for _ in range(2)]
    workers.shutdown()
    assert not any(map(is_running, processes))


@pytest.fixture
def one_slot(monkeypatch, tmp_path):
    monkeypatch.setenv("HLOSCOPE_MAX_WORKERS", "1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def until_busy():
    """Waits for the one slot's worker to be at work, where no other process may end it any more."""
    while True:
        with (slots._find_folder() / "slot-0").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        time.sleep(0.02)


@pytest.mark.usefixtures("one_slot")
def test_an_idle_worker_makes_room_for_another_process():
    with WorkerPool(1) as one, WorkerPool(1) as other:
        first = one.submit(os.getpid).result()
        second = other.submit(os.getpid).result()
        assert not is_running(first)
        assert one.submit(os.getpid).result() not in (first, second)


@pytest.mark.usefixtures("one_slot")
def test_a_busy_worker_is_waited_for():
    with WorkerPool(1) as one, WorkerPool(1) as other:
        busy = one.submit(time.sleep, 0.6)
        time.sleep(0.3)
        done = other.submit(time.monotonic).result()
        assert busy.result() is None
        assert done


@pytest.mark.usefixtures("one_slot")
def test_waiting_for_room_counts_towards_the_limit(says, monkeypatch):
    with WorkerPool(1) as one, WorkerPool(1) as other:
        one.submit(os.getpid).result()
        busy = one.submit(time.sleep, 60)
        time.sleep(0.1)
        until_busy()
        monkeypatch.setattr(client, "get_pool", lambda: other)
        begun = time.monotonic()
        with pytest.raises(TimeLimitError) as caught:
            client.Question(abs, 1, doing="compiling step", timeout_s=1.0).answer()
        assert time.monotonic() - begun < 2
        assert caught.value.why.startswith("for 1 s ")
        assert "HLOSCOPE_MAX_WORKERS" in caught.value.fix
        says(caught)
        assert not busy.done()
        one.kill(busy)


@pytest.mark.usefixtures("one_slot")
def test_waiting_for_room_can_be_given_up():
    with WorkerPool(1) as one, WorkerPool(1) as other:
        one.submit(os.getpid).result()
        busy = one.submit(time.sleep, 60)
        time.sleep(0.1)
        until_busy()
        waiting = other.submit(os.getpid)
        time.sleep(0.3)
        other.kill(waiting)
        with pytest.raises(WorkerDied):
            waiting.result()
        assert not busy.done()
        one.kill(busy)


@pytest.mark.usefixtures("one_slot")
def test_what_is_started_ahead_waits_for_no_room():
    with WorkerPool(1) as one:
        busy, other = one.submit(time.sleep, 1.5), WorkerPool(1)
        time.sleep(0.3)
        begun = time.monotonic()
        other.warm(client.make_worker_environment(), "")
        other.shutdown()  # as at the end of a command that needs no compiler after all
        assert time.monotonic() - begun < 1
        assert not busy.done()


@pytest.mark.usefixtures("one_slot")
def test_a_slot_is_free_again_where_no_worker_could_start(monkeypatch):
    with WorkerPool(1) as one, WorkerPool(1) as other:
        with monkeypatch.context() as broken:
            broken.setattr(sys, "executable", "/nowhere/python")
            failed = one.submit(abs, -1)
            with pytest.raises(FileNotFoundError):
                failed.result()
        assert other.submit(abs, -1).result(timeout=20) == 1


def test_a_worker_ends_with_its_parent_even_inside_native_code():
    script = f"""
import os, re, sys
from hloscope.compile.pool import WorkerPool
workers = WorkerPool(1)
print(workers.submit(os.getpid).result(), flush=True)
workers.submit(re.match, *{FOREVER[1:]!r})
sys.stdin.read()
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    worker = int(parent.stdout.readline())
    time.sleep(0.2)
    parent.kill()
    parent.communicate()
    assert gone_within(worker, 2)


def test_a_worker_that_cannot_start_is_a_death():
    with WorkerPool(1) as made:
        broken = made.submit_in({**os.environ, "PYTHONHOME": "/nowhere"}, None, abs, 1)
        with pytest.raises(WorkerDied) as caught:
            broken.result()
        assert caught.value.returncode > 0
        assert "encodings" in caught.value.words
        assert made.submit(abs, -1).result() == 1


@pytest.mark.usefixtures("one_slot")
def test_without_room_for_locks_nothing_is_counted(tmp_path):
    folder = tmp_path / f"hloscope-slots-{os.getuid()}"
    folder.mkdir()
    (folder / "slot-0").mkdir()  # cannot be opened for writing
    with WorkerPool(1) as made:
        assert made.submit(abs, -1).result() == 1


def test_what_keeps_a_step_from_running_is_a_message(says, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(client, "_pools", {})
    with pytest.raises(CompileError) as caught:
        client.Question(abs, 1, doing="compiling step").answer()
    assert "compiling step" in caught.value.what
    assert "/nowhere/python" in caught.value.why
    says(caught)


@pytest.mark.parametrize("start", ["", "import hloscope.compile.client"], ids=["late", "early"])
def test_what_begins_after_the_main_thread_is_told_to_begin_before(says, start):
    script = f"""{start}
import threading

def late():
    threading.main_thread().join()
    import hloscope
    hloscope.analyze(lambda x: x, ("f32[8]",), slice="v5e:1x1")

threading.Thread(target=late).start()
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    message = done.stderr.rpartition("Error: ")[2]
    assert "thread.join()" in says(message)


def test_death_as_a_message(says):
    with pytest.raises(CompilerDiedError) as caught:
        client.Question(os.abort, doing="compiling step for v5e:2x4").answer()
    assert "compiling step for v5e:2x4" in caught.value.what
    assert "SIGABRT" in caught.value.why
    assert "jax[tpu]" in caught.value.fix
    says(caught)


def test_a_limit_as_a_message(says):
    with pytest.raises(TimeLimitError) as caught:
        client.Question(*FOREVER, doing="compiling step for v5e:2x4", timeout_s=0.5).answer()
    assert caught.value.what.startswith("compiling step for v5e:2x4 ")
    assert " 0.5 s" in caught.value.what
    assert caught.value.why is None
    says(caught)


WORDS = """\
I0000 00:00:1795 1 common_lib.cc:5] starting
F1122 04:00:12.123456 123 emitter_base.cc:1524] Check failed: get_loop_bound(color) == loop_bound (0 vs. 4)
*** Check failure stack trace: ***
    @     0x7f4ca5d4c6f0  (unknown)
https://symbolize.stripped_domain/r/?trace=7f4ca5d4c6f0
F1122 04:00:12.123456 123 emitter_base.cc:1524] Check failed: get_loop_bound(color) == loop_bound (0 vs. 4)
"""


DUMP = """\
W1122 05:08:00.371218 7 x.cc:1] slow
loc(unknown): the pass failed
*** SIGSEGV (@(nil)), si_code=1, see go/stacktraces#s15 received by PID 7 (TID 7) on cpu 1; stack trace: ***
PC: @     0x7fddd0574219  (unknown)  (unknown)
   r8=0  r9=1 r10=8 r11=246
          stack used: 8 KiB of 8192 KiB
"""


def test_registers_and_stacks_are_no_last_words():
    assert client._find_last_words(DUMP) == ["loc(unknown): the pass failed"]
    assert client._find_last_words(DUMP + "F1122 05:08:00.371218 7 a.cc:1] Check failed: x") == [
        "a.cc:1] Check failed: x"
    ]


def test_reasons_before_a_long_dump_are_kept(workers):
    code = "import os; os.write(2, b'Check failed: early' + b'\\n' + b'stack used' * 20_000); os.abort()"
    with pytest.raises(WorkerDied) as caught:
        workers.submit(exec, code).result()
    assert client._find_last_words(caught.value.words) == ["Check failed: early"]


def test_the_last_words_are_those_that_say_why(says):
    died = client.make_compiler_died_error(WorkerDied(-signal.SIGABRT, WORDS), "compiling step")
    assert died.why.splitlines()[1:] == [
        "emitter_base.cc:1524] Check failed: get_loop_bound(color) == loop_bound (0 vs. 4)"
    ]
    killed = client.make_compiler_died_error(WorkerDied(-signal.SIGKILL, ""), "compiling step")
    assert "memory" in killed.why
    says(killed)
    assert "HLOSCOPE_MAX_WORKERS=1" in killed.fix


def test_a_flag_that_libtpu_does_not_know_is_the_users(says):
    words = "x.cc:327\nERROR: Unknown command line flag 'xla_tpu_nonsense'\n"
    died = client.make_compiler_died_error(WorkerDied(1, words), "compiling step")
    assert "xla_tpu_nonsense" in died.why
    assert "LIBTPU_INIT_ARGS" in died.fix
    says(died)


def test_a_flag_that_xla_does_not_know_is_the_users_too(says):
    words = "F1123 13:31:13.871036   12372 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_nonsense=1\n"
    died = client.make_compiler_died_error(WorkerDied(-signal.SIGABRT, words), "compiling step")
    assert "xla_nonsense" in died.why
    assert "unset XLA_FLAGS" in died.fix
    says(died)


def test_a_full_temporary_folder_is_named(says, monkeypatch):
    monkeypatch.setattr(client, "find_full_temporary_folder", lambda: "/tmp")
    died = client.make_compiler_died_error(WorkerDied(-signal.SIGABRT, ""), "compiling step")
    assert "/tmp" in died.why
    assert "TMPDIR" in died.fix
    says(died)


def test_limits(says, monkeypatch):
    monkeypatch.delenv("HLOSCOPE_TIMEOUT", raising=False)
    assert client.choose_time_limit(5) == 5
    assert client.choose_time_limit(0) is None
    assert client.choose_time_limit(None) == 1800  # stderr is no terminal here
    monkeypatch.setenv("HLOSCOPE_TIMEOUT", "7.5")
    assert client.choose_time_limit(None) == 7.5
    assert client.choose_time_limit(5) == 5
    monkeypatch.setenv("HLOSCOPE_TIMEOUT", "inf")
    assert client.choose_time_limit(None) is None
    assert client.choose_time_limit(1e300) is None  # more than a clock can count
    for text in ("soon", "nan", "-3"):
        monkeypatch.setenv("HLOSCOPE_TIMEOUT", text)
        with pytest.raises(NotationError) as caught:
            client.choose_time_limit(None)
        assert f"HLOSCOPE_TIMEOUT={text} " in says(caught, text)
    for number in (float("nan"), -1.0):
        with pytest.raises(NotationError) as caught:
            client.choose_time_limit(number)
        assert f"{number} " in says(caught, f"{number} of Python")


def test_a_process_without_standard_error_can_capture_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with capture_stderr() as captured:
        os.write(2, b"W0101 00:00:00.0 1 x.cc:1] [SPMD] said\n")
    assert captured.diagnostics() == ("[SPMD] said",)
