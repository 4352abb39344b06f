"""XLA's own parser as the judge, over a corpus of real texts."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from hlo_texts import corpus_files, needs_corpus

from hloscope.base.errors import HloParseError
from hloscope.hlo import parse_module

pytestmark = needs_corpus

CORPUS = Path(os.environ.get("HLOSCOPE_CORPUS", "."))
KEPT_BY_XLA = re.compile(r"-(?:start|update|done)$")
LARGEST = 4_000_000
"""Bytes: XLA prints a text back for each comparison, and its printer is slow."""


def index_of_corpus() -> dict[str, dict]:
    """What the corpus says of each file: whether XLA accepts it, and why not. Empty where it has no index."""
    entries = [json.loads(line) for path in CORPUS.rglob("index.jsonl") for line in path.read_text().splitlines()]
    return {entry["file"]: entry for entry in entries}


INDEX = index_of_corpus()
UNKNOWN_TO_THIS_XLA = {"sparsecore_late_operands.hlo", "sparsecore_calls.hlo"}


def stem(name: str) -> str:
    """A name without the numbers that XLA adds to make names unique in a module."""
    return re.sub(r"(?:\.\d+)+$", "", name)


def is_asynchronous(instruction) -> bool:
    """XLA reads `X-start` as `async-start` with a computation of its own, and prints what it likes of it."""
    return KEPT_BY_XLA.search(instruction.opcode) is not None


def groups_of(instruction):
    groups = instruction.replica_groups
    if groups is None or groups.text == "{}":
        return None
    return groups.contradiction or groups.groups(8)


def sharding_of(instruction):
    found = instruction.sharding
    return found and (found.kind, found.tile_dimensions, found.devices, found.last_tile_dims)


def facts(instruction):
    """What must be equal before and after XLA has read and printed a text."""
    return (
        stem(instruction.name),
        instruction.opcode,
        str(instruction.shape),
        len(instruction.operands),
        instruction.is_root,
        instruction.channel_id,
        instruction.tuple_index,
        instruction.parameter_number,
        instruction.custom_call_target,
        instruction.op_name,
        instruction.source_target_pairs,
        len(instruction.called),
        groups_of(instruction),
        sharding_of(instruction),
    )


def comparable(computation):
    return Counter(
        facts(item)
        for item in computation.instructions
        if not is_asynchronous(item)
        and item.opcode not in ("send", "recv")  # XLA infers their shapes, whatever the text says
        and "#" not in item.name
        and "unknown[]" not in str(item.shape)
    )


def accepted_files() -> list[Path]:
    return [
        path
        for path in corpus_files()
        if INDEX.get(path.name, {"accepted_by_xla": True})["accepted_by_xla"]
        and path.name not in UNKNOWN_TO_THIS_XLA
        and path.stat().st_size < LARGEST
    ]


def has_broken_sharding(module) -> bool:
    """XLA overruns its memory on some of these, so it is not asked."""
    try:
        for computation in module.computations:
            for instruction in computation.instructions:
                _ = instruction.sharding
    except HloParseError:
        return True
    return False


@pytest.mark.parametrize("path", accepted_files(), ids=lambda path: path.name)
def test_what_xla_accepts_is_read_as_xla_reads_it(path):
    hlo = pytest.importorskip("jaxlib._hlo")
    text = path.read_bytes().decode()
    module = parse_module(text, name=path.name)
    if has_broken_sharding(module):
        pytest.skip("a sharding that does not hold its devices")
    theirs = hlo.hlo_module_from_text(text)
    printed = parse_module(theirs.to_string(), name=f"{path.name} as XLA prints it")

    names = Counter(stem(computation.name) for computation in theirs.computations())
    if "HloModule" in text:  # a lone instruction stands in a computation that XLA calls `_`
        assert Counter(stem(item.name) for item in module.computations if "#" not in item.name) <= names
    by_stem = Counter(stem(item.name) for item in printed.computations)
    for computation in module.computations:
        same = [item for item in printed.computations if stem(item.name) == stem(computation.name)]
        if by_stem[stem(computation.name)] == 1 and not any(map(is_asynchronous, computation.instructions)):
            assert comparable(computation) - comparable(same[0]) == Counter()


@pytest.mark.parametrize("name", sorted(name for name, entry in INDEX.items() if entry["why_not"] == "skew"))
def test_what_only_newer_versions_of_xla_accept_is_read(name):
    (path,) = CORPUS.rglob(name)
    assert parse_module(path.read_bytes().decode(), name=name).computations
