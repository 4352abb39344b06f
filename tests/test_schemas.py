"""The published schemas are those of the types, and say of every field what it means."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from hloscope.base.canvas import Canvas
from hloscope.base.documents import SCHEMA, to_plain
from hloscope.base.errors import HloscopeError
from hloscope.cli import group
from hloscope.model import SourceFrame
from hloscope.report.checkups import Checkup
from hloscope.report.formats import render
from hloscope.report.price import Unpriced
from hloscope.report.shardings import ShardingTable
from hloscope.why.shardings import ArrayRole, ShardedArray

ROOT = Path(__file__).parent.parent
PUBLISHED = sorted((ROOT / "hloscope" / "schemas").glob("*.json"))


def test_they_are_up_to_date(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "schemas.py"), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    known = [*PUBLISHED, ROOT / "hloscope" / "plain_types.py"]
    assert made == {path.name: path.read_text() for path in known}, "run python docs/schemas.py"


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_field_is_described(path):
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema"]["enum"] == [SCHEMA]
    for name, definition in {path.stem: schema, **schema["$defs"]}.items():
        assert definition["description"], name
        for key, field in definition.get("properties", {}).items():
            assert len(field["description"]) > len("Its."), f"{name}.{key}"
            if key.endswith(("_bytes", "_bytes_per_step")):
                assert "ytes" in field["description"] + definition["description"], f"{name}.{key}"
        left_out = {key for key, field in definition.get("properties", {}).items() if "default" in field}
        assert definition.get("required", []) == [
            key for key in definition.get("properties", {}) if key not in left_out
        ]
        rows = [field["items"] for field in schema["properties"].values() if field.get("type") == "array"]
        assert not left_out or {"$ref": f"#/$defs/{name}"} in rows, f"{name} is not a row of a table"


@pytest.fixture
def validate(schema_of):
    return lambda text, name: jsonschema.validate(json.loads(text), schema_of(name))


GATHER, SHARD_MAP = (f"fixtures/captured/matmul.{name}.jax-0.10.hlo" for name in ("matmul", "matmul_shard_map"))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("analysis", ("analyze", GATHER, "--slice", "v5e:2x4")),
        ("explain", ("explain", GATHER, "all")),
        ("price", ("price", GATHER, "--slice", "v5e:2x4", "--slice", "v5p:2x2x2")),
        ("diff", ("diff", GATHER, SHARD_MAP)),
    ],
)
def test_what_commands_print_follows_them(monkeypatch, validate, name, arguments):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(group, [*arguments, "--format", "json"])
    assert done.exit_code in (0, 1), done.output
    validate(done.output, name)


def test_what_was_not_priced_follows_it(validate):
    refused = Unpriced(target="t", slice_name="v5p:1x2x2", error=HloscopeError("it is too large"))
    text = render("prices", "json", (refused,), Canvas())
    validate(text, "price")
    assert json.loads(text)["unpriced"] == [{"slice": "v5p:1x2x2", "error": "error: it is too large"}]


def test_what_is_not_compiled_follows_them(validate):
    array = ShardedArray(
        role=ArrayRole.ARGUMENT,
        name="x",
        element_type="bf16",
        global_shape=(8, 4),
        local_shape=(4, 4),
        sharding="P('X', None)",
        bytes_per_device=32,
        source=SourceFrame(file="m.py", line=3),
    )
    table = ShardingTable(
        target="t", slice_name="v5e:2x4", axis_sizes={"X": 2}, arrays=(array,), unused=("y",), notes=()
    )
    validate(render("shardings", "json", table, Canvas()), "shardings")
    validate(render("checkups", "json", (Checkup(name="jax", found="0.10", works=True),), Canvas()), "doctor")


def test_a_number_that_json_has_not_is_a_word():
    assert to_plain({"a": float("inf"), "b": [float("-inf"), 1e300]}) == {"a": "inf", "b": ["-inf", 1e300]}


def test_no_document_holds_what_nothing_reads_back(says):
    with pytest.raises(NotImplementedError) as caught:
        to_plain({"a": 1j})
    assert "complex" in says(caught)
