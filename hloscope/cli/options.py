"""The options that several commands share: how a program is named and compiled, and where its report goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]


def timeout_option(help_text: str) -> Command:
    """`--timeout`."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help=f"{help_text} [default: HLOSCOPE_TIMEOUT; else none on a terminal, 1800 elsewhere]",
    )


_TARGET_OPTIONS = {
    "mesh": click.option("--mesh", metavar="X=4,Y=2", help="Mesh axes and sizes, major first."),
    "slice_name": click.option(
        "--slice",
        "slice_name",
        metavar="NAME",
        help="v5e:2x4, v5p-16, 2*v5e:2x4, cpu:8, attached. [default: smallest v5e that fits]",
    ),
    "args": click.option(
        "--arg",
        "args",
        multiple=True,
        metavar="TYPE",
        help="One argument, as jax.typeof prints it: 'bf16[8@X,2048@Y]' or name=TYPE. Repeats.",
    ),
    "outs": click.option(
        "--out",
        "outs",
        multiple=True,
        metavar="SPEC",
        help="An output's sharding: \"P('X', None)\". Repeats, in pytree-leaf order; None leaves one open.",
    ),
    "statics": click.option(
        "--static", "statics", multiple=True, metavar="NAME=VALUE", help="A Python value passed by keyword. Repeats."
    ),
    "donate": click.option("--donate", metavar="0,1", help="Positions of donated arguments."),
    "dims": click.option(
        "--dim", "dims", multiple=True, metavar="S=2048,D=4096", help="Sizes of letters in argument types. Repeats."
    ),
    "axis_types": click.option(
        "--axis-types", metavar="MODE", help="auto, explicit, or X=explicit,Y=auto. [default: auto]"
    ),
    "dcn": click.option(
        "--dcn", metavar="X=2", help="For several slices: the axis that crosses DCN. [default: the first that divides]"
    ),
    "compiler_options": click.option(
        "--compiler-option",
        "compiler_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="An XLA option, such as xla_tpu_…=true. Repeats.",
    ),
    "chip_overrides": click.option(
        "--chip-override",
        "--chip-file",
        "chip_overrides",
        multiple=True,
        metavar="NAME=VALUE|FILE",
        help="For times: a figure of the chip, such as hbm_bytes_per_s=750e9, or a TOML file of them. Repeats.",
    ),
    "timeout_s": timeout_option("End a compile after so long; 0 is no limit."),
    "kernel_costs": click.option(
        "--kernel-cost",
        "kernel_costs",
        multiple=True,
        metavar="NAME=FLOPS,BYTES",
        help="For times: what a Pallas kernel costs, such as splash=7e11,2e8. Repeats. [default: its cost_estimate]",
    ),
}


def target_options(*, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """The options that say what to compile and for which slice, in the order that `--help` shows them.

    Args:
        without: Parameter names of options that the command spells in its own way.
    """

    def decorate(command: Command) -> Command:
        for name in reversed(_TARGET_OPTIONS):
            if name not in without:
                command = _TARGET_OPTIONS[name](command)
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


def report_options(formats: tuple[str, ...] = ("text", "json")) -> Callable[[Command], Command]:
    """`--format`, `-o` and `--debug`."""

    def decorate(command: Command) -> Command:
        for option in (
            click.option("--debug", is_flag=True, help="Show tracebacks."),
            click.option("-o", "--output", metavar="FILE", help="Write the report to FILE."),
            click.option(
                "--format",
                "format_name",
                type=click.Choice(formats),
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
