"""The communication, times and shardings of one program: `analyze`, `timeline`, `graph`, `shardings`.

`analyze_text` and `analyze_all` analyze HLO text and folders of dumps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from hloscope.analysis.model_parts import skip_helpers
from hloscope.app.analyzing import (
    KernelCosts,
    Stage,
    add_reasons,
    analyze_capture,
    analyze_function,
    analyze_hlo,
    analyze_text_target,
    capture_text,
)
from hloscope.app.requests import FunctionOptions, Request, Text, follow, parse_stage, parse_trying
from hloscope.base import calls
from hloscope.base.calls import front_door
from hloscope.base.errors import Command, CompileError, NotationError, Option, SliceError, TargetError, placeholder, say
from hloscope.base.progress import StageDisplay, show_waiting
from hloscope.base.units import pluralize
from hloscope.compile.dumps import read_dump
from hloscope.compile.target import TargetFacts, TargetOptions, accept_options, find_target_name
from hloscope.hlo import HloModule, parse_module
from hloscope.judge.selection import RuleSelection, make_selection
from hloscope.model import Analysis
from hloscope.model.capture import Capture
from hloscope.model.vocabulary import CompileStage

if TYPE_CHECKING:
    from hloscope.compile.functions import Function
    from hloscope.cost.program_graph import GraphSelection
    from hloscope.model.program_graph import ProgramGraph
    from hloscope.model.timeline import Timeline
    from hloscope.report.dumps import DumpedModules
    from hloscope.report.shardings import ShardingTable


@front_door
@accept_options(TargetOptions)
def analyze(
    target: Callable[..., Any] | str | Path,
    args: Any = None,
    *,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    source_root: str | Path | None = None,
    save_hlo: str | Path | None = None,
    only: str | None = None,
    stage: str = CompileStage.COMPILED,
    try_s: float | str | None = None,
    trials: bool = True,
    **options: Unpack[TargetOptions],
) -> Analysis:
    """Compiles a function for a TPU slice, which need not be attached, and reports what it moves.

    Options that are not given are taken from `@hloscope.target` and then from the function itself. A program that was
    compiled before is taken from the user's cache, unless `HLOSCOPE_CACHE=0` is set.

    Example:
        >>> found = hloscope.analyze(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2})
        >>> [c.kind for c in found.collectives]
        ['all-reduce']

    Args:
        target: A function (plain, jitted or shard_mapped; a partial, a method, a Flax NNX module, a factory), its name
            as `module:fn` or `file.py:fn`; what JAX returns: `jax.stages.Traced`, `Lowered` or `Compiled`, or
            `jax.export.Exported`; the path of an HLO file, which may be compressed or serialized; or the path of an XLA
            dump folder, whose largest module is used.
        args: One entry per positional argument: a notation (`bf16[8@X,2048@Y]`), a pytree of notations,
            ShapeDtypeStructs or arrays, or a callable that returns one of these. The compiler chooses the sharding of
            arrays without one; a notation without axes means replicated.
        select: Names of the rules to run; all when empty.
        ignore: Names of rules to skip.
        source_root: For HLO text, the folder below which source files that it names may be read, for comments that
            accept findings.
        save_hlo: For functions, a file to write the compiled HLO to, so that line numbers in the report refer to it. An
            existing file must hold HLO text.
        only: For a dump folder, the name, number or file of the module to analyze.
        stage: For functions, `scheduled` to stop a long compile once the program is scheduled: what it moves, its
            shapes and its buffers are then complete, but its times are estimated without the compiler's cycles, and
            whether it compiles and fits is open.
        try_s: For functions in which an axis is lost, the time limit for a trial of the constraint that gives it back,
            in seconds or such as `5m`. By default 20 seconds, or somewhat longer than the program itself compiles.
        trials: Whether to try that at all; where the environment variable `CI` is set, only with `try_s`.
        {options}

    Returns:
        The analysis; `to_dict()` returns it as plain data.

    Raises:
        HloscopeError: The input is invalid, or JAX or the compiler rejects the program.
    """
    file = calls.path("save_hlo", save_hlo, example='save_hlo="step.hlo"')
    name = None if only is None else calls.text("only", only, example='only="jit_step"')
    request = make_program_request(
        target,
        args,
        options,
        select=select,
        ignore=ignore,
        source_root=source_root,
        save_hlo=None if file is None else str(file),
        only=name,
        wanted=parse_stage(stage),
        trying=parse_trying(try_s, trials),
    )
    if only is not None and not request.is_folder:
        raise TargetError("only is for a folder of XLA dumps", fix="leave it out, or pass the folder")
    return find_analysis(request)


def make_program_request(
    target: Any,
    args: Any,
    options: Mapping[str, Any],
    *,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    source_root: str | Path | None = None,
    **more: Any,
) -> Request:
    """The request of a call in Python, whose options include those of rules.

    Raises:
        HloscopeError: The target is of an unknown kind, or an option of rules is invalid.
    """
    rules, of_target = _split_rules(options, select=select, ignore=ignore, source_root=source_root)
    said = {"args": args, **of_target}
    return Request(target=target, said=said, judging=rules, source_root=source_root, **more)


def _split_rules(options: Mapping[str, Any], **chosen: Any) -> tuple[RuleSelection, dict[str, Any]]:
    """The selection of rules by options of a call in Python, and those of its target.

    Raises:
        HloscopeError: An option of rules is invalid.
    """
    of_rules = {name: options[name] for name in ("allow", "rule_options") if name in options}
    return make_selection(**chosen, **of_rules), {key: value for key, value in options.items() if key not in of_rules}


def find_analysis(request: Request) -> Analysis:
    """Analyzes the target of a request.

    Raises:
        HloscopeError: The input is invalid, or JAX or the compiler rejects the program.
    """
    if request.is_folder:
        return _analyze_folder(request)

    def of_function(function: Function, stage: StageDisplay) -> Analysis:
        def begin(program: Capture) -> None:
            first = analyze_capture(program, function.name, request.judging)
            request.door.begin("analysis", skip_helpers(first, request.helpers), stage)

        return analyze_function(
            replace(function, when_scheduled=begin) if request.begins else function,
            request.judging,
            tries=request.trying.wanted,
            try_s=request.trying.seconds,
        )

    found = follow(request, of_function=of_function, of_text=lambda text: analyze_text_target(text, request.judging))
    return skip_helpers(found, request.helpers) if request.helpers else found


def _analyze_folder(request: Request) -> Analysis:
    """The analysis of a folder's largest module, or of the named one."""
    from hloscope.app.dumps import HowToAnalyze, analyze_dumped

    door, dump, only = request.door, read_dump(request.target), request.only
    how = HowToAnalyze(judging=request.judging, facts=request.facts_of_text())
    module = dump.modules[0] if only is None else dump.named(only)
    with door.quiet(), door.progress() as stage:
        if only is None and len(dump.modules) > 1:
            door.begin("dump", dump, stage)
        stage(f"analyzing {module.file}")
        return analyze_dumped(module, how)


