"""The cache of trials, stored with the compiles of their program."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache

from hloscope.analysis.model import Analysis, Collective, Collectives
from hloscope.analysis.model.evidence import evidence_if_known, with_evidence
from hloscope.analysis.model.trial import Figures, Trials
from hloscope.compiler.cache import Kept
from hloscope.documents import text_of
from hloscope.program.compiling import Pending
from hloscope.search.subject import Limits
from hloscope.store import Store

_KIND, _FIGURES = "tried", "figures"
_FORM = "7"
"""Of the entries and of how trials are judged: changes with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    limits: Limits
    trials: Trials


class KeptTrials:
    """What was tried against one collective of one program.

    Source places count, as the changes name them: where lines have moved they are tried again, with compiles that are
    kept.

    Args:
        store: Where it is kept; None keeps none.
        kept: What the program's compile is kept as; None where it is not.
        collective: The collective.
    """

    def __init__(self, store: Store | None, kept: Kept | None, collective: Collective) -> None:
        self._store, self._key = None if kept is None else store, ""
        if kept is not None:
            self._key = " ".join((_FORM, kept.key, _places(kept), collective.computation, collective.name))

    @property
    def known(self) -> Trials | None:
        """What was found, whatever the limits, and whether or not that was all; None where nothing was tried."""
        entry = self._entry()
        return entry.trials if entry is not None and entry.trials.trials else None

    def _entry(self) -> _Entry | None:
        import msgspec

        body = None if self._store is None else self._store.get(_KIND, self._key)
        if body is None:
            return None
        try:
            return msgspec.json.decode(body, type=_Entry)
        except msgspec.DecodeError:
            return None

    def get(self, limits: Limits) -> Trials | None:
        """What was found with these limits or wider ones, or with any that left nothing to try; all of it, or None."""
        entry = self._entry()
        if entry is None or entry.trials.stopped:
            return None
        spent, found = entry.limits, entry.trials
        is_enough = spent.changes >= limits.changes and spent.seconds >= limits.seconds
        return found if is_enough or len(found.trials) >= found.candidates else None

    def put(self, limits: Limits, trials: Trials) -> None:
        """Keeps what was found."""
        import msgspec

        if self._store is not None:
            self._store.put(
                _KIND, self._key, msgspec.json.encode(_Entry(limits=limits, trials=trials), enc_hook=text_of)
            )


@dataclass(frozen=True, slots=True)
class KeptFigures:
    """What a program costs once it is compiled, kept beside its compile.

    Attributes:
        store: Where it is kept.
        key: Of the program, the compiler and the cost model.
    """

    store: Store
    key: str

    @classmethod
    def of(cls, pending: Pending, store: Store | None) -> KeptFigures | None:
        """Where the figures of a program are kept; None where they are not."""
        if store is None or pending.kept is None:
            return None
        chip, costs = pending.program.slice.chip, sorted(pending.program.facts.kernel_costs.items())
        return cls(store, f"{_FORM} {pending.kept.key} {chip} {costs}")

    def get(self) -> Figures | None:
        """The figures; None if unknown."""
        import msgspec

        body = self.store.get(_FIGURES, self.key)
        try:
            return None if body is None else msgspec.json.decode(body, type=Figures)
        except msgspec.DecodeError:
            return None

    def put(self, figures: Figures) -> None:
        """Keeps the figures."""
        import msgspec

        self.store.put(_FIGURES, self.key, msgspec.json.encode(figures, enc_hook=text_of))


def with_known_fixes(found: Analysis, store: Store | None, kept: Kept | None) -> Analysis:
    """An analysis whose collectives say what was tried against them and helps most; nothing is tried for it."""
    if store is None or kept is None:
        return found
    known = {
        (collective.computation, collective.name): trials
        for collective in found.collectives
        if (trials := KeptTrials(store, kept, collective).known) is not None
    }
    named = (
        replace(collective, tried=_words(known.get((collective.computation, collective.name))))
        for collective in found.collectives
    )
    fixed = replace(found, collectives=Collectives(named))
    evidence = evidence_if_known(found)
    return fixed if evidence is None else with_evidence(fixed, replace(evidence, trials=known))


def _words(trials: Trials | None) -> str | None:
    """`argument W: P('X', None) -> P(None, 'X'), 492 us -> 73.9 us, if …`: what helps most; None where nothing does."""
    if trials is None or not trials.helping:
        return None
    trial = trials.helping[0]
    steps = ("unknown" if figures is None else figures.step_words for figures in (trials.before, trial.after))
    return "; ".join([f"{'; '.join(trial.change)}, {' -> '.join(steps)}", *trial.conditions])


@lru_cache(maxsize=8)
def _places_of(places: object) -> str:
    return hashlib.sha256(repr(places).encode()).hexdigest()


def _places(kept: Kept) -> str:
    return _places_of(kept.places)
