"""`hloscope doctor`: what is installed here, and what of it works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hloscope.cli import running
from hloscope.cli.options import report_options
from hloscope.errors import EXIT_COULD_NOT_RUN, EXIT_OK

if TYPE_CHECKING:
    from hloscope.report.checkups import Checkup


@click.command()
@report_options("checkups")
def command(format_name: str, output: str | None, debug: bool) -> None:
    """Report versions, the TPU compiler, JAX's private parts, the cache and the workers, and which of these work."""
    running.check_streams()
    found = running.guarded(_checkups, debug=debug)
    running.guarded(lambda: running.write_formatted("checkups", format_name, found, output), debug=debug)
    raise SystemExit(EXIT_COULD_NOT_RUN if any(checkup.works is False for checkup in found) else EXIT_OK)


def _checkups() -> tuple[Checkup, ...]:
    from hloscope.api.doctor import checkups

    with running.stdout_kept_for_the_report():
        return checkups()
