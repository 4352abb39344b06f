"""The true reasons that stand beside programs, and how what hloscope says compares with them.

A person who understood a program wrote `programs/FAMILY.toml` for `programs/FAMILY.py`. `[NAME]` is about one
function, with its `story`, the `fix` that an engineer would apply, and what that did when it was `tried`; each
`[[NAME.moves]]` is about one final collective, or several that are there for the same reason:

| key | says |
|---|---|
| `kind`, `axes`, `count` | what is moved how: whole axes, where the collective runs over a part of one |
| `shape` | of one of its operands on a device, where that tells apart what kind and axes do not |
| `reason` | the kind of reason; a list where several are right |
| `value` | all right names of what moves; an empty list where the user's code has none |
| `operation` | JAX's name of what needs it, of a partial sum what made it; a list where several are right |
| `line` | text of that operation's line, which stands once in the file; a list where several are right |
| `asked` | who requested the sharding that it conflicts with, for the reader: nothing compares it |
| `backward` | whether it belongs to the backward pass of that line |
| `authored` | whether the user wrote it; `"transpose"` where it is the backward pass of one that the user wrote |
| `likely` | whether even a person could only infer it |
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from hloscope.analysis.provenance import find_jax_name
from hloscope.model import Collective
from hloscope.model.reason import Operation, Reason, ReasonKind
from hloscope.why.reshards import RESULT_NAME

PROGRAMS = Path(__file__).parent / "programs"
MADE_BY_PRODUCERS = ("partial-sum", "replicated-weight", "requested-output", "realigned")
SLOW = {
    "attending.py:fused_projection",
    "attending.py:six_heads",
    "by_hand.py:gathered_by_hand",
    "by_hand.py:gradient_of_layer_by_hand",
    "by_hand.py:half_by_hand",
    "by_hand.py:ring_product",
    "by_hand.py:unchecked_sum",
    "looking_up.py:one_hot_lookup",
    "looking_up.py:scattered_gradients",
    "looking_up.py:table_gradient",
    "looping.py:accumulated",
    "normalising.py:clipped_step",
    "normalising.py:head_gradient",
    "normalising.py:small_clipped_step",
    "rearranging.py:fused_queries_keys_values",
    "rearranging.py:running_mean",
    "rearranging.py:sorted_rows",
    "training.py:experts",
    "training.py:fsdp_layer",
    "training.py:fsdp_step",
    "training.py:kept_in_parts",
    "training.py:megatron_on_v5p",
    "training.py:sequence_parallel",
    "training.py:zero_one_step",
    "transforming.py:area_under_sums",
    "transforming.py:causal_depthwise",
    "transforming.py:loudest",
    "transforming.py:loudest_of_all",
    "transforming.py:spatial_convolution",
    "transforming.py:spectrum",
}
"""Programs that take the compiler from three to seventeen seconds each; of each family at least two are quicker."""
Key = tuple[str, frozenset[str]]


@dataclass(frozen=True, kw_only=True)
class Move:
    """One collective of a program's truth."""

    truth: dict[str, Any]
    lines: tuple[int, ...]

    @property
    def key(self) -> Key:
        """What it moves how."""
        return self.truth["kind"], frozenset(axis.partition(":")[0] for axis in self.truth["axes"])

    @property
    def text(self) -> str:
        """Its reason on one line, as a table of mismatches has it."""
        parts = [" or ".join(texts_of(self.truth["reason"])), f"of {' or '.join(self.truth['value']) or 'no name'}"]
        parts += [f"at {' or '.join(texts_of(self.truth['operation']))}"] if "operation" in self.truth else []
        parts += [f"line {' or '.join(map(str, self.lines))}"] if self.lines else []
        return ", ".join(parts + [word for word in ("backward", "authored", "likely") if self.truth.get(word)])


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One collective beside the truth about it.

    Attributes:
        move: The truth.
        collective: What hloscope says.
        wrong: What of its reason disagrees.
    """

    move: Move
    collective: Collective
    wrong: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """`right` or `wrong`, and `certain` or `likely`."""
        certain = self.collective.reason is not None and self.collective.reason.certain
        return f"{'wrong' if self.wrong else 'right'} {'certain' if certain else 'likely'}"

    @property
    def needlessly_likely(self) -> bool:
        """Whether it is right, and says `likely` of what a person is certain of."""
        return self.verdict == "right likely" and not self.move.truth.get("likely", False)


def texts_of(value: str | list[str]) -> list[str]:
    """One text, or several that are all right."""
    return [value] if isinstance(value, str) else value


def told_programs() -> Iterator[str]:
    """`FAMILY.py:FUNCTION` of every program whose truth is written down."""
    for family in sorted(PROGRAMS.glob("*.toml")):
        yield from (f"{family.stem}.py:{name}" for name in tomllib.loads(family.read_text()))


def each(programs: Iterable[str]) -> list[Any]:
    """Parameters of a test about each program; those of the slow ones are `long`."""
    return [pytest.param(one, marks=pytest.mark.long) if one in SLOW else pytest.param(one) for one in programs]


def moves_of(program: str) -> list[Move]:
    """The truth about each collective of `FAMILY.py:FUNCTION`."""
    file, _, name = program.partition(":")
    source = (PROGRAMS / file).read_text().splitlines()
    told = tomllib.loads((PROGRAMS / file).with_suffix(".toml").read_text())[name].get("moves", [])
    moves = [Move(truth=move, lines=tuple(_line_of(text, source) for text in _lines(move))) for move in told]
    return [move for move in moves for _ in range(move.truth.get("count", 1))]


def _lines(truth: dict[str, Any]) -> list[str]:
    return texts_of(truth.get("line", []))


def _line_of(text: str, source: list[str]) -> int:
    found = [number for number, line in enumerate(source, 1) if text in line]
    assert len(found) == 1, f"{text!r} stands in lines {found}, not in one"
    return found[0]


def key_of(collective: Collective) -> Key:
    """What a collective moves how, parts of axes told as the whole axis."""
    return collective.kind.value, frozenset(axis.partition(":")[0] for axis in collective.axes or ())


def judged(program: str, collectives: tuple[Collective, ...]) -> list[Judged]:
    """Each collective beside one move that is as it is, such that as many as possible agree."""
    file = program.partition(":")[0]
    graph = nx.Graph()
    for which, move in enumerate(moves_of(program)):
        for other, collective in enumerate(collectives):
            if move.key == key_of(collective) and _has_shape(collective, move.truth.get("shape")):
                of_both = Judged(move=move, collective=collective, wrong=tuple(_wrong(move, collective, file)))
                graph.add_edge(("move", which), ("collective", other), weight=_agreement(of_both), of_both=of_both)
    pairs = nx.max_weight_matching(graph, maxcardinality=True)
    return sorted((graph.edges[pair]["of_both"] for pair in pairs), key=lambda one_of: one_of.collective.line)


def _has_shape(collective: Collective, shape: str | None) -> bool:
    return shape is None or shape in [str(operand) for operand in collective.operand_shapes]


def _agreement(pair: Judged) -> int:
    return 10 * (not pair.wrong) + (5 - len(pair.wrong))


def _wrong(move: Move, collective: Collective, file: str) -> Iterator[str]:
    """What of a collective's reason disagrees with the truth, each with what it says instead."""
    reason, truth = collective.reason, move.truth
    if reason is None:
        yield "no reason"
        return
    kind = reason.kind.value if reason.weight is None else "replicated-weight"
    kind = kind if reason.realigns is None else "realigned"
    if kind not in texts_of(truth["reason"]):
        yield f"kind {kind}"
    if not _names(reason, truth["value"]):
        yield f"value {reason.moved.name if reason.moved else 'not known'}"
    operation = told_operation(reason)
    wanted = [find_jax_name(name) for name in texts_of(truth.get("operation", []))]
    if wanted and (operation is None or operation.name not in wanted):
        yield f"operation {operation.name if operation else 'not known'}"
    line = _told_line(operation, file)
    if move.lines and line not in move.lines:
        yield f"line {line or 'not known'}"
    yield from _wrong_side(reason, operation, truth)


