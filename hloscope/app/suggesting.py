"""`suggest`: a search for better shardings, each compiled and priced."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import unified_diff
from itertools import groupby
from math import prod
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack

from hloscope.app.analyzing import Stage, make_search_subject
from hloscope.app.config import TargetConfig
from hloscope.app.jobs import Job, run_git, run_jobs
from hloscope.app.requests import FunctionOptions, Request, follow
from hloscope.base import calls
from hloscope.base.calls import front_door
from hloscope.base.errors import Command, HloscopeError, Option, TargetError, say
from hloscope.base.outputs import replace_file
from hloscope.base.progress import StageDisplay
from hloscope.base.units import format_bytes, format_time, pluralize
from hloscope.compile.executors import compile_on
from hloscope.compile.functions import Function, with_function
from hloscope.compile.target import TargetFacts, accept_options
from hloscope.model.trial import Suggestion, Suggestions
from hloscope.model.vocabulary import CompileStage

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
        candidates: Number of programs to compile besides the one as written, before the best is tried with other device
            orders and freed results.
        seconds: Time limit in seconds; None for no limit.
        seed: Seed of the random sampling.
        orders: As for `Effort`.
    """

    keep: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    fix_mesh: bool = False
    candidates: int = CANDIDATES
    seconds: float | None = None
    seed: int = 0
    orders: bool = True


@front_door
@accept_options(FunctionOptions)
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
    **options: Unpack[FunctionOptions],
) -> Suggestions:
    """Searches for better shardings of a function; every suggestion is compiled and priced.

    The search covers the shardings of arguments, of the results that replace them and of freed results, the sharding
    constraints, the sizes of the mesh axes, and constraints to write where an axis is lost. Which programs are
    compiled, and in which order, depends on the program and the seed.

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
        candidates: Maximum number of programs to compile besides the one as written. The best is then compiled up to
            four more times, with other device orders and with its result shardings left open.
        budget_s: Time limit in seconds, or such as `10m`, after which the search returns what it has found.
        seed: Seed of the random sampling, which is used if there are too many shardings to rank all of them.
        jobs: Maximum number of parallel compiles; by default as many as cores and memory allow.
        executor: Where compiles run: a `concurrent.futures.Executor`, or `dask://HOST:PORT` of a Dask scheduler; by
            default in processes on this machine.
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
    request = Request(target=target, said={"args": args, **options})
    return find_suggestions(request, searching, executor=executor, jobs=jobs)


def find_suggestions(
    request: Request, searching: Searching, *, executor: Any = None, jobs: int | None = None
) -> Suggestions:
    """Searches for a better sharding of a function.

    Args:
        request: The request; its front door displays the estimated time and memory before the search.
        searching: The scope and the budget of the search.
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
            return _search_function(function, searching, lambda text: request.door.say(stage, text))

    return follow(request, of_function=of_function)


def _search_function(function: Function, searching: Searching, tell: Callable[[str], None]) -> Suggestions:
    def searched(itself: Callable[..., Any], known: TargetFacts) -> Suggestions:
        from hloscope.search.pareto_front import make_suggestions  # these import JAX, which is slow
        from hloscope.search.suggesting import Effort, Search

        begun = monotonic()
        quick = replace(function, wanted=CompileStage.SCHEDULED)
        subject = make_search_subject(quick, itself, known, when_lowered=_check_searchable)
        notes = list(subject.analysis.notes)
        spaces = list(_list_spaces(subject, known, searching, notes, function.stage))
        effort = Effort(
            candidates=searching.candidates, seconds=searching.seconds, seed=searching.seed, orders=searching.orders
        )
        search = Search(spaces, effort, function.stage, begun=begun)
        search.found.notes += notes
        tell(_estimate_search(subject, searching))
        found = make_suggestions(search.run(), function.name)
        return replace(found, front=tuple(_add_literals(each, found.own, itself, known) for each in found.front))

    return with_function(function, searched)


def _add_literals(
    suggestion: Suggestion, own: Suggestion, function: Callable[..., Any], facts: TargetFacts
) -> Suggestion:
    """A suggestion with the edits of its arguments, results and mesh in the target's decorator."""
    from hloscope.compile.source_edits import find_literal_edits

    specs = [spec for spec in suggestion.specs if spec.is_changed and not spec.is_open]
    mesh = {axis: size for axis, size in suggestion.mesh.items() if own.mesh.get(axis) != size}
    edits, by_hand = find_literal_edits(function, facts, specs, mesh)
    return replace(suggestion, edits=(*suggestion.edits, *edits), by_hand=(*suggestion.by_hand, *by_hand))


