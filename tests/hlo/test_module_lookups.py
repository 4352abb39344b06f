"""Looking things up in a module without making an object for every instruction."""

from __future__ import annotations

import gc

from hloscope.hlo import parse_module, pause_collector

TEXT = """HloModule m

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}

%fused (a: f32[4]) -> f32[4] {
  %a = f32[4] parameter(0)
  ROOT %neg = f32[4] negate(%a)
}

ENTRY %main (p: f32[4], q: f32[4]) -> f32[] {
  %p = f32[4] parameter(0)
  %q = f32[4] parameter(1), metadata={op_name="user"}
  %f = f32[4] fusion(%p), kind=kLoop, calls=%fused
  %m = f32[4] multiply(%f, %f)
  %zero = f32[] constant(0)
  ROOT %r = f32[] reduce(%m, %zero), dimensions={0}, to_apply=%sum
}
"""


def test_instructions_by_opcode_in_text_order():
    module = parse_module(TEXT)
    assert [one.name for one in module.with_opcodes(["negate", "parameter"])] == ["x", "y", "a", "neg", "p", "q"]
    assert module.with_opcodes(["tanh"]) == ()
    assert set(module.opcodes) == {"parameter", "add", "negate", "fusion", "multiply", "constant", "reduce"}


def test_an_instruction_is_one_object_however_it_is_found():
    module = parse_module(TEXT)
    [multiply] = module.with_opcodes(["multiply"])
    fusion = module.entry.instruction("f")
    assert multiply is module.entry.instructions[3]
    assert multiply.operands == (fusion, fusion)
    assert (multiply.operand(0), multiply.operand(1), multiply.operand(2)) == (fusion, fusion, None)
    assert fusion.users == (multiply,)
    assert module.entry.root.operand(0) is multiply
    assert multiply.users == (module.entry.root,)


def test_instructions_that_call():
    module = parse_module(TEXT)
    assert [one.name for one in module.entry.calling] == ["f", "r"]
    assert module.computation("sum").calling == ()


def test_words_anywhere_in_the_text():
    module = parse_module(TEXT)
    assert (module.mentions("op_name="), module.mentions("stack_frame_id=")) == (True, False)


def test_the_collector_is_left_as_it_was():
    with pause_collector():
        assert not gc.isenabled()
        with pause_collector():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_where_an_instruction_stands_among_the_operands_of_another():
    entry = parse_module(TEXT).entry
    multiply, fusion, reduce = entry.instruction("m"), entry.instruction("f"), entry.root
    assert multiply.positions_of(fusion) == [0, 1]
    assert (reduce.positions_of(multiply), reduce.positions_of(entry.instruction("zero"))) == ([0], [1])
    assert reduce.positions_of(fusion) == multiply.positions_of(multiply) == []
