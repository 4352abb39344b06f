"""Ctrl-C ends a command wherever it comes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

import hloscope.cli
from hloscope.cli.running import run_guarded

JAX_THAT_IS_INTERRUPTED = """
import os, pathlib, signal
try:
    exec("raise KeyboardInterrupt")
except KeyboardInterrupt:
    pass
signal.raise_signal(signal.SIGINT)
pathlib.Path(__file__).with_name("imported").touch()
"""


def test_ctrl_c_in_a_callback_of_the_garbage_collector_is_not_lost(capsys):
    def interrupted_once(phase, _):
        if phase == "stop":
            gc.callbacks.remove(interrupted_once)
            signal.raise_signal(signal.SIGINT)

    def run():
        gc.callbacks.append(interrupted_once)
        gc.collect()
        time.sleep(5)

    with pytest.raises(SystemExit) as ended:
        run_guarded(run, debug=False)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.process
def test_ctrl_c_while_jax_is_imported_waits_for_the_import(tmp_path, root):
    (tmp_path / "jax.py").write_text(JAX_THAT_IS_INTERRUPTED)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"}
    command = [sys.executable, "-m", "hloscope", "analyze", "model.py:step"]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
    assert (tmp_path / "imported").exists()


def test_ctrl_c_while_the_command_itself_is_imported(monkeypatch):
    def interrupted(_name):
        raise KeyboardInterrupt

    monkeypatch.setattr(hloscope.cli, "import_module", interrupted)
    ended = CliRunner().invoke(hloscope.cli.group, ["analyze"])
    assert (ended.exit_code, ended.output) == (130, "interrupted\n")
