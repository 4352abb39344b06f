"""Whether reason, sentence and notation of a collective tell one story: that of its kind."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from sampled import every_other
from true_reasons import each

import hloscope
from hloscope.model import ReasonKind
from hloscope.model.reason import Operation, Reason, Tensor
from hloscope.model.vocabulary import REDUCING, Kind
from hloscope.why.sentences import render_equations, render_sentence
from hloscope.why.stage import reconcile_reason

HERE = Path(__file__).parent
SEEDS = json.loads((HERE / "goldens" / "seed_explanations.json").read_text())
MOVES = {
    "AllGather": ("all-gather",),
    "AllReduce": ("all-reduce",),
    "ReduceScatter": ("reduce-scatter",),
    "AllToAll": ("all-to-all",),
    "Permute": ("collective-permute",),
}
WINDOWED = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
MOVES_NOTHING = {"wide_layer.py:masks"}
TOLD_ELSEWHERE = {"train_step.py:train_step"}
"""It takes half a minute to compile, and has a test of its own."""


def own_programs():
    """`file.py:function` of every program of this room."""
    for file in sorted((HERE / "programs").glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any("target(" in ast.unparse(one) for one in node.decorator_list):
                yield f"{file.name}:{node.name}"


def check_sentence(kind, why):
    """What a sentence may say of a collective; one that realigns what another leaves tells the other's story."""
    if "realigns the padded shards" in why:
        assert kind is Kind.COLLECTIVE_PERMUTE
        return
    if "holds a partial" in why:
        does = kind in REDUCING
        made_of_one = kind is Kind.COLLECTIVE_PERMUTE and "rewritten from the partitioner's reduce-scatter" in why
        of_parts = kind is Kind.ALL_GATHER and "which every device then combines itself" in why
        assert does or made_of_one or of_parts, why
    if re.search(r"needs it replicated|passes it all", why) and "one of several steps" not in why:
        assert kind in (Kind.ALL_GATHER, *REDUCING) or "rewritten from the partitioner's all-gather" in why, why
    is_sum = re.search("(holds|is) a partial", why) is not None
    if kind in REDUCING and not is_sum and not why.startswith(("likely", "not known")):
        others = ("with zeros from the devices that lack them", "the user", "is summed there")
        assert any(words in why for words in others), why


def check_equations(kind, told, windowed=False):
    """Each array has every letter once, each product sums over what its result lacks, and the kind does what it can."""
    for equation in told:
        for array in re.findall(r"\w\[([^\[\]']*)\]", equation):
            letters = [entry.partition("_")[0] for entry in array.split(", ")]
            named = [one for one in letters if one.isalpha()]
            assert len(named) == len(set(named)), equation
        used = [name for name in MOVES if f"{name}_" in equation]
        assert windowed or all(kind.value in MOVES[name] for name in used), equation
        product = re.match(r"\S+\[(?P<result>[^\[\]]*)\].* = .* \*_(?P<summed>[A-Za-z]+) ", equation)
        if product is not None:
            kept = [entry.partition("_")[0] for entry in product["result"].split(", ")]
            assert product["summed"] not in kept, equation


def test_there_are_stories_to_check():
    assert sum(map(len, SEEDS.values())) > len(SEEDS) > 20


@pytest.mark.parametrize("target", SEEDS)
def test_the_seeds_tell_one_story(target):
    assert SEEDS[target]
    for one in SEEDS[target]:
        windowed = any(f"rewritten from the partitioner's {kind}" in one["why"] for kind in WINDOWED)
        check_sentence(Kind(one["kind"]), one["why"])
        check_equations(Kind(one["kind"]), one["notation"], windowed)


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(
    "target", every_other(each(target for target in own_programs() if target not in TOLD_ELSEWHERE))
)
def test_the_programs_of_this_room_tell_one_story(explained, target):
    collectives = explained(target).collectives
    assert bool(collectives) is (target not in MOVES_NOTHING)
    for one in collectives:
        check_sentence(one.kind, one.why)
        check_equations(one.kind, render_equations(one.reason, one.kind), one.reason.rewritten_from in WINDOWED)


HLO = """HloModule m, num_partitions=8

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}}

ENTRY main {{
  p = {operand} parameter(0)
  ROOT c = {result} {kind}(p), channel_id=1, replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}, {rest}, \
metadata={{op_name="jit(f)/{name}"}}
}}
"""
MESH = {"X": 2, "Y": 4}
DOT = Operation(name="dot_general", op_name="jit(f)/dot_general", source=())


def collective(kind, operand, result, name="dot_general"):
    rest = {
        "all-gather": "dimensions={0}, use_global_device_ids=true",
        "all-to-all": "dimensions={0}",
        "reduce-scatter": "dimensions={0}, to_apply=add, use_global_device_ids=true",
    }[kind]
    (found,) = hloscope.analyze_text(
        HLO.format(operand=operand, result=result, kind=kind, rest=rest, name=name), mesh=MESH
    ).collectives
    return found


