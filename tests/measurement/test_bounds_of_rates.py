"""What took at most a time went at least at a rate, on the page as in the text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from profile_examples import prediction_of, profile_of, written

import hloscope
from hloscope.measurement.model import CompareDocument
from hloscope.model.vocabulary import Bound

QUEUED = """HloModule jit_step, is_scheduled=true, num_partitions=4
ENTRY %main (a: f32[4096,4096], b: f32[4096,4096]) -> (f32[4096,4096], f32[16384,4096]) {
  %a = f32[4096,4096]{1,0:T(8,128)} parameter(0)
  %b = f32[4096,4096]{1,0:T(8,128)} parameter(1)
  %start = (f32[4096,4096]{1,0:T(8,128)}, f32[4096,4096]{1,0:T(8,128)}, u32[], u32[]) collective-permute-start(%a), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  %gather = f32[16384,4096]{1,0:T(8,128)} all-gather(%b), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
  %done = f32[4096,4096]{1,0:T(8,128)} collective-permute-done(%start)
  ROOT %t = (f32[4096,4096]{1,0:T(8,128)}, f32[16384,4096]{1,0:T(8,128)}) tuple(%done, %gather)
}
"""  # noqa: E501


def compared(folder) -> CompareDocument:
    return hloscope.compare(profile=written(profile_of(QUEUED, "v5e:2x2"), folder), slice="v5e:2x2")


def shown(page: str) -> str:
    return re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL))


@pytest.mark.process
def test_an_operation_that_waits_for_the_links_took_at_most_its_time(tmp_path):
    operation = prediction_of(QUEUED, "v5e:2x2").operations["main", "gather"]
    assert operation.time_us > operation.transfer_us * 1.1, "it waits for what is under way"
    gather = next(one for one in compared(tmp_path).programs[0].transfers if one.name == "gather")
    assert (gather.measured_bound, gather.measured_exposed_us) == (Bound.AT_MOST, gather.measured_us)
    assert gather.predicted_us < gather.measured_us


@pytest.mark.process
def test_its_rate_is_at_least_that_on_the_page_and_in_the_text(tmp_path):
    found = compared(tmp_path)
    (axis,), transfers = found.programs[0].axes, found.programs[0].transfers
    gather = next(one for one in transfers if one.name == "gather")
    text, page = found.report("text"), " ".join(shown(found.report("html")).split())
    assert axis.measured_bound is Bound.AT_LEAST
    for rate in (axis.measured_bytes_per_s, gather.measured_bytes_per_s):
        words = f"≥{rate / 1e9:.1f} GB"
        assert f"{words}/s" in text
        assert f"{words} /s" in page
    assert not re.search(r"≤[\d.]+ .?B ?/s", text + page)
    assert all("wait for earlier transfers" in words for words in (page, " ".join(text.split())))


@pytest.mark.process
def test_a_ratio_that_says_nothing_is_unknown(tmp_path):
    found = compared(tmp_path)
    program = found.programs[0]
    gather = next(one for one in program.transfers if one.name == "gather")
    for share, words in ((0.6, "≥×0.60"), (0.004, "unknown")):
        row = replace(gather, predicted_us=share * gather.measured_us)
        page = replace(found, programs=(replace(program, transfers=(row,)),)).report("html")
        assert words in shown(page)
        assert "≥×0.00" not in page
