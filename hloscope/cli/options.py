"""The options that several commands share: how a program is named and compiled, and where its report goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hloscope.program.options import BY_NAME, OPTIONS
from hloscope.report.formats import FORMATS

Command = Callable[..., Any]


def target_option(name: str, help_text: str = "") -> Callable[[Command], Command]:
    """One of the options that say what to compile.

    Args:
        name: Its name in `hloscope.program.options`.
        help_text: What it means in this command, where that is something else.
    """
    option = BY_NAME[name]
    kind: dict[str, Any] = {"type": click.FloatRange(min=0)} if option.seconds else {}
    return click.option(
        *option.flags,
        option.name,
        multiple=option.repeats,
        metavar=option.metavar,
        help=(help_text or option.help) + (f" [default: {option.default}]" if option.default else ""),
        **kind,
    )


def target_options(*, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """The options that say what to compile and for which slice, in the order that `--help` shows them.

    Args:
        without: Names of options that the command spells in its own way.
    """

    def decorate(command: Command) -> Command:
        for option in reversed(OPTIONS):
            if option.flags and option.name not in without:
                command = target_option(option.name)(command)
        return command

    return decorate


def source_root_option(command: Command) -> Command:
    """`--source-root`."""
    decorated: Command = click.option(
        "--source-root",
        type=click.Path(exists=True, file_okay=False),
        metavar="DIR",
        help="For HLO text: the folder in which files that it names may be read. [default: none is read]",
    )(command)
    return decorated


def project_options(command: Command) -> Command:
    """`--config` and `--no-cache`."""
    for option in (
        click.option("--no-cache", is_flag=True, help="Compile everything, and keep nothing."),
        click.option("--config", metavar="FILE", help="The targets file. [default: the nearest one, going upward]"),
    ):
        command = option(command)
    return command


def jobs_option(command: Command) -> Command:
    """`--jobs`."""
    decorated: Command = click.option(
        "--jobs", type=click.IntRange(1), metavar="N", help="Processes at once. [default: as cores and memory allow]"
    )(command)
    return decorated


def limit_option(command: Command) -> Command:
    """`--timeout` of a command that has several targets."""
    return target_option(
        "timeout_s",
        "End a target that names no limit of its own after so long, import and tracing included; 0 is no limit.",
    )(command)


def report_options(subject: str) -> Callable[[Command], Command]:
    """`--format`, of what there is for a subject in `hloscope.report.formats`, `-o` and `--debug`."""

    def decorate(command: Command) -> Command:
        for option in (
            click.option("--debug", is_flag=True, help="Show tracebacks."),
            click.option("-o", "--output", metavar="FILE", help="Write the report to FILE."),
            click.option(
                "--format",
                "format_name",
                type=click.Choice(tuple(FORMATS[subject])),
                default="text",
                show_default=True,
                help="Report format.",
            ),
        ):
            command = option(command)
        return command

    return decorate


def fail_on_option(*, default: str | None = None) -> Callable[[Command], Command]:
    """`--fail-on`."""
    return click.option(
        "--fail-on",
        type=click.Choice(["note", "warning", "error"]),
        default=default,
        show_default=default is not None,
        help="Exit 1 when a finding is this severe or worse.",
    )


def rule_options(command: Command) -> Command:
    """`--select`, `--ignore`, `--rule-option` and `--allow`."""
    for option in (
        click.option(
            "--allow",
            multiple=True,
            metavar="WHAT: REASON",
            help="Accept what a rule finds, or a kind of collective: 'all-gather@X: weights of FSDP'. Allowing a kind "
            "makes every other collective that nobody wrote an error. Repeats.",
        ),
        click.option(
            "--rule-option",
            "rule_options",
            multiple=True,
            metavar="RULE.OPTION=VALUE",
            help="An option of a rule, as `hloscope rules RULE` lists them: small-collectives.min_collectives=8. "
            "Repeats.",
        ),
        click.option("--ignore", multiple=True, metavar="RULE", help="Do not run this rule. Repeats."),
        click.option("--select", multiple=True, metavar="RULE", help="Run this rule only. Repeats. [default: all]"),
    ):
        command = option(command)
    return command
