"""Every program of the seeds beside its twin: the same numbers at a scaled size on eight simulated devices."""

from __future__ import annotations

import pytest
from sampled import every_other
from seed_index import FOLDER, programs

from hloscope.verification.job import Settings, VerificationJob
from hloscope.verification.running import run_verification

SLOW = (
    "data_tensor_and_pipeline_parallel",
    "feed_forward_linear",
    "feed_forward_overlapped",
    "reduce_scatter_auto",
    "row_parallel",
    "top_k_pipelined",
)
RUNNABLE = [one for one in programs(slow=SLOW) if one.values[1] is None or one.values[1].refused is None]


def place(file, name):
    return f"{FOLDER}/{name if '.py:' in name else f'{file}.py:{name}'}"


@pytest.mark.parametrize(("file", "program"), every_other(RUNNABLE))
def test_a_seed_computes_what_its_twin_does(file, program):
    job = VerificationJob(
        target=place(file, program.function),
        reference=place(file, program.reference),
        devices=8,
        settings=Settings(ranges=program.ranges, scale=program.scale),
    )
    found = run_verification(job)
    assert found.message == ""
    assert found.comparisons
    assert [one.wrong_shards for one in found.comparisons] == [()] * len(found.comparisons)
    assert found.agree
