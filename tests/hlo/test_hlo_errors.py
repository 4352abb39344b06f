"""Text that cannot be read: every error in full."""

from __future__ import annotations

import pytest
from hlo_texts import mentions, message_of, module_of

from hloscope.base.errors import HloParseError, HloscopeError
from hloscope.hlo import parse_module

HEAD = "HloModule m\n\nENTRY %e (p: f32[2]) -> f32[2] {\n  %p = f32[2]{0} parameter(0)\n"


@pytest.mark.parametrize("text", ["", "\n", " \r\n\t"], ids=["nothing", "newline", "blanks"])
def test_empty_text(says, text):
    first, place, *_, fix = says(message_of(text)).splitlines()
    assert "empty" in first
    assert place == "  --> f.hlo:1:1"
    assert "as_text()" in fix


@pytest.mark.parametrize(
    ("text", "is_mlir", "shown"),
    [
        ("hello world", False, "hello world"),
        ('{"a": 1}', False, '{"a": 1}'),
        ("\x00\x01binary", False, "��binary"),
        ("module @jit_f {\n}\n", True, "module @jit_f {"),
        ("#loc = loc(unknown)\n", True, "#loc = loc(unknown)"),
    ],
    ids=["words", "JSON", "binary", "a module of MLIR", "a location of MLIR"],
)
def test_text_that_is_no_hlo(says, text, is_mlir, shown):
    first, *place, fix = says(message_of(text)).splitlines()
    assert "HLO" in first
    assert ("MLIR" in first) is is_mlir
    assert place == ["  --> f.hlo:1:1", f"   | {shown}", "   | ^"]
    assert "as_text()" in fix


def is_cut_off(message: str, place: str, line: str, column: int) -> bool:
    """Whether a message shows where a text ends, and asks whether it is whole."""
    _, *shown, fix = message.splitlines()
    return "cut off" in fix and shown == [f"  --> f.hlo:{place}:{column}", f"   | {line}", f"   | {'^':>{column}}"]


def test_text_cut_off_between_instructions(says):
    message = message_of(HEAD)
    assert mentions(message, "%e 3")
    assert is_cut_off(message, "4", "  %p = f32[2]{0} parameter(0)", 30)
    says(message)


def test_text_cut_off_inside_an_operand_list(says):
    message = message_of(HEAD + "  ROOT %r = f32[2]{0} add(%p, ")
    assert mentions(message, "%e 3")
    assert is_cut_off(message, "5", "  ROOT %r = f32[2]{0} add(%p, ", 30)
    says(message)


def test_text_cut_off_inside_a_string(says):
    line = '  %r = f32[2]{0} add(%p, %p), metadata={op_name="a'
    message = message_of(HEAD + line)
    assert mentions(message, "%e 3 `{`")
    assert is_cut_off(message, "5", line, 40)
    says(message)


@pytest.mark.parametrize("end", range(12, len(HEAD) + 90, 5))
def test_text_cut_off_anywhere_says_so(end):
    text = (
        HEAD + '  ROOT %r = f32[2]{0:T(128)} add(%p, %p), channel_id=1, dimensions={0}, metadata={op_name="a"}\n}\n'
    )[:end]
    assert "cut off" in message_of(text)


def test_only_a_header(says):
    message = message_of("HloModule m, is_scheduled=true\n")
    assert mentions(message, "`ENTRY`")
    assert is_cut_off(message, "1", "HloModule m, is_scheduled=true", 31)
    says(message)


@pytest.mark.parametrize(
    ("line", "words", "column"),
    [
        ("%r f32[2] add(%p)", "`f32` `=`", 6),
        ("%r = f32[2] add(%p\x00)", "U+0000", 21),
        ("%r = f32[2] add(%p\u00a0)", "U+00A0", 21),
        ("%r = f32[2,,3] add(%p)", "`,` `<=` number", 14),
        ("%r = f32[-2] add(%p)", "-2", 12),
        ("%r = f32[2]{1,0} add(%p)", "layout f32[2] 2", 14),
        ("%r = f32[2] add(%q)", "%q %e", 19),
        ("%r = f32[2] add(%p, f32[2])", "add 2 1", 15),
        ("%r = f32[2] add(%p, )", "add 2 1", 15),
        ("%r = f32[2] negate(,)", "negate 1 0", 15),
        ("%r = f32[2] add(%p, negate(f32[2]))", "negate 1 0", 23),
        (
            "%r = f32[2] call(%p), to_apply=%g",
            "computation %g",
            34,
        ),
        ("%p = f32[2] add(%p)", "%p %e", 3),
        ("%r = f32[2] add(%p), a=1, a=2", "attribute a", 31),
        ("%r = f32[2] add(%p)) x", "`)` `,` `ROOT` `}`", 22),
        ("%r = f32[2] parameter(x)", "`x` number", 25),
        (
            "%r = f32[2] parameter(123456789012345678901)",
            "`123456789012345678901` number",
            25,
        ),
        ("%r = f32[2]{0:T(-1)} add(%p)", "tile negative", 18),
        ("%r = f32[2]{0:D(X)} add(%p)", "`D` `}` tiles", 17),
    ],
)
def test_broken_lines(says, line, words, column):
    message = message_of(f"{HEAD}  {line}\n}}\n")
    assert mentions(message, words)
    assert message.splitlines()[1] == f"  --> f.hlo:5:{column}"
    says(message)
    assert message.splitlines()[3] == "   | " + " " * (column - 1) + "^"


