import re
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.base.errors import SliceError
from hloscope.tpu.chips import CHIPS, find_chip
from hloscope.tpu.slices import (
    Slice,
    find_fitting_slice,
    find_nearest_shapes,
    find_shape,
    find_smallest_slice,
    is_slice_shape,
    list_shapes,
    parse_slice,
)

ALL_BLOCKS = [(entry, shape) for entry in CHIPS for shape in list_shapes(entry)]


@pytest.mark.parametrize(
    ("text", "name", "chips", "devices"),
    [
        ("v5e:2x4", "v5e:2x4", 8, 8),
        ("v5e:4x2", "v5e:4x2", 8, 8),
        (" V5E : 2 x 4 ", "v5e:2x4", 8, 8),
        ("v5e-8", "v5e:2x4", 8, 8),
        ("v5e-1", "v5e:1x1", 1, 1),
        ("v5e-2x4", "v5e:2x4", 8, 8),
        ("v5litepod-8", "v5e:2x4", 8, 8),
        ("v5lite-8", "v5e:2x4", 8, 8),
        ("tpu-v5-lite-podslice-16", "v5e:4x4", 16, 16),
        ("v6e-8", "v6e:2x4", 8, 8),
        ("v6e-256", "v6e:16x16", 256, 256),
        ("v2-8", "v2:2x2", 4, 8),
        ("v3-8", "v3:2x2", 4, 8),
        ("v3-2048", "v3:32x32", 1024, 2048),
        ("v4-8", "v4:2x2x1", 4, 4),
        ("v4-128", "v4:4x4x4", 64, 64),
        ("v5p-8", "v5p:2x2x1", 4, 4),
        ("v5p-1536", "v5p:8x8x12", 768, 768),
        ("v5p-12288", "v5p:16x16x24", 6144, 6144),
        ("v5p:2x4x2", "v5p:2x4x2", 16, 16),
        ("tpu7x:2x2x1", "tpu7x:2x2x1", 4, 8),
        ("v7x:2x2x1", "tpu7x:2x2x1", 4, 8),
        ("7x:2x2x1", "tpu7x:2x2x1", 4, 8),
        ("tpu7x-8", "tpu7x:2x2x1", 4, 8),
        ("7x-128", "tpu7x:4x4x4", 64, 128),
        ("2*v5e:2x4", "2*v5e:2x4", 16, 16),
        ("2 * v5p-128", "2*v5p:4x4x4", 128, 128),
    ],
)
def test_names(text: str, name: str, chips: int, devices: int) -> None:
    parsed = parse_slice(text)
    assert (parsed.name, parsed.chip_count, parsed.device_count) == (name, chips, devices)
    assert parse_slice(parsed.name) == parsed


@pytest.mark.parametrize("text", ["cpu:8", "cpu-8", "CPU : 8"])
def test_simulated_devices(says, text: str) -> None:
    parsed = parse_slice(text)
    assert (parsed.is_attached, parsed.name, parsed.device_count, parsed.chip) == (False, "cpu:8", 8, None)
    assert not parsed.is_attached
    with pytest.raises(SliceError) as caught:
        _ = parsed.chip_count
    assert "cpu:8" in says(caught)


def test_attached_devices_are_for_jax_to_count(says) -> None:
    parsed = parse_slice(" Attached ")
    assert (parsed.name, parsed.is_attached) == ("attached", True)
    texts = set()
    for ask in (lambda: parsed.device_count, lambda: parsed.devices_per_slice):
        with pytest.raises(SliceError) as caught:
            ask()
        assert "jax.device_count()" in caught.value.fix
        texts.add(str(caught.value))
    says(sorted(texts))


@given(block=st.sampled_from(ALL_BLOCKS), count=st.integers(1, 4), seed=st.randoms())
def test_name_round_trip(block: tuple, count: int, seed) -> None:
    entry, shape = block
    turned = list(shape)
    seed.shuffle(turned)
    made = Slice(chip=entry, shape=tuple(turned), slice_count=count)
    assert parse_slice(made.name) == made
    assert made.chip_count == prod(shape) * count
    assert made.devices_per_slice == prod(shape) * entry.devices_per_chip
    assert made.device_count == made.devices_per_slice * count


