"""`hloscope verify`: a program against its reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running, targets
from hloscope.cli.options import fail_on_option, target_options
from hloscope.errors import EXIT_BROKEN, EXIT_OK

if TYPE_CHECKING:
    from hloscope.api.requests import Result
    from hloscope.verification.job import Settings
    from hloscope.verification.model import Verification

_EPILOG = """\b
TARGET and REF are functions: package.module:fn, or path/to/file.py:fn. What
REF's own decorator leaves open is taken from TARGET's.

\b
Examples
  hloscope verify model.py:step --reference model.py:step_shard_map
  hloscope verify moe.py:layer --reference moe.py:routed --scale S=64,D=32 \\
      --range B=0:E
  hloscope verify model.py:step --reference model.py:twin --grad \\
      --against-single-device --format json
"""


def _exit_code(found: Verification, options: dict[str, Any]) -> int:
    return EXIT_BROKEN if found.fails(options["fail_on"], strict=options["strict"]) else EXIT_OK


@click.command(epilog=_EPILOG)
@click.argument("target")
@click.option("--reference", required=True, metavar="REF", help="The program that is known to be correct.")
@target_options(without=("donate", "timeout_s"))
@click.option(
    "--scale",
    "scales",
    multiple=True,
    metavar="B=64,F=256",
    help="Sizes of letters for the numerical comparison only, when the program is too large to run. Repeats.",
)
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="B=0:8",
    help="Range of an argument's values; the upper end is excluded. Repeats.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Seed of the random inputs."
)
@click.option("--grad", is_flag=True, help="Compare gradients as well.")
@click.option("--against-single-device", is_flag=True, help="Also compare both with a run on a single device.")
@click.option(
    "--on",
    type=click.Choice(["auto", "cpu", "tpu", "gpu"]),
    default="auto",
    show_default=True,
    help="Where to run: on simulated CPU devices, or on attached devices.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop the run after this long.",
)
@click.option(
    "--rtol", type=click.FloatRange(min=0), metavar="FLOAT", help="Relative tolerance. [default: from rounding]"
)
@click.option(
    "--atol", type=click.FloatRange(min=0), metavar="FLOAT", help="Absolute tolerance. [default: from rounding]"
)
@click.option("--ignore", multiple=True, metavar="RULE", help="Leave out this finding. Repeats.")
@click.option("--strict", is_flag=True, help="Exit 1 when a verdict has exceptions, such as untested inputs.")
@fail_on_option(default="error")
@running.reports("verification", _exit_code)
def command(target: str, reference: str, **options: Any) -> Result[Verification]:
    """Check TARGET against REF: numbers on random inputs, structure of the outputs, and communication."""
    request, reference = targets.request_of(target, options), targets.named(reference, {"slice": None})
    from hloscope.api.verifying import find_verification

    return find_verification(request, reference, _settings(options), ignore=options["ignore"])


def _settings(options: dict[str, Any]) -> Settings:
    from hloscope.program.notation import parse_dims
    from hloscope.verification.job import Settings, parse_range

    as_given = ("seed", "rtol", "atol", "grad", "against_single_device", "on")
    return Settings(
        ranges=dict(map(parse_range, options["ranges"])),
        scale={letter: size for text in options["scales"] for letter, size in parse_dims(text).items()},
        timeout_s=options["timeout"],
        **{name: options[name] for name in as_given},
    )
