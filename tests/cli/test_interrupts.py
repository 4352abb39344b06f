"""Ctrl-C ends a command wherever it comes."""

from __future__ import annotations

import gc
import signal
import time

import pytest

from hloscope.cli.running import run_guarded


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
