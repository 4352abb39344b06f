"""The targets file: what it says, and what is said of mistakes in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.config import ConfigError, find_project, read_project
from hloscope.program.target import make_facts

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


def test_names(tmp_path):
    project = read_project(written(tmp_path, GOOD))
    assert [target.name for target in project.named(())] == ["step", "saved"]
    assert [target.name for target in project.named(("saved", "saved"))] == ["saved"]
    with pytest.raises(ConfigError) as caught:
        project.named(("stpe",))
    assert str(caught.value) == (
        f"error: there is no target 'stpe'\n  --> {tmp_path}/pyproject.toml\n   = fix: did you mean step?"
    )


def test_the_nearest_file_counts(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    written(tmp_path, GOOD)
    written(tmp_path / "a", "[tool.ruff]\n")
    assert find_project(inner).root == tmp_path
    written(tmp_path / "a", "[targets.x]\nfunction = 'x.py:f'\n", "hloscope.toml")
    assert find_project(inner).targets[0].name == "x"
    assert find_project(inner, named=tmp_path / "pyproject.toml").root == tmp_path
    with pytest.raises(ConfigError, match="there is no file"):
        find_project(inner, named=tmp_path / "other.toml")


def test_no_file_at_all(tmp_path):
    with pytest.raises(ConfigError) as caught:
        find_project(tmp_path)
    assert caught.value.what == "no targets are configured"
    assert "[tool.hloscope.targets.step]" in caught.value.fix


def test_a_broken_file_of_another_tool_is_not_ours(tmp_path):
    written(tmp_path, "[tool.x\n")
    with pytest.raises(ConfigError, match="no targets are configured"):
        find_project(tmp_path)


STEP = "[targets.step]\nfunction = 'model.py:step'\n"
ERRORS = {
    "[targets.step]\nfuncton = 'a.py:f'\n": """\
error: unknown key 'functon'
  --> hloscope.toml:2 in [targets.step]
   | functon = 'a.py:f'
   = fix: did you mean function?""",
    "target = 3\n": """\
error: unknown key 'target'
  --> hloscope.toml
   = fix: did you mean targets?""",
    STEP + "mesh = { X = 0 }\n": """\
error: mesh cannot be {'X': 0}
  --> hloscope.toml:3 in [targets.step]
   | mesh = { X = 0 }
   = fix: write mesh = { data = 4, model = 2 }""",
    STEP + "args = 'f32[8]'\n": """\
error: args cannot be 'f32[8]'
  --> hloscope.toml:3 in [targets.step]
   | args = 'f32[8]'
   = fix: write args = ["bf16[512@data,2048]"]""",
    STEP + "axis_types = 'auto'\n": """\
error: unknown key 'axis_types'
  --> hloscope.toml:3 in [targets.step]
   | axis_types = 'auto'
   = fix: did you mean axis-types?""",
    STEP + "hlo = 'x.hlo'\n": """\
error: the target step names both a function and a file of HLO
  --> hloscope.toml:1 in [targets.step]
   | [targets.step]
   = fix: write function = "model.py:step\"""",
    "[targets.step]\nmesh = 'X=4'\n": """\
error: the target step names neither a function nor a file of HLO
  --> hloscope.toml:1 in [targets.step]
   | [targets.step]
   = fix: write function = "model.py:step\"""",
    "[targets.step]\nhlo = 'x.hlo'\nargs = []\n": """\
error: args does not go with HLO text
  --> hloscope.toml:3 in [targets.step]
   | args = []
   = fix: leave it out""",
    STEP + "slice = 'v5e:2x4'\nslices = ['v5e:2x4']\n": """\
error: slice and slices are both given
  --> hloscope.toml:4 in [targets.step]
   | slices = ['v5e:2x4']
   = fix: keep one of them""",
    "[defaults]\nfunction = 'a:f'\n": """\
error: unknown key 'function'
  --> hloscope.toml:2 in [defaults]
   | function = 'a:f'
   = fix: use one of slice, slices, mesh, args, kwargs, out, static, donate, dims, axis-types, dcn, \
compiler-options, timeout, kernel-costs, allow, source-root, contract, baseline, fail-on""",
    "[targets]\nstep = 3\n": """\
error: the target step is 3 and should be a table
  --> hloscope.toml:2 in [targets]
   | step = 3""",
    STEP + "slices = []\n": """\
error: slices cannot be []
  --> hloscope.toml:3 in [targets.step]
   | slices = []
   = fix: write slices = ["v5e:2x4", "v5p:2x2x2"]""",
    STEP + "fail-on = 'all'\n": """\
error: fail-on cannot be 'all'
  --> hloscope.toml:3 in [targets.step]
   | fail-on = 'all'
   = fix: write fail-on = "warning\"""",
    STEP + "allow = ['all-gather@X: weights']\n": """\
error: allow is about what rules find, and nothing that they find fails this check
  --> hloscope.toml:3 in [targets.step]
   | allow = ['all-gather@X: weights']
   = fix: add fail-on = "warning\"""",
    STEP + "fail-on = 'note'\nrules = { small-collectives = 8 }\n": """\
error: rules cannot be {'small-collectives': 8}
  --> hloscope.toml:4 in [targets.step]
   | rules = { small-collectives = 8 }
   = fix: write rules = { small-collectives = { min-collectives = 8 } }""",
    "[targets.a]\nfuncton = 'a.py:f'\n[targets.b]\nfunction = 'b.py:f'\nmesh = 3\ndims = 4\n": """\
error: unknown key 'functon'
  --> hloscope.toml:2 in [targets.a]
   | functon = 'a.py:f'
   = fix: did you mean function?

error: mesh cannot be 3
  --> hloscope.toml:5 in [targets.b]
   | mesh = 3
   = fix: write mesh = { data = 4, model = 2 }

error: dims cannot be 4
  --> hloscope.toml:6 in [targets.b]
   | dims = 4
   = fix: write dims = { S = 2048 }""",
    "[targets.step]\nfunction = model\n": """\
error: hloscope.toml is no TOML
  --> hloscope.toml:2:12
   | function = model
   |            ^
   = why: invalid value""",
}


@pytest.mark.parametrize("text", ERRORS)
def test_mistakes(text, tmp_path):
    path = written(tmp_path, text, "hloscope.toml")
    with pytest.raises(ConfigError) as caught:
        read_project(path)
    assert str(caught.value).replace(f"{tmp_path}/", "") == ERRORS[text]


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


def test_a_section_that_is_no_table(tmp_path):
    with pytest.raises(ConfigError, match=r"tool\.hloscope is 3 and should be a table"):
        read_project(written(tmp_path, "[tool]\nhloscope = 3\n"))
