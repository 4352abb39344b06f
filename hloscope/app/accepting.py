"""`accept`: writes the baselines of a project's targets, with all changes or with selected ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from hloscope.app.checking import find_tolerance
from hloscope.app.config import ProjectConfig, find_project
from hloscope.app.jobs import HowToRun, Outcome, list_jobs, run_jobs, run_over_targets
from hloscope.app.requests import PYTHON
from hloscope.base import calls
from hloscope.base.calls import front_door
from hloscope.base.environment import is_ci
from hloscope.base.errors import HloscopeError, did_you_mean
from hloscope.base.units import pluralize
from hloscope.judge.baseline_files import BaselineError, format_baselines, read_baselines, write_baselines
from hloscope.judge.baselines import Baseline, find_section, make_baseline
from hloscope.judge.judging import BaselineComparison, judge, replace_section


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The result of accepting one target's baseline.

    Attributes:
        name: Name of the target, with its slice if it has several.
        path: Its baseline file; None if it has none or could not be analyzed.
        state: `written`, `rewritten`, `rewritten in part`, `unchanged`, `rejected`, `not asked` or `wants no baseline`;
            None if it could not be analyzed.
        error: The reason that it could not be analyzed; None if it was.
        note: The number of accepted changes, and the parts of the baseline that stay; None if all were accepted.
    """

    name: str
    path: Path | None = None
    state: str | None = None
    error: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """A proposed baseline.

    Attributes:
        name: Name of the target.
        path: Its baseline file.
        kept: Contents of the existing file; empty if there is none or it cannot be read.
        now: Baseline of the program as it is now.
        compared: Comparison of the two; None if there is nothing to compare with.
    """

    name: str
    path: Path
    kept: tuple[Baseline, ...]
    now: Baseline
    compared: BaselineComparison | None


class Answer(NamedTuple):
    """The answer to a question about a changed baseline.

    Attributes:
        accepted: Keys of the accepted changes.
        ends: Whether to stop asking about further baselines.
    """

    accepted: Collection[str]
    ends: bool = False


Asks = Callable[[Proposed], Answer]


@front_door
def accept(
    *names: str,
    only: Sequence[str] = (),
    beside: bool = False,
    config: str | Path | None = None,
    cached: bool = True,
    jobs: int | None = None,
    timeout_s: float | None = None,
    in_ci: bool = False,
) -> tuple[Accepted, ...]:
    """Writes the current baselines of targets in the targets file.

    Args:
        names: Names of the targets; all if none is given.
        only: The changes to accept, as named by a failed check: `all-gather@fsdp`, `types`, `memory`; by default all.
        beside: Whether to keep the baselines of other compiler versions in the file.
        config: The targets file; by default the nearest one in the current folder or its parents.
        cached: Whether to use the compile cache. False recompiles everything and stores nothing.
        jobs: Maximum number of parallel processes; by default as many as cores and memory allow.
        timeout_s: Time limit in seconds for a target without its own limit.
        in_ci: Whether to write baselines even if `CI` is set, where a later check would then pass trivially.

    Raises:
        HloscopeError: A target or a change does not exist, a file cannot be written, or `CI` is set.
    """
    refuse_to_accept(in_ci=in_ci, fix="accept on your own machine, or give in_ci=True")
    wanted = calls.texts("names", names, example='hloscope.accept("step")')
    chosen = calls.texts("only", only, example='only=["all-gather@fsdp"]')
    project = find_project(Path.cwd(), named=calls.path("config", config, example='config="hloscope.toml"'))
    workers = None if jobs is None else calls.whole("jobs", jobs, least=1)
    limit = None if timeout_s is None else calls.seconds("timeout_s", timeout_s, example="timeout_s=600")
    how: dict[str, Any] = {"cached": cached, "workers": workers, "timeout_s": limit}
    return run_over_targets(accept_project, project, wanted, door=PYTHON, only=chosen, beside=beside, **how)


def refuse_to_accept(*, in_ci: bool, fix: str) -> None:
    """Refuses to write baselines in continuous integration, unless that is intended.

    Raises:
        HloscopeError: `CI` is set.
    """
    if is_ci() and not in_ci:
        raise HloscopeError(
            "baselines are not written in continuous integration, where CI is set",
            why="a check against what was just written cannot fail",
            fix=fix,
        )


