"""`hloscope accept`: baselines as the targets are now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloscope.cli import running
from hloscope.cli.options import jobs_option, limit_option, project_options
from hloscope.errors import EXIT_COULD_NOT_RUN, EXIT_OK

if TYPE_CHECKING:
    from hloscope.api.checking import Accepted


@click.command()
@click.argument("names", nargs=-1)
@project_options
@jobs_option
@limit_option
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(
    names: tuple[str, ...], config: str | None, no_cache: bool, jobs: int | None, timeout_s: float | None, debug: bool
) -> None:
    """Write the baselines of targets, all of them or those NAMED, as they are now; read the difference, then commit."""
    running.check_streams()
    text, failed = running.guarded(lambda: _accepted(names, config, not no_cache, jobs, timeout_s), debug=debug)
    running.guarded(lambda: running.write_report(text, None), debug=debug)
    raise SystemExit(EXIT_COULD_NOT_RUN if failed else EXIT_OK)


def _accepted(
    names: tuple[str, ...], config: str | None, cached: bool, workers: int | None, timeout_s: float | None
) -> tuple[str, bool]:
    """What became of each baseline, in words; whether a target could not be analysed."""
    from hloscope.api.checking import accept
    from hloscope.config import find_project

    project = find_project(Path.cwd(), named=None if config is None else Path(config))
    with running.progress() as stage:
        stage("compiling")
        done = accept(
            project,
            names,
            cached=cached,
            workers=workers,
            timeout_s=timeout_s,
            told=lambda name: stage(f"{name} is done"),
        )
    return "\n".join(_line(one, project.root) for one in done), any(one.error is not None for one in done)


def _line(one: Accepted, root: Path) -> str:
    if one.error is not None:
        return f"{one.name}: could not run\n{one.error}"
    if one.path is None:
        return f"{one.name}: {one.state}"
    return f"{one.name}: {one.state}  {one.path.relative_to(root) if one.path.is_relative_to(root) else one.path}"
