"""Programs that end, hang or fill up their compiler: one message each, and everything else goes on.

The compiler is real, but for `stand_ins/sitecustomize.py`, with which compiling some of the programs really dies or
hangs; two programs need no stand-in, for libtpu 0.0.42 really aborts over them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.long]

ROOT = Path(__file__).parent.parent.parent
STAND_INS = Path(__file__).parent / "stand_ins"
MODEL = """\
import jax.numpy as jnp
import hloscope

ARGS = ("bf16[8@X,2048@Y]", "bf16[2048@Y,256]")
HOW = dict(mesh={"X": 2, "Y": 2}, args=ARGS, slice="v5e:2x2")


@hloscope.target(**HOW)
def fine(x, w):
    return x @ w


@hloscope.target(**HOW)
def doomed(x, w):
    return x @ w


@hloscope.target(**HOW)
def explained(x, w):
    return x @ w


@hloscope.target(**HOW)
def inexplicable(x, w):
    return explained(x, w)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{STAND_INS}")
    monkeypatch.setenv("STAND_IN", "abort")
    for name in list(os.environ):
        if name.startswith(("JAX_", "XLA_")):
            monkeypatch.delenv(name)
    return tmp_path


def run(folder, *arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=300, **options
    )


def hloscope(folder, *arguments):
    return run(folder, "-m", "hloscope", *arguments)


