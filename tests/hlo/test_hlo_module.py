"""A small module by hand: every fact of the public API."""

from __future__ import annotations

import pytest
from hlo_texts import BARE, module_of

from hloscope.hlo import Layout, Shape, StackFrame, parse_module
from hloscope.hlo.grammar import load_language


def test_header(module):
    assert module.name == "jit_step"
    assert module.is_scheduled
    assert module.num_partitions == 8
    assert module.replica_count == 2
    assert module.header["input_output_alias"] == "{ {0}: (0, {}, may-alias) }"
    assert module.header["frontend_attributes"] == '{xla.sdy.meshes={mesh = #sdy.mesh<["data"=4, "model"=2]>}}'
    assert module.unknown_opcodes == ()


def test_header_defaults():
    module = parse_module(BARE)
    assert (module.name, module.is_scheduled, module.num_partitions, module.replica_count) == ("bare", False, 1, 1)
    assert dict(module.header) == {}


def test_computations(module):
    assert [
        (computation.name, computation.line, computation.is_entry, computation.execution_thread)
        for computation in module.computations
    ] == [
        ("region_0.1", 20, False, None),
        ("async_computation", 26, False, "sparsecore"),
        ("main.9", 31, True, None),
    ]
    assert module.entry is module.computation("main.9")
    assert module.entry.module is module
    with pytest.raises(KeyError):
        module.computation("absent")


def test_instructions_in_text_order(module):
    assert [(item.name, item.opcode, item.line, item.is_root) for item in module.entry.instructions] == [
        ("x.1", "parameter", 32, False),
        ("constant.1", "constant", 33, False),
        ("start", "call-start", 34, False),
        ("done", "call-done", 35, False),
        ("custom", "custom-call", 36, False),
        ("reduce.1", "reduce", 39, False),
        ("tuple.1", "tuple", 40, True),
    ]
    assert module.entry.root.name == "tuple.1"
    with pytest.raises(KeyError):
        module.entry.instruction("absent")


def test_shapes(module):
    entry = module.entry
    assert entry.instruction("x.1").shape == Shape(
        element_type="bf16",
        dimensions=(8, 128),
        dynamic=(False, False),
        layout=Layout(minor_to_major=(1, 0), tiles=((8, 128), (2, 1))),
    )
    assert str(entry.instruction("start").shape) == "((bf16[8,128]), bf16[8,512], s32[])"
    assert entry.instruction("done").shape.layout.memory_space == 1
    assert str(entry.root.shape) == "(bf16[8,512], f32[])"


def test_operands_and_users(module):
    entry = module.entry
    custom = entry.instruction("custom")
    assert custom.operand_names == ("done", "x.1")
    assert custom.operands == (entry.instruction("done"), entry.instruction("x.1"))
    assert [user.name for user in entry.instruction("x.1").users] == ["start", "custom"]
    assert [user.name for user in entry.instruction("done").users] == ["custom", "tuple.1"]
    assert entry.root.users == ()
    assert entry.instruction("x.1").operands == ()


def test_an_operand_used_twice_has_one_user():
    entry = module_of("ROOT %r = f32[2,4]{1,0} add(%p, %p)").entry
    assert entry.root.operand_names == ("p", "p")
    assert entry.instruction("p").users == (entry.root,)


def test_attributes_are_raw(module):
    gather = module.computation("async_computation").root
    assert dict(gather.attributes) == {
        "channel_id": "3",
        "replica_groups": "[2,4]<=[4,2]T(1,0)",
        "dimensions": "{1}",
        "use_global_device_ids": "true",
        "metadata": '{op_name="jit(step)/dot_general" stack_frame_id=2}',
    }


def test_typed_attributes(module):
    gather = module.computation("async_computation").root
    assert gather.channel_id == 3
    assert gather.dimensions == (1,)
    assert gather.replica_groups.text == "[2,4]<=[4,2]T(1,0)"
    assert gather.replica_groups.groups(8) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert gather.replica_groups.mesh is None
    assert gather.source_target_pairs is None
    assert gather.op_name == "jit(step)/dot_general"
    assert gather.stack_frame_id == 2
    assert (gather.source_file, gather.source_line) == (None, None)
    assert gather.backend_config == {}
    assert gather.frontend_attributes == {}


@pytest.mark.parametrize(
    ("rule", "text", "value"),
    [
        ("number", "-3", -3),
        ("boolean", "true", True),
        ("boolean", "false", False),
        ("quoted", r'"a\"b"', 'a"b'),
        ("padding", "0_0x1_2", "0_0x1_2"),
        ("dim_labels", "bf_io->bf", "bf_io->bf"),
    ],
)
def test_values_of_attributes_are_read_by_the_rule_that_a_property_names(rule, text, value):
    assert load_language().read(rule, text) == value


