import dataclasses
import re

import pytest

from hloscope.base.errors import SliceError
from hloscope.tpu.chips import CHIPS, find_chip, find_nearest_chips
from hloscope.tpu.generation import Chip


def test_generations_are_listed_oldest_first() -> None:
    assert [entry.name for entry in CHIPS] == ["v2", "v3", "v4", "v5e", "v5p", "v6e", "v7x"]


def test_every_spelling_names_one_generation() -> None:
    spellings = [spelling for entry in CHIPS for spelling in (entry.name, *entry.aliases)]
    assert len(spellings) == len(set(spellings))
    for entry in CHIPS:
        for spelling in (entry.name, *entry.aliases, entry.device_kind, entry.topology_prefix):
            assert find_chip(spelling) is entry
            assert find_chip(f" {spelling.upper()} ") is entry


@pytest.mark.parametrize("entry", CHIPS, ids=lambda entry: entry.name)
def test_figures_are_consistent(entry: Chip) -> None:
    assert entry.cores_per_chip % entry.devices_per_chip == 0
    assert entry.hbm_bytes == entry.hbm_bytes_per_device * entry.devices_per_chip
    assert 0.9 < entry.usable_hbm_bytes_per_device / entry.hbm_bytes_per_device < 1
    assert entry.ici_links == 2 * entry.torus_dimensions
    assert all(len(shape) == entry.torus_dimensions for shape in entry.slice_shapes)
    for field in dataclasses.fields(entry):
        value = getattr(entry, field.name)
        assert value is None or not isinstance(value, int | float) or value is False or value > 0, field.name


@pytest.mark.parametrize(
    ("name", "devices", "hbm_gib", "flops"),
    [
        ("v2", 2, 16, 46e12),
        ("v3", 2, 32, 123e12),
        ("v4", 1, 32, 275e12),
        ("v5e", 1, 16, 197e12),
        ("v5p", 1, 96, 459e12),
        ("v6e", 1, 32, 918e12),
        ("v7x", 2, 192, 2307e12),
    ],
)
def test_published_figures(name: str, devices: int, hbm_gib: int, flops: float) -> None:
    entry = find_chip(name)
    assert (entry.devices_per_chip, entry.hbm_bytes, entry.bf16_flops_per_s) == (devices, hbm_gib * 2**30, flops)


def test_the_clock_of_v5e_reproduces_the_measured_fusion() -> None:
    assert 334109 / find_chip("v5e").clock_hz * 1e6 == pytest.approx(222.8, rel=1e-3)


def test_unknown_generation(says) -> None:
    with pytest.raises(SliceError) as caught:
        find_chip("v5x")
    assert '"v5x"' in caught.value.what
    assert "v2, v3, v4, v5e, v5p, v6e, v7x" in caught.value.why
    assert re.findall(r"v\w+", caught.value.fix) == ["v5e", "v5p", "v7x"]
    says(caught)


def test_nothing_near_is_no_guess() -> None:
    assert find_nearest_chips("h100") == ()
    with pytest.raises(SliceError) as caught:
        find_chip("h100")
    assert caught.value.fix is None
