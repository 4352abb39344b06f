"""`hloscope diff`: the changes between two programs, judged as a check judges a program against its baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hloscope.base.errors import EXIT_BROKEN, EXIT_OK, TargetError
from hloscope.base.units import pluralize
from hloscope.cli import running, targets
from hloscope.cli.options import project_options, quick_option, target_options
from hloscope.compile.target import OPTIONS

if TYPE_CHECKING:
    from hloscope.app.config import TargetConfig
    from hloscope.report.diffs import DiffDocument

_EPILOG = """\b
OLD and NEW are each one of
  a name                of a target in the targets file: NAME or NAME@SLICE
  file.py:fn, module:fn a function, with the options below or those of its
                        own decorator
  step.hlo, step.txt    HLO text
  report.json           written by hloscope analyze --format json
  baseline.txt          written by hloscope accept

\b
With --base REVISION there is one TARGET. It is compared with itself in that
git revision.

\b
Examples
  hloscope diff --base main step
  hloscope diff before.hlo after.hlo --mesh data=4,model=2 \\
      --fail-on increase
"""


def _choose_exit_code(report: DiffDocument, options: dict[str, Any]) -> int:
    fail_on = options["fail_on"]
    if fail_on is None or not report.fails(fail_on, at_least_ok=options["at_least_ok"]):
        return EXIT_OK
    broken = report.broken(fail_on, at_least_ok=options["at_least_ok"])
    if broken:
        reason = f"{report.judged.judgement}: {broken[0].message}"
        reason += f", and {pluralize(len(broken) - 1, 'other change')}" if len(broken) > 1 else ""
    elif report.is_respelled_by(fail_on):
        reason = "the same moves in another spelling, which --equivalent lets pass"
    else:
        reason = "not everything is known, so it may have changed"
    running.say(f"failed: --fail-on {fail_on}: {reason}")
    return EXIT_BROKEN


FAIL_ON_HELP = (
    "Exit 1 on an increase: NEW is worse, or different because a sum or a collective that the code calls for is "
    "missing; or on any change."
)


@click.command(epilog=_EPILOG)
@click.argument("programs", nargs=-1, required=True, metavar="OLD NEW")
@click.option("--base", metavar="REVISION", help="Compare a target with itself in a git revision, such as main.")
@click.option("--fail-on", type=click.Choice(["increase", "any"]), help=FAIL_ON_HELP)
@click.option("--at-least-ok", is_flag=True, help="With --fail-on: pass where a total is only a lower bound.")
@click.option("--equivalent", is_flag=True, help="Treat spellings that the compiler may interchange as the same.")
@project_options
@target_options()
@quick_option
@running.reports("difference", _choose_exit_code)
def command(programs: tuple[str, ...], **options: Any) -> DiffDocument:
    """Compare two programs: what they move, multiply and take. Collectives are matched by kind and source."""
    from hloscope.app.diffing import Compiling, find_difference

    wanted = 1 if options["base"] else 2
    if len(programs) != wanted:
        raise TargetError(
            f"{pluralize(len(programs), 'program')} {'is' if len(programs) == 1 else 'are'} named, and {wanted} "
            f"{'is' if wanted == 1 else 'are'} needed",
            fix="write hloscope diff OLD NEW, or hloscope diff --base main TARGET",
        )
    return find_difference(
        programs,
        _make_target_config(options),
        Compiling(
            config=None if options["config"] is None else Path(options["config"]),
            cached=not options["no_cache"],
            timeout_s=options["timeout_s"],
            wanted=targets.find_wanted_stage(options),
        ),
        facts={},
        door=targets.make_front_door(),
        base=options["base"],
        equivalent=options["equivalent"],
    )


def _make_target_config(options: dict[str, Any]) -> TargetConfig:
    """The options of the command line as a target of the targets file."""
    from hloscope.app.config import TargetConfig

    facts = targets.parse_facts(options)
    said = {option.name: getattr(facts, option.name) for option in OPTIONS if option.flags or option.name == "kwargs"}
    given = {name: value for name, value in said.items() if value is not None and value != {}}
    return TargetConfig(name="", slices=(given.pop("slice", None),), options=given)
