"""The subject of a search: one program with all known facts about it, and the limits of the search."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from hloscope.base.documents import encode_text
from hloscope.base.store import Store
from hloscope.compile.cache import CachedCompile
from hloscope.compile.compiling import PendingCompile
from hloscope.compile.lowering import Lowered
from hloscope.model import Analysis, Collective, Collectives
from hloscope.model.capture import Capture, attach_evidence, find_evidence
from hloscope.model.trial import Figures, Trials
from hloscope.model.vocabulary import CompileStage

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLimits:
    """The limits for one collective.

    Attributes:
        changes: Maximum number of changes to compile.
        seconds: Time limit in seconds, including ranking; running compiles are then stopped.
    """

    changes: int = 4
    seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSubject:
    """A program that was lowered, compiled and analyzed.

    Attributes:
        function: The user's function.
        lowered: The lowered program.
        captured: The compiled program.
        analysis: Its analysis, with the reasons for its collectives.
        store: The cache of compiles and trials; None for no cache.
        kept: Cache key of the program's compile; None if it is not cached.
        stage: Called with the name of each step.
    """

    function: Callable[..., Any]
    lowered: Lowered
    captured: Capture
    analysis: Analysis
    store: Store | None = None
    kept: CachedCompile | None = None
    stage: Callable[[str], None] = lambda _: None


# ---- the cache of trials, stored with the compiles of their program

_KIND, _FIGURES = "tried", "figures"
_FORM = "9"
"""The version of the entries and of the judgement of trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrialEntry:
    limits: TrialLimits
    trials: Trials


class TrialCache:
    """The cached trials against one collective of one program.

    Source places count, because the changes name them: if lines have moved, changes are tried again, with cached
    compiles.

    Args:
        store: The cache; None for no cache.
        kept: The cache entry of the program's compile; None if it is not cached.
        collective: The collective.
    """

    def __init__(self, store: Store | None, kept: CachedCompile | None, collective: Collective) -> None:
        self._store, self._key = None if kept is None else store, ""
        if kept is not None:
            self._key = " ".join((_FORM, kept.key, _hash_places(kept.places), collective.computation, collective.name))

    @property
    def known(self) -> Trials | None:
        """The cached trials, with any limits and complete or not; None if there are none."""
        entry = self._entry()
        return entry.trials if entry is not None and entry.trials.trials else None

    def _entry(self) -> _TrialEntry | None:
        return None if self._store is None else _read_entry(self._store, _KIND, self._key, _TrialEntry)

    def get(self, limits: TrialLimits) -> Trials | None:
        """Complete trials with these limits or wider ones, or with any that left nothing to try; otherwise None."""
        entry = self._entry()
        if entry is None or entry.trials.stopped:
            return None
        spent, found = entry.limits, entry.trials
        is_enough = spent.changes >= limits.changes and spent.seconds >= limits.seconds
        return found if is_enough or len(found.trials) >= found.candidates else None

    def put(self, limits: TrialLimits, trials: Trials) -> None:
        """Stores trials."""
        if self._store is not None:
            _write_entry(self._store, _KIND, self._key, _TrialEntry(limits=limits, trials=trials))


def _read_entry(store: Store, kind: str, key: str, form: type[T]) -> T | None:
    """An entry of the cache; None without one, or if it is damaged."""
    import msgspec

    body = store.get(kind, key)
    try:
        return None if body is None else msgspec.json.decode(body, type=form)
    except msgspec.DecodeError:
        return None


def _write_entry(store: Store, kind: str, key: str, entry: object) -> None:
    import msgspec

    store.put(kind, key, msgspec.json.encode(entry, enc_hook=encode_text))


@dataclass(frozen=True, slots=True)
class FigureCache:
    """The figures of a compiled program, cached with its compile.

    Attributes:
        store: The cache.
        key: The key of the program, the compiler and the cost model.
    """

    store: Store
    key: str

    @classmethod
    def of(cls, pending: PendingCompile, store: Store | None) -> FigureCache | None:
        """The cache entry for the figures of a program; None if they are not cached."""
        if store is None or pending.kept is None:
            return None
        chip, costs = pending.program.slice.chip, sorted(pending.program.facts.kernel_costs.items())
        return cls(store, f"{_FORM} {pending.kept.key} {chip} {costs} {pending.wanted}")

    def get(self) -> Figures | None:
        """The figures; None if unknown."""
        return _read_entry(self.store, _FIGURES, self.key, Figures)

    def put(self, figures: Figures) -> None:
        """Stores the figures."""
        _write_entry(self.store, _FIGURES, self.key, figures)


def add_known_fixes(found: Analysis, store: Store | None, kept: CachedCompile | None) -> Analysis:
    """An analysis whose collectives have their best fix from cached trials; no new trials are made."""
    if store is None or kept is None:
        return found
    known = {
        (collective.computation, collective.name): trials
        for collective in found.collectives
        if (trials := TrialCache(store, kept, collective).known) is not None
    }
    named = (
        replace(collective, tried=_describe_best_trial(known.get((collective.computation, collective.name))))
        for collective in found.collectives
    )
    fixed = replace(found, collectives=Collectives(named))
    evidence = find_evidence(found)
    return fixed if evidence is None else attach_evidence(fixed, replace(evidence, trials=known))


def _describe_best_trial(trials: Trials | None) -> str | None:
    """The best trial, or None: `argument W: P('X', None) -> P(None, 'X'), 492 us -> 73.9 us, if …`."""
    if trials is None or not trials.helping:
        return None
    trial = trials.helping[0]
    pair = (trial.before or trials.before, trial.after)
    steps = " -> ".join("unknown" if figures is None else figures.step_words for figures in pair)
    is_estimate = trial.after is not None and trial.after.stage is CompileStage.SCHEDULED
    words = f"{'; '.join(trial.change)}, {steps}{' (estimated, not compiled)' * is_estimate}"
    return "; ".join([words, *trial.conditions])


@lru_cache(maxsize=8)
def _hash_places(places: object) -> str:
    return hashlib.sha256(repr(places).encode()).hexdigest()
