"""Every spelling of the language, one by one."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from hlo_texts import module_of
from lark import logger
from make_tables import make_tables

from hloscope.base.environment import read_grammar
from hloscope.hlo import parse_module
from hloscope.hlo.grammar import Language
from hloscope.hlo.lalr import OPCODES, is_known_opcode, load_tables


def root_of(line):
    return module_of(line).entry.root


def test_the_grammar_has_no_conflicts(caplog):
    logger.addHandler(caplog.handler)
    level, logger.level = logger.level, logging.DEBUG
    try:
        make_tables(read_grammar("hlo"), debug=True)
    finally:
        logger.level = level
        logger.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if "conflict" in record.getMessage()] == []


def test_the_kept_tables_are_those_of_the_grammar():
    assert load_tables() == make_tables(read_grammar("hlo")), "write them anew: python tests/hlo/make_tables.py"


@pytest.mark.process
def test_text_is_read_without_lark():
    code = "import sys; from hloscope.hlo import parse_module\nparse_module('ENTRY e { p = f32[] parameter(0) }')"
    code = f"{code}\nprint('lark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_the_grammar_is_the_definition():
    """An edit of the grammar changes what is read: nothing about `ROOT` is known elsewhere."""
    edited = read_grammar("hlo").replace("/ROOT(?!", "/LAST(?!")
    instruction = Language(make_tables(edited)).parse("instruction", "LAST %r = f32[] add(%a, %b)")
    assert instruction.is_root


def test_133_opcodes_are_known():
    assert len(OPCODES) == 133
    assert is_known_opcode("all-to-all-start")
    assert is_known_opcode("dynamic-update-slice-update")
    assert is_known_opcode("fusion-done")
    assert not is_known_opcode("all-to-many")
    assert not is_known_opcode("-start")


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("f32[]", "f32[]"),
        ("f32[]{}", "f32[]"),
        ("f32[]{:T(128)}", "f32[]"),
        ("token[]", "token[]"),
        ("opaque[]", "opaque[]"),
        ("bf16[2,8192]{1,0:T(8,128)(2,1)S(1)}", "bf16[2,8192]"),
        ("f32 [ 2 , 3 ] { 1 , 0 }", "f32[2,3]"),
        ("f32[<=8,?]", "f32[<=8,?]"),
        ("f8e4m3b11fnuz[4]", "f8e4m3b11fnuz[4]"),
        ("newtype[4]", "newtype[4]"),
        ("()", "()"),
        ("(f32[2], /*index=1*/(s32[], pred[]{:T(512)}))", "(f32[2], (s32[], pred[]))"),
        ("b(f32[2]{0})", "b(f32[2])"),
        ("f32[4,8]{1,0:D(D,C)T(8,128)(2,1)L(2)#(u8)*(u32)E(4)S(5)SC(0:1,2)M(8)}", "f32[4,8]"),
        ("pred[16,32]{1,0:S(3)SC(0:4)(1:8,16)}", "pred[16,32]"),
        ("f32[4,8]{1,0:D(S, H+~)}", "f32[4,8]"),
        ("bf16[]{:T()}", "bf16[]"),
    ],
)
def test_shapes(text, printed):
    assert str(root_of(f"ROOT %r = {text} custom-call(%p)").shape) == printed


def test_layout_items():
    layout = root_of("ROOT %r = s4[4,8]{1,0:T(*,128)(2,1)L(2)#(u8)E(4)S(5)} custom-call(%p)").shape.layout
    assert layout.minor_to_major == (1, 0)
    assert layout.tiles == ((-1, 128), (2, 1))
    assert layout.memory_space == 5
    assert layout.element_size_in_bits == 4
    assert layout.other_items == ("L(2)", "#(u8)")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("channel_id=3", "3"),
        ("channel_id=_", "_"),
        ("direction=LT", "LT"),
        ("dim_labels=b01f_01io->b01f", "b01f_01io->b01f"),
        ("dim_labels=bf_io->bf", "bf_io->bf"),
        ("dim_labels=?b01f_0?1io->b01?f", "?b01f_0?1io->b01?f"),
        ("padding=0_1x-1_2_1", "0_1x-1_2_1"),
        ("epsilon=1e-05", "1e-05"),
        ("epsilon=-.5", "-.5"),
        ("window={size=3x3 stride=2x2 pad=0_0x1_1 rhs_reversal=0x1}", None),
        ("slice={[0:2], [1:9:2]}", None),
        ("source_target_pairs={{0,1},{1,2}}", None),
        ("output_to_operand_aliasing={{0}: (1, {}), {1}: (2, {})}", None),
        ("control-predecessors={%p, p}", None),
        ('origin={({"a" {0}}, {"b"})}', None),
        ('origin={({"a=" {0}}, {"b, c=\\"}"})}', None),
        ("sparsity=L.1@2:4", None),
        ("result_accuracy={tolerance={atol=0,rtol=1e-3,ulps=2}}", None),
        ("result_accuracy={mode=HIGHEST}", None),
        ("result_accuracy={mode=Default}", None),
        ("sparsity_config={lhs={sparsity=1x4 dimension=0} rhs={}}", None),
        ("outfeed_shape=(f32[2], s32[])", None),
        ("outfeed_shape=f32[2]{0}", None),
        ("literal=s32[2]{0} {1,2}", None),
        ("literal=(s32[2]{0} {1,2}, (f32[] 3))", None),
        ('domain={kind="sharding", entry={maximal device=0}, exit={replicated}}', None),
        ("replica_groups={{0,1},{2,3}}", None),
        ("replica_groups={}", None),
        ("replica_groups=[4,2]<=[8]", None),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", None),
        ("replica_groups=mesh['a'=4,'b'=2] {'a'}", None),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a':(1)2,'b'}", None),
        ("replica_groups=mesh[a=4,b=2] {a}", None),
        ("replica_groups=@mesh<a=4,b=2>{a}", None),
        ("replica_groups=maximal_mesh[device_id=1] {}", None),
        ("foo='single \"quoted\" {'", None),
        ("foo={/* comment } */ 1}", None),
        ("foo=[1,2]", None),
        ("foo=(1,(2))", None),
        ("is_stable=true", "true"),
    ],
)
def test_attribute_values_are_kept_as_they_are(attribute, value):
    key, _, expected = attribute.partition("=")
    root = root_of(f'ROOT %r = f32[] custom-call(%p), before=x, {attribute}, metadata={{op_name="n"}}')
    assert root.attributes[key] == (expected if value is None else value)
    assert root.attributes["before"] == "x"
    assert root.op_name == "n"


@pytest.mark.parametrize("separator", [" ", ", ", ","])
def test_metadata_entries(separator):
    entries = ('op_type="t"', 'op_name="a/b[c=(1,)]"', 'source_file="f.py"', "source_line=7", "profile_type={1}")
    root = root_of(f"ROOT %r = f32[] custom-call(%p), metadata={{{separator.join(entries)}}}")
    assert dict(root.metadata) == {
        "op_type": "t",
        "op_name": "a/b[c=(1,)]",
        "source_file": "f.py",
        "source_line": "7",
        "profile_type": "{1}",
    }
    assert (root.source_file, root.source_line) == ("f.py", 7)


def test_strings_are_unescaped():
    root = root_of(r'ROOT %r = f32[] custom-call(%p), metadata={op_name="\346\227\245 \"a\"\n\\ it\'s"}')
    assert root.op_name == '日 "a"\n\\ it\'s'


@pytest.mark.parametrize(
    "literal",
    ["3", "-1.5e-3", "{1, 2}", "{ { 1, 2 }, { 3, 4 } }", "(1, {1,2})", "(1, -2)", "true", "-nan(0x7f)", "{...}", "{}"],
)
def test_literals_are_raw(literal):
    assert root_of(f"ROOT %r = f32[2] constant({literal})").literal == literal


def test_conditional_names_each_branch():
    module = parse_module(
        """HloModule m
        %a (x: f32[]) -> f32[] { ROOT %x = f32[] parameter(0) }
        %b (x: f32[]) -> f32[] { ROOT %x = f32[] parameter(0) }
        ENTRY %e { %i = s32[] parameter(0) %v = f32[] parameter(1)
          %c = f32[] conditional(%i, %v, %v), branch_computations={%a, %b}
          %t = pred[] constant(true)
          ROOT %d = f32[] conditional(%t, %v, %v), true_computation=%a, false_computation=b }
        """
    )
    assert module.entry.instruction("c").called == (("branch_computations", "a"), ("branch_computations", "b"))
    assert module.entry.root.called == (("true_computation", "a"), ("false_computation", "b"))


def test_nested_operands_become_instructions():
    entry = module_of(
        "add = f32[2,4] add(p, add(f32[2,4] p, f32[] constant(3)))\nROOT %r = f32[2,4] add(add, add)"
    ).entry
    inner = entry.instruction("add").operands[1]
    assert [(item.opcode, item.operand_names) for item in inner.operands] == [("parameter", ()), ("constant", ())]
    assert (inner.opcode, inner.operands[1].literal) == ("add", "3")
    assert entry.root.operand_names == ("add", "add")


def test_tuple_indexes_become_instructions():
    entry = module_of("%t = (f32[2], (s32[], pred[4])) custom-call(%p)\nROOT %r = pred[4] copy(%t#1#1)").entry
    element = entry.root.operands[0]
    assert (element.name, element.opcode, element.tuple_index, str(element.shape)) == (
        "t#1#1",
        "get-tuple-element",
        1,
        "pred[4]",
    )
    assert (element.operands[0].name, str(element.operands[0].shape)) == ("t#1", "(s32[], pred[4])")


def test_inline_computations_get_a_name():
    module = module_of(
        """
        %r = f32[] reduce(%p, %p), dimensions={0}, to_apply={
          %x = f32[] parameter(0)
          ROOT %y = f32[] negate(%x)
        }
        ROOT %s = f32[] add(%r, %r)
        """
    )
    (called,) = module.entry.instruction("r").called
    assert called == ("to_apply", "e#r.to_apply.0")
    assert [computation.name for computation in module.computations] == ["e#r.to_apply.0", "e"]
    assert module.computation(called[1]).root.opcode == "negate"
    assert [item.name for item in module.entry.instructions] == ["p", "r", "s"]


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("ROOT %r = add(%p, %p)", "f32[2,4]"),
        ("ROOT %r = compare(%p, %p), direction=LT", "pred[2,4]"),
        ("ROOT %r = transpose(%p), dimensions={1,0}", "f32[4,2]"),
        ("ROOT %r = tuple(%p, %p)", "(f32[2,4], f32[2,4])"),
        ("%t = tuple(%p, %p)\nROOT %r = get-tuple-element(%t), index=1", "f32[2,4]"),
        ("ROOT %r = after-all()", "token[]"),
        ("ROOT %r = dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={1}", "f32[2,2]"),
    ],
)
def test_shapes_that_the_text_leaves_out(line, printed):
    assert str(root_of(line).shape) == printed


def test_shape_of_a_call_comes_from_the_callee():
    module = parse_module("HloModule m\nf { ROOT x = s8[3] parameter(0) }\nENTRY e { ROOT r = call(), to_apply=f }")
    assert str(module.entry.root.shape) == "s8[3]"


def test_a_long_chain_without_shapes():
    lines = ["%n0 = negate(%p)", *(f"%n{i} = negate(%n{i - 1})" for i in range(1, 5000))]
    assert str(root_of("\n".join(lines)).shape) == "f32[2,4]"


def test_tuples_that_double_end_as_unknown():
    lines = ["%t0 = tuple(%p, %p)", *(f"%t{i} = tuple(%t{i - 1}, %t{i - 1})" for i in range(1, 60))]
    leaves = list(root_of("\n".join(lines)).shape.leaves())
    assert len(leaves) < 100_000
    assert {str(leaf) for leaf in leaves} == {"unknown[]"}


def test_reserved_words_as_names():
    entry = module_of(
        "%ROOT = f32[] negate(%p)\n%replicated = f32[] negate(%ROOT)\nROOT %nan = f32[] add(%ROOT, %p)"
    ).entry
    assert [item.name for item in entry.instructions] == ["p", "ROOT", "replicated", "nan"]


def test_words_as_parameters_of_a_signature():
    module = module_of(
        "ROOT %r = f32[] negate(%p)", signature="(pred: f32[], ROOT: f32[], (unknown): s32[]) -> f32[4]{0}"
    )
    assert module.entry.root.name == "r"


def test_a_module_on_one_line():
    module = parse_module("HloModule m, num_partitions=2 ENTRY e { p = f32[] parameter(0) ROOT T = f32[] add(p, p) }")
    assert module.num_partitions == 2
    assert module.entry.root.name == "T"


def test_without_entry_the_last_computation_is_it():
    module = parse_module("HloModule m\nf { x = f32[] parameter(0) }\ng { y = f32[] parameter(0) }\n")
    assert module.entry.name == "g"


def test_text_without_header():
    module = parse_module("f {\n  x = f32[] parameter(0)\n}\nENTRY g {\n  y = f32[] parameter(0)\n}\n")
    assert (module.name, module.entry.name, len(module.computations)) == ("g", "g", 2)


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("%r = f32[4] add(f32[4] %a, f32[4] %b)", ("a", "b")),
        ("ROOT r = f32[4] add(f32[4] a, f32[4] a)", ("a", "a")),
        ("f32[4] add(f32[4], f32[4])", ("parameter.0", "parameter.1")),
    ],
)
def test_a_single_instruction(text, operands):
    module = parse_module(text)
    root = module.entry.root
    assert (root.opcode, root.operand_names, str(root.operands[-1].shape)) == ("add", operands, "f32[4]")
    assert [item.parameter_number for item in module.entry.parameters] == list(range(len(set(operands))))


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_ends(newline):
    text = "HloModule m\n\nENTRY %e {\n  %p = f32[] parameter(0) // why\n\n  ROOT %r = f32[] negate(%p)\n}\n"
    module = parse_module(text.replace("\n", newline))
    assert [item.name for item in module.entry.instructions] == ["p", "r"]


@pytest.mark.parametrize(
    "operands",
    ["f32[] %p, f32[], %p", "%p, %p, f32[]", "%p,, %p", ", %p, %p", "%p, %p,", "%p, , ,p, f32[2], ", "%p, /*,*/ %p"],
)
def test_operands_without_a_name_are_dropped_as_xla_does(operands):
    assert root_of(f"%a = f32[] negate(%p)\nROOT %r = f32[] add({operands})").operand_names == ("p", "p")


def test_nothing_but_a_comma_is_no_operand():
    assert root_of("ROOT %r = () tuple(,)").operand_names == ()
    assert parse_module("f32[4] multiply(f32[4], , f32[4])").entry.root.operand_names == ("parameter.0", "parameter.1")


def test_a_colon_belongs_to_the_name_before_it():
    module = parse_module("HloModule m:\nENTRY e: {\n  p: = f32[2]{0} parameter(0)\n  ROOT q = f32[2]{0} add(p:, p)\n}")
    assert (module.name, module.entry.name) == ("m", "e")
    assert [item.name for item in module.entry.instructions] == ["p", "q"]
    assert module.entry.root.operand_names == ("p", "p")


@pytest.mark.parametrize(
    "shape",
    [
        "f32[/*{*/2,4]{/*}*/1,0}",
        "f32/*c*/[2,4] /*}*/{1,0}",
        "f32[2,4 // ]\n]{ // }\n1,0}",
        "(f32[2,/*(*/4]{1,0:T/*)*/(8,128)}, b /*x*/(/*y*/ s8[2] /*z*/))",
    ],
)
def test_comments_inside_shapes(shape):
    root = root_of(f"ROOT %r = {shape} custom-call(%p), dimensions={{0,/*}}*/1}}")
    assert str(root.shape) in ("f32[2,4]", "(f32[2,4], b(s8[2]))")
    first = root.shape.elements[0] if root.shape.is_tuple else root.shape
    assert first.layout.minor_to_major == (1, 0)
    assert root.dimensions == (0, 1)


def test_comments_before_an_argument():
    entry = module_of("%c = s32[] constant /*(*/ (7)\n%q = f32[2] parameter/**/(1)\nROOT %r = f32[2] negate(%q)").entry
    assert entry.instruction("c").literal == "7"
    assert entry.instruction("q").parameter_number == 1


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("window={}", "{}"),
        ("window={size=2x2 pad=-1_-1x0_0 lhs_dilate=2x2 rhs_reversal=0x1}", None),
        ("window={stride=2 size=3}", None),
        ("slice={[0:2:-1]}", None),
        ("source_target_pairs={}", None),
        ("output_to_operand_aliasing={{}: (0, {}),}", None),
        ("result_accuracy={tolerance={}}", None),
        ("dimensions={-1}", None),
        ("channel_id=_", None),
        ("index=18446744073709551615", None),
    ],
)
def test_unusual_values_that_xla_reads(attribute, value):
    key, _, text = attribute.partition("=")
    assert root_of(f"ROOT %r = f32[] custom-call(%p), {attribute}").attributes[key] == (value or text)
