"""What a researcher does in a notebook: look, ask why, change, check, be wrong, wait, interrupt, go on."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.tpu_compiler

STEP = """
def scale(x):
    return x * 2

def step(x, w):
    return scale(x @ w)

def summed(x, w):
    return (x @ w).sum()

ARGS = ("f32[64@X,128]", "f32[128,64]")
MESH = {"X": 8}
"""
MOST_LINES = 15


@pytest.fixture
def step(kernel):
    kernel.run(STEP)
    return kernel


def test_a_first_look(step):
    heard = step.heard("found = hloscope.analyze(summed, ARGS, mesh=MESH)\nfound")
    assert heard.errors == []
    assert heard.types == ["text/html", "text/markdown", "text/plain"]
    assert re.fullmatch(r"<Analysis of summed on v5e:2x4: 1 collective, 7 B on the wire per step>", heard.stdout)
    assert heard.shown[-1:] in ([], [""])
    said = step.run("""
        first = found.collectives[0]
        print(first.kind, first.axes, first.source[0].line, first.why)
        print(len(found["all-reduce@X"]), len(found.collectives.where("all-gather", axis="X")))
        print(found)
    """)
    line, counts, report = said.split("\n", 2)
    assert line.startswith("all-reduce ('X',) 8 ")
    assert "sum" in line
    assert counts == "1 0"
    assert "all-reduce" in report
    assert "--" not in report


def test_pictures_show_themselves(step):
    step.run("found = hloscope.analyze(summed, ARGS, mesh=MESH)")
    for asked in ("found.mesh_picture()", "found.array(found.arguments[0].name)"):
        heard = step.heard(asked)
        assert heard.errors == []
        assert heard.types == ["image/svg+xml", "text/html", "text/plain"]
        assert heard.stdout.startswith("<Picture of ")


def test_three_slices_and_meshes(step):
    said = step.run("""
        for size, name in ((4, "v5e:2x2"), (8, "v5p:2x2x2"), (16, "v6e:4x4")):
            found = hloscope.analyze(summed, ARGS, mesh={"X": size}, slice=name)
            print(found.slice.name, found.mesh.device_count, [c.group_size for c in found.collectives])
        prices = hloscope.price(summed, ["v5e:2x4", "v6e:2x4"], ARGS, mesh=MESH)
        print([one.slice.name for one in prices if one.time.step_us > 0])
    """)
    assert said == "v5e:2x2 4 [4]\nv5p:2x2x2 8 [8]\nv6e:4x4 16 [16]\n['v5e:2x4', 'v6e:2x4']\n"


def test_a_check_of_two_targets_and_a_verification_that_fails(step):
    said = step.run("""
        report = hloscope.check(step, summed, args=ARGS, mesh=MESH, contract="none")
        print(report.passed, [one.name for one in report.failed])
        print(report)
        verified = hloscope.verify(step, lambda x, w: 3 * (x @ w), ARGS, mesh=MESH)
        print(repr(verified))
        print(verified.passed, verified.fails("error"), [one.rule for one in verified.findings])
        difference = hloscope.diff(step, summed, args=ARGS, mesh=MESH)
        print(difference.same, difference.fails("increase"), [str(one.kind) for one in difference.changes])
    """)
    lines = said.splitlines()
    assert lines[0] == "False ['summed']"
    assert any(line.startswith("FAILED  summed") for line in lines)
    assert lines[-3:] == [
        "<Verification of step against <lambda>: failed>",
        "False True ['wrong-result']",
        "False True ['added']",
    ]


def test_flax(kernel):
    said = kernel.run("""
        from flax import nnx, struct

        class Layer(nnx.Module):
            def __init__(self, rngs):
                self.dense = nnx.Linear(128, 64, rngs=rngs)

            def __call__(self, x):
                return self.dense(x).sum()

        layer = Layer(nnx.Rngs(0))
        found = hloscope.analyze(layer, ("f32[64@X,128]",), mesh={"X": 8})
        print(found.target, [c.kind.value for c in found.collectives], [one.name for one in found.arguments])
        stepped = hloscope.analyze(nnx.jit(lambda layer, x: layer(x)), (layer, "f32[64@X,128]"), mesh={"X": 8})
        print([c.kind.value for c in stepped.collectives] == [c.kind.value for c in found.collectives])

        @struct.dataclass
        class State:
            params: dict
            count: object
            rate: float = struct.field(pytree_node=False, default=0.1)

        def update(state, x):
            return state.replace(params={"w": state.params["w"] - state.rate * x.sum()}, count=state.count + 1)

        state = State(params={"w": "f32[128@X]"}, count="i32[]")
        found = hloscope.analyze(update, (state, "f32[64@X,8]"), mesh={"X": 8}, donate=0)
        print([c.kind.value for c in found.collectives], [one.name for one in found.arguments])
        print(layer.dense.kernel[...].shape)
    """)
    first, same, state, kept = said.splitlines()
    assert first.startswith("Layer ['all-reduce'] ")
    assert "dense" in first
    assert "kernel" in first
    assert same == "True"
    assert state.startswith("['all-reduce'] ")
    assert all(name in state for name in ("params['w']", "count", "'x'"))
    assert kept == "(128, 64)"


WRONG = {
    "a mesh": "hloscope.analyze(step, ('f32[64@Y,128]', 'f32[128,64]'), mesh=MESH)",
    "a function that fails": "hloscope.analyze(lambda x, w: x @ w.T @ w.T, ARGS, mesh=MESH)",
    "a keyword": "hloscope.analyze(step, ARGS, meshes=MESH)",
    "a value": "hloscope.analyze(step, ARGS, mesh=MESH, dims=5)",
    "no arguments": "hloscope.analyze(step, mesh=MESH)",
    "a slice": "hloscope.analyze(step, ARGS, mesh=MESH, slice='v5e:3x3')",
    "a look-up": "hloscope.analyze(step, ARGS, mesh=MESH)['all-gather@fsdp']",
    "a report": "hloscope.analyze(step, ARGS, mesh=MESH).report('pdf')",
    "awaited": "await hloscope.aio.analyze(step, ARGS, mesh=MESH, slice='v5e:3x3')",
    "a block": "with hloscope.recording(only='train_*', slice='v5e:2x4'):\n    jax.jit(lambda x: x + 1)(1.0)",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_takes_few_lines_and_ends_with_what_to_do(says, step, name):
    heard = step.heard(WRONG[name])
    (told,) = heard.errors
    lines = told.splitlines()
    assert len(lines) <= MOST_LINES, told
    assert not re.search(r"(?<!-)--[a-z]", told)
    assert re.match(r"\w+Error: (?!error: )", next(line for line in lines if re.match(r"\w+Error: ", line)))
    assert "During handling" not in told
    assert "direct cause" not in told
    start = next(index for index, line in enumerate(lines) if re.match(r"\w+Error: ", line))
    assert "calls.py" not in told
    assert "ipykernel" not in "\n".join(lines[start:])
    says(re.sub(r"In\[\d+\]", "CELL", "\n".join(lines[start:])))


def test_lines_of_cells_are_named_as_the_notebook_numbers_them(step):
    said = step.run("""
        def in_a_cell(x, w):
            return (x @ w).sum()  # hloscope: allow all-gather: never there

        def unsummed(x, w):
            return x @ w

        CELL = f"In[{len(In) - 1}]"
        found = hloscope.analyze(
            in_a_cell, ARGS, mesh=MESH, rule_options={"unexpected-collective.active": True}
        )
        difference = hloscope.diff(unsummed, in_a_cell, args=ARGS, mesh=MESH)
        shown = {
            "report": str(found),
            "repr": repr(found.collectives[0]),
            "diff": str(difference),
            "dataframe": found.to_dataframe()["source"][0],
            "check": str(hloscope.check(found, contract="none")),
            "markdown": hloscope.check(found, contract="none").report("markdown"),
            "allow": " ".join(one.message for one in found.findings),
        }
        print({name: f"{CELL}:2" in text for name, text in shown.items()})
        print([name for name, text in shown.items() if "ipykernel" in text or ".py:" in text])
        print(found.collectives[0].source[0].file.endswith(".py"), found.findings[0].source.rpartition(":")[2])
    """)
    named, others, facts = said.splitlines()
    assert named == str(dict.fromkeys("report repr diff dataframe check markdown allow".split(), True)), said
    assert (others, facts) == ("[]", "True 2")


def test_a_whole_traceback_for_whoever_asks(step):
    heard = step.heard("os.environ['HLOSCOPE_TRACEBACK'] = 'full'\n" + WRONG["a mesh"])
    step.run("del os.environ['HLOSCOPE_TRACEBACK']")
    assert len(heard.errors[0].splitlines()) > MOST_LINES
    assert "arguments.py" in heard.errors[0]


def test_an_interrupt_ends_a_compile_at_once_and_what_was_compiled_is_kept(step, root, tmp_path):
    stand_ins = root / "tests" / "compile" / "stand_ins"
    step.run(f"""
        def doomed(x, w):
            return x @ w

        changed = {{"HLOSCOPE_CACHE": "1", "HLOSCOPE_CACHE_DIR": {str(tmp_path)!r}, "STAND_IN": "hang"}}
        changed["PYTHONPATH"] = os.environ["PYTHONPATH"] + os.pathsep + {str(stand_ins)!r}
        before = dict(os.environ)
        os.environ.update(changed)
        from hloscope.base.store import open_default_store
        print(open_default_store().contents()[0])
    """)
    heard, seconds = step.interrupted(
        """
        hloscope.analyze(summed, ARGS, mesh=MESH)
        print("kept", flush=True)
        hloscope.analyze(doomed, ARGS, mesh=MESH)
        """,
        when=lambda heard: "kept" in heard.stdout and "compiling" in "".join(heard.shown[-1:]),
    )
    assert seconds < 1
    (told,) = heard.errors
    assert told.splitlines()[-1].startswith("KeyboardInterrupt")
    assert len(told.splitlines()) <= MOST_LINES
    assert re.fullmatch(r"hloscope: compiling for v5e:2x4, \d+ s", heard.shown[-2])
    assert heard.shown[-1] == ""
    said = step.run("""
        kept = open_default_store().contents()[0]
        del os.environ["STAND_IN"]
        report = hloscope.check(summed, doomed, args=ARGS, mesh=MESH, contract="all-reduce@X")
        print(kept > 0, [one.passed for one in report.checks], open_default_store().contents()[0] > kept)
        os.environ.clear()
        os.environ.update(before)
    """)
    assert said == "True [True, False] True\n"


def test_an_interrupt_while_a_program_is_traced(step):
    heard, seconds = step.interrupted(
        """
        def endless(x, w):
            print("tracing", flush=True)
            while True:
                time.sleep(0.01)

        hloscope.analyze(endless, ARGS, mesh=MESH)
        """,
        when=lambda heard: "tracing" in heard.stdout,
    )
    assert seconds < 1
    assert "KeyboardInterrupt" in heard.errors[0].splitlines()[-1]
    assert step.run("print(hloscope.analyze(step, ARGS, mesh=MESH).mesh.device_count, jax.device_count())") == "8 1\n"


def test_what_is_quick_says_nothing_meanwhile(step):
    step.run("hloscope.shardings(step, ARGS, mesh=MESH)")
    heard = step.heard(
        "text = 'HloModule m\\nENTRY e {\\n  ROOT p = f32[4] parameter(0)\\n}\\n'\nhloscope.analyze_text(text)"
    )
    assert (heard.shown, heard.stderr, heard.errors) == ([], "", [])


def test_several_at_once_with_asyncio(step):
    said = step.run("""
        meshes = [{"X": 2}, {"X": 4}, {"X": 8}]
        found = await asyncio.gather(*(hloscope.aio.analyze(summed, ARGS, mesh=mesh) for mesh in meshes))
        print([one.mesh.device_count for one in found])
        verified, table = await asyncio.gather(
            hloscope.aio.verify(step, step, ARGS, mesh=MESH, against_single_device=True),
            hloscope.aio.shardings(step, ARGS, mesh=MESH),
        )
        print(verified.passed, len(table.arrays) > 2)
        try:
            await asyncio.wait_for(hloscope.aio.analyze(lambda x, w: (time.sleep(1), x @ w)[1], ARGS, mesh=MESH), 0.1)
        except TimeoutError:
            print("went on")
    """)
    assert said == "[2, 4, 8]\nTrue True\nwent on\n"


STATE = """
import gc, random, signal, warnings

