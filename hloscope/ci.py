"""Detection of continuous integration, where notes are not read and nothing should be accepted."""

from __future__ import annotations

import os

_SAYS_NO = frozenset({"", "0", "false", "no", "off"})


def is_ci() -> bool:
    """Returns whether `CI` is set, as in GitHub, GitLab and others; `CI=false` counts as not set."""
    return os.environ.get("CI", "").strip().lower() not in _SAYS_NO


def is_strict(asked: bool | None) -> bool:
    """Returns whether loosened checks fail: as requested, or otherwise if `CI` is set."""
    return is_ci() if asked is None else asked
