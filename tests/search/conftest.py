"""Programs lowered and compiled once for all tests of the room."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def subject_of(kept_compiles):
    """Everything that is known of `function` of this room's programs; trials go to the session's store."""
    from hloscope.api.analyzing import analysis_of
    from hloscope.program.compiling import start_compile
    from hloscope.program.loading import load
    from hloscope.program.lowering import lower
    from hloscope.program.target import attached_facts
    from hloscope.search import Subject

    @cache
    def subject(name: str, file: str = "fixable.py"):
        function = load(f"{PROGRAMS / file}:{name}")
        lowered = lower(function, attached_facts(function), name=name)
        pending = start_compile(lowered, store=kept_compiles)
        captured = pending.capture()
        analysis = analysis_of(captured, name)
        return Subject(
            function=function,
            lowered=lowered,
            captured=captured,
            analysis=analysis,
            store=kept_compiles,
            kept=pending.kept,
        )

    return subject


@pytest.fixture(scope="session")
def figures_of_program(subject_of):
    """What a program of this room costs, as it is written."""
    from hloscope.search.figures import figures_of

    def figures(name: str):
        found = subject_of(name)
        return figures_of(found.analysis, found.captured)

    return figures
