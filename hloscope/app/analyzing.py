"""The path of every analysis: target -> lowered -> compiled -> module -> analysis -> priced -> explained -> findings.

`analyze_function` takes the whole path, `analyze_hlo` starts at the module; the public functions are in `analyses`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from hloscope.analysis.arrays import find_constant_outputs
from hloscope.analysis.provenance import CAPTURED_SOURCES
from hloscope.analysis.totals import remove_guessed_times
from hloscope.app.requests import Text, add_dump_facts, add_guesses, make_capture
from hloscope.base.documents import make_document
from hloscope.base.errors import HloscopeError, TraceError
from hloscope.base.units import count_array_bytes
from hloscope.compile.target import TargetFacts, make_facts
from hloscope.cost import price_capture
from hloscope.hlo import HloModule, parse_module
from hloscope.judge.rule import Facts
from hloscope.judge.selection import DEFAULT_SELECTION, RuleSelection, apply_rules
from hloscope.model import Analysis, ArrayFact, SliceFact
from hloscope.model.analysis import MemoryPeak
from hloscope.model.capture import Capture, CapturedArray, Evidence, attach_evidence
from hloscope.model.decision import Decision
from hloscope.model.trial import Trials
from hloscope.model.vocabulary import CompileStage
from hloscope.tpu.slices import override_chip, parse_slice
from hloscope.version import __version__
from hloscope.why.sentences import explain_from_text

if TYPE_CHECKING:
    from hloscope.compile.compiling import PendingCompile
    from hloscope.compile.functions import Function
    from hloscope.compile.lowering import Lowered
    from hloscope.search.trial_cache import SearchSubject

T = TypeVar("T")
Stage = Callable[[str], None]
_NAMED = 3
_LEAST_TRYING_S, _TRYING_SHARE = 20.0, 1.2
"""The time for turning a decision by default: at least this long, and otherwise this many compiles."""
KernelCosts = Mapping[str, tuple[float, float]] | str | Sequence[str]
"""FLOPs and bytes by the kernel's name, or texts such as `splash=7e11,2e8`."""


def analyze_text_target(text: Text, judging: RuleSelection = DEFAULT_SELECTION) -> Analysis:
    """Analyzes a compiled program from its HLO text; does not need JAX.

    Raises:
        HloParseError: The text is not HLO.
        MeshError: The mesh does not have as many devices as the program.
        SliceError: The slice has fewer devices than the program.
    """
    program, module = capture_text(text)
    return analyze_capture(program, text.name, judging, module)


def analyze_function(
    function: Function, judging: RuleSelection = DEFAULT_SELECTION, *, tries: bool = False, try_s: float | None = None
) -> Analysis:
    """Analyzes a function.

    Args:
        function: The function.
        judging: The rules to run and the accepted findings, in addition to the target's own settings.
        tries: Whether to try to turn its costliest decision.
        try_s: Time limit for that; None for a little more than its own compile took.

    Raises:
        HloscopeError: The input is invalid, or JAX or the compiler rejects the program.
    """
    from hloscope.compile.functions import captured_function
    from hloscope.why.decisions import list_worth_trying

    program, pending = captured_function(function)
    function.stage("reading the compiled program")
    found = analyze_capture(program, function.name, judging)
    worth = list_worth_trying(found) if tries and found.time is not None else ()
    if worth:
        seconds = max(_LEAST_TRYING_S, _TRYING_SHARE * (program.compiled.seconds or 0.0)) if try_s is None else try_s
        found = _try_cures(function, found, program, pending, seconds, worth[0])
        if try_s is not None and not any(decision.is_lost for decision in worth):
            found = _say_what_was_tried(found, worth[0])
    elif tries and try_s is not None:  # asked for, so that silence would be taken for a failure
        why = "there are no predicted times to compare" if found.time is None else "no decision is lost"
        found = found._remembered_by(replace(found, notes=(*found.notes, f"nothing tried: {why}")))
    if function.store is None:
        return found
    from hloscope.search.trial_cache import add_known_fixes

    return add_known_fixes(found, function.store, pending.kept)


