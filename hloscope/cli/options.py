"""The options that several commands share: those of a program and its compile, and those of the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hloscope.base.calls import parse_span
from hloscope.base.canvas import LISTING
from hloscope.compile.target import OPTIONS, OPTIONS_BY_NAME
from hloscope.report.formats import list_formats

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


class Span(click.ParamType):  # type: ignore[type-arg]
    """A span of time: `30s`, `5m`, `2h`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The time in seconds."""
        seconds = parse_span(value)
        if seconds is None:
            self.fail(f"{value!r} is not a time span: write 30s, 5m or 2h", param, ctx)
        if not seconds:
            self.fail("it must be longer than 0: write 30s, 5m or 2h, or --no-try to try nothing", param, ctx)
        return seconds


def combine_options(*options: Decorator) -> Decorator:
    """Combines options into one decorator, in the order of `--help`."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def target_option(name: str, help_text: str = "") -> Decorator:
    """An option of a program or its compile.

    Args:
        name: Its name in `hloscope.compile.target`.
        help_text: Its meaning in this command, if it differs.
    """
    option = OPTIONS_BY_NAME[name]
    kind: dict[str, Any] = {"type": click.FloatRange(min=0)} if option.seconds else {}
    return click.option(
        *option.flags,
        option.name,
        multiple=option.repeats,
        metavar=option.metavar,
        help=(help_text or option.help) + (f" [default: {option.default}]" if option.default else ""),
        **kind,
    )


def target_options(*, without: tuple[str, ...] = ()) -> Decorator:
    """The options of a program, its compile and its slice, in the order of `--help`.

    Args:
        without: Names of options that the command defines itself.
    """
    return combine_options(
        *(target_option(option.name) for option in OPTIONS if option.flags and option.name not in without)
    )


debug_option: Decorator = click.option("--debug", is_flag=True, help="Show tracebacks.")

source_root_option: Decorator = click.option(
    "--source-root",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="For HLO text: the folder from which source files that it names may be read. [default: none]",
)

config_option: Decorator = click.option(
    "--config", metavar="FILE", help="The targets file. [default: the nearest one, searching upward]"
)

project_options = combine_options(
    config_option,
    click.option("--no-cache", is_flag=True, help="Compile everything anew, and cache nothing."),
)

quick_option: Decorator = click.option(
    "--quick",
    is_flag=True,
    help="Stop a long compile once the program is scheduled: what it moves is complete then, its times are estimates, "
    "and whether it compiles is open.",
)


def try_options(default: str) -> Decorator:
    """`--try` and `--no-try`.

    Args:
        default: What is tried without them, for the help.
    """
    return combine_options(
        click.option(
            "--try",
            "try_s",
            type=Span(),
            metavar="TIME",
            help=f"Try changes that may help for this long, such as 5m. [default: {default}]",
        ),
        click.option("--no-try", is_flag=True, help="Do not try any changes."),
    )


def check_try_options(try_s: float | None, *, no_try: bool) -> None:
    """Checks that these options do not contradict each other.

    Raises:
        UsageError: They do.
    """
    if no_try and try_s is not None:
        raise click.UsageError("--try and --no-try contradict each other: pass only one of them.")


jobs_option: Decorator = click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Parallel processes. [default: as cores and memory allow]",
)

executor_option: Decorator = click.option(
    "--executor",
    metavar="URL",
    help="Where to run the compiler: dask://HOST:PORT. [default: in processes on this machine]",
)

limit_option = target_option(
    "timeout_s",
    "Stop a target that sets no limit of its own after this long, import and tracing included; 0 means no limit.",
)
"""`--timeout` of a command with several targets."""


def report_options(subject: str, *, output: str = "FILE") -> Decorator:
    """The options of its listing, `--format`, `-o` and `--debug`.

    Args:
        subject: The kind of report, whose formats are in `hloscope.report.formats.FORMATS`.
        output: The meaning of `-o`, for its help.
    """
    listing = (
        click.option(
            option.flag,
            name,
            is_flag=not option.choices,
            default=option.default,
            type=click.Choice(option.choices) if option.choices else None,
            help=option.help,
        )
        for name, option in LISTING.items()
        if subject in option.of
    )
    return combine_options(
        *listing,
        click.option(
            "--format",
            "format_name",
            type=click.Choice(list_formats(subject)),
            default="text",
            show_default=True,
            help="Report format.",
        ),
        click.option("-o", "--output", metavar="FILE", help=f"Write the report to {output}."),
        debug_option,
    )


def fail_on_option(*, default: str | None = None) -> Decorator:
    """`--fail-on`."""
    return click.option(
        "--fail-on",
        type=click.Choice(["note", "warning", "error"]),
        default=default,
        show_default=default is not None,
        help="Exit 1 when there is a finding of this severity or worse.",
    )


rule_options = combine_options(
    click.option("--select", multiple=True, metavar="RULE", help="Run only this rule. Repeats. [default: all]"),
    click.option("--ignore", multiple=True, metavar="RULE", help="Do not run this rule. Repeats."),
    click.option(
        "--rule-option",
        "rule_options",
        multiple=True,
        metavar="RULE.OPTION=VALUE",
        help="Set an option that `hloscope rules RULE` lists: small-collectives.min_collectives=8. Repeats.",
    ),
    click.option(
        "--allow",
        multiple=True,
        metavar="WHAT: REASON",
        help="Accept a rule's findings, or a kind of collective: 'all-gather@X: weights of FSDP'. Allowing a kind "
        "makes every other inserted collective an error. Repeats.",
    ),
)