class TextOptions(TypedDict, total=False):
    """Options for compiled programs given as text."""

    mesh: Any
    slice: str | None
    dcn: Mapping[str, int] | str | None
    chip_overrides: str | Sequence[str]
    kernel_costs: KernelCosts
    allow: str | Sequence[str]
    rule_options: Mapping[str, Any] | None


@front_door
@accept_options(TextOptions)
def analyze_text(
    text: str,
    *,
    name: str = "-",
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    source_root: str | Path | None = None,
    **options: Unpack[TextOptions],
) -> Analysis:
    """Reports what a compiled program moves, from its HLO text; does not need JAX.

    By default the axes have the names in the text, and nothing is priced, since the text does not say for which slice
    it was compiled.

    Example:
        >>> hloscope.analyze_text(compiled.as_text(), mesh={"X": 4, "Y": 2}, slice="v5e:2x4")

    Args:
        text: The output of `compiled.as_text()`, or a dump of the final module. Of a truncated text, the complete part
            is read, and its totals are marked "at least".
        name: File name used in messages.
        select: Names of the rules to run; all when empty.
        ignore: Names of rules to skip.
        source_root: The folder below which source files named in the text may be read, for comments that accept
            findings.
        {options}

    Raises:
        HloParseError: The text is not HLO.
        MeshError: The mesh does not have as many devices as the program.
        SliceError: The slice has fewer devices than the program.
    """
    rules, said = _split_rules(options, select=select, ignore=ignore, source_root=source_root)
    return analyze_hlo(
        calls.text("the HLO", text, example="hloscope.analyze_text(compiled.as_text())"),
        name=calls.text("name", name, example='name="step.hlo"'),
        judging=rules,
        **said,
    )


