"""`hloscope record`: runs the user's own command line, and records the programs that JAX compiles."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.base.calls import parse_capacity
from hloscope.base.errors import EXIT_BROKEN, EXIT_COULD_NOT_RUN, EXIT_OK
from hloscope.base.progress import show_progress
from hloscope.base.units import pluralize
from hloscope.cli import running, targets
from hloscope.cli.options import fail_on_option, quick_option, rule_options, target_options

if TYPE_CHECKING:
    from hloscope.model.recording import Recording

_EPILOG = """\b
Examples
  hloscope record -- train.py --steps 100
  hloscope record --slice v5p:2x2x2 --only train_step \\
      -- -m mypackage.train config.yml
  hloscope record --slice v6e:4x4 --save programs/ --format json \\
      -o programs.json -- my-console-script
"""
_OMITTED_OPTIONS = ("mesh", "args", "kwargs", "out", "static", "donate", "dims", "axis_types", "dcn", "slice")


def _choose_exit_code(found: Recording, options: dict[str, Any]) -> int:
    """The exit code: 0 if there is a report, however the script ended; with `--fail-on`, the verdict on programs."""
    if options["fail_on"] is None:
        return EXIT_OK
    broken = found.broken(options["fail_on"])
    if broken and not running.report_failed_rules(broken):
        count = pluralize(len(broken), "finding")
        running.say(f"failed: {count} at or above --fail-on {options['fail_on']}: {broken[0].message}")
        return EXIT_BROKEN
    if found.not_analyzed:
        running.say(str(found.no_verdict()))
    return EXIT_COULD_NOT_RUN if found.not_analyzed or broken else EXIT_OK


def _leave(found: Recording, options: dict[str, Any]) -> None:
    """Ends the process now if the script left threads behind, for which Python would wait."""
    from hloscope.compile.recording.scripts import are_threads_left

    if are_threads_left():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_choose_exit_code(found, options))


def _parse_bytes(_context: object, _option: object, text: str) -> int:
    found = parse_capacity(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a size: write 64MB, 512MiB or 1GB")
    return found


@click.command(epilog=_EPILOG, context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- SCRIPT.py [ARGS]...")
@click.option(
    "--slice", metavar="NAME", help="Slice that the script sees: v5e:2x4, v5p-16, 2*v5e:2x4. [default: v5e:2x4]"
)
@click.option(
    "--only", multiple=True, metavar="NAME", help="Analyze these functions, in full: train_step, 'eval_*'. Repeats."
)
@click.option(
    "--top",
    type=click.IntRange(1),
    default=12,
    show_default=True,
    metavar="N",
    help="Analyze this many of the costliest programs.",
)
@click.option(
    "--run-below",
    "run_below_bytes",
    default="64MB",
    show_default=True,
    callback=_parse_bytes,
    metavar="SIZE",
    help="Execute programs whose arguments and results are smaller than this.",
)
@click.option("--run", "run_all", is_flag=True, help="Execute every program that simulated devices can execute.")
@click.option(
    "--stop-after",
    type=click.IntRange(0),
    metavar="N",
    help="End the script after N more calls of its costliest program without a new compile; 0 means never. "
    "[default: 3, once a program was not executed]",
)
@click.option("--allow-writes", is_flag=True, help="Let the script write files even though its values are not real.")
@click.option("--save", metavar="DIR", help="Write each analyzed program to DIR, as HLO and as JSON.")
@target_options(without=_OMITTED_OPTIONS)
@quick_option
@rule_options
@fail_on_option()
@running.reports("recording", _choose_exit_code, then=_leave)
def command(command: tuple[str, ...], **options: Any) -> Recording:
    """Run a Python script unmodified, and analyze every program that JAX compiles in it for a TPU slice.

    The script sees the slice's devices. Programs with large arguments or results are not executed; their results are
    zeros. The script's own output goes to stderr, marked.
    """
    from hloscope.app.recording import DEFAULT_SLICE, Chosen, RecordingRequest, parse_recorded_slice, record_script
    from hloscope.compile.recording.scripts import Limits, marked_output

    judging = targets.make_judging({**options, "source_root": None})
    options["slice"] = options["slice"] or DEFAULT_SLICE
    facts = targets.prepare_facts(options)
    parse_recorded_slice(facts)
    request = RecordingRequest(
        command=command,
        facts=facts,
        limits=Limits(
            run_below_bytes=options["run_below_bytes"],
            run_all=options["run_all"],
            stop_after=options["stop_after"],
            allow_writes=options["allow_writes"],
        ),
        chosen=Chosen(only=options["only"], top=options["top"]),
        judging=judging,
        save=None if options["save"] is None else Path(options["save"]),
        wanted=targets.find_wanted_stage(options),
    )
    with (
        running.reserve_stdout(),
        os.fdopen(os.dup(2), "w", errors="replace") as stderr,
        show_progress() as stage,
    ):
        return record_script(request, stage=stage, running=lambda: marked_output(stderr, "script| "))
