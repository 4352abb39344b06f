"""`hloscope suggest`: a better sharding, found by search and proven by the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import Span, executor_option, jobs_option, target_options, together

if TYPE_CHECKING:
    from hloscope.analysis.model.suggestion import Suggestions
    from hloscope.api.requests import Result

_EPILOG = """\b
A result keeps the sharding that the program requests, unless it is freed or
follows the argument that it replaces.

\b
Examples
  hloscope suggest model.py:step
  hloscope suggest model.py:step --budget 10m
  hloscope suggest model.py:ffn --keep x --free result --fix-mesh
  hloscope suggest model.py:step --executor dask://scheduler:8786 \\
      --candidates 200
"""

_search_options = together(
    click.option(
        "--keep", multiple=True, metavar="NAME", help="Leave this argument's sharding as it is: W, 'params*'. Repeats."
    ),
    click.option(
        "--free",
        multiple=True,
        metavar="NAME",
        help="Let this result change its sharding; out means all. Repeats.",
    ),
    click.option("--fix-mesh", is_flag=True, help="Leave the mesh as it is."),
    click.option(
        "--candidates",
        type=click.IntRange(1),
        default=40,
        show_default=True,
        metavar="N",
        help="Programs to compile at most.",
    ),
    click.option(
        "--budget",
        "budget_s",
        type=Span(),
        metavar="TIME",
        help="Stop after this long, and report what was found: 10m.",
    ),
    click.option(
        "--seed", type=click.IntRange(0), default=0, metavar="N", help="Seed of the random sampling. [default: 0]"
    ),
    jobs_option,
    executor_option,
)


@click.command(epilog=_EPILOG)
@click.argument("target")
@target_options()
@_search_options
@running.reports("suggestions")
def command(
    target: str, executor: str | None, jobs: int | None, budget_s: float | None, **options: Any
) -> Result[Suggestions]:
    """Search for better shardings of TARGET's arguments, results and constraints, and for a better mesh.

    Every suggestion is compiled and priced.
    """
    request = targets.request_of(target, options)
    from hloscope.api.suggesting import Searching, find_suggestions

    as_given = ("keep", "free", "fix_mesh", "candidates", "seed")
    searching = Searching(seconds=budget_s, **{name: options[name] for name in as_given})
    return find_suggestions(request, searching, executor=executor, jobs=jobs)