def _say_what_was_tried(found: Analysis, worst: Decision) -> Analysis:
    """An analysis with a note on changes that were tried without effect: only lost decisions show theirs."""
    tried = next((each.trials for each in found.decisions if each.name == worst.name), None)
    if tried is None or tried.helping:
        return found
    whys = (tried.verdict.partition(": ")[2], tried.not_tried and f"not tried: {tried.not_tried}")
    why = "; ".join(filter(None, whys)) or "time ran out"
    why = f"no decision is lost; of changes against {worst.name}, none helps: {why}"
    return found._remembered_by(replace(found, notes=(*found.notes, why)))


def _try_cures(
    function: Function, found: Analysis, program: Capture, pending: PendingCompile, seconds: float, worst: Decision
) -> Analysis:
    """An analysis whose costliest lost decision has been tried the other way round, or that says what is in the way."""
    from hloscope.compile.cache import is_same_program
    from hloscope.compile.compiling import prepare_compile
    from hloscope.compile.functions import with_function
    from hloscope.compile.lowering import lower
    from hloscope.search.cures import INTERRUPTED
    from hloscope.search.trial_cache import SearchSubject
    from hloscope.search.trying import add_trials, try_cures

    until = monotonic() + seconds
    is_complete = program.compiled.stage is CompileStage.COMPILED and not function.is_enough(program)
    confirms = function.wanted is CompileStage.COMPILED or is_complete

    def tried(itself: Callable[..., Any], known: TargetFacts) -> Analysis:
        lowered = lower(itself, known, name=function.name, stage=function.stage, store=function.store)
        again = prepare_compile(lowered).asked
        if again is None or pending.asked is None or not is_same_program(again, pending.asked):
            raise TraceError("the program is another one when it is traced again")
        subject = SearchSubject(
            function=itself,
            lowered=lowered,
            captured=program,
            analysis=found,
            store=function.store,
            kept=pending.kept,
            stage=function.stage,
        )
        return try_cures(subject, until - monotonic(), confirms=confirms)

    try:
        return with_function(function, tried)
    except HloscopeError as error:  # of a second trace alone
        why = error.what
    except KeyboardInterrupt:  # what is known is worth printing
        why = INTERRUPTED
    return add_trials(found, {worst.summary: Trials(not_tried=why, stopped=why == INTERRUPTED)})


def make_search_subject(
    function: Function,
    itself: Callable[..., Any],
    known: TargetFacts,
    *,
    when_lowered: Callable[[Lowered], None] = lambda _: None,
) -> SearchSubject:
    """Lowers, compiles and prices a program as written, as the baseline for changes; arguments as for `begin_compile`.

    Raises:
        HloscopeError: The input is invalid, or JAX or the compiler rejects the program.
    """
    from hloscope.compile.functions import begin_compile
    from hloscope.search.trial_cache import SearchSubject

    lowered, pending = begin_compile(function, itself, known, when_lowered=when_lowered)
    captured = pending.capture(function.stage)
    function.when_compiled(captured)
    function.stage("reading the compiled program")
    return SearchSubject(
        function=itself,
        lowered=lowered,
        captured=captured,
        analysis=analyze_capture(captured, function.name),
        store=function.store,
        kept=pending.kept,
        stage=function.stage,
    )


def analyze_capture(
    program: Capture, name: str, judging: RuleSelection = DEFAULT_SELECTION, module: HloModule | None = None
) -> Analysis:
    """Analyzes a compiled program.

    Args:
        program: Its text, and the other facts about it.
        name: The target as the user named it.
        judging: The rules to run and the accepted findings, in addition to the target's own settings.
        module: The parsed text; None to parse it.

    Raises:
        NotationError: An `allow` of the target cannot be parsed.
    """
    module = parse_module(program.compiled.text, name=f"{name} (compiled)") if module is None else module
    found = price_capture(program, module, target=name)
    found = add_reasons(found, module, program)
    found = _add_compiler_facts(found, module, program)
    judged_on = remove_guessed_times(found)
    chosen = None if judged_on.slice is None else program.slice
    facts = Facts(judged_on, module, chosen, kernel_costs=program.kernel_costs)
    known = apply_rules(facts, _choose_rules(program, judging))
    found = replace(found, findings=known.findings, notes=known.notes)
    return attach_evidence(found, Evidence(program=program, name=name, source_root=judging.sources.root))


