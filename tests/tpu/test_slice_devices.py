"""The devices of a slice, compared with libtpu's own list of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.tpu import parse_slice
from hloscope.tpu.slices import list_devices

SLICES = (
    *("v2:2x2", "v3:2x2", "v3:4x8", "v4:2x2x1", "v4:2x2x4", "v4:4x4x4", "v5e:1x1", "v5e:1x2", "v5e:2x4", "v5e:4x2"),
    *("v5e:4x4", "v5e:4x8", "v5e:16x16", "v5p:1x2x2", "v5p:2x2x1", "v5p:4x4x8", "v6e:2x4", "v6e:8x8", "tpu7x:1x1x1"),
    *("tpu7x:2x2x2", "tpu7x:4x4x4", "2*v5e:2x4", "3*v5e:4x4", "2*v5p:2x2x2", "2*tpu7x:2x2x1"),
)


def described(names):
    """What libtpu says, in a process that may load it."""
    from hloscope.compile.step import find_topology_devices

    def facts(name):
        several = parse_slice(name).slice_count > 1  # whose numbers libtpu makes of slices that it joins by itself
        return [
            (0 if several else one.id, tuple(one.coords), one.core_on_chip, one.slice_index if several else 0)
            for one in find_topology_devices(parse_slice(name))
        ], [one.process_index for one in find_topology_devices(parse_slice(name))]

    return {name: facts(name) for name in names}


@pytest.mark.tpu_compiler
def test_they_are_the_ones_that_libtpu_lists(monkeypatch):
    from hloscope.compile import client

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    found = client.get_pool().submit(described, SLICES).result()
    for name in SLICES:
        chosen = parse_slice(name)
        several = chosen.slice_count > 1
        ours = [
            (0 if several else one.id, one.coords, one.core_on_chip, one.slice_index) for one in list_devices(chosen)
        ]
        assert (ours, [one.host for one in list_devices(chosen)]) == found[name], name


def test_every_device_has_a_number_and_a_place_of_its_own():
    for name in SLICES:
        listed = list_devices(parse_slice(name))
        assert sorted(one.id for one in listed) == list(range(len(listed)))
        assert len({(one.slice_index, one.coords, one.core_on_chip) for one in listed}) == len(listed)


@pytest.mark.parametrize("name", ["cpu:8", "attached"])
def test_what_is_no_slice_has_none(name):
    assert list_devices(parse_slice(name)) == ()
