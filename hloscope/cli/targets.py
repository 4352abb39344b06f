"""From what the user typed to a compiled program: what TARGET is, and what the options of `target_options` mean."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hloscope.cli import running
from hloscope.errors import NotationError
from hloscope.program.target import OPTIONS, TargetFacts
from hloscope.progress import Stages, progress

if TYPE_CHECKING:
    from hloscope.analysis.model import Analysis
    from hloscope.analysis.model.timeline import Timeline
    from hloscope.analysis.places import Sources
    from hloscope.api.explaining import Trying
    from hloscope.program.capture import Capture
    from hloscope.rules.selection import RuleSelection
    from hloscope.why.explanation import Explanation

T = TypeVar("T")
Options = dict[str, Any]


def is_text(target: str) -> bool:
    """Whether a target is compiled already: standard input, or a file of HLO."""
    from hloscope.program.files import names_hlo

    return target == "-" or names_hlo(target)


def begun(target: str, options: Options) -> str:
    """The target, with its compiler started; of a name in the targets file its function, and what is said of it there.

    Raises:
        HloscopeError: The targets file is written wrongly.
    """
    target = named(target, options)
    start_compiler(target, options["slice"])
    return target


def named(target: str, options: Options) -> str:
    """The function or file of a name in the targets file, whose options are added; any other target as it is.

    A name goes before a folder or a file that happens to have it.
    """
    is_path = ":" in target.partition("@")[0] or Path(target).suffix or os.sep in target
    return target if target == "-" or is_path else _of_project(target, options)


def is_named(target: str) -> bool:
    """Whether it is a name in the targets file."""
    return named(target, {"slice": None}) != target


_CONFIGURED = "of the targets file"
"""What the targets file says of a target, among the options."""


def _of_project(name: str, options: Options) -> str:
    from hloscope.api.jobs import jobs_of
    from hloscope.config import ConfigError, find_project
    from hloscope.program.target import make_facts

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


def start_compiler(target: str, slice_name: str | None) -> None:
    """Starts the compiler of a target that has to be compiled, while everything else is still to be imported."""
    if is_text(target):
        return
    from importlib.util import find_spec

    if find_spec("jax") is not None:
        from hloscope.compiler.client import start_ahead
        from hloscope.store import default_store

        start_ahead(target, slice_name, default_store())


def read_text(target: str, options: Options) -> tuple[str, str]:
    """The name and the HLO text of a target that is compiled already.

    Raises:
        TargetError: There is no such file, or an option is given that only a function can obey.
        HloscopeError: The file cannot be read.
    """
    from hloscope.api.texts import hlo_text
    from hloscope.program.files import decode_hlo

    refuse_options_of_functions(target, options)
    if target == "-":
        return "<stdin>", decode_hlo(sys.stdin.buffer.read(), name="<stdin>")
    return target, hlo_text(target)


def refuse_options_of_functions(target: str, options: Options) -> None:
    """Refuses, beside what is compiled already, options that only a function can obey.

    Raises:
        TargetError: One is given.
    """
    from hloscope.api.texts import refuse_beside_text

    given = {option.flags[0]: options.get(option.name) for option in OPTIONS if option.flags and not option.of_text}
    refuse_beside_text(target, {**given, "--save-hlo": options.get("save_hlo")})


def text_facts(options: Options) -> Options:
    """What the options say beside HLO text, by the names that the use cases have for it."""
    of_text = {option.name for option in OPTIONS if option.of_text and option.flags}
    return {name: value for name, value in options.items() if name in of_text}


def judging_of(options: Options) -> RuleSelection:
    """What the options say about rules.

    Raises:
        NotationError: There is no such rule or option, or an allow cannot be read.
    """
    from hloscope.api.own_rules import load_project_plugins
    from hloscope.rules.selection import make_selection

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


def analysis_of_target(target: str, options: Options, judging: RuleSelection | None = None) -> Analysis:
    """The analysis of a target of either kind; its HLO is written where `--save-hlo` says.

    While a function is compiled there is a progress display, and what it prints does not reach the report. A program
    that was compiled before is taken from the cache.

    Raises:
        HloscopeError: Bad input, or JAX or the compiler refuses the program.
    """
    from hloscope.analysis.paths import with_helpers
    from hloscope.api.analyzing import analyze_function, analyze_hlo
    from hloscope.api.texts import dump_beside
    from hloscope.config import find_helpers
    from hloscope.rules.selection import DEFAULT_SELECTION

    helpers = find_helpers(Path.cwd())
    rules = DEFAULT_SELECTION if judging is None else judging
    if is_text(target):
        name, text = read_text(target, options)
        with running.stdout_kept_for_the_report():
            beside = dump_beside(target)
            found = analyze_hlo(text, name=name, judging=rules, guesses=True, beside=beside, **text_facts(options))
        return with_helpers(found, helpers)
    found = _of_function(
        options,
        lambda facts, **how: analyze_function(target, facts, judging=rules, **how),
    )
    return with_helpers(found, helpers)


def timeline_of_target(target: str, options: Options) -> Timeline:
    """The timeline of a target of either kind, as `analysis_of_target` has its analysis.

    Raises:
        HloscopeError: Bad input, JAX or the compiler refuses the program, or nothing prices it.
    """
    from hloscope.api.texts import Text, dump_beside
    from hloscope.api.timelines import timeline_function, timeline_of_text

    if is_text(target):
        name, text = read_text(target, options)
        with running.stdout_kept_for_the_report():
            dumped = dump_beside(target)
            return timeline_of_text(Text(name=name, text=text, beside=text_facts(options), dumped=dumped))
    return _of_function(options, lambda facts, **how: timeline_function(target, facts, **how))


def explanation_of_target(
    target: str, options: Options, named: str | None, *, everything: bool, sources: Sources, trying: Trying
) -> tuple[Explanation, ...]:
    """The explanations of a function's collectives, as `api.explaining` has them; else as `analysis_of_target`.

    Raises:
        HloscopeError: Bad input, or JAX or the compiler refuses the program.
    """
    from hloscope.api.explaining import explain_function

    def find(facts: TargetFacts, *, stage: Stages, **how: Any) -> tuple[Explanation, ...]:
        def begin(found: Explanation) -> None:
            running.begin_report("explanation", [found], stage)

        return explain_function(
            target,
            facts,
            named,
            everything=everything,
            sources=sources,
            trying=trying,
            stage=stage,
            when_explained=begin,
            **how,
        )

    return _of_function(options, find)


def _of_function(options: Options, find: Callable[..., T]) -> T:
    """What is found of a function, while there is a progress display; its HLO is written where `--save-hlo` says."""
    from hloscope.api.texts import refuse_source_root
    from hloscope.outputs import check_hlo_file
    from hloscope.store import default_store

    refuse_source_root("--source-root", options.get("source_root"))
    if options.get("save_hlo"):
        check_hlo_file(options["save_hlo"])
    facts, store = prepared_facts(options), default_store()
    captured: list[Capture] = []
    try:
        with running.stdout_kept_for_the_report(), progress() as stage:
            return find(facts, stage=stage, store=store, when_compiled=captured.append)
    finally:
        if captured and options.get("save_hlo"):
            running.write_report(captured[0].compiled.text, options["save_hlo"])


def prepared_facts(options: Options) -> TargetFacts:
    """What the options say of the target, with the environment made ready for as many devices; before JAX starts.

    Raises:
        HloscopeError: Bad input, or there is no JAX.
    """
    from hloscope.api.own_rules import load_project_plugins
    from hloscope.program.environment import DEFAULT_DEVICES, check_mesh_size, prepare_environment, require_jax
    from hloscope.tpu.overrides import override_chip
    from hloscope.tpu.slices import find_smallest_slice, parse_slice

    require_jax()
    with running.stdout_kept_for_the_report():
        load_project_plugins(Path.cwd())
    facts = facts_of(options)
    chosen = None if facts.slice is None else parse_slice(facts.slice)
    attached = chosen is not None and chosen.is_attached
    asked = prod(facts.mesh.values()) if facts.mesh else None
    if asked is not None and not attached:
        check_mesh_size(chosen, facts.mesh)
    elif chosen is not None and not attached:
        asked = chosen.device_count
    override_chip(chosen or find_smallest_slice(1), facts.chip_overrides or ())
    prepare_environment(asked or DEFAULT_DEVICES, attached=attached)
    return facts


def facts_of(options: Options) -> TargetFacts:
    """The options of `target_options` as facts about a target.

    Raises:
        NotationError: One of them is not in the notation that it should be in.
    """
    said: dict[str, Any] = {}
    for option in OPTIONS:
        said |= option.of_command_line(options)
    facts, configured = TargetFacts(**said), options.get(_CONFIGURED)
    return facts if configured is None else facts.over(configured)


def _rule_option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        option = text if "." in text else f"{text}.OPTION"
        raise NotationError(f"--rule-option {text!r} has no value", fix=f"write --rule-option {option}=VALUE")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip()  # refused with the rule's own words
