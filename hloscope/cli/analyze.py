"""`hloscope analyze`: the main job."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.cli import running
from hloscope.errors import EXIT_BROKEN, EXIT_COULD_NOT_RUN, EXIT_OK, NotationError, TargetError
from hloscope.units import plural

if TYPE_CHECKING:
    from hloscope.analysis.model import Analysis
    from hloscope.program.target import TargetFacts

TEXT_ENDINGS = (".hlo", ".txt", ".pb", ".hlo.gz", ".hlo.xz", ".hlo.zst", ".txt.gz", ".txt.xz", ".txt.zst")

_EPILOG = """\b
TARGET is one of
  package.module:fn     a function, a jitted or shard_mapped one, or a factory returning (fn, args)
  path/to/file.py:fn    the same, by file
  step.hlo, step.txt    HLO text, such as compiled.as_text() prints; also .gz, .xz, .zst, .pb
  -                     HLO text on standard input

\b
Examples
  hloscope analyze model.py:step --mesh data=4,model=2 --arg 'bf16[8@data,2048]' --arg 'bf16[2048,8192@model]'
  hloscope analyze model.py:step --mesh X=16 --arg 'f32[S@X,D]' --dim S=4096,D=512 --slice v5p:2x2x4
  hloscope analyze step.hlo --mesh data=4,model=2 --format json
