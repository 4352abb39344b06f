"""An unchanged program is not compiled again, and takes its source lines from where it is written now."""

from __future__ import annotations

import itertools
import re
import zlib
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import jax
import msgspec
import pytest

from hloscope.app.analyzing import analyze_capture
from hloscope.base.store import Store
from hloscope.compile import cache, client, compiling, jax_support
from hloscope.compile.cache import find_moves, move_hlo_places, move_places, read_locations
from hloscope.compile.jax_private import read_module_bytecode
from hloscope.compile.lowering import lower
from hloscope.compile.target import make_facts
from hloscope.model.capture import CodePlace, ShardyModule, ShardyOp

SOURCE = """\
import jax
import jax.numpy as jnp


def helper(x, w):
    return x @ w


def step(x, w):
    return jnp.sin(helper(x, w)) + jnp.sum(w)
"""
FACTS = make_facts(
    mesh={"X": 4, "Y": 2}, slice="v5e:2x4", args=("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), out="P('X', None)"
)
NUMBERS = itertools.count()


def function_in(folder, source, name="model.py"):
    """The function of a module, never from bytecode: that misses an edit of the same length in the same second."""
    path = folder / name
    path.write_text(source)
    module = ModuleType(f"kept_model_{next(NUMBERS)}")
    exec(compile(source, str(path), "exec"), vars(module))
    return module.step


@pytest.fixture(scope="module")
def real_compile():
    """What the compiler makes of the first program; whatever else it is asked for here gets the same."""
    original, made = client.ask_compile, []

    def once(*args, **kwargs):
        if not made:
            made.append(original(*args, **kwargs).answer())
        return made[0]

    return once


@pytest.fixture
def compiled(tmp_path, monkeypatch, real_compile):
    """Captures a source text with a store; returns the capture and how often the compiler was asked."""
    asked = []

    def compile_program(*args, **kwargs):
        asked.append(args)
        return SimpleNamespace(answer=lambda: real_compile(*args, **kwargs))

    monkeypatch.setattr(client, "ask_compile", compile_program)
    store = Store(tmp_path / "cache")

    def run(source, facts=FACTS, **options):
        before = len(asked)
        captured = compiling.start_compile(
            lower(function_in(tmp_path, source, **options), facts, name="step"), store=store
        ).capture()
        return captured, len(asked) - before

    run.store = store
    return run


def lines(analysis):
    return [(frame.file.rpartition("/")[2], frame.line) for one in analysis.collectives for frame in one.source]


def without_lines(analysis):
    return [
        (one.kind, one.name, one.line, one.axes, one.payload_bytes, one.wire_bytes, one.executions, one.op_name)
        for one in analysis.collectives
    ]


@pytest.mark.tpu_compiler
def test_a_function_that_moved_is_not_compiled_and_has_its_new_lines(compiled):
    def analyzed(source, **options):
        captured, compiles = compiled(source, **options)
        return analyze_capture(captured, "step"), compiles

    first, compiles = analyzed(SOURCE)
    assert compiles == 1
    assert ("model.py", 6) in lines(first)
    same, compiles = analyzed(SOURCE)
    assert compiles == 0
    assert same.collectives == first.collectives
    moved, compiles = analyzed("# moved\n" * 10 + SOURCE)
    assert compiles == 0
    assert lines(moved) == [(file, line + 10) for file, line in lines(first)]
    assert without_lines(moved) == without_lines(first)
    assert (moved.arguments, moved.outputs, moved.memory, moved.totals) == (
        first.arguments,
        first.outputs,
        first.memory,
        first.totals,
    )
    renamed, compiles = analyzed(SOURCE, name="other.py")
    assert compiles == 0
    assert {file for file, _ in lines(renamed)} == {"other.py"}


@pytest.mark.tpu_compiler
def test_what_changes_the_program_its_names_or_its_options_is_compiled(compiled):
    compiled(SOURCE)
    for source, facts in (
        (SOURCE.replace("jnp.sin", "jnp.cos"), FACTS),
        (SOURCE.replace("helper", "helping"), FACTS),
        (
            SOURCE.replace("def step(x", "def step(activations").replace("helper(x, w))", "helper(activations, w))"),
            FACTS,
        ),
        (SOURCE.replace("    return x @ w", "    with jax.named_scope('up'):\n        return x @ w"), FACTS),
        (SOURCE, replace(FACTS, compiler_options={"xla_tpu_enable_async_collective_fusion": "false"})),
        (SOURCE, replace(FACTS, args=("bf16[16@X,2048@Y]", "bf16[2048@Y,8192]"))),
        (SOURCE, replace(FACTS, mesh={"X": 2, "Y": 4})),
        (SOURCE, replace(FACTS, axis_types="explicit", args=("bf16[8@X,2048]", "bf16[2048,8192@Y]"), out=None)),
        (SOURCE, replace(FACTS, slice="v6e:2x4")),
        (SOURCE, replace(FACTS, out="P(None, None)")),
    ):
        assert compiled(source, facts)[1] == 1
        assert compiled(source, facts)[1] == 0


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(("name", "value"), [("LIBTPU_INIT_ARGS", "--xla_a=1"), ("XLA_FLAGS", "--xla_b=1")])
def test_the_compilers_environment_counts(compiled, monkeypatch, name, value):
    assert compiled(SOURCE)[1] == 1
    monkeypatch.setenv(name, value)
    assert compiled(SOURCE)[1] == 1


@pytest.mark.tpu_compiler
def test_settings_of_jax_that_change_the_program_count(compiled):
    assert compiled(SOURCE)[1] == 1
    with jax.default_matmul_precision("highest"):
        assert compiled(SOURCE)[1] == 1
    assert compiled(SOURCE)[1] == 0


@pytest.mark.tpu_compiler
def test_who_asks_for_a_program_does_not_count(compiled):
    def another_caller():
        return compiled(SOURCE)

    assert compiled(SOURCE)[1] == 1
    assert another_caller()[1] == 0


@pytest.mark.tpu_compiler
def test_another_hloscope_compiles_anew(compiled, monkeypatch):
    assert compiled(SOURCE)[1] == 1
    monkeypatch.setattr(cache, "__version__", "0.0.1")
    assert compiled(SOURCE)[1] == 1


@pytest.mark.tpu_compiler
def test_another_compiler_compiles_anew(compiled, monkeypatch):
    assert compiled(SOURCE)[1] == 1
    build = jax_support.find_libtpu_build()
    assert re.fullmatch(r"\d+\.\d+\.\d+\S* [0-9a-f]{16,64}", build)
    monkeypatch.setattr(jax_support, "find_libtpu_build", lambda: f"{build}1")
    assert compiled(SOURCE)[1] == 1


@pytest.mark.tpu_compiler
def test_a_damaged_entry_is_compiled_again(compiled):
    first, _ = compiled(SOURCE)
    (entry,) = compiled.store.folder.glob("compile-*")
    whole = entry.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:-1] + b"\0", b"\0" + whole[1:]):
        entry.write_bytes(damaged)
        again, compiles = compiled(SOURCE)
        assert compiles == 1
        assert again.compiled.text == first.compiled.text


