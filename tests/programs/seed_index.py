"""Shared by the tests of the seed programs: their folder on the import path, and every program with its file."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "fixtures" / "programs"
NEEDS = {"nnx_linear": "flax"}
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))


def files():
    """The files that `seed_programs.py` names, in the order of the book."""
    return importlib.import_module("seed_programs").SEED_PROGRAMS


def programs(slow=()):
    """One parameter for each function of each seed: its file's name and its `SeedProgram`; slow ones are `long`."""
    for name in files():
        if name in NEEDS and find_spec(NEEDS[name]) is None:
            reason = pytest.mark.skip(reason=f"{NEEDS[name]} is not installed")
            yield pytest.param(name, None, id=name, marks=reason)
            continue
        for program in importlib.import_module(name).PROGRAMS:
            marks = pytest.mark.long if program.function in slow else ()
            yield pytest.param(name, program, id=f"{name}-{program.function}", marks=marks)
