"""Sums over collectives, per step on one device."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.vocabulary import Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A sum over collectives, per device and step.

    Attributes:
        wire_bytes: Sum of wire bytes x executions over the collectives whose bytes are known.
        payload_bytes: Sum of payload bytes x executions over the collectives whose bytes are known.
        collectives: Places in the program that start such a transfer.
        executions: Transfers started per step.
        bound: How the sums relate to the truth.
    """

    wire_bytes: int
    payload_bytes: int
    collectives: int
    executions: int
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(Total):
    """The sum over all collectives, per step on one device, and its parts.

    Attributes:
        by_axis: By axis names joined by `,`; `?` where they are not known, empty where no axis is crossed.
        by_kind: By kind of collective.
        by_link: By network; a collective that crosses both counts there by its parts, each a transfer of its own.
    """

    by_axis: dict[str, Total]
    by_kind: dict[str, Total]
    by_link: dict[str, Total]
