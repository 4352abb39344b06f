"""What makes two collectives of two programs the same one: never a name, a channel or a line of HLO."""

from __future__ import annotations

from collections.abc import Hashable

from hloscope.analysis.model import Collective
from hloscope.analysis.places import path_of, users_frame


def axes_identity(collective: Collective) -> Hashable:
    """The axes; where they are not known, the groups as sets of devices."""
    if collective.axes is not None:
        return collective.axes
    return frozenset(frozenset(group) for group in collective.groups)


def function_of(collective: Collective) -> Hashable:
    """The function that a collective was written in; where no line is known, XLA's `op_name`.

    Checkouts lie in different folders, so a file counts by its name.
    """
    frame = users_frame(collective.source)
    if frame is None:
        return ("", collective.op_name)
    return (path_of(frame).name, frame.function)


def place_of(collective: Collective) -> Hashable:
    """The line that a collective was written in, with its function."""
    frame = users_frame(collective.source)
    return (function_of(collective), None if frame is None else (frame.line, frame.column))


def amount_of(collective: Collective) -> Hashable:
    """How much moves, how often, how deep in loops; two unknown amounts are equal here and told as unsure elsewhere."""
    return (
        collective.payload_bytes,
        collective.wire_bytes,
        collective.executions,
        collective.executions_bound,
        len(collective.loops),
    )
