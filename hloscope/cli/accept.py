"""`hloscope accept`: writes the current baselines of targets, and on a terminal asks about each change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.base.errors import EXIT_COULD_NOT_RUN, EXIT_OK
from hloscope.cli import running, targets
from hloscope.cli.options import debug_option, jobs_option, limit_option, project_options

if TYPE_CHECKING:
    from hloscope.app.accepting import Accepted, Answer, Proposed
    from hloscope.judge.judging import RowChange


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--only",
    multiple=True,
    metavar="CHANGE",
    help="Accept only this change, as a failed check names it: all-gather@fsdp, types, memory. Repeats.",
)
@click.option("--all", "all_of_them", is_flag=True, help="Accept every change without asking, even on a terminal.")
@click.option("--beside", is_flag=True, help="Keep the baseline of another compiler version next to the new one.")
@project_options
@jobs_option
@limit_option
@click.option("--accept-in-ci", is_flag=True, help="Write baselines even where CI is set.")
@debug_option
def command(names: tuple[str, ...], accept_in_ci: bool, debug: bool, **options: Any) -> None:
    """Write the current state of the named targets, or of all, as their baselines.

    On a terminal each change is shown, and you are asked about it. Review the diff of the files, then commit them.
    """
    running.print_text(lambda: _accept_targets(names, accept_in_ci, **options), debug=debug)


def _accept_targets(
    names: tuple[str, ...], in_ci: bool, *, only: tuple[str, ...], all_of_them: bool, beside: bool, **options: Any
) -> tuple[str, int]:
    """The result for each baseline as text, and the exit code, 2 if a target could not be analyzed."""
    from hloscope.app.accepting import accept_project, refuse_to_accept
    from hloscope.app.config import find_project
    from hloscope.app.jobs import run_over_targets

    refuse_to_accept(in_ci=in_ci, fix="accept on your own machine, or pass --accept-in-ci")
    asks = None if all_of_them or only or not _is_interactive() else _Prompt()
    config = options.pop("config")
    project = find_project(Path.cwd(), named=None if config is None else Path(config))
    how = targets.make_run_options(options)
    done = run_over_targets(
        accept_project, project, names, door=targets.make_front_door(), **how, only=only, beside=beside, asks=asks
    )
    failed = any(accepted.error is not None for accepted in done)
    text = "\n".join(_format_line(accepted, project.root) for accepted in done)
    return text, EXIT_COULD_NOT_RUN if failed else EXIT_OK


def _is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


class _Prompt:
    """Shows the changes of each baseline on stderr, and asks which of them to accept."""

    def __call__(self, proposed: Proposed) -> Answer:
        """Asks about the changes of a baseline, with one question for all changes of the same key."""
        from hloscope.app.accepting import Answer
        from hloscope.base.results import group_by
        from hloscope.report.checks import format_judgement

        compared = proposed.compared
        if compared is None:
            return Answer(())
        lacks = compared.judged.is_only_left_open
        said = "has a baseline that lacks figures" if lacks else f"is {format_judgement(compared.judged)} its baseline"
        running.say(f"\n{proposed.name} {said}")
        by_key, accepted = group_by(compared.changes, lambda change: change.key), list[str]()
        for number, (key, changes) in enumerate(by_key.items(), 1):
            for change in changes:
                running.say(f"  {number} of {len(by_key)}  {change.judgement}: {change.message}")
            answer = self._answer(changes)
            if answer == "q":
                return Answer(accepted, ends=True)
            if answer == "t":
                return Answer([*accepted, *list(by_key)[number - 1 :]])
            if answer == "a":
                accepted.append(key)
        return Answer(accepted)

    @staticmethod
    def _answer(changes: Sequence[RowChange]) -> str:
        while True:
            click.echo("  [a]ccept, [r]eject, [s]how, accept [t]he rest of this target, [q]uit: ", err=True, nl=False)
            try:
                answer = click.getchar().lower()
            except EOFError:  # Ctrl-D
                raise KeyboardInterrupt from None
            click.echo(answer if answer.isprintable() else "", err=True)
            if answer == "\x03":
                raise KeyboardInterrupt
            if answer in "artq":
                return answer
            if answer == "s":
                for line in (line for change in changes for line in _list_details(change)):
                    running.say(f"      {line}")


def _list_details(change: RowChange) -> list[str]:
    """The source and the reason of a change, and the lines of the baseline that it removes and adds."""
    from hloscope.judge.baseline_files import format_row

    lines = [f"--> {change.source}"] if change.source else []
    lines += [f"why: {change.why}"] if change.why else []
    lines += [f"- {format_row(row)}" for row in change.before]
    return [*lines, *(f"+ {format_row(row)}" for row in change.after)]


def _format_line(accepted: Accepted, root: Path) -> str:
    if accepted.error is not None:
        return f"{accepted.name}: could not run\n{accepted.error}"
    if accepted.path is None:
        return f"{accepted.name}: {accepted.state}"
    path = accepted.path.relative_to(root) if accepted.path.is_relative_to(root) else accepted.path
    note = "" if accepted.note is None else f"\n   = note: {accepted.note}"
    return f"{accepted.name}: {accepted.state}  {path}{note}"
