"""The result of a search for better shardings: the program as written, and better ways to shard it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.analysis.model.trial import Figures
from hloscope.documents import SCHEMA, Schema
from hloscope.shown import Brief, Shown, one_line
from hloscope.units import pluralize

if TYPE_CHECKING:
    from hloscope.plain_types import SuggestionsDict


_NEAR = 1.05
"""Factor of the fastest step time: a smaller difference is not worth more memory."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SuggestedSpec(Brief):
    """The sharding suggested for an argument, a result, or all arrays of one kind.

    Attributes:
        name: The user's name; `params['layers'][*]['w']` for the same weight in several layers.
        count: Number of arrays with this name.
        is_result: Whether they are results.
        before: Sharding in the program as written, such as `P('X', None)`; None if it is left open.
        after: The suggested sharding; None leaves a result open.
        notation: The suggested sharding as an argument type, such as `bf16[4096,16384@X]`; None for an open result.
    """

    name: str
    count: int = 1
    is_result: bool = False
    before: str | None
    after: str | None
    notation: str | None = None

    @property
    def is_changed(self) -> bool:
        """True if it differs from the program as written."""
        return self.before != self.after


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Suggestion(Brief):
    """One way to shard the program, compiled and priced at full size.

    Attributes:
        recipe: Name of the scheme, such as `FSDP over X, tensor parallel over Y`; None if it has none.
        mesh: Size of each mesh axis.
        device_order: Device order of the mesh, as indices into `jax.devices()`; None for that of `jax.make_mesh`.
        is_own: Whether it is the program as written.
        fits: Whether it fits in device memory.
        figures: Cost of the step.
        gain: Fraction of the original step time that it saves; negative if slower, None if unknown.
        is_tie: Whether its step time is indistinguishable from that of the program as written.
        is_worth_it: Whether the step is more than 5% faster and not a tie, or takes a tenth less memory and is not
            slower; if the program as written does not fit in memory, whether this one does.
        specs: All searched arguments and freed results, changed or not.
        constraints: Changes to the program's sharding constraints, one line each.
        because: What it does less and more of than the program as written.
        code: Code to paste into the program.
    """

    recipe: str | None
    mesh: Mapping[str, int] = field(hash=False)
    device_order: tuple[int, ...] | None = None
    is_own: bool = False
    fits: bool = True
    figures: Figures
    gain: float | None = None
    is_tie: bool = False
    is_worth_it: bool = False
    specs: tuple[SuggestedSpec, ...] = ()
    constraints: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    code: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Suggestions(Shown):
    """The result of a search for better shardings.

    Attributes:
        schema: Schema version of the document.
        target: The program.
        slice: The slice it was compiled for.
        goal: What is minimized: `time`, or `memory` if the program as written does not fit in it.
        own: The program as written.
        front: The Pareto front of the other ways over time and memory, fastest first.
        freed_gain: Fraction of the best step time that leaving all result shardings open would save in addition; None
            if no result sharding is held, or if that was not tried.
        freed: Results that are held to the sharding that the program requests.
        space: Size of the search space.
        ranked: Number of candidates ranked with Shardy.
        compiled: Number of candidates compiled.
        failed: Number of candidates that failed to compile.
        failures: Their numbers by the reason, most frequent first.
        refused: Number of candidates left out because they were priced below the chips' peak, which means that the
            price is wrong.
        recipes: Step time of the best candidate of each named scheme, in microseconds.
        notes: What was not searched and what was assumed, one sentence each.
        stopped: Why the search ended early; None if it did not.
        seconds: Duration of the search.
    """

    schema: Schema = SCHEMA
    target: str
    slice: str
    goal: str = "time"
    own: Suggestion
    front: tuple[Suggestion, ...]
    freed_gain: float | None = None
    freed: tuple[str, ...] = ()
    space: int
    ranked: int
    compiled: int
    failed: int = 0
    failures: Mapping[str, int] = field(default_factory=dict, hash=False)
    refused: int = 0
    recipes: Mapping[str, float] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    stopped: str | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def best(self) -> Suggestion | None:
        """The worthwhile suggestion with the least memory within 5% of the fastest; None if there is none."""
        worth = [found for found in self.front if found.is_worth_it]
        fastest = min((found.figures.step_us or 0.0 for found in worth), default=0.0)
        near = [found for found in worth if (found.figures.step_us or 0.0) <= _NEAR * fastest]
        return min(near, key=lambda found: found.figures.hbm_bytes or 0, default=None)

    def __repr__(self) -> str:
        own, best = self.own.figures.step_words, self.best
        found = "nothing better" if best is None else f"{own} -> {best.figures.step_words}"
        return one_line(
            f"<Suggestions for {self.target} on {self.slice}: {found}, {pluralize(self.compiled, 'compile')}>"
        )

    def _subject(self) -> str:
        return "suggestions"

    if TYPE_CHECKING:

        def to_dict(self) -> SuggestionsDict:
            """The result as plain data."""
