"""Folders that XLA dumped into: which modules they hold, how these are named, and what lies beside them."""

from __future__ import annotations

import os
import shutil

import pytest

from hloscope.base.errors import TargetError
from hloscope.compile.dumps import find_dumped_slice, read_dump, read_module_facts
from hloscope.tpu.slices import parse_slice

ARGUMENTS = """replica_count: 1
{several}tpu_topology_args {{
  version: TPU_VERSION_{version}
{variant}  platform_type: TPU_PLATFORM_TYPE_HARDWARE
  chip_config_name: "default"
  chips_per_host_bounds {{
    x: 2
    y: 2
    z: 1
  }}
  host_bounds {{
    x: {hosts[0]}
    y: {hosts[1]}
    z: {hosts[2]}
  }}
  wrap {{
  }}
}}
"""


def dump(folder, *files, text="HloModule m\n"):
    """A folder with files of these names, given with their contents where these matter."""
    for file in files:
        name, content = file if isinstance(file, tuple) else (file, text)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return read_dump(folder)


@pytest.mark.parametrize(
    ("file", "name", "number", "platform"),
    [
        ("module_0092.jit_step.cl_933746096.after_codegen.txt", "jit_step", "0092", "tpu"),
        ("module_0092.jit_step.cl_933746096.after_optimizations.txt", "jit_step", "0092", "tpu"),
        ("module_0002.jit_step.cpu_after_optimizations.txt", "jit_step", "0002", "cpu"),
        ("module_0001.jit_step.sm_8.0_gpu_after_optimizations.txt", "jit_step", "0001", "gpu"),
        ("module_0001.jit_step.sm_9.0a_gpu_after_optimizations.hlo.pb", "jit_step", "0001", "gpu"),
        ("module_0001.jit_step.gfx942_gpu_after_optimizations.txt", "jit_step", "0001", "gpu"),
        ("module_0001.jit_f.1.cpu_after_optimizations.txt.gz", "jit_f.1", "0001", "cpu"),
        ("1699999999.module_0001.jit__lambda_.gpu_after_optimizations.txt", "jit__lambda_", "0001", "gpu"),
        ("module_12345.jit_f.after_codegen.hlo.pb.zst", "jit_f", "12345", "tpu"),
        ("step.hlo", "step", "", None),
        ("step.hlo.txt.xz", "step", "", None),
    ],
)
def test_final_modules_by_name(tmp_path, file, name, number, platform):
    (module,) = dump(tmp_path, file).modules
    assert (module.name, module.number, module.platform, module.file) == (name, number, platform, file)


@pytest.mark.parametrize(
    "file",
    [
        "module_0092.jit_step.cl_9.after_optimizations-buffer-assignment.txt",
        "module_0092.jit_step.cl_9.after_optimizations_after_buffer_assignment.txt",
        "module_0092.jit_step.cl_9.after_optimizations-memory-usage-report.pb",
        "module_0092.jit_step.cl_9.0017.xla-partitioner.after_tpu-spmd-partitioning.before_control-dep-rewriter.txt",
        "module_0092.jit_step.cl_9.tpu_comp_env.txt",
        "module_0092.jit_step.cl_9.flagfile",
        "module_0092.jit_step.thunk_sequence.txt",
        "notes.txt",
    ],
)
def test_what_is_no_final_module(tmp_path, file):
    assert [module.name for module in dump(tmp_path, file, "module_0001.f.after_codegen.txt").modules] == ["f"]


def test_one_file_of_each_module(tmp_path):
    best = "module_0001.f.cl_9.after_codegen.txt"
    others = ("after_codegen.hlo.pb", "after_codegen.txt.gz", "after_optimizations.txt", "after_optimizations.hlo.pb")
    found = dump(tmp_path, best, *(f"module_0001.f.cl_9.{other}" for other in others))
    assert [module.file for module in found.modules] == [best]


def test_an_empty_file_only_by_itself(tmp_path):
    found = dump(tmp_path, ("module_0001.f.after_codegen.txt", ""), "module_0001.f.after_optimizations.txt")
    assert [module.file for module in found.modules] == ["module_0001.f.after_optimizations.txt"]
    assert [module.size_bytes for module in dump(tmp_path / "a", ("module_0001.f.after_codegen.txt", "")).modules] == [
        0
    ]