def test_two_roots_and_two_entries(says):
    message = message_of(HEAD + "  ROOT %r = f32[] add(%p)\n  ROOT %s = f32[] add(%p)\n}\n")
    assert mentions(message, "second %e `ROOT`")
    assert message.splitlines()[1:] == ["  --> f.hlo:6:8", "   |   ROOT %s = f32[] add(%p)", "   |        ^"]
    says(message, "ROOT")
    second = "ENTRY %f () -> f32[] {\n  %p = f32[] parameter(0)\n}\n"
    message = message_of(f"{HEAD}}}\n{second}")
    assert mentions(message, "second `ENTRY`")
    assert message.splitlines()[1] == "  --> f.hlo:6:1"
    says(message, "ENTRY")
    message = message_of(f"{HEAD}}}\n{HEAD.split(chr(10), 2)[2]}}}\n")
    assert mentions(message, "%e twice")
    assert message.splitlines()[1] == "  --> f.hlo:6:1"
    says(message, "name")


def test_empty_body():
    assert message_of("HloModule m\nENTRY %e () -> f32[] {\n}\n").splitlines()[1] == "  --> f.hlo:3:1"


def test_errors_carry_line_and_column_and_a_name_for_nameless_text():
    with pytest.raises(HloParseError) as caught:
        parse_module(HEAD + "  %r = f32[2] add(%q)\n}\n")
    assert (caught.value.line, caught.value.column, caught.value.where) == (5, 19, "<text>:5:19")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("attribute", "read", "words", "column"),
    [
        ("replica_groups={{0,x}}", "replica_groups", "`x` number", 56),
        ("sharding={devices=[2,2]0,1,2}", "sharding", "[2, 2] 3", 55),
        ("sharding={replicated manual}", "sharding", "kind", 46),
    ],
)
def test_values_are_read_on_demand_and_errors_point_at_them(says, attribute, read, words, column):
    line = f"  ROOT %r = f32[2] custom-call(%p), {attribute}"
    root = parse_module(f"{HEAD}{line}\n}}\n", name="f.hlo").entry.root
    with pytest.raises(HloParseError) as caught:
        getattr(root, read)
    assert mentions(str(caught.value), f"{read} %r {words}")
    assert caught.value.where == f"f.hlo:5:{column}"
    says(caught)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ("[4,4]<=[8]", "[4, 4] 8 [8]"),
        ("[4,2]<=[2,4]T(0,0)", "T(0, 0) 2"),
        ("[1,2097152]<=[2097152]", "[2097152]"),
        ("mesh['a'=4] {'b'}", "'b' ['a']"),
        ("mesh['a'=4] {'a':(3)2}", "'a' 4"),
        ("mesh['a'=4] {'a','a'}", "axis twice"),
        ("mesh['a'=4], device_ids=(0,1) {'a'}", "device_ids 2 4"),
        ("maximal_mesh[device_id=1] {'a'}", "maximal"),
    ],
)
def test_groups_that_contradict_themselves_are_kept_as_printed(says, groups, words):
    root = module_of(f"ROOT %r = f32[2] custom-call(%p), replica_groups={groups}").entry.root
    assert root.replica_groups.text == groups
    assert mentions(says(root.replica_groups.contradiction), words)
    with pytest.raises(HloscopeError) as caught:
        root.replica_groups.groups(8)
    assert root.replica_groups.contradiction in str(caught.value)


def test_pairs_that_are_no_pairs(says):
    root = module_of("ROOT %r = f32[] collective-permute(%p), source_target_pairs={{0,1,2}}").entry.root
    with pytest.raises(HloParseError) as caught:
        _ = root.source_target_pairs
    assert mentions(says(caught), "source_target_pairs %r")


