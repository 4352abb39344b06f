"""The subject of a search: one program with all known facts about it, and the limits of the search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hloscope.analysis.model import Analysis
from hloscope.compiler.cache import CachedCompile
from hloscope.program.capture import Capture
from hloscope.program.lowering import Lowered
from hloscope.store import Store


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
