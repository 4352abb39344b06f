"""Where in the user's model a collective is: in which module and layers, in which pass, and what it moves of it."""

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
    """With what is computed again for it."""
    OPTIMIZER = "optimizer"
    """All that comes after the gradient."""


class Role(StrEnum):
    """What is moved, as the module sees it."""

    WEIGHTS = "weights"
    """An argument itself."""
    GRADIENT = "gradient"
    """What an argument is updated with."""
    ACTIVATIONS = "activations"
    """What goes into a multiplication with an argument, or comes out of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """A place in the user's model.

    Attributes:
        module: The path of the module, such as `layers.*.mlp.gate`; `*` stands for the numbers of layers. None where
            nothing names one.
        layers: What the first `*` stands for, in ascending order: several numbers where one collective serves several
            layers.
        phase: The pass of the training step; None where the program computes no gradient, and where it is not known.
        role: What is moved; None where it is none of these, or not known.
        arguments: The arguments that it is about, as the program names them.
        line: The innermost line of the user's code that is not in a helper which many lines call.
    """

    module: str | None = None
    layers: tuple[int, ...] = ()
    phase: Phase | None = None
    role: Role | None = None
    arguments: tuple[str, ...] = ()
    line: Frame | None = None


SharedPart = Annotated[ModelPart, Table("parts", "Places in the user's model; several collectives may be at one.")]
