"""Detection of continuous integration, where notes are not read and nothing should be accepted."""

from __future__ import annotations

import os

_SAYS_NO = frozenset({"", "0", "false", "no", "off"})


def is_ci() -> bool:
    """Whether `CI` is set, as GitHub, GitLab and others do; `CI=false` is not set."""
    return os.environ.get("CI", "").strip().lower() not in _SAYS_NO


def is_strict(asked: bool | None) -> bool:
    """Whether what loosens a check fails it: as was asked for, else where `CI` is set."""
    return is_ci() if asked is None else asked
