"""`suggest`: a search for better shardings, each compiled and priced."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack

from hloscope.app.analyzing import Stage, subject_of
from hloscope.app.requests import Request, Result, follow
from hloscope.base import calls
from hloscope.base.calls import front_door
from hloscope.base.errors import Command, HloscopeError, Option, TargetError, say
from hloscope.base.progress import StageDisplay
from hloscope.base.units import format_bytes, format_time, pluralize
from hloscope.compile.executors import compile_on
from hloscope.compile.functions import Function, with_function
from hloscope.compile.target import ProgramOptions, TargetFacts, accept_options
from hloscope.model.trial import Suggestions

if TYPE_CHECKING:
    from hloscope.compile.lowering import Lowered
    from hloscope.search.space import Space
    from hloscope.search.trial_cache import SearchSubject

CANDIDATES = 40
_MOST_MESHES = 8
_AXES_OF_TYPE = re.compile(r"@(?:\([^)]*\)|\w+)")
_UNSEARCHED = "nothing can be searched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Searching:
    """The scope and the budget of a search.

    Attributes:
        keep: Names or patterns of arguments whose shardings stay as they are.
        free: Names or patterns of results whose shardings may change.
        fix_mesh: Whether to keep the mesh as it is.
        candidates: Number of programs to compile, before the best is tried with other device orders and freed results.
        seconds: Time limit in seconds; None for no limit.
        seed: Seed of the random sampling.
    """

    keep: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    fix_mesh: bool = False
    candidates: int = CANDIDATES
    seconds: float | None = None
    seed: int = 0


@front_door
@accept_options(ProgramOptions)
def suggest(
    target: Callable[..., Any] | str | Path,
    args: Any = None,
    *,
    keep: str | Sequence[str] = (),
    free: str | Sequence[str] = (),
    fix_mesh: bool = False,
    candidates: int = CANDIDATES,
    budget_s: float | str | None = None,
    seed: int = 0,
    jobs: int | None = None,
    executor: Any = None,
    slice: str | None = None,
    timeout_s: float | None = None,
    **options: Unpack[ProgramOptions],
) -> Suggestions:
    """Searches for better shardings of a function; every suggestion is compiled and priced.

    The search covers the shardings of arguments, of the results that replace them and of freed results, the sharding
    constraints, and the sizes of the mesh axes. Which programs are compiled, and in which order, depends on the program
    and the seed.

    Example:
        >>> found = hloscope.suggest(ffn, ("bf16[B@X,D]", "bf16[D,F@Y]", "bf16[F@Y,D]"), mesh={"X": 2, "Y": 4},
        ...                          dims={"B": 128, "D": 4096, "F": 16384})
        >>> print(found.best.code)

    Args:
        target: As for `analyze`.
        args: One entry per positional argument, as for `analyze`.
        keep: Names, or patterns such as `params*`, of arguments whose shardings stay as they are.
        free: Names or patterns of results that need not keep the sharding that the program requests; `out` means all.
        fix_mesh: Whether to keep the mesh as it is.
        candidates: Maximum number of programs to compile. The best is then compiled up to four more times, with other
            device orders and with its result shardings left open.
        budget_s: Time limit in seconds, or such as `10m`, after which the search returns what it has found.
        seed: Seed of the random sampling, which is used if there are too many shardings to rank all of them.
        jobs: Maximum number of parallel compiles; by default as many as cores and memory allow.
        executor: Where compiles run: a `concurrent.futures.Executor`, or `dask://HOST:PORT` of a Dask scheduler; by
            default in processes on this machine.
        slice: The slice to compile for.
        timeout_s: Time limit for each compile, in seconds.
        {options}

    Returns:
        The program as written, and the Pareto front of the alternatives over time and memory, fastest first.

    Raises:
        HloscopeError: The input is invalid, there is nothing to search, or JAX or the compiler rejects the program.
    """
    span = None if budget_s is None else calls.seconds("budget_s", budget_s, example='budget_s=600, or budget_s="10m"')
    searching = Searching(
        keep=calls.texts("keep", keep, example='keep=("W",)'),
        free=calls.texts("free", free, example='free=("result",)'),
        fix_mesh=fix_mesh,
        candidates=calls.whole("candidates", candidates, least=1, example="candidates=40"),
        seconds=span or None,
        seed=calls.whole("seed", seed, least=0, example="seed=0"),
    )
    request = Request(target=target, said={"args": args, "slice": slice, "timeout_s": timeout_s, **options})
    return find_suggestions(request, searching, executor=executor, jobs=jobs).found


def find_suggestions(
    request: Request, searching: Searching, *, executor: Any = None, jobs: int | None = None
) -> Result[Suggestions]:
    """Searches for a better sharding of a function.

    Args:
        request: The request; its front door is told before the search about how long it takes and how much memory.
        searching: What may change, and what may be spent.
        executor: Where compiles run, as for `suggest`.
        jobs: As for `suggest`.

    Raises:
        HloscopeError: The input is invalid, there is nothing to search, or JAX or the compiler rejects the program.
    """
    if request.is_text:
        raise TargetError(
            f"{_UNSEARCHED} in HLO text",
            why="another sharding has to be traced and compiled, which needs the function",
            fix=say("name the function: ", Command("suggest", ("module.py:step",))),
        )

    def of_function(function: Function, stage: StageDisplay) -> Suggestions:
        with compile_on(executor, jobs):
            return _searched(function, searching, lambda text: request.door.say(stage, text))

    return Result(found=follow(request, of_function=of_function), subject="suggestions")


def _searched(function: Function, searching: Searching, tell: Callable[[str], None]) -> Suggestions:
    def searched(itself: Callable[..., Any], known: TargetFacts) -> Suggestions:
        from hloscope.search.pareto_front import make_suggestions  # these import JAX, which takes its time
        from hloscope.search.suggesting import Effort, Search

        begun = monotonic()
        subject = subject_of(function, itself, known, when_lowered=_refuse)
        notes = list(subject.analysis.notes)
        spaces = list(_spaces(subject, known, searching, notes, function.stage))
        effort = Effort(candidates=searching.candidates, seconds=searching.seconds, seed=searching.seed)
        search = Search(spaces, effort, function.stage, begun=begun)
        search.found.notes += notes
        tell(_beforehand(subject, searching))
        search.run()
        return make_suggestions(search, function.name)

    return with_function(function, searched)


def _refuse(lowered: Lowered) -> None:
    """Says why a program cannot be searched.

    Raises:
        TargetError: It cannot.
    """
    chosen = lowered.slice
    if chosen.chip is None:
        raise TargetError(
            f"{_UNSEARCHED} on {chosen.name}",
            why="only TPU slices are priced",
            fix=say("name a slice such as ", Option("slice", "v5e:2x4")),
        )
    if lowered.seen.device_count < 2:
        raise TargetError(
            f"{_UNSEARCHED} in {lowered.name}",
            why="it runs on one device, so there is nothing to shard over",
            fix=say("add a mesh, such as ", Option("mesh", {"X": 4, "Y": 2})),
        )
    if lowered.strategy is None:
        raise TargetError(
            f"{_UNSEARCHED} in {lowered.name}",
            why="JAX has already traced it, and cannot trace it with another sharding",
            fix="pass the function itself",
        )
    if lowered.mesh is None:
        raise TargetError(
            f"{_UNSEARCHED} in {lowered.name}",
            why="it has no mesh",
            fix=say("add one, such as ", Option("mesh", {"X": 4, "Y": 2})),
        )


def _spaces(
    subject: SearchSubject, facts: TargetFacts, searching: Searching, notes: list[str], stage: Stage
) -> Iterator[tuple[SearchSubject, Space]]:
    """The program on its own mesh, and on the others of the same slice that it traces on.

    Raises:
        TargetError: Nothing may change.
    """
    space = _space(subject.lowered, searching)
    meshes = [] if searching.fix_mesh else list(_other_meshes(subject.lowered, facts, notes))
    if not space.parts and not meshes and not space.constraints:
        raise TargetError(
            f"{_UNSEARCHED} in {subject.lowered.name}",
            why="every argument is kept or can be sharded in only one way, and no result is free",
            fix=say("keep less, or free a result: ", Option("free", "result")),
        )
    yield subject, space
    left_out = []
    for mesh in meshes:
        stage(f"tracing on the mesh {_shown(mesh)}")
        try:
            lowered = _on_mesh(subject, facts, mesh)
            yield replace(subject, lowered=lowered), _space(lowered, searching)
        except HloscopeError:
            left_out.append(_shown(mesh))
    if left_out:
        notes.append(f"meshes not searched, because JAX does not trace the program on them: {', '.join(left_out)}")


def _space(lowered: Lowered, searching: Searching) -> Space:
    from hloscope.compile import client
    from hloscope.search.space import Space

    said: list[str] = []
    module, _ = client.ask_propagation(lowered.bytecode, "jax", said, timeout_s=lowered.facts.timeout_s)
    if module is None:
        raise TargetError(
            f"{_UNSEARCHED} in {lowered.name}",
            why="; ".join(said) or "Shardy cannot propagate it",
            fix="try a smaller program, or another version of jax",
        )
    return Space(lowered, module, searching.keep, searching.free)


def _other_meshes(lowered: Lowered, facts: TargetFacts, notes: list[str]) -> Iterator[dict[str, int]]:
    """The other ways to give the same devices to the same axes, where the mesh was asked for by sizes."""
    own = lowered.mesh
    assert own is not None
    sizes = dict(zip(own.axis_names, own.axis_sizes, strict=True))
    if not isinstance(facts.mesh, Mapping) or dict(facts.mesh) != sizes or facts.dcn:
        notes.append("the mesh is not changed: the program creates it, or it spans several slices")
        return
    if len(sizes) < 2:
        return
    count = prod(sizes.values())
    others = [found for found in _factorized(count, len(sizes)) if found != tuple(sizes.values())]
    near = sorted(others, key=lambda found: (_steps_apart(found, tuple(sizes.values())), found))
    if len(near) > _MOST_MESHES:
        notes.append(f"of {len(near)} other mesh shapes, the {_MOST_MESHES} nearest were searched")
    for found in near[:_MOST_MESHES]:
        yield dict(zip(sizes, found, strict=True))


def _factorized(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of so many factors, in order."""
    if parts == 1:
        yield (count,)
        return
    for first in range(1, count + 1):
        if count % first == 0:
            yield from ((first, *rest) for rest in _factorized(count // first, parts - 1))


def _steps_apart(one: Sequence[int], other: Sequence[int]) -> float:
    return sum(max(mine / theirs, theirs / mine) for mine, theirs in zip(one, other, strict=True))


def _on_mesh(subject: SearchSubject, facts: TargetFacts, mesh: Mapping[str, int]) -> Lowered:
    """The program traced on another mesh; without the shardings of its arguments where those do not divide there.

    Raises:
        HloscopeError: It does not trace there.
    """
    from hloscope.compile.lowering import lower

    name = f"{subject.lowered.name} on {_shown(mesh)}"
    here = replace(facts, mesh=dict(mesh))
    try:
        return lower(subject.function, here, name=name, store=subject.store)
    except HloscopeError:
        import jax

        def bare(leaf: Any) -> Any:
            return _AXES_OF_TYPE.sub("", leaf) if isinstance(leaf, str) else leaf

        if callable(facts.args):
            raise
        args, kwargs = jax.tree.map(bare, (facts.args, dict(facts.kwargs)))
        return lower(subject.function, replace(here, args=args, kwargs=kwargs), name=name, store=subject.store)


def _shown(mesh: Mapping[str, int]) -> str:
    return ",".join(f"{axis}={size}" for axis, size in mesh.items())


def _beforehand(subject: SearchSubject, searching: Searching) -> str:
    """About how long it will take, and how much memory, from what the program's own compile took."""
    from hloscope.compile.client import count_useful_workers
    from hloscope.compile.pool import BYTES_PER_WORKER

    seconds, workers = subject.captured.compiled.seconds, count_useful_workers()
    if seconds is None:
        return f"searching: up to {pluralize(searching.candidates, 'compile')}"
    expected = searching.candidates * seconds / workers
    limited = expected if searching.seconds is None else min(expected, searching.seconds)
    return (
        f"searching: up to {pluralize(searching.candidates, 'compile')} of {format_time(1e6 * seconds)} each, "
        f"{workers} at once: about {format_time(1e6 * limited)} and {format_bytes(workers * BYTES_PER_WORKER)}"
    )
