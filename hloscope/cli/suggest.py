"""`hloscope suggest`: a better sharding, found by search and proven by the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import Span, executor_option, jobs_option, target_options, together
from hloscope.progress import progress

if TYPE_CHECKING:
    from hloscope.analysis.model.suggestion import Suggestions

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
def command(target: str, executor: str | None, jobs: int | None, budget_s: float | None, **options: Any) -> Suggestions:
    """Search for better shardings of TARGET's arguments, results and constraints, and for a better mesh.

    Every suggestion is compiled and priced.
    """
    target = targets.begun(target, options)
    from hloscope.api.suggesting import Searching, refused_text, suggest_function
    from hloscope.compiler.elsewhere import compiling_on
    from hloscope.store import default_store

    if targets.is_text(target):
        raise refused_text()
    searching = Searching(
        keep=options["keep"],
        free=options["free"],
        fix_mesh=options["fix_mesh"],
        candidates=options["candidates"],
        seconds=budget_s,
        seed=options["seed"],
    )
    facts = targets.prepared_facts(options)
    with running.stdout_kept_for_the_report(), compiling_on(executor, jobs), progress() as stage:
        return suggest_function(target, facts, searching, stage=stage, say=running.saying(stage), store=default_store())
