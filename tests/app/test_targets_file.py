"""The targets file: what it says, and what is said of mistakes in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hloscope.app.config import ConfigError, find_helpers, find_project, read_project
from hloscope.compile.target import make_facts

GOOD = """\
[project]
name = "demo"

[tool.hloscope]
baselines = "ci/baselines"

[tool.hloscope.defaults]
slice = "v5e:2x4"
mesh = { data = 4, model = 2 }
compiler-options = { xla_tpu_x = true, xla_level = 3 }

[tool.hloscope.targets.step]
function = "model.py:step"
args = ["bf16[8@data,2048]", { w = "bf16[2048,8192]", b = ["f32[8]"] }]
kwargs = { scale = "f32[]" }
out = ["P('data', None)", "None"]
static = { shift = 5 }
donate = [0]
dims = { S = 8 }
contract = ["all-reduce@model", "nothing else"]

[tool.hloscope.targets.saved]
hlo = "step.hlo"
slices = ["v5e:2x4", "v5p:2x2x2"]
mesh = "data=8"
baseline = false
"""


def written(folder: Path, text: str, name: str = "pyproject.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_helpers_of_a_project(tmp_path):
    written(tmp_path, '[tool.hloscope]\nhelpers = ["layers.py", "Linear.__call__"]\n')
    assert find_helpers(tmp_path) == ("layers.py", "Linear.__call__")
    assert find_helpers(tmp_path / "src", named=written(tmp_path, GOOD, "other.toml")) == ()


def test_helpers_are_names(tmp_path):
    path = written(tmp_path, '[tool.hloscope]\nhelpers = "layers.py"\n')
    for read in (read_project, lambda path: find_helpers(path.parent)):
        with pytest.raises(ConfigError, match=r"helpers cannot be 'layers.py'"):
            read(path)


def test_targets_with_defaults(tmp_path):
    project = read_project(written(tmp_path, GOOD))
    assert (project.root, project.baselines) == (tmp_path, tmp_path / "ci" / "baselines")
    step, saved = project.targets
    assert (step.name, step.function, step.slices) == ("step", "model.py:step", ("v5e:2x4",))
    facts = make_facts(**step.options)
    assert facts.mesh == {"data": 4, "model": 2}
    assert facts.args == ("bf16[8@data,2048]", {"w": "bf16[2048,8192]", "b": ["f32[8]"]})
    assert (facts.out, facts.donate, facts.static, facts.dims) == (
        ["P('data', None)", None],
        (0,),
        {"shift": 5},
        {"S": 8},
    )
    assert facts.compiler_options == {"xla_tpu_x": "true", "xla_level": "3"}
    assert step.contract == ["all-reduce@model", "nothing else"]
    assert step.where == "pyproject.toml:12, target step"
    assert (saved.hlo, saved.slices, saved.options["mesh"], saved.baseline) == (
        "step.hlo",
        ("v5e:2x4", "v5p:2x2x2"),
        "data=8",
        False,
    )
    assert "compiler_options" not in saved.options


def test_names(says, tmp_path):
    project = read_project(written(tmp_path, GOOD))
    assert [target.name for target in project.named(())] == ["step", "saved"]
    assert [target.name for target in project.named(("saved", "saved"))] == ["saved"]
    with pytest.raises(ConfigError) as caught:
        project.named(("stpe",))
    assert "'stpe'" in caught.value.what
    assert caught.value.where == str(tmp_path / "pyproject.toml")
    assert " step?" in caught.value.fix
    says(caught)


def test_the_nearest_file_counts(says, tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    written(tmp_path, GOOD)
    written(tmp_path / "a", "[tool.ruff]\n")
    assert find_project(inner).root == tmp_path
    written(tmp_path / "a", "[targets.x]\nfunction = 'x.py:f'\n", "hloscope.toml")
    assert find_project(inner).targets[0].name == "x"
    assert find_project(inner, named=tmp_path / "pyproject.toml").root == tmp_path
    with pytest.raises(ConfigError) as caught:
        find_project(inner, named=tmp_path / "other.toml")
    assert "other.toml" in says(caught)


def test_no_file_at_all(says, tmp_path):
    with pytest.raises(ConfigError) as caught:
        find_project(tmp_path)
    assert "[tool.hloscope.targets.step]" in caught.value.fix
    says(caught)


def test_a_broken_file_of_another_tool_is_not_ours(says, tmp_path):
    written(tmp_path, "[tool.x\n")
    with pytest.raises(ConfigError) as caught:
        find_project(tmp_path)
    assert "[tool.hloscope.targets.step]" in caught.value.fix
    says(caught)


STEP = "[targets.step]\nfunction = 'model.py:step'\n"
MISTAKES = {
    "unknown": ("[targets.step]\nfuncton = 'a.py:f'\n", 2, "'functon'", "mean function"),
    "unknown outside": ("target = 3\n", 1, "'target'", "mean targets"),
    "mesh": (STEP + "mesh = { X = 0 }\n", 3, "{'X': 0}", "mesh = {"),
    "args": (STEP + "args = 'f32[8]'\n", 3, "'f32[8]'", "args = ["),
    "underscore": (STEP + "axis_types = 'auto'\n", 3, "'axis_types'", "axis-types"),
    "function and text": (STEP + "hlo = 'x.hlo'\n", 1, "both", 'function = "'),
    "nothing": ("[targets.step]\nmesh = 'X=4'\n", 1, "neither", 'function = "'),
    "out of a dictionary": (STEP + "out = [{ a = 'P()' }]\n", 3, "{'a': 'P()'}", "one for each output array"),
    "args of text": ("[targets.step]\nhlo = 'x.hlo'\nargs = []\n", 3, "HLO", ""),
    "slice and slices": (STEP + "slice = 'v5e:2x4'\nslices = ['v5e:2x4']\n", 4, "slices", ""),
    "unknown in defaults": ("[defaults]\nfunction = 'a:f'\n", 2, "'function'", "slice, slices, mesh"),
    "target": ("[targets]\nstep = 3\n", 2, "3", None),
    "no slices": (STEP + "slices = []\n", 3, "[]", "slices = ["),
    "fail-on": (STEP + "fail-on = 'all'\n", 3, "'all'", 'fail-on = "warning"'),
    "rules": (
        STEP + "fail-on = 'note'\nrules = { small-collectives = 8 }\n",
        4,
        "{'small-collectives': 8}",
        "rules = { small-collectives = {",
    ),
    "no TOML": ("[targets.step]\nfunction = model\n", 2, "TOML", None),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(says, case, tmp_path):
    text, line, wrong, way_out = MISTAKES[case]
    path = written(tmp_path, text, "hloscope.toml")
    with pytest.raises(ConfigError) as caught:
        read_project(path)
    assert wrong in caught.value.what
    assert re.match(rf"{re.escape(str(path))}:{line}\b", str(caught.value.where))
    assert (caught.value.fix is None) is (way_out is None)
    assert (way_out or "") in (caught.value.fix or "")
    says(caught)


def test_all_mistakes_are_said_at_once(says, tmp_path):
    text = "[targets.a]\nfuncton = 'a.py:f'\n[targets.b]\nfunction = 'b.py:f'\nmesh = 3\ndims = 4\n"
    with pytest.raises(ConfigError) as caught:
        read_project(written(tmp_path, text, "hloscope.toml"))
    assert re.findall(r"hloscope\.toml:(\d+) in \[targets\.(\w)\]", says(caught)) == [
        ("2", "a"),
        ("5", "b"),
        ("6", "b"),
    ]


def test_rules(tmp_path):
    text = """
[tool.hloscope.rules.small-collectives]
min-collectives = 8

[tool.hloscope.defaults]
fail-on = "warning"
allow = ["all-gather@fsdp: weights"]

[tool.hloscope.targets.step]
function = "model.py:step"

[tool.hloscope.targets.step.rules]
small-collectives = { min-collectives = 2 }
exposed-collective = { share = 0.5 }

[tool.hloscope.targets.saved]
hlo = "step.hlo"
fail-on = "error"
allow = []
"""
    step, saved = read_project(written(tmp_path, text)).targets
    assert (step.fail_on, step.options["allow"]) == ("warning", ["all-gather@fsdp: weights"])
    assert step.options["rule_options"] == {"small-collectives.min-collectives": 2, "exposed-collective.share": 0.5}
    assert (saved.fail_on, saved.options["allow"]) == ("error", [])
    assert saved.options["rule_options"] == {"small-collectives.min-collectives": 8}


def test_a_section_that_is_no_table(says, tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_project(written(tmp_path, "[tool]\nhloscope = 3\n"))
    assert re.findall(r"tool\.hloscope|\b3\b", caught.value.what) == ["tool.hloscope", "3"]
    says(caught)
