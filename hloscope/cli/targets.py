"""From the user's words to a request: the meaning of TARGET and of the options of `target_options`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hloscope.base.errors import NotationError
from hloscope.base.progress import show_progress
from hloscope.cli import running
from hloscope.compile.target import OPTIONS, OPTIONS_BY_NAME, TargetFacts
from hloscope.model.vocabulary import CompileStage

if TYPE_CHECKING:
    from hloscope.app.requests import FrontDoor, Request
    from hloscope.judge.selection import RuleSelection

Options = dict[str, Any]


def make_request(target: str | None, options: Options, **more: Any) -> Request:
    """The request of a command line.

    Args:
        target: The target as the user typed it; None if it names none.
        options: The values of the command's options, `target_options` among them.
        more: Other attributes of the request.

    Raises:
        HloscopeError: The targets file or an option of rules is invalid.
    """
    target = None if target is None else resolve_name(target, options)
    from hloscope.app.requests import PROFILE_PROGRAM, Request

    if "select" in options:
        more["judging"] = make_judging(options)
    return Request(
        target=PROFILE_PROGRAM if target is None else target,
        said={option.name: options.get(option.name) for option in OPTIONS if option.flags},
        door=make_front_door(),
        wanted=find_wanted_stage(options),
        source_root=options.get("source_root"),
        save_hlo=options.get("save_hlo"),
        configured=options.get(_CONFIGURED),
        **more,
    )


def find_wanted_stage(options: Options) -> CompileStage:
    """The stage of a compile that is enough, from `--quick`."""
    return CompileStage.SCHEDULED if options.get("quick") else CompileStage.COMPILED


def make_front_door() -> FrontDoor:
    """The command line as a front door."""
    from hloscope.app.requests import FrontDoor

    return FrontDoor(
        read=parse_facts,
        prepare=prepare_jax,
        quiet=running.reserve_stdout,
        progress=show_progress,
        begin=running.begin_report,
        say=lambda stage, text: running.make_say(stage)(text),
        write_hlo=running.write_report,
        called=_find_flag,
        standard_input=_read_standard_input,
    )


def make_run_options(options: Options) -> dict[str, Any]:
    """The options for runs of a project's targets, by their names in `run_jobs`."""
    names = {"jobs": "workers", "timeout_s": "timeout_s", "executor": "executor"}
    how = {name: options[option] for option, name in names.items() if option in options}
    return {"cached": not options["no_cache"], **how}


def find_own_helpers() -> tuple[str, ...]:
    """The files and functions that the project of the current folder calls helpers."""
    from hloscope.app.config import find_helpers

    return find_helpers(Path.cwd())


def _find_flag(name: str) -> str:
    from hloscope.app.requests import STAGE

    if name == STAGE:
        return "--quick"
    option = OPTIONS_BY_NAME.get(name)
    return option.flags[0] if option is not None and option.flags else f"--{name.replace('_', '-')}"


def _read_standard_input() -> tuple[str, str]:
    from hloscope.compile.hlo_files import decode_hlo

    return "<stdin>", decode_hlo(sys.stdin.buffer.read(), name="<stdin>")


def resolve_name(target: str, options: Options) -> str:
    """The function or file of a name in the targets file, whose options are added; any other target is unchanged.

    A name takes precedence over a folder or a file with the same name.
    """
    is_path = ":" in target.partition("@")[0] or Path(target).suffix or os.sep in target
    return target if target == "-" or is_path else _resolve_in_project(target, options)


_CONFIGURED = "of the targets file"
"""The key, among the options, of a target's options in the targets file."""


def _resolve_in_project(name: str, options: Options) -> str:
    from hloscope.app.config import ConfigError, find_project
    from hloscope.app.jobs import list_jobs
    from hloscope.compile.target import make_facts

    try:
        project = find_project(Path.cwd())
        known = {target.name for target in project.targets}
    except ConfigError:
        return name  # it is not a function either, which the import reports
    if name.partition("@")[0] not in known and name not in known:
        return name
    job = list_jobs(project, [name])[0]
    if job.target.hlo is not None:
        return os.path.relpath(project.root / job.target.hlo)
    options["slice"] = options.get("slice") or job.slice
    options[_CONFIGURED] = make_facts(**job.target.options)
    function = job.target.function or ""
    file, colon, rest = function.rpartition(":")
    return f"{os.path.relpath(project.root / file)}{colon}{rest}" if file.endswith(".py") else function


def make_judging(options: Options) -> RuleSelection:
    """The rules to run and the accepted findings, from the options.

    Raises:
        NotationError: There is no such rule or option, or an `allow` is invalid.
    """
    from hloscope.app.config import load_project_plugins
    from hloscope.judge.selection import make_selection

    with running.reserve_stdout():
        load_project_plugins(Path.cwd())
    return make_selection(
        select=options["select"],
        ignore=options["ignore"],
        allow=options["allow"],
        rule_options=dict(_parse_rule_option(text) for text in options["rule_options"]),
        source_root=options.get("source_root"),
        where="--allow",
    )


def prepare_facts(options: Options) -> TargetFacts:
    """The options as facts about a target, after the import of JAX with all preparations for it.

    Raises:
        HloscopeError: The input is invalid, or JAX is not installed.
    """
    facts = parse_facts(options)
    prepare_jax(facts)
    return facts


def prepare_jax(facts: TargetFacts) -> None:
    """Prepares the environment for the devices that a function needs, and imports JAX.

    Raises:
        HloscopeError: The input is invalid, or JAX is not installed.
    """
    from hloscope.app.config import load_project_plugins
    from hloscope.compile.environment import (
        DEFAULT_DEVICES,
        check_mesh_size,
        import_jax,
        prepare_environment,
        require_jax,
    )
    from hloscope.tpu.slices import find_smallest_slice, override_chip, parse_slice

    require_jax()
    with running.reserve_stdout():
        load_project_plugins(Path.cwd())
    chosen = None if facts.slice is None else parse_slice(facts.slice)
    attached = chosen is not None and chosen.is_attached
    asked = prod(facts.mesh.values()) if facts.mesh else None
    if asked is not None and not attached:
        check_mesh_size(chosen, facts.mesh)
    elif chosen is not None and not attached:
        asked = chosen.device_count
    override_chip(chosen or find_smallest_slice(1), facts.chip_overrides or ())
    prepare_environment(asked or DEFAULT_DEVICES, attached=attached)
    import_jax()


def parse_facts(options: Mapping[str, Any]) -> TargetFacts:
    """The options of `target_options` as facts about a target.

    Raises:
        NotationError: An option does not have the required notation.
    """
    said: dict[str, Any] = {}
    for option in OPTIONS:
        said |= option.of_command_line(options)
    return TargetFacts(**said)


def _parse_rule_option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        option = text if "." in text else f"{text}.OPTION"
        raise NotationError(f"--rule-option {text!r} has no value", fix=f"write --rule-option {option}=VALUE")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip()  # the rule refuses it in its own words
