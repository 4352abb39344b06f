"""Compiling user programs inside the test process."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.compile.target import TargetFacts

USER_CODE = Path(__file__).parent / "user_code"


@pytest.fixture
def compiled():
    """Compiles `file.py:fn` of the user_code folder, or of fixtures/programs, with facts from the command line."""
    from hloscope.app.analyzing import analyze_function
    from hloscope.compile.functions import Function

    def compile_target(target: str, **facts):
        folder = USER_CODE if (USER_CODE / target.partition(":")[0]).exists() else Path("fixtures/programs")
        captured = []
        facts = TargetFacts(**facts)
        analyze_function(Function(target=f"{folder / target}", facts=facts, when_compiled=captured.append))
        return captured[0]

    return compile_target


@pytest.fixture(autouse=True)
def in_checkout(root, monkeypatch):
    monkeypatch.chdir(root)
