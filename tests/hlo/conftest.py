"""The module that most tests of this room read."""

from __future__ import annotations

import pytest
from hlo_texts import MODULE

from hloscope.hlo import HloModule, parse_module


@pytest.fixture(scope="session")
def module() -> HloModule:
    return parse_module(MODULE, name="step.hlo")