def accept_project(
    project: ProjectConfig,
    names: Sequence[str] = (),
    *,
    only: Sequence[str] = (),
    beside: bool = False,
    asks: Asks | None = None,
    on_done: Callable[[Accepted], None] = lambda _: None,
    **how: Unpack[HowToRun],
) -> tuple[Accepted, ...]:
    """Writes the current baselines of targets.

    Args:
        project: The targets file.
        names: Names of the targets; all if empty.
        only: Keys of the changes to accept; all if empty.
        beside: As for `accept`.
        asks: Called for each changed baseline, after all targets are analyzed.
        on_done: Called with each baseline as soon as it is written.
        **how: As for `run_jobs`.

    Raises:
        HloscopeError: A target or a change does not exist, or a file cannot be written.
    """
    jobs, known, proposals = list_jobs(project, names), dict[str, Accepted](), list[Proposed]()

    def keep(accepted: Accepted) -> None:
        known[accepted.name] = accepted
        on_done(accepted)

    def decide(outcome: Outcome) -> None:
        proposed = _propose_baseline(outcome)
        if isinstance(proposed, Accepted):
            keep(proposed)
        elif only or (asks is not None and proposed.compared is not None and proposed.compared.changes):
            proposals.append(proposed)
        else:
            keep(_write_accepted(proposed, None, beside=beside))

    run_jobs(jobs, **how, on_done=decide)
    _refuse_unknown(only, proposals)
    order = {job.name: number for number, job in enumerate(jobs)}
    ended: Answer | None = None
    for proposed in sorted(proposals, key=lambda each: order[each.name]):
        answer = ended or (_choose_answer(proposed, only) if asks is None or only else asks(proposed))
        if answer.ends and not answer.accepted:
            keep(Accepted(name=proposed.name, path=proposed.path, state="not asked"))
        else:
            keep(_write_accepted(proposed, answer.accepted, beside=beside))
        ended = Answer((), ends=True) if answer.ends else None
    return tuple(known[job.name] for job in jobs)


def _refuse_unknown(only: Sequence[str], proposals: Sequence[Proposed]) -> None:
    """Refuses keys that match no change of any target.

    Raises:
        HloscopeError: A key matches no change.
    """
    compared = [proposed.compared for proposed in proposals if proposed.compared is not None]
    keys = dict.fromkeys(change.key for each in compared for change in each.changes)
    for key in only:
        if key not in keys:
            otherwise = f"the changes are {', '.join(keys)}" if keys else "nothing has changed"
            raise HloscopeError(f"there is no change {key!r} to accept", fix=did_you_mean(key, keys, otherwise))


def _propose_baseline(outcome: Outcome) -> Proposed | Accepted:
    """The proposed baseline of a target, or the result if there is nothing to propose."""
    job = outcome.job
    if outcome.analysis is None:
        return Accepted(name=job.name, error=outcome.error)
    if job.baseline is None:
        return Accepted(name=job.name, state="wants no baseline")
    try:
        kept = read_baselines(job.baseline)
    except BaselineError:
        kept = ()  # it is rewritten
    now = make_baseline(outcome.analysis, root=job.root)
    compared = None
    if kept:
        tolerance = find_tolerance(job.target)
        compared = judge(find_section(kept, now), outcome.analysis, root=job.root, tolerance=tolerance, of_target=True)
    return Proposed(name=job.name, path=job.baseline, kept=kept, now=now, compared=compared)


def _write_accepted(proposed: Proposed, keys: Collection[str] | None, *, beside: bool) -> Accepted:
    """Writes a baseline with the changes of the given keys, or with all changes."""
    compared = proposed.compared
    if compared is not None and compared.changes and keys is not None and not keys:
        return Accepted(name=proposed.name, path=proposed.path, state="rejected")
    whole = compared is None or keys is None or compared.is_all(keys)
    accepted = proposed.now if compared is None else compared.accept(None if whole else keys)
    sections = replace_section(proposed.kept, accepted, beside=beside)
    before = proposed.path.read_bytes() if proposed.path.is_file() else None
    if before == format_baselines(*sections).encode():
        return Accepted(name=proposed.name, path=proposed.path, state="unchanged")
    write_baselines(proposed.path, sections)
    state = "written" if before is None else "rewritten" if whole else "rewritten in part"
    note = None if compared is None or whole else _describe_part(compared, keys or (), accepted)
    return Accepted(name=proposed.name, path=proposed.path, state=state, note=note)


def _choose_answer(proposed: Proposed, only: Collection[str]) -> Answer:
    """The answer without a question to the user."""
    compared = proposed.compared
    return Answer(only if compared is None else compared.add_faster_step(only))


def _describe_part(compared: BaselineComparison, keys: Collection[str], accepted: Baseline) -> str:
    """The number of accepted changes, and a note that the step, which depends on all changes, is not accepted."""
    known = [key in keys for key in dict.fromkeys(change.key for change in compared.changes)]
    said = f"{sum(known)} of {pluralize(len(known), 'change')} accepted"
    if accepted.step in (None, compared.after.step):
        return said
    return f"{said}; the predicted step is a consequence of all of them, so it stays as it was until all are accepted"
