"""Training steps of 4 and of 32 layers and a forward pass, compiled for 16 chips, where there is a corpus of them.

Every collective of a real step must get its axes, its executions and its bytes. The layers are unrolled, so each kind
and size must occur so many times per layer, which no miscount in one place would keep.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

import hloscope

CORPUS = os.environ.get("HLOSCOPE_CORPUS")
STEPS = ("tpu_F1", "tpu_L4", "tpu_L32")
MESH = {"data": 4, "model": 4}
THERE = CORPUS is not None and all((Path(CORPUS) / f"{name}.hlo").exists() for name in STEPS)
pytestmark = pytest.mark.skipif(not THERE, reason="HLOSCOPE_CORPUS names no folder with training steps")


@pytest.fixture(scope="module")
def texts():
    return {name: (Path(CORPUS) / f"{name}.hlo").read_text(encoding="utf-8") for name in STEPS}


@pytest.fixture(scope="module")
def analyses(texts):
    return {name: hloscope.analyze_text(text, name=f"{name}.hlo", mesh=MESH) for name, text in texts.items()}


@pytest.mark.parametrize("name", STEPS)
def test_every_collective_gets_axes_executions_and_bytes(analyses, name):
    found = analyses[name]
    assert found.unmodelled == ()
    assert found.totals.bound == "exact"
    assert found.collectives
    for one in found.collectives:
        both = [("data", "model")] if one.kind == "collective-permute" else []
        assert one.axes in [("data",), ("model",), *both]
        assert (one.executions, one.executions_bound) == (1, "exact")
        assert one.payload_bytes > 0
        assert one.wire_bytes > 0
        assert one.kind != "opaque"


def printed(text, opcode):
    """The lines that hold an opcode, plain or as a start."""
    return re.findall(rf"^.* = .* {opcode}(?:-start)?\(.*$", text, re.MULTILINE)


@pytest.mark.parametrize("name", STEPS)
def test_the_records_are_the_lines_that_start_something(texts, analyses, name):
    """Continuations of an asynchronous gather start nothing, and a fused all-reduce may be a reduce-scatter."""
    text = texts[name]
    kinds = Counter(one.kind.value for one in analyses[name].collectives)
    gathers = [line for line in printed(text, "all-gather") if "chain_id" not in line]
    assert kinds["all-gather"] == len(gathers) + text.count('custom_call_target="AsyncCollectiveStart"')
    assert kinds["all-reduce"] + kinds["reduce-scatter"] == len(printed(text, "all-reduce"))
    assert kinds["reduce-scatter"] == text.count("calls=%all-reduce-scatter")
    assert kinds["collective-permute"] == len(printed(text, "collective-permute"))
    assert kinds["all-to-all"] == len(printed(text, "all-to-all"))


@pytest.mark.parametrize("name", ["tpu_L4", "tpu_L32"])
def test_reduce_scatters_are_found_where_the_text_names_none(texts, analyses, name):
    assert printed(texts[name], "reduce-scatter") == []
    scattered = [one for one in analyses[name].collectives if one.kind == "reduce-scatter"]
    assert scattered
    for one in scattered:
        assert one.wire_bytes == one.payload_bytes * 3 // 4


def test_eight_times_the_layers_are_eight_times_the_collectives_of_a_layer(analyses):
    few, many = (Counter(row(one) for one in analyses[name].collectives) for name in ("tpu_L4", "tpu_L32"))
    per_layer = {}
    for key in {*few, *many}:
        more = many[key] - few[key]
        assert more % 28 == 0 or few[key] == 0 or many[key] == 0, key
        per_layer[key] = more // 28
        assert few[key] >= 4 * per_layer[key], key
    assert sum(per_layer.values()) > 40


def row(one):
    return one.kind, one.axes, one.payload_bytes
