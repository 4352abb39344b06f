"""Skeletons that no template describes."""

from __future__ import annotations

from enum import Enum


class Unusual(Enum):
    """What is known of a skeleton that has no template."""

    IRREGULAR = "each line of it is parsed by itself"
    INCOMPLETE = "the instruction goes on in the next line"
