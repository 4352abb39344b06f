"""Communication that users met and did not expect: the explanation names the array, the dimension, the axis, the line.

The programs are in `programs/known_cases.py`. What is asserted was read by a person beside the program.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.model import ReasonKind
from hloscope.model.vocabulary import Kind, Origin
from hloscope.why.sentences import suggest_changes

pytestmark = pytest.mark.tpu_compiler
SOURCE = (Path(__file__).parent / "programs" / "known_cases.py").read_text().splitlines()


def line_of(text: str) -> int:
    """The line of the programs that holds a text, counted from 1."""
    found = [number for number, line in enumerate(SOURCE, 1) if text in line]
    assert len(found) == 1
    return found[0]


def base(axes) -> set[str]:
    return {axis.partition(":")[0] for axis in axes}


def test_a_sharded_fft_names_the_transform_although_the_compiler_makes_products_of_it(says, explained):
    found = explained("known_cases.py:sharded_fft").collectives
    assert {one.kind for one in found} == {Kind.ALL_GATHER, Kind.ALL_REDUCE}
    for one in found:
        reason = one.reason
        assert (reason.kind, reason.certain) == (ReasonKind.NEEDS_WHOLE_DIMENSION, True)
        assert (reason.moved.name, reason.dimensions, base(reason.axes)) == ("signal", (1,), {"X"})
        assert (reason.consumer.name, reason.consumer.source[0].line) == ("fft", line_of("jnp.fft.fft(signal"))
    findings = [
        finding for finding in explained("known_cases.py:sharded_fft").findings if finding.rule == "lost-sharding"
    ]
    assert any("all-reduce" in finding.message or "over X:(1)4" in finding.message for finding in findings)
    says(found[-1].why)


def test_a_cumulative_sum_is_likely_the_reason_where_the_compiler_keeps_no_lines(says, explained):
    found = explained("known_cases.py:sharded_cumsum").collectives
    assert {one.kind for one in found} == {Kind.ALL_GATHER, Kind.COLLECTIVE_PERMUTE}
    for one in found:
        assert one.source == ()
        assert one.why.startswith("likely: `cumsum` (known_cases.py:")
        assert not any("edges" in change for change in suggest_changes(one.reason))
        assert (one.reason.moved.name, one.reason.dimensions, one.reason.axes) == ("values", (0,), ("X",))
        assert one.reason.consumer.source[0].line == line_of("jnp.cumsum(values")
    says(sorted({one.why for one in found}))


def test_a_grouped_convolution_gathers_images(explained):
    (one,) = explained("known_cases.py:grouped_convolution").collectives
    assert (one.kind, one.reason.kind) == (Kind.ALL_GATHER, ReasonKind.OPERAND_CONFLICT)
    assert (one.reason.moved.argument, base(one.reason.axes)) == ("images", {"X"})
    assert one.reason.moved.letters[:3] == ("N", "H", "W")
    assert one.reason.consumer.source[0].line == line_of("return jax.lax.conv_general_dilated(")
    assert [(asked.by, asked.name, asked.sharding) for asked in one.reason.held_by] == [
        ("argument", "images", "P(None, None, None, 'X')")
    ]


def test_a_vmapped_shuffle_sorts_along_the_sharded_dimension(explained):
    found = explained("known_cases.py:vmapped_shuffle").collectives
    assert {one.kind for one in found} == {Kind.ALL_TO_ALL}
    reasons = [one.reason for one in found]
    assert {reason.kind for reason in reasons} >= {ReasonKind.NEEDS_WHOLE_DIMENSION, ReasonKind.REQUESTED_OUTPUT}
    line = line_of("jax.vmap(jax.random.permutation)")
    assert all(one.reason.consumer is None or one.reason.consumer.source[0].line == line for one in found)
    sorted_rows = [reason for reason in reasons if reason.moved.name == "rows"]
    assert [(reason.consumer.name, reason.dimensions, reason.axes) for reason in sorted_rows] == [
        ("sort", (1,), ("X",))
    ]


def test_a_foreign_call_on_an_explicit_mesh_gets_everything(says, explained):
    (one,) = explained("known_cases.py:foreign_call").collectives
    line = line_of("jax.ffi.ffi_call(")
    assert f"`ffi_call` (known_cases.py:{line} in foreign_call)" in says(one.why)
    assert (one.reason.kind, one.reason.certain, one.origin) == (ReasonKind.NO_RULE, True, Origin.INSERTED)


def test_conflicting_shardings_come_with_the_rematerialization(says, explained):
    found = explained("known_cases.py:conflicting_shardings")
    (warning,) = found.rematerializations
    line = line_of("held = jax.lax.with_sharding_constraint")
    assert (warning.before, warning.after) == ("P(('Y', 'X'), None, None)", "P(None, 'X', 'Y')")
    assert (warning.op_name, warning.opcode) == ("jit(conflicting_shardings)/sharding_constraint", "copy")
    assert (warning.shape, warning.source[0].line) == ("f32[8,32,16]", line)
    assert warning.text.startswith("[SPMD] Involuntary full rematerialization. ")
    assert not any("rematerialization" in note for note in found.notes)
    gather = next(one for one in found.collectives if one.kind is Kind.ALL_GATHER)
    says(gather.why.removeprefix("likely: "), "all-gather")
    others = [one for one in found.collectives if one is not gather]
    assert {one.kind for one in others} == {Kind.COLLECTIVE_PERMUTE, Kind.ALL_TO_ALL}
    for one in others:
        assert f"(known_cases.py:{line} in conflicting_shardings)" in one.why
        assert f"{one.kind} over {', '.join(one.axes)}" in one.why
    says(sorted({one.why for one in others}), "others")


def test_an_argument_that_is_rematerialized_is_named_with_the_constraint_that_asks(says, explained):
    found = explained("known_cases.py:argument_in_two_orders")
    (warning,) = found.rematerializations
    line = line_of("return other * 2")
    assert (warning.op_name, warning.opcode, warning.shape) == ("held", "parameter", "f32[64,16,4]")
    assert (warning.before, warning.after) == ("P(None, 'X', 'Y')", "P(('Y', 'X'), None, None)")
    assert [frame.line for frame in warning.source] == [line]
    (one,) = found.collectives
    assert (one.reason.kind, [asked.by for asked in one.reason.asked_by]) == (ReasonKind.CONSTRAINT, ["constraint"])
    assert f"(known_cases.py:{line} in argument_in_two_orders)" in says(one.why)


def test_an_argument_that_is_rematerialized_on_its_way_out_is_named(explained):
    (warning,) = explained("known_cases.py:handed_out_in_another_order").rematerializations
    assert (warning.op_name, warning.opcode, warning.source) == ("held", "get-tuple-element", ())


@pytest.mark.parametrize(("target", "argument", "invariant"), [
    ("gather_in_scan", "layers", False),
    ("invariant_gather_in_scan", "weights", True),
])  # fmt: skip
def test_a_gather_in_a_scan_tells_whether_it_is_the_same_in_each_iteration(
    says, explained, target, argument, invariant
):
    (one,) = explained(f"known_cases.py:{target}").collectives
    reason = one.reason
    assert (one.kind, reason.kind, reason.certain) == (Kind.ALL_GATHER, ReasonKind.OPERAND_CONFLICT, True)
    assert (reason.moved.argument, reason.axes, reason.operand) == (argument, ("X",), 1)
    assert (reason.in_loop, reason.loop_invariant) == (True, invariant)
    says(one.why)
    assert [asked.name for asked in reason.asked_by] == ["x"]
