"""The command line: one file per command, loaded when it is called. The only room that prints or exits."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from hloscope.version import __version__

_COMMANDS = {
    "analyze": ("hloscope.cli.analyze", "Compile a function for a TPU slice, or read HLO text, and report what moves."),
    "record": ("hloscope.cli.record", "Run your script unmodified, and analyze every program that JAX compiles."),
    "price": ("hloscope.cli.price", "Predict how long a step takes on several slices, side by side."),
    "timeline": ("hloscope.cli.timeline", "Predict the timeline of one step: what runs when, and what is exposed."),
    "graph": ("hloscope.cli.graph", "Write the compiled program, or part of it, as a graph of instructions."),
    "compare": ("hloscope.cli.compare", "Compare the profile of a real run with the prediction."),
    "measure": ("hloscope.cli.measure", "Run a function on the attached TPU, and compare with the prediction."),
    "explain": ("hloscope.cli.explain", "Explain why a collective is there: the whole chain, and what to change."),
    "suggest": ("hloscope.cli.suggest", "Search for a better sharding; every suggestion is compiled and priced."),
    "shardings": ("hloscope.cli.shardings", "Show every array's sharding as Shardy propagates it; compiles nothing."),
    "verify": ("hloscope.cli.verify", "Check a function against a reference: numbers, structure and communication."),
    "rules": ("hloscope.cli.rules", "List the rules, or print the page of one."),
    "check": ("hloscope.cli.check", "Check a project's targets against their contracts and baselines."),
    "merge-reports": ("hloscope.cli.merge_reports", "Merge the reports of a sharded check."),
    "diff": ("hloscope.cli.diff", "Compare what two programs move."),
    "accept": ("hloscope.cli.accept", "Write the current state of a project's targets as their baselines."),
    "doctor": ("hloscope.cli.doctor", "Report what is installed here, and whether it works."),
}


class _LazyGroup(click.Group):
    """A group that imports a command's file only to run it, so that `--help` starts at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(_COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="hloscope", message="%(prog)s %(version)s", help="Show version.")
def group() -> None:
    """See, price and pin every byte that sharding moves, on the TPU slice you do not own yet."""


def main() -> None:
    """Runs the command line; the console script's entry point."""
    try:
        sys.exit(group(prog_name="hloscope"))
    except OSError as error:  # of what click itself writes
        from hloscope.errors import EXIT_COULD_NOT_RUN

        click.echo(f"error: standard output cannot be written to\n   = why: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(EXIT_COULD_NOT_RUN)
