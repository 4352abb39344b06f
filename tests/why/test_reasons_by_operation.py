"""One program for each reason; the sentence is tested in full, as a person read it."""

from __future__ import annotations

import pytest

from hloscope.analysis.model import ReasonKind

pytestmark = pytest.mark.tpu_compiler

SENTENCES = {
    "rolled": (
        ReasonKind.HALO,
        "`concatenate` (operations.py:{} in rolled) needs other devices' elements along dimension 0 (1) of "
        "`part_of_rows[1_X, 256]`, which is sharded over X: collective-permute over X",
    ),
    "merged_dimensions": (
        ReasonKind.MERGED_DIMENSIONS,
        "`blocks[8, 64_Y, 32]` is sharded along dimension 1 (64) over Y, and `reshape` (operations.py:{} in "
        "merged_dimensions) merges it into a dimension that cannot keep this sharding: all-gather over Y",
    ),
    "embedding": (
        ReasonKind.PARTIAL_SUM,
        "`gather` (operations.py:{} in embedding) looks up along dimension 0 (50000) of `table[50000_Y, 256]`, "
        "sharded over Y, so each device holds a partial sum; the requested output P('X', None) is replicated over Y: "
        "all-reduce over Y",
    ),
    "another_output": (
        ReasonKind.REQUESTED_OUTPUT,
        "`Out[512_X, 1024]` is computed as P('X', None), and the requested output is P(None, 'X'): all-to-all over X",
    ),
    "constrained": (
        ReasonKind.CONSTRAINT,
        "the sharding constraint P('X', None) (operations.py:{} in constrained) asks for another sharding than that of "
        "`whole[512_X, 1024_Y]`: all-gather over Y",
    ),
    "asked_in_explicit_mode": (
        ReasonKind.PARTIAL_SUM,
        "contracting dimension D of `x[B_X, D_Y]` and `w[D_Y, F]` is sharded over Y, so each device holds a partial "
        "sum; the requested output P('X', None) is replicated over Y: all-reduce over Y",
    ),
    "authored": (
        ReasonKind.AUTHORED,
        "written by the user: `all_gather` (operations.py:{} in step) over Y",
    ),
}
LINES = {
    "rolled": "jnp.roll(rows",
    "merged_dimensions": ".reshape(512, 32)",
    "embedding": "table[tokens]",
    "constrained": "whole = jax.lax",
    "authored": "jax.lax.all_gather(",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_the_one_collective_is_explained(explained, root, name):
    (one,) = explained(f"operations.py:{name}").collectives
    source = (root / "tests/why/programs/operations.py").read_text().splitlines()
    line = next((n for n, text in enumerate(source, 1) if LINES.get(name, "?") in text), None)
    kind, sentence = SENTENCES[name]
    assert one.why == sentence.format(line)
    assert (one.reason.kind, one.reason.certain, one.reason.candidates) == (kind, True, 1)


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
    assert (one.operand_shapes, one.result_shapes) == (("bf16[512,128]",), ("bf16[512,512]",))


def test_a_sort_names_its_operand_and_its_output(explained):
    found = explained("operations.py:sorted_along").collectives
    kinds = sorted((one.reason.kind.value, one.reason.moved.name) for one in found)
    assert kinds == [
        ("needs-whole-dimension", "result of iota"),
        ("needs-whole-dimension", "rows"),
        ("requested-output", "Out"),
    ]