@front_door
@accept_options(TextOptions)
def analyze_all(
    folder: str | Path,
    *,
    jobs: int | None = None,
    memory: int | str | None = None,
    select: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    source_root: str | Path | None = None,
    **options: Unpack[TextOptions],
) -> DumpedModules:
    """Analyzes all modules in an XLA dump folder in parallel, without reasons.

    Example:
        >>> print(hloscope.analyze_all("dump/"))

    Args:
        folder: The folder passed to `xla_dump_to`.
        jobs: Maximum number of parallel processes; by default as many as cores and memory allow.
        memory: Memory limit for all processes together, in bytes or such as `4GiB`; by default half of the free memory.
        select: Names of the rules to run; all when empty.
        ignore: Names of rules to skip.
        source_root: The folder below which source files named in the texts may be read, for comments that accept
            findings.
        {options}

    Returns:
        Each module with its analysis or error, largest module first.

    Raises:
        HloscopeError: The input is invalid, or the folder has no module.
    """
    from hloscope.app import dumps
    from hloscope.report.dumps import DumpedModules

    request = make_program_request(folder, None, options, select=select, ignore=ignore, source_root=source_root)
    path = calls.path("folder", folder, example='hloscope.analyze_all("dump/")')
    workers = None if jobs is None else calls.whole("jobs", jobs, least=1)
    most = None if memory is None else calls.size("memory", memory, example='memory="4GiB"')
    if path is None or not os.path.isdir(path):
        raise TargetError(f"there is no folder {path}", fix="use the folder of xla_dump_to")
    dump = read_dump(path)
    how = dumps.HowToAnalyze(judging=request.judging, facts=request.facts_of_text())
    done, begun = [], monotonic()
    with show_waiting() as stage:
        stage(f"analyzing {pluralize(len(dump.modules), 'module')}")
        for result in dumps.analyze_all(dump, how, workers=workers, memory_bytes=most):
            done.append(result)
            stage(f"{len(done)} of {pluralize(len(dump.modules), 'module')} analyzed")
    places = {module.file: place for place, module in enumerate(dump.modules)}
    done.sort(key=lambda result: places[result.module.file])
    return DumpedModules(done, dump=dump, seconds=monotonic() - begun)


# ---- timelines


@front_door
@accept_options(TargetOptions)
def timeline(
    target: Callable[..., Any] | str | Path,
    args: Any = None,
    *,
    stage: str = CompileStage.COMPILED,
    **options: Unpack[TargetOptions],
) -> Timeline:
    """Predicts the timeline of one step: what runs when, on which unit of the device, and what is exposed.

    Example:
        >>> found = hloscope.timeline(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2})
        >>> found.step_us, found.computing_us, found.waits.collective_us

    Args:
        target: As for `analyze`, except dump folders.
        args: One entry per positional argument, as for `analyze`.
        stage: As for `analyze`.
        {options}

    Returns:
        The timeline, whose intervals add up to the times in `analyze`; `to_dict()` returns it as plain data.

    Raises:
        HloscopeError: The input is invalid, JAX or the compiler rejects the program, or it cannot be priced.
    """
    return find_timeline(Request(target=target, said={"args": args, **options}, wanted=parse_stage(stage)))


