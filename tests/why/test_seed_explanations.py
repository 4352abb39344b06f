"""The seed programs' explanations beside a golden that a person read as sense: array, dimension, axis, line.

`pytest tests/why --update-goldens` writes the golden anew; read it before it is kept.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hloscope.why.notation import equations

pytestmark = pytest.mark.tpu_compiler
GOLDEN = Path(__file__).parent / "goldens" / "seed_explanations.json"
TARGETS = (
    "matmul.py:matmul",
    "matmul.py:matmul_shard_map",
    "matmul.py:matmul_explicit",
    "two_matmuls.py:two_matmuls",
    "ambiguous_einsum.py:sharded_columns",
    "ambiguous_einsum.py:sharded_columns_shard_map",
    "slice_and_average.py:slice_and_average_jit",
    "meshes.py:data_and_tensor_parallel",
    "meshes.py:dimension_over_two_axes",
    "collective_matmul.py:naive",
    "collective_matmul.py:collective",
    "mixture_of_experts.py:mixture_of_experts",
    "moe_two_axes.py:two_axes",
    "all_reduce_matmul.py:all_reduce_auto",
    "reduce_scatter_matmul.py:reduce_scatter_auto",
    "feed_forward.py:feed_forward_auto",
    "bidirectional_matmul.py:all_gather_auto",
)


def told(analysis) -> list[dict[str, object]]:
    """What is said of the collectives, each different thing once."""
    each = [
        {
            "kind": one.kind.value,
            "origin": one.origin.value,
            "why": one.why,
            "notation": equations(one.reason, one.kind),
        }
        for one in analysis.collectives
    ]
    unique = {json.dumps(one, sort_keys=True): one for one in each}
    return [json.loads(text) for text in sorted(unique)]


@pytest.mark.parametrize("target", TARGETS)
def test_the_explanation_is_the_one_that_was_read(explained, target, request):
    found = told(explained(target))
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if request.config.getoption("--update-goldens"):
        golden[target] = found
        GOLDEN.write_text(json.dumps(dict(sorted(golden.items())), indent=1) + "\n")
    assert golden[target] == found
    assert all(not one["why"].startswith(("likely", "not known")) for one in found)


def test_no_golden_is_left_over():
    assert set(json.loads(GOLDEN.read_text())) == set(TARGETS)