@pytest.mark.parametrize(
    ("attribute", "words", "column"),
    [
        ("dimensions=0", "`0` `{`", 48),
        ("dimensions={0,}", "`}` number", 51),
        ("dimensions=[2]<=[4]", "`[` `{`", 48),
        ("index=x", "`x` number", 43),
        ("is_stable=1", "`1` `true` `false`", 47),
        ("slice={[0:1:1:1]}", "`:` `]`", 50),
        ("source_target_pairs={0,1}", "`0` `{` `}`", 58),
        ("window={size=2 pad=1_1_0}", "`1_1_0` padding `0_0x1_1`", 56),
        ("window={size=2x2 foo=1}", "`foo` `}` window", 54),
        ("padding=2", "`2` padding `0_0x1_1`", 45),
        ("dim_labels=b0f->b0f", "`b0f-` labels `b01f_01io->b01f`", 48),
        ("result_accuracy={mode=high}", "`high` `default` `highest`", 59),
        ("result_accuracy={0.5}", "`0.5` `mode=` `tolerance=`", 54),
        ("custom_call_target=x", "`x` string", 56),
        ("output_to_operand_aliasing={{}: (0; {})}", "`;` `,`", 71),
    ],
)
def test_values_that_look_the_same_in_every_version_are_checked_at_once(says, attribute, words, column):
    lines = [f"  %r = f32[2] custom-call(%p), a=1, {attribute}"] * 2
    messages = set()
    for count in (1, 2):
        renamed = [line.replace("%r", f"%{name}", 1) for line, name in zip(lines[:count], "rs", strict=False)]
        messages.add(message_of(f"{HEAD}{chr(10).join(renamed)}\n}}\n"))
    [message] = messages
    assert mentions(message, words)
    assert message.splitlines()[1] == f"  --> f.hlo:5:{column}"
    says(message)


@pytest.mark.parametrize(
    ("header", "words", "column"),
    [
        ("num_partitions=many", "`many` number", 29),
        ("is_scheduled=1", "`1` `true` `false`", 27),
        ("input_output_alias={ {}: (0, {}, {}) }", "`{` value", 47),
        ("input_output_alias={ {0, a}: (0, {0}) }", "`a` `}` number", 39),
        ("buffer_donor={ (zero, {0}) }", "`zero` number", 30),
    ],
)
def test_values_of_the_header_are_checked_as_well(says, header, words, column):
    message = message_of(f"HloModule m, {header}\nENTRY e {{ p = f32[] parameter(0) }}\n")
    assert mentions(message, words)
    assert message.splitlines()[1] == f"  --> f.hlo:1:{column}"
    says(message)


@pytest.mark.parametrize(("first", "second", "missing"), [(0, 0, 1), (0, 2, 1), (1, 2, 0), (-1, 0, 0)])
def test_parameters_that_are_not_numbered_from_zero_on(says, first, second, missing):
    lines = f"  %p = f32[] parameter({first})\n  %q = f32[] parameter({second})\n  ROOT %r = f32[] add(%p, %q)\n"
    module = parse_module(f"HloModule m\nENTRY %e {{\n{lines}}}\n", name="f.hlo")
    with pytest.raises(HloParseError) as caught:
        _ = module.entry.parameters
    assert mentions(says(caught), f"{missing} %e")
    assert caught.value.where == "f.hlo:3:1"


def test_unbounded_dimensions_cannot_be_counted(says):
    shape = module_of("ROOT %r = f32[?,4] custom-call(%p)").entry.root.shape
    assert shape.byte_size is None
    with pytest.raises(HloscopeError) as caught:
        _ = shape.element_count
    assert mentions(says(caught), "f32[?,4]")


@pytest.mark.parametrize("name", ["token", "f32", "replicated", "nan", "HloModule"])
def test_reserved_words_are_no_names(says, name):
    body = f"  {name} = f32[] constant(1)\n"
    message = message_of(f"HloModule m\n\nENTRY e {{\n{body}}}\n")
    assert mentions(says(message), name)
    assert "--> f.hlo:4:3" in message


@pytest.mark.parametrize("name", ["%replicated", "%nan", "%ROOT", "%f32", "__x", "T", "mesh", "add", "shard"])
def test_words_that_are_names(name):
    module = parse_module(f"HloModule m\n\nENTRY e {{\n  {name} = f32[] constant(1)\n}}\n")
    assert module.entry.root.name == name.lstrip("%")