def find_timeline(request: Request) -> Timeline:
    """Predicts the timeline of a request's target.

    Raises:
        HloscopeError: The input is invalid, JAX or the compiler rejects the program, or it cannot be priced.
    """
    return follow(request, of_function=_predict_for_function, of_text=predict_timeline_of_text)


def _predict_for_function(function: Function, stage: Stage) -> Timeline:
    from hloscope.compile.functions import captured_function

    program, _ = captured_function(function)
    stage("reading the compiled program")
    module = parse_module(program.compiled.text, name=f"{function.name} (compiled)")
    return _predict_for_capture(program, module, function.name)


def predict_timeline_of_text(text: Text) -> Timeline:
    """Predicts the timeline of a target that is already compiled.

    Raises:
        HloscopeError: The text is not HLO, or it cannot be priced.
    """
    program, module = capture_text(text)
    return _predict_for_capture(program, module, text.name)


def predict_timeline_of_analysis(found: Analysis) -> Timeline:
    """Predicts the timeline of a program that was analyzed in this process.

    Raises:
        HloscopeError: The program was not analyzed in this process, or it cannot be priced.
    """
    return _predict_for_capture(found.evidence.program, found.evidence.module(), found.target)


def _predict_for_capture(program: Capture, module: HloModule, name: str) -> Timeline:
    from hloscope.cost.timeline import predict_timeline

    reasons = partial(add_reasons, module=module, program=program)
    found = predict_timeline(program, module, target=name, explained=reasons)
    if found is not None:
        return found
    if program.slice is None or program.slice.chip is None:
        raise SliceError(
            f"{name} has no timeline: without a TPU slice there are no times",
            fix=say("name one: ", Option("slice", "v5e:2x4")),
        )
    why = "the text is cut off" if module.truncated else "its trip counts are too large for its loops to end"
    raise SliceError(f"{name} has no timeline", why=why)


# ---- graphs


@front_door
@accept_options(TargetOptions)
def graph(
    target: Callable[..., Any] | str | Path,
    args: Any = None,
    *,
    computation: str | None = None,
    around: str | None = None,
    hops: int | None = None,
    stage: str = CompileStage.COMPILED,
    **options: Unpack[TargetOptions],
) -> ProgramGraph:
    """Returns a compiled program as a dependency graph with times and the critical path.

    Example:
        >>> around = hloscope.graph("model:step", around="all-gather.8", hops=2, slice="v6e:2x4")
        >>> networkx.descendants(around.to_networkx(), "main/all-gather.8")

    Args:
        target: As for `analyze`.
        args: One entry per positional argument, as for `analyze`.
        computation: An HLO computation; by default all that run in a step, without the insides of fusions.
        around: An instruction's name; only its neighborhood is included.
        hops: Size of that neighborhood, in edges; 3 by default.
        stage: As for `analyze`.
        {options}

    Raises:
        HloscopeError: As for `analyze`, or the computation or instruction does not exist.
    """
    request = make_program_request(target, args, options, wanted=parse_stage(stage))
    return find_graph(request, computation=computation, around=around, hops=hops)


def find_graph(request: Request, **part: Any) -> ProgramGraph:
    """Finds the graph of a request's target, or of a part of it, named as in `graph`.

    Raises:
        HloscopeError: As for `graph`.
    """
    wanted = make_graph_selection(**part)
    return build_graph(find_analysis(request), wanted)


def make_graph_selection(computation: str | None, around: str | None, hops: int | None) -> GraphSelection:
    """The selected part of a program's graph.

    Raises:
        NotationError: `hops` is not a whole number, or there is no instruction to count from.
    """
    from hloscope.cost.program_graph import GraphSelection

    if hops is None:
        return GraphSelection(computation=computation, around=around)
    if around is None:
        raise NotationError(
            say(
                Option("hops", placeholder(calls.format_value(hops))), " counts from an instruction, and none is named"
            ),
            fix=say("name one: ", Option("around", "all-gather.8")),
        )
    count = calls.whole("hops", hops, least=0, example="hops=3")
    return GraphSelection(computation=computation, around=around, hops=count)


