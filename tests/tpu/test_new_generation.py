"""A new generation is one file and its place in the registry: nothing else in hloscope names a generation."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_up_generation import V9Z

from hloscope.app.analyzing import analyze_hlo
from hloscope.cli import group
from hloscope.compile.environment import find_largest_device_count
from hloscope.compile.hlo_files import read_hlo
from hloscope.cost.price import guess_slice
from hloscope.hlo import parse_module
from hloscope.model import Mesh
from hloscope.tpu import CHIPS, find_chip, find_smallest_slice, parse_slice
from hloscope.tpu.chips import find_chip_of_kind
from hloscope.tpu.slices import find_device_order, list_devices, override_chip
from hloscope.tpu.torus import Torus

NAIVE = "fixtures/captured/collective_matmul.naive.jax-0.12.hlo"
SOURCES = sorted((Path(__file__).parents[2] / "hloscope").rglob("*.py"))
NAMES = {name for chip in CHIPS for name in (*chip.spellings, chip.device_kind, chip.name_in_dumps)}
ANY_NAME = "|".join(re.escape(name) for name in sorted(NAMES, key=len, reverse=True))
SLICE = re.compile(rf"(?:\d+\*)?(?:{ANY_NAME})[:-][\dx]+", re.IGNORECASE)
NAME = re.compile(rf"(?<![\w.])(?:{ANY_NAME})(?![\w.])(?![:-]\d)", re.IGNORECASE)
"""The name of a generation, but for the name of a slice in an example and for other versions, such as SARIF's."""
HELP = {"help", "says", "default", "example"}
CASES = {"VALID", "INVALID", "CASES"}
PARTS_OF_MESSAGES = {"Option", "Command"}
"""Options in messages hold examples."""


def strings_of_code(tree: ast.Module) -> list[str]:
    """The strings of a module without docstrings, help and the cases of rules."""
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(node.value)
        elif isinstance(node, ast.Assign) and node in tree.body and ast.unparse(node.targets[0]) in CASES:
            left_out |= set(ast.walk(node))
        elif isinstance(node, ast.keyword) and node.arg in HELP:
            left_out |= set(ast.walk(node.value))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in PARTS_OF_MESSAGES:
            left_out |= set(ast.walk(node))
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out
    ]


def names_in(source: str) -> list[str]:
    """The strings of a module's code that name a generation, or are the name of a slice and not an example of one."""
    text = source.lower()
    if not any(name.lower() in text for name in NAMES):  # most modules need not be parsed
        return []
    return [said for said in strings_of_code(ast.parse(source)) if SLICE.fullmatch(said) or NAME.search(said)]


def test_only_the_files_of_the_generations_name_them():
    rooms = [path for path in SOURCES if path.parent.name != "tpu"]
    found = {str(path): names_in(path.read_text(encoding="utf-8")) for path in rooms}
    assert {path: texts for path, texts in found.items() if texts} == {}
    assert len(rooms) < len(SOURCES)


