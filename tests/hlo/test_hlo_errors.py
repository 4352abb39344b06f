"""Text that cannot be read: every error in full."""

from __future__ import annotations

import re

import pytest
from hlo_texts import message_of, module_of

from hloscope.errors import HloParseError, HloscopeError
from hloscope.hlo import parse_module

HEAD = "HloModule m\n\nENTRY %e (p: f32[2]) -> f32[2] {\n  %p = f32[2]{0} parameter(0)\n"
NOT_HLO_FIX = (
    "   = fix: give HLO text, which starts with `HloModule`: jax.jit(f).lower(...).compile().as_text() "
    "and XLA's dumps named *.txt are such text"
)


@pytest.mark.parametrize("text", ["", "\n", " \r\n\t"])
def test_empty_text(text):
    first, place, *_, last = message_of(text).splitlines()
    assert first == "error: the text is empty"
    assert place == "  --> f.hlo:1:1"
    assert last == NOT_HLO_FIX


@pytest.mark.parametrize(
    ("text", "what", "shown"),
    [
        ("hello world", "this is no HLO text", "hello world"),
        ('{"a": 1}', "this is no HLO text", '{"a": 1}'),
        ("\x00\x01binary", "this is no HLO text", "��binary"),
        ("module @jit_f {\n}\n", "this is MLIR (such as StableHLO), not HLO text", "module @jit_f {"),
        ("#loc = loc(unknown)\n", "this is MLIR (such as StableHLO), not HLO text", "#loc = loc(unknown)"),
    ],
)
def test_text_that_is_no_hlo(text, what, shown):
    expected = f"error: {what}\n  --> f.hlo:1:1\n   | {shown}\n   | ^\n{NOT_HLO_FIX}"
    assert message_of(text) == expected


def test_text_cut_off_between_instructions():
    assert message_of(HEAD) == (
        "error: the text ends inside computation %e that starts at line 3\n"
        "  --> f.hlo:4:30\n"
        "   |   %p = f32[2]{0} parameter(0)\n"
        "   |                              ^\n"
        "   = fix: was the file cut off?"
    )


def test_text_cut_off_inside_an_operand_list():
    assert message_of(HEAD + "  ROOT %r = f32[2]{0} add(%p, ") == (
        "error: the text ends inside computation %e that starts at line 3\n"
        "  --> f.hlo:5:30\n"
        "   |   ROOT %r = f32[2]{0} add(%p,\n"
        "   |                              ^\n"
        "   = fix: was the file cut off?"
    ).replace("add(%p,\n", "add(%p, \n")


def test_text_cut_off_inside_a_string():
    assert message_of(HEAD + '  %r = f32[2]{0} add(%p, %p), metadata={op_name="a') == (
        "error: the text ends inside computation %e that starts at line 3: the `{` is never closed\n"
        "  --> f.hlo:5:40\n"
        '   |   %r = f32[2]{0} add(%p, %p), metadata={op_name="a\n'
        "   |                                        ^\n"
        "   = fix: was the file cut off?"
    )


@pytest.mark.parametrize("end", range(12, len(HEAD) + 90, 5))
def test_text_cut_off_anywhere_says_so(end):
    text = (
        HEAD + '  ROOT %r = f32[2]{0:T(128)} add(%p, %p), channel_id=1, dimensions={0}, metadata={op_name="a"}\n}\n'
    )[:end]
    assert "the text ends" in message_of(text)


def test_only_a_header():
    assert message_of("HloModule m, is_scheduled=true\n") == (
        "error: the text ends where `ENTRY` or a name was expected\n"
        "  --> f.hlo:1:31\n"
        "   | HloModule m, is_scheduled=true\n"
        "   |                               ^\n"
        "   = fix: was the file cut off?"
    )


