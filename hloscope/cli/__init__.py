"""The command line: each command's module is loaded when it is called. The only room that prints or exits."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from hloscope.version import __version__

_COMMANDS = {
    "analyze": "Compile a function for a TPU slice, or read HLO text, and report what moves.",
    "record": "Run your script unmodified, and analyze every program that JAX compiles.",
    "price": "Predict how long a step takes on several slices, side by side.",
    "timeline": "Predict the timeline of one step: what runs when, and what is exposed.",
    "graph": "Write the compiled program, or part of it, as a graph of instructions.",
    "compare": "Compare the profile of a real run with the prediction.",
    "measure": "Run a function on the attached TPU, and compare with the prediction.",
    "explain": "Explain why a collective is there: the whole chain, and what to change.",
    "suggest": "Search for a better sharding; every suggestion is compiled and priced.",
    "shardings": "Show every array's sharding as Shardy propagates it; compiles nothing.",
    "verify": "Check a function against a reference: numbers, structure and communication.",
    "rules": "List the rules, or print the page of one.",
    "check": "Check a project's targets against their contracts and baselines.",
    "merge-reports": "Merge the reports of a sharded check.",
    "diff": "Compare what two programs move.",
    "accept": "Write the current state of a project's targets as their baselines.",
    "doctor": "Report what is installed here, and whether it works.",
}
_OF_PROGRAMS = ("price", "timeline", "graph", "compare", "measure", "explain", "suggest", "shardings", "verify")
_HOMES = {**dict.fromkeys(_OF_PROGRAMS, "programs"), "merge-reports": "check", "rules": "about", "doctor": "about"}
"""The modules of commands that share one; any other command is `command` in its own module."""


class _LazyGroup(click.Group):
    """A group that imports a command's file only to run it, so that `--help` starts at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"hloscope.cli.{_HOMES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_") if cmd_name in _HOMES else "command")
        return command

    def invoke(self, ctx: click.Context) -> object:
        from hloscope.base.errors import EXIT_INTERRUPTED

        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # before or after the command's own frame
            click.echo("interrupted", err=True)
            raise SystemExit(EXIT_INTERRUPTED) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from hloscope.base.errors import did_you_mean

            near = did_you_mean(args[0], _COMMANDS)
            if near is None:
                raise
            raise click.UsageError(f"{error.message} {near.capitalize()}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


_EPILOG = """\b
Begin with
  hloscope doctor                  whether everything works here
  hloscope analyze model.py:step   what a function moves; see analyze --help
  hloscope record -- train.py      the same for your script, run as it is
  hloscope explain model.py:step   why it moves, and what would help, tried
"""


@click.group(
    cls=_LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__, prog_name="hloscope", message="%(prog)s %(version)s", help="Show version.")
def group() -> None:
    """See, price and pin every byte that sharding moves, on the TPU slice you do not own yet."""


def main() -> None:
    """Runs the command line; the console script's entry point."""
    try:
        sys.exit(group(prog_name="hloscope"))
    except OSError as error:  # from click's own output
        from hloscope.base.errors import EXIT_COULD_NOT_RUN

        click.echo(f"error: standard output cannot be written to\n   = why: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(EXIT_COULD_NOT_RUN)
