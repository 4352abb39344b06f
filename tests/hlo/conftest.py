"""The module that most tests of this room read."""

from __future__ import annotations

import os

import pytest
from hlo_texts import MODULE

from hloscope.hlo import HloModule, parse_module

os.environ["HLOSCOPE_CACHE"] = "0"  # what a test learns stays in its process


@pytest.fixture(scope="session")
def module() -> HloModule:
    return parse_module(MODULE, name="step.hlo")
