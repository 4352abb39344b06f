"""Comparison of two lists of collectives: what was added, removed, changed, moved, or only respelled."""

from hloscope.matching.matching import match
from hloscope.matching.model import Change, ChangeKind, Comparison, Tally

__all__ = ["Change", "ChangeKind", "Comparison", "Tally", "match"]
