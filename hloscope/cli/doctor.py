"""`hloscope doctor`: what is installed here, and what of it works."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hloscope.cli import running
from hloscope.cli.options import report_options
from hloscope.errors import EXIT_COULD_NOT_RUN, EXIT_OK

if TYPE_CHECKING:
    from hloscope.api.doctor import Checkup

_MARKS = {True: "works", False: "FAILS", None: ""}


@click.command()
@report_options()
def command(format_name: str, output: str | None, debug: bool) -> None:
    """Report versions, the TPU compiler, JAX's private parts, the cache and the workers, and which of these work."""
    running.check_streams()
    found = running.guarded(_checkups, debug=debug)
    text = _as_json(found) if format_name == "json" else _as_text(found)
    running.guarded(lambda: running.write_report(text, output), debug=debug)
    raise SystemExit(EXIT_COULD_NOT_RUN if any(checkup.works is False for checkup in found) else EXIT_OK)


def _checkups() -> tuple[Checkup, ...]:
    from hloscope.api.doctor import checkups

    with running.stdout_kept_for_the_report():
        return checkups()


def _as_json(found: tuple[Checkup, ...]) -> str:
    from hloscope.report.escaping import dumped

    return dumped({"checkups": [asdict(checkup) for checkup in found]})


def _as_text(found: tuple[Checkup, ...]) -> str:
    width = max(len(checkup.name) for checkup in found)
    lines = []
    for checkup in found:
        lines.append(f"{checkup.name:<{width}}  {_MARKS[checkup.works]:<5}  {checkup.found}")
        lines += [f"{'':<{width}}         fix: {checkup.fix}"] if checkup.fix else []
    return "\n".join(lines)
