"""From what the user typed to a compiled program: what TARGET is, and what the options of `target_options` mean."""

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

if TYPE_CHECKING:
    from hloscope.app.requests import FrontDoor, Request
    from hloscope.judge.selection import RuleSelection

Options = dict[str, Any]


def request_of(target: str | None, options: Options, *, ahead: bool = True, **more: Any) -> Request:
    """The request that a command line makes.

    Args:
        target: The target as the user typed it; None if it names none.
        options: The values of the command's options, `target_options` among them.
        ahead: Whether to start the compiler of a function at once, while everything else is still to be imported.
        more: Other attributes of the request.

    Raises:
        HloscopeError: The targets file or an option of rules is invalid.
    """
    target = None if target is None else named(target, options)
    if ahead and target is not None:
        _start_compiler(target, options["slice"])
    from hloscope.app.requests import Request

    if "select" in options:
        more["judging"] = judging_of(options)
    return Request(
        target=target,
        said={option.name: options.get(option.name) for option in OPTIONS if option.flags},
        door=front_door(),
        source_root=options.get("source_root"),
        save_hlo=options.get("save_hlo"),
        configured=options.get(_CONFIGURED),
        **more,
    )


def front_door() -> FrontDoor:
    """The command line as a front door."""
    from hloscope.app.requests import FrontDoor

    return FrontDoor(
        read=facts_of,
        prepare=prepare,
        quiet=running.stdout_kept_for_the_report,
        progress=show_progress,
        begin=running.begin_report,
        say=lambda stage, text: running.saying(stage)(text),
        write_hlo=running.write_report,
        called=_flag_of,
        standard_input=_read_standard_input,
    )


def how_to_run(options: Options) -> dict[str, Any]:
    """The options that say how a project's targets are run, by the names that `run_jobs` has for them."""
    names = {"jobs": "workers", "timeout_s": "timeout_s", "executor": "executor"}
    how = {name: options[option] for option, name in names.items() if option in options}
    return {"cached": not options["no_cache"], **how}


def helpers() -> tuple[str, ...]:
    """The files and functions that the project of the current folder calls helpers."""
    from hloscope.app.config import find_helpers

    return find_helpers(Path.cwd())


def _flag_of(name: str) -> str:
    option = OPTIONS_BY_NAME.get(name)
    return option.flags[0] if option is not None and option.flags else f"--{name.replace('_', '-')}"


def _read_standard_input() -> tuple[str, str]:
    from hloscope.compile.hlo_files import decode_hlo

    return "<stdin>", decode_hlo(sys.stdin.buffer.read(), name="<stdin>")


def named(target: str, options: Options) -> str:
    """The function or file of a name in the targets file, whose options are added; any other target as it is.

    A name goes before a folder or a file that happens to have it.
    """
    is_path = ":" in target.partition("@")[0] or Path(target).suffix or os.sep in target
    return target if target == "-" or is_path else _of_project(target, options)


_CONFIGURED = "of the targets file"
"""What the targets file says of a target, among the options."""


def _of_project(name: str, options: Options) -> str:
    from hloscope.app.config import ConfigError, find_project
    from hloscope.app.jobs import jobs_of
    from hloscope.compile.target import make_facts

    try:
        project = find_project(Path.cwd())
        known = {target.name for target in project.targets}
    except ConfigError:
        return name  # it is no function either, which is said then
    if name.partition("@")[0] not in known and name not in known:
        return name
    job = jobs_of(project, [name])[0]
    if job.target.hlo is not None:
        return os.path.relpath(project.root / job.target.hlo)
    options["slice"] = options.get("slice") or job.slice
    options[_CONFIGURED] = make_facts(**job.target.options)
    function = job.target.function or ""
    file, colon, rest = function.rpartition(":")
    return f"{os.path.relpath(project.root / file)}{colon}{rest}" if file.endswith(".py") else function


def _start_compiler(target: str, slice_name: str | None) -> None:
    from importlib.util import find_spec

    from hloscope.compile.hlo_files import is_hlo_target

    if target != "-" and not is_hlo_target(target) and not Path(target).is_dir() and find_spec("jax") is not None:
        from hloscope.base.store import open_default_store
        from hloscope.compile.client import start_worker_ahead

        start_worker_ahead(target, slice_name, open_default_store())


def judging_of(options: Options) -> RuleSelection:
    """What the options say about rules.

    Raises:
        NotationError: There is no such rule or option, or an allow cannot be read.
    """
    from hloscope.app.config import load_project_plugins
    from hloscope.judge.selection import make_selection

    with running.stdout_kept_for_the_report():
        load_project_plugins(Path.cwd())
    return make_selection(
        select=options["select"],
        ignore=options["ignore"],
        allow=options["allow"],
        rule_options=dict(_rule_option(text) for text in options["rule_options"]),
        source_root=options.get("source_root"),
        where="--allow",
    )


def prepared_facts(options: Options) -> TargetFacts:
    """What the options say of the target, with everything made ready for JAX to be imported.

    Raises:
        HloscopeError: Bad input, or there is no JAX.
    """
    facts = facts_of(options)
    prepare(facts)
    return facts


def prepare(facts: TargetFacts) -> None:
    """Makes the environment ready for as many devices as a function needs, before JAX starts.

    Raises:
        HloscopeError: Bad input, or there is no JAX.
    """
    from hloscope.app.config import load_project_plugins
    from hloscope.compile.environment import DEFAULT_DEVICES, check_mesh_size, prepare_environment, require_jax
    from hloscope.tpu.overrides import override_chip
    from hloscope.tpu.slices import find_smallest_slice, parse_slice

    require_jax()
    with running.stdout_kept_for_the_report():
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


def facts_of(options: Mapping[str, Any]) -> TargetFacts:
    """The options of `target_options` as facts about a target.

    Raises:
        NotationError: One of them is not in the notation that it should be in.
    """
    said: dict[str, Any] = {}
    for option in OPTIONS:
        said |= option.of_command_line(options)
    return TargetFacts(**said)


def _rule_option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        option = text if "." in text else f"{text}.OPTION"
        raise NotationError(f"--rule-option {text!r} has no value", fix=f"write --rule-option {option}=VALUE")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip()  # refused with the rule's own words
