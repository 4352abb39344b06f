"""Requests: what a target is, decided in one place for every front door, and results that begin in part."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from hloscope.app.analyses import find_analysis
from hloscope.app.requests import PYTHON, Request
from hloscope.base.errors import TargetError
from hloscope.base.progress import StageDisplay

CAPTURED = Path(__file__).parent.parent / "fixtures/captured"
GATHER, EXPERTS = (
    CAPTURED / f"{name}.jax-0.10.hlo" for name in ("matmul.matmul", "mixture_of_experts.mixture_of_experts")
)
SILENT = replace(PYTHON, progress=lambda: nullcontext(StageDisplay()))


@pytest.fixture
def dump(tmp_path):
    for number, source in enumerate((GATHER, EXPERTS)):
        name = f"module_{number:04}.jit_{source.name.partition('.')[0]}.after_optimizations.txt"
        tmp_path.joinpath(name).write_text(source.read_text())
    return tmp_path


@pytest.mark.parametrize(
    ("target", "is_text"),
    [("model.py:step", False), ("package.module:fn", False), ("step.hlo", True), (GATHER, True), ("dump.txt.gz", True)],
    ids=str,
)
def test_the_name_of_a_target_says_whether_it_is_compiled(target, is_text):
    assert Request(target=target).is_text is is_text


def test_a_dash_is_text_where_there_is_a_standard_input():
    assert not Request(target="-").is_text
    read = replace(SILENT, standard_input=lambda: ("<stdin>", GATHER.read_text()))
    request = Request(target="-", door=read)
    assert request.is_text
    assert find_analysis(request).target == "<stdin>"


def test_an_option_is_refused_by_the_name_that_the_front_door_has_for_it():
    request = Request(
        target=str(GATHER), said={"dims": {"S": 8}}, door=replace(SILENT, called=lambda name: f"--{name}")
    )
    with pytest.raises(TargetError, match="--dims does not apply to HLO text"):
        find_analysis(request)


def test_the_modules_of_a_folder_are_a_partial_result(dump):
    begun = []
    door = replace(SILENT, begin=lambda subject, found, _: begun.append((subject, found)))
    whole = find_analysis(Request(target=dump, door=door))
    ((subject, listed),) = begun
    assert subject == "dump"
    assert [module.name for module in listed.modules] == ["jit_mixture_of_experts", "jit_matmul"]
    assert whole.module == "jit_mixture_of_experts"