@pytest.mark.parametrize(
    "source",
    [
        'split = chip.name in ("v4", "V5P")',
        'NAMES = {"JELLYFISH": 2}',
        'NAMES = {"VIPERFISH lite": 2}',
        'kind = "TPU v5 lite"',
        'smallest = parse_slice("v5e:2x4")',
        'smallest = parse_slice("2*tpu7x:2x2x1")',
        'text = f"compiled for v5e in {seconds} s"',
        'because = "it has tiles of 16 rows, which only 7x has"',
    ],
)
def test_names_in_code_are_found(source):
    assert names_in(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""Fusions of v4 and v5p."""',
        'raise SliceError("no slice is named", fix="name one: --slice v5e:2x4")',
        'option(help="smallest v5e that fits")',
        'schema = "sarif/v2.1.0"',
        'module = "tensorflow._api.v2.summary"',
    ],
)
def test_examples_and_help_may_name_generations(source):
    assert names_in(source) == []


@pytest.fixture
def made_up(monkeypatch):
    """The made-up generation in the registry, as one more line of it would put it there."""
    holders = [module for module in list(sys.modules.values()) if getattr(module, "CHIPS", None) is CHIPS]
    for module in holders:
        monkeypatch.setattr(module, "CHIPS", (*CHIPS, V9Z))
    return V9Z


def test_it_is_found_by_all_its_names(made_up):
    assert all(find_chip(name.upper()) is made_up for name in made_up.spellings)
    assert find_chip_of_kind("TPU v9 zero") is made_up
    for name in ("v9z:2x2x2", "9z:2x2x2", "v9z-8", "tpu-v9z-8"):
        assert parse_slice(name).name == "v9z:2x2x2"
    assert find_smallest_slice(512, "v9z").name == "v9z:8x8x8"
    assert find_largest_device_count() == max(chip.max_slice_chips * chip.devices_per_chip for chip in CHIPS)


def test_its_slices_are_laid_out_as_its_file_says(made_up):
    chosen = parse_slice("v9z:2x2x2")
    assert find_device_order(chosen, (8,)) == (7, 6, 5, 4, 3, 2, 1, 0)
    assert find_device_order(parse_slice("v9z:2x2x4"), (4, 4)) == find_device_order(parse_slice("v4:2x2x4"), (4, 4))
    assert [device.host for device in list_devices(chosen)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [device.coords[0] for device in list_devices(chosen)] == [0, 0, 0, 0, 1, 1, 1, 1]
    torus = Torus.of(chosen)
    assert [torus.host_of(device) for device in (0, 1, 2)] == [(0, 0, 0), (1, 0, 0), (0, 0, 0)]
    assert not parse_slice("v9z:2x2x4").can_be_used_in_part_by(15)
    assert parse_slice("v4:2x2x4").can_be_used_in_part_by(15)


def test_programs_are_priced_by_its_figures(made_up, root, tmp_path):
    text, mesh = read_hlo(root / NAIVE), Mesh(axis_names=("X", "Y"), axis_sizes=(2, 4))
    found = analyze_hlo(text, slice="v9z:2x2x2", mesh=dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)))
    assert (found.slice.chip, found.slice.name) == ("v9z", "v9z:2x2x2")
    assert found.time.spread.rows == 3
    cycles = next(use for use in found.time.rules if use.rule == "cycles")
    assert (cycles.error, cycles.calibrated, cycles.measured_once) == (0.123, True, True)
    assert found.collectives[0].time_us > 700
    others = [use for use in found.time.rules if use.rule != "cycles"]
    assert others
    assert not any(use.calibrated for use in others)
    path = tmp_path / "chips.toml"
    path.write_text("[v9z]\nclock_hz = 1e9\n")
    assert override_chip(parse_slice("v9z:2x2x2"), [str(path)]).chip.clock_hz == 1e9


def test_the_command_line_prices_it_too(made_up, root):
    step = ["price", str(root / NAIVE), "--mesh", "X=2,Y=4", "--slice", "v9z:2x2x2"]
    done = CliRunner().invoke(group, [*step, "--slice", "v5e:2x4", "--format", "json"])
    assert done.exit_code == 0, done.output
    fast, usual = (row["time"]["step_us"] for row in json.loads(done.output)["prices"])
    assert fast > 700
    assert fast != usual


@pytest.mark.process
def test_texts_and_dumps_are_known_to_be_of_it(made_up, root, tmp_path):
    text = """HloModule m, num_partitions=8

ENTRY main {
  ROOT p = bf16[16,128]{1,0:S(9)} parameter(0), backend_config={"used_scoped_memory_configs":[]}
}
"""
    guess = guess_slice(parse_module(text))
    assert guess is not None
    assert (guess.slice.name, guess.because) == ("v9z:2x2x2", "it uses a memory that only v9z has")
    shutil.copytree(root / "fixtures/dumps/mlp", tmp_path / "mlp")
    (arguments,) = (tmp_path / "mlp").glob("*.target_arguments.txt")
    said = arguments.read_text().replace("TPU_VERSION_VIPERFISH", "TPU_VERSION_MUDFISH").replace('"lite"', '"zero"')
    arguments.write_text(re.sub(r"( host_bounds \{\s*x: 1\s*y: )2(\s*z: )1", r"\g<1>1\g<2>2", said))
    done = CliRunner().invoke(group, ["analyze", str(tmp_path / "mlp"), "--format", "json"])
    assert '"v9z:2x2x2"' in done.output, done.output