@pytest.mark.parametrize(
    ("line", "what", "column"),
    [
        ("%r f32[2] add(%p)", "unexpected `f32` where `=` was expected", 6),
        ("%r = f32[2] add(%p\x00)", "unexpected character U+0000", 21),
        ("%r = f32[2] add(%p\u00a0)", "unexpected character U+00A0", 21),
        ("%r = f32[2,,3] add(%p)", "unexpected `,` where `<=` or a number was expected", 14),
        ("%r = f32[-2] add(%p)", "a dimension cannot be -2", 12),
        ("%r = f32[2]{1,0} add(%p)", "the layout of f32[2] names 2 dimensions", 14),
        ("%r = f32[2] add(%q)", "%q is used in computation %e and no instruction before it has that name", 19),
        ("%r = f32[2] add(%p, f32[2])", "an operand has no name: add needs 2, and 1 have one", 15),
        ("%r = f32[2] add(%p, )", "an operand has no name: add needs 2, and 1 have one", 15),
        ("%r = f32[2] negate(,)", "an operand has no name: negate needs 1, and 0 have one", 15),
        ("%r = f32[2] add(%p, negate(f32[2]))", "an operand has no name: negate needs 1, and 0 have one", 23),
        (
            "%r = f32[2] call(%p), to_apply=%g",
            "computation %g is called and no computation before it has that name",
            34,
        ),
        ("%p = f32[2] add(%p)", "%p is defined twice in computation %e", 3),
        ("%r = f32[2] add(%p), a=1, a=2", "attribute a is given twice", 31),
        ("%r = f32[2] add(%p)) x", "unexpected `)` where `,`, `ROOT`, `}` or a name was expected", 22),
        ("%r = f32[2] parameter(x)", "unexpected `x` where a number was expected", 25),
        (
            "%r = f32[2] parameter(123456789012345678901)",
            "unexpected `123456789012345678901` where a number was expected",
            25,
        ),
        ("%r = f32[2]{0:T(-1)} add(%p)", "a tile dimension is negative", 18),
        ("%r = f32[2]{0:D(X)} add(%p)", "unexpected `D` where `}` or tiles was expected", 17),
    ],
)
def test_broken_lines(line, what, column):
    expected_head = f"error: {what}\n  --> f.hlo:5:{column}\n"
    message = message_of(f"{HEAD}  {line}\n}}\n")
    assert message.startswith(expected_head)
    assert message.splitlines()[3] == "   | " + " " * (column - 1) + "^"


def test_two_roots_and_two_entries():
    assert message_of(HEAD + "  ROOT %r = f32[] add(%p)\n  ROOT %s = f32[] add(%p)\n}\n") == (
        "error: a second instruction of computation %e is marked `ROOT`\n"
        "  --> f.hlo:6:8\n"
        "   |   ROOT %s = f32[] add(%p)\n"
        "   |        ^"
    )
    second = "ENTRY %f () -> f32[] {\n  %p = f32[] parameter(0)\n}\n"
    assert message_of(f"{HEAD}}}\n{second}").splitlines()[:2] == [
        "error: a second computation is marked `ENTRY`",
        "  --> f.hlo:6:1",
    ]
    assert message_of(f"{HEAD}}}\n{HEAD.split(chr(10), 2)[2]}}}\n").splitlines()[:2] == [
        "error: computation %e is defined twice",
        "  --> f.hlo:6:1",
    ]


def test_empty_body():
    assert message_of("HloModule m\nENTRY %e () -> f32[] {\n}\n").splitlines()[1] == "  --> f.hlo:3:1"


def test_errors_carry_line_and_column_and_a_name_for_nameless_text():
    with pytest.raises(HloParseError) as caught:
        parse_module(HEAD + "  %r = f32[2] add(%q)\n}\n")
    assert (caught.value.line, caught.value.column, caught.value.where) == (5, 19, "<text>:5:19")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("attribute", "read", "what", "column"),
    [
        ("replica_groups={{0,x}}", "replica_groups", "unexpected `x` where a number was expected", 56),
        ("sharding={devices=[2,2]0,1,2}", "sharding", "[2, 2] does not hold 3 devices", 55),
        ("sharding={replicated manual}", "sharding", "a sharding needs exactly one kind", 46),
    ],
)
def test_values_are_read_on_demand_and_errors_point_at_them(attribute, read, what, column):
    line = f"  ROOT %r = f32[2] custom-call(%p), {attribute}"
    root = parse_module(f"{HEAD}{line}\n}}\n", name="f.hlo").entry.root
    with pytest.raises(HloParseError) as caught:
        getattr(root, read)
    assert str(caught.value).splitlines()[:2] == [
        f"error: {read} of %r cannot be read: {what}",
        f"  --> f.hlo:5:{column}",
    ]


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ("[4,4]<=[8]", "[4, 4] does not hold the 8 devices of [8]"),
        ("[4,2]<=[2,4]T(0,0)", "T(0, 0) does not permute 2 dimensions"),
        ("[1,2097152]<=[2097152]", "[2097152] is no count of devices"),
        ("mesh['a'=4] {'b'}", "axis 'b' is not in the mesh ['a']"),
        ("mesh['a'=4] {'a':(3)2}", "a sub-axis of 'a' does not divide its size 4"),
        ("mesh['a'=4] {'a','a'}", "a mesh axis is named twice"),
        ("mesh['a'=4], device_ids=(0,1) {'a'}", "device_ids holds 2 devices, the mesh 4"),
        ("maximal_mesh[device_id=1] {'a'}", "a maximal mesh has no axes"),
    ],
)
def test_groups_that_contradict_themselves_are_kept_as_printed(groups, why):
    root = module_of(f"ROOT %r = f32[2] custom-call(%p), replica_groups={groups}").entry.root
    assert (root.replica_groups.text, root.replica_groups.contradiction) == (groups, why)
    with pytest.raises(HloscopeError, match=re.escape(why)):
        root.replica_groups.groups(8)


def test_pairs_that_are_no_pairs():
    root = module_of("ROOT %r = f32[] collective-permute(%p), source_target_pairs={{0,1,2}}").entry.root
    with pytest.raises(HloParseError, match="source_target_pairs of %r are no pairs"):
        _ = root.source_target_pairs


