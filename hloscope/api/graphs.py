"""`graph`: a compiled program, or a part of it, as a graph of instructions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from hloscope import given
from hloscope.analysis.model import Analysis
from hloscope.analysis.model.program_graph import ProgramGraph
from hloscope.api.analyses import analyze
from hloscope.calls import front_door
from hloscope.cost.program_graph import Wanted
from hloscope.cost.program_graph import program_graph as graph_of_part
from hloscope.errors import NotationError
from hloscope.messages import Option, placeholder, say
from hloscope.program.target import TargetOptions, with_options


@front_door
@with_options(TargetOptions)
def graph(
    target: Callable[..., Any] | str | Path,
    args: Any = None,
    *,
    computation: str | None = None,
    around: str | None = None,
    hops: int | None = None,
    **options: Unpack[TargetOptions],
) -> ProgramGraph:
    """Returns a compiled program as a dependency graph with times and the critical path.

    Example:
        >>> around = hloscope.graph("model:step", around="all-gather.8", hops=2, slice="v6e:2x4")
        >>> networkx.descendants(around.to_networkx(), "main/all-gather.8")

    Args:
        target: As for `analyze`.
        args: One entry per positional argument, as for `analyze`.
        computation: An HLO computation; by default all that run in a step, without the insides of fusions.
        around: An instruction's name; only its neighborhood is included.
        hops: Size of that neighborhood, in edges; 3 by default.
        {options}

    Raises:
        HloscopeError: As for `analyze`, or the computation or instruction does not exist.
    """
    wanted = part_of_graph(computation, around, hops)
    return graph_of(analyze(target, args, **options), wanted)


def part_of_graph(computation: str | None, around: str | None, hops: int | None) -> Wanted:
    """The part of a program that is asked for.

    Raises:
        NotationError: There can be no such part.
    """
    if hops is None:
        return Wanted(computation=computation, around=around)
    if around is None:
        raise NotationError(
            say(Option("hops", placeholder(given.shown(hops))), " counts from an instruction, and none is named"),
            fix=say("name one: ", Option("around", "all-gather.8")),
        )
    count = given.whole("hops", hops, least=0, example="hops=3")
    return Wanted(computation=computation, around=around, hops=count)


def graph_of(found: Analysis, wanted: Wanted) -> ProgramGraph:
    """Returns the graph of a program that was analyzed in this process.

    Args:
        found: Its analysis.
        wanted: The part that is asked for.

    Raises:
        HloscopeError: The program was not analyzed in this process, or the computation or instruction does not exist.
    """
    evidence = found.evidence
    return graph_of_part(evidence.program, evidence.module(), found, wanted)


def graph_of_analysis(
    found: Analysis, *, computation: str | None = None, around: str | None = None, hops: int | None = None
) -> ProgramGraph:
    """`Analysis.graph`, whose arguments these are."""
    return graph_of(found, part_of_graph(computation, around, hops))
