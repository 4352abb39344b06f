"""The quick way and the grammar's rule for the whole text say the same of every text."""

from __future__ import annotations

import re

import pytest
from hlo_texts import BARE, MODULE, corpus_files, needs_corpus
from hypothesis import given
from hypothesis import strategies as st

from hloscope.base.errors import HloParseError
from hloscope.hlo import columns, scanner
from hloscope.hlo.columns import Builder, Columns
from hloscope.hlo.parser import parse_module, parse_whole
from hloscope.hlo.records import Row, cut_attributes, detect_dialect, make_dialect, replace_numbers
from hloscope.hlo.scanner import FallbackToGrammar, Scanner, read_called, read_config

HEAD = "HloModule m\n\n"
ENTRY = HEAD + "ENTRY %e (p: f32[2]) -> f32[2] {\n  %p = f32[2]{0} parameter(0)\n"
CALLEE = HEAD + "%f (x: f32[2]) -> f32[2] {\n  %x = f32[2]{0} parameter(0)\n}\n\n"
TEXTS = {
    "module": MODULE,
    "bare": BARE,
    "carriage returns": MODULE.replace("\n", "\r\n"),
    "operand shapes": ENTRY + '  ROOT %r = f32[2]{0} add(f32[2]{0} %p, f32[2]{0} %p), metadata={op_name="a"}\n}\n',
    "bare operand shapes": HEAD
    + "ENTRY e {\n  p = f32[2]{0} parameter(0)\n  ROOT r = f32[2]{0} add(f32[2]{0} p, f32[2]{0} p)\n}\n",
    "attributes on the next line": ENTRY
    + '  ROOT %r = f32[2] add(%p, %p),\n    metadata={op_name="a"},\n    foo={1,\n2}\n}\n',
    "comments": ENTRY + "  // %a = f32[] add(%p)\n  %a = f32[] add(%p) // why\n  ROOT %r = f32[] add(/* %q */ %a)\n}\n",
    "nested operands": ENTRY + "  %a = f32[2] add(%p, add(%p, %p))\n  ROOT %t = f32[2] add(%a, add(%a, %a))\n}\n",
    "tuple indexes": ENTRY + "  %t = (f32[2], f32[2]) tuple(%p, %p)\n  ROOT %r = f32[2] add(%t#0, %t#1)\n}\n",
    "inline computation": ENTRY + "  ROOT %r = f32[] reduce(%p), to_apply={ ROOT %x = f32[] parameter(0) }\n}\n",
    "closing brace on the line": ENTRY + "  ROOT %r = f32[] negate(%p) }\n",
    "second computation on a line": ENTRY + "}\n%f () -> f32[] { %p = f32[] constant(1) }\n",
    "indented": "  HloModule m\n\n  ENTRY %e {\n    %p = f32[] parameter(0)\n  }\n",
    "single quotes": ENTRY + "  ROOT %r = f32[2] add(%p), a='\"%x', b=mesh['x=1'=2] {'x=1'}, c=\"it's\"\n}\n",
    "index comments": ENTRY + "  ROOT %r = (f32[], /*index=1*/f32[]) tuple(%p, /*index=1*/%p)\n}\n",
    "odd blanks": ENTRY + "\tROOT  %r  =  f32[ 2 ] add( %p , %p ) , a=1\n}\n",
    "bare odd blanks": HEAD
    + "ENTRY e {\n  p = f32[2] parameter(0)\n  q  = f32[2] negate(p)\n  ROOT  r = f32[2] add(q, p)\n}\n",
    "no first table": HEAD + "FunctionNames\n\nENTRY %e {\n  %p = f32[] parameter(0)\n}\n",
    "root named ROOT": HEAD + "ENTRY e {\n  p = f32[] parameter(0)\n  ROOT = f32[] negate(p)\n}\n",
    "undefined operand": ENTRY + "  ROOT %r = f32[] add(%q)\n}\n",
    "undefined computation": ENTRY + "  ROOT %r = f32[] call(%p), to_apply=%f\n}\n",
    "defined twice": ENTRY + "  %p = f32[] parameter(1)\n}\n",
    "two roots": ENTRY + "  ROOT %r = f32[] negate(%p)\n  ROOT %s = f32[] negate(%p)\n}\n",
    "cut off": MODULE[:-40],
    "equal sign for a parenthesis": BARE + "a {\n  x = f32[] parameter(0)\n  y = f32[] parameter=1)\n}\n",
    "equal sign before an operand": BARE + "a {\n  x = f32[] select(x)\n  y = f32[] select=x)\n}\n",
    "two instructions and a nested one": HEAD
    + "ENTRY e {\n  p = f32[] parameter(0)\n  a = f32[] negate(p) b = f32[] negate(negate(p))\n}\n",
    "string for a name": MODULE.replace("to_apply=%region_0.1", 'to_apply="region_0.1"'),
    "name for a string": MODULE.replace('custom_call_target="tpu_custom_call"', "custom_call_target=%region_0.1"),
    "bad dimensions": MODULE.replace("f32[4]{0} custom-call", "f32[4,,4]{0} custom-call"),
    "bad rank": MODULE.replace("f32[4]{0} custom-call", "f32[4]{1,0} custom-call"),
    "huge number": MODULE.replace("channel_id=3", f"channel_id={'3' * 50}"),
    "operand of another computation": CALLEE + ENTRY[len(HEAD) :] + "  ROOT %r = f32[] add(%p, %x)\n}\n",
    "used before it is defined": ENTRY + "  %a = f32[] add(%b, %p)\n  ROOT %b = f32[] negate(%p)\n}\n",
    "called before it is defined": ENTRY + "  ROOT %r = f32[] call(%p), to_apply=%f\n}\n\n" + CALLEE[len(HEAD) :],
    "calls itself": HEAD
    + "%f (x: f32[2]) -> f32[2] {\n  %x = f32[2] parameter(0)\n  %y = f32[2] call(%x), to_apply=%f\n}\n",
    "attribute twice": CALLEE + ENTRY[len(HEAD) :] + "  ROOT %r = f32[] call(%p), a=1, to_apply=%f, a=2\n}\n",
    "metadata twice": ENTRY + "  ROOT %r = f32[] add(%p, %p), metadata={a=1}, backend_config={}, metadata={a=2}\n}\n",
    "several calls": CALLEE
    + ENTRY[len(HEAD) :]
    + "  ROOT %r = f32[] while(%p), condition=%f, body=%f, a=1, calls=%f, b=2\n}\n",
    "comment up to the line's end": ENTRY + '  ROOT %r = f32[2] add(%p, %p), a=1 // x, metadata={op_name="a"}\n}\n',
    "comment for the operation": ENTRY + "  ROOT %r = f32[2] // add(%p, %p), a=1\n  negate(%p)\n}\n",
    "attributes behind the metadata": ENTRY
    + '  ROOT %r = f32[2] add(%p, %p), metadata={op_name="a"}, sharding={replicated}, a="x"\n}\n',
    "nested tuples": ENTRY + "  ROOT %r = ((f32[2]{0}, (s32[])), u32[]{:S(2)}) foo-start(%p)\n}\n",
    "dynamic shapes": ENTRY + "  ROOT %r = f32[<=8,?,4]{2,1,0:T(8,*)L(2)E(4)S(1)} foo(%p)\n}\n",
    "layout of another rank": ENTRY + "  ROOT %r = f32[8]{1,0} negate(%p)\n}\n",
    "no tile": ENTRY + "  ROOT %r = f32[8]{0:T(0)} negate(%p)\n}\n",
    "frontend attributes": ENTRY + '  ROOT %r = f32[2] negate(%p), frontend_attributes={a={x,y},b="c",d=e}\n}\n',
    "broken frontend attributes": ENTRY
    + "  %a = f32[2] negate(%p), frontend_attributes={a=b}\n  %b = f32[2] negate(%p), frontend_attributes={a}\n}\n",
    "carriage return in a comment": HEAD.replace("m\n", "m\n// a\r// b\n")
    + "ENTRY %e {\n  // why\r  %p = f32[] parameter(0)\n  ROOT %r = f32[] negate(%p)\n}\n",
    "header behind a comment": "// why\rHloModule m\n\n" + ENTRY[len(HEAD) :] + "}\n",
    "huge parameter": MODULE.replace("parameter(1)", f"parameter({'1' * 50})"),
}