@pytest.mark.parametrize(
    ("attribute", "what", "column"),
    [
        ("dimensions=0", "unexpected `0` where `{` was expected", 48),
        ("dimensions={0,}", "unexpected `}` where a number was expected", 51),
        ("dimensions=[2]<=[4]", "unexpected `[` where `{` was expected", 48),
        ("index=x", "unexpected `x` where a number was expected", 43),
        ("is_stable=1", "unexpected `1` where `true` or `false` was expected", 47),
        ("slice={[0:1:1:1]}", "unexpected `:` where `]` was expected", 50),
        ("source_target_pairs={0,1}", "unexpected `0` where `{` or `}` was expected", 58),
        ("window={size=2 pad=1_1_0}", "unexpected `1_1_0` where a padding such as `0_0x1_1` was expected", 56),
        ("window={size=2x2 foo=1}", "unexpected `foo` where `}` or a part of a window was expected", 54),
        ("padding=2", "unexpected `2` where a padding such as `0_0x1_1` was expected", 45),
        ("dim_labels=b0f->b0f", "unexpected `b0f-` where labels such as `b01f_01io->b01f` was expected", 48),
        ("result_accuracy={mode=high}", "unexpected `high` where `default` or `highest` was expected", 59),
        ("result_accuracy={0.5}", "unexpected `0.5` where `mode=` or `tolerance=` was expected", 54),
        ("custom_call_target=x", "unexpected `x` where a string was expected", 56),
        ("output_to_operand_aliasing={{}: (0; {})}", "unexpected `;` where `,` was expected", 71),
    ],
)
def test_values_that_look_the_same_in_every_version_are_checked_at_once(attribute, what, column):
    lines = [f"  %r = f32[2] custom-call(%p), a=1, {attribute}"] * 2
    for count in (1, 2):
        renamed = [line.replace("%r", f"%{name}", 1) for line, name in zip(lines[:count], "rs", strict=False)]
        message = message_of(f"{HEAD}{chr(10).join(renamed)}\n}}\n")
        assert message.startswith(f"error: {what}\n  --> f.hlo:5:{column}\n")


@pytest.mark.parametrize(
    ("header", "what", "column"),
    [
        ("num_partitions=many", "unexpected `many` where a number was expected", 29),
        ("is_scheduled=1", "unexpected `1` where `true` or `false` was expected", 27),
        ("input_output_alias={ {}: (0, {}, {}) }", "unexpected `{` where a value was expected", 47),
        ("input_output_alias={ {0, a}: (0, {0}) }", "unexpected `a` where `}` or a number was expected", 39),
        ("buffer_donor={ (zero, {0}) }", "unexpected `zero` where a number was expected", 30),
    ],
)
def test_values_of_the_header_are_checked_as_well(header, what, column):
    message = message_of(f"HloModule m, {header}\nENTRY e {{ p = f32[] parameter(0) }}\n")
    assert message.startswith(f"error: {what}\n  --> f.hlo:1:{column}\n")


@pytest.mark.parametrize(("first", "second", "missing"), [(0, 0, 1), (0, 2, 1), (1, 2, 0), (-1, 0, 0)])
def test_parameters_that_are_not_numbered_from_zero_on(first, second, missing):
    lines = f"  %p = f32[] parameter({first})\n  %q = f32[] parameter({second})\n  ROOT %r = f32[] add(%p, %q)\n"
    module = parse_module(f"HloModule m\nENTRY %e {{\n{lines}}}\n", name="f.hlo")
    with pytest.raises(HloParseError) as caught:
        _ = module.entry.parameters
    assert str(caught.value).splitlines()[:2] == [
        f"error: parameter {missing} of %e is missing, or another one has its number",
        "  --> f.hlo:3:1",
    ]


def test_unbounded_dimensions_cannot_be_counted():
    shape = module_of("ROOT %r = f32[?,4] custom-call(%p)").entry.root.shape
    assert shape.byte_size is None
    with pytest.raises(HloscopeError, match=r"the elements of f32\[\?,4\] cannot be counted"):
        _ = shape.element_count


@pytest.mark.parametrize("name", ["token", "f32", "replicated", "nan", "HloModule"])
def test_reserved_words_are_no_names(name):
    body = f"  {name} = f32[] constant(1)\n"
    message = message_of(f"HloModule m\n\nENTRY e {{\n{body}}}\n")
    assert f"an instruction cannot have the name {name}" in message
    assert "--> f.hlo:4:3" in message


@pytest.mark.parametrize("name", ["%replicated", "%nan", "%ROOT", "%f32", "__x", "T", "mesh", "add", "shard"])
def test_words_that_are_names(name):
    module = parse_module(f"HloModule m\n\nENTRY e {{\n  {name} = f32[] constant(1)\n}}\n")
    assert module.entry.root.name == name.lstrip("%")
