"""Texts that are cut off, and files of several modules."""

from __future__ import annotations

import re

import pytest
from hlo_texts import BARE, MODULE, mentions, message_of
from hypothesis import given
from hypothesis import strategies as st

from hloscope.base.errors import HloParseError
from hloscope.hlo import parse_module, parse_modules, select_module_text
from hloscope.hlo.parser import parse_whole

MODULE = MODULE.replace("->bf16[8,512]{1,0}}", "->(bf16[8,512]{1,0}, f32[])}")
FIRST_WHOLE = MODULE.index("%async_computation (")
SECOND_WHOLE = MODULE.index("ENTRY")


def whole_before(end):
    """The computations that are whole in the first `end` characters of MODULE."""
    thread = ', execution_thread="sparsecore"'
    ends = (MODULE.index("}\n\n%async") + 1, MODULE.index(thread) + len(thread), len(MODULE.rstrip()))
    names = ("region_0.1", "async_computation", "main.9")
    found = [name for name, border in zip(names, ends, strict=True) if border <= end]
    # A brace without the thread that may follow it is a whole computation as well.
    without_thread = MODULE[:end].rstrip().endswith(")\n}") or MODULE[:end].endswith("_id=2}\n}")
    return names[:2] if len(found) == 1 and without_thread and end > FIRST_WHOLE + 9 else tuple(found)


@given(st.integers(FIRST_WHOLE, len(MODULE) - 2))
def test_the_whole_computations_of_a_cut_text_are_read(end):
    for parse in (parse_module, parse_whole):
        module = parse(MODULE[:end])
        assert module.truncated
        assert tuple(computation.name for computation in module.computations) == whole_before(end)
        assert module.name == "jit_step"


def test_a_whole_text_is_not_truncated(module):
    assert not module.truncated
    assert module.outermost == (module.entry,)
    assert not parse_module(MODULE.rstrip()).truncated
    assert not parse_module(BARE).truncated


def test_entry_that_is_cut_off(says):
    module = parse_module(MODULE[: MODULE.index("%done =")], name="cut.hlo")
    with pytest.raises(HloParseError) as caught:
        _ = module.entry
    assert mentions(says(caught), "ENTRY %async_computation")
    assert caught.value.where == "cut.hlo:34:179"
    assert [computation.name for computation in module.outermost] == ["region_0.1", "async_computation"]
    assert not any(computation.is_entry for computation in module.computations)


def test_a_called_computation_is_not_outermost():
    text = "HloModule m\na {\n  p = f32[] parameter(0)\n}\n"
    module = parse_module(
        text + "b {\n  p = f32[] parameter(0)\n  c = f32[] call(p), to_apply=a\n}\n" + "ENTRY e {\n  p = f32["
    )
    assert [computation.name for computation in module.outermost] == ["b"]


def test_entry_before_the_cut_is_kept():
    body = "HloModule m\nENTRY e {\n  p = f32[] parameter(0)\n}\n"
    module = parse_module(body + "b {\n  p = f32[] par")
    assert module.truncated
    assert module.entry.name == "e"
    assert [computation.name for computation in module.computations] == ["e"]


def test_a_text_cut_between_computations_is_told_by_the_header():
    layout = "HloModule m, entry_computation_layout={(f32[4]{0}, s32[])->(f32[4]{0})}\n"
    helper = "a {\n  p = f32[] parameter(0)\n}\n"
    entry = "b {\n  p = f32[4]{0} parameter(0)\n  q = s32[] parameter(1)\n  t = (f32[4]{0}) tuple(p)\n}\n"
    assert parse_module(layout + helper).truncated
    assert not parse_module(layout + helper + entry).truncated
    assert not parse_module(layout.replace("->", "~") + helper).truncated
    assert not parse_module("HloModule m\n" + helper).truncated


@pytest.mark.parametrize(
    ("tail", "shown"),
    [
        ("}\n", ["unexpected", "`}`"]),
        ("b {\n  p = f32[] add(%q)\n}\n", ["%q", "%b"]),
        ("b {\n  p = f32[]{0 add(q)\n}\n", ["unexpected", "`add`"]),
        ("b {\n  p = f32[] parameter(0), a={\n  q = f32[] negate(p)\n}", ["%b", "line 5", "`{`"]),
        ("HloModule n\n", ["second module"]),
        ("b {\n  p = f32[] negate(\x00)\n}\n", ["unexpected", "U+0000"]),
    ],
    ids=["brace", "name", "shape", "attribute", "module", "character"],
)
def test_what_is_broken_is_not_taken_for_cut_off(says, tail, shown):
    text = "HloModule m\na {\n  p = f32[] parameter(0)\n}\n" + tail.replace("a={\n  q", "a={{\n  q")
    what = says(message_of(text)).splitlines()[0]
    assert re.findall(r"unexpected|`.+?`|%\w|line \d+|second module|U\+\d+", what)[: len(shown)] == shown


