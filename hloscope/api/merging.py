"""`merge_reports`: merges the reports of a sharded check into that of the whole check."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from hloscope import given
from hloscope.api.checking import checked_outcome, contracts_of, opened_project, report_of_project
from hloscope.api.git import commit_of
from hloscope.api.jobs import Job, Outcome, Shard, jobs_of
from hloscope.calls import front_door
from hloscope.config import ProjectConfig
from hloscope.documents import read
from hloscope.errors import HloscopeError, NotationError
from hloscope.messages import Command, say
from hloscope.report.checks import CheckDocument, CheckedTarget, CheckReport, seal_of

_ONCE = "pass each shard's report once"


@front_door
def merge_reports(
    *files: str | Path, config: str | Path | None = None, strict: bool | None = None, changes: str = "increase"
) -> CheckReport:
    """Merges the reports of a sharded check.

    The analyses in the reports are checked against the contracts and baselines in this checkout: only compiled programs
    are taken from the reports. A target that is in none of the reports counts as one that could not run.

    Example:
        >>> assert hloscope.merge_reports(*Path("reports").glob("*.json")).passed

    Args:
        files: The JSON reports of `check(shard="1/4")` and of every other shard.
        config: The targets file; by default the nearest one in the current folder or its parents.
        strict: As for `check`.
        changes: As for `check`.

    Returns:
        The report on all targets of the targets file.

    Raises:
        HloscopeError: A report cannot be read, two reports have the same target, or a report has a target that is not
            in the targets file.
    """
    if not files:
        raise NotationError("there are no reports to merge", fix='name them: merge_reports("1.json", "2.json")')
    project = opened_project(given.path("config", config, example='config="hloscope.toml"'))
    changes = given.choice("changes", changes, ("increase", "any"))
    return merged(project, files, strict=strict, changes=changes)


def merged(
    project: ProjectConfig, files: Sequence[str | Path], *, strict: bool | None = None, changes: str = "increase"
) -> CheckReport:
    """The report of all targets of a project, from files; arguments and errors as of `merge_reports`."""
    jobs = jobs_of(project, ())
    contracts = contracts_of(jobs)
    _refuse_twice(files)
    documents = {str(file): _read(Path(file), str(file)) for file in files}
    _refuse_other_commits(documents, commit_of(project.root))
    found = _targets(documents, {job.name for job in jobs}, str(project.path))
    missing = _missing(document.shard for document in documents.values())
    outcomes = [_outcome(job, found.get(job.name), missing) for job in jobs]
    checks = tuple(checked_outcome(each, contracts[each.job.target.name], changes) for each in outcomes)
    return report_of_project(project, checks, strict=strict)


def _refuse_twice(files: Sequence[str | Path]) -> None:
    """Refuses a file that is named twice.

    Raises:
        NotationError: There is one.
    """
    seen: set[Path] = set()
    for file in files:
        if (path := Path(file).resolve()) in seen:
            raise NotationError(f"the report {file} is named twice", fix=_ONCE)
        seen.add(path)


def _read(path: Path, name: str) -> CheckDocument:
    """A report of a check.

    Raises:
        HloscopeError: It is none, or cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HloscopeError(f"{name} cannot be read", why=error.strerror) from None
    except (ValueError, RecursionError) as error:
        raise HloscopeError(f"{name} is not valid JSON", why=str(error)) from None
    document = read(CheckDocument, found, name=name, key="checks", command="check")
    if document.seal != seal_of(found):
        why = say("it was edited or damaged after ", Command("check"), " wrote it")
        raise HloscopeError(f"the seal of {name} does not match its contents", why=why, fix="check again")
    return document


def _refuse_other_commits(documents: Mapping[str, CheckDocument], here: str | None) -> None:
    """Refuses reports of another commit than the one that is checked out, where both are known.

    Raises:
        HloscopeError: There is one.
    """
    for name, document in documents.items():
        if None not in (here, document.commit) and document.commit != here:
            what = f"{name} is a report of the commit {document.commit}, but {here} is checked out"
            raise HloscopeError(what, fix="check this commit again, or check out the other one")


def _targets(documents: Mapping[str, CheckDocument], known: Collection[str], project: str) -> dict[str, CheckedTarget]:
    """What the reports have, by the target's name; without what is a check of no target, which is made again.

    Raises:
        HloscopeError: Two have one target, or one has a target that is not known.
    """
    found: dict[str, CheckedTarget] = {}
    held_by: dict[str, str] = {}
    for name, document in documents.items():
        for target in document.checks:
            if target.analysis is None and target.error is None:
                continue
            if target.name not in known:
                why = f"{project} has no target of that name: the report is of another state of the project"
                raise HloscopeError(
                    f"{name} has the unknown target {target.name!r}", why=why, fix="check the current state again"
                )
            if target.name in found:
                both = f"{held_by[target.name]} and {name}"
                raise HloscopeError(f"{both} both have the target {target.name!r}", fix=_ONCE)
            found[target.name], held_by[target.name] = target, name
    return found


def _missing(texts: Iterable[str | None]) -> str | None:
    """`shard 2/4 is missing`; None where the reports name all that there are, or no shards."""
    shards = {Shard.read(text) for text in texts if text is not None}
    whole = {Shard(number, shard.total) for shard in shards for number in range(1, shard.total + 1)}
    lost = [str(shard) for shard in sorted(whole - shards)]
    return (
        f"shard{'s' * (len(lost) > 1)} {', '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing" if lost else None
    )


def _outcome(job: Job, target: CheckedTarget | None, missing: str | None) -> Outcome:
    if target is None:
        why = "it is in none of the reports" + (f": {missing}" if missing else "")
        error = HloscopeError(f"{job.name} was not checked", where=job.target.where, why=why)
        return Outcome(job=job, error=error.message())
    return Outcome(
        job=job,
        analysis=target.analysis,
        error=target.error,
        seconds=target.seconds or 0.0,
        compile_from=target.compile_from,
    )
