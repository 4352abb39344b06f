"""Commands with one question about one program: each declares its options and makes one request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.base.errors import EXIT_BROKEN, EXIT_COULD_NOT_RUN, EXIT_OK
from hloscope.base.outputs import check_report_file
from hloscope.cli import running, targets
from hloscope.cli.options import (
    Span,
    check_try_options,
    combine_options,
    executor_option,
    fail_on_option,
    jobs_option,
    quick_option,
    source_root_option,
    target_options,
    try_options,
)

if TYPE_CHECKING:
    from hloscope.measurement.model import CompareDocument
    from hloscope.model.timeline import Timeline
    from hloscope.model.trial import Suggestions
    from hloscope.report.price import Priced, Prices
    from hloscope.report.shardings import ShardingTable
    from hloscope.verification.job import Settings
    from hloscope.verification.model import Verification
    from hloscope.why.explanation import Explanations

_TIMELINE_EPILOG = """\b
Examples
  hloscope timeline model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=4096,D=512 --slice v5e:2x4
  hloscope timeline step.hlo --slice v6e:2x4 --format json -o step.json
  hloscope timeline step.hlo --slice v6e:2x4 --format trace -o step.json.gz
  hloscope timeline step.hlo --slice v6e:2x4 --format xplane -o logs

\b
https://ui.perfetto.dev opens the trace, XProf and TensorBoard the folder.
"""


@click.command(epilog=_TIMELINE_EPILOG)
@click.argument("target")
@target_options()
@quick_option
@running.reports("timeline", writes_to="FILE, or for xplane into a folder")
def timeline(target: str, **options: Any) -> Timeline:
    """Predict the timeline of one step of TARGET: compute, transfers and waits. A loop is one body with a count."""
    request = targets.make_request(target, options)
    from hloscope.app.analyses import find_timeline

    return find_timeline(request)


_GRAPH_EPILOG = """\b
Examples
  hloscope graph step.hlo --slice v5e:2x4 --around all-gather.8 --hops 3 \\
      --format svg -o around.svg
  hloscope graph model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=4096,D=512 --format graphml -o step.graphml
"""


@click.command(epilog=_GRAPH_EPILOG)
@click.argument("target")
@target_options()
@click.option("--computation", metavar="NAME", help="One HLO computation. [default: all that run in a step]")
@click.option("--around", metavar="INSTRUCTION", help="Only what is near an instruction, such as all-gather.8.")
@click.option(
    "--hops",
    type=click.IntRange(0),
    metavar="N",
    help="How many edges away from --around. [default: 3]",
)
@quick_option
@running.reports("graph")
def graph(target: str, computation: str | None, around: str | None, hops: int | None, **options: Any) -> Any:
    """Write TARGET's instructions as a graph, with times, bytes and axes, and the critical path marked."""
    request = targets.make_request(target, options, helpers=targets.find_own_helpers())
    from hloscope.app.analyses import find_graph

    return find_graph(request, computation=computation, around=around, hops=hops)


_PRICE_EPILOG = """\b
Examples
  hloscope price model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=4096,D=512 --slice v5e:2x4 --slice v6e:2x4
  hloscope price step.hlo --mesh data=4,model=2 --slice v5e:2x4 \\
      --chip-override hbm_bytes_per_s=750e9
"""


def _choose_price_exit_code(priced: Priced, _options: object) -> int:
    """The exit code: 2 if the program could not be compiled for one of the slices."""
    from hloscope.model import Analysis

    return EXIT_OK if all(isinstance(priced_for, Analysis) for priced_for in priced) else EXIT_COULD_NOT_RUN


@click.command(epilog=_PRICE_EPILOG)
@click.argument("target")
@click.option(
    "--slice",
    "slices",
    multiple=True,
    required=True,
    metavar="NAME",
    help="v5e:2x4, v5p-16, 2*v5e:2x4. Repeats: each is a row of the table.",
)
@target_options(without=("slice",))
@quick_option
@executor_option
@running.reports("prices", _choose_price_exit_code)
def price(target: str, slices: tuple[str, ...], executor: str | None, **options: Any) -> Prices:
    """Predict how long one step of TARGET takes on each slice: compute, and exposed communication."""
    request = targets.make_request(target, {**options, "slice": slices[0]})
    from hloscope.app.pricing import find_prices

    return find_prices(request, slices, executor)


