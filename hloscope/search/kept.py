"""Trials that need not be made again, kept beside the compiles of the program that they are of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from hloscope.analysis.model import Collective
from hloscope.analysis.model.trial import Trials
from hloscope.program.compiling import kept_as_of
from hloscope.search.subject import Limits, Subject

_KIND = "tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    limits: Limits
    trials: Trials


class KeptTrials:
    """What was tried against one collective of one program.

    Source places count, as the changes name them: where lines have moved they are tried again, with compiles that are
    kept.

    Args:
        subject: The program.
        collective: The collective.
    """

    def __init__(self, subject: Subject, collective: Collective) -> None:
        self._store, self._key = subject.store, ""
        kept = None if subject.store is None else kept_as_of(subject.lowered)
        if kept is None:
            self._store = None
            return
        places = hashlib.sha256(repr(kept.locations.places).encode()).hexdigest()
        self._key = " ".join((kept.key, places, collective.computation, collective.name))

    def get(self, limits: Limits) -> Trials | None:
        """What was found with these limits or wider ones, or with any that left nothing to try."""
        import msgspec

        body = None if self._store is None else self._store.get(_KIND, self._key)
        if body is None:
            return None
        try:
            entry = msgspec.json.decode(body, type=_Entry)
        except msgspec.DecodeError:
            return None
        spent, found = entry.limits, entry.trials
        is_enough = spent.changes >= limits.changes and spent.seconds >= limits.seconds
        return found if is_enough or len(found.trials) >= found.candidates else None

    def put(self, limits: Limits, trials: Trials) -> None:
        """Keeps what was found."""
        import msgspec

        if self._store is not None:
            self._store.put(_KIND, self._key, msgspec.json.encode(_Entry(limits=limits, trials=trials)))