@given(entry=st.sampled_from(CHIPS), devices=st.integers(1, 512))
def test_default_slice_is_the_smallest_that_holds_the_devices(entry, devices: int) -> None:
    if devices > entry.max_slice_chips * entry.devices_per_chip:
        with pytest.raises(SliceError) as caught:
            find_smallest_slice(devices, entry.name)
        assert f" {devices} " in caught.value.what
        return
    made = find_smallest_slice(devices, entry.name)
    assert made.slice_count == 1
    assert made.device_count >= devices
    smaller = [prod(shape) for shape in list_shapes(entry) if prod(shape) < made.chip_count]
    assert all(chips * entry.devices_per_chip < devices for chips in smaller)


def test_default_slice() -> None:
    names = [find_smallest_slice(devices).name for devices in (1, 2, 3, 4, 8, 9, 16, 256)]
    assert names == ["v5e:1x1", "v5e:1x2", "v5e:2x2", "v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:4x4", "v5e:16x16"]
    assert find_smallest_slice(8, "v7x").name == "tpu7x:2x2x1"
    assert find_smallest_slice(8, chip="tpu7x").name == "tpu7x:2x2x1"


@pytest.mark.parametrize(
    ("text", "wraparound"),
    [
        ("v5e:2x4", (False, False)),
        ("v5e:8x16", (False, True)),
        ("v5e:16x8", (True, False)),
        ("v6e:16x16", (True, True)),
        ("v3:16x32", (False, True)),
        ("v2:16x16", (True, True)),
        ("v5p:2x4x4", (False, False, False)),
        ("v5p:4x4x4", (True, True, True)),
        ("v4:4x4x12", (True, True, True)),
        ("tpu7x:2x2x1", (False, False, False)),
        ("cpu:8", ()),
        ("attached", ()),
    ],
)
def test_wraparound(text: str, wraparound: tuple[bool, ...]) -> None:
    assert parse_slice(text).wraparound() == wraparound


@pytest.mark.parametrize(
    ("text", "topology", "kwargs"),
    [
        ("v5e:2x4", "v5e:2x4", {}),
        ("v5e:1x1", "v5e:1x1", {"chips_per_host_bounds": [1, 1, 1]}),
        ("v6e:1x2", "v6e:1x2", {"chips_per_host_bounds": [1, 2, 1]}),
        ("v5e:2x1", "v5e:2x1", {"chips_per_host_bounds": [2, 1, 1]}),
        ("v5p:1x2x2", "v5p:1x2x2", {"chips_per_host_bounds": [1, 2, 2]}),
        ("v7x:4x4x4", "tpu7x:4x4x4", {"wrap": [True, True, True]}),
        ("v5e:8x16", "v5e:8x16", {"wrap": [False, True, False]}),
        ("2*v5e:1x1", "v5e:1x1", {"chips_per_host_bounds": [1, 1, 1], "num_slices": 2}),
        ("2*v5e:2x4", "v5e:2x4", {"num_slices": 2}),
        ("cpu:8", None, {}),
        ("attached", None, {}),
    ],
)
def test_what_libtpu_is_asked(text: str, topology: str | None, kwargs: dict) -> None:
    parsed = parse_slice(text)
    assert parsed.libtpu_topology_name == topology
    assert parsed.topology_kwargs == kwargs


def test_three_dimensional_blocks_stop_at_the_largest_slice() -> None:
    v4 = find_chip("v4")
    assert is_slice_shape(v4, (12, 16, 16))
    assert is_slice_shape(v4, (16, 12, 16))
    assert not is_slice_shape(v4, (16, 16, 16))
    assert not is_slice_shape(v4, (4, 4, 6))
    assert not is_slice_shape(v4, (2, 2))
    assert is_slice_shape(find_chip("v5p"), (4, 4, 244))
    assert prod(list_shapes(v4)[-1]) == v4.max_slice_chips


def test_a_size_means_the_most_cube_like_block() -> None:
    assert find_shape(find_chip("v5p"), 1024) == (8, 8, 16)
    assert find_shape(find_chip("v5p"), 512) == (8, 8, 8)
    assert find_shape(find_chip("v5e"), 12) is None


def test_nearest_by_chips_then_by_edges() -> None:
    assert find_nearest_shapes(find_chip("v5e"), 36, (6, 6)) == ((4, 8), (4, 4), (8, 8))
    assert find_nearest_shapes(find_chip("v5p"), 256, (4, 4, 16), limit=2) == ((4, 4, 16), (4, 8, 8))