def tensor(name, letters, shape, sharding, **facts):
    return Tensor(name=name, named=True, element_type="f32", shape=shape, letters=letters, sharding=sharding, **facts)


PARTIAL = tensor("y", ("B", "F"), (16, 32), ((), ()), partial_over=("Y",))
SUM = Reason(
    kind=ReasonKind.PARTIAL_SUM,
    axes=("Y",),
    moved=PARTIAL,
    wanted=((), ()),
    producer=DOT,
    operands=(tensor("x", ("B", "D"), (16, 64), ((), ("Y",))), tensor("w", ("D", "F"), (64, 32), (("Y",), ()))),
    result=PARTIAL,
    summed=("D",),
)


def test_parts_that_are_gathered_are_told_as_parts(says):
    found = reconcile_reason(SUM, [collective("all-gather", "f32[1,16,32]", "f32[4,16,32]")], MESH)
    assert found == SUM
    says(render_sentence(found, Kind.ALL_GATHER))
    assert render_equations(found, Kind.ALL_GATHER)[1] == "y[B, F] = dot_general(AllGather_Y(y[B, F] {U_Y}))"


@pytest.mark.parametrize(("kind", "operand", "result"), [
    ("all-gather", "f32[5,3]", "f32[20,3]"),
    ("all-gather", "f32[16,32]", "f32[64,32]"),
    ("all-to-all", "f32[16,32]", "f32[16,32]"),
])  # fmt: skip
def test_what_is_neither_is_told_without_an_array(says, kind, operand, result):
    found = reconcile_reason(SUM, [collective(kind, operand, result)], MESH)
    assert (found.kind, found.certain, found.moved) == (ReasonKind.PARTITIONERS_CHOICE, False, None)
    text = says(render_sentence(found, Kind(kind)))
    assert (text.startswith("likely: "), text.endswith(f": {kind} over Y")) == (True, True)
    assert render_equations(found, Kind(kind)) == ()


SCATTER = Operation(name="scatter-add", op_name="jit(f)/scatter-add", source=())
CONFLICT = Reason(
    kind=ReasonKind.OPERAND_CONFLICT,
    certain=False,
    axes=("Y",),
    moved=tensor("rows", ("B", "D"), (16, 64), (("Y",), ())),
    dimensions=(0,),
    consumer=SCATTER,
    operand=2,
    operands=(),
    result=tensor("table", ("V", "D"), (128, 64), ((), ("Y",))),
    conflicting="D",
)


def test_an_all_to_all_that_shardy_asks_for_nowhere_names_no_array():
    found = reconcile_reason(CONFLICT, [collective("all-to-all", "f32[4,4,16]", "f32[4,4,16]", "scatter-add")], MESH)
    assert (found.kind, found.certain, found.moved) == (ReasonKind.PARTITIONERS_CHOICE, False, None)


@pytest.mark.parametrize(("element_type", "operand"), [("i32", "f32[4,64]"), ("f32", "f32[3,5]")])
def test_an_array_of_another_type_or_shape_is_not_what_a_choice_of_the_partitioner_moves(element_type, operand):
    moved = replace(CONFLICT.moved, element_type=element_type)
    choice = replace(CONFLICT, kind=ReasonKind.PARTITIONERS_CHOICE, moved=moved)
    result = operand.replace("[", "[4,")
    assert reconcile_reason(choice, [collective("all-gather", operand, result)], MESH).moved is None
    kept = replace(choice, moved=CONFLICT.moved)
    assert reconcile_reason(kept, [collective("all-gather", "f32[4,64]", "f32[16,64]")], MESH) is kept


def test_one_of_several_steps_is_told_as_one_and_claims_no_result(says):
    asked = Reason(
        kind=ReasonKind.CONSTRAINT,
        axes=("Y",),
        moved=tensor("x", ("A", "B"), (16, 64), (("X",), ("Y",))),
        wanted=(("Y", "X"), ()),
        dimensions=(0, 1),
    )
    for kind in (Kind.ALL_TO_ALL, Kind.COLLECTIVE_PERMUTE):
        assert f": {kind} over Y" in says(render_sentence(asked, kind), kind.value)
        assert render_equations(asked, kind) == ()
    whole = replace(asked, wanted=(("X", "Y"), ()))
    assert says(render_sentence(whole, Kind.ALL_TO_ALL), "whole").endswith(": all-to-all over Y")
    assert render_equations(whole, Kind.ALL_TO_ALL) == ("x[A_(X,Y), B] = AllToAll_Y(x[A_X, B_Y])",)
