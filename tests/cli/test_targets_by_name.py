"""Names of the targets file in place of a function: every command takes them, before a folder of that name."""

from __future__ import annotations

import pytest
from command_line import hloscope

MODEL = """\
import jax


def step(x, w):
    return jax.nn.relu(x @ w)


def twin(x, w):
    return jax.numpy.maximum(x @ w, 0)
"""
TARGETS = """\
[targets.mine]
function = "model.py:step"
mesh = { X = 8 }
slice = "v5e:2x4"
args = ["f32[64,128@X]", "f32[128@X,64]"]

[targets.other]
function = "model.py:twin"
mesh = { X = 8 }
slice = "v5e:2x4"
args = ["f32[64,128@X]", "f32[128@X,64]"]
"""


@pytest.mark.tpu_compiler
@pytest.mark.parametrize(
    "command",
    [
        ("analyze", "mine"),
        ("price", "mine", "--slice", "v6e:2x4"),
        ("verify", "mine", "--reference", "other"),
        ("timeline", "mine"),
    ],
    ids=lambda command: command[0],
)
def test_a_name_goes_before_a_folder_of_that_name(tmp_path, command):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "hloscope.toml").write_text(TARGETS)
    (tmp_path / "mine").mkdir()
    done = hloscope(*command, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("error")) == (0, 0), done.stderr
    assert done.stdout.startswith("model.py:step")
