"""Programs compiled once for all tests of the room, and collectives told apart by what the tests say of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
SEEDS = Path(__file__).parent.parent.parent / "fixtures" / "programs"


@pytest.fixture(scope="session")
def explained(kept_compiles):
    """The analysis, with reasons, of `file.py:function` in this room's programs or among the seeds."""
    from hloscope.app.analyzing import analyze_capture
    from hloscope.compile.compiling import start_compile
    from hloscope.compile.loading import import_target
    from hloscope.compile.lowering import lower
    from hloscope.compile.target import find_attached_facts

    @cache
    def analysis_of_target(target: str):
        folder = PROGRAMS if (PROGRAMS / target.partition(":")[0]).exists() else SEEDS
        function = import_target(f"{folder / target}")
        captured = start_compile(
            lower(function, find_attached_facts(function), name=target), store=kept_compiles
        ).capture()
        return analyze_capture(captured, target)

    return analysis_of_target
