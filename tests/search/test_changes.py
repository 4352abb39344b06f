"""A change as a value, and what becomes of a lowered program that it is applied to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from hloscope.base.errors import HloscopeError
from hloscope.compile.edits import edit_constraints
from hloscope.compile.functions import Function, with_function
from hloscope.compile.jax_private import read_module_bytecode, write_bytecode
from hloscope.compile.lowering import lower, lower_changed, replace_sizes
from hloscope.compile.operation_numbers import find_numbered_operations
from hloscope.compile.sharding_change import ConstraintChange, ConstraintEdit, LeafChange, Resharding, SizeChange
from hloscope.compile.target import TargetFacts

ROWS, COLUMNS = (("X",), ()), ((), ("X",))
FACTS = TargetFacts(
    mesh={"X": 4}, slice="v5e:2x2", args=("f32[16@X,8]", "f32[16@X,8]"), out=("P('X', None)", "P('X', None)")
)


def constrained(x, y):
    doubled = jax.lax.with_sharding_constraint(x * 2, P(None, "X"))
    return doubled + y, jnp.tanh(y)


def applied(function, change, facts=FACTS):
    """The program as it is, and with a change."""

    def both(traced, known):
        original = lower(traced, known, name="test")
        return original, lower_changed(traced, original, change)

    return with_function(Function(target=function, facts=facts), both)


def number_of_constraint(lowered) -> int:
    operations = find_numbered_operations(read_module_bytecode(write_bytecode(lowered.module)))
    (found,) = [number for number, op in operations.items() if op.name == "sdy.sharding_constraint"]
    return found


def test_words_are_those_of_the_users_code():
    change = Resharding(
        arguments=(LeafChange(index=0, name="W", before=ROWS, after=COLUMNS),),
        results=(LeafChange(index=0, name="result[0]", before=ROWS, after=None),),
        constraints=(
            ConstraintChange(edits=(ConstraintEdit(operation=3),), place="moe.py:31", before=ROWS),
            ConstraintChange(edits=(ConstraintEdit(operation=4, sharding=((), ())),), place="moe.py:32", before=ROWS),
            ConstraintChange(
                edits=(ConstraintEdit(operation=5, operand=1, sharding=ROWS),), place="moe.py:33", array="mask"
            ),
        ),
        sizes=(SizeChange(name="H", before=6, after=8),),
    )
    assert change.words == (
        "argument W: P('X', None) -> P(None, 'X')",
        "result[0]: P('X', None) -> left open",
        "constraint at moe.py:31: dropped",
        "constraint at moe.py:32: P('X', None) -> P(None, None)",
        "a constraint on mask at moe.py:33: P('X', None)",
        "H: 6 padded to 8, with a wrapper that pads before and slices after",
    )
    assert hash(change) == hash(change)
    assert change.parts == 6


def test_a_program_without_changes_is_the_same_program():
    original, again = applied(constrained, Resharding())
    assert again.module.as_text() == original.module.as_text()
    assert again.text == original.text


def test_specs_are_those_of_the_retraced_program_and_nothing_else_changes():
    change = Resharding(
        arguments=(LeafChange(index=1, name="y", before=ROWS, after=COLUMNS),),
        results=(LeafChange(index=1, name="result[1]", before=ROWS, after=COLUMNS),),
    )
    original, changed = applied(constrained, change)
    assert [sharding.spec for sharding in changed.seen.in_shardings] == [P("X", None), P(None, "X")]
    assert [sharding.spec for sharding in changed.seen.out_shardings] == [P("X", None), P(None, "X")]
    by_hand_facts = TargetFacts(
        mesh={"X": 4}, slice="v5e:2x2", args=("f32[16@X,8]", "f32[16,8@X]"), out=("P('X', None)", "P(None, 'X')")
    )
    by_hand = with_function(
        Function(target=constrained, facts=by_hand_facts),
        lambda traced, known: lower(traced, known, name="by hand"),
    )
    assert changed.module.as_text() == by_hand.module.as_text() != original.module.as_text()


def test_a_result_left_open_has_no_sharding():
    _, changed = applied(constrained, Resharding(results=(LeafChange(index=0, name="r", before=ROWS, after=None),)))
    assert not isinstance(changed.seen.out_shardings[0], jax.sharding.Sharding)
    assert changed.seen.out_shardings[1].spec == P("X", None)


def jitted_in(mesh, **options):
    rows = NamedSharding(mesh, P("X", None))

    def step(state, batch, scale=3):
        return state + scale * batch

    own = options or {"in_shardings": (rows, rows)}
    return jax.jit(step, out_shardings=rows, donate_argnums=0, **own)


@pytest.mark.parametrize(
    ("options", "static"), [({"static_argnames": ("scale",)}, {"scale": 3}), ({}, {})], ids=["static", "in_shardings"]
)
def test_a_jitted_function_loses_its_shardings_and_keeps_donation_and_static_values(options, static):
    facts = TargetFacts(mesh={"X": 4}, slice="v5e:2x2", args=("f32[16@X,8]", "f32[16@X,8]"), static=static)
    change = Resharding(
        arguments=(LeafChange(index=1, name="batch", before=ROWS, after=COLUMNS),),
        results=(LeafChange(index=0, name="result", before=ROWS, after=COLUMNS),),
    )

    def all_three(_, known):
        jitted = jitted_in(jax.make_mesh((4,), ("X",), axis_types=(jax.sharding.AxisType.Auto,)), **options)
        original = lower(jitted, known, name="test")
        return original, lower_changed(jitted, original, Resharding()), lower_changed(jitted, original, change)

    original, again, changed = with_function(Function(target=constrained, facts=facts), all_three)
    assert again.module.as_text() == original.module.as_text()
    assert changed.seen.donated == original.seen.donated == (True, False)
    assert [sharding.spec for sharding in changed.seen.in_shardings] == [P("X", None), P(None, "X")]
    assert changed.seen.out_shardings[0].spec == P(None, "X")
    assert "dense<3.0" in changed.module.as_text()


def test_what_jax_refuses_is_an_error_of_ours():
    uneven = ((), ("X", "Y"))
    with pytest.raises(HloscopeError):
        applied(constrained, Resharding(arguments=(LeafChange(index=0, name="x", before=ROWS, after=uneven),)))


def edited(module, edit):
    return read_module_bytecode(edit_constraints(module, (edit,))).operation.get_asm()


def test_a_constraint_is_dropped_set_or_added():
    original, _ = applied(constrained, Resharding())
    module, number = write_bytecode(original.module), number_of_constraint(original)
    assert original.text.count("sdy.sharding_constraint") == 1
    assert "sdy.sharding_constraint" not in edited(module, ConstraintEdit(operation=number))
    changed = edited(module, ConstraintEdit(operation=number, sharding=ROWS))
    assert "sdy.sharding_constraint" in changed
    assert '<@mesh, [{"X"}, {}]>' in changed.partition("sdy.sharding_constraint")[2].partition("\n")[0]
    more = edited(module, ConstraintEdit(operation=number, operand=0, sharding=ROWS))
    assert more.count("sdy.sharding_constraint") == 2


TOKENS = """
module {
  sdy.mesh @mesh = <["X"=4]>
  func.func public @main(%t: !stablehlo.token, %x: tensor<8xf32>) -> (!stablehlo.token, tensor<8xf32>) {
    return %t, %x : !stablehlo.token, tensor<8xf32>
  }
}
"""


def test_tokens_of_ordered_effects_are_not_counted():
    from jaxlib.mlir import ir

    from hloscope.compile.edits import ModuleEdit, apply_edit
    from hloscope.compile.jax_private import open_mlir_context

    with open_mlir_context() as context:
        module = ir.Module.parse(TOKENS, context)
        edit = ModuleEdit(arguments=((0, (("X",),)),), results=((0, ((),)),), argument_count=1, result_count=1)
        apply_edit(module, edit)
        (signature,) = [line for line in str(module).splitlines() if "@main" in line]
    assert '%arg0: !stablehlo.token, %arg1: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"X"}]>}' in signature
    assert "-> (!stablehlo.token, tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})" in signature


@pytest.mark.parametrize("edit", [
    {"operation": 10_000},
    {"operation": 0, "operand": 0, "sharding": ((), (), ())},
    {"operation": 0, "operand": 0, "sharding": (("X",), ("X",))},
    {"operation": 0, "operand": 7, "sharding": ROWS},
    {"operation": 0},
], ids=str)  # fmt: skip
def test_an_edit_that_does_not_fit_is_refused(edit):
    original, _ = applied(constrained, Resharding())
    with pytest.raises(ValueError, match="operation"):
        edit_constraints(write_bytecode(original.module), (ConstraintEdit(**edit),))


def test_what_is_compiled_kept_and_asked_is_the_edited_module():
    original, _ = applied(constrained, Resharding())
    edit = ConstraintEdit(operation=number_of_constraint(original))
    change = Resharding(constraints=(ConstraintChange(edits=(edit,), place="test.py:1", before=COLUMNS),))
    _, changed = applied(constrained, change)
    assert "sdy.sharding_constraint" not in changed.text
    assert read_module_bytecode(changed.bytecode).operation.get_asm() == changed.text
    assert changed.text != original.text


@pytest.mark.parametrize(("args", "dims", "change", "expected"), [
    (("f32[B,H]", "f32[H]"), {"B": 6, "H": 6}, ("H", 6, 8), [(6, 8), (8,)]),
    (("f32[2,6]", "f32[6]"), {}, ("6", 6, 8), [(2, 8), (8,)]),
    (("f32[2,6,16]", "f32[66]"), {}, ("6", 6, 8), [(2, 8, 16), (66,)]),
], ids=str)  # fmt: skip
def test_a_size_changes_wherever_the_notation_has_it(args, dims, change, expected):
    from hloscope.compile.notation import parse_array

    name, before, after = change
    facts = replace_sizes(TargetFacts(args=args, dims=dims), (SizeChange(name=name, before=before, after=after),))
    assert [parse_array(text, facts.dims).dimensions for text in facts.args] == expected


def test_sizes_that_code_decides_stay():
    with pytest.raises(HloscopeError, match="made by code"):
        replace_sizes(TargetFacts(args=lambda: ()), (SizeChange(name="H", before=6, after=8),))
