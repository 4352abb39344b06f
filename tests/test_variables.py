"""Environment variables that cannot be read are refused before any work, by commands and in Python."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from hloscope.base.calls import front_door
from hloscope.base.errors import HloscopeError, NotationError
from hloscope.cli import group
from hloscope.compile.environment import import_jax

REFUSED = {
    "HLOSCOPE_MAX_WORKERS": ("abc", "0", "1.5"),
    "HLOSCOPE_CACHE": ("maybe",),
    "HLOSCOPE_TRACEBACK": ("zzz",),
    "HLOSCOPE_TIMEOUT": ("nan",),
}
TAKEN = {
    "HLOSCOPE_MAX_WORKERS": ("", "4"),
    "HLOSCOPE_CACHE": ("", "0", "1"),
    "HLOSCOPE_TRACEBACK": ("", "full"),
    "HLOSCOPE_TIMEOUT": ("", "0", "2.5"),
}


def each(values):
    return pytest.mark.parametrize(("name", "value"), [(name, value) for name in values for value in values[name]])


@each(REFUSED)
def test_what_a_variable_does_not_take_is_refused(says, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    ended = CliRunner().invoke(group, ["rules"])
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert f"{name}=" in says(ended.stderr)
    with pytest.raises(NotationError, match=f"{name}="):
        front_door(lambda: "worked")()


@each(TAKEN)
def test_what_a_variable_takes(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert front_door(lambda: "worked")() == "worked"


def test_what_jax_rejects_in_the_environment_is_one_message(says, tmp_path, monkeypatch):
    (tmp_path / "jax.py").write_text("raise ValueError(\"invalid truth value 'garbage' for environment 'JAX_X'\")")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    with pytest.raises(HloscopeError) as refused:
        import_jax()
    assert "JAX_X" in says(refused)
