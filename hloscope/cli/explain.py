"""`hloscope explain`: why a collective is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import Span, source_root_option, target_options, together

if TYPE_CHECKING:
    from hloscope.api.requests import Result
    from hloscope.why.explanation import Explanations

_EPILOG = """\b
COLLECTIVE is an instruction's name, such as all-gather.8; its number in the
list of `hloscope analyze`, counted from 1; a contract selector, such as
all-gather@fsdp; or all. By default the one that moves most is explained and
the others are listed; JSON explains all of them.

\b
Examples
  hloscope explain model.py:step
  hloscope explain model.py:step all-gather.8
  hloscope explain model.py:step all
  hloscope explain model.py:step 1 --format json
  hloscope explain model.py:step --try 5m
"""

_ALL = "all"


_try_options = together(
    click.option(
        "--try",
        "try_s",
        type=Span(),
        metavar="TIME",
        help="Try changes that may help for this long, such as 5m. [default: 4 changes or 10s, for programs that "
        "compile within 2s]",
    ),
    click.option("--no-try", is_flag=True, help="Do not try any changes."),
)


@click.command(epilog=_EPILOG)
@click.argument("target")
@click.argument("collective", required=False)
@target_options()
@source_root_option
@_try_options
@running.reports("explanation")
def command(
    target: str, collective: str | None, try_s: float | None, no_try: bool, **options: Any
) -> Result[Explanations]:
    """Explain why TARGET's collectives are there: which array, line and shardings cause them, and what would help.

    Changes of shardings are compiled and priced before they are recommended.
    """
    if no_try and try_s is not None:
        raise click.UsageError("--try and --no-try contradict each other: pass only one of them.")
    request = targets.request_of(target, options, helpers=targets.helpers())
    from hloscope.api.explaining import Trying, find_explanations

    named, trying = None if collective == _ALL else collective, Trying(wanted=not no_try, seconds=try_s)
    return find_explanations(request, named, everything=collective is not None, trying=trying)
