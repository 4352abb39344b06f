"""`hloscope doctor`: reports what is installed here, and whether it works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hloscope.base.errors import EXIT_COULD_NOT_RUN, EXIT_OK
from hloscope.cli import running

if TYPE_CHECKING:
    from hloscope.report.checkups import Checkup


def _choose_exit_code(found: tuple[Checkup, ...], _options: object) -> int:
    return EXIT_COULD_NOT_RUN if any(checkup.works is False for checkup in found) else EXIT_OK


@click.command()
@running.reports("checkups", _choose_exit_code)
def command() -> tuple[Checkup, ...]:
    """Report versions, the TPU compiler, JAX's private parts, the cache and the workers, and which of these work."""
    from hloscope.app.doctor import doctor

    with running.reserve_stdout():
        return doctor()