def build_graph(found: Analysis, wanted: GraphSelection) -> ProgramGraph:
    """Returns the graph of a program that was analyzed in this process.

    Args:
        found: Its analysis.
        wanted: The selected part.

    Raises:
        HloscopeError: The program was not analyzed in this process, or the computation or instruction does not exist.
    """
    from hloscope.cost.program_graph import build_program_graph

    evidence = found.evidence
    return build_program_graph(evidence.program, evidence.module(), found, wanted)


def build_graph_of_analysis(found: Analysis, **part: Any) -> ProgramGraph:
    """The graph for `Analysis.graph`, with the same arguments."""
    return build_graph(found, make_graph_selection(**part))


# ---- shardings, without a compile


@front_door
@accept_options(FunctionOptions)
def shardings(
    target: Callable[..., Any] | str,
    args: Any = None,
    **options: Unpack[FunctionOptions],
) -> ShardingTable:
    """Returns the shardings of arguments, constraints, outputs and large arrays, as Shardy propagates them.

    Nothing is compiled.

    Example:
        >>> print(hloscope.shardings(step, ("bf16[8@X,2048@Y]", "bf16[2048@Y,8192]"), mesh={"X": 4, "Y": 2}))

    Args:
        target: As for `analyze`, except programs that are already compiled.
        args: One entry per positional argument, as for `analyze`.
        {options}

    Raises:
        HloscopeError: The input is invalid, JAX rejects the program, or Shardy cannot propagate its shardings.
    """
    request = Request(target=target, said={"args": args, **options})
    return find_shardings(request)


def find_shardings(request: Request) -> ShardingTable:
    """Propagates the shardings of a request's function.

    Raises:
        HloscopeError: The input is invalid, JAX rejects the program, or Shardy cannot propagate its shardings.
    """
    if request.is_text:
        raise TargetError(
            f"{find_target_name(request.target)} is already compiled, and its shardings are already propagated",
            fix=say("name the function itself, or use ", Command("analyze")),
        )
    return follow(request, of_function=propagate_shardings, compiles=False)


def propagate_shardings(function: Function, _: Stage = lambda _: None) -> ShardingTable:
    """Returns all arguments, constraints and outputs and the large intermediates, with their shardings.

    Raises:
        HloscopeError: The input is invalid, JAX rejects the program, or Shardy cannot propagate its shardings.
    """

    def propagated(itself: Callable[..., Any], known: TargetFacts) -> ShardingTable:
        from hloscope.compile.arguments import find_argument_letters
        from hloscope.compile.client import ask_propagation
        from hloscope.compile.devices import find_axis_sizes
        from hloscope.compile.jax_private import write_bytecode  # these import JAX, which is slow
        from hloscope.compile.lowering import lower
        from hloscope.report.shardings import ShardingTable
        from hloscope.why.shardings import list_sharded_arrays

        program = lower(itself, known, name=function.name, stage=function.stage)
        seen, notes = program.seen, list(program.plan.notes)
        function.stage("propagating")
        shardy, _ = ask_propagation(write_bytecode(program.module), "jax", notes, timeout_s=known.timeout_s)
        if shardy is None:
            raise CompileError(
                f"the shardings of {function.name} cannot be propagated here",
                why="; ".join(notes),
                fix=say(Command("analyze"), " compiles the program and shows what the compiler chose"),
            )
        letters = find_argument_letters(known, len(seen.argument_names))
        return ShardingTable(
            target=function.name,
            slice_name=program.slice.name,
            axis_sizes={} if program.mesh is None else find_axis_sizes(program.mesh),
            arrays=list_sharded_arrays(shardy, tuple(letters[index] for index in seen.kept), seen.result_names),
            unused=tuple(name for index, name in enumerate(seen.argument_names) if index not in seen.kept),
            notes=tuple(notes),
        )

    from hloscope.compile.functions import with_function

    return with_function(function, propagated)