"""


@click.command(epilog=_EPILOG)
@click.argument("target")
@click.option("--mesh", metavar="X=4,Y=2", help="Mesh axes and sizes, major first.")
@click.option(
    "--slice",
    "slice_name",
    metavar="NAME",
    help="v5e:2x4, v5p-16, 2*v5e:2x4, cpu:8, attached. [default: smallest v5e that fits]",
)
@click.option(
    "--arg",
    "args",
    multiple=True,
    metavar="TYPE",
    help="One argument, as jax.typeof prints it: 'bf16[8@X,2048@Y]' or name=TYPE. Repeats.",
)
@click.option(
    "--out",
    "outs",
    multiple=True,
    metavar="SPEC",
    help="An output's sharding: \"P('X', None)\". Repeats, in pytree-leaf order; None leaves one open.",
)
@click.option(
    "--static", "statics", multiple=True, metavar="NAME=VALUE", help="A Python value passed by keyword. Repeats."
)
@click.option("--donate", metavar="0,1", help="Positions of donated arguments.")
@click.option(
    "--dim", "dims", multiple=True, metavar="S=2048,D=4096", help="Sizes of letters in argument types. Repeats."
)
@click.option("--axis-types", metavar="MODE", help="auto, explicit, or X=explicit,Y=auto. [default: auto]")
@click.option(
    "--dcn", metavar="X=2", help="For several slices: the axis that crosses DCN. [default: the first that divides]"
)
@click.option(
    "--compiler-option",
    "compiler_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An XLA option, such as xla_tpu_…=true. Repeats.",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Report format.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the report to FILE.")
@click.option(
    "--fail-on", type=click.Choice(["note", "warning", "error"]), help="Exit 1 when a finding is this severe or worse."
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(
    target: str, format_name: str, output: str | None, fail_on: str | None, debug: bool, **options: Any
) -> None:
    """Compile TARGET for a TPU slice, and report which collectives move how many bytes over which mesh axis."""
    if sys.stdout is None or sys.stderr is None:
        if sys.stderr is not None:
            click.echo(
                "error: standard output is closed\n   = fix: give the report a file: -o FILE >/dev/null", err=True
            )
        raise SystemExit(EXIT_COULD_NOT_RUN)

    def run() -> Analysis:
        if _is_text(target):
            return _analyze_text(target, options)
        with running.stdout_kept_for_the_report():
            return _analyze_function(target, options)

    found = running.guarded(run, debug=debug)
    running.guarded(lambda: running.write_report(_rendered(found, format_name, output), output), debug=debug)
    raise SystemExit(_exit_code(found, fail_on))


def _is_text(target: str) -> bool:
    """Whether a target is compiled text: by its ending, or because it is a file that is no Python."""
    return (
        target == "-"
        or target.lower().endswith(TEXT_ENDINGS)
        or (Path(target).is_file() and not target.endswith(".py"))
    )


def _analyze_text(target: str, options: dict[str, Any]) -> Analysis:
    from hloscope.api import analyze_text
    from hloscope.program.files import decode_hlo, read_hlo

    for name in ("args", "outs", "statics", "dims", "donate", "axis_types", "compiler_options"):
        if options[name]:
            option = "--" + name.rstrip("s").replace("axis_type", "axis-types").replace("_", "-")
            raise TargetError(
                f"{option} does not go with HLO text", why=f"{target} is compiled already", fix="leave it out"
            )
    if target == "-":
        name, text = "<stdin>", decode_hlo(sys.stdin.buffer.read(), name="<stdin>")
    else:
        if not Path(target).exists():
            raise TargetError(f"there is no file {target}")
        name, text = target, read_hlo(target)
    return analyze_text(text, name=name, slice=options["slice_name"], mesh=options["mesh"], dcn=options["dcn"])


def _analyze_function(target: str, options: dict[str, Any]) -> Analysis:
    from hloscope.api import analyze_function
    from hloscope.hardware.slices import default_slice, parse_slice
    from hloscope.program.devices import check_device_count, prepare_environment, require_jax

    require_jax()
    facts = _facts(options)
    chosen = None if facts.slice is None else parse_slice(facts.slice)
    attached = chosen is not None and chosen.is_attached
    asked = prod(facts.mesh.values()) if facts.mesh else None
    if asked is not None and not attached:
        check_device_count(chosen or default_slice(asked), facts.mesh, at_least=chosen is None)
    elif chosen is not None and not attached:
        asked = chosen.device_count
    prepare_environment(running.simulated_device_count(asked), attached=attached)
    with running.progress() as stage:
        return analyze_function(target, facts, stage=stage)


def _facts(options: dict[str, Any]) -> TargetFacts:
    from hloscope.program import notation
    from hloscope.program.target import TargetFacts

    positional, keywords = [], {}
    for text in options["args"]:
        name, array = notation.split_keyword(text)
        if name is None:
            positional.append(_argument(array))
        else:
            keywords[name] = _argument(array)
    dims: dict[str, int] = {}
    for text in options["dims"]:
        dims.update(notation.parse_dims(text))
    return TargetFacts(
        mesh=None if options["mesh"] is None else notation.parse_mesh(options["mesh"]),
        axis_types=options["axis_types"],
        slice=options["slice_name"],
        dcn=None if options["dcn"] is None else notation.parse_mesh(options["dcn"]),
        args=tuple(positional) if options["args"] else None,
        kwargs=keywords,
        out=[None if text.strip() == "None" else text for text in options["outs"]] or None,
        static=dict(notation.parse_static(text) for text in options["statics"]),
        donate=notation.parse_indices(options["donate"]) if options["donate"] else None,
        dims=dims,
        compiler_options=dict(_compiler_option(text) for text in options["compiler_options"]),
    )


def _argument(text: str) -> Any:
    """One argument: a notation, or a pytree of notations in Python's words."""
    if not text.lstrip().startswith(("{", "[", "(")):
        return text
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise NotationError(
            f"{text} is no pytree of array types",
            why=str(error),
            fix="""quote the types inside: --arg "{'w': 'bf16[8@X,2048]', 'b': 'f32[2048]'}\"""",
        ) from error


def _compiler_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise NotationError(
            f"{text!r} is no compiler option", fix="write --compiler-option NAME=VALUE, such as xla_tpu_enable_x=true"
        )
    return name.strip(), value.strip()


def _rendered(found: Analysis, format_name: str, output: str | None) -> str:
    from hloscope.report import FORMATS, Canvas

    to_terminal = output in (None, "-") and sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if to_terminal or "COLUMNS" in os.environ else 100
    colour = to_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return FORMATS[format_name](found, Canvas(width=width, colour=colour))


def _exit_code(found: Analysis, fail_on: str | None) -> int:
    from hloscope.findings import Severity

    if fail_on is None:
        return EXIT_OK
    limit = Severity(fail_on).rank
    broken = [finding for finding in found.findings if finding.severity.rank >= limit]
    if not broken:
        return EXIT_OK
    click.echo(
        f"failed: {plural(len(broken), 'finding')} as severe as --fail-on {fail_on}: {broken[0].message}", err=True
    )
    return EXIT_BROKEN