def test_what_is_absent_is_none(module):
    constant = module.entry.instruction("constant.1")
    for name in (
        "parameter_number",
        "tuple_index",
        "channel_id",
        "replica_groups",
        "source_target_pairs",
        "dimensions",
        "sharding",
        "op_name",
        "stack_frame_id",
        "source_file",
        "source_line",
        "custom_call_target",
    ):
        assert getattr(constant, name) is None, name
    assert constant.literal == "-1.5e-03"
    assert module.entry.root.literal is None


def test_parameters_by_number():
    module = parse_module("HloModule m\nENTRY %e {\n  %b = s32[] parameter(1)\n  %a = f32[] parameter(0)\n}\n")
    assert [item.name for item in module.entry.parameters] == ["a", "b"]
    assert [item.parameter_number for item in module.entry.parameters] == [0, 1]
    assert module.entry.root.name == "a"


def test_parameter_sharding(module):
    sharding = module.entry.parameters[0].sharding
    assert (sharding.kind, sharding.tile_dimensions, sharding.replicate_on_last_tile_dim) == ("tiled", (4, 1, 2), True)
    assert sharding.last_tile_dims == ()
    assert sharding.text == "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"


def test_called_computations(module):
    entry = module.entry
    assert entry.instruction("start").called == (("to_apply", "async_computation"),)
    assert entry.instruction("reduce.1").called == (("to_apply", "region_0.1"),)
    assert entry.instruction("done").called == ()


def test_custom_call_over_several_lines(module):
    custom = module.entry.instruction("custom")
    assert custom.custom_call_target == "tpu_custom_call"
    assert custom.frontend_attributes == {"kernel_metadata": '{\n  "rank": 0\n}', "chain_id": "0"}
    assert custom.backend_config == {"flag_configs": [], "debug": "colors:{2}"}


def test_backend_config_as_string_and_as_anything():
    entry = module_of(
        r"""
        %a = f32[] custom-call(%p), custom_call_target="t", backend_config="{\"n\":4}"
        %b = f32[] custom-call(%p), custom_call_target="t", backend_config="opaque"
        %c = f32[] custom-call(%p), custom_call_target="t", backend_config={not json}
        %d = f32[] custom-call(%p), custom_call_target="t", backend_config="[1]"
        """
    ).entry
    assert [entry.instruction(name).backend_config for name in "abcd"] == [
        {"n": 4},
        {"raw": "opaque"},
        {"raw": "{not json}"},
        {"raw": "[1]"},
    ]


def test_frames_innermost_first(module):
    inner = StackFrame(file='layers "inner".py', line=24, function="Layer.__call__", column=4)
    outer = StackFrame(file="model.py", line=155, function="step", column=13)
    assert module.frames(2) == (inner, outer)
    assert module.frames(1) == (outer,)
    assert module.frames(0) == module.frames(3) == ()


def test_text_without_percent_and_signatures():
    module = parse_module(BARE)
    reduce = module.entry.root
    assert reduce.operand_names == ("p0", "zero")
    assert reduce.called == (("to_apply", "add"),)
    assert module.computation("add").root.name == "sum"
    assert [computation.line for computation in module.computations] == [3, 9]


def test_unknown_opcodes_and_attributes_are_kept():
    module = module_of("ROOT %r = f32[2,4] frobnicate(%p), new_attribute={a [b] (c)}, other=x1.5")
    assert module.unknown_opcodes == ("frobnicate",)
    assert dict(module.entry.root.attributes) == {"new_attribute": "{a [b] (c)}", "other": "x1.5"}


def test_repr_names_what_it_is(module):
    assert repr(module) == "<HloModule jit_step: 3 computations>"
    assert repr(module.entry) == "<HloComputation %main.9: 7 instructions>"
    assert repr(module.entry.instruction("custom")) == "<HloInstruction %custom = f32[4] custom-call>"


@pytest.mark.parametrize("last", ["0", r"\0", r"a\"b"])
def test_escapes_behind_a_list_in_quotes_are_read(last):
    """Python's `re` fails on these where groups that capture stand under a possessive quantifier."""
    entries = f'_xla_pairs="{{{{0,4}},{{1,5}}}}",_xla_pipeline="{last}"'
    module = parse_module(f"f {{\n  ROOT p = f32[] parameter(0), frontend_attributes={{{entries}}}\n}}")
    found = module.entry.root.frontend_attributes
    assert list(found) == ["_xla_pairs", "_xla_pipeline"]
    assert found["_xla_pairs"] == "{{0,4},{1,5}}"
