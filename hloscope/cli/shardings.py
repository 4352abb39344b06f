"""`hloscope shardings`: every array's sharding before anything is compiled."""

from __future__ import annotations

from typing import Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import report_options, target_options
from hloscope.errors import TargetError

_EPILOG = """\b
TARGET is a function: package.module:fn or path/to/file.py:fn.
Arrays marked "moves" are resharded before they are used; `hloscope explain` says why.
"""


@click.command(epilog=_EPILOG)
@click.argument("target")
@target_options(without=("chip_overrides", "kernel_costs"))
@report_options("shardings")
def command(target: str, format_name: str, output: str | None, debug: bool, **options: Any) -> None:
    """Show the sharding of TARGET's arguments, constraints, outputs and large arrays, as Shardy propagates them."""
    running.check_streams()
    table = running.guarded(lambda: _table(target, options), debug=debug)
    running.guarded(lambda: running.write_formatted("shardings", format_name, table, output), debug=debug)


def _table(target: str, options: dict[str, Any]) -> Any:
    targets.start_compiler(target, None)
    from hloscope.api.shardings import shardings_of

    if targets.is_text(target):
        raise TargetError(
            f"{target} is compiled already, and its shardings are propagated",
            fix="name the function itself, or use hloscope analyze",
        )
    facts = targets.prepared_facts(options)
    with running.stdout_kept_for_the_report(), running.progress() as stage:
        return shardings_of(target, facts, stage=stage)