def test_a_large_cut_text_keeps_its_lines_quick():
    lines = "".join(f"  %r{index} = f32[] negate(%p)\n" for index in range(1000))
    text = "HloModule m\n%a (p: f32[]) -> f32[] {\n  %p = f32[] parameter(0)\n" + lines
    module = parse_module(text + "}\nENTRY " + text[text.index("%a") :].replace("%a", "%b"))
    assert [len(computation.instructions) for computation in module.computations] == [1001]
    assert module.truncated


SEVERAL = f"// a file of tests\n{MODULE}\n// -----\n\n{BARE}// -----\n  // nothing\n"


def test_several_modules():
    first, second = parse_modules(SEVERAL)
    assert (first.name, second.name) == ("jit_step", "bare")
    assert second.entry.line == SEVERAL[: SEVERAL.index("ENTRY main {")].count("\n") + 1
    assert second.entry.root.line == SEVERAL[: SEVERAL.index("ROOT reduce")].count("\n") + 1
    assert dict(second.entry.root.attributes) == {"dimensions": "{0}", "to_apply": "add"}
    assert [module.name for module in parse_modules(MODULE)] == ["jit_step"]


def test_several_modules_where_one_is_wanted(says):
    line = SEVERAL[: SEVERAL.index("HloModule bare")].count("\n") + 1
    what, *place, fix = message_of(SEVERAL).splitlines()
    assert mentions(what, "2 modules")
    assert place == [f"  --> f.hlo:{line}:1", "   | HloModule bare", "   | ^"]
    assert fix.endswith(": f.hlo#jit_step, f.hlo#bare")
    says([what, fix])


MANY = "HloModule one\nENTRY e { p = f32[] parameter(0) }\n"


def test_the_text_of_one_module_of_several_keeps_its_lines():
    text = select_module_text(SEVERAL, "bare", name="f.hlo")
    module = parse_module(text, name="f.hlo")
    assert module.name == "bare"
    assert module.entry.root.line == SEVERAL[: SEVERAL.index("ROOT reduce")].count("\n") + 1
    assert parse_module(select_module_text(SEVERAL, "1")).name == "jit_step"
    assert select_module_text(MANY, "one") == MANY


def test_modules_of_one_name_are_told_by_their_numbers(says):
    text = f"{MANY}// -----\n{MANY}// -----\nENTRY f {{ q = f32[] parameter(0) }}\n"
    assert message_of(text).splitlines()[-1].endswith(": f.hlo#1, f.hlo#2, f.hlo#3")
    assert parse_module(select_module_text(text, "3")).entry.line == 7
    with pytest.raises(HloParseError) as caught:
        select_module_text(text, "one", name="f.hlo")
    assert mentions(says(caught), '2 "one"')
    assert (caught.value.line, caught.value.column) == (4, 1)
    assert caught.value.fix.endswith(": f.hlo#1, f.hlo#2")


@pytest.mark.parametrize(("wanted", "offered"), [("bear", ["bare"]), ("4", ["f.hlo#jit_step", "f.hlo#bare"])])
def test_a_module_that_is_not_there(says, wanted, offered):
    with pytest.raises(HloParseError) as caught:
        select_module_text(SEVERAL, wanted, name="f.hlo")
    assert mentions(says(caught), f'"{wanted}"')
    assert re.findall(r"(?:f\.hlo#)?\b(?:jit_step|bare)\b", caught.value.fix) == offered


def test_a_long_list_of_modules_is_cut(says):
    text = "// -----\n".join(MANY.replace("one", f"m{number}") for number in range(12))
    fix = message_of(text).splitlines()[-1]
    assert f": {', '.join(f'f.hlo#m{number}' for number in range(8))} … " in fix
    assert " 4 " in says(fix)


def test_an_error_in_the_second_module_has_its_line_in_the_file():
    broken = SEVERAL.replace("add(x, y)", "add(x, z)")
    line = broken[: broken.index("add(x, z)")].count("\n") + 1
    with pytest.raises(HloParseError) as caught:
        parse_modules(broken, name="f.hlo")
    assert caught.value.line == line
    assert mentions(caught.value.what, "%z %add")
    late = parse_modules(SEVERAL.replace("dimensions={0}, to_apply=add", "sharding={x}, to_apply=add"))[1]
    with pytest.raises(HloParseError) as caught:
        _ = late.entry.root.sharding
    assert caught.value.line == late.entry.root.line


def test_no_module_at_all(says):
    with pytest.raises(HloParseError) as caught:
        parse_modules("")
    assert mentions(says(caught), "empty")
