"""Decisions in text: each axis, what it shards, what does without, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from hloscope.analysis.provenance import short_source
from hloscope.base.units import format_bytes, format_share, format_time, pluralize
from hloscope.model import Analysis
from hloscope.model.decision import Decision, DecisionKind, Place
from hloscope.model.reason import AskedBy
from hloscope.report.layout import fold, hang
from hloscope.report.words import describe_gain, describe_trials

_MOST_SHOWN = 6
_LEAST_SHARE = 0.01
"""The share of the step's bytes below which a decision has no line of its own."""
_MOST_NAMES = 2
WRITE = "write"
"""The label of a line of code."""
_INDENT = 3
_FEW_COLLECTIVES = 2
"""With as many or fewer, the collectives themselves say all, unless an axis is lost or a change helps."""


def render_decisions(analysis: Analysis, width: int) -> Iterator[Text]:
    """The costliest decisions, then the number of the others, and what no decision explains."""
    decisions = analysis.decisions
    has_news = any(each.is_lost or (each.trials is not None and each.trials.helping) for each in decisions)
    if not decisions or (len(analysis.collectives) <= _FEW_COLLECTIVES and not has_news):
        return
    total = sum(each.wire_bytes_per_step or 0 for each in analysis.collectives)

    def is_large(decision: Decision) -> bool:
        return decision.is_lost or decision.wire_bytes is None or decision.wire_bytes >= _LEAST_SHARE * total

    shown = list(filter(is_large, decisions))[:_MOST_SHOWN]
    for decision in shown:
        yield from hang(Text(decision.summary, style="bold yellow" if decision.is_lost else "bold"), width)
        for label, words in (("", format_cost(decision, analysis)), *list_decision_details(decision)):
            text = f"{label}: {words}" if label else words
            # code stays as it is, to be copied
            lines = map(Text, text.split("\n")) if label == WRITE else fold(Text(text), width - _INDENT)
            yield from (Text(" " * _INDENT) + each for each in lines)
    rest = [each for each in decisions if each not in shown]
    if rest:
        size = _sum_bytes(each.wire_bytes for each in rest)
        yield from fold(Text(f"+{pluralize(len(rest), 'smaller decision')}, {size} in total", style="dim"), width)
    explained = {name for each in decisions for name in each.collectives}
    left = [each for each in analysis.collectives if each.name not in explained]
    if left:
        size = _sum_bytes(each.wire_bytes_per_step for each in left)
        words = (
            f"{pluralize(len(left), 'collective')}, {size}: no decision explains {'it' if len(left) == 1 else 'them'}"
        )
        yield from fold(Text(words, style="dim"), width)


def format_cost(decision: Decision, analysis: Analysis) -> str:
    """`27.6 GB, 174 ms exposed (41% of the step)`: what follows from a decision in a step."""
    said = [decision.size] if decision.collectives else []
    time = analysis.time
    if decision.exposed_us is not None and time is not None and time.step_us > 0:
        share = format_share(decision.exposed_us / time.step_us)
        exposed = decision.bound.marked(format_time(decision.exposed_us))
        said += [f"{exposed} exposed ({decision.bound.marked(share)} of the step)"] if decision.collectives else []
    if decision.collectives:
        said.append(pluralize(len(decision.collectives), "collective"))
    if decision.repeated_us is not None and time is not None and time.step_us > 0:
        share = format_share(decision.repeated_us / time.step_us)
        said.append(f"at least {format_time(decision.repeated_us)} of repeated work ({share} of the step)")
    return " · ".join(said)


def list_decision_details(decision: Decision) -> Iterator[tuple[str, str]]:
    """The known facts about a decision beside its cost: labels, which may be empty, and sentences."""
    winner, loser = decision.winner, decision.loser
    if not decision.is_lost or loser is None:
        if winner is not None and decision.held_by:
            yield "", f"requested by {_name_askers(decision.held_by)}"
        yield from _list_boundaries(decision)
        if decision.trials is not None:
            yield from _list_trials(decision)
        return
    if winner is not None:
        claims = f"{loser.name}{_format_request(decision.lost_by)}, or {winner.name}{_format_request(decision.held_by)}"
        array = "" if decision.first_place is None else f" of {_name_place(decision.first_place)}"
        yield "", f"{decision.axis} can shard only one dimension{array}: {claims}"
    else:
        yield from _list_boundaries(decision)
    if winner is None and decision.lost_by:
        yield "", f"{decision.axis} is requested for {loser.name} by {_name_askers(decision.lost_by)}"
    yield from _list_trials(decision)


def _list_boundaries(decision: Decision) -> Iterator[tuple[str, str]]:
    """The specs of a `shard_map` that make the dimension whole, which are the program's own."""
    for asker in decision.held_by if decision.winner is None else ():
        spec = "" if asker.sharding is None else f" with {asker.sharding}"
        yield "", f"requested by in_specs of {_name_asker(asker)}{spec}"


def _list_trials(decision: Decision) -> Iterator[tuple[str, str]]:
    """The line that turns a lost decision, with the step before and after, or the reason that it has no such line."""
    trials = decision.trials
    best = None if trials is None else next(iter(trials.helping), None)
    if trials is not None and best is not None:
        for line in best.change:
            label, _, words = line.partition(" ")
            yield label.removesuffix(":"), words
        yield "then", describe_gain(best.before or trials.before, best)
        yield from (("", condition) for condition in best.conditions)
        if trials.not_tried is not None:
            yield "not tried", trials.not_tried
        return
    place = decision.first_place
    if trials is None and place is not None:
        yield "not tried", f"`{place.array}` constrained to {place.spec}{_format_other_bytes(decision)}"
    elif trials is None and decision.kind is DecisionKind.IDLE and decision.loser is not None:
        yield "not tried", f"arguments and outputs with {decision.axis} at {decision.loser.name}"
    for label, words in describe_trials(trials):
        yield label, words


def _name_place(place: Place) -> str:
    """A value with its line: `x` (blk.py:21)."""
    at = short_source(place.source)
    return f"`{place.array}`" if at is None else f"`{place.array}` ({at})"


def _format_other_bytes(decision: Decision) -> str:
    """The bytes that would be sent the other way round."""
    if decision.other_bytes is None:
        return ""
    return f"; by shapes alone, about {format_bytes(decision.other_bytes)} would be sent if that turns it everywhere"


def _format_request(askers: Sequence[AskedBy]) -> str:
    return f" as requested by {_name_askers(askers)}" if askers else ""


def _sum_bytes(amounts: Iterable[int | None]) -> str:
    """The sum of bytes, at least that if some are unknown."""
    known = list(amounts)
    least = "" if None not in known else "at least "
    return f"{least}{format_bytes(sum(filter(None, known)))}"


def _name_askers(askers: Sequence[AskedBy]) -> str:
    """`p['emb'] and 17 others`: who put an axis on a dimension."""
    names = list(dict.fromkeys(filter(None, (_name_asker(asker) for asker in askers)))) or ["an unknown line"]
    more = len(names) - _MOST_NAMES
    shown = names if more <= 1 else [*names[:_MOST_NAMES], f"{more} others"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _name_asker(asker: AskedBy) -> str | None:
    if asker.by in ("argument", "output"):
        return f"{asker.name}" if asker.by == "argument" else f"output {asker.name}"
    place = short_source(asker.source)
    return None if place is None else f"the {'shard_map' if asker.by == 'shard_map' else 'constraint'} at {place}"