def facts(module):
    """Everything that a module says, as plain values."""
    return {
        "name": module.name,
        "header": dict(module.header),
        "tables": module._columns.tables,
        "computations": [
            (item.name, item.line, item.is_entry, item.execution_thread, item.root.name) for item in module.computations
        ],
        "instructions": [
            (
                item.computation.name,
                item.name,
                item.opcode,
                item.line,
                item.is_root,
                item.shape,
                item.operand_names,
                item.called,
                dict(item.attributes),
                item.literal,
                item.parameter_number,
            )
            for computation in module.computations
            for item in computation.instructions
        ],
    }


def outcome(parse, text):
    """The facts, or the whole text of the error."""
    try:
        return facts(parse(text, name="f.hlo"))
    except HloParseError as error:
        return str(error)


def takes_the_quick_way(text):
    try:
        Scanner(Builder(Columns(text, None))).scan()
    except FallbackToGrammar:
        return False
    return True


@pytest.mark.parametrize("name", TEXTS)
def test_both_ways_agree(name):
    assert outcome(parse_module, TEXTS[name]) == outcome(parse_whole, TEXTS[name])


@pytest.mark.parametrize("block", [1, 64, 200])
@pytest.mark.parametrize("name", TEXTS)
def test_blocks_change_nothing(name, block, monkeypatch):
    for module in (columns, scanner):
        monkeypatch.setattr(module, "BLOCK", block)
    assert outcome(parse_module, TEXTS[name]) == outcome(parse_whole, TEXTS[name])
    assert [*Columns(TEXTS[name], None).line_starts] == [0, *(m.end() for m in re.finditer("\n", TEXTS[name]))]


