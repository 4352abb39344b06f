"""What is printed reads as the same module, here and in XLA."""

from __future__ import annotations

import pytest
from hlo_printer import print_module, quote, shape_text
from hlo_texts import BARE, MODULE, corpus_files, needs_corpus
from hypothesis import given
from hypothesis import strategies as st
from test_hlo_differential import INDEX, has_broken_sharding
from test_hlo_shortcut import TEXTS
from test_hlo_shortcut import facts as facts_with_lines

from hloscope.base.errors import HloParseError
from hloscope.hlo import HloModule, parse_module
from hloscope.hlo.grammar import unquote


def facts(module: HloModule) -> dict:
    """Everything that a module says but the lines, which printing changes."""
    found = facts_with_lines(module)
    found["computations"] = [(name, *rest) for name, _, *rest in found["computations"]]
    found["instructions"] = [(*start, *rest) for *start, _, a, b, c, d, e, f, g in found["instructions"]
                             for rest in [(a, b, c, d, e, f, g)]]  # fmt: skip
    return {**found, "truncated": module.truncated}


def read(text: str) -> HloModule | None:
    try:
        return parse_module(text)
    except HloParseError:
        return None


def check(text: str) -> str | None:
    """Reads, prints and reads again; returns what was printed, None for text that is no HLO."""
    module = read(text)
    if module is None:
        return None
    printed = print_module(module)
    again = parse_module(printed, name="printed")
    assert facts(again) == facts(module)
    assert print_module(again) == printed
    return printed


def filled_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if read(text) is not None])
def test_printed_text_reads_as_the_same_module(name):
    assert check(TEXTS[name]) is not None


def test_a_module_in_full():
    assert filled_lines(check(MODULE)) == filled_lines(MODULE)


def test_the_short_form_is_printed_long():
    assert check(BARE).splitlines()[2:7] == [
        "%add (x: f32[], y: f32[]) -> f32[] {",
        "  %x = f32[] parameter(0)",
        "  %y = f32[] parameter(1)",
        "  ROOT %sum = f32[] add(%x, %y)",
        "}",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "%r = f32[4] add(f32[4] %a, f32[4] %b)",
        "f32[4] add(f32[4], f32[4])",
        "%r = f32[4] add(%a, %b)",
        "ENTRY e { p = f32[] parameter(0) ROOT q = f32[] add(p, add(p, f32[] constant(1))) }",
        "ENTRY e { t = (f32[], (f32[], s32[])) parameter(0) ROOT q = f32[] add(t#0, t#1#0), a=1 }",
        "ENTRY e { p = f32[4]{:} parameter(0) ROOT q = f32[]{} negate(p) }",
        "ENTRY e { p = f32[4] parameter(0) ROOT q = reduce(p), to_apply={ a = f32[] parameter(0) } }",
        'HloModule m\na { p = f32[] parameter(0) }, execution_thread="a\'b"\nENTRY e { q = f32[] constant(1)',
    ],
)
def test_notations_with_implied_parts(text):
    assert check(text) is not None


@pytest.mark.parametrize(
    "shape",
    [
        "f32[]",
        "bf16[8,<=128,?]{2,1,0:T(8,128)(2,1)S(1)}",
        "s4[2,2]{1,0:T(*,128)L(16)#(u32)*(u8)E(4)S(5)SC(0:1,2)M(8)}",
        "pred[16,32]{1,0:S(3)SC(0:4)(1:8,16)}",
        "(f32[2]{0}, (token[], opaque[]), b(f32[4]{0:S(1)}), ())",
    ],
)
def test_shapes(shape):
    instruction = parse_module(f"ENTRY e {{ p = {shape} parameter(0) }}").entry.root
    assert shape_text(instruction.shape) == shape


@given(st.text())
def test_quoting(value):
    encodable = value.encode("utf-8", "replace").decode()
    assert unquote(quote(encodable)) == encodable


@needs_corpus
@pytest.mark.parametrize("path", corpus_files(), ids=lambda path: path.name)
def test_the_corpus_is_printed_so_that_it_and_xla_read_it(path):
    printed = check(path.read_bytes().decode())
    entry = INDEX.get(path.name)
    if printed is None or entry is None or not entry["accepted_by_xla"]:
        return
    if has_broken_sharding(parse_module(printed)):
        return
    hlo = pytest.importorskip("jaxlib._hlo")
    theirs = hlo.hlo_module_from_text(printed)
    counts = [len(list(computation.instructions())) for computation in theirs.computations()]
    original = hlo.hlo_module_from_text(path.read_bytes().decode())
    assert sorted(counts) == sorted(len(list(item.instructions())) for item in original.computations())
