"""A suggestion written into the user's source: shown as a diff, and taken back if the program is another one then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from difflib import unified_diff
from itertools import groupby
from pathlib import Path

from hloscope.app.config import TargetConfig
from hloscope.app.jobs import Job, run_git, run_jobs
from hloscope.app.requests import Request
from hloscope.base.errors import HloscopeError
from hloscope.base.outputs import replace_file
from hloscope.base.units import format_time
from hloscope.model.trial import Suggestion, Suggestions

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