def children(process):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(stat.parent.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


def test_an_abort_is_one_message(says, folder):
    done = hloscope(folder, "analyze", "model.py:doomed")
    assert (done.returncode, done.stdout) == (2, "")
    what, signal_named, last_words, *_ = says(done.stderr).splitlines()
    assert what.startswith("error: ")
    assert what.endswith(" model.py:doomed for v5e:2x2")
    assert "SIGABRT" in signal_named
    assert last_words.strip() == "made_up.cc:12] Check failed: doomed"


def test_a_kill_is_one_message(says, folder, monkeypatch):
    monkeypatch.setenv("STAND_IN", "killed")
    done = hloscope(folder, "analyze", "model.py:doomed")
    assert (done.returncode, done.stdout) == (2, "")
    assert " memory" in says(done.stderr)


def test_a_hang_ends_with_the_limit(says, folder, monkeypatch):
    monkeypatch.setenv("STAND_IN", "hang")
    done = hloscope(folder, "analyze", "model.py:doomed", "--timeout", "4")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match("error: .*model.py:doomed for v5e:2x2 .* 4 s\n", says(done.stderr))


def test_ctrl_c_ends_a_compile_within_a_second_and_leaves_nothing(folder, monkeypatch):
    monkeypatch.setenv("STAND_IN", "hang")
    process = subprocess.Popen(
        [sys.executable, "-m", "hloscope", "analyze", "model.py:doomed"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_takes_ctrl_c,  # noqa: PLW1509  # children of a shell's background job ignore it
    )
    workers = _deep_in_c(process)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    while any(map(_cpu_seconds, workers)):
        assert time.monotonic() - begun < 1
        time.sleep(0.01)
    _, said = process.communicate(timeout=10)
    assert (process.returncode, said) == (130, "interrupted\n")
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def _deep_in_c(process):
    """The workers of a process, once the first has started up and hangs."""
    deadline = time.monotonic() + 60
    workers = []
    while not workers or _cpu_seconds(workers[0]) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        workers = children(process.pid)
    return workers


def _takes_ctrl_c():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _cpu_seconds(process):
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def test_shardys_death_costs_reasons_and_not_the_compile(says, folder):
    done = hloscope(folder, "analyze", "model.py:explained", "--format", "json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert [one["kind"] for one in found["collectives"]] == ["all-reduce"]
    [note] = [note for note in found["notes"] if "Shardy" in note]
    says(note, "asked again")
    assert found["collectives"][0]["why"] is not None
    worse = json.loads(hloscope(folder, "analyze", "model.py:inexplicable", "--format", "json").stdout)
    assert [one["kind"] for one in worse["collectives"]] == ["all-reduce"]
    [note] = [note for note in worse["notes"] if "Shardy" in note]
    says(note, "not run again")


def test_what_shardy_could_not_say_when_it_was_killed_is_asked_again(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("HLOSCOPE_CACHE", "1")
    monkeypatch.setenv("HLOSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    for how, is_told in (("killed", True), ("", False), ("killed", False)):
        monkeypatch.setenv("STAND_IN", how)
        found = json.loads(hloscope(folder, "analyze", "model.py:explained", "--format", "json").stdout)
        assert any("Shardy" in note for note in found["notes"]) == is_told, how


def test_shardys_hang_costs_reasons_and_not_the_compile(says, folder, monkeypatch):
    monkeypatch.setenv("STAND_IN", "hang")
    done = hloscope(folder, "analyze", "model.py:explained", "--timeout", "8", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["kind"] for one in found["collectives"]] == ["all-reduce"]
    [note] = [note for note in found["notes"] if "Shardy" in note]
    assert " 8 s" in says(note)


def test_a_full_temporary_folder(folder, tmp_path, monkeypatch):
    full = tmp_path / "full"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(full)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    try:
        monkeypatch.setenv("TMPDIR", str(full))
        with suppress(OSError), (full / "fill").open("wb", buffering=0) as file:
            while True:
                file.write(b"y" * 4096)
        os.truncate(full / "fill", (full / "fill").stat().st_size - 32768)  # room for a file, and not for dumps
        done = hloscope(folder, "analyze", "model.py:fine")
        assert done.returncode == 0
        assert "all-reduce" in done.stdout
        assert re.search(rf"{full}\b.* full\b", " ".join(done.stdout.split()))
    finally:
        subprocess.run(["umount", str(full)], check=True)


BOTH = """\
import hloscope
try:
    hloscope.analyze("model.py:doomed")
except hloscope.HloscopeError as error:
    print(error.what)
print(*[one.kind for one in hloscope.analyze("model.py:fine").collectives])
"""
SAID = "the compiler died while compiling model.py:doomed for v5e:2x2\nall-reduce\n"


def test_an_unguarded_script_goes_on(folder):
    (folder / "script.py").write_text("import jax\njax.config.update('jax_num_cpu_devices', 4)\n" + BOTH)
    done = run(folder, "script.py")
    assert (done.stdout, done.returncode) == (SAID, 0), done.stderr


def test_a_script_on_standard_input_goes_on(folder):
    done = run(folder, "-", input="import jax\njax.config.update('jax_num_cpu_devices', 4)\n" + BOTH)
    assert (done.stdout, done.returncode) == (SAID, 0), done.stderr


SUITE = """\
import pytest

def test_doomed(hlo):
    hlo.analyze("model.py:doomed")

def test_fine(hlo):
    assert [one.kind for one in hlo.analyze("model.py:fine").collectives] == ["all-reduce"]

def test_fine_too(hlo):
    assert hlo.analyze("model.py:explained").collectives
"""


def test_a_pytest_session_goes_on(folder):
    (folder / "test_model.py").write_text(SUITE)
    done = run(folder, "-m", "pytest", "-n", "2", "-q", "-p", "no:cacheprovider", "test_model.py")
    assert done.returncode == 1
    assert "1 failed, 2 passed" in done.stdout
    assert re.search("CompilerDiedError: .* model.py:doomed for v5e:2x2", done.stdout)


def test_a_check_goes_on(says, folder):
    names = ("fine", "doomed", "explained")
    (folder / "hloscope.toml").write_text(
        "".join(f'[targets.{name}]\nfunction = "model.py:{name}"\ncontract = "all-reduce@Y"\n' for name in names)
        + '[targets.never]\nfunction = "never.py:f"\ntimeout = 4\n'
        + '[targets.native]\nfunction = "native.py:f"\ntimeout = 4\n'
    )
    (folder / "never.py").write_text("import time\ntime.sleep(1000)\n")
    (folder / "native.py").write_text("import re\nre.match('(a+)+$', 'a' * 64 + 'b')\n")
    done = hloscope(folder, "check", "--format", "json")
    assert done.returncode == 2
    found = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    assert found["fine"]["passed"]
    assert found["explained"]["passed"]
    errors = {name: says(found[name]["error"], name) for name in ("doomed", "never", "native")}
    assert "SIGABRT" in errors["doomed"]
    assert re.match(
        r"error: .* never .* 4 s\n  --> never\.py:2 in <module>\n   \| time\.sleep\(1000\)\n   = fix: ", errors["never"]
    )
    assert re.match(r"error: .* native .* 4 s\n", errors["native"])


REAL = """\
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import hloscope


@hloscope.target(mesh={"X": 4}, args=("f32[4,1024@X,1024]", "f32[256@X,1024]"), slice="v5p:1x2x2")
def scanned(ws, x):
    def loss(ws, x):
        return jnp.sum(jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0] ** 2)
    return jax.grad(loss)(ws, x)
"""


def test_a_real_abort_of_libtpu(folder):
    (folder / "real.py").write_text(REAL)
    done = hloscope(folder, "analyze", "real.py:scanned")
    if done.returncode == 0:
        pytest.skip("this libtpu compiles the program")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match("error: .* real.py:scanned for v5p:1x2x2\n", done.stderr)
    assert "Check failed" in done.stderr


def test_price_shows_its_other_slices(says, folder):
    arguments = ("price", "model.py:doomed", "--slice", "v5e:2x2", "--slice", "v6e:2x2")
    done = hloscope(folder, *arguments)
    assert done.returncode == 2
    told = re.findall(r"the compiler died.*model\.py:doomed\b", done.stdout)
    assert len(told) == 2
    says(told)
    (folder / "real.py").write_text(REAL)
    done = hloscope(
        folder, "price", "real.py:scanned", "--slice", "v5p:1x2x2", "--slice", "v5p:2x2x1", "--format", "json"
    )
    found = json.loads(done.stdout)
    assert found["prices"][-1]["time"]["step_us"] > 0
    shape = done.returncode, len(found["prices"]), len(found["unpriced"])
    assert shape in [(2, 1, 1), (0, 2, 0)]  # another libtpu may compile it


def test_the_worker_that_is_started_ahead_is_the_one_that_compiles(folder):
    (folder / "script.py").write_text(
        "import hloscope\n"
        "from hloscope.compile import pool\n"
        "made = []\n"
        "start = pool.Worker.__init__\n"
        "pool.Worker.__init__ = lambda self, *a, **k: made.append(k['prepare']) or start(self, *a, **k)\n"
        "for name in ('fine', 'fine', 'explained'):\n"
        "    hloscope.analyze(f'model.py:{name}')\n"
        "print(made)\n"
    )
    done = run(folder, "script.py")
    assert done.stdout.startswith("['v5e:2x2'"), done.stderr
    assert done.stdout.count("'v5e:2x2'") == 1


IN_A_THREAD = {
    "asyncio": "import asyncio\nasyncio.run(asyncio.to_thread(run, 'doomed'))\n",
    "threads": "from concurrent.futures import ThreadPoolExecutor\n"
    "with ThreadPoolExecutor(4) as threads:\n    list(threads.map(run, ['doomed'] * 4))\n",
}


@pytest.mark.parametrize("how", IN_A_THREAD)
def test_ctrl_c_ends_a_compile_that_another_thread_waits_for(folder, monkeypatch, how):
    monkeypatch.setenv("STAND_IN", "hang")
    script = "import hloscope\ndef run(name):\n    hloscope.analyze(f'model.py:{name}')\n    print('went on')\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script + IN_A_THREAD[how]],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as a shell gives each of its jobs a group of processes, which Ctrl-C goes to
        preexec_fn=_takes_ctrl_c,  # noqa: PLW1509
    )
    workers = _deep_in_c(process)
    begun = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    while any(map(_cpu_seconds, workers)):
        assert time.monotonic() - begun < 1
        time.sleep(0.01)
    said, errors = process.communicate(timeout=3)
    assert (process.returncode, said, "KeyboardInterrupt" in errors) == (-signal.SIGINT, "", True)