def add_reasons(found: Analysis, module: HloModule, program: Capture) -> Analysis:
    """Adds the reasons for collectives, where known, to the analysis of a compiled program."""
    if program.is_text and program.compiled.shardy is None:
        return explain_from_text(found)
    from hloscope.analysis.repeated import find_repeated_work  # text alone needs neither
    from hloscope.why.stage import explain_analysis

    return explain_analysis(replace(found, repeated=find_repeated_work(found, program)), module, program)


def _choose_rules(program: Capture, judging: RuleSelection) -> RuleSelection:
    """The rules to run, with the target's own settings; for a compiled function, its source files may be read."""
    if program.is_text:
        return judging
    return replace(judging.of_target(program.allow, program.rule_options), sources=CAPTURED_SOURCES)


def analyze_hlo(
    text: str,
    *,
    name: str = "-",
    judging: RuleSelection = DEFAULT_SELECTION,
    guesses: bool = False,
    **of_text: Any,
) -> Analysis:
    """Analyzes a compiled program from its HLO text; does not need JAX.

    Args:
        text: The text, as for `analyze_text`.
        name: File name used in messages.
        judging: The rules to run and the accepted findings, as made by `hloscope.judge.selection.make_selection`.
        guesses: Whether to name unnamed axes and guess an unknown generation. A check against a contract must not rest
            on either.
        of_text: The options of the text as the user gives them: the mesh, the slice and others, as for `make_facts`.

    Raises:
        HloscopeError: As for `analyze_text_target`.
    """
    return analyze_text_target(Text(name=name, text=text, facts=make_facts(**of_text), is_foreign=guesses), judging)


def capture_text(text: Text) -> tuple[Capture, HloModule]:
    """The facts about HLO text, and the parsed text.

    Raises:
        HloscopeError: As for `analyze_text_target`.
    """
    facts, name, beside = text.facts, text.name, text.dumped
    may_follow = facts.slice is None and (text.is_foreign or beside is not None)
    chosen = override_chip(
        parse_slice(facts.slice) if facts.slice else None, () if may_follow else facts.chip_overrides or ()
    )
    module = parse_module(text.text, name=name)
    program = make_capture(text.text, module, facts, chosen, name=name)
    if beside is not None:
        program = add_dump_facts(program, module, beside, facts, name=name)
    if text.is_foreign:
        program = add_guesses(program, module, facts, is_said=beside is not None and beside.slice is not None)
    override_chip(program.slice, (facts.chip_overrides or ()) if program.slice is None else ())
    return program, module


# ---- the facts of JAX and the compiler about a program, joined to those in its text


def _add_compiler_facts(found: Analysis, module: HloModule, program: Capture) -> Analysis:
    """Adds the slice, memory peak, names, shardings, notes and versions to an analysis; of HLO text, the known ones."""
    refused = "the compiler rejects the program: {}. It was compiled again without that limit"
    known = {warning.text for warning in found.rematerializations}
    return replace(
        found,
        digest=program.digest,
        slice=make_slice_fact(program),
        arguments=found.arguments if program.arguments is None else _merge_arrays(program.arguments, found.arguments),
        outputs=_mark_wrong_outputs(
            found.outputs if program.outputs is None else _merge_arrays(program.outputs, found.outputs),
            found.outputs,
            module,
            program,
        ),
        memory_peak=_find_memory_peak(found, module, program),
        notes=(
            *_note_untested_jax(program),
            *program.notes,
            *([] if program.compiled.too_large is None else [refused.format(program.compiled.too_large)]),
            *(text for text in program.compiled.diagnostics if text not in known),
            *found.notes,
        ),
        versions={"hloscope": __version__, **program.versions, **found.versions},
    )


def _note_untested_jax(program: Capture) -> list[str]:
    if "jax" not in program.versions:
        return []
    from hloscope.compile.jax_support import describe_untested

    note = describe_untested(program.versions["jax"])
    return [] if note is None else [note]


def _find_memory_peak(found: Analysis, module: HloModule, program: Capture) -> MemoryPeak | None:
    if program.compiled.hbm_peak is None:
        return None
    from hloscope.analysis.memory import find_memory_peak

    return find_memory_peak(program.compiled.hbm_peak, module, found.collectives)


