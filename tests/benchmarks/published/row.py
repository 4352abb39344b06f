"""What one published measurement is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

STEP = "step"
"""The whole program was timed."""
COLLECTIVE = "collective"
"""The collective alone was timed, as the picture or the text says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        name: Its name in tables.
        program: The function that is compiled.
        slice: Where it ran.
        args: Array types of its arguments.
        measured_us: What was measured.
        uncertainty: Relative half-width of what the source leaves open: rounding, reading off a picture, dispatch.
        source: Who measured it.
        mesh: Mesh axes and sizes.
        out: Sharding of the result; None leaves it to the program.
        options: Compiler options.
        timed: What was timed: the step or its collective.
        extra: Whether the row is beyond the ones that the model must predict.
    """

    name: str
    program: Callable[..., Any]
    slice: str
    args: tuple[str, ...]
    measured_us: float
    uncertainty: float
    source: str
    mesh: Mapping[str, int] | None = None
    out: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    timed: str = STEP
    extra: bool = False

    @property
    def generation(self) -> str:
        """The chip's name."""
        prefix = self.slice.rpartition("*")[2].partition(":")[0]
        return {"tpu7x": "v7x"}.get(prefix, prefix)
