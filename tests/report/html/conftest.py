"""What pages are made of is what other reports are made of."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hloscope.app.analyzing import analyze_hlo
from hloscope.model import Mesh

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


@pytest.fixture(scope="package")
def many():
    """Thousands of collectives in some parts of a model."""
    from report_examples import FULL, GATHER

    kinds = {"all-gather": "X", "all-reduce": "Y"}
    rows = [
        replace(GATHER, kind=kind, axes=(axis,), name=f"{kind}.{number}", line=number, wire_bytes=number * 1000 + 7)
        for number, (kind, axis) in enumerate([*kinds.items()] * 1500, start=1)
    ]
    return replace(FULL, collectives=tuple(rows), mesh=Mesh(axis_names=("X", "Y"), axis_sizes=(4, 2)))


@pytest.fixture(scope="module")
def browser():
    """A browser for the tests of a file."""
    from pages import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture
def shown(browser, tmp_path):
    """Shows a result, or a page of one, and ends with no complaint of the browser."""
    from pages import Shown

    open_pages = []

    def show(result, **how):
        html = result if isinstance(result, str) else result.report("html")
        open_pages.append(Shown(browser, html, tmp_path, **how))
        return open_pages[-1].page

    yield show
    for page in open_pages:
        page.close()