def opened(number):
    try:
        name = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""
    own = name.startswith("/") and "hloscope-slots" not in name and "deleted" not in name
    return name if own else ""  # what a worker is spoken to by is as good as another one's

def state():
    gc.collect()
    return {
        "settings": dict(jax.config.values),
        "devices": [str(device) for device in jax.devices()],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "masked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "warnings": list(warnings.filters),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.gettrace(), sys.getprofile()),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), gc.get_threshold()),
        "streams": (sys.stdin, sys.stdout, sys.stderr, *(os.fstat(number).st_ino for number in (0, 1, 2))),
        "random": (random.getstate(), str(np.random.get_state())),
        "numpy": (np.geterr(), np.get_printoptions()),
        "tasks": len(asyncio.all_tasks()),
        "files": sorted(name for name in map(opened, os.listdir("/proc/self/fd")) if name),
        "modules": {name for name in sys.modules if name.startswith("__") or name in ("model", "helper")},
    }

def every_use():
    found = hloscope.analyze(summed, ARGS, mesh=MESH)
    hloscope.explain(summed, ARGS, mesh=MESH, try_s=1)
    hloscope.shardings(summed, ARGS, mesh=MESH)
    hloscope.price(summed, ["v5e:2x4", "v6e:2x4"], ARGS, mesh=MESH)
    hloscope.verify(step, step, ARGS, mesh=MESH, against_single_device=True)
    hloscope.check(found, contract="none")
    hloscope.diff(found, step, args=ARGS, mesh=MESH)
    with hloscope.recording("v5e:2x4") as block:
        jax.jit(lambda x: x * 3)(1.0)
    for wrong in (lambda: hloscope.analyze(summed, ARGS, mesh={"X": 3}), lambda: hloscope.analyze("absent.py:step")):
        with contextlib.suppress(hloscope.HloscopeError):
            wrong()
"""


def test_the_process_is_afterwards_as_before(step):
    step.run(STATE)
    said = step.run("""
        every_use()  # after which modules are loaded and workers there
        before = state()
        every_use()
        after = state()
        for name in before:
            if before[name] != after[name]:
                print(name, before[name], after[name])
    """)
    assert said == ""


@pytest.mark.long
def test_thirty_analyses_take_little_memory(step):
    said = step.run("""
        import gc

        def resident():
            gc.collect()
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        def one(number):
            hloscope.analyze(lambda x, w: (x @ w).sum() * number, ARGS, mesh=MESH)

        for number in range(5):
            one(number)
        before = resident()
        for number in range(30):
            one(5 + number)
        print((resident() - before) // 1_000_000)
    """)
    assert int(said) < 50
