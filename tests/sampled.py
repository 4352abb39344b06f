"""Of many cases that each compile, a part in every run and the others in the long one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """The first of them in every run."""
    return [_case(case, now=at < count) for at, case in enumerate(cases)]


def every_other(cases: Iterable[Any]) -> list[Any]:
    """Every second of them in every run, so that neighbors, which are alike, take turns."""
    return [_case(case, now=at % 2 == 0) for at, case in enumerate(cases)]


def _case(case: Any, *, now: bool) -> Any:
    if now:
        return case
    values, marks, name = (case.values, case.marks, case.id) if hasattr(case, "marks") else ((case,), (), None)
    return pytest.param(*values, marks=[*marks, pytest.mark.long], id=name)