_SHARDINGS_EPILOG = """\b
TARGET is a function: package.module:fn or path/to/file.py:fn.
Arrays marked "moves" are resharded before they are used; `hloscope explain`
explains why.
"""


@click.command(epilog=_SHARDINGS_EPILOG)
@click.argument("target")
@target_options(without=("chip_overrides", "kernel_costs"))
@click.option(
    "--draw", is_flag=True, help="Draw how the mesh shards each array, and which places in the mesh hold each shard."
)
@running.reports("shardings", shown=lambda options: "drawn_shardings" if options["draw"] else "shardings")
def shardings(target: str, draw: bool, **options: Any) -> ShardingTable:
    """Show the shardings of TARGET's arguments, constraints, outputs and large arrays, as Shardy propagates them."""
    request = targets.make_request(target, options)
    from hloscope.app.analyses import find_shardings

    return find_shardings(request)


_EXPLAIN_EPILOG = """\b
COLLECTIVE is an instruction's name, such as all-gather.8; its number in the
list of `hloscope analyze`, counted from 1; a contract selector, such as
all-gather@fsdp; a mesh axis, an argument, a line such as model.py:21, or a
decision such as 'data: D, not B', for all that are about it; or all. By
default the one that moves most is explained and the others are listed; JSON
explains all of them.

\b
Examples
  hloscope explain model.py:step
  hloscope explain model.py:step all-gather.8
  hloscope explain model.py:step model.py:21
  hloscope explain model.py:step all
  hloscope explain model.py:step 1 --format json
  hloscope explain model.py:step --try 5m
"""

_ALL = "all"


@click.command(epilog=_EXPLAIN_EPILOG)
@click.argument("target")
@click.argument("collective", required=False)
@target_options()
@source_root_option
@try_options("4 changes or 10s, for programs that compile within 2s")
@running.reports(
    "explanation", shown=lambda options: "explanation" if options["collective"] is not None else "overview"
)
def explain(target: str, collective: str | None, try_s: float | None, no_try: bool, **options: Any) -> Explanations:
    """Explain why TARGET's collectives are there: which array, line and shardings cause them, and what would help.

    Changes of shardings are compiled and priced before they are recommended.
    """
    check_try_options(try_s, no_try=no_try)
    request = targets.make_request(target, options, helpers=targets.find_own_helpers())
    from hloscope.app.explaining import find_explanations
    from hloscope.app.requests import Trying

    named, trying = None if collective == _ALL else collective, Trying(wanted=not no_try, seconds=try_s)
    return find_explanations(request, named, everything=collective is not None, trying=trying)


_SUGGEST_EPILOG = """\b
A result keeps the sharding that the program requests, unless it is freed or
follows the argument that it replaces.

\b
Examples
  hloscope suggest model.py:step
  hloscope suggest model.py:step --budget 10m
  hloscope suggest model.py:step --write
  hloscope suggest model.py:ffn --keep x --free result --fix-mesh
  hloscope suggest model.py:step --executor dask://scheduler:8786 \\
      --candidates 200
"""

_search_options = combine_options(
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
        help="Programs to compile at most, besides TARGET as it is; then up to 4 variants of the best.",
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
    click.option("--write", is_flag=True, help="Write the best suggestion into the source, and analyze it again."),
    click.option("--yes", is_flag=True, help="With --write: also into files with changes that are not committed."),
    jobs_option,
    executor_option,
)


def _write_best(found: Suggestions, options: dict[str, Any]) -> None:
    """Writes the best suggestion into the source once the report is out, if the user wants that."""
    if options["write"]:
        from hloscope.app.suggesting import write_best

        request = targets.make_request(options["target"], options)
        fix = "commit it first, or pass --yes"
        write_best(request, found, is_sure=options["yes"], fix=fix, say=running.say)


@click.command(epilog=_SUGGEST_EPILOG)
@click.argument("target")
@target_options()
@_search_options
@running.reports("suggestions", then=_write_best)
def suggest(
    target: str, executor: str | None, jobs: int | None, budget_s: float | None, write: bool, **options: Any
) -> Suggestions:
    """Search for better shardings of TARGET's arguments, results and constraints, and for a better mesh.

    Every suggestion is compiled and priced.
    """
    request = targets.make_request(target, options)
    from hloscope.app.suggesting import Searching, find_suggestions

    as_given = ("keep", "free", "fix_mesh", "candidates", "seed")
    searching = Searching(seconds=budget_s, orders=not write, **{name: options[name] for name in as_given})
    return find_suggestions(request, searching, executor=executor, jobs=jobs)