def test_the_largest_first_from_all_folders_and_unreadable_ones_last(tmp_path):
    small, large = ("host_0/module_0001.f.after_codegen.txt", "1"), ("host_1/module_0001.f.after_codegen.txt", "22")
    (tmp_path / "module_0009.gone.after_codegen.txt").symlink_to(tmp_path / "nothing")
    (tmp_path / "again").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "module_0008.pipe.after_codegen.txt")
    found = dump(tmp_path, small, large, ("module_0001.f/module_0001.f.after_codegen.txt", "a module's own folder"))
    assert [(module.label, module.size_bytes) for module in found.modules] == [
        ("host_1/module_0001.f", 2),
        ("host_0/module_0001.f", 1),
        ("module_0009.gone", None),
    ]


@pytest.mark.parametrize("name", ["jit_step", "step", "0092", "92", "module_0092", "module_0092.jit_step"])
def test_names_of_a_module(tmp_path, name):
    found = dump(tmp_path, "module_0092.jit_step.after_codegen.txt", "module_0001.jit_other.after_codegen.txt")
    assert found.named(name).name == "jit_step"


def test_a_name_that_several_have(tmp_path):
    found = dump(tmp_path, "module_0001.jit_f.after_codegen.txt", "module_0002.jit_f.after_codegen.txt")
    with pytest.raises(TargetError, match=r"2 modules in .* are named f") as raised:
        found.named("f")
    assert "module_0001.jit_f" in str(raised.value.why)
    assert found.named("module_0002.jit_f").number == "0002"
    with pytest.raises(TargetError, match=r"no module in .* is named g"):
        found.named("g")


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ((), "empty"),
        (("a.py", "b.txt"), "contains 2 files"),
        (("module_0001.f.before_optimizations.txt",), "1 module before optimization"),
    ],
)
def test_a_folder_without_modules(tmp_path, files, why):
    with pytest.raises(TargetError, match="contains no compiled module") as raised:
        dump(tmp_path, *files)
    assert why in raised.value.why


@pytest.mark.parametrize(
    ("version", "variant", "hosts", "name"),
    [
        ("JELLYFISH", "", (1, 1, 1), "v2:2x2"),
        ("DRAGONFISH", "", (2, 4, 1), "v3:4x8"),
        ("PUFFERFISH", "", (2, 2, 4), "v4:4x4x4"),
        ("VIPERFISH", "lite", (1, 2, 1), "v5e:2x4"),
        ("VIPERFISH", "", (1, 1, 2), "v5p:2x2x2"),
        ("GHOSTLITE", "", (2, 2, 1), "v6e:4x4"),
        ("6acc60406", "", (1, 1, 1), "tpu7x:2x2x1"),
        ("SOMETHINGNEW", "", (1, 1, 1), None),
        ("VIPERFISH", "lite", (3, 1, 1), None),
    ],
)
def test_the_slice_that_libtpu_writes_down(tmp_path, version, variant, hosts, name):
    said = ARGUMENTS.format(
        version=version, variant=f'  variant: "{variant}"\n' if variant else "", hosts=hosts, several=""
    )
    found = dump(tmp_path, "module_0001.f.cl_9.after_codegen.txt", ("module_0001.f.cl_9.target_arguments.txt", said))
    assert find_dumped_slice(found.modules[0]) == (None if name is None else parse_slice(name))


def test_several_slices(tmp_path):
    one = ARGUMENTS.format(version="GHOSTLITE", variant="", hosts=(1, 2, 1), several="")
    said = f"multislice_topology {{\n  slice_info {{\n{one}}}\n  slice_info {{\n    slice_id: 1\n{one}}}\n}}\n{one}"
    found = dump(tmp_path, "module_0001.f.after_codegen.txt", ("module_0001.f.target_arguments.txt", said))
    assert find_dumped_slice(found.modules[0]) == parse_slice("2*v6e:2x4")


def test_all_that_lies_beside(root, tmp_path):
    shutil.copytree(root / "fixtures/dumps/mlp", tmp_path / "mlp")
    beside = read_module_facts(read_dump(tmp_path / "mlp").modules[0])
    assert beside.slice == parse_slice("v5e:2x4")
    assert beside.device_ids == tuple(range(8))
    assert beside.partitions == 8
    assert [(mesh.axis_names, mesh.axis_sizes) for mesh in beside.meshes] == [(("data", "model"), (2, 4))]
    assert beside.memory_bytes["argument_size_in_bytes"] == 256 * 2048 * 2 + 2 * 2048 * 2048 * 2
    assert "all-reduce" in (beside.partitioned or "")
    assert "sdy.mesh" in (beside.lowered or "")
    assert read_module_facts(read_dump(tmp_path / "mlp").modules[0], on_the_way=False).lowered is None


def test_nothing_beside(tmp_path):
    beside = read_module_facts(dump(tmp_path, "step.hlo").modules[0])
    assert (beside.slice, beside.meshes, beside.memory_bytes, beside.partitions) == (None, (), {}, None)