@pytest.mark.parametrize(
    "name",
    [
        "module",
        "bare",
        "carriage returns",
        "operand shapes",
        "bare operand shapes",
        "attributes on the next line",
        "comments",
        "nested operands",
        "tuple indexes",
        "indented",
        "single quotes",
        "index comments",
        "odd blanks",
        "bare odd blanks",
    ],
)
def test_what_takes_the_quick_way(name):
    assert takes_the_quick_way(TEXTS[name])


@pytest.mark.parametrize("name", ["inline computation", "undefined operand", "cut off", "second computation on a line"])
def test_what_does_not(name):
    assert not takes_the_quick_way(TEXTS[name])


def test_complete_computations_are_kept_when_the_quick_way_ends():
    """Only the rest, from the computation on that is out of line, is read by the whole rule."""
    odd = MODULE + "\n%odd () -> f32[] { %c = f32[] constant(1) }\n"
    assert not takes_the_quick_way(odd)
    assert outcome(parse_module, odd) == outcome(parse_whole, odd)
    assert [item.name for item in parse_module(odd).computations][-1] == "odd"


LINES = [
    "%r = f32[2]{0} add(%p, %p)",
    "%r = f32[4]{0:T(128)S(6)} add(%p, %p), channel_id=12",
    '%r = (f32[2], s32[]{:S(2)}) custom-call(%p), custom_call_target="a"',
    '%r = f32[] constant(1), metadata={op_name="x" stack_frame_id=3}',
    "%r = f32[] constant({1, 2})",
    '%r = f32[2] slice(%p), slice={[0:1], [2:3]}, backend_config={"a":{"b":["}"]}}',
    "%r = f32[2] all-gather(%p), replica_groups=[2,4]<=[8], dimensions={0}",
    "%r = f32[2] all-gather(%p), replica_groups=mesh['a'=2] {'a'}, dimensions={0}",
    "%r = f32[2] fusion(%p, %p), kind=kLoop, calls=%f",
]
MUTATIONS = st.sampled_from(
    ['"', "'", "{", "}", "(", ")", "[", "]", "=", ",", "%", " ", "/*", "*/", "//", "1", "a", ":", "\\"]
)


@given(st.lists(st.tuples(st.sampled_from(LINES), st.integers(0, 60), MUTATIONS), min_size=1, max_size=4))
def test_both_ways_agree_on_broken_lines(mutations):
    """The lines are first read whole, so their forms are known when a broken one comes."""
    known = "".join(f"  {line.replace('%r', f'%k{index}')}\n" for index, line in enumerate(LINES))
    broken = "".join(
        f"  {line[:place] + inserted + line[place:]}\n".replace("%r", f"%b{index}")
        for index, (line, place, inserted) in enumerate(mutations)
    )
    callee = "%f (x: f32[2]) -> f32[2] {\n  %x = f32[2]{0} parameter(0)\n}\n\n"
    entry = "ENTRY %e (p: f32[2]) -> f32[2] {\n  %p = f32[2]{0} parameter(0)\n"
    text = f"{HEAD}{callee}{entry}{known}{broken}}}\n"
    assert outcome(parse_module, text) == outcome(parse_whole, text)


def row_of(line, **kind):
    return Row(*make_dialect(**kind).pattern.match(line).groups(""))


