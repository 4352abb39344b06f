"""An analysis without hloscope's guesses: nothing that a user writes down is compared with a guess."""

from __future__ import annotations

from dataclasses import replace

from hloscope.analysis.model import Analysis, Collectives
from hloscope.analysis.totals import compute_totals

GUESS = "guess"
"""`SliceFact.chosen_by` of a slice that was guessed from a text."""


def remove_guesses(analysis: Analysis) -> Analysis:
    """The analysis as of text that names neither axes nor a slice: for contracts, baselines and comparisons."""
    return _remove_made_up_names(remove_guessed_times(analysis))


def remove_guessed_times(analysis: Analysis) -> Analysis:
    """The analysis without any value computed from the figures of a guessed chip."""
    if analysis.slice is None or analysis.slice.chosen_by != GUESS:
        return analysis
    collectives = tuple(
        replace(collective, time_us=None, exposed_us=None, time_error=None, overlap=None)
        for collective in analysis.collectives
    )
    memory = replace(analysis.memory, hbm_bytes=None, fits=None)
    known = replace(analysis, slice=None, time=None, collectives=Collectives(collectives), memory=memory)
    return analysis._remembered_by(known)


def _remove_made_up_names(analysis: Analysis) -> Analysis:
    if analysis.mesh is None or not analysis.mesh.made_up:
        return analysis
    collectives = tuple(replace(collective, axes=None) for collective in analysis.collectives)
    totals = compute_totals(collectives, hidden=bool(analysis.unmodelled))
    return analysis._remembered_by(replace(analysis, mesh=None, collectives=Collectives(collectives), totals=totals))