@pytest.mark.parametrize(
    ("text", "wrong", "offered"),
    [
        ("v5e:6x6", "6x6", ["v5e:4x8", "v5e:4x4", "v5e:8x8"]),
        ("v5p:2x2", "2x2", ["v5p:2x2x1", "v5p:1x2x1", "v5p:1x1x1"]),
        ("v5e-6", '"v5e-6"', ["v5e:2x2", "v5e:2x4", "v5e:1x2"]),
        ("v5p-7", '"v5p-7"', ["v5p:1x2x1", "v5p:2x2x1", "v5p:1x1x1"]),
        ("v5x:2x2", 'generation "v5x"', ["v5e:2x2"]),
        ("2*v5ee-8", 'generation "v5ee"', ["2*v5e-8"]),
        ("h100:8x8", 'generation "h100"', ["v5e:2x4", "v5e-8", "2*v5e:2x4", "cpu:8"]),
        ("v5e", '"v5e"', ["v5e:2x4"]),
        ("v5e:16", '"v5e:16"', ["v5e:4x4"]),
        ("2x4", '"2x4"', ["v5e:2x4", "v5e-8", "2*v5e:2x4", "cpu:8"]),
        ("", '""', ["v5e:2x4", "v5e-8", "2*v5e:2x4", "cpu:8"]),
        ("0*v5e:2x4", "0 ", ["2*v5e:2x4"]),
        ("cpu", '"cpu"', ["cpu:8"]),
        ("2*cpu:8", '"2*cpu:8"', ["cpu:8"]),
        ("cpu:2x4", '"cpu:2x4"', ["cpu:8"]),
        ("v4:4x4x8_twisted", '"v4:4x4x8_twisted"', ["v4:4x4x8"]),
        ("cpu:0", "CPU ", ["cpu:8"]),
    ],
)
def test_refused_names(says, text: str, wrong: str, offered: list[str]) -> None:
    with pytest.raises(SliceError) as caught:
        parse_slice(text)
    assert wrong in caught.value.what
    assert re.findall(r"(?:\d\*)?\w+[:-]\d+(?:x\d+)*", caught.value.fix) == offered
    says(caught)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("v5e:6x6", ["1x1", "1x2", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"]),
        ("v5p:2x2", ["1x1x1", "1x2x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4"]),
        ("v5e", ["1x1", "1x2", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"]),
    ],
)
def test_a_refused_name_comes_with_the_blocks_there_are(text: str, blocks: list[str]) -> None:
    with pytest.raises(SliceError) as caught:
        parse_slice(text)
    assert re.findall(r"\b\d+(?:x\d+)+\b", caught.value.why) == blocks


def test_default_slice_beyond_the_largest(says) -> None:
    with pytest.raises(SliceError) as caught:
        find_smallest_slice(512)
    assert re.findall(r"\d+\*\S+\d|\d{3}", says(caught, "512")) == ["512", "256", "2*v5e:16x16"]
    with pytest.raises(SliceError) as caught:
        find_smallest_slice(300)  # 2*v5e:16x16 is refused for 300, since several slices are used whole
    assert re.findall(r"\d+\*\S+\d|\d{3}", caught.value.fix) == ["512", "2*v5e:16x16"]
    says(caught, "300")
    with pytest.raises(SliceError) as caught:
        find_smallest_slice(0)
    assert caught.value.what.startswith("0 ")
    says(caught, "0")


def test_a_block_of_chips_needs_a_generation(says) -> None:
    with pytest.raises(SliceError) as caught:
        Slice(shape=(2, 4))
    assert "cpu:8" in says(caught)


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parsed = parse_slice(text)
    except SliceError:
        return
    assert parse_slice(parsed.name) == parsed


@pytest.mark.parametrize("name", ["v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x"])
@pytest.mark.parametrize("devices", [1, 2, 3, 6, 8, 12, 20, 28, 100, 512, 2048])
def test_what_is_suggested_for_a_mesh_works(name: str, devices: int) -> None:
    found = find_fitting_slice(devices, name)
    if found is None:
        return
    assert found.device_count == devices or found.can_be_used_in_part_by(devices)
    assert parse_slice(found.name) == found


def test_suggestions() -> None:
    pairs = {(6, "v5e"): "v5e:2x4", (1, "tpu7x"): "tpu7x:1x1x1", (20, "v5e"): "v6e:4x8", (512, "v5e"): "2*v5e:16x16"}
    assert {key: find_fitting_slice(*key).name for key in pairs} == pairs
    assert find_fitting_slice(300, "v5e") is None
    assert parse_slice("tpu7x:1x1x1").can_be_used_in_part_by(1)
    assert not parse_slice("v5e:4x8").can_be_used_in_part_by(20)  # libtpu refuses it
    assert not parse_slice("v5e:4x4").can_be_used_in_part_by(8)
    assert not parse_slice("2*v5e:2x4").can_be_used_in_part_by(12)