def _wrong_side(reason: Reason, operation: Operation | None, truth: dict[str, Any]) -> Iterator[str]:
    """Whether it is told as the user's own, or as another pass's."""
    authored = reason.kind is ReasonKind.AUTHORED
    if authored != bool(truth.get("authored", False)):
        yield "told as the user's" if authored else "not told as the user's"
    backward = "transpose(" in ((operation and operation.op_name) or "")
    if backward != (truth.get("backward", False) or truth.get("authored") == "transpose"):
        yield "told as backward" if backward else "not told as backward"


def told_operation(reason: Reason) -> Operation | None:
    """Who is said to need what moves; who is said to have made it, of what is made in parts or handed out."""
    made = reason.kind.value in MADE_BY_PRODUCERS or reason.consumer is None
    return reason.producer if made else reason.consumer


def _told_line(operation: Operation | None, file: str) -> int | None:
    frames = operation.source if operation else ()
    return next((frame.line for frame in frames if Path(frame.file).name == file), None)


def _names(reason: Reason, names: list[str]) -> bool:
    moved = reason.moved
    if not names:
        return moved is None or not moved.named or moved.name == RESULT_NAME
    return moved is not None and (moved.name in names or (moved.argument is not None and moved.argument in names))


def table_of(pairs: list[Judged]) -> str:
    """What is said beside what is true, one pair of lines for each."""
    rows = []
    for pair in pairs:
        where = f"{pair.collective.kind.value} over {', '.join(pair.collective.axes or ())}, %{pair.collective.name}"
        rows.append(f"{pair.verdict:<14} {where}: {'; '.join(pair.wrong) or 'all agrees'}")
        rows.append(f"{'':<14} truth: {pair.move.text}")
        rows.append(f"{'':<14} says:  {pair.collective.why}")
    return "\n".join(rows)
