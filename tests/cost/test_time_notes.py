"""What a predicted time says of the text that it was read from."""

import re

from cost_examples import BLOCK, HEADER, cycles, module_text, priced

from hloscope.model.vocabulary import Bound

ARGUMENT = f"%a = {BLOCK} parameter(0)"


def matmul_text(count, element_type="bf16"):
    array = f"{element_type}[4096,4096]{{1,0:T(8,128)(2,1)}}"
    dot = f"convolution(%a, %a), dim_labels=bf_io->bf, {cycles(count)}"
    return f"{HEADER}\nENTRY %e {{\n  %a = {array} parameter(0)\n  ROOT %d = {array} {dot}\n}}\n"


def about_generation(text, slice_name):
    return [note for note in priced(text, slice_name).time.notes if "generation" in note]


def test_text_for_another_generation_is_noticed_by_its_matmuls(says):
    v5e = matmul_text(1_083_000)  # as libtpu prints it for v5e
    assert about_generation(v5e, "v5e:2x4") == []
    (note,) = about_generation(v5e, "v6e:2x4")
    assert re.findall(r"likely|\w+(?= generation)|\d+%|v\de?", says(note, "slower")) == [
        "likely",
        "slower",
        "24%",
        "v6e",
    ]
    (note,) = about_generation(v5e, "v2:2x2")
    assert re.findall(r"likely|\w+(?= generation)|[\d.]+ times|v\de?", says(note, "faster")) == [
        *("faster", "3.9 times"),
        "v2",
    ]
    assert about_generation(matmul_text(1_083_000 * 10, "s32"), "v5e:2x4") == []


def test_text_for_a_sparse_core_is_not_for_v5e(says):
    text = module_text(
        f'{ARGUMENT}\n%s = (({BLOCK}), {BLOCK}) call-start(%a), async_execution_thread="sparsecore", to_apply=%c\n'
        f"ROOT %d = {BLOCK} call-done(%s)",
        before=f"%c (p: f32[1024,1024]) -> f32[1024,1024] {{\n  %p = {BLOCK} parameter(0)\n"
        f'  ROOT %r = {BLOCK} all-reduce(%p), replica_groups={{}}, to_apply=%sum\n}}, execution_thread="sparsecore"\n',
    )
    assert about_generation(text, "v6e:2x4") == []
    (note,) = about_generation(text, "v5e:2x4")
    assert re.findall("SparseCores|v5e", says(note)) == ["SparseCores", "v5e"]


def test_a_ragged_all_to_all_is_a_bound_from_above(says):
    numbers = "\n".join(f"%n{index} = s64[8] parameter({index})" for index in range(2, 6))
    found = priced(
        module_text(f"""
{ARGUMENT}
%b = {BLOCK} parameter(1)
{numbers}
ROOT %r = {BLOCK} ragged-all-to-all(%a, %b, %n2, %n3, %n4, %n5), replica_groups={{{{0,1,2,3,4,5,6,7}}}}
""")
    )
    assert found.time.bound is Bound.AT_MOST
    assert re.findall("ragged all-to-all|whole buffer", says(found.time.notes[-1])) == [
        "ragged all-to-all",
        "whole buffer",
    ]
