"""Every program of the seeds, compiled ahead of time for v5e, against what its own file expects it to move."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jax
import pytest
from seed_index import FOLDER, files, programs

import hloscope
from hloscope.compile.loading import import_target
from hloscope.compile.target import find_attached_facts

NEW_LIBTPU = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)


def test_every_file_of_the_folder_is_in_the_index():
    assert sorted(files()) == sorted(
        path.stem for path in FOLDER.glob("*.py") if "PROGRAMS = (" in path.read_text() and path.stem != "seed_programs"
    )


SLOW = (
    "collective",
    "column_parallel_by_hand",
    "naive",
    "reduce_scatter_matmul_ring",
    "unsharded",
    "unsharded_shard_map",
)


def expected(program):
    new = [(m.payload_bytes_012 if NEW_LIBTPU and m.payload_bytes_012 else m.payload_bytes) for m in program.moves]
    return {(m.kind, m.axes, size): m.executions for m, size in zip(program.moves, new, strict=True)}


def moved(found):
    seen = Counter()
    for one in found.collectives:
        seen[one.kind, ",".join(one.axes), one.payload_bytes] += one.executions
    return seen


@pytest.mark.tpu_compiler
@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize(("file", "program"), list(programs(slow=SLOW)))
def test_what_a_seed_moves(file, program):
    target = f"{FOLDER / file}.py:{program.function}"
    if program.refused:
        with pytest.raises(hloscope.HloscopeError) as caught:
            hloscope.analyze(target)
        assert program.refused in str(caught.value)
        assert f"{file}.py:" in caught.value.where
        return
    found = hloscope.analyze(target)
    assert found.slice.name in ("v5e:4x2", "v5e:2x4", "v5e:1x1")
    assert moved(found) == expected(program)
    assert found.totals.bound == program.bound
    assert {finding.rule for finding in found.findings} == set(program.findings)
    assert all(FOLDER in {Path(frame.file).parent for frame in one.source} for one in found.collectives)


@pytest.mark.long
@pytest.mark.tpu_compiler
@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("file", [name for name in files() if name not in ("ambiguous_einsum", "moe_local")])
def test_the_first_program_of_a_file_moves_the_same_on_the_block_turned_round(file):
    (first, *_) = (one for one in programs() if one.values[0] == file)
    program = first.values[1]
    if program is None:
        pytest.skip("its library is not installed")
    target = f"{FOLDER / file}.py:{program.function}"
    turned = {"v5e:4x2": "v5e:2x4", "v5e:2x4": "v5e:4x2"}[find_attached_facts(import_target(target)).slice]
    assert moved(hloscope.analyze(target, slice=turned)) == expected(program)
