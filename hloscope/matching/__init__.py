"""Two lists of collectives side by side: what was added, removed, changed or moved, or is only spelled otherwise."""

from hloscope.matching.matching import match
from hloscope.matching.model import Change, ChangeKind, Comparison, Tally

__all__ = ["Change", "ChangeKind", "Comparison", "Tally", "match"]
