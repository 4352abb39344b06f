"""What started a program is never where something of it was written."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import hloscope

MODEL = """
import jax
import jax.numpy as jnp


def layer(x, w):
    return x @ w


def step(x, w):
    return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(layer(y, w)), x).sum()


if __name__ == "__main__":
    import hloscope

    found = hloscope.analyze(step, ("f32[512,1024@X]", "f32[1024@X,1024]"), mesh={"X": 8})
    print(json.dumps(found.to_dict()))
"""


def files(value):
    """Every file that a document names as a place."""
    if isinstance(value, dict):
        found = {value["file"]} if "file" in value and "line" in value else set()
        return found.union(*map(files, value.values()))
    return set().union(*map(files, value)) if isinstance(value, list) else set()


@pytest.mark.tpu_compiler
def test_no_document_names_another_file_than_the_users(tmp_path, root):
    (tmp_path / "model.py").write_text("import json\n" + MODEL)
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "HLOSCOPE_CACHE": "1",
        "HLOSCOPE_CACHE_DIR": str(tmp_path / "kept"),
    }
    arguments = ["--mesh", "X=8", "--arg", "f32[512,1024@X]", "--arg", "f32[1024@X,1024]", "--format", "json"]
    commands = {
        "console script": ["-c", "from hloscope.cli import main; main()", "analyze", "model.py:step", *arguments],
        "module, from the cache": ["-m", "hloscope", "analyze", "model.py:step", *arguments],
        "script, from the cache": ["model.py"],
    }
    for how, command in commands.items():
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert any("overlap" in one for one in document["collectives"])
        assert files(document) == {str(tmp_path / "model.py")}, how


STACK = """HloModule m, is_scheduled=true, num_partitions=8

FileNames
1 "/home/me/project/train.py"
2 "{launcher}"
3 "/venv/lib/python3.12/site-packages/IPython/core/interactiveshell.py"
4 "<frozen runpy>"

FunctionNames
1 "step"
2 "main"
3 "run"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=31 column=4}}
2 {{file_name_id=2 function_name_id=3 line=7}}
3 {{file_name_id=1 function_name_id=2 line=99}}
4 {{file_name_id=4 function_name_id=3 line=88}}

StackFrames
1 {{file_location_id=4 parent_frame_id=1}}
2 {{file_location_id=3 parent_frame_id=2}}
3 {{file_location_id=2 parent_frame_id=3}}
4 {{file_location_id=1 parent_frame_id=4}}

ENTRY main {{
  p = f32[8]{{0}} parameter(0)
  ROOT r = f32[8]{{0}} all-reduce(p), replica_groups=[1,8]<=[8], to_apply=add, metadata={{stack_frame_id={frame}}}
}}
"""


def reduced(*, frame, launcher, folder="/venv/lib/python3.12/site-packages/"):
    adding = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\nENTRY"
    file = f"{folder}{launcher}".replace("\\", "\\\\")
    return STACK.format(launcher=file, frame=frame).replace("ENTRY", adding)


@pytest.mark.parametrize(
    "launcher",
    [
        "click/core.py",
        "absl/app.py",
        "fire/core.py",
        "typer/main.py",
        "hydra/_internal/utils.py",
        "_pytest/python.py",
        "ipykernel/kernelbase.py",
        "pluggy/_callers.py",
        "hloscope/compile/lowering.py",
    ],
)
def test_a_stack_ends_at_the_innermost_launcher(launcher):
    (one,) = hloscope.analyze_text(reduced(frame=4, launcher=launcher)).collectives
    assert [(frame.file, frame.line) for frame in one.source] == [("/home/me/project/train.py", 31)]
    (one,) = hloscope.analyze_text(reduced(frame=3, launcher=launcher)).collectives
    assert one.source == ()


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/tmp/ipykernel_12/345.py", False),
        ("<ipython-input-3-abc>", False),
        ("/home/me/hloscope/fixtures/programs/matmul.py", False),
        ("/home/me/project/cli/train.py", False),
        ("C:\\venv\\Lib\\site-packages\\click\\core.py", True),
        ("C:\\Python312\\Lib\\runpy.py", True),
        ("/venv/bin/hloscope", True),
        ("/usr/lib/python3.12/threading.py", True),
        ("/usr/lib/python3.12/unittest/case.py", True),
        ("/usr/lib/python3.12/cProfile.py", True),
        ("/home/me/project/absl/nets.py", False),
        ("/home/me/project/case.py", False),
    ],
)
def test_what_starts_programs(file, expected):
    (one,) = hloscope.analyze_text(reduced(frame=3, launcher=file, folder="")).collectives
    assert (one.source == ()) is expected