def test_cutting_a_line():
    tail = ', metadata={op_name="x{" a=1}, backend_config={"b":1}'
    line = f"  ROOT %r.1 = (f32[2]{{0:S(1)}}, s32[]) all-reduce(%a, %b), channel_id=12, to_apply=%add, a=1{tail}"
    assert row_of(line, percent=True, shapes=False) == Row(
        root="ROOT ",
        name="r.1",
        opening="(f32[2]{0:S(1)}, s32[]) all-reduce(%",
        operands="a, %b",
        attributes=", channel_id=12, to_apply=%add, a=1",
        metadata='{op_name="x{" a=1}',
        config=', backend_config={"b":1}',
        other="",
    )
    bare = row_of("  r.1 = f32[2] reduce(a, b), dimensions={0}, to_apply=add", percent=False, shapes=False)
    assert (bare.name, bare.opening, bare.operands) == ("r.1", "f32[2] reduce(", "a, b")
    assert bare.attributes == ", dimensions={0}, to_apply=add"
    shaped = row_of("  %r = f32[2] add(f32[2]{0:T(8)} %a, (f32[], s32[]) %b), a=1", percent=True, shapes=True)
    assert (shaped.operands, shaped.attributes) == ("f32[2]{0:T(8)} %a, (f32[], s32[]) %b", ", a=1")


@pytest.mark.parametrize(
    "line",
    [
        "%r = f32[] add(%p, add(%p, %p))",
        "%r = f32[] add(p)",
        "%r = f32[] parameter(p)",
        "%r = f32[] constant((1, 2))",
        "%r =f32[] add(%p)",
        "%r = f32[] add(%p#0)",
        '%r = f32[] add(%p), metadata={op_name="a"}, sharding={replicated}',
        "// %r = f32[] add(%p)",
        "",
    ],
)
def test_what_is_no_plain_row(line):
    row = row_of(line, percent=True, shapes=False)
    assert row == Row(*[""] * 7, other=line)


@pytest.mark.parametrize(
    ("text", "percent", "shapes"),
    [
        (MODULE, True, False),
        (BARE, False, False),
        (TEXTS["operand shapes"], True, True),
        (TEXTS["bare operand shapes"], False, True),
        ("", False, False),
    ],
)
def test_the_dialect_of_a_text(text, percent, shapes):
    assert detect_dialect(text, 0) is make_dialect(percent=percent, shapes=shapes)


def test_cutting_attributes():
    text = ', channel_id=12, slice={[0:1], [2:3]}, condition=%c, names={%a, %b}, target="x, a=1", m=mesh[a=2, b=4], k=_'
    assert cut_attributes(text) == [
        ("channel_id", "12"),
        ("slice", "{[0:1], [2:3]}"),
        ("condition", "%c"),
        ("names", "{%a, %b}"),
        ("target", '"x, a=1"'),
        ("m", "mesh[a=2, b=4]"),
        ("k", "_"),
    ]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (", channel_id=12", ", channel_id=1"),
        (", slice={[0:10]}, to_apply=%add.37", ", slice={[1:1]}, to_apply=%add.1"),
        ("s32[-20]", "s32[-1]".replace("32", "1")),
        *(("7" * length, "1") for length in range(1, 19)),
        ("a2=" + "7" * 19, "a2=" + "7" * 19),
        ("a" + "3" * 50, "a" + "3" * 50),
        ("\u00e4\ud800 12", "\u00e4\ud800 1"),
    ],
)
def test_all_numbers_of_a_form_are_the_same(text, form):
    """Those that are too long for one of 64 bits stay: the grammar has to see them."""
    assert replace_numbers(text) == form


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        (', a=1, b="x, to_apply=%no"', ()),
        (", a=1, to_apply=%add.7", (("to_apply", "add.7"),)),
        (", condition=%c, body=%b.2", (("condition", "c"), ("body", "b.2"))),
        (", branch_computations={%f, %g.1}, a={1}", (("branch_computations", "f"), ("branch_computations", "g.1"))),
    ],
)
def test_what_attributes_call(text, found):
    assert read_called(text) == found


@pytest.mark.parametrize(
    "text",
    [
        ", a=1, a=2",
        ", a1=1, a2=2, a1=3",
        ", a",
        ", a=1 // b=2",
        ", a=1 /* , b=2 */",
        ", a='x, b=1'",
        ", window={size=x}",
        ", to_apply={ ROOT %x = f32[] parameter(0) }",
    ],
)
def test_attributes_that_are_read_with_their_line(text):
    assert read_called(text) is None


@pytest.mark.parametrize(
    ("text", "is_usual"),
    [
        (', backend_config={"a":{"b":["}"]}}', True),
        (", backend_config={}", True),
        (', backend_config="a"', True),
        (', backend_config={"a"}, b=1', False),
        (', backend_config={"a}', False),
        (', backend_config={"a":"/*"}', True),
    ],
)
def test_configurations(text, is_usual):
    assert (read_config(text) == text) is is_usual


@needs_corpus
@pytest.mark.parametrize("path", corpus_files(), ids=lambda path: path.name)
def test_both_ways_agree_on_the_corpus(path):
    text = path.read_bytes().decode()
    assert outcome(parse_module, text) == outcome(parse_whole, text)
