"""The keys of a target in the targets file, and what their values have to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hloscope.program.options import OPTIONS, are

_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


SEVERITIES = ("error", "warning", "note")
"""What `fail-on` takes."""

KEYS: dict[str, tuple[_Check, str]] = {
    "function": (_is_text, '"model.py:step"'),
    "hlo": (_is_text, '"step.hlo"'),
    "slice": (_is_text, '"v5e:2x4"'),
    "slices": (lambda value: bool(value) and are(_is_text)(value), '["v5e:2x4", "v5p:2x2x2"]'),
    **{option.key: (option.fits, option.example) for option in OPTIONS if option.key},
    "source-root": (_is_text, '"src"'),
    # a table too: whoever reads the contract says how to write it as text
    "contract": (lambda value: isinstance(value, str | list | dict), '["all-reduce@model <= 2MB", "nothing else"]'),
    "baseline": (lambda value: isinstance(value, bool), "false"),
    "fail-on": (lambda value: value in SEVERITIES, '"warning"'),
}
ONLY_FOR_FUNCTIONS = tuple(option.key for option in OPTIONS if option.key and not option.of_text)
"""What a file of HLO text cannot be told."""

OF_RULES = ("allow", "rules")
"""What says nothing where no finding of a rule fails the check."""
