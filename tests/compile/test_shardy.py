"""The MLIR door: what Shardy says of a module, as plain data."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path

import pytest

import hloscope
from hloscope.compile import client, jax_private
from hloscope.compile.arguments import find_argument_letters
from hloscope.compile.propagation import propagate_module
from hloscope.compile.stages import make_dump_folder, read_dumps
from hloscope.compile.target import TargetFacts
from hloscope.model.capture import CompiledProgram, ShardyModule

MATMUL = """
module @m {
  sdy.mesh @mesh = <["X"=2, "Y"=4]>
  func.func @main(
      %arg0: tensor<8x32xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"X"}, {"Y"}]>} loc("In"),
      %arg1: tensor<32x16xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"Y":(1)2}, {}]>} loc("W"))
      -> (tensor<8x16xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"X"}, {}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
        : (tensor<8x32xbf16>, tensor<32x16xbf16>) -> tensor<8x16xbf16> loc(#dot)
    return %0 : tensor<8x16xbf16> loc(#end)
  }
}
#frame = loc("f"("model.py":3:8 to :20))
#outer = loc("main"("model.py":9:0))
#end = loc("jit(f)")
#dot = loc("jit(f)/dot_general"(callsite(#frame at #outer)))
"""


def module_of(text: str) -> ShardyModule:
    return propagate_module(text, "compiler")


def is_plain(value: object) -> bool:
    if dataclasses.is_dataclass(value):
        return all(is_plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    if isinstance(value, tuple | frozenset):
        return all(map(is_plain, value))
    return value is None or isinstance(value, int | str)


def test_no_mlir_object_leaves_the_room():
    assert is_plain(module_of(MATMUL))


def test_values_have_names_shardings_and_who_asked():
    module = module_of(MATMUL)
    assert (dict(module.mesh), module.seen_by) == ({"X": 2, "Y": 4}, "compiler")
    arguments = [value for value in module.values if value.is_argument]
    assert [(one.name, one.shape, one.element_type) for one in arguments] == [
        ("In", (8, 32), "bf16"),
        ("W", (32, 16), "bf16"),
    ]
    assert [one.sharding for one in arguments] == [(("X",), ("Y",)), (("Y:(1)2",), ())]
    (dot,) = [op for op in module.ops if op.kind == "stablehlo.dot_general"]
    result = module.values[dot.results[0]]
    assert (result.sharding, dict(result.origins)) == ((("X",), ()), {"X": "output: 0"})


@pytest.mark.parametrize(
    ("constant", "number"),
    [
        ("dense<(1.0,2.0)> : tensor<complex<f32>>", None),
        ("dense<[(1.0,2.0),(3.0,4.0)]> : tensor<2xcomplex<f64>>", None),
        ("dense<2.5> : tensor<f32>", None),
        ("dense<7> : tensor<3xi32>", None),
        ("dense<7> : tensor<i32>", 7),
    ],
)
def test_constants_of_any_type_do_not_stop_the_reading(constant, number):
    kept = f"    %1 = stablehlo.constant {constant}\n    stablehlo.custom_call @keep(%1) {{has_side_effect = true}}"
    kept += f" : ({constant.rpartition(': ')[2]}) -> ()\n    return %0"
    module = module_of(MATMUL.replace("    return %0", kept))
    assert [op.kind for op in module.ops if op.kind == "stablehlo.dot_general"]
    numbers = [value.whole_number for value in module.values if value.whole_number is not None]
    assert numbers == ([] if number is None else [number])


@pytest.mark.tpu_compiler
def test_a_program_with_complex_constants_is_explained():
    import jax.numpy as jnp
    import numpy as np

    def step(x, w):
        return jnp.abs(jnp.fft.fft(x, axis=1).astype(jnp.complex64) * np.complex64(2j)) @ w

    found = hloscope.analyze(step, ("f32[64,128@X]", "f32[128@X,64]"), mesh={"X": 8}, slice="v5e:2x4")
    assert not [note for note in found.notes if "propagation" in note]
    assert found.collectives
    assert all(one.why and not one.why.startswith("not known") for one in found.collectives)


def test_operations_have_rules_names_and_stacks():
    (dot,) = [op for op in module_of(MATMUL).ops if op.kind == "stablehlo.dot_general"]
    assert dot.op_name == "jit(f)/dot_general"
    assert [(place.file, place.line, place.column, place.function) for place in dot.source] == [
        ("model.py", 3, 8, "f"),
        ("model.py", 9, 0, "main"),
    ]
    assert dot.rule is not None
    assert (dot.rule.operands, dot.rule.results) == ((((0,), (2,)), ((2,), (1,))), (((0,), (1,)),))
    assert (dot.rule.reduction, dot.rule.sizes) == ({2}, (8, 16, 32))


def test_data_that_must_move_has_an_operation_of_its_own():
    module = module_of(MATMUL)
    (total,) = [op for op in module.ops if op.kind == "sdy.all_reduce"]
    (reshard,) = [op for op in module.ops if op.kind == "sdy.reshard"]
    assert (total.axes, total.op_name) == (("Y",), "jit(f)/dot_general")
    assert module.values[reshard.operands[0]].name == "W"
    assert module.values[reshard.results[0]].sharding == (("Y",), ())
    dot = module.ops[module.values[total.operands[0]].owner]
    assert module.users[reshard.results[0]] == ((dot.index, 1),)


def test_private_functions_take_their_place_from_the_call():
    text = """
