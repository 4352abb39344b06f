"""Where the time of one step goes, as predicted for a slice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The predicted time of one step on one device.

    Attributes:
        step_us: The whole step.
        compute_us: The part in which the device computes.
        exposed_us: The part in which it only waits for communication.
        hidden_us: Communication that computation hides.
    """

    step_us: float
    compute_us: float
    exposed_us: float
    hidden_us: float
