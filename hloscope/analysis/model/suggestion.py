"""What a search for better shardings found: the program as it is written, and what was compiled and is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.analysis.model.trial import Figures
from hloscope.documents import SCHEMA, Schema
from hloscope.shown import Brief, Shown, one_line
from hloscope.units import format_time, plural

if TYPE_CHECKING:
    from hloscope.plain_types import SuggestionsDict


_NEAR = 1.05
"""Times the fastest step: what differs by less is not worth more memory."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SuggestedSpec(Brief):
    """The sharding suggested for an argument, a result, or all arrays of one kind.

    Attributes:
        name: The user's name, `params['layers'][*]['w']` for the same weight of several layers.
        count: How many arrays that are.
        is_result: Whether it is of results.
        before: The sharding that the program gives it, `P('X', None)`; None where it leaves it open.
        after: The suggested one; None leaves a result open.
        notation: The suggested one as the type of an argument, `bf16[4096,16384@X]`; None for an open result.
    """

    name: str
    count: int = 1
    is_result: bool = False
    before: str | None
    after: str | None
    notation: str | None = None

    @property
    def is_changed(self) -> bool:
        """Whether it differs from what the program says."""
        return self.before != self.after


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Suggestion(Brief):
    """One way to shard the program, compiled and priced at full size.

    Attributes:
        recipe: The name of the way, `FSDP over X, tensor parallel over Y`; None where it has none.
        mesh: The size of each axis.
        device_order: The devices in the order of the mesh, by their places in `jax.devices()`; None for the order of
            `jax.make_mesh`.
        is_own: Whether it is the program as it is written.
        fits: Whether it fits in the memory of the slice's devices.
        figures: What the step costs.
        gain: The part of the program's own step that it saves; negative where it is slower, None where not known.
        is_tie: Whether its step is indistinguishable from that of the program as it is written.
        is_worth_it: Whether the step is faster by more than 5% and no tie, or takes a tenth less memory and is not
            slower; where the program does not fit in memory, whether this one does.
        specs: Every argument and freed result that was searched, changed or not.
        constraints: What to do with the program's sharding constraints, one line each.
        because: What it does less of, and more of, than the program as it is written.
        code: Lines to paste.
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
    """What a search found.

    Attributes:
        schema: Version of this document's shape.
        target: The program.
        slice: What it was compiled for.
        goal: `time`, or `memory` where the program as it is written does not fit in it.
        own: The program as it is written.
        front: The other ways that nothing beats in both time and memory, fastest first.
        freed_gain: What leaving all results open would save beside the best, as a part of its step; None where no
            result is held, or that was not tried.
        freed: The results that are held where the program asks for them.
        space: How many ways there are to choose from.
        ranked: How many of them Shardy was asked of.
        compiled: How many were compiled.
        failed: How many could not be compiled.
        refused: How many were priced below what the chips can do at their peak, and are left out: there the prices are
            wrong.
        recipes: What the best way of each named kind takes, in microseconds.
        notes: What was not searched, and what had to be assumed, one sentence each.
        stopped: Why the search ended before all was compiled that was to be; None where it did not.
        seconds: What it took.
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
    refused: int = 0
    recipes: Mapping[str, float] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    stopped: str | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def best(self) -> Suggestion | None:
        """Of those worth it and within 5% of the fastest, the one that needs least memory; None without any."""
        worth = [found for found in self.front if found.is_worth_it]
        fastest = min((found.figures.step_us or 0.0 for found in worth), default=0.0)
        near = [found for found in worth if (found.figures.step_us or 0.0) <= _NEAR * fastest]
        return min(near, key=lambda found: found.figures.hbm_bytes or 0, default=None)

    def __repr__(self) -> str:
        own = format_time(self.own.figures.step_us)
        best = self.best
        found = "nothing better" if best is None else f"{own} -> {format_time(best.figures.step_us)}"
        return one_line(f"<Suggestions for {self.target} on {self.slice}: {found}, {plural(self.compiled, 'compile')}>")

    def _subject(self) -> str:
        return "suggestions"

    if TYPE_CHECKING:

        def to_dict(self) -> SuggestionsDict:
            """The result as plain data."""