_COMPARE_EPILOG = """\b
Examples
  hloscope compare --profile /tmp/trace
  hloscope compare model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=4096,D=512 --profile /tmp/trace
  hloscope compare step.hlo --mesh data=4,model=2 --profile /tmp/trace \\
      --save calibration.toml
"""


def _write_calibration(found: CompareDocument, options: dict[str, Any]) -> None:
    """Writes the chip's figures according to the profile, if requested."""
    if options["save"] is None:
        return
    from hloscope.measurement.fitting import render_calibration_file
    from hloscope.tpu.slices import is_figure

    running.write_report(render_calibration_file(found, is_figure), options["save"])
    running.say(f"wrote {options['save']}: use it with --chip-override {options['save']}")


@click.command(epilog=_COMPARE_EPILOG)
@click.argument("target", required=False)
@click.option(
    "--profile",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Output of jax.profiler: its folder, the folder of one run in it, or an xplane.pb.",
)
@click.option("--only", metavar="NAME", help="Compare only this program of the profile, such as jit_step.")
@click.option("--save", metavar="FILE", help="Save the chip figures that the profile measures, for --chip-override.")
@target_options()
@running.reports("comparison", then=_write_calibration)
def compare(target: str | None, profile: Path, only: str | None, save: str | None, **options: Any) -> CompareDocument:
    """Compare a profile's measured times with the prediction: of the step, each operation and each collective.

    Without TARGET, the programs stored in the profile itself are priced.
    """
    check_report_file(save)
    request = targets.make_request(target, options)
    from hloscope.app.comparing import find_comparison

    return find_comparison(request, profile, only=only)


_MEASURE_EPILOG = """\b
Examples
  hloscope measure model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=4096,D=512
  hloscope measure model.py:step --mesh X=8 --arg 'f32[S@X,D]' \\
      --dim S=64,D=512 --on cpu
"""


@click.command(epilog=_MEASURE_EPILOG)
@click.argument("target")
@click.option(
    "--on",
    type=click.Choice(["tpu", "cpu"]),
    default="tpu",
    show_default=True,
    help="The attached TPU, or simulated CPU devices, for which no times are predicted.",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Number of runs to profile.",
)
@click.option("--save", type=click.Path(path_type=Path), metavar="DIR", help="Save the profile to DIR.")
@target_options()
@running.reports("comparison")
def measure(target: str, on: str, runs: int, save: Path | None, **options: Any) -> CompareDocument:
    """Run TARGET on random arguments under JAX's profiler, and compare the measured times with the prediction."""
    from hloscope.app.comparing import find_measurement

    return find_measurement(targets.make_request(target, options), on=on, runs=runs, folder=save)


_VERIFY_EPILOG = """\b
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


def _choose_verify_exit_code(found: Verification, options: dict[str, Any]) -> int:
    return EXIT_BROKEN if found.fails(options["fail_on"], strict=options["strict"]) else EXIT_OK


@click.command(epilog=_VERIFY_EPILOG)
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
@running.reports("verification", _choose_verify_exit_code)
def verify(target: str, reference: str, **options: Any) -> Verification:
    """Check TARGET against REF: numbers on random inputs, structure of the outputs, and communication."""
    request, reference = targets.make_request(target, options), targets.resolve_name(reference, {"slice": None})
    from hloscope.app.verifying import find_verification

    return find_verification(request, reference, _make_settings(options), ignore=options["ignore"])


def _make_settings(options: dict[str, Any]) -> Settings:
    from hloscope.compile.notation import parse_dims
    from hloscope.verification.job import Settings, parse_range

    as_given = ("seed", "rtol", "atol", "grad", "against_single_device", "on")
    return Settings(
        ranges=dict(map(parse_range, options["ranges"])),
        scale={letter: size for text in options["scales"] for letter, size in parse_dims(text).items()},
        timeout_s=options["timeout"],
        **{name: options[name] for name in as_given},
    )