module @m {
  sdy.mesh @mesh = <["X"=2]>
  func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"X"}]>} loc("x")) -> tensor<8xf32> {
    %0 = func.call @g(%arg0) : (tensor<8xf32>) -> tensor<8xf32> loc(#call)
    return %0 : tensor<8xf32>
  }
  func.func private @g(%arg0: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.sine %arg0 : tensor<8xf32> loc("sin")
    return %0 : tensor<8xf32>
  }
}
#frame = loc("f"("model.py":3:8))
#call = loc("jit(f)/jit(g)"(#frame))
"""
    (sine,) = [op for op in module_of(text).ops if op.kind == "stablehlo.sine"]
    assert (sine.op_name, [place.line for place in sine.source]) == ("jit(f)/jit(g)/sin", [3])


def test_what_cannot_be_propagated_is_a_note_and_no_error(says):
    notes: list[str] = []
    assert client.ask_propagation("module {", "compiler", notes, timeout_s=None) == (None, True)
    (note,) = notes
    assert note.startswith("Shardy")
    assert "(MLIRError: " in note
    says(re.sub(r"\(MLIRError: .*\)", "(MLIRError: …)", note, flags=re.S))


@pytest.mark.smoke
def test_a_lowered_program_can_be_asked_and_is_not_changed():
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from hloscope.compile.devices import make_mesh

    mesh = make_mesh({"X": 2, "Y": 2}, {"X": "auto", "Y": "auto"})
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("X", "Y")))
    lowered = jax.jit(lambda x: jnp.sin(x).sum(axis=1)).lower(x)
    before = lowered.as_text(debug_info=True)
    notes: list[str] = []
    module, _ = client.ask_propagation(jax_private.write_bytecode(lowered), "jax", notes, timeout_s=None)
    assert (notes, module.seen_by) == ([], "jax")
    assert [op.axes for op in module.ops if op.kind == "sdy.all_reduce"] == [("Y",)]
    assert lowered.as_text(debug_info=True) == before


def test_dumps_live_in_a_folder_of_their_own_which_is_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with make_dump_folder({"xla_a": "1"}) as (options, folder):
        assert folder is not None
        assert (options["xla_dump_to"], options["xla_a"]) == (str(folder), "1")
        (folder / "shardy" / "module_1.jit_f").mkdir(parents=True)
        (folder / "shardy" / "module_1.jit_f" / "01.before_propagation.mlir").write_text("module {}")
        (folder / "module_1.x.0003.p.after_tpu-spmd-partitioning.before_y.txt").write_text("HloModule p")
        (folder / "module_1.x.0002.p.after_dce.before_tpu-spmd-partitioning.txt").write_text("HloModule longer text")
        (folder / "module_1.x.after_optimizations.txt").write_text("HloModule f")
        found = read_dumps(folder)
    assert found == CompiledProgram(
        before_propagation="module {}", partitioned="HloModule p", text="HloModule f", memory_bytes={}
    )
    assert list(tmp_path.iterdir()) == []


def test_users_keep_dumps_that_they_ask_for_themselves():
    with make_dump_folder({"xla_dump_to": "mine"}) as (options, folder):
        assert (options, folder) == ({"xla_dump_to": "mine"}, None)
    assert read_dumps(None) == CompiledProgram(text="", memory_bytes={})


@pytest.mark.tpu_compiler
def test_the_program_as_written_is_kept_where_the_compiler_expands_an_operation(compiled):
    captured = compiled("sums.py:running_sums")
    kinds = {op.kind for op in captured.compiled.shardy_as_written.ops}
    assert captured.compiled.shardy_as_written.seen_by == "jax"
    assert "stablehlo.reduce_window" in kinds


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("slice_name", [None, "cpu:8"])
def test_one_compile_yields_everything_and_leaves_nothing(compiled, slice_name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    captured = compiled("matmul.py:matmul", **({"slice": slice_name} if slice_name else {}))
    assert "all-reduce" in captured.compiled.partitioned
    assert captured.compiled.shardy.seen_by == ("jax" if slice_name else "compiler")
    assert captured.compiled.shardy_as_written is None
    assert [one.letters for one in captured.arguments] == [("B", "D"), ("D", "F")]
    left = [path.name for path in Path(tmp_path).iterdir() if path.name.startswith("hloscope-")]
    assert not [name for name in left if not name.startswith("hloscope-slots-")]  # locks, for all processes


@pytest.mark.parametrize(("args", "count", "expected"), [
    (("bf16[B@X,D]", "f32[128,F@(X,Y)]"), 2, (("B", "D"), (None, "F"))),
    (({"a": "f32[N]", "b": "f32[]"}, "s32[4*D]"), 3, (("N",), None, (None,))),
    (("f32[N]",), 2, (None, None)),
    (lambda: ("f32[N]",), 1, (None,)),
    (None, 0, ()),
])  # fmt: skip
def test_letters_of_arguments(args, count, expected):
    assert find_argument_letters(TargetFacts(args=args, dims=dict.fromkeys("BDFN", 8)), count) == expected
