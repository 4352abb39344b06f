"""The table against the ahead-of-time compiler itself, in a child process that may set libtpu's environment."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from math import prod

import pytest

from hloscope.tpu.chips import CHIPS
from hloscope.tpu.slices import Slice, list_shapes
from hloscope.tpu.torus import Torus

CHILD = """
import json, sys
from jax.experimental import topologies
answers = []
for name, kwargs in json.load(sys.stdin):
    devices = topologies.get_topology_desc(name, platform="tpu", **kwargs).devices
    answers.append({
        "devices": len(devices),
        "kind": sorted({device.device_kind for device in devices}),
        "coords": sorted({tuple(device.coords) for device in devices}),
        "slices": len({getattr(device, "slice_index", 0) for device in devices}),
        "places": sorted([device.id, list(device.coords), device.core_on_chip] for device in devices),
        "hosts": len({device.process_index for device in devices}),
    })
print("ANSWERS" + json.dumps(answers))
"""


def _asked() -> list[Slice]:
    single = [Slice(chip=entry, shape=shape) for entry in CHIPS for shape in list_shapes(entry) if prod(shape) <= 64]
    turned = [Slice(chip=made.chip, shape=made.shape[::-1]) for made in single if made.shape != made.shape[::-1]]
    double = [Slice(chip=made.chip, shape=made.shape, slice_count=2) for made in single if made.chip_count <= 16]
    edge = [Slice(chip=entry, shape=list_shapes(entry)[-1]) for entry in CHIPS if entry.torus_dimensions == 2]
    return single + turned + double + edge


@pytest.mark.tpu_compiler
@pytest.mark.skipif(find_spec("libtpu") is None or find_spec("jax") is None, reason="there is no libtpu here")
def test_libtpu_makes_every_slice_up_to_64_chips() -> None:
    asked = _asked()
    quiet = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps([(made.libtpu_topology_name, made.topology_kwargs) for made in asked]),
        env=os.environ | quiet,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.partition("ANSWERS")[2])
    assert len(answers) == len(asked)
    for made, answer in zip(asked, answers, strict=True):
        extent = [max(axis) + 1 for axis in zip(*answer["coords"], strict=True)]
        assert answer["devices"] == made.device_count, made.name
        assert answer["kind"] == [made.chip.device_kind], made.name
        assert answer["slices"] == made.slice_count, made.name
        assert len(answer["coords"]) == prod(made.shape), made.name
        assert extent == [*made.shape, *[1] * (3 - len(made.shape))], made.name
        if made.slice_count == 1:
            torus = Torus.of(made)
            padding = [0] * (3 - len(made.shape))
            assert answer["places"] == [
                [device, [*torus.coordinates(device), *padding], device % torus.devices_per_chip]
                for device in range(torus.device_count)
            ], made.name
            assert answer["hosts"] == len({torus.host_of(device) for device in range(torus.device_count)}), made.name