def make_slice_fact(program: Capture) -> SliceFact | None:
    """The slice of a program as a fact for reports; None if it has none."""
    chosen = program.slice
    if chosen is None:
        return None
    return SliceFact(
        name=chosen.name,
        chip=chosen.chip.name if chosen.chip else chosen.name.partition(":")[0],
        chips=chosen.chip_count if chosen.chip else program.used_devices,
        devices=chosen.device_count if not chosen.is_attached else program.used_devices,
        slices=chosen.slice_count,
        used_devices=program.used_devices,
        chosen_by=program.slice_chosen_by,
    )


def _mark_wrong_outputs(
    outputs: tuple[ArrayFact, ...], in_text: tuple[ArrayFact, ...], module: HloModule, program: Capture
) -> tuple[ArrayFact, ...]:
    """Outputs with what is wrong with them: a shape that is not a shard's, or a constant where something is selected.

    The shape of a wrong output is that of the text. A program with other outputs than its text is not judged.
    """
    if program.outputs is None or len(outputs) != len(in_text):
        return outputs
    constant = find_constant_outputs(module)
    selected = _list_selected(program) if constant else frozenset()
    found = []
    for number, (claimed, printed) in enumerate(zip(outputs, in_text, strict=True)):
        output, local, wrong = claimed, claimed.local_shape, list[str]()
        if output.dtype == printed.dtype and local != printed.local_shape:
            shapes = (f"{output.dtype}[{','.join(map(str, shape))}]" for shape in (printed.local_shape, local))
            wrong.append("each device has {} where its shard is {}".format(*shapes))
        if number in constant & selected:
            wrong.append("it is a constant, although the program selects it with top_k")
        if wrong:
            shape, size = printed.local_shape, printed.bytes_per_device
            output = replace(output, wrong=" and ".join(wrong), local_shape=shape, bytes_per_device=size)
        found.append(output)
    return tuple(found)


def _list_selected(program: Capture) -> frozenset[int]:
    """The numbers of the outputs that `top_k` selects from floating-point values of an argument, from two or more.

    XLA simplifies none of these to a constant. Of other operations it may be right to: of `x - x` of integers, of a
    sort of constants, of what is selected from a single value.
    """
    if program.compiled.shardy is None:
        return frozenset()
    from hloscope.why.shardy_graph import ShardyGraph

    graph = ShardyGraph(program.compiled.shardy)
    main = graph.module.main
    returned = None if main is None else graph.returns.get((main, 0))
    return frozenset(
        number
        for number, value in enumerate(() if returned is None else map(graph.value, returned.operands))
        if (op := graph.op(graph.root(value)[0])) is not None
        and (op.kind == "chlo.top_k" or op.symbol == "TopK")
        and (operand := graph.value(op.operands[0])).shape[-1] > 1
        and "f" in operand.element_type
        and graph.argument_behind(operand) is not None
    )


def _merge_arrays(captured: tuple[CapturedArray, ...], in_text: tuple[ArrayFact, ...]) -> tuple[ArrayFact, ...]:
    """Arrays with JAX's names, global shapes and shardings, and the local shapes and aliasing of the text."""
    used = [array for array in captured if array.used]
    beside = dict(zip((id(array) for array in used), in_text, strict=True)) if len(used) == len(in_text) else {}
    return tuple(_merge_array(array, beside.get(id(array))) for array in captured)


def _merge_array(array: CapturedArray, printed: ArrayFact | None) -> ArrayFact:
    local = array.local_shape
    if local is None:
        local = printed.local_shape if printed is not None else array.global_shape
    count = prod(local)
    known = count_array_bytes(array.dtype, count)
    donated = array.donated or (printed is not None and printed.donated)
    reused = None if printed is None else printed.reused  # None for outputs themselves
    if array.donated and printed is not None:
        reused = printed.reused is True
    return make_document(
        ArrayFact,
        array,
        local_shape=local,
        sharding=array.sharding or (printed.sharding if printed is not None else None),
        chosen_by=None if not array.used else "user" if array.asked else "compiler",
        bytes_per_device=count * array.itemsize_bytes if known is None else known,
        donated=donated,
        used=array.used and (printed is None or printed.used),  # the compiler drops reads that JAX does not
        reused=reused,
    )
