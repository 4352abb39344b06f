"""What can be said of a target is said once: Python, the command line and the targets file follow from it."""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import fields

import pytest

import hloscope
from hloscope.app.config import TARGET_KEYS
from hloscope.app.pricing import price
from hloscope.compile.target import OPTIONS, ProgramOptions, TargetFacts, TargetOptions, make_facts

NAMES = [option.name for option in OPTIONS]


def test_every_option_is_a_fact_and_a_keyword():
    assert {field.name for field in fields(TargetFacts)} == set(NAMES)
    assert TargetOptions.__optional_keys__ | {"args"} == set(NAMES)
    assert make_facts() == TargetFacts()
    assert make_facts(**dict.fromkeys(TargetOptions.__optional_keys__)) == TargetFacts()


@pytest.mark.parametrize(
    ("function", "given", "options"),
    [
        (hloscope.analyze, ["model:step"], TargetOptions),
        (hloscope.target, [], TargetOptions),
        (hloscope.verify, ["model:step", "model:twin"], ProgramOptions),
        (price, ["model:step", ("v5e:2x4",)], ProgramOptions),
    ],
)
def test_signatures_and_docstrings_show_every_option(function, given, options):
    shown = inspect.signature(function).parameters
    assert "options" not in shown
    assert options.__optional_keys__ <= shown.keys()
    for name in options.__optional_keys__:
        assert f"\n    {name}: " in inspect.getdoc(function)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'msh'\n.*did you mean mesh"):
        function(*given, msh=8)


def test_keys_of_the_targets_file_have_values_that_fit():
    for option in OPTIONS:
        if option.key:
            fits, example = TARGET_KEYS[option.key]
            assert fits(tomllib.loads(f"value = {example}")["value"]), option.name
