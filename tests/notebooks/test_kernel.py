"""hloscope in a running Jupyter kernel whose JAX has one device and the user's arrays on it."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.tpu_compiler

STEP = """
def scale(x):
    return x * 2

def step(x, w):
    return scale(x @ w)

def reference(x, w):
    return 2 * (x @ w)

ARGS = ("f32[64@X,128]", "f32[128,64]")

def kinds(found):
    return sorted({str(c.kind) for c in found.collectives})

def patched_or_redirected():
    streams = (sys.stdin, sys.stdout, sys.stderr, *(os.fstat(number) for number in (0, 1, 2)))
    return (*streams, jax.default_backend, jax.devices, jax.device_count, jax.local_devices)

jitted = jax.jit(lambda x, w: step(x, w))
"""
CHANGED = """
def scale(x):
    return x - x.sum()
"""


@pytest.fixture
def step(kernel):
    kernel.run(STEP)
    return kernel


@pytest.mark.smoke
def test_a_mesh_of_any_size_though_jax_has_one_device_and_the_users_arrays_live_on(step):
    said = step.run("""
        compiled = jax.jit(lambda v: v + weights)
        compiled(weights)
        for size in (4, 8, 4):
            found = hloscope.analyze(step, ARGS, mesh={"X": size})
            print(found.mesh.device_count, [one.local_shape for one in found.arguments])
        print(jax.device_count(), len(jax.local_devices()), (weights * 2).tolist())
        print(weights.devices() == set(jax.devices()))
        print(compiled._cache_size(), jax.config.jax_num_cpu_devices)
    """)
    assert said == (
        "4 [(16, 128), (128, 64)]\n8 [(8, 128), (128, 64)]\n4 [(16, 128), (128, 64)]\n"
        "1 1 [0.0, 2.0, 4.0, 6.0]\nTrue\n1 -1\n"
    )


def test_a_program_that_makes_its_own_mesh(kernel):
    said = kernel.run("""
        def factory():
            mesh = jax.make_mesh((4, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
            x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P("a", "b")))
            return (lambda x: x.sum() + weights[0]), (x,)

        print(hloscope.analyze(factory).mesh.device_count)
    """)
    assert said == "16\n"


def test_a_cell_that_was_changed_is_seen(step):
    said = step.run("""
        print(kinds(hloscope.analyze(step, ARGS, mesh={"X": 8})), kinds(hloscope.analyze(jitted, ARGS, mesh={"X": 8})))
        print(hloscope.verify(step, reference, ARGS, mesh={"X": 8}).passed)
    """)
    step.run(CHANGED)
    said += step.run("""
        print(kinds(hloscope.analyze(step, ARGS, mesh={"X": 8})), kinds(hloscope.analyze(jitted, ARGS, mesh={"X": 8})))
        print(hloscope.verify(step, reference, ARGS, mesh={"X": 8}).passed)
    """)
    assert said == "[] []\nTrue\n['all-reduce'] ['all-reduce']\nFalse\n"


def test_a_helper_that_is_jitted_itself_is_seen_when_it_changes(step):
    step.run("""
        def inner(x):
            return x + 1

        @jax.jit
        def helper(x):
            return inner(x)

        def outer(x):
            return helper(x)

        x = jnp.ones((8, 8))
        outer(x)
        before = helper._cache_size()
        print(kinds(hloscope.analyze(outer, ("f32[64@X,8]",), mesh={"X": 8})))
    """)
    step.run("def inner(x):\n    return x - x.sum()")
    said = step.run("""
        print(kinds(hloscope.analyze(outer, ("f32[64@X,8]",), mesh={"X": 8})), outer(x)[0, 0], before)
    """)
    assert said == "['all-reduce'] 2.0 1\n"  # what JAX itself compiled for the user is as he left it


def test_an_edited_file_is_imported_again(step):
    step.run("""
        write("one/model.py", "import helper\\ndef step(x, w):\\n    return helper.scale(x @ w)\\n")
        write("two/model.py", "import helper\\ndef step(x, w):\\n    return x.sum()\\n")
        write("one/helper.py", "def scale(x):\\n    return x * 2\\n")
        write("two/helper.py", "VALUE = 1\\n")
        write("helper.py", "OWN = 1\\n")
    """)
    said = step.run("""
        import helper
        again = lambda name: kinds(hloscope.analyze(name, ARGS, mesh={"X": 8}))
        print(again("one/model.py:step"), again("two/model.py:step"))
        write("one/helper.py", "def scale(x):\\n    return x.sum()\\n")
        print(again("one/model.py:step"))
        write("one/helper.py", "def scale(x):\\n    return x * 3\\n")
        write("two/model.py", "def step(x, w):\\n    from helper import VALUE\\n    return x * VALUE\\n")
        print(again("one/model.py:step"), again("two/model.py:step"))
        left = [os.path.basename(p) for p in sys.path]
        print("model" in sys.modules, helper is sys.modules["helper"], helper.OWN, "one" in left)
    """)
    assert said == "[] ['all-reduce']\n['all-reduce']\n[] []\nFalse True 1 False\n"


def test_comments_and_lines_of_an_edited_file_are_read_again(step):
    said = step.run("""
        code = "def step(x, w):\\n    return (x @ w).sum()  # hloscope: allow {what}\\n"
        ask = {"mesh": {"X": 8}, "rule_options": {"unexpected-collective.active": True}}
        for what in ("all-reduce: first", "all-gather: second", "all-reduce: third"):
            write("accepting.py", code.format(what=what))
            found = hloscope.analyze("accepting.py:step", ARGS, **ask)
            print([one.allowed for one in found.findings if one.rule == "unexpected-collective"])
    """)
    assert said == "['first']\n[None]\n['third']\n"
    said = step.run("""
        def accepting(x, w):
            return (x @ w).sum()  # hloscope: allow all-reduce: in a cell
        found = hloscope.analyze(accepting, ARGS, **ask)
        print([one.allowed for one in found.findings if one.rule == "unexpected-collective"])
    """)
    assert said == "['in a cell']\n"


def test_everything_is_afterwards_as_before(step):
    said = step.run("""
        from jax._src import xla_bridge
        from jax.experimental import mesh_utils

        write("settings.py", '''
        import logging, os, sys, jax
        jax.config.update("jax_enable_x64", True)
        os.environ["THE_MODELS_OWN"] = "1"
        os.environ.pop("JAX_PLATFORMS", None)
        sys.path.insert(0, "/nowhere")
        sys.stdout = sys.stderr = open(os.devnull, "w")
        logging.basicConfig(level=logging.DEBUG, force=True)
        logging.disable(logging.ERROR)
        os.chdir("/")
        def step(x):
            sys.stdin = sys.stdout = sys.stderr = open(os.devnull)
            return x.sum()
        def broken(x):
            raise ValueError("no")
        '''.replace("\\n        ", "\\n"))

        def state():
            functions = [
                vars(holder).get(name)
                for holder in (jax, xla_bridge)
                for name in ("get_backend", "backends", "backends_are_initialized", "local_devices", "process_count",
                             "default_backend", "devices")
            ]
            loggers = [(one.level, list(one.handlers)) for one in (logging.root, logging.getLogger("jax"))]
            return (list(sys.path), dict(os.environ), os.getcwd(), sys.stdout, sys.stderr, sys.stdin, loggers,
                    logging.root.manager.disable, list(sys.meta_path),
                    dict(jax.config.values), functions, vars(jax.config).get("update"),
                    mesh_utils.create_hybrid_device_mesh, {n for n in sys.modules if n in ("settings", "one", "model")})

        before = state()
        found = hloscope.analyze("settings.py:step", ("f64[64@X]",), mesh={"X": 8})
        print(found.arguments[0].dtype, state() == before)
        print(hloscope.analyze("settings.py:step", ("f64[64@X]",), mesh={"X": 8}).arguments[0].dtype)
        def careless(x):
            sys.stdout = sys.stderr = None
            os.environ["THE_CELLS_OWN"] = "1"
            sys.path.append("/nowhere")
            jax.config.update("jax_enable_x64", True)
            logging.root.setLevel(logging.CRITICAL)
            return x.sum()

        print(hloscope.analyze(careless, ("f32[64@X]",), mesh={"X": 8}).arguments[0].dtype, state() == before)
        for wrong in ("settings.py:broken", "settings.py:absent"):
            try:
                hloscope.analyze(wrong, ("f32[64@X]",), mesh={"X": 8})
            except hloscope.HloscopeError as error:
                print(type(error).__name__, [a is b or a == b for a, b in zip(state(), before)].count(False))
    """)
    assert said == "f64 True\nf64\nf32 True\nTraceError 0\nTargetError 0\n"


def test_calls_in_two_threads_and_what_others_print_meanwhile(step):
    said = step.run("""
        before = patched_or_redirected()
        results, heard, done = {}, io.StringIO(), threading.Event()

        def noisy(x, w):
            print("traced")
            time.sleep(0.2)
            assert jax.default_backend() == "tpu" and jax.device_count() in (4, 8)
            return (x @ w).sum()

        def work(size):
            results[size] = hloscope.analyze(noisy, ARGS, mesh={"X": size}).mesh.device_count

        def chatter():
            while not done.is_set():
                os.write(2, b"")
                print("chatter", file=heard)
                counts.add((jax.device_count(), jax.default_backend()))
                time.sleep(0.01)

        counts = set()
        other = threading.Thread(target=chatter)
        other.start()
        threads = [threading.Thread(target=work, args=(size,)) for size in (4, 8, 4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        done.set()
        other.join()
        print(sorted(results.items()), counts, patched_or_redirected() == before)
        print(heard.getvalue().count("chatter") > 10)
    """)
    assert said.endswith("[(4, 4), (8, 8)] {(1, 'cpu')} True\nTrue\n")
    assert said.count("traced") == 3


def test_a_target_that_is_for_attached_devices_sees_those(step):
    said = step.run("""
        write("real.py", "import hloscope, jax\\n"
              "@hloscope.target(slice='attached', args=('f32[8]',))\\n"
              "def step(x):\\n    return x * jax.device_count()\\n")
        found = hloscope.analyze("real.py:step")
        print(found.slice.name, found.slice.used_devices)
    """)
    assert said == "attached 1\n"


def test_under_asyncio(step):
    said = step.run("""
        def slowly(x, w):
            time.sleep(0.3)  # so that the calls would be in each other's way
            return step(x, w)

        async def both():
            calls = (asyncio.to_thread(hloscope.analyze, slowly, ARGS, mesh={"X": size}) for size in (4, 8))
            verifying = asyncio.to_thread(hloscope.verify, step, reference, ARGS, mesh={"X": 8})
            *found, verified = await asyncio.gather(*calls, verifying)
            return [one.mesh.device_count for one in found], verified.passed

        before = patched_or_redirected()
        print(await both(), patched_or_redirected() == before)
    """)
    assert said == "([4, 8], True) True\n"


def test_what_reaches_file_descriptor_2_from_another_thread_while_a_program_is_traced(step):
    said = step.run("""
        read, write_end = os.pipe()
        saved = os.dup(2)
        os.dup2(write_end, 2)

        def tracing(x, w):
            other = threading.Thread(target=lambda: os.write(2, b"from another thread;"))
            other.start()
            other.join()
            raise ValueError("no")

        try:
            hloscope.analyze(tracing, ARGS, mesh={"X": 8})
        except hloscope.HloscopeError as error:
            print(error.why)
        finally:
            os.dup2(saved, 2)
        os.close(write_end)
        print(os.read(read, 1000).count(b"from another thread;") >= 4)
    """)
    assert said == "ValueError: no\nTrue\n"


def test_the_error_that_remains_says_what_helps_in_a_kernel(says, step):
    said = step.run("""
        def own_mesh():
            jax.sharding.Mesh(np.array(jax.devices()).reshape(3, 1), ("a", "b"))

        def needs_a_mesh(x):
            return jax.lax.with_sharding_constraint(x, jax.P("X"))

        for call in (
            lambda: hloscope.analyze(own_mesh, mesh={"X": 8}),
            lambda: hloscope.analyze(needs_a_mesh, ("f32[8]",)),
            lambda: hloscope.analyze(step, ("f32[64@Y,128]", "f32[128,64]"), mesh={"X": 8}),
            lambda: hloscope.analyze(step, ARGS, mesh={"X": 8}, slice="attached"),
            lambda: hloscope.verify(step, reference, ARGS, mesh={"X": 8}, scale={"B": 2}),
        ):
            try:
                call()
            except hloscope.HloscopeError as error:
                print(pickle.loads(pickle.dumps(error)))
    """)
    assert not re.search(r"--\w", said)
    assert "restart" not in said
    assert "JAX_NUM_CPU_DEVICES" not in said
    (sizes,) = re.findall(r".*needs 3 devices .* 8 .*", said)
    meshes = re.findall(r'.*fix: .*mesh=\{"X": 4, "Y": 2\}.*', said)
    assert meshes
    says([sizes, *meshes])


def test_a_compiler_that_dies_leaves_the_kernel_and_its_arrays(says, kernel, root):
    stand_ins = root / "tests" / "compile" / "stand_ins"
    said = kernel.run(f"""
        kept = jnp.arange(8.0)
        def doomed(x, w):
            return x @ w
        def fine(x, w):
            return x @ w
        def kinds(step):
            types = ("bf16[8@X,2048@Y]", "bf16[2048@Y,256]")
            return [one.kind.value for one in hloscope.analyze(step, types, mesh={{"X": 2, "Y": 2}}).collectives]
        before = os.environ["PYTHONPATH"]
        os.environ["PYTHONPATH"] += os.pathsep + {str(stand_ins)!r}
        os.environ["STAND_IN"] = "abort"
        try:
            kinds(doomed)
        except hloscope.HloscopeError as error:
            print(error.what)
        print(kinds(fine), float(kept.sum()))
        os.environ["PYTHONPATH"] = before
        del os.environ["STAND_IN"]
    """)
    died, lives = said.splitlines()
    assert lives == "['all-reduce'] 28.0"
    assert re.findall("died|doomed|v5e:2x2", says(died)) == ["died", "doomed", "v5e:2x2"]
