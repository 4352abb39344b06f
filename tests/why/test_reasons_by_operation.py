"""One program for each reason; the sentence is tested in full, as a person read it."""

from __future__ import annotations

import jax
import pytest

from hloscope.model import ReasonKind, make_shapes

pytestmark = pytest.mark.tpu_compiler

KINDS = {
    "rolled": ReasonKind.HALO,
    "merged_dimensions": ReasonKind.MERGED_DIMENSIONS,
    "embedding": ReasonKind.PARTIAL_SUM,
    "another_output": ReasonKind.REQUESTED_OUTPUT,
    "constrained": ReasonKind.CONSTRAINT,
    "asked_in_explicit_mode": ReasonKind.PARTIAL_SUM,
    "authored": ReasonKind.AUTHORED,
}
LINES = {
    "rolled": "jnp.roll(rows",
    "merged_dimensions": ".reshape(512, 32)",
    "embedding": "table[tokens]",
    "constrained": "whole = jax.lax",
    "authored": "jax.lax.all_gather(",
}


@pytest.mark.words_of_jax("0.10.")
@pytest.mark.parametrize("name", KINDS)
def test_the_one_collective_is_explained(says, explained, root, name):
    (one,) = explained(f"operations.py:{name}").collectives
    source = (root / "tests/why/programs/operations.py").read_text().splitlines()
    line = next((n for n, text in enumerate(source, 1) if LINES.get(name, "?") in text), None)
    assert (one.reason.kind, one.reason.candidates) == (KINDS[name], 1)
    assert one.reason.certain or (name == "constrained" and not jax.__version__.startswith("0.10."))
    assert line is None or f"(operations.py:{line} in " in one.why
    says(one.why)


def test_two_collectives_on_one_line_have_two_reasons(explained):
    found = explained("operations.py:row_sums").collectives
    assert {(one.kind.value, one.reason.kind) for one in found} == {
        ("all-gather", ReasonKind.REQUESTED_OUTPUT),
        ("all-reduce", ReasonKind.PARTIAL_SUM),
    }
    (reduction,) = [one for one in found if one.kind.value == "all-reduce"]
    assert (reduction.reason.operands[0].name, reduction.reason.dimensions) == ("table", (1,))
    assert reduction.reason.consumer.name == "div"


def test_the_array_that_the_partitioner_chose_is_named_not_the_one_that_shardy_would_move(explained):
    (one,) = explained("operations.py:operands_disagree").collectives
    assert (one.reason.moved.name, one.reason.dimensions) == ("x", (1,))
    assert (one.operand_shapes, one.result_shapes) == (make_shapes("bf16[512,128]"), make_shapes("bf16[512,512]"))


def test_a_sort_names_its_operand_and_its_output(explained):
    found = explained("operations.py:sorted_along").collectives
    kinds = sorted((one.reason.kind.value, one.reason.moved.name) for one in found)
    assert kinds == [
        ("needs-whole-dimension", "result of iota"),
        ("needs-whole-dimension", "rows"),
        ("requested-output", "Out"),
    ]
