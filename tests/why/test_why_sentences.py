"""Sentences, notation and advice, from evidence written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.model import ReasonKind, SourceFrame
from hloscope.model.reason import AskedBy, Operation, Reason, Tensor
from hloscope.model.vocabulary import Kind
from hloscope.why.sentences import render_array, render_equations, render_sentence, suggest_changes

FRAME = (SourceFrame(file="model.py", line=7, function="layer", column=4),)
DOT = Operation(name="dot_general", op_name="jit(f)/dot_general", source=FRAME)


def tensor(name="W", letters=("D", "F"), sharding=(("Y",), ()), **facts) -> Tensor:
    shape = tuple(8 for _ in letters)
    return Tensor(name=name, named=True, element_type="bf16", shape=shape, letters=letters, sharding=sharding, **facts)


SUM = Reason(
    kind=ReasonKind.PARTIAL_SUM,
    axes=("Y",),
    moved=tensor("Out", ("B", "F"), (("X",), ()), partial_over=("Y",)),
    wanted=(("X",), ()),
    producer=DOT,
    operands=(tensor("In", ("B", "D"), (("X",), ("Y",))), tensor()),
    result=tensor("Out", ("B", "F"), (("X",), ())),
    summed=("D",),
    held_by=(AskedBy(axis="Y", by="argument", name="W", sharding="P('Y', None)"),),
    asked_by=(AskedBy(axis="Y", by="output", name="result", sharding="P('X', None)"),),
)
CONFLICT = Reason(
    kind=ReasonKind.OPERAND_CONFLICT,
    axes=("fsdp",),
    moved=tensor("w", ("D", "F"), (("fsdp",), ("tensor",)), argument="w"),
    wanted=((), ("tensor",)),
    dimensions=(0,),
    consumer=DOT,
    operand=1,
    operands=(tensor("x", ("B", "D"), (("fsdp",), ())), tensor("w", ("D", "F"), ((), ("tensor",)))),
    result=tensor("y", ("B", "F"), (("fsdp",), ("tensor",))),
    conflicting="B",
)


def test_a_partial_sum_reads_as_in_the_book(says):
    assert render_equations(SUM, Kind.ALL_REDUCE) == (
        "Out[B_X, F] {U_Y} = In[B_X, D_Y] *_D W[D_Y, F]",
        "Out[B_X, F] = AllReduce_Y(Out[B_X, F] {U_Y})",
    )
    says(render_sentence(SUM, Kind.ALL_REDUCE))


def test_a_conflict_names_both_sides(says):
    text = says(render_sentence(CONFLICT, Kind.ALL_GATHER))
    assert ("`w[D_fsdp, F_tensor]`" in text, "`x[B_fsdp, D]`" in text, "model.py:7" in text) == (True, True, True)
    assert render_equations(CONFLICT, Kind.ALL_GATHER) == (
        "w[D, F_tensor] = AllGather_fsdp(w[D_fsdp, F_tensor])",
        "y[B_fsdp, F_tensor] = x[B_fsdp, D] *_D w[D, F_tensor]",
    )


@pytest.mark.parametrize("change", [
    {"certain": False},
    {"in_loop": True},
    {"in_loop": True, "loop_invariant": True},
    {"rewritten_from": "all-reduce"},
    {"rewritten_from": "all-gather", "combined": 3},
    {"candidates": 2},
], ids=", ".join)  # fmt: skip
def test_doubts_loops_and_later_passes_are_told(says, change):
    plain = render_sentence(CONFLICT, Kind.ALL_GATHER)
    text = says(render_sentence(replace(CONFLICT, **change), Kind.ALL_GATHER))
    assert text == f"likely: {plain}" if change == {"certain": False} else text.startswith(plain)
    assert text != plain


def test_what_is_not_known_says_what_is_missing(says):
    unknown = Reason(kind=ReasonKind.UNKNOWN, missing="HLO text keeps no shardings")
    assert unknown.missing in says(render_sentence(unknown, Kind.ALL_TO_ALL))
    assert (suggest_changes(unknown), render_equations(unknown, Kind.ALL_TO_ALL)) == ((), ())


def test_every_kind_of_reason_has_a_sentence_and_what_only_code_can_change_has_advice(says):
    advised = {}
    for kind in ReasonKind:
        reason = replace(CONFLICT, kind=kind, missing="the program", loop_invariant=True)
        assert render_sentence(reason, Kind.ALL_GATHER)
        if found := suggest_changes(reason):
            advised[kind] = found
    assert set(advised) == {
        ReasonKind.OPERAND_CONFLICT,
        ReasonKind.NEEDS_WHOLE_DIMENSION,
        ReasonKind.INDEXED_IN_LOOP,
        ReasonKind.MERGED_DIMENSIONS,
        ReasonKind.NO_RULE,
    }
    says([change for changes in advised.values() for change in changes])


def test_a_reshard_of_the_program_itself_is_for_code_to_drop(says):
    asked = AskedBy(axis="fsdp", by="constraint", name=None, sharding="P('fsdp', None)")
    written = Operation(name="reshard", op_name="jit(f)/reshard", source=())
    reason = replace(CONFLICT, kind=ReasonKind.CONSTRAINT, consumer=written, asked_by=(asked,))
    (change,) = suggest_changes(reason)
    assert "P('fsdp', None)" in says(change)
    constraint = replace(written, name="sharding_constraint")
    assert suggest_changes(replace(reason, consumer=constraint)) == ()


def test_several_axes_and_sizes_without_letters():
    several = tensor("x", ("1024", "D"), (("data", "fsdp"), ()))
    assert render_array(several) == "x[1024_(data,fsdp), D]"
    assert (
        render_array(
            tensor(
                "result of add",
                ("D",),
                ((),),
            ),
            (),
        )
        != ""
    )


@given(st.lists(st.sampled_from("BDFSE"), unique=True, max_size=4), st.data())
def test_the_notation_holds_every_letter_and_every_axis_once(letters, data):
    axes = data.draw(st.lists(st.sampled_from(["X", "Y", "Z"]), unique=True))
    cut = [[] for _ in letters]
    for axis in axes if letters else []:
        cut[data.draw(st.integers(0, len(letters) - 1))].append(axis)
    text = render_array(tensor("T", tuple(letters), tuple(tuple(one) for one in cut)))
    entries = [entry for entry in text.removeprefix("T[").removesuffix("]").split(", ") if entry]
    assert [entry.partition("_")[0] for entry in entries] == letters
    assert sorted("".join(entry.partition("_")[2].strip("()").replace(",", "") for entry in entries)) == sorted(
        axes if letters else []
    )
