"""What is searched: one program with all that is known of it, and how much may be spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hloscope.analysis.model import Analysis
from hloscope.compiler.cache import Kept
from hloscope.program.capture import Capture
from hloscope.program.lowering import Lowered
from hloscope.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be spent on one collective.

    Attributes:
        changes: Changes that are compiled.
        seconds: Seconds in total, ranking included; what runs then is ended.
    """

    changes: int = 4
    seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A program that was lowered, compiled and analysed.

    Attributes:
        function: The user's function.
        lowered: What JAX made of it.
        captured: What the compiler made of it.
        analysis: With the reasons for its collectives.
        store: Where compiles and trials are kept; None keeps none.
        kept: What the program's compile is kept as; None where it is not.
        stage: Called with what is happening.
    """

    function: Callable[..., Any]
    lowered: Lowered
    captured: Capture
    analysis: Analysis
    store: Store | None = None
    kept: Kept | None = None
    stage: Callable[[str], None] = lambda _: None
