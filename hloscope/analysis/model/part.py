"""The place of a collective in the user's model: module, layers, pass, and the role of the moved array."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from hloscope.analysis.model.reason import Frame
from hloscope.documents import Table


class Phase(StrEnum):
    """The pass of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """Including what is recomputed for it."""
    OPTIMIZER = "optimizer"
    """Everything after the gradient."""


class Role(StrEnum):
    """The role of the moved array in its module."""

    WEIGHTS = "weights"
    """An argument itself."""
    GRADIENT = "gradient"
    """The gradient of an argument."""
    ACTIVATIONS = "activations"
    """An operand or the result of a multiplication with an argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """A place in the user's model.

    Attributes:
        module: Path of the module, such as `layers.*.mlp.gate`, with `*` for layer numbers; None if there is no module
            name.
        layers: Layer numbers that the first `*` stands for, ascending; several if one collective serves several layers.
        phase: Pass of the training step; None if unknown or if the program computes no gradient.
        role: Role of the moved array; None if unknown or none of these.
        arguments: Names of the program's arguments that it concerns.
        line: Innermost line of user code outside helpers that many lines call.
    """

    module: str | None = None
    layers: tuple[int, ...] = ()
    phase: Phase | None = None
    role: Role | None = None
    arguments: tuple[str, ...] = ()
    line: Frame | None = None


SharedPart = Annotated[ModelPart, Table("parts", "Places in the user's model; several collectives may be at one.")]