@pytest.mark.tpu_compiler
def test_a_store_that_cannot_be_written_keeps_nothing(compiled, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert [compiled(SOURCE)[1] for _ in range(2)] == [1, 1]


MLIR = """\
module @jit_f {
  func.func public @main(%arg0: tensor<8xf32> loc("x")) -> tensor<8xf32> {
    %0 = stablehlo.sine %arg0 : tensor<8xf32> loc(#loc5)
    return %0 : tensor<8xf32> loc(#loc1)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc1 = loc("/home/me/model.py":14:8 to :20)
#loc2 = loc("/home/me/main.py":3:1 to 4:9)
#loc3 = loc("f"(#loc1))
#loc4 = loc(callsite(#loc3 at #loc2))
#loc5 = loc("jit(f)/sin"(#loc4))
"""
HERE = ("/home/me/model.py", 14, 8)
MAIN = ("/home/me/main.py", 3, 1)


@pytest.mark.parametrize(
    "entry", [{"stacks": [], "order": []}, {"compiled": {"text": "HloModule m"}, "stacks": [], "order": []}, [], b"0"]
)
def test_an_entry_of_an_older_shape_is_ignored(tmp_path, entry):
    store = Store(tmp_path)
    store.put("compile", "key", zlib.compress(msgspec.msgpack.encode(entry)))
    kept = cache.CachedCompile(store=store, target="step", key="key", places=read(MLIR)[0])
    assert store.has("compile", "key")
    assert kept.get() is None


def read(text):
    return read_locations(read_module_bytecode(text))


def test_locations_of_operations():
    places, names = read(MLIR)
    assert places == ((), (), (), (HERE, MAIN), (HERE,))
    assert names == ((), (), ("x",), ("jit(f)/sin", "f"), ())


def test_an_argument_has_a_name_and_no_place():
    first = '#loc9 = loc("/home/me/module.py":5:1 to :8)\n#loc8 = loc("<module>"(#loc9))\n'
    inline = MLIR.replace('%arg0: tensor<8xf32> loc("x")', '%arg0: tensor<8xf32> loc("jit(f)"(#loc8))')
    places, names = read(first + inline)
    assert places == read(MLIR)[0]
    assert names == ((), (), ("jit(f)",), *read(MLIR)[1][3:])


@pytest.mark.tpu_compiler
def test_lines_of_a_function_with_arguments_of_its_own_move(tmp_path):
    """Of these MLIR names places before the module: its file's among them."""
    source = "import jax.numpy as jnp\n\n\ndef step(x, w):\n    return jnp.argmax(x @ w, axis=1)\n"
    facts, store = replace(FACTS, out="P('X')"), Store(tmp_path / "cache")

    def analyzed(text):
        program = lower(function_in(tmp_path, text, name="module.py"), facts, name="step")
        pending = compiling.start_compile(program, store=store)
        return pending.found is not None, analyze_capture(pending.capture(), "step")

    fresh, first = analyzed(source)
    kept, moved = analyzed("# moved\n" * 3 + source)
    assert (fresh, kept) == (False, True)
    assert {line for _, line in lines(first)} == {5}
    assert {line for _, line in lines(moved)} == {8}


def test_frames_of_hloscope_and_of_its_callers_are_left_out():
    own = f"""\
#loc2 = loc("trace"("{compiling.__file__}":3:1 to 4:9))
#loc6 = loc("caller"("/home/me/test_model.py":7:1 to :9))
#loc3 = loc(callsite(#loc2 at #loc6))
#loc7 = loc("f"(#loc1))
#loc4 = loc(callsite(#loc7 at #loc3))
"""
    text = MLIR[: MLIR.index("#loc2 =")] + own + '#loc5 = loc("jit(f)/sin"(#loc4))\n'
    places, names = read(text)
    assert places[3] == (HERE,)
    assert names[3] == ("jit(f)/sin", "f")


def test_moves():
    now = (("/home/me/model.py", 24, 8), ("/home/me/model.py", 20, 1))
    assert find_moves(((HERE, MAIN), (HERE,)), (now, now[:1])) == {HERE: now[0], MAIN: now[1]}
    assert find_moves(((HERE,), (HERE,)), ((HERE,), (MAIN,))) is None
    assert find_moves(((HERE,),), ((HERE, MAIN),)) is None
    assert find_moves(((HERE,),), ()) is None


def test_a_propagated_module_moves():
    frame = CodePlace(file="/home/me/model.py", line=14, column=8, function="f")
    library = CodePlace(file="/lib/jax.py", line=7, column=3, function="g")
    module = ShardyModule(
        mesh={},
        values=(),
        main=None,
        ops=(ShardyOp(index=0, kind="a", operands=(), results=(), source=(frame, library)),),
    )
    (op,) = move_places(module, {HERE: ("/home/me/x.py", 24, 10)}).ops
    assert op.source == (replace(frame, file="/home/me/x.py", line=24, column=10), library)
    assert move_places(module, {}) == module


HLO = """\
HloModule m

FileNames
1 "/home/me/model.py"
2 "/lib/jax.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=14 end_line=15 column=8 end_column=8}
2 {file_name_id=2 function_name_id=1 line=7 end_line=7 column=3 end_column=3}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


ENTRY %e (p: f32[4]) -> f32[4] {
  ROOT %p = f32[4] parameter(0), metadata={op_name="x" stack_frame_id=1}
}
"""


def test_relocated_hlo():
    moved = move_hlo_places(HLO, {HERE: ("/home/me/x.py", 24, 9)})
    assert moved == HLO.replace("/home/me/model.py", "/home/me/x.py").replace(
        "line=14 end_line=15 column=8 end_column=8", "line=24 end_line=25 column=9 end_column=9"
    )
    two = {HERE: ("/home/me/x.py", 1, 1), ("/home/me/model.py", 20, 1): ("/home/me/y.py", 2, 1)}
    assert move_hlo_places(HLO, two) is None
    assert move_hlo_places("HloModule m\n", two) == "HloModule m\n"


def test_a_current_directory_that_is_gone_is_no_error(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert not cache.is_likely_cached(Store(tmp_path / "kept"), "step")
