"""`hloscope accept`: baselines as the targets are now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running
from hloscope.cli.options import debug_option, jobs_option, limit_option, project_options
from hloscope.errors import EXIT_COULD_NOT_RUN, EXIT_OK

if TYPE_CHECKING:
    from hloscope.api.checking import Accepted


@click.command()
@click.argument("names", nargs=-1)
@project_options
@jobs_option
@limit_option
@click.option("--accept-in-ci", is_flag=True, help="Write them where CI is set, too.")
@debug_option
def command(names: tuple[str, ...], accept_in_ci: bool, debug: bool, **options: Any) -> None:
    """Write the baselines of targets, all of them or those NAMED, as they are now; read the difference, then commit."""
    running.print_text(lambda: _accepted(names, accept_in_ci, options), debug=debug)


def _accepted(names: tuple[str, ...], in_ci: bool, options: dict[str, Any]) -> tuple[str, int]:
    """What became of each baseline, in words; the exit code, 2 where a target could not be analysed."""
    from hloscope.api.checking import accept_project, refuse_to_accept

    refuse_to_accept(in_ci=in_ci, fix="accept on your own machine, or pass --accept-in-ci")
    project, done = running.over_targets(accept_project, names, **options)
    failed = any(accepted.error is not None for accepted in done)
    text = "\n".join(_line(accepted, project.root) for accepted in done)
    return text, EXIT_COULD_NOT_RUN if failed else EXIT_OK


def _line(accepted: Accepted, root: Path) -> str:
    if accepted.error is not None:
        return f"{accepted.name}: could not run\n{accepted.error}"
    if accepted.path is None:
        return f"{accepted.name}: {accepted.state}"
    path = accepted.path.relative_to(root) if accepted.path.is_relative_to(root) else accepted.path
    return f"{accepted.name}: {accepted.state}  {path}"
