"""The generation that a text was compiled for, guessed from the text alone: right, or not at all."""

from __future__ import annotations

import re

import pytest

from hloscope.app.analyzing import analyze_hlo
from hloscope.compile.hlo_files import read_hlo
from hloscope.cost.price import guess_slice
from hloscope.hlo import parse_module

NAIVE = "captured/collective_matmul.naive.jax-0.12.hlo"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (NAIVE, "v5e:2x4"),
        ("captured/collective_matmul.naive.jax-0.10.hlo", "v5e:2x4"),
        ("spellings/partitioned.scanned_gradients_v5p.jax-0.10.hlo.xz", "v5p:2x2x2"),
        ("spellings/partitioned.scanned_gradients_v6e.jax-0.12.hlo.xz", None),
        ("captured/matmul.matmul.jax-0.12.hlo", None),
        ("spellings/elsewhere.cpu_all_to_all_tuple.jax-0.12.hlo", None),
        ("spellings/elsewhere.data_parallel_over_slices.jax-0.10.hlo", None),
        ("spellings/by_hand.gpu_library_calls.hlo", None),
    ],
)
def test_guesses(root, file, name):
    found = guess_slice(parse_module(read_hlo(root / "fixtures" / file)))
    assert (found and found.slice.name) == name
    assert found is None or found.because


@pytest.mark.parametrize(("faster", "name"), [(1, "v5e:2x4"), (2, None), (4, None), (0.5, None), (0.25, None)])
def test_matmuls_of_another_density_are_no_v5e(root, faster, name):
    def scaled(match):
        return f"{match[1]}{max(1, round(int(match[2]) / faster))}"

    text = re.sub(r'("estimated_cycles":")(\d+)', scaled, read_hlo(root / "fixtures" / NAIVE))
    found = guess_slice(parse_module(text))
    assert (found and found.slice.name) == name


@pytest.mark.parametrize(
    ("mark", "name"),
    [("S(3)", "v4:2x2x2"), ("T(16,128)(2,1)", "tpu7x:2x2x1")],
)
def test_what_one_generation_alone_prints(mark, name):
    text = f"""HloModule m, num_partitions=8

ENTRY main {{
  ROOT p = bf16[16,128]{{1,0:{mark}}} parameter(0), backend_config={{"used_scoped_memory_configs":[]}}
}}
"""
    found = guess_slice(parse_module(text))
    assert found is not None
    assert found.slice.name == name
    assert guess_slice(parse_module(text.replace("num_partitions=8", "num_partitions=6"))) is None


def test_findings_and_what_the_user_says(root):
    text = read_hlo(root / "fixtures" / NAIVE)
    said, guessed, alone = (
        analyze_hlo(text, slice="v5e:2x4"),
        analyze_hlo(text, guesses=True),
        analyze_hlo(text),
    )
    assert guessed.slice is not None
    assert (guessed.slice.chosen_by, guessed.slice.name) == ("guess", "v5e:2x4")
    assert guessed.time is not None
    assert said.time is not None
    assert guessed.time.step_us == pytest.approx(said.time.step_us, rel=0.2)  # the order of the devices is another
    assert any("v5e is guessed from the text" in note for note in guessed.notes)
    assert {finding.rule for finding in guessed.findings} == {finding.rule for finding in alone.findings}
    assert alone.time is None
    other = analyze_hlo(text, slice="v6e:2x4", guesses=True)
    assert other.slice is not None
    assert other.slice.chosen_by == "user"


def test_no_guess_says_which_option_gives_times(root):
    found = analyze_hlo(read_hlo(root / "fixtures/captured/matmul.matmul.jax-0.12.hlo"), guesses=True)
    assert found.time is None
    assert any("--slice v5e:2x4" in note for note in found.notes)
