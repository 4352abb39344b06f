"""The keys of a target, and what their values have to be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _some(check: _Check) -> _Check:
    return lambda value: bool(value) and _are(check)(value)


def _maps_to(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_cost(value: Any) -> bool:
    return _are(_is_number)(value) and len(value) == 2


def _is_mesh(value: Any) -> bool:
    return _is_text(value) or (_maps_to(_is_count)(value) and all(value.values()))


def _is_array(value: Any) -> bool:
    """A notation, or a pytree of notations."""
    if isinstance(value, list):
        return all(map(_is_array, value))
    return _is_text(value) or (isinstance(value, dict) and all(map(_is_array, value.values())))


def _is_contract(value: Any) -> bool:
    return isinstance(value, str | list | dict)


SEVERITIES = ("error", "warning", "note")
"""What `fail-on` takes."""

KEYS: dict[str, tuple[_Check, str]] = {
    "function": (_is_text, '"model.py:step"'),
    "hlo": (_is_text, '"step.hlo"'),
    "slice": (_is_text, '"v5e:2x4"'),
    "slices": (_some(_is_text), '["v5e:2x4", "v5p:2x2x2"]'),
    "mesh": (_is_mesh, "{ data = 4, model = 2 }"),
    "args": (_are(_is_array), '["bf16[512@data,2048]"]'),
    "kwargs": (_maps_to(_is_array), '{ w = "bf16[2048,8192@model]" }'),
    "out": (_are(_is_text), "[\"P('data', None)\"]"),
    "static": (lambda value: isinstance(value, dict), "{ shift = 5 }"),
    "donate": (_are(_is_count), "[0, 1]"),
    "dims": (_maps_to(_is_count), "{ S = 2048 }"),
    "axis-types": (_is_text, '"auto"'),
    "dcn": (_is_mesh, "{ data = 2 }"),
    "compiler-options": (lambda value: isinstance(value, dict), "{ xla_tpu_enable_async_collective_fusion = false }"),
    "kernel-costs": (_maps_to(_is_cost), "{ splash = [7e11, 2e8] }"),
    "source-root": (_is_text, '"src"'),
    "contract": (_is_contract, '["all-reduce@model <= 2MB", "nothing else"]'),
    "baseline": (_is_flag, "false"),
    "fail-on": (lambda value: value in SEVERITIES, '"warning"'),
    "allow": (_are(_is_text), '["all-gather@fsdp: weights of FSDP"]'),
    "timeout": (lambda value: _is_number(value) and not _is_flag(value) and 0 <= value < math.inf, "600"),
    "rules": (_maps_to(_maps_to(_is_number)), "{ small-collectives = { min-collectives = 8 } }"),
}
ONLY_FOR_FUNCTIONS = ("args", "kwargs", "out", "static", "donate", "dims", "axis-types", "compiler-options", "timeout")
"""What a file of HLO text cannot be told."""

OF_RULES = ("allow", "rules")
"""What says nothing where no finding of a rule fails the check."""
