"""What pages are made of is what other reports are made of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hloscope.api.analyzing import analyze_hlo

sys.path.append(str(Path(__file__).parent.parent))


@pytest.fixture(scope="package")
def captured(root):
    """HLO text as it was compiled."""

    def text(name: str) -> str:
        return (root / "fixtures" / "captured" / f"mixture_of_experts.{name}.jax-0.10.hlo").read_text()

    return text


@pytest.fixture(scope="package")
def found(captured):
    """A program with a loop, a collective in it and findings, on a slice."""
    return analyze_hlo(captured("mixture_of_experts"), name="moe.hlo", mesh={"X": 8}, slice="v5e:2x4")
