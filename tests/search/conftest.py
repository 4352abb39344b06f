"""Programs lowered and compiled once for all tests of the room."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def subject_of(kept_compiles):
    """Everything that is known of `function` of this room's programs; trials go to the session's store."""
    from hloscope.app import analyzing
    from hloscope.compile.functions import Function
    from hloscope.compile.loading import import_target
    from hloscope.compile.target import find_attached_facts

    @cache
    def subject(name: str, file: str = "fixable.py"):
        function = import_target(f"{PROGRAMS / file}:{name}")
        facts = find_attached_facts(function)
        return analyzing.make_search_subject(Function(target=name, facts=facts, store=kept_compiles), function, facts)

    return subject


@pytest.fixture(scope="session")
def figures_of_program(subject_of):
    """What a program of this room costs, as it is written."""
    from hloscope.search.trials import read_figures

    def figures(name: str):
        found = subject_of(name)
        return read_figures(found.analysis, found.captured)

    return figures
