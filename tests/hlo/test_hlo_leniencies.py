"""What XLA refuses and is read here, and the reverse: all of it, with XLA as the judge where it is installed."""

from __future__ import annotations

import pytest

from hloscope.base.errors import HloParseError
from hloscope.hlo import parse_module

HEAD = "HloModule m\nENTRY e {\n  p = f32[2]{0} parameter(0)\n"


def module(line: str, header: str = "") -> str:
    return f"HloModule m{header}\nENTRY e {{\n  p = f32[2]{{0}} parameter(0)\n  ROOT {line}\n}}\n"


READ_HERE = {
    "an unknown attribute": module("r = f32[2] negate(p), new_thing={1,2}"),
    "an attribute of another opcode": module("r = f32[2] negate(p), dimensions={0}"),
    "a required attribute is missing": module("r = f32[2] transpose(p)"),
    "an unknown opcode": module("r = f32[2] frobnicate(p)"),
    "an unknown word for a value": module("r = pred[2] compare(p, p), direction=UP"),
    "an unknown header attribute": module("r = f32[2] negate(p)", ", new_thing=1"),
    "an unknown element type": module("r = f7[2] convert(p)"),
    "an alias without an index": module("r = f32[2] negate(p)", ", input_output_alias={ {}: 0 }"),
    "an alias of an unknown kind": module("r = f32[2] negate(p)", ", input_output_alias={ {}: (0, {}, USER) }"),
    "an empty layout": module("r = f32[]{} constant(1)"),
    "layout items in another order": module("r = f32[2]{0:S(1)T(2)} copy(p)"),
    "another number of operands": module("r = f32[2] add(p, p, p)"),
    "an operand's shape that does not fit": module("r = f32[2] negate(f32[3] p)"),
    "a literal that does not fit": module("r = u4[3]{0} constant({1, 99})"),
    "a name and its equal sign in one": module("r= f32[2] negate(p)"),
    "a control predecessor that is nowhere": module("r = f32[2] negate(p), control-predecessors={q}"),
    "a bare word as frontend attribute": module("r = f32[2] negate(p), frontend_attributes={a=b}"),
    "an unknown metadata entry": module("r = f32[2] negate(p), metadata={new_thing=1}"),
    "mesh names without quotes": module("r = f32[2] negate(p), sharding={mesh[a=2], [{a}]}"),
    "a sharding that cannot be read": module("r = f32[2] negate(p), sharding={what}"),
    "groups that cannot be read": module("r = f32[2] all-gather(p), replica_groups={{0,x}}, dimensions={0}"),
    "a signature without header": "%f (p: f32[2]) -> f32[2] {\n  ROOT %p = f32[2]{0} parameter(0)\n}\n",
    "a lone instruction without a name": "negate(f32[2] %p)",
    "a lone instruction without shapes": "%r = f32[2] add(%p, %q)",
    "a text that is cut off": f"HloModule m\nf {{\n  x = f32[] parameter(0)\n}}\n\n{HEAD[12:]}",
}

REFUSED_HERE = {
    "an undefined operand with an opcode's name, which XLA drops": module("r = (f32[2]) tuple(p, dot)"),
    "a concatenation of nothing that has a name": module("r = f32[2] concatenate(f32[2]), dimensions={0}"),
    "tokens that nothing parts": f"{HEAD}  q = u32[] iota(), iota_dimension=0r = f32[2] copy(p)\n}}",
    "a layout item that is not closed": module("r = f32[2]{0:T(2} copy(p)"),
    "more than a hundred levels": module(f'r = {"(" * 101}f32[2]{")" * 101} custom-call(p), custom_call_target="x"'),
}


def is_read_by_xla(text: str) -> bool:
    hlo = pytest.importorskip("jaxlib._hlo")
    try:
        hlo.hlo_module_from_text(text)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("name", READ_HERE)
def test_what_is_read_though_xla_refuses_it(name):
    found = parse_module(READ_HERE[name])
    assert found.computations
    assert found.truncated is (name == "a text that is cut off")
    assert not is_read_by_xla(READ_HERE[name])


@pytest.mark.parametrize("name", REFUSED_HERE)
def test_what_is_refused_though_xla_reads_it(name):
    with pytest.raises(HloParseError):
        parse_module(REFUSED_HERE[name])
    assert is_read_by_xla(REFUSED_HERE[name])
