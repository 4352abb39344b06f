"""The TPU generations that hloscope knows, and their lookup by name. A new one is a file and its place in `CHIPS`."""

from __future__ import annotations

import difflib
import re

from hloscope.base.errors import SliceError
from hloscope.tpu.generation import Chip
from hloscope.tpu.v2 import V2
from hloscope.tpu.v3 import V3
from hloscope.tpu.v4 import V4
from hloscope.tpu.v5e import V5E
from hloscope.tpu.v5p import V5P
from hloscope.tpu.v6e import V6E
from hloscope.tpu.v7x import V7X

CHIPS: tuple[Chip, ...] = (V2, V3, V4, V5E, V5P, V6E, V7X)
"""Every generation, oldest first."""

DEFAULT_CHIP = V5E
"""The generation that programs are compiled for where the user names none."""

ALTERNATIVES = (V6E, V5P)
"""Generations to propose for a mesh that fits no slice of the user's, in this order."""


def find_chip(name: str) -> Chip:
    """The generation called `name`, in any of its spellings, whatever the case.

    Raises:
        SliceError: No generation has that name.
    """
    found = _chip_spelled(name.strip().lower())
    if found is not None:
        return found
    guesses = find_nearest_chips(name)
    raise SliceError(
        f'unknown TPU generation "{name.strip()}"',
        why=f"the known ones are {', '.join(candidate.name for candidate in CHIPS)}",
        fix=f"did you mean {' or '.join(guess.name for guess in guesses)}?" if guesses else None,
    )


def find_nearest_chips(name: str) -> tuple[Chip, ...]:
    """At most three generations whose name or alias looks like `name`, the likest first; none when nothing does."""
    wanted = re.sub(r"^(?:google\W*)?tpu\W*(?=v?\d)", "", name.strip().lower())
    wanted = wanted if wanted.startswith("v") else f"v{wanted}" if wanted[:1].isdigit() else wanted
    exact = _chip_spelled(wanted)
    if exact is not None:
        return (exact,)

    def likeness(entry: Chip) -> float:
        return max(difflib.SequenceMatcher(None, wanted, spelling).ratio() for spelling in entry.spellings)

    close = [entry for entry in CHIPS if likeness(entry) >= 0.6]
    return tuple(sorted(close, key=likeness, reverse=True)[:3])


def _chip_spelled(spelling: str) -> Chip | None:
    return next((entry for entry in CHIPS if spelling in entry.spellings), None)


def find_chip_of_kind(device_kind: str) -> Chip | None:
    """The generation of JAX devices of a kind, or None if it is unknown."""
    return next((entry for entry in CHIPS if entry.device_kind == device_kind), None)


def find_chip_in_dump(name: str) -> Chip | None:
    """The generation that libtpu's dumps call by a version and variant, or None if it is unknown."""
    return next((entry for entry in CHIPS if entry.name_in_dumps == name), None)