def _check_searchable(lowered: Lowered) -> None:
    """Checks that a program can be searched.

    Raises:
        TargetError: It cannot be searched.
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


def _list_spaces(
    subject: SearchSubject, facts: TargetFacts, searching: Searching, notes: list[str], stage: Stage
) -> Iterator[tuple[SearchSubject, Space]]:
    """The program with its search space, on its own mesh and on each other mesh of the slice on which it can be traced.

    Raises:
        TargetError: Nothing may change.
    """
    space = _make_space(subject.lowered, searching)
    meshes = [] if searching.fix_mesh else list(_list_other_meshes(subject.lowered, facts, notes))
    has_lost = any(decision.is_lost for decision in subject.analysis.decisions)
    if not space.parts and not meshes and not space.constraints and not has_lost:
        raise TargetError(
            f"{_UNSEARCHED} in {subject.lowered.name}",
            why="every argument is kept or can be sharded in only one way, and no result is free",
            fix=say("keep less, or free a result: ", Option("free", "result")),
        )
    yield subject, space
    left_out = []
    for mesh in meshes:
        stage(f"tracing on the mesh {_format_mesh(mesh)}")
        try:
            lowered = _lower_on_mesh(subject, facts, mesh)
            yield replace(subject, lowered=lowered), _make_space(lowered, searching)
        except HloscopeError:
            left_out.append(_format_mesh(mesh))
    if left_out:
        notes.append(f"meshes not searched, because JAX does not trace the program on them: {', '.join(left_out)}")


def _make_space(lowered: Lowered, searching: Searching) -> Space:
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


def _list_other_meshes(lowered: Lowered, facts: TargetFacts, notes: list[str]) -> Iterator[dict[str, int]]:
    """The other distributions of the same devices over the same axes, if the mesh was given by its sizes."""
    own = lowered.mesh
    assert own is not None
    sizes = dict(zip(own.axis_names, own.axis_sizes, strict=True))
    if not isinstance(facts.mesh, Mapping) or dict(facts.mesh) != sizes or facts.dcn:
        notes.append("the mesh is not changed: the program creates it, or it spans several slices")
        return
    if len(sizes) < 2:
        return
    count = prod(sizes.values())
    others = [found for found in _factorize(count, len(sizes)) if found != tuple(sizes.values())]
    near = sorted(others, key=lambda found: (_measure_distance(found, tuple(sizes.values())), found))
    if len(near) > _MOST_MESHES:
        notes.append(f"of {len(near)} other mesh shapes, the {_MOST_MESHES} nearest were searched")
    for found in near[:_MOST_MESHES]:
        yield dict(zip(sizes, found, strict=True))


def _factorize(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as an ordered product of `parts` factors."""
    if parts == 1:
        yield (count,)
        return
    for first in range(1, count + 1):
        if count % first == 0:
            yield from ((first, *rest) for rest in _factorize(count // first, parts - 1))


def _measure_distance(one: Sequence[int], other: Sequence[int]) -> float:
    return sum(max(mine / theirs, theirs / mine) for mine, theirs in zip(one, other, strict=True))


def _lower_on_mesh(subject: SearchSubject, facts: TargetFacts, mesh: Mapping[str, int]) -> Lowered:
    """Traces the program on another mesh, without the shardings of its arguments if they do not divide there.

    Raises:
        HloscopeError: It cannot be traced there.
    """
    from hloscope.compile.lowering import lower

    name = f"{subject.lowered.name} on {_format_mesh(mesh)}"
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


def _format_mesh(mesh: Mapping[str, int]) -> str:
    return ",".join(f"{axis}={size}" for axis, size in mesh.items())


def _estimate_search(subject: SearchSubject, searching: Searching) -> str:
    """The estimated time and memory of the search, derived from the program's own compile."""
    from hloscope.compile.client import count_useful_workers
    from hloscope.compile.slots import BYTES_PER_WORKER
    from hloscope.search.suggesting import MOST_VARIANTS

    seconds, workers = subject.captured.compiled.seconds, count_useful_workers()
    announced = (
        f"searching: up to {pluralize(searching.candidates, 'compile')} besides the program as written, and then up to "
        f"{MOST_VARIANTS} variants of the best"
    )
    if seconds is None:
        return announced
    expected = (searching.candidates + MOST_VARIANTS) * seconds / workers
    limited = expected if searching.seconds is None else min(expected, searching.seconds)
    return (
        f"{announced}, {format_time(1e6 * seconds)} each, {workers} at once: about {format_time(1e6 * limited)} and "
        f"{format_bytes(workers * BYTES_PER_WORKER)}"
    )


# ---- a suggestion written into the user's source: shown as a diff, and taken back if the program is another one then

_MOST_APART = 0.02
"""The share by which the step of the written program may differ from the suggested one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file of the user's with a suggestion in it.

    Attributes:
        path: The file.
        before: Its text.
        after: Its text with the suggestion.
    """

    path: Path
    before: str
    after: str

    def render_diff(self) -> Iterator[str]:
        """The lines of a unified diff."""
        name, (before, after) = str(self.path), (text.splitlines(True) for text in (self.before, self.after))
        for line in unified_diff(before, after, fromfile=name, tofile=name):
            yield line.rstrip("\n")


def write_best(request: Request, found: Suggestions, *, is_sure: bool, fix: str, say: Callable[[str], None]) -> None:
    """Writes the best suggestion into the user's source, and says what changes.

    Args:
        request: The request that found it, for a function that is named.
        found: The suggestions.
        is_sure: Whether to write files of which git does not have the present text.
        fix: How to be sure, for the message that refuses such files.
        say: Prints a message.

    Raises:
        HloscopeError: Nothing was written, or it was taken back: a part of the suggestion has no place in the source,
            a file has changes that are not committed, or the program is not the suggested one when analyzed again.
    """
    best = found.best
    if best is None:
        say("nothing was written: no suggestion is better than the program as written")
        return
    changes = plan_changes(best)
    for change in changes:
        say("\n".join(change.render_diff()))
    if not is_sure:
        refuse_uncommitted(changes, fix)
    facts = request.facts()
    options = {each.name: getattr(facts, each.name) for each in fields(facts)}
    target = TargetConfig(name=found.target, function=str(request.target), options=options)
    step = write_changes(
        changes, best, Job(name=found.target, target=target, slice=facts.slice, root=Path.cwd(), baseline=None)
    )
    say(f"written, and analyzed again: {step} a step, as suggested; baselines and contracts were not checked")


def plan_changes(best: Suggestion) -> list[FileChange]:
    """The files with a suggestion in them.

    Raises:
        HloscopeError: A part of it has no place in the source, or a file is not as it was traced.
    """
    from hloscope.compile.source_edits import apply_edits

    if best.by_hand or not best.edits:
        why = "; ".join(best.by_hand) or "it has no change of the source"
        raise HloscopeError("nothing was written", why=f"a part has to be written by hand: {why}")
    changes = []
    for file, edits in groupby(sorted(best.edits, key=lambda edit: edit.file), key=lambda edit: edit.file):
        path = Path(file).resolve()  # a link stays one
        try:
            before = path.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise HloscopeError(f"nothing was written: {file} cannot be read", why=str(error)) from None
        end = "\r\n" if "\r\n" in before else "\n"
        after = apply_edits(before.replace(end, "\n"), [*edits]).replace("\n", end)
        changes.append(FileChange(path=path, before=before, after=after))
    return changes


def refuse_uncommitted(changes: list[FileChange], fix: str) -> None:
    """Refuses files of which git does not have the present text.

    Raises:
        HloscopeError: A file has uncommitted changes, or is in no repository.
    """
    for change in changes:
        folder, name = change.path.parent, change.path.name
        try:
            run_git("ls-files", "--error-unmatch", "--", name, cwd=folder)
            is_committed = not run_git("status", "--porcelain", "--", name, cwd=folder).strip()
        except HloscopeError:
            is_committed = False
        if not is_committed:
            raise HloscopeError(
                f"nothing was written: {change.path} is not committed as it is",
                why="git could not bring its present text back",
                fix=fix,
            )


def write_changes(changes: list[FileChange], best: Suggestion, again: Job) -> str:
    """Writes files, analyzes the program again, and puts them back if its step is not the suggested one.

    Args:
        changes: The files.
        best: The suggestion.
        again: The program.

    Returns:
        What the program costs as it is written.

    Raises:
        HloscopeError: A file cannot be written, or the program differs from the suggestion; the files are as before.
    """
    try:
        for change in changes:
            replace_file(change.path, change.after.encode(), str(change.path))
        (outcome,) = run_jobs([again], workers=1)
        if outcome.analysis is None:
            raise HloscopeError("the program with the suggestion fails", why=outcome.error)
        time = outcome.analysis.time
        step_us, suggested_us = None if time is None else time.step_us, best.figures.step_us
        if step_us is None or suggested_us is None or abs(step_us - suggested_us) > _MOST_APART * suggested_us:
            found = "unknown" if step_us is None else format_time(step_us)
            raise HloscopeError(f"the step with the suggestion is {found}, not {best.figures.step_words}")
    except BaseException as error:
        for change in changes:
            replace_file(change.path, change.before.encode(), str(change.path))
        if isinstance(error, HloscopeError):
            raise HloscopeError(f"the suggestion was taken back: {error.what}", why=error.why) from None
        raise
    return format_time(step_us)
