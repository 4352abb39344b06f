"""The plugin is tested in test suites of its own, run by pytest in another process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def suite(pytester, monkeypatch):
    """Runs a suite with the plugin, as `pip install hloscope[pytest]` would load it."""
    for name in list(os.environ):
        if name.startswith(("JAX_", "XLA_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*arguments):
        return pytester.runpytest_subprocess("-p", "hloscope.pytest_plugin", "-p", "no:cacheprovider", *arguments)

    return run
